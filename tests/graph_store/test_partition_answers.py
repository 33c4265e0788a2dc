"""What a storage server knows of its partition, against the graph in plain Python."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import HeteroData

from gigl_loader import DistDataset
from gigl_loader.dataset.identity import Share
from gigl_loader.errors import ConfigError
from gigl_loader.graph_store.server import glt_answers, partition_answers
from gigl_loader.graph_store.server.partition_answers import PartitionAnswers, padded_rows
from gigl_loader.graph_store.wire.requests import NodeIdsRequest
from gigl_loader.sampler.plan import RowsRequest
from gigl_loader.sampler.rows.packing import PackedInts
from gigl_loader.testing import TinyGraph
from tests.support.draws import examples

PLAIN = TinyGraph.random(60, 400, seed=5)
TYPED = TinyGraph.random(40, 200, heterogeneous=True)
BUYS = ("user", "buys", "item")


@pytest.fixture(scope="module")
def plain() -> PartitionAnswers:
    return PartitionAnswers(PLAIN.dataset())


@pytest.fixture(scope="module")
def typed() -> PartitionAnswers:
    return PartitionAnswers(TYPED.dataset())


# --- ids ------------------------------------------------------------------------------------------


def _own(dataset: DistDataset) -> torch.Tensor:
    ids = dataset.node_ids
    assert isinstance(ids, torch.Tensor)
    return ids


def test_ids_and_shares_of_them(plain: PartitionAnswers) -> None:
    assert plain.get_node_ids().tolist() == list(range(60))
    shares = [plain.get_node_ids(NodeIdsRequest(share=Share(r, r + 1, 7))) for r in range(7)]
    assert torch.cat(shares).tolist() == list(range(60))
    with pytest.raises(ConfigError, match="no node type"):
        plain.get_node_ids(NodeIdsRequest(node_type="paper"))
    with pytest.raises(ConfigError, match="split must be"):
        plain.get_node_ids(NodeIdsRequest(split="training"))
    with pytest.raises(ConfigError, match="no 'val' split: give it val_mask, val_idx or split_idx"):
        plain.get_node_ids(NodeIdsRequest(split="val"))


def test_ids_of_a_type_have_to_name_it(typed: PartitionAnswers) -> None:
    assert typed.get_node_ids(NodeIdsRequest(node_type="item")).tolist() == list(range(40))
    for wrong in (None, "paper"):
        with pytest.raises(ConfigError, match=r"node_type must be one of \['item', 'user'\]"):
            typed.get_node_ids(NodeIdsRequest(node_type=wrong))


def test_only_replicas_answer_for_each_other() -> None:
    server = PartitionAnswers(PLAIN.partitions(2)[1], server_rank=3, num_servers=5)
    parts = [server.get_node_ids(NodeIdsRequest(server=replica)) for replica in (1, 3)]
    assert torch.equal(torch.cat(parts), _own(server.dataset))
    assert torch.equal(server.get_node_ids(), parts[1])
    with pytest.raises(ConfigError, match=r"cannot answer for server 2: only servers \[1, 3\]"):
        server.get_node_ids(NodeIdsRequest(server=2))


PARTS = {count: PLAIN.partitions(count) for count in (1, 2, 3)}


@settings(max_examples=examples(20))
@given(partitions=st.sampled_from(list(PARTS)), more=st.integers(0, 5), ranks=st.integers(1, 3))
def test_all_servers_together_have_each_node_once(partitions: int, more: int, ranks: int) -> None:
    """However many replicas there are, and whoever asks for a share of each."""
    servers, parts = partitions + more, PARTS[partitions]
    found: list[int] = []
    for server in range(servers):
        answers = PartitionAnswers(parts[server % partitions], server, servers)
        for rank in range(ranks):
            request = NodeIdsRequest(server=server, share=Share(rank, rank + 1, ranks))
            found += answers.get_node_ids(request).tolist()
    assert sorted(found) == list(range(60))


# --- books and figures ----------------------------------------------------------------------------


def test_edge_books_of_one_partition(typed: PartitionAnswers) -> None:
    """There is nothing to look up but the owners of features, on a heterogeneous graph too."""
    for edge_type, edges in TYPED.edges.items():
        book: Any = typed.get_edge_partition_book(edge_type)
        assert book[torch.arange(len(edges))].unique().tolist() == [0]
    without = TYPED.to_pyg()
    for store in without.edge_stores:
        del store.edge_attr
    bare = PartitionAnswers(DistDataset.from_pyg(without), 0, 1)
    assert not any(map(bare.get_edge_partition_book, TYPED.edges))
    for wrong in (None, ("user", "sells", "item")):
        with pytest.raises(ConfigError, match="edge_type must be one of"):
            typed.get_edge_partition_book(wrong)


def test_what_is_told_of_the_graph(plain: PartitionAnswers, typed: PartitionAnswers) -> None:
    assert plain.get_node_types() is None, "a homogeneous graph has no names"
    assert plain.get_edge_types() is None
    assert typed.get_node_types() == ["item", "user"]
    assert set(typed.get_edge_types() or ()) == set(TYPED.edges)
    assert typed.get_num_nodes() == TYPED.num_nodes
    identity = typed.dataset.graph_identity
    assert typed.get_graph_identity() == f"{identity.run} {identity.digest}"
    assert typed.get_edge_dir() == "in"
    assert (plain.get_partition_index(), plain.num_partitions) == (0, 1)
    second = PartitionAnswers(PLAIN.partitions(2)[1], 3, 4)
    assert (second.get_partition_index(), second.num_partitions) == (1, 2)
    info: Any = typed.get_node_feature_info()
    assert (info["user"].dim, info["user"].dtype) == (2, torch.float32)


# --- rows and edges -------------------------------------------------------------------------------


def _rows(answers: PartitionAnswers, kind: str, name: str, ids: list[int]) -> list:
    request = RowsRequest(kind, name, np.array(ids, np.int64))
    return answers.get_rows(request.map(PackedInts.of)).values.tolist()


def test_a_server_answers_for_its_own_rows_only() -> None:
    parts = PLAIN.partitions(2)
    server = PartitionAnswers(parts[1], 1, 2)
    (name,) = PLAIN.num_nodes
    own, others = _own(parts[1]).tolist(), _own(parts[0]).tolist()
    assert _rows(server, "node_features", name, own) == PLAIN.node_rows(name, own)[0]
    for wrong in (others[:1], [*own, others[0]]):
        with pytest.raises(ConfigError, match="not of partition 1"):
            _rows(server, "node_features", name, wrong)
    for wrong in ([60], [-1]):  # a table would find -1 at its end
        with pytest.raises(ConfigError, match=r"\[0, 60\)"):
            _rows(server, "node_features", name, wrong)
    with pytest.raises(ConfigError, match="no dataset"):
        _rows(server, "dataset", name, own[:1])


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("rank", [0, 1])
def test_edges_are_those_of_the_nodes_in_their_order(edge_dir: Any, rank: int) -> None:
    server = PartitionAnswers(TYPED.partitions(2, edge_dir=edge_dir)[rank], rank, 2)
    expanded = BUYS[2] if edge_dir == "in" else BUYS[0]
    ids = server.get_node_ids(NodeIdsRequest(node_type=expanded)).flip(0)
    found = server.get_edges(BUYS, ids.numpy(), weights=True, edge_ids=True)
    starts = found["counts"].cumsum(0) - found["counts"]
    for node, start, count in zip(ids.tolist(), starts, found["counts"], strict=True):
        at = slice(int(start), int(start + count))
        own = 1 if edge_dir == "in" else 0
        expected = sorted(
            (edge, pair[1 - own])
            for edge, pair in enumerate(TYPED.edges[BUYS])
            if pair[own] == node
        )
        edges = found["edge_ids"][at].tolist()
        assert sorted(zip(edges, found["indices"][at].tolist(), strict=True)) == expected
    without = server.get_edges(BUYS, ids.numpy())
    assert set(without) == {"counts", "indices"}
    with pytest.raises(ConfigError, match="the graph has no edges"):
        server.get_edges(("user", "sells", "item"), ids.numpy())
    others = server.dataset.view().node_books[expanded].owner(torch.arange(40)) != rank
    foreign = torch.arange(40)[others][:1].numpy()
    with pytest.raises(ConfigError, match=f"not of partition {rank}"):
        server.get_edges(BUYS, foreign)


def test_an_answer_has_the_edges_of_leading_nodes_up_to_a_limit(constants: Any) -> None:
    """One node two million times made a server take 1 GB: degrees are summed before memory is."""
    ids, (edge_type,) = np.arange(60), PLAIN.edges
    server = PartitionAnswers(PLAIN.partitions(1)[0])
    whole = server.get_edges(edge_type, ids)
    degrees = whole["counts"].tolist()
    hub = int(np.argmax(degrees))
    constants(partition_answers, _MOST_EDGES=3 * degrees[hub] + degrees[hub] - 1)
    found = server.get_edges(edge_type, np.full(1000, hub), edge_ids=True)
    assert found["counts"].tolist() == 3 * [degrees[hub]]
    assert found["indices"].numel() == found["edge_ids"].numel() == 3 * degrees[hub]
    assert server.get_edges(edge_type, ids[:0])["counts"].tolist() == []


def test_the_edges_of_one_hub_come_in_pieces(constants: Any) -> None:
    (edge_type,) = PLAIN.edges
    server = PartitionAnswers(PLAIN.partitions(1)[0])
    hub = int(server.get_edges(edge_type, np.arange(60))["counts"].argmax())
    ids, most = np.array([hub, hub]), 4
    whole = server.get_edges(edge_type, ids[:1], edge_ids=True)
    degree = int(whole["counts"])
    constants(partition_answers, _MOST_EDGES=most)
    for start in range(0, degree + 1, most):
        found = server.get_edges(edge_type, ids, start=start, edge_ids=True)
        assert int(found["counts"][0]) == degree - start
        for name in ("indices", "edge_ids"):
            assert found[name].tolist()[:most] == whole[name].tolist()[start : start + most]
            assert found[name].numel() <= most
    for wrong in (-1, degree + 1):
        with pytest.raises(ConfigError, match=rf"start must be in \[0, {degree}\], got {wrong}"):
            server.get_edges(edge_type, ids, start=wrong)


def test_answers_that_no_client_can_divide_are_bounded_by_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(glt_answers, "available_memory", lambda: 1000)
    server = PartitionAnswers(PLAIN.partitions(1)[0])
    with pytest.raises(ConfigError, match=r"the \d+ edges of a type would be an answer of"):
        server.get_edge_index(None)
    rows: Any = _Rows([[1], list(range(40))])
    with pytest.raises(ConfigError, match="labels of 2 anchors, 40 for each"):
        padded_rows(rows, torch.arange(2))
    assert padded_rows(rows, torch.arange(2), 3).shape == (2, 3)


class _Rows:
    """Neighbours by node, as an adjacency has them."""

    def __init__(self, rows: list[list[int]], first: int = 0) -> None:
        ends = np.cumsum([0, *map(len, rows)])
        self.indptr = torch.from_numpy(ends)
        self.indices = torch.tensor([one for row in rows for one in row], dtype=torch.int32)
        self._first = first

    def locate(self, nodes: torch.Tensor) -> torch.Tensor:
        return nodes - self._first


@given(
    rows=st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=8),
    nodes=st.lists(st.integers(0, 10), max_size=12),
    limit=st.none() | st.integers(0, 6),
    first=st.sampled_from([0, 1000]),
)
def test_padded_rows(rows: list, nodes: list[int], limit: int | None, first: int) -> None:
    table = padded_rows(_Rows(rows, first), torch.tensor(nodes, dtype=torch.int64) + first, limit)
    expected = [(rows[node] if node < len(rows) else [])[:limit] for node in nodes]
    width = max(map(len, expected), default=0)
    assert table.dtype == torch.int64
    assert table.shape == (len(nodes), width)
    assert table.tolist() == [row + [-1] * (width - len(row)) for row in expected]


# --- labels ---------------------------------------------------------------------------------------

KNOWS = ("user", "knows", "user")
POSITIVES, NEGATIVES = [[0, 0, 0, 3], [4, 1, 2, 0]], [[3], [2]]


def _labelled(*, negatives: bool = True, most: int | None = None) -> PartitionAnswers:
    """Users whose ``buys`` labels are `POSITIVES` and `NEGATIVES`."""
    data = HeteroData()
    data["user"].x, data["item"].x = torch.zeros(4, 1), torch.zeros(5, 1)
    data["user"].train_mask = torch.tensor([True, False, True, True])
    data[KNOWS].edge_index = torch.tensor([[0, 1], [1, 2]])
    others = torch.tensor(NEGATIVES) if negatives else None
    dataset = DistDataset.from_pyg(
        data, supervision={BUYS: (torch.tensor(POSITIVES), others)}, edge_dir="out"
    )
    if most is not None:
        dataset.max_labels_per_anchor_node = most
    return PartitionAnswers(dataset)


def _input(answers: PartitionAnswers, **how: Any) -> tuple[str, list, list, list | None]:
    edge_type = how.pop("supervision_edge_type", BUYS)
    request = NodeIdsRequest(**how)
    anchor_type, anchors, positives, negatives = answers.get_ablp_input(request, edge_type)
    (positive,) = positives.values()
    (negative,) = ({None: None} if negatives is None else negatives).values()
    return (
        anchor_type,
        anchors.tolist(),
        positive.tolist(),
        None if negative is None else negative.tolist(),
    )


def test_labels_are_those_of_the_anchors() -> None:
    positives = [[1, 2, 4], [-1] * 3, [-1] * 3, [0, -1, -1]]
    negatives = [[-1], [-1], [-1], [2]]
    answers = _labelled()
    assert _input(answers) == ("user", [0, 1, 2, 3], positives, negatives)
    of_split = [[*rows] for position, rows in enumerate(positives) if position != 1]
    found = _input(answers, split="train", node_type="user")
    assert found == ("user", [0, 2, 3], of_split, [[-1], [-1], [2]])
    share = _input(answers, share=Share(1, 2, 2))
    assert share == ("user", [2, 3], [[-1], [0]], [[-1], [2]]), "as wide as these need"
    assert _input(_labelled(negatives=False))[3] is None
    assert _input(_labelled(most=1))[2] == [[1], [-1], [-1], [0]]


def test_labels_that_there_are_not_are_named() -> None:
    answers = _labelled()
    with pytest.raises(ConfigError, match=r"'item' have no labels .* of type 'user'"):
        _input(answers, node_type="item")
    with pytest.raises(ConfigError, match=r"the graph has no labels .*knows.*; its label edge typ"):
        _input(answers, supervision_edge_type=KNOWS)
    with pytest.raises(ConfigError, match="supervision_edge_type must be given"):
        _input(answers, supervision_edge_type=None)
