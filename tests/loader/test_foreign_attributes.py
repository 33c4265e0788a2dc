"""Habits of other libraries: overrides without effect, and PyG's inference with its own loaders."""

import ast
import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader, ZipLoader
from torch_geometric.nn import GraphSAGE

from gigl_loader import (
    BaseDistLoader,
    DistABLPLoader,
    DistDataset,
    DistNeighborLoader,
    DistSamplingProducer,
    WrongTypeError,
)
from gigl_loader.loader.foreign_attributes import LABELS, STEPS
from gigl_loader.sources.workers.producer import DEALING

DATA = Data(x=torch.arange(20.0).view(20, 1), edge_index=torch.arange(40).view(2, 20) % 20)
HOW: dict[str, Any] = {"num_workers": 0, "batch_size": 4}


@pytest.mark.parametrize("name", ["collate_fn", "filter_fn", "_colloate_fn", "_get_iterator"])
@pytest.mark.parametrize("base", [BaseDistLoader, DistNeighborLoader, DistABLPLoader])
def test_an_override_without_effect_is_refused(name: str, base: type) -> None:
    text = rf"Mine\.{name} would have no effect: .*transform=, or override _make_batch\(self, msg"
    with pytest.raises(WrongTypeError, match=text):
        type("Mine", (base,), {name: lambda self, batch: batch})


@pytest.mark.parametrize(
    ("name", "base", "instead"),
    [
        (
            "_init_graph_store_sampling_backends",
            DistNeighborLoader,
            "_init_graph_store_connections",
        ),
        ("_register_graph_store_sampling_inputs", BaseDistLoader, "_setup_for_graph_store"),
        ("_set_labels", DistABLPLoader, "_make_batch"),
    ],
)
def test_so_is_a_step_of_gigls_that_nothing_here_calls(name: str, base: type, instead: str) -> None:
    with pytest.raises(WrongTypeError, match=rf"Mine\.{name} would have no effect.*{instead}"):
        type("Mine", (base,), {name: lambda self: None})


def test_a_method_of_ones_own_may_have_any_other_name() -> None:
    assert type("Mine", (DistNeighborLoader,), {"_set_labels": lambda self: None})


def _methods(text: str, kind: str) -> set[str]:
    """Return the methods that a class defines, of the source of its module."""
    (found,) = (
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == kind
    )
    return {node.name for node in found.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("commit", ["fee4ba50", "6e0ea78c"])
@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("base_dist_loader", BaseDistLoader),
        ("distributed_neighborloader", DistNeighborLoader),
        ("dist_ablp_neighborloader", DistABLPLoader),
        ("dist_sampling_producer", DistSamplingProducer),
    ],
)
def test_each_method_of_gigls_classes_is_called_here_or_refused(
    file: str, kind: type, commit: str
) -> None:
    repository = os.environ.get("GIGL_REPOSITORY")
    if repository is None:
        pytest.skip("GIGL_REPOSITORY names no repository of GiGL's")
    show = ["git", "-C", repository, "show", f"{commit}:gigl/distributed/{file}.py"]
    text = subprocess.run(show, check=True, capture_output=True, text=True).stdout
    refused = {*STEPS, *LABELS}
    assert {name for name in _methods(text, kind.__name__) if not hasattr(kind, name)} <= refused


@pytest.mark.parametrize(
    ("file", "name", "kind"),
    [
        ("dist_loader", "DistLoader", BaseDistLoader),
        ("dist_sampling_producer", "DistMpSamplingProducer", DistSamplingProducer),
    ],
)
def test_each_method_of_graphlearn_torchs_classes_is_ours_or_refused(
    file: str, name: str, kind: type
) -> None:
    found = importlib.util.find_spec("graphlearn_torch")
    if found is None or not found.submodule_search_locations:
        pytest.skip("graphlearn-torch is not installed")
    text = (Path(found.submodule_search_locations[0]) / "distributed" / f"{file}.py").read_text()
    ours = [parent for parent in kind.__mro__ if parent.__module__.startswith("gigl_loader")]
    missing = {one for one in _methods(text, name) if not any(one in vars(c) for c in ours)}
    assert missing <= set(DEALING)


def test_what_a_producer_does_not_call_is_refused() -> None:
    with pytest.raises(
        WrongTypeError, match=r"Mine\._get_seeds_indexes would have no effect.*order"
    ):
        type("Mine", (DistSamplingProducer,), {"_get_seeds_indexes": lambda self: None})


def test_so_is_one_of_a_mixin_that_comes_first() -> None:
    class Collates:
        def collate_fn(self, index: Any) -> Any:
            return index

    text = r"Mine\.collate_fn, of its base .*Collates, would have no effect"
    with pytest.raises(WrongTypeError, match=text):
        type("Mine", (Collates, DistNeighborLoader), {})
    # the loader's own comes first, so nobody loses an override
    assert type("Mine", (DistNeighborLoader, Collates), {})
    assert type("Both", (DistNeighborLoader, NeighborLoader), {})


class Mixin:
    """What a framework mixes in: names that the loaders have not."""

    def __init_subclass__(cls, tag: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        type.__setattr__(cls, "tag", tag)

    def transform(self, batch: Any) -> Any:
        """Be given as the keyword."""
        batch.doubled = 2 * batch.x
        return batch


class Legal(Mixin, DistNeighborLoader, tag="legal"):
    """All hooks that have an effect."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, transform=self.transform, **keywords)

    def _make_batch(self, msg: Any) -> Any:
        batch = super()._make_batch(msg)
        batch.made = True
        return batch

    def _collate_fn(self, msg: Any) -> Any:
        batch = super()._collate_fn(msg)
        batch.collated = batch.made
        return batch

    def collate(self, index: Any) -> Any:
        """Be asked by ``loader(index)``, which loops are not."""
        batch = super().collate(index)
        batch.at_once = True
        return batch

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            batch.looped = True
            yield batch


def test_overrides_with_an_effect_are_taken() -> None:
    assert getattr(Legal, "tag", "") == "legal"
    with Legal(DistDataset.from_pyg(DATA), [2], torch.arange(20), **HOW) as loader:
        for batch in loader:
            assert (batch.made, batch.collated, batch.looped) == (True, True, True)
            assert batch.doubled.equal(2 * batch.x)
        (zipped,) = ZipLoader([loader], batch_size=20)
        assert zipped[0].at_once
        assert zipped[0].batch.tolist() == list(range(20))


def test_a_loader_is_of_its_own_class_to_everybody_who_asks() -> None:
    dataset, model = DistDataset.from_pyg(DATA), GraphSAGE(1, 4, 2).eval()
    with DistNeighborLoader(dataset, [-1], torch.arange(20), **HOW) as loader:
        assert "__class__" not in {
            name for kind in type(loader).__mro__[:-1] for name in vars(kind)
        }
        assert isinstance(loader, BaseDistLoader)
        assert not isinstance(loader, (NeighborLoader, torch.utils.data.DataLoader))
        # PyG's own check; the page for those who come from PyG says what takes its place
        with pytest.raises(AssertionError):
            model.inference(loader)
