"""`DistLinkNeighborLoader` beside PyG's loader of that name; its sampler is tested elsewhere."""

import dataclasses
import enum
import itertools
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_geometric.sampler import NegativeSampling

from gigl_loader import ConfigError, DistDataset, DistLinkNeighborLoader, WrongTypeError
from gigl_loader.batch.message import SeedColumns
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE
from gigl_loader.loader.edge_loader import negative_sampling, shifted
from gigl_loader.loader.seeds.edge_input import by_server_as_edges, edges_by_server
from gigl_loader.loader.seeds.seed_limits import SeedLimits
from gigl_loader.testing import TinyGraph
from tests.loader.link.link_reference import edge_pairs


def _edges_by_id(batch) -> Counter:
    return Counter(map(tuple, batch.n_id[batch.edge_index].t().tolist()))


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", [None, "binary", "triplet"])
def test_batches_have_what_pyg_gives_them(kind: str | None) -> None:
    """With all neighbours nothing but negatives is drawn, so the batch follows from its ends."""
    graph = TinyGraph.random(40, 200)
    data = graph.to_pyg()
    index = data.edge_index[:, :50]
    label = None if kind == "triplet" else torch.arange(50) % 3
    into = {
        d: [e for e in graph.edges[DEFAULT_HOMOGENEOUS_EDGE_TYPE] if e[1] == d] for d in range(40)
    }
    with DistLinkNeighborLoader(
        DistDataset.from_pyg(data), [-1], index, label, kind, batch_size=16, seed=2
    ) as loader:
        assert len(loader) == 4
        for start, batch in zip(range(0, 50, 16), loader, strict=True):
            given = list(range(start, min(start + 16, 50)))
            pairs, negatives = edge_pairs(batch, graph, None, kind)
            assert batch.input_id.tolist() == given
            assert pairs == [tuple(pair) for pair in index[:, given].t().tolist()]
            assert len(negatives) == (0 if kind is None else len(given))
            ends = {node for pair in pairs + negatives for node in pair}
            assert set(batch.n_id[: batch.num_sampled_nodes[0]].tolist()) == ends
            assert _edges_by_id(batch) == Counter(e for d in ends for e in into[d])
            assert torch.equal(batch.x, data.x[batch.n_id])
            assert ("edge_label" in batch) == (kind != "triplet")
            assert not {"batch", "batch_size"} & set(batch.keys())
            if kind == "triplet":
                assert batch.dst_neg_index.shape == batch.src_index.shape
            else:  # labels that begin at 0 make room for the negatives' 0
                assert label is not None
                more = (label[given] + (kind is not None)).tolist()
                assert batch.edge_label.tolist() == [*more, *[0] * len(negatives)]


@pytest.mark.parametrize(
    ("kind", "strict", "how", "version"),
    [
        ("binary", True, {}, 2),
        ("binary", False, {}, 1),
        ("triplet", True, {}, 1),
        ("triplet", True, {"with_weight": True}, 3),
        ("binary", True, {"with_weight": True}, 3),
        ("binary", True, {"with_weight": True, "replace": True}, 2),
        (None, False, {"with_weight": True, "sampling_method": "labor"}, 3),
        (None, False, {"with_weight": True, "replace": True}, 1),
    ],
)
def test_states_of_strict_pairs_and_of_weighted_draws_alone_are_of_later_versions(
    kind: Any, strict: bool, how: dict[str, Any], version: int
) -> None:
    """Those of the versions before had other pairs or draws; the others are the same as then."""
    graph = TinyGraph.random(20, 60)
    with DistLinkNeighborLoader(
        graph.dataset(),
        [2],
        neg_sampling=kind,
        strict=strict,
        seed=1,
        num_workers=0,
        edge_label_index=graph.to_pyg().edge_index,
        **how,
    ) as loader:
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert state["draw_version"] == version
        for other in {1, 2, 3} - {version}:
            with pytest.raises(
                ConfigError, match=f"draw_version: {other} -> {version}: .*draws other batches"
            ):
                loader.load_state_dict({**state, "draw_version": other})


