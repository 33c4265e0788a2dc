"""Habits of other libraries: overrides without effect, and PyG's inference with its own loaders."""

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
    WrongTypeError,
)

DATA = Data(x=torch.arange(20.0).view(20, 1), edge_index=torch.arange(40).view(2, 20) % 20)
HOW: dict[str, Any] = {"num_workers": 0, "batch_size": 4}


@pytest.mark.parametrize("name", ["collate_fn", "filter_fn", "_colloate_fn", "_get_iterator"])
@pytest.mark.parametrize("base", [BaseDistLoader, DistNeighborLoader, DistABLPLoader])
def test_an_override_without_effect_is_refused(name: str, base: type) -> None:
    text = rf"Mine\.{name} would have no effect: .*transform=, or override _make_batch\(self, msg"
    with pytest.raises(WrongTypeError, match=text):
        type("Mine", (base,), {name: lambda self, batch: batch})


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
