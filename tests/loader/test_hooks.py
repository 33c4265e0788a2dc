"""Functions and methods of users that return None, or no message: an error, never the end."""

import functools
import re
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import BaseTransform

from gigl_loader import (
    ConfigError,
    CustomSamplerOptions,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    PPRSamplerOptions,
    SamplingError,
    full_graph_inference,
    partition_graph,
)
from gigl_loader.batch.message import META, NODE, Field
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.testing import TinyGraph

pytestmark = pytest.mark.multiprocess

GRAPH = TinyGraph.random(40, 200, seed=3)
HOW: dict[str, Any] = {"batch_size": 8, "seed": 4}


def forgets(value: Any, more: int = 0) -> None:
    """Return nothing, as a function without its last line does."""


class Forgetful(BaseTransform):
    """A transform of PyG's kind."""

    def forward(self, data: Any) -> Any:
        data.extra = 1


class NoBatch(DistNeighborLoader):
    """A subclass whose hook has no return."""

    def _make_batch(self, msg: Any) -> Any:
        super()._make_batch(msg)


class NoCollate(DistNeighborLoader):
    """The same, of the outer hook."""

    def _collate_fn(self, msg: Any) -> Any:
        super()._collate_fn(msg)


def _raises(text: str, kind: type[DistNeighborLoader], **how: Any) -> None:
    for workers in (0, 1):
        with kind(GRAPH.dataset(), [2], num_workers=workers, **HOW, **how) as loader:
            with pytest.raises(ConfigError, match=text):
                list(loader)
            # the state does not count it, and other ways to a batch say the same
            assert loader.state_dict() == loader.state_dict()
            with pytest.raises(ConfigError, match=text):
                loader([1, 2])


@pytest.mark.parametrize(
    ("name", "function", "text"),
    [
        ("transform", forgets, r"forgets \(.*test_hooks.py, line \d+\)"),
        ("transform", functools.partial(forgets, more=2), "forgets"),
        ("transform", Forgetful(), r"Forgetful \(.*test_hooks.py"),
        ("transform_sampler_output", forgets, "forgets"),
    ],
)
def test_a_function_without_return_is_named(name: str, function: Any, text: str) -> None:
    text = f"{name}= {text}.* returned None, but must return .*: add `return`"
    _raises(text, DistNeighborLoader, **{name: function})


@pytest.mark.parametrize(
    ("kind", "text"), [(NoBatch, r"NoBatch\._make_batch"), (NoCollate, r"NoCollate\._collate_fn")]
)
def test_a_method_without_return_is_named(kind: Any, text: str) -> None:
    _raises(f"the method {text} .*returned None, but must return the batch: add `return`", kind)


def test_what_only_looks_like_an_end_is_a_batch() -> None:
    """A transform may give the loop anything else."""
    with DistNeighborLoader(
        GRAPH.dataset(), [2], num_workers=0, **HOW, transform=lambda batch: False
    ) as loader:
        assert list(loader) == [False] * len(loader)


class Silent(NeighborSampler):
    """Returns what a test says, in place of a message."""

    def __init__(self, *args: Any, what: str) -> None:
        super().__init__(*args)
        self._what = what

    def sample(self, request: Any) -> Any:
        fields = [(one.key, one) for one in super().sample(request)]
        if self._what == "generator":
            return (field for _, field in fields)
        return {
            "nothing": None,
            "a dict": dict(fields),
            "a number": 3,
            "a text": NODE,
            "a part": [field for name, field in fields if name != NODE],
            "names": [name for name, _ in fields],
            "a field of nothing": [*(field for _, field in fields), (META + "mine", None)],
            "objects": [*(field for _, field in fields), (META + "mine", [object()])],
        }[self._what]


def no_sampler(view: Any, plan: Any, peers: Any) -> None:
    NeighborSampler(view, plan, peers)