@pytest.mark.multiprocess
def test_a_heterogeneous_graph_all_its_edges_and_a_resumed_epoch() -> None:
    graph = TinyGraph.random(20, 60, heterogeneous=True)
    edge_type = ("user", "buys", "item")
    dataset, negatives = graph.dataset(), NegativeSampling("triplet", 2)
    how = {
        "edge_label_index": edge_type,
        "neg_sampling": negatives,
        "batch_size": 7,
        "shuffle": True,
        "seed": 5,
        "strict": True,
    }
    with DistLinkNeighborLoader(dataset, [2, 2], **how) as loader:
        batches = list(itertools.islice(loader, 4))
        state = loader.state_dict()
    with DistLinkNeighborLoader(dataset, [2, 2], **how, num_workers=2) as loader:
        loader.load_state_dict(state)
        batches += list(loader)
    found = [edge_pairs(batch, graph, edge_type, "triplet") for batch in batches]
    assert Counter(p for pairs, _ in found for p in pairs) == Counter(graph.edges[edge_type])
    assert not set(graph.edges[edge_type]) & {p for _, pairs in found for p in pairs}
    assert batches[0]["item"].dst_neg_index.shape == (7, 2)
    for batch in batches:
        for name in batch.node_types:
            assert torch.equal(batch[name].x[:, 0].long(), batch[name].n_id)


@pytest.mark.multiprocess
def test_glts_input_and_another_target_is_another_state() -> None:
    graph = TinyGraph.random(20, 60)
    given: Any = SimpleNamespace(
        row=torch.tensor([1, 2]),
        col=torch.tensor([3, 4]),
        input_type=None,
        label=torch.tensor([0.5, 1.5]),
    )
    with DistLinkNeighborLoader(graph.dataset(), [2], given, batch_size=2, seed=1) as loader:
        batch = next(iter(loader))
        state = loader.state_dict()
        assert batch.edge_label.tolist() == [0.5, 1.5]
        assert edge_pairs(batch, graph, None, None)[0] == [(1, 3), (2, 4)]
    other = torch.tensor([[1, 2], [3, 5]])
    with (
        DistLinkNeighborLoader(graph.dataset(), [2], other, batch_size=2, seed=1) as loader,
        pytest.raises(ConfigError, match="seeds"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"edge_label_index": torch.zeros(3, 2, dtype=torch.int64)}, r"\[2, num_edges\] int64"),
        ({"edge_label_index": torch.zeros(2, 2)}, r"\[2, num_edges\] int64"),
        ({"edge_label_index": "all"}, r"\[2, num_edges\] int64"),
        ({"edge_label_index": torch.tensor([[0], [99]])}, r"edge_label_index\[1, 0\] = 99"),
        ({"edge_label": torch.zeros(3)}, "one row for each of the 1 edges"),
        ({"neg_sampling": "some"}, "neg_sampling must be"),
        ({"neg_sampling": "triplet", "edge_label": torch.zeros(1)}, "triplets have no labels"),
        ({"neg_sampling": "binary", "neg_sampling_ratio": 1.0}, "both given"),
        ({"neg_sampling_ratio": -1.0}, ">= 0"),
        ({"strict": True}, "give neg_sampling"),
        ({"neg_sampling": NegativeSampling("binary", 1, torch.ones(3))}, "one weight for each"),
        ({"neg_sampling": NegativeSampling("binary", 1, torch.zeros(9))}, "not zero throughout"),
        ({"edge_label_index": {0: torch.zeros(2, 1, dtype=torch.int64)}}, "by server"),
        ({"edge_label_index": ("a", "b", "c")}, "names edge type"),
        ({"edge_label_index": [[0, 1], [2]]}, "edge_label_index cannot be read"),
        ({"edge_label": {0: torch.zeros(1)}}, "edge_label cannot be read"),
    ],
)
def test_bad_input(how: dict, words: str) -> None:
    graph = TinyGraph.random(9, 20)
    how = {"edge_label_index": torch.zeros(2, 1, dtype=torch.int64), **how}
    with pytest.raises((ConfigError, WrongTypeError), match=words):
        DistLinkNeighborLoader(graph.dataset(), [2], **how)


def test_a_heterogeneous_graph_needs_the_edge_type() -> None:
    graph = TinyGraph.random(9, 20, heterogeneous=True)
    with pytest.raises(ConfigError, match="pass edge_label_index=\\(edge_type, index\\)"):
        DistLinkNeighborLoader(graph.dataset(), [2], torch.zeros(2, 1, dtype=torch.int64))


