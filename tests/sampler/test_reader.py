"""What is drawn: how often, how independently, and the questions between partitions."""

import dataclasses
import functools
import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.batch.message import BatchTicket
from gigl_loader.dataset.partition.partition_view import Adjacency, Book, PartitionView, Rows
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import ProtocolError
from gigl_loader.sampler.plan import Draw, Drawn, DrawRequest, RowsRequest, SamplingPlan, draw_key
from gigl_loader.sampler.rows.reader import GraphReader, LocalReader
from gigl_loader.sampler.rows.row_exchange import gather_rows
from gigl_loader.testing import InProcessPeers

PLAN = SamplingPlan(input_type=NODE, fanouts={EDGE: (2, 2)}, seed=7)


def _view(degree: int, num_rows: int = 1, weights: list[float] | None = None) -> PartitionView[Any]:
    """Every row has neighbours 0, 1, ... degree - 1; edge ids count on from row to row."""
    count = degree * num_rows
    adjacency = Adjacency(
        indptr=np.arange(0, count + 1, degree) if degree else np.zeros(num_rows + 1, np.int64),
        indices=np.tile(np.arange(degree), num_rows),
        edge_ids=np.arange(count),
        weights=None if weights is None else np.tile(np.array(weights, np.float32), num_rows),
    )
    return PartitionView(
        is_heterogeneous=False,
        edge_dir="in",
        num_partitions=1,
        partition_idx=0,
        num_nodes={NODE: max(degree, num_rows)},
        adjacency={EDGE: adjacency},
    )


def _key(epoch: int = 0, batch: int = 0, hop: int = 0) -> int:
    return draw_key(PLAN, BatchTicket(0, 1, epoch, batch), hop, EDGE)


def _draw(view: PartitionView[Any], nodes: np.ndarray, fanout: int, key: int = 1, **how: Any):
    return LocalReader(view).draw(Draw(EDGE, fanout, key, **how), nodes)


def _rows(drawn, nodes: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(drawn.neighbors, np.cumsum(drawn.counts)[:-1])]


def _chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    return float(((observed - expected) ** 2 / expected).sum())