def _options(name: str, **keywords: Any) -> CustomSamplerOptions:
    return CustomSamplerOptions(f"{__name__}.{name}", keywords)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("nothing", "returned None, but must return the fields of a message.*add `return`"),
        ("a dict", r"must return the fields.*, got dict; its items\(\) are"),
        ("a number", "must return the fields.*, got int"),
        ("a text", "must return the fields.*, got str"),
        ("a part", "returned no 'n_id', the nodes of the batch; its fields are"),
        ("names", "must return the fields.*, got str in it"),
        ("a field of nothing", "got a field '#META.mine' with None in it"),
        ("objects", "got a field '#META.mine' with .* in it"),
    ],
)
def test_a_sampler_without_a_message_is_named(what: str, text: str) -> None:
    how = {**HOW, "sampler_options": _options("Silent", what=what)}
    for workers in (0, 1):
        with (
            DistNeighborLoader(GRAPH.dataset(), [2], num_workers=workers, **how) as loader,
            pytest.raises(SamplingError, match=rf"ConfigError: .*Silent\.sample.*{text}"),
        ):
            list(loader)


def test_a_sampler_may_yield_its_fields() -> None:
    how = {**HOW, "num_workers": 0, "sampler_options": _options("Silent", what="generator")}
    with DistNeighborLoader(GRAPH.dataset(), [2], **how) as loader:
        assert sum(batch.batch_size for batch in loader) == 40


def test_a_function_that_makes_no_sampler_is_named_at_the_start() -> None:
    text = r"no_sampler .*returned None, but must return a sampler: .*add `return`"
    with pytest.raises(ConfigError, match=text):
        DistNeighborLoader(
            GRAPH.dataset(), [2], num_workers=0, sampler_options=_options("no_sampler"), **HOW
        )
    with pytest.raises(SamplingError, match=f"ConfigError: .*{text}"):
        DistNeighborLoader(
            GRAPH.dataset(), [2], num_workers=1, sampler_options=_options("no_sampler"), **HOW
        )


def test_on_a_device_too() -> None:
    placed = GRAPH.dataset().to("cpu", kernels="torch")
    with (
        DistNeighborLoader(placed, [2], num_workers=0, transform=forgets, **HOW) as loader,
        pytest.raises(ConfigError, match=r"forgets .* returned None"),
    ):
        list(loader)


def test_a_layer_without_return_is_named() -> None:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.zeros(5, 2), torch.zeros(3, 2)
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [0, 2]])

    def layer(*given: Any, **more: Any) -> None:
        pass

    with pytest.raises(ConfigError, match=r"layer \(.*returned None, but must return a dict of r"):
        full_graph_inference([layer], DistDataset.from_pyg(data))


# --- names that a user's could equal --------------------------------------------------------------


def _typed(*edge_types: tuple[str, str, str]) -> HeteroData:
    data = HeteroData()
    for src, relation, dst in edge_types:
        for name in (src, dst):
            data[name].x = torch.arange(5.0).view(5, 1)
        data[src, relation, dst].edge_index = torch.tensor([[3, 1, 2], [0, 0, 0]])
    return data


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (_typed(("a_", "b", "d"), ("a", "_b", "d")), "are both 'a___b__d' in messages"),
        (_typed(("#META.q", "to", "d")), "begins with '#', as keys of messages do: rename it"),
    ],
)
def test_types_of_one_name_in_messages_are_refused(data: Any, text: str, tmp_path: Any) -> None:
    for make in (DistDataset.from_pyg, lambda data: partition_graph(data, 1, tmp_path / "parts")):
        with pytest.raises(ConfigError, match=text):
            make(data)


def test_a_relation_may_have_the_name_of_one_that_a_sampler_makes() -> None:
    dataset = DistDataset.from_pyg(_typed(("a", "ppr", "b"), ("b", "of", "a")))
    how: dict[str, Any] = {"num_workers": 0, **HOW}
    with DistNeighborLoader(dataset, [2], ("b", torch.tensor([0, 4])), **how) as loader:
        for batch in loader:
            assert isinstance(batch, HeteroData)
            assert batch.edge_types == [("a", "ppr", "b"), ("b", "of", "a")]
    with pytest.raises(ConfigError, match="relation 'ppr', and the graph has that of its own"):
        DistNeighborLoader(
            dataset, [2], "b", sampler_options=PPRSamplerOptions(max_ppr_nodes=3), **how
        )


def test_a_batch_requested_by_its_seeds_is_of_no_epoch_of_a_user() -> None:
    with DistNeighborLoader(GRAPH.dataset(), [2], num_workers=0, **HOW) as loader:
        with pytest.raises(ConfigError, match=re.escape("epoch must be below 2**62")):
            loader.set_epoch(2**62)
        loader.set_epoch(2**62 - 1)
        assert len(list(loader)) == len(loader)


