"""Setting an option of a loader after it was built is refused; attributes of others are theirs."""

import abc
import functools
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import DistABLPLoader, DistDataset, DistNeighborLoader, UsageError
from gigl_loader.compat.glt.loaders import DistNeighborLoader as OfGLT
from gigl_loader.loader.fixed_attributes import FIXED
from gigl_loader.loader.options.signatures import KEYWORDS

pytestmark = pytest.mark.usefixtures("group")

LINKS = torch.arange(20).reshape(2, 10) % 10
HOW: dict[str, Any] = {"num_neighbors": [2], "batch_size": 4, "num_workers": 0, "seed": 1}
NODES = torch.arange(10)


def _dataset() -> DistDataset:
    return DistDataset.from_pyg(
        Data(x=torch.arange(10.0).view(10, 1), edge_index=LINKS), supervision=(LINKS, None)
    )


VALUES: dict[str, Any] = {
    "batch_size": 25,
    "num_neighbors": [5, 5],
    "shuffle": True,
    "drop_last": True,
    "transform": lambda batch: batch,
    "input_nodes": torch.arange(3),
    "input_data": None,
    "data": None,
    "dataset": None,
    "seed": 7,
    "epoch": 3,
    "replace": True,
    "num_workers": 2,
    "device": "cpu",
    "to_device": torch.device("meta"),
    "with_edge": True,
    "collate_fn": lambda batch: batch,
    "sampler_options": None,
    "worker_options": None,
    "sampling_config": None,
    "time_attr": "time",
}


@pytest.mark.parametrize("name", VALUES)
def test_an_option_is_refused_by_name(name: str) -> None:
    with DistNeighborLoader(_dataset(), input_nodes=NODES, **HOW) as loader:
        before = repr(loader)
        with pytest.raises(UsageError) as raised:
            setattr(loader, name, VALUES[name])
        text = str(raised.value)
        assert text.startswith(f"DistNeighborLoader.{name} ")
        words = {"epoch": "set_epoch()", "collate_fn": "transform="}
        assert words.get(name, "Build another loader") in text
        assert repr(loader) == before
        assert [batch.batch_size for batch in loader] == [4, 4, 2]
        with pytest.raises(UsageError, match=rf"DistNeighborLoader\.{name} "):
            setattr(loader, name, VALUES[name])  # also after an epoch


def test_all_keywords_are_fixed() -> None:
    assert {*KEYWORDS, "num_neighbors", "input_nodes", "edge_label_index"} <= {*FIXED}


def test_loaders_of_other_kinds_and_names() -> None:
    with DistABLPLoader(_dataset(), input_nodes=NODES, **HOW) as loader:
        for name in ("supervision_edge_type", "use_label_edge_index_output", "batch_size"):
            with pytest.raises(UsageError, match=rf"DistABLPLoader\.{name} "):
                setattr(loader, name, None)
    of_glt = OfGLT(_dataset(), [2], NODES, batch_size=4, edge_dir="in")
    with of_glt, pytest.raises(UsageError, match="batch_size"):
        of_glt.batch_size = 25


class Mine(DistNeighborLoader):
    """Sets its own attributes before and after its base is built; some have names of options."""

    def __init__(self, dataset: DistDataset, factor: float, **keywords: Any) -> None:
        self.factor = factor
        self.transform = "a text of its own"
        self._table = {"a": 1}
        super().__init__(dataset, input_nodes=NODES, **keywords)
        self.counted = 0
        self.replace = "after its base"
        self.batch_size: Any = 4  # as it is

    def _make_batch(self, msg: Any) -> Any:
        batch = super()._make_batch(msg)
        batch.x = batch.x * self.factor
        self.counted += 1
        return batch


class Deeper(Mine):
    """Goes on after a base that went on."""

    temperature = 1.0
    shuffle: Any = "declared here"

    @functools.cached_property
    def doubled(self) -> int:
        """Be written by `functools` on first use."""
        return 2 * self.counted

    def __init__(self, dataset: DistDataset, **keywords: Any) -> None:
        super().__init__(dataset, 3.0, **keywords)
        self.seed = "its own"


@pytest.mark.parametrize("kind", [functools.partial(Mine, factor=3.0), Deeper])
def test_a_subclass_has_attributes_of_its_own(kind: Any) -> None:
    with kind(_dataset(), **HOW) as loader:
        assert [int(batch.x.sum()) % 3 for batch in loader] == [0, 0, 0]
        assert loader.counted == 3
        assert (loader.transform, loader.replace) == ("a text of its own", "after its base")
        loader.factor, loader.counted, loader.new = 2.0, 0, "new"
        loader.transform = "another text"  # what it reads is its own affair
        assert loader.transform == "another text"
        with pytest.raises(UsageError, match=r"\.num_neighbors "):
            loader.num_neighbors = [3]
        with pytest.raises(UsageError, match=r"\.batch_size "):
            loader.batch_size = 25  # the loader's own, which the subclass only set again


def test_names_that_a_subclass_declares_are_its_own() -> None:
    with Deeper(_dataset(), **HOW) as loader:
        loader.temperature, loader.shuffle, loader.seed = 2.0, "other", 5
        assert (loader.temperature, loader.shuffle, loader.seed) == (2.0, "other", 5)
        assert loader.doubled == 0
        with pytest.raises(UsageError, match=r"Deeper\.drop_last "):
            loader.drop_last = True


class Sets:
    """A mixin that sets attributes around the loader's constructor."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.replace = "before"
        super().__init__(*args, **keywords)
        self.transform = "after"


def test_mixins() -> None:
    kind: Any = type("Mixed", (Sets, DistNeighborLoader, abc.ABC), {})
    with kind(_dataset(), input_nodes=NODES, **HOW) as loader:
        assert (loader.replace, loader.transform) == ("before", "after")
        with pytest.raises(UsageError, match=r"Mixed\.batch_size "):
            loader.batch_size = 25


def test_a_constructor_that_raised_says_why() -> None:
    class Fails(DistNeighborLoader):
        def __init__(self, dataset: DistDataset) -> None:
            try:
                super().__init__(dataset, [2], NODES, batch_size=0)
            except ValueError as error:
                self.batch_size = str(error)

    assert "batch_size" in str(Fails(_dataset()).batch_size)