def _limit(freedom: int) -> float:
    """Return far above the 1 - 1e-6 quantile of chi-square (Wilson and Hilferty, 1931)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 5.5 * math.sqrt(spread)) ** 3


# --- edge cases -----------------------------------------------------------------------------------


@pytest.mark.parametrize("with_weight", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_frontiers_with_nothing_to_draw(replace: bool, with_weight: bool) -> None:
    view = _view(3, num_rows=2, weights=[1.0, 0.0, 1.0])
    how: Any = {"replace": replace, "with_weight": with_weight, "with_edge": True}
    for nodes, fanout in (([], 2), ([2, 99, 10**12], 2), ([0, 1], 0), ([], -1), ([5], -1)):
        drawn = _draw(view, np.array(nodes, np.int64), fanout, **how)
        assert drawn.counts.tolist() == [0] * len(nodes)
        assert drawn.neighbors.size == drawn.edge_ids.size == 0
    nothing = _draw(_view(0, num_rows=3), np.arange(3), 2, replace=replace)
    assert nothing.counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize("with_weight", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_minus_one_is_every_neighbour_once(replace: bool, with_weight: bool) -> None:
    view = _view(6, num_rows=3, weights=[1.0, 0.0, 3.0, 0.5, 0.0, 9.0])
    nodes = np.array([2, 0, 7, 2])
    drawn = _draw(view, nodes, -1, replace=replace, with_weight=with_weight, with_edge=True)
    row = [0, 2, 3, 5] if with_weight else list(range(6))
    assert _rows(drawn, nodes) == [row, row, [], row]
    first = [12 + i for i in row]
    assert drawn.edge_ids.tolist() == [*first, *row, *first]


@pytest.mark.parametrize("with_weight", [False, True])
def test_without_replacement_no_edge_twice(with_weight: bool) -> None:
    weights = [float(1 + i % 5) if i % 3 else 0.0 for i in range(30)]
    view, nodes = _view(30, num_rows=200, weights=weights), np.arange(200)
    for fanout in (1, 7, 20, 29, 30, 31):
        drawn = _draw(
            view, nodes, fanout, key=_key(fanout), with_weight=with_weight, with_edge=True
        )
        most = 20 if with_weight else 30
        assert drawn.counts.tolist() == [min(fanout, most)] * 200
        assert np.unique(drawn.edge_ids).size == drawn.edge_ids.size
        rows = np.repeat(np.arange(200), drawn.counts)
        assert (drawn.edge_ids == rows * 30 + drawn.neighbors).all()
        if with_weight:
            assert (drawn.neighbors % 3 != 0).all()


@pytest.mark.parametrize("with_weight", [False, True])
def test_with_replacement_always_the_fanout(with_weight: bool) -> None:
    view, nodes = _view(3, num_rows=50, weights=[0.0, 1.0, 2.0]), np.arange(60)
    drawn = _draw(view, nodes, 8, replace=True, with_weight=with_weight)
    assert drawn.counts.tolist() == [8] * 50 + [0] * 10
    assert set(drawn.neighbors.tolist()) == ({1, 2} if with_weight else {0, 1, 2})


def test_edge_ids_that_are_not_kept() -> None:
    view = _view(2)
    bare = Adjacency(view.adjacency[EDGE].indptr, view.adjacency[EDGE].indices, None, None)
    store = LocalReader(PartitionView(False, "in", 1, 0, {NODE: 2}, {EDGE: bare}))
    with pytest.raises(ProtocolError, match="edge ids"):
        store.draw(Draw(EDGE, 1, 1, with_edge=True), np.array([0]))
    assert store.draw(Draw(EDGE, 1, 1), np.array([0])).edge_ids is None


def test_a_frontier_of_five_million_nodes() -> None:
    view, nodes = _view(3, num_rows=1000), np.arange(5_000_000) % 1500
    drawn = _draw(view, nodes, 2, with_edge=True)
    assert drawn.counts.sum() == drawn.neighbors.size == 2 * int((nodes < 1000).sum())


# --- how often ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fanout", [1, 3, 9])
def test_uniform_inclusion_counts(fanout: int) -> None:
    degree, rows = 10, 20_000
    drawn = _draw(_view(degree, rows), np.arange(rows), fanout, key=_key())
    counts = np.bincount(drawn.neighbors, minlength=degree)
    share = fanout / degree
    # inclusions of one row are exclusive: their variance is share * (1 - share)
    score = _chi_square(counts, np.full(degree, rows * share)) / (1 - share) * (1 - 1 / degree)
    assert score < _limit(degree - 1)


def test_uniform_pairs_are_equally_likely() -> None:
    degree, rows = 6, 30_000
    nodes = np.arange(rows)
    drawn = _draw(_view(degree, rows), nodes, 2, key=_key())
    pairs = Counter(tuple(sorted(row)) for row in _rows(drawn, nodes))
    assert len(pairs) == 15
    assert _chi_square(np.array(list(pairs.values())), np.full(15, rows / 15)) < _limit(14)


def test_uniform_counts_with_replacement() -> None:
    degree, rows = 10, 20_000
    drawn = _draw(_view(degree, rows), np.arange(rows), 4, key=_key(), replace=True)
    first, second = drawn.neighbors.reshape(-1, 4)[:, :2].T
    joint = np.bincount(first * degree + second, minlength=degree**2)
    assert _chi_square(joint, np.full(degree**2, rows / degree**2)) < _limit(degree**2 - 1)


def test_weighted_counts_with_replacement() -> None:
    weights, rows = [0.5, 0.0, 1.0, 4.0, 2.5], 20_000
    drawn = _draw(
        _view(5, rows, weights), np.arange(rows), 3, key=_key(), replace=True, with_weight=True
    )
    counts = np.bincount(drawn.neighbors, minlength=5)
    assert counts[1] == 0
    expected = 3 * rows * np.array(weights) / sum(weights)
    kept = expected > 0
    assert _chi_square(counts[kept], expected[kept]) < _limit(3)


@pytest.mark.parametrize("fanout", [1, 2, 4])
def test_weighted_inclusion_against_a_direct_simulation(fanout: int) -> None:
    """Draw one by one, each time by the weights that are left: what the kernel must amount to."""
    weights, rows = [1.0, 2.0, 0.0, 3.0, 0.25, 8.0], 40_000
    drawn = _draw(_view(6, rows, weights), np.arange(rows), fanout, key=_key(), with_weight=True)
    found = np.bincount(drawn.neighbors, minlength=6) / rows
    expected = _inclusion(weights, fanout)
    spread = np.sqrt(np.maximum(expected * (1 - expected), 1e-12) / rows)
    assert (np.abs(found - expected) <= 5.5 * spread + 1e-9).all(), (found, expected)


def _inclusion(weights: list[float], draws: int) -> np.ndarray:
    """Return the exact probability of each item to be among ``draws`` drawn one by one."""
    found = np.zeros(len(weights))

    def go(left: tuple[int, ...], chance: float, draws: int) -> None:
        total = sum(weights[item] for item in left)
        if draws == 0 or total == 0:
            return
        for item in left:
            if weights[item] > 0:
                part = chance * weights[item] / total
                found[item] += part
                go(tuple(other for other in left if other != item), part, draws - 1)

    go(tuple(range(len(weights))), 1.0, draws)
    return found


# --- independence ---------------------------------------------------------------------------------


def _choices(key: int, rows: int, degree: int) -> np.ndarray:
    return _draw(_view(degree, rows), np.arange(rows), 1, key=key).neighbors


@pytest.mark.parametrize("other", ["hop", "batch", "epoch", "node", "far node", "key"])
def test_draws_are_independent(other: str) -> None:
    """The joint counts of two draws that differ in one thing are those of two fair dice."""
    degree, rows = 8, 40_000
    base = _choices(_key(), rows, degree)
    pairs = {
        "hop": lambda: (base, _choices(_key(hop=1), rows, degree)),
        "batch": lambda: (base, _choices(_key(batch=1), rows, degree)),
        "epoch": lambda: (base, _choices(_key(epoch=1), rows, degree)),
        "node": lambda: (base[:-1], base[1:]),
        "far node": lambda: (base[: rows // 2], base[rows // 2 :]),
        "key": lambda: (_choices(1, rows, degree), _choices(2, rows, degree)),
    }
    one, two = pairs[other]()
    joint = np.bincount(one * degree + two, minlength=degree**2)
    assert _chi_square(joint, np.full(degree**2, len(one) / degree**2)) < _limit(degree**2 - 1)


def test_weighted_draws_of_one_node_over_batches() -> None:
    view, nodes = _view(4, 1, [1.0, 1.0, 1.0, 1.0]), np.zeros(1, np.int64)
    store = LocalReader(view)
    found = [
        store.draw(Draw(EDGE, 1, _key(batch=b), with_weight=True), nodes).neighbors.item()
        for b in range(8000)
    ]
    joint = np.bincount(np.array(found[:-1]) * 4 + np.array(found[1:]), minlength=16)
    assert _chi_square(joint, np.full(16, 7999 / 16)) < _limit(15)


# --- keyed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_weight", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_a_draw_depends_on_node_and_key_alone(replace: bool, with_weight: bool) -> None:
    view = _view(9, 300, [float(1 + i) for i in range(9)])
    how: Any = {"replace": replace, "with_weight": with_weight, "with_edge": True}
    nodes = np.arange(300)
    whole = _rows(_draw(view, nodes, 4, key=11, **how), nodes)
    store = LocalReader(view)
    shuffled = np.random.default_rng(1).permutation(300)
    # another order, other frontiers, one store's scratch
    for part in np.split(shuffled, range(70, 300, 70)):
        drawn = store.draw(Draw(EDGE, 4, 11, **how), part)
        assert _rows(drawn, part) == [whole[node] for node in part.tolist()]


# --- several partitions ---------------------------------------------------------------------------


def _cut(view: PartitionView[Any], owner: np.ndarray, count: int) -> list[PartitionView[Any]]:
    """Return partitions of ``view``, each with the rows of its own nodes only."""
    adjacency, parts = view.adjacency[EDGE], []
    assert adjacency.edge_ids is not None
    degrees = np.diff(adjacency.indptr)
    for index in range(count):
        mine = np.repeat(owner == index, degrees)
        kept = np.where(owner == index, degrees, 0)
        weights = None if adjacency.weights is None else adjacency.weights[mine]
        own = Adjacency(
            np.concatenate([[0], kept.cumsum()]),
            adjacency.indices[mine],
            adjacency.edge_ids[mine],
            weights,
        )
        ids = np.flatnonzero(owner == index)
        position = np.full_like(owner, -1)
        position[ids] = np.arange(ids.size)
        parts.append(
            PartitionView(
                False,
                "in",
                count,
                index,
                view.num_nodes,
                {EDGE: own},
                node_books={NODE: Book(table=owner)},
                node_features={NODE: Rows(ids.astype(np.float32)[:, None], position)},
            )
        )
    return parts


@pytest.mark.parametrize("count", [2, 3])
def test_partitions_draw_the_same_bits(count: int) -> None:
    generator = np.random.default_rng(3)
    view = _view(7, 40, [0.0, 1, 2, 3, 4, 5, 6])
    parts = _cut(view, generator.integers(count, size=40), count)
    peers = InProcessPeers(parts)
    nodes = generator.integers(40, size=100)
    for part in parts:
        for fanout in (-1, 0, 3):
            for flags in range(8):
                how: Any = {
                    "replace": bool(flags & 1),
                    "with_weight": bool(flags & 2),
                    "with_edge": bool(flags & 4),
                }
                draw = Draw(EDGE, fanout, 2**64 - 5, **how)
                one = LocalReader(view).draw(draw, nodes)
                other = GraphReader(part, peers).draw(draw, nodes)()
                assert np.array_equal(one.counts, other.counts)
                assert np.array_equal(one.neighbors, other.neighbors)
                if how["with_edge"]:
                    assert one.edge_ids is not None
                    assert other.edge_ids is not None
                    assert np.array_equal(one.edge_ids, other.edge_ids)
                else:
                    assert other.edge_ids is None
        store = GraphReader(part, peers)
        split = store.split(part.node_books[NODE], nodes)
        dtype, shape, write = store.fetch("node_features", NODE, nodes, split)
        out = np.empty(shape, dtype)
        write(out)
        assert out[:, 0].tolist() == nodes.tolist()


@pytest.mark.parametrize("held", [[0, 1, 2], [0, 2]], ids=["all edges", "some"])
def test_edges_that_are_here_are_requested_from_nobody(held: list[int]) -> None:
    generator = np.random.default_rng(4)
    view, nodes = _view(5, 30), generator.integers(30, size=80)
    parts = _cut(view, generator.integers(3, size=30), 3)
    for part in parts:
        others = {
            number: dataclasses.replace(parts[number], node_features={})
            for number in held
            if number != part.partition_idx
        }
        part, peers = dataclasses.replace(part, other_edges=others), InProcessPeers(parts)
        store, alone = GraphReader(part, peers), LocalReader(view)
        draw = Draw(EDGE, 3, 9, with_edge=True)
        drawn, wanted = store.draw(draw, nodes)(), alone.draw(draw, nodes)
        assert np.array_equal(drawn.neighbors, wanted.neighbors)
        assert drawn.edge_ids is not None
        assert wanted.edge_ids is not None
        assert np.array_equal(drawn.edge_ids, wanted.edge_ids)
        degrees = store.degrees(EDGE, nodes)()
        assert np.array_equal(degrees, alone.degrees(EDGE, nodes))
        elsewhere = {0, 1, 2} - {part.partition_idx, *held}
        assert {number for number, _ in peers.asked} == elsewhere
        peers.asked.clear()
        split = store.split(part.node_books[NODE], nodes)
        dtype, shape, write = store.fetch("node_features", NODE, nodes, split)
        write(rows := np.empty(shape, dtype))
        assert rows[:, 0].tolist() == nodes.tolist()
        assert {number for number, _ in peers.asked} == {0, 1, 2} - {part.partition_idx}
        assert all(isinstance(request, RowsRequest) for _, request in peers.asked)


@pytest.mark.parametrize("book", [Book(table=np.arange(10) // 5), Book(bounds=np.array([5, 10]))])
def test_ids_of_nobody_have_no_owner(book: Book[Any]) -> None:
    """Answers of other machines name neighbours, which are asked for in the next hop."""
    parts = _cut(_view(3, 10), np.arange(10) // 5, 2)
    store = GraphReader(parts[0], InProcessPeers(parts))
    split = store.split(book, np.array([9, 0, 5]))
    assert split is not None
    assert {partition: at.tolist() for partition, at in split.items()} == {0: [1], 1: [0, 2]}
    assert store.split(book, np.array([4, 0])) is None
    for one in (10, 2**62, -1, -(2**63)):
        with pytest.raises(ProtocolError, match="where there are 10"):
            store.split(book, np.array([3, one, 7]))


def test_only_owners_are_asked() -> None:
    view = _view(3, 10)
    parts = _cut(view, np.arange(10) // 4, 3)  # 0-3, 4-7, 8-9
    peers = InProcessPeers(parts)
    store = GraphReader(parts[0], peers)
    store.draw(Draw(EDGE, 1, 1), np.array([0, 3, 1]))()
    store.draw(Draw(EDGE, 1, 1), np.array([], np.int64))()
    assert peers.asked == []
    store.draw(Draw(EDGE, 1, 1), np.array([9, 0, 8]))()
    assert [partition for partition, _ in peers.asked] == [2]


def test_questions_for_what_there_is_not() -> None:
    """They come from another machine: none of them may read anything else, or end the worker."""
    store, ids = LocalReader(_view(1)), np.arange(1)
    draws: list[tuple[Draw, np.ndarray, str]] = [
        (Draw(("no", "such", "type"), 1, 1), ids, "unknown type"),
        (Draw(EDGE, -2, 1), ids, "fanout -2"),
        (Draw(EDGE, 1, -1), ids, "key -1"),
        (Draw(EDGE, 1, 2**64), ids, "key 18446744073709551616"),
        (Draw(EDGE, 1, 1), ids.astype(np.int32), "int32"),
        (Draw(EDGE, 1, 1), ids[:, None], r"\(1, 1\)"),
    ]
    for draw, nodes, words in draws:
        with pytest.raises(ProtocolError, match=words):
            store.answer_draw(DrawRequest(draw, nodes))
    for kind, name in (("node_features", NODE), ("__dict__", NODE), ("adjacency", EDGE)):
        with pytest.raises(ProtocolError, match=kind):
            store.answer_rows(RowsRequest(kind, name, ids))


@pytest.mark.parametrize("node", [-1, -3, -(10**6), -(2**63)])
@pytest.mark.parametrize("first_row", [0, 5])
def test_questions_for_nodes_before_the_first(node: int, first_row: int) -> None:
    """No kernel checks bounds: far before the first row a worker would be killed by a signal."""
    view, nodes = _view(3, 4, [1.0, 2, 3]), np.array([first_row + 1, first_row + node])
    rows = dataclasses.replace(view.adjacency[EDGE], first_row=first_row)
    store = LocalReader(dataclasses.replace(view, adjacency={EDGE: rows}))
    ways: list[dict[str, Any]] = [{}, {"with_weight": True}, {"replace": True}, {"method": "labor"}]
    for how in ways:
        with pytest.raises(ProtocolError, match=f"where the first is {first_row}"):
            store.answer_draw(DrawRequest(Draw(EDGE, 2, 1, **how), nodes))
    with pytest.raises(ProtocolError, match=f"edges of node {nodes[1]} were requested"):
        store.answer_rows(RowsRequest("degrees", EDGE, nodes))
    past = np.array([first_row + 4, 2**62])
    assert store.answer_draw(DrawRequest(Draw(EDGE, 2, 1), past)).counts.tolist() == [0, 0]
    assert store.answer_rows(RowsRequest("degrees", EDGE, past)).values.tolist() == [0, 0]


@pytest.mark.parametrize("node", [-1, -100, 6, 2**62])
def test_an_id_that_the_index_has_no_position_for(node: int) -> None:
    features = Rows(np.arange(8.0).reshape(4, 2), np.array([-1, 0, 2, 1, -1, 3]), first=10)
    store = LocalReader(dataclasses.replace(_view(1), node_features={NODE: features}))
    ask = functools.partial(RowsRequest, "node_features", NODE)
    assert store.answer_rows(ask(np.array([15, 12]))).values.tolist() == [[6, 7], [4, 5]]
    with pytest.raises(ProtocolError, match="where there are only 10 to 15"):
        store.answer_rows(ask(np.array([12, 10 + node])))
    with pytest.raises(ProtocolError, match="row -1 of a matrix with 4 rows"):
        store.answer_rows(ask(np.array([12, 14])))  # it has one, and is of another partition


@pytest.mark.parametrize("in_turn", [True, False])
def test_rows_of_one_matrix_for_several_sets_of_ids(in_turn: bool) -> None:
    """All are asked before the first is read: the answers may not lie in the same memory."""
    parts = _cut(_view(3, 40), np.arange(40) % 2, 2)
    store = GraphReader(parts[0], InProcessPeers(parts))
    for _ in range(3):
        asked = []
        for ids in (np.arange(30), np.arange(10, 40)[::-1].copy(), np.array([7])):
            split = store.split(parts[0].node_books[NODE], ids)
            asked.append((ids, store.fetch("node_features", NODE, ids, split)))
        store.fetch("node_features", NODE, asked[0][0], {1: np.arange(1, 30, 2)})  # never read
        for ids, (dtype, shape, write) in asked if in_turn else asked[::-1]:
            write(out := np.empty(shape, dtype))
            assert out[:, 0].tolist() == ids.tolist()
    assert len(store._scratch._arrays) == 1, "memory is used again where the answer was read"


def test_answers_that_do_not_fit_are_not_merged() -> None:
    view = _view(3, 10)
    parts = _cut(view, np.arange(10) // 5, 2)
    good = LocalReader(parts[1]).answer_draw(DrawRequest(Draw(EDGE, 2, 1), np.array([9, 8])))
    bad = [
        Drawn(good.counts[:1], good.neighbors, None),
        Drawn(good.counts, good.neighbors[:-1], None),
        Drawn(good.counts - 5, good.neighbors, None),
        # these add up, and would be written before the first place of the second node
        Drawn(np.array([-1, good.neighbors.size + 1]), good.neighbors, None),
        Drawn(good.counts.astype(np.int32), good.neighbors, None),
        Drawn(good.counts, good.neighbors, good.neighbors),
    ]
    for answer in bad:
        came = SimpleNamespace(has_come=True, wait=lambda answer=answer: answer)
        peers: Any = SimpleNamespace(
            rows_later=False, draw=lambda partition, request, came=came: came
        )
        with pytest.raises(ProtocolError, match="neighbours of 2 nodes"):
            GraphReader(parts[0], peers).draw(Draw(EDGE, 2, 1), np.array([9, 8, 0]))()


def test_the_bits_are_the_same_on_any_machine_and_version() -> None:
    """Known answers: a change here changes what users get for a seed that they wrote down."""
    key, nodes = _key(3, 2, 1), np.arange(3)
    assert key == 9130407239356527970
    drawn = _draw(_view(50, 3), nodes, 4, key=key)
    assert _rows(drawn, nodes) == [[39, 12, 8, 49], [16, 20, 41, 5], [6, 18, 33, 0]]
    weights = [1.0 + i for i in range(50)]
    drawn = _draw(_view(50, 3, weights), nodes, 4, key=key, with_weight=True)
    assert _rows(drawn, nodes) == [[25, 34, 41, 44], [13, 34, 48, 49], [3, 14, 36, 45]]


# --- rows -----------------------------------------------------------------------------------------


@given(
    dtype=st.sampled_from(["float32", "float64", "int64", "uint16", "uint8", "bool"]),
    width=st.lists(st.integers(0, 5), max_size=2),
    sizes=st.lists(st.integers(1, 9), min_size=1),
    count=st.integers(0, 40),
    shift=st.integers(0, 8),
    data=st.data(),
)
def test_rows_of_several_matrices(dtype, width, sizes, count, shift, data) -> None:
    """Any type, any shape, wherever they lie: each position gets the row that was named for it."""
    rng = np.random.default_rng(count)

    def placed(shape: tuple[int, ...]) -> np.ndarray:  # `shift` bytes past an aligned address
        memory = np.zeros(int(np.prod(shape)) * np.dtype(dtype).itemsize + 16, np.uint8)
        return np.ndarray(shape, dtype, memory, shift)

    matrices: Any = []
    for size in sizes:
        matrices.append(placed((size, *width)))
        matrices[-1][...] = rng.integers(0, 2 if dtype == "bool" else 200, (size, *width))
    owners = st.lists(st.integers(0, len(sizes) - 1), min_size=count, max_size=count)
    owner = np.array(data.draw(owners), np.int64)
    rows = rng.integers(0, np.array(sizes)[owner])
    out = placed((count, *width))
    parts = [
        (matrix, rows[owner == number], np.flatnonzero(owner == number))
        for number, matrix in enumerate(matrices)
    ]
    gather_rows(parts, out)
    for position in range(count):
        assert (out[position] == matrices[owner[position]][rows[position]]).all()
    if len(sizes) == 1:
        again = placed((count, *width))
        gather_rows([(matrices[0], rows, None)], again)
        assert (again == out).all()


@pytest.mark.parametrize(
    ("matrix", "rows"),
    [
        (np.zeros((3, 2)), [3]),
        (np.zeros((3, 2)), [-1]),
        (np.zeros((0, 2)), [0]),
        (np.zeros((3, 2), np.float32), [0]),
        (np.zeros((3, 4)), [0]),
        (np.zeros((2, 3)).T, [0]),
        (np.zeros(3), [0]),
    ],
)
def test_rows_that_are_not_there_are_refused(matrix: np.ndarray, rows: list[int]) -> None:
    """They are read by address: nothing else may be read."""
    with pytest.raises(ProtocolError, match="matrix"):
        gather_rows([(matrix, np.array(rows), None)], np.zeros((1, 2)))