def _refused_on_this_rank() -> DistLinkNeighborLoader:
    return DistLinkNeighborLoader(
        TinyGraph.random(9, 20).dataset(), [2], torch.tensor([[0], [99]]), num_workers=0
    )


def test_other_ranks_are_told_of_bad_edges_before_they_are_an_error(monkeypatch) -> None:
    """They wait in an exchange of `gigl_loader.runtime.ranks.collectives`."""
    told: list[str] = []
    monkeypatch.setattr(
        "gigl_loader.runtime.ranks.collectives._tell_failure", lambda text, group: told.append(text)
    )
    with pytest.raises(ConfigError, match="= 99 is no node id"):
        _refused_on_this_rank()
    assert len(told) == 1
    assert "= 99 is no node id" in told[0]


def _labels(inputs: Iterable[Any]) -> list:
    return [one.label.tolist() for one in inputs]


def test_labels_of_all_servers_make_room_for_negatives_together() -> None:
    """By itself, the second server's part begins at 1: its labels would be one too low."""
    index = torch.arange(12).view(2, 6)
    parts = edges_by_server(
        index, torch.tensor([0, 0, 2, 1, 1, 2]), GRAPH.schema, {NODE: 12}, range(2)
    )
    assert _labels(shifted(parts, NegativeSampling("binary"))) == [[1, 1, 3], [2, 2, 3]]
    assert _labels(shifted(parts, None)) == [[0, 0, 2], [1, 1, 2]]


NODE = DEFAULT_HOMOGENEOUS_EDGE_TYPE[0]
GRAPH = TinyGraph.random(12, 20).dataset()


def test_edges_of_one_tensor_are_cut_over_servers_with_their_times() -> None:
    index = torch.arange(10).view(2, 5)
    parts = edges_by_server(index, None, GRAPH.schema, {NODE: 12}, range(2))
    assert torch.equal(torch.cat([one.index for one in parts], 1), index)
    assert [one.index.size(1) for one in parts] == [3, 2]
    inputs = [one.sampler_input() for one in parts]
    one, given = [5, 6, 7, 8, 9], {1: torch.tensor([1])}
    said = {"time": ("edge_label_time", one), "start": ("input_start_time", given)}
    cut = by_server_as_edges(SeedLimits(SeedColumns(**said)), inputs).given
    times: Any = cut.time[1]
    assert {server: one.tolist() for server, one in times.items()} == {0: [5, 6, 7], 1: [8, 9]}
    assert cut.start == ("input_start_time", given)


def test_edges_by_server_and_a_server_without_any() -> None:
    index = {1: torch.tensor([[3], [4]])}
    label = {1: torch.tensor([[0.5, 1.5]])}
    first, second = edges_by_server(index, label, GRAPH.schema, {NODE: 12}, range(2))
    assert first.label is not None
    assert (first.index.shape, first.label.shape) == ((2, 0), (0, 2))
    assert first.label.dtype == torch.float32
    assert _labels([second]) == [[[0.5, 1.5]]]
    for given, wrong, words in (
        (None, None, "edge_label_index must be given"),
        ({2: torch.zeros(2, 0, dtype=torch.int64)}, None, r"names storage servers \[2\]"),
        (index, {0: torch.zeros(1)}, "edge_label must be by server"),
        (index, torch.zeros(1), "edge_label must be by server"),
    ):
        with pytest.raises(ConfigError, match=words):
            edges_by_server(given, wrong, GRAPH.schema, {NODE: 12}, range(2))


class TheirMode(enum.Enum):
    """graphlearn-torch's."""

    binary = "binary"


@dataclasses.dataclass
class TheirNegatives:
    """graphlearn-torch's `NegativeSampling`, whose mode is an Enum of its own."""

    mode: Any
    amount: int = 2
    weight: Any = None


def test_negatives_of_another_librarys_class_are_taken() -> None:
    found = negative_sampling(TheirNegatives(TheirMode.binary), None, None)
    assert found is not None
    assert found.is_binary()
    assert found.amount == 2
    with pytest.raises(ConfigError, match="neg_sampling must be"):
        negative_sampling(TheirNegatives(3), None, None)