@pytest.mark.parametrize(
    ("name", "make", "how"),
    [
        ("mapping", DistSubGraphLoader, {"num_neighbors": [2]}),
        ("seed_mask", DistNeighborLoader, {"num_neighbors": [2], "pad": True}),
        ("pad_node_mask", DistNeighborLoader, {"num_neighbors": [2], "pad": True}),
        ("src_index", DistLinkNeighborLoader, {"num_neighbors": [2], "neg_sampling": "triplet"}),
    ],
)
def test_an_attribute_of_one_kind_of_loader_is_not_the_users_own(
    name: str, make: Any, how: Any
) -> None:
    data = Data(x=torch.zeros(5, 1), edge_index=torch.tensor([[3, 1, 2], [0, 0, 4]]))
    data[name] = torch.arange(10, 15)
    dataset = DistDataset.from_pyg(data)
    with pytest.raises(ConfigError, match=rf"{make.__name__} sets \['{name}'\] in its batches"):
        make(dataset, num_workers=0, **how)
    with DistNeighborLoader(dataset, [2], num_workers=0) as other:
        for batch in other:
            assert batch[name].equal(batch.n_id + 10)


class Named(NeighborSampler):
    """Adds fields of names that the copying and the collating use for themselves."""

    def sample(self, request: Any) -> Any:
        more = [Field.of(META + NODE, request.seeds), Field.of("ticket", request.seeds)]
        return [*super().sample(request), *more]


def test_a_field_may_have_the_name_of_one_of_ours() -> None:
    data = _typed(("a", "to", "b"))
    how: dict[str, Any] = {"num_workers": 0, "sampler_options": _options("Named"), **HOW}
    with DistNeighborLoader(DistDataset.from_pyg(data), [2], ("b", [0, 4]), **how) as loader:
        (batch,) = loader
        assert batch.node_types == ["a", "b"]
        assert batch[NODE].tolist() == [0, 4]


# --- graphs without edges -------------------------------------------------------------------------


def _nodes_alone() -> HeteroData:
    data = HeteroData()
    data["a"].x, data["a"].y = torch.arange(5.0).view(5, 1), torch.arange(5)
    data["b"].x = torch.zeros(3, 2)
    return data


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_heterogeneous_graph_may_have_no_edges(
    num_workers: int, edge_dir: Any, tmp_path: Any
) -> None:
    partition_graph(_nodes_alone(), 1, tmp_path / "parts", edge_dir=edge_dir)
    for dataset in (
        DistDataset.from_pyg(_nodes_alone(), edge_dir=edge_dir),
        DistDataset.load(tmp_path / "parts", 0),
    ):
        seeds = ("a", torch.tensor([3, 0, 4]))
        with DistNeighborLoader(
            dataset, [-1, 2], seeds, batch_size=2, num_workers=num_workers
        ) as loader:
            found = list(loader)
        assert [batch["a"].n_id.tolist() for batch in found] == [[3, 0], [4]]
        for batch in found:
            assert isinstance(batch, HeteroData)
            assert batch["a"].x[:, 0].tolist() == batch["a"].y.tolist() == batch["a"].n_id.tolist()
            assert batch["b"].x.shape == (0, 2)
            assert (batch.node_types, batch.edge_types) == (["a", "b"], [])


def test_a_type_without_edges_has_its_nodes_in_batches() -> None:
    data = _nodes_alone()
    data["c"].num_nodes = 4
    data["c", "to", "a"].edge_index = torch.tensor([[0, 1], [0, 2]])
    with DistNeighborLoader(
        DistDataset.from_pyg(data), [-1], ("b", torch.tensor([2, 1])), num_workers=0
    ) as loader:
        assert [batch["b"].n_id.tolist() for batch in loader] == [[2], [1]]


def test_a_graph_has_nodes_and_labels_need_edges() -> None:
    with pytest.raises(ConfigError, match="data has no nodes"):
        DistDataset.from_pyg(HeteroData())
    labels = {("a", "likes", "b"): torch.tensor([[0, 1], [1, 2]])}
    with pytest.raises(ConfigError, match="label edges and no message-passing edge type"):
        DistDataset.from_pyg(_nodes_alone(), supervision=labels)
    with DistNeighborLoader(
        DistDataset.from_pyg(Data(x=torch.zeros(3, 1))), [2], torch.arange(3), num_workers=0
    ) as loader:
        assert len(list(loader)) == 3
