"""Sampling by time: nothing later than its seed, in plain Python beside the sampler."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gigl_loader import ConfigError, DistDataset
from gigl_loader.batch.collate import add_edge_labels, to_data, to_hetero_data
from gigl_loader.batch.message import EDGE_TARGETS, SEED_START, SEED_TIME, SEED_WINDOW, BatchTicket
from gigl_loader.dataset.partition.partition_view import earlier, keys_of
from gigl_loader.dataset.schema import NEIGHBOR_TIME, EdgeDir, reverse_edge_type
from gigl_loader.errors import ProtocolError
from gigl_loader.runtime.transport import codec
from gigl_loader.sampler.edges import edge_sampler
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.options import ExpansionOptions
from gigl_loader.sampler.plan import Draw, DrawRequest, SampleRequest, SamplingPlan, TreesAndTimes
from gigl_loader.sampler.roots import SeedTimes
from gigl_loader.sampler.rows.packing import PackedInts
from gigl_loader.sampler.rows.reader import GraphReader, LocalReader
from gigl_loader.testing import (
    InProcessPeers,
    TinyGraph,
    as_worker_gets,
    check_same_batches,
    sample_message,
)
from tests.support.draws import examples

TIME = "when"


def _timed(graph: TinyGraph, times: dict, count: int, edge_dir: EdgeDir, cut: int = 0):
    """Return the graph's partitions; ``times`` are by node or edge type, and some have none."""
    data = graph.to_pyg()
    for name, values in times.items():
        store = data[name] if graph.is_heterogeneous else data
        store[TIME] = values
    generator = torch.Generator().manual_seed(cut)
    books = {
        name: torch.randint(count, (size,), generator=generator)
        for name, size in graph.num_nodes.items()
    }
    book = books if graph.is_heterogeneous else next(iter(books.values()))
    return [
        DistDataset.from_pyg(
            data,
            edge_dir=edge_dir,
            partition_book=book,
            partition_idx=index,
            num_partitions=count,
            time_attr=TIME,
        ).view_by_time(TIME)
        for index in range(count)
    ]


@st.composite
def cases(draw):
    heterogeneous = draw(st.booleans())
    graph = TinyGraph.random(
        draw(st.integers(1, 10)),
        draw(st.integers(0, 50)),
        heterogeneous=heterogeneous,
        seed=draw(st.integers(0, 10**6)),
    )
    of_nodes = draw(st.booleans())
    sizes = sum(graph.num_nodes.values()), sum(map(len, graph.edges.values()))
    assume(heterogeneous or sizes[0] != sizes[1])  # else PyG takes all values for those of nodes
    owners = sorted(graph.num_nodes if of_nodes else graph.edges)
    with_times = draw(st.lists(st.sampled_from(owners), min_size=1, unique=True))
    dtype = draw(st.sampled_from([torch.int64, torch.float64, torch.int32]))
    times = {}
    for name in with_times:
        size = graph.num_nodes[name] if of_nodes else len(graph.edges[name])
        few = st.lists(st.integers(-3, 3), min_size=size, max_size=size)  # ties on purpose
        times[name] = torch.tensor(draw(few), dtype=dtype)
    fanout = st.lists(st.integers(-1, 3), min_size=2, max_size=2)
    fanouts = {name: tuple(draw(fanout)) for name in sorted(graph.edges)}
    how = {
        "temporal_strategy": draw(st.sampled_from(["uniform", "last"])),
        "time_window": draw(st.sampled_from([None, 0, 1, 2])),
        "disjoint": draw(st.sampled_from([False, True, "by_time"])),
    }
    replace = draw(st.booleans())
    if how["disjoint"] != "by_time" and draw(st.booleans()):
        how["adaptive_fanout"] = True
        fanouts = {name: tuple(map(abs, hops)) for name, hops in fanouts.items()}
    return graph, times, fanouts, draw(st.sampled_from(["in", "out"])), how, replace


def _plan(case, input_type: str) -> SamplingPlan:
    _, _, fanouts, _, how, replace = case
    expansion = ExpansionOptions(time_attr=TIME, **how)
    return SamplingPlan(
        input_type=input_type,
        fanouts=fanouts,
        seed=3,
        with_edge=True,
        replace=replace,
        expansion=expansion,
    )


def _trees(case, times) -> list[int]:
    """Return which seed tells the tree of each seed: itself, or the first of its time."""
    shared = case[4]["disjoint"] == "by_time"
    return [list(times).index(time) if shared else position for position, time in enumerate(times)]


def _walked(edge_type, edge_dir):
    return edge_type if edge_dir == "in" else reverse_edge_type(edge_type)


def _collate(message, graph, fanouts, edge_dir):
    if not graph.is_heterogeneous:
        return to_data(message)
    types = [_walked(name, edge_dir) for name in fanouts]
    return to_hetero_data(message, sorted(graph.num_nodes), types)


def _store(batch, graph, name):
    return batch[name] if graph.is_heterogeneous else batch


def _check_times(batch, case, seed_times, starts=None) -> None:
    """Check every node and edge of every tree, and that draws are as large as they can be.

    ``starts``: the earliest time of each seed's neighbours; None: by the case's window.
    """
    graph, times, fanouts, edge_dir, how, replace = case
    adapted = _adapted(batch, case, seed_times, starts) if how.get("adaptive_fanout") else {}
    for edge_type, pairs in graph.edges.items():
        src, _, dst = edge_type
        expanded, neighbor = (dst, src) if edge_dir == "in" else (src, dst)
        edges = _store(batch, graph, _walked(edge_type, edge_dir))
        nodes, others = _store(batch, graph, expanded), _store(batch, graph, neighbor)
        drawn: dict[int, list[int]] = {}
        for (other, node), edge_id in zip(
            edges.edge_index.t().tolist(), edges.e_id.tolist(), strict=True
        ):
            ends = (int(others.n_id[other]), int(nodes.n_id[node]))
            assert pairs[edge_id] == (ends if edge_dir == "in" else ends[::-1])
            assert int(nodes.batch[node]) == int(others.batch[other]), "an edge between two trees"
            drawn.setdefault(node, []).append(edge_id)
        first, second, *_ = np.cumsum(nodes.num_sampled_nodes).tolist()
        assert drawn.keys() <= set(range(second)), "nodes of the last hop are not expanded"
        is_timed = edge_type in times or neighbor in times
        for node in range(second):
            seed = int(nodes.batch[node])
            start = None if starts is None else starts[seed]
            possible = _possible(
                case, edge_type, neighbor, int(nodes.n_id[node]), seed_times[seed], start
            )
            _check_draw(
                drawn.get(node, []),
                possible,
                adapted.get((edge_type, node), fanouts[edge_type][node >= first]),
                replace,
                last=how["temporal_strategy"] == "last" and is_timed,
            )


def _adapted(batch, case, seed_times, starts) -> dict[tuple[Any, int], int]:
    """Return the fan-out of each edge type and expanded node, tree by tree, in plain Python.

    Trees are told by their root, of which a link has two: here they are told apart by seed alone,
    so it is for nodes as seeds.
    """
    graph, _, fanouts, edge_dir, _, replace = case
    found: dict[tuple[Any, int], int] = {}
    for seed, seed_time in enumerate(seed_times):
        free = 0
        for hop in range(2):
            expanded = []
            for edge_type in sorted(graph.edges):
                src, _, dst = edge_type
                own, neighbor = (dst, src) if edge_dir == "in" else (src, dst)
                nodes = _store(batch, graph, own)
                ends = np.cumsum([0, *nodes.num_sampled_nodes]).tolist()
                expanded += [
                    (edge_type, neighbor, node, int(nodes.n_id[node]))
                    for node in range(ends[hop], ends[hop + 1])
                    if int(nodes.batch[node]) == seed and fanouts[edge_type][hop]
                ]
            if not expanded:
                continue
            share, rest = divmod(free, len(expanded))
            free = 0
            for place, (edge_type, neighbor, node, node_id) in enumerate(expanded):
                width = fanouts[edge_type][hop] + share + (place < rest)
                start = None if starts is None else starts[seed]
                there = len(_possible(case, edge_type, neighbor, node_id, seed_time, start))
                found[edge_type, node] = width
                free += width - (width * bool(there) if replace else min(width, there))
    return found


def _possible(case, edge_type, neighbor, node, seed_time, start=None) -> list[tuple[float, int]]:
    """Return (time, edge id) of the edges of a node that a seed of that time may have."""
    graph, times, _, edge_dir, how, _ = case
    found = []
    for edge_id, pair in enumerate(graph.edges[edge_type]):
        own, other = pair[::-1] if edge_dir == "in" else pair
        time = seed_time  # of what has no time
        if edge_type in times:
            time = times[edge_type][edge_id].item()
        elif neighbor in times:
            time = times[neighbor][other].item()
        window = how["time_window"]
        is_timed = edge_type in times or neighbor in times
        if start is None and window is not None:
            start = seed_time - window
        in_time = not is_timed or (time <= seed_time and (start is None or time >= start))
        if own == node and in_time:
            found.append((time, edge_id))
    return found


def _check_draw(found, possible, fanout, replace, *, last) -> None:
    ids = [edge_id for _, edge_id in possible]
    assert set(found) <= set(ids), "later than its seed, or too old"
    if fanout < 0:
        assert sorted(found) == sorted(ids)
        return
    assert len(found) == (fanout * bool(ids) if replace else min(fanout, len(ids)))
    if not replace:
        assert max(Counter(found).values(), default=1) == 1
    if last and found:
        oldest = sorted(time for time, _ in possible)[-fanout:][0]
        assert all(time >= oldest for time, edge_id in possible if edge_id in found)


@settings(max_examples=examples(35))
@given(case=cases(), count=st.integers(1, 3), cut=st.integers(0, 10**6), data=st.data())
def test_nothing_is_later_than_its_seed(case, count: int, cut: int, data) -> None:
    """Ties, equal times, windows, types without time; the same bits over several partitions."""
    graph, times, fanouts, edge_dir, _, _ = case
    input_type = data.draw(st.sampled_from(sorted(graph.num_nodes)))
    seeds = data.draw(
        st.lists(st.integers(0, graph.num_nodes[input_type] - 1), min_size=1, max_size=5)
    )
    own = times.get(input_type)
    given_times = data.draw(
        st.lists(st.integers(-4, 4), min_size=len(seeds), max_size=len(seeds))
        if own is None
        else st.none()
    )
    extra = {} if given_times is None else {SEED_TIME: np.array(given_times, np.int64)}
    seed_times = own[seeds].tolist() if given_times is None else given_times
    starts = None
    kind = data.draw(st.sampled_from([None, SEED_START, SEED_WINDOW]))
    if case[4]["disjoint"] != "by_time" and kind is not None:
        few = st.lists(st.integers(0, 5), min_size=len(seeds), max_size=len(seeds))
        limits = np.array(data.draw(few))
        limits = limits - 3 if kind == SEED_START else limits  # a start may be after its seed
        starts = (limits if kind == SEED_START else np.array(seed_times) - limits).tolist()
        fraction = data.draw(st.sampled_from([0, 0.5]))  # of a start, times are integers or not
        extra[kind] = limits - fraction if fraction and kind == SEED_START else limits
        starts = [start - (fraction if kind == SEED_START else 0) for start in starts]
    plan = _plan(case, input_type)
    request = SampleRequest(
        BatchTicket(0, 1, 2, 3), np.array(seeds, np.int64), np.arange(len(seeds)), extra
    )
    found = []
    for views in (_timed(graph, times, 1, edge_dir), _timed(graph, times, count, edge_dir, cut)):
        peers = InProcessPeers(views) if len(views) > 1 else None
        sampler = NeighborSampler(as_worker_gets(views[-1]), plan, peers)
        batch = _collate(sample_message(sampler, request), graph, fanouts, edge_dir)
        found.append(batch)
    check_same_batches([found[1]], [found[0]])
    store = _store(found[0], graph, input_type)
    assert store.batch_size == len(seeds)
    assert store.n_id[: len(seeds)].tolist() == seeds
    assert store.batch[: len(seeds)].tolist() == _trees(case, seed_times)
    for name in graph.num_nodes:
        reached = _store(found[0], graph, name)
        first = int(reached.num_sampled_nodes[0])
        keys = torch.stack([reached.batch, reached.n_id])[:, first:]
        assert keys.unique(dim=1).size(1) == keys.size(1), "a node twice in a tree"
    assert store.seed_time.tolist() == seed_times
    _check_times(found[0], case, seed_times, starts)


@settings(max_examples=examples(20))
@given(case=cases(), kind=st.sampled_from([None, "binary", "triplet"]), data=st.data())
def test_links_and_their_negatives_respect_time(case, kind, data) -> None:
    graph, times, fanouts, edge_dir, how, _ = case
    how.pop("adaptive_fanout", None)  # a link has two trees; see `_adapted`
    edge_type = data.draw(st.sampled_from(sorted(graph.edges)))
    views = _timed(graph, times, 2, edge_dir)
    ends = (graph.num_nodes[edge_type[0]], graph.num_nodes[edge_type[2]])
    pair = st.tuples(st.integers(0, ends[0] - 1), st.integers(0, ends[1] - 1), st.integers(-3, 4))
    edges = data.draw(st.lists(pair, min_size=1, max_size=4))
    earliest = (
        max(int(times[end].min()) for end in edge_type[::2] if end in times)
        if any(end in times for end in edge_type[::2])
        else -9
    )
    src, dst, when = zip(*((s, d, max(t, earliest)) for s, d, t in edges), strict=True)
    extra = {EDGE_TARGETS: np.array(dst), SEED_TIME: np.array(when)}
    starts = None
    if how["disjoint"] != "by_time" and data.draw(st.booleans()):
        starts = [time - position for position, time in enumerate(when)]
        extra[SEED_START] = np.array(starts)
    request = SampleRequest(BatchTicket(0, 1, 0, 0), np.array(src), np.arange(len(src)), extra)
    sampler = edge_sampler(
        as_worker_gets(views[0]),
        _plan(case, edge_type[0]),
        InProcessPeers(views),
        edge_type=edge_type,
        negatives=kind,
        amount=2,
    )
    message = sample_message(sampler, request)
    batch = _collate(message, graph, fanouts, edge_dir)
    add_edge_labels(batch, message, edge_type if graph.is_heterogeneous else None, kind=kind)
    _check_times(batch, case, when, starts)
    links, own, other = (_store(batch, graph, name) for name in (edge_type, *edge_type[::2]))
    if kind == "triplet":
        roots = [(own, own.src_index, when), (other, other.dst_pos_index, when)]
        late = [(times.get(edge_type[2]), other, other.dst_neg_index.reshape(len(src), -1))]
        assert own.seed_time.tolist() == list(when)
        if case[4]["disjoint"] != "by_time":  # one of each seed edge, then the next of each
            in_turn = late[0][2].t().reshape(-1)
            assert in_turn.tolist() == list(range(int(in_turn[0]), int(in_turn[-1]) + 1))
            assert in_turn.numel() == 2 * len(src)
    else:
        index = links.edge_label_index
        repeated = [when[i % len(when)] for i in range(index.size(1))]
        assert links.edge_label_time.tolist() == repeated
        roots = [(own, index[0], tuple(repeated)), (other, index[1], tuple(repeated))]
        late = [
            (times.get(name), store, index[row, len(src) :].reshape(-1, len(src)).t())
            for row, name, store in ((0, edge_type[0], own), (1, edge_type[2], other))
        ]
    for store, labels, root_times in roots:
        trees = [_trees(case, when)[i % len(src)] for i in range(len(root_times))]
        assert store.batch[labels].tolist() == trees
    for node_times, store, labels in late:
        if node_times is not None:
            drawn = node_times[store.n_id[labels]]
            assert bool((drawn <= torch.tensor(when)[:, None]).all()), "a negative of the future"


def test_uniform_draws_are_uniform_among_the_past() -> None:
    graph = TinyGraph.homogeneous(21, [(i, 20) for i in range(20)])
    views = _timed(graph, {next(iter(graph.edges)): torch.arange(20)}, 1, "in")
    options = ExpansionOptions(time_attr=TIME, time_window=11)
    plan = SamplingPlan(
        input_type=next(iter(graph.num_nodes)),
        fanouts=dict.fromkeys(graph.edges, (3,)),
        seed=1,
        expansion=options,
    )
    sampler = NeighborSampler(as_worker_gets(views[0]), plan, None)
    seen: Counter = Counter()
    for batch in range(60):
        request = SampleRequest(
            BatchTicket(0, 1, 0, batch),
            np.full(50, 20),
            np.arange(50),
            {SEED_TIME: np.full(50, 15)},
        )
        found = to_data(sample_message(sampler, request))
        seen.update(found.n_id[50:].tolist())
    assert set(seen) == set(range(4, 16))
    expected = 60 * 50 * 3 / 12
    chi_squared = sum((count - expected) ** 2 / expected for count in seen.values())
    assert chi_squared < 35, "11 degrees of freedom: p is about 0.0002"


@given(st.lists(st.floats(allow_nan=False) | st.just(-0.0), max_size=20))
def test_keys_compare_as_floats_do(values: list[float]) -> None:
    array = np.array(values)
    keys = keys_of(array, is_float=True)
    for i, one in enumerate(values):
        assert ((keys < keys[i]) == (array < one)).all()
        assert ((keys == keys[i]) == (array == one)).all()


def test_a_window_ends_at_the_lowest_integer() -> None:
    times = np.array([-(2**63), -(2**63) + 5, 0, 2**63 - 1])
    found = earlier(times, 10, is_float=False)
    assert found.tolist() == [-(2**63), -(2**63), -10, 2**63 - 11]
    assert earlier(times, 2.0**70, is_float=False).tolist()[0] == -(2**63)
    windows = np.array([3, 10, 1, 2])
    for by_seed in (windows, windows + 0.5, windows.astype(np.float64)):
        found = earlier(times, by_seed, is_float=False)
        assert found.tolist() == [-(2**63), -(2**63), -1, 2**63 - 3]
    without_end = np.full(4, np.inf)
    assert (earlier(times, without_end, is_float=False) < 2**62).all()
    floats = earlier(np.array([1.5]), np.array([0.25]), is_float=True)
    assert floats.tolist() == keys_of(np.array([1.25]), is_float=True).tolist()


@pytest.mark.parametrize("wrong", [[-1, 0], [1 << 31, 0], [1]])
def test_fan_outs_of_others_that_make_no_sense_are_refused(wrong: list[int]) -> None:
    graph = TinyGraph.random(6, 20)
    reader = LocalReader(as_worker_gets(graph.dataset().view()))
    trees = TreesAndTimes(np.arange(2), fanout=np.array(wrong))
    draw = Draw(next(iter(graph.edges)), 2, 1)
    with pytest.raises(ProtocolError, match="one for each node"):
        reader.answer_draw(DrawRequest(draw, np.arange(2), trees))


def test_times_that_cannot_be_used_are_refused() -> None:
    graph = TinyGraph.random(6, 20)
    data = graph.to_pyg()
    data.later = torch.tensor([1.0, float("nan"), 0, 0, 0, 0])
    dataset = DistDataset.from_pyg(data)
    for name, match in (
        ("never", "is no attribute"),
        ("later", "not a number"),
        ("train_mask", "one number each"),
        ("edge_age", "one number each"),
    ):
        with pytest.raises(ConfigError, match=match):
            dataset.view_by_time(name)
    parts = graph.partitions(2)
    with pytest.raises(ConfigError, match=r"partition_graph\(\.\.\., time_attr='node_time'"):
        parts[0].view_by_time("node_time")
    with pytest.raises(ConfigError, match="no attribute of the graph"):
        DistDataset.from_pyg(
            data, time_attr="x", partition_book=torch.arange(6) % 2, num_partitions=2
        )


def test_a_question_by_time_must_bring_times() -> None:
    graph = TinyGraph.random(6, 20)
    edge_type = next(iter(graph.edges))
    nodes = np.arange(3)
    plain = LocalReader(as_worker_gets(graph.dataset().view()))
    timed = LocalReader(as_worker_gets(graph.dataset().view_by_time("node_time")))
    draw = Draw(edge_type, 2, 1, timed=True)
    for store in (plain, timed):
        with pytest.raises(ProtocolError, match="has no times"):
            store.answer_draw(DrawRequest(draw, nodes))


TIMES = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), min_size=2, max_size=6)


@given(until=TIMES, trees=st.integers(0, 2**40), window=st.booleans())
def test_a_question_travels_whole(until: list[int], trees: int, window: bool) -> None:
    times = np.array(until)
    asked = TreesAndTimes(
        np.arange(times.size) + trees,
        times,
        times[::-1].copy() if window else None,
        np.arange(times.size) if window else None,
    )
    for told in (None, TreesAndTimes(asked.tree), asked):
        draw = Draw(("a", "b", "c"), 2, 1, timed=told is asked)
        sent = DrawRequest(draw, np.arange(times.size), told)
        header, arrays = codec.encode(sent.map(PackedInts.of))
        _, body, _ = codec.read_header(header)
        found = codec.decode(body, arrays, DrawRequest[PackedInts]).map(PackedInts.unpack)
        assert found.draw == draw
        assert found.nodes.tolist() == sent.nodes.tolist()
        assert (found.trees is None) == (told is None)
        for name in ("tree", "until", "since", "fanout") if told is not None else ():
            one, other = getattr(found.trees, name), getattr(told, name)
            assert (one is None) == (other is None)
            assert one is None or one.tolist() == other.tolist()


def test_times_of_neighbours_are_in_no_batch() -> None:
    graph = TinyGraph.random(6, 20)
    views = _timed(graph, {next(iter(graph.num_nodes)): torch.arange(6)}, 2, "in")
    assert any(name.startswith(NEIGHBOR_TIME) for _, name in views[0].edge_attributes)
    plan = SamplingPlan(
        input_type=next(iter(graph.num_nodes)),
        fanouts=dict.fromkeys(graph.edges, (3,)),
        seed=1,
        with_edge=True,
    )
    sampler = NeighborSampler(as_worker_gets(views[0]), plan, InProcessPeers(views))
    message = sample_message(
        sampler, SampleRequest(BatchTicket(0, 1, 0, 0), np.arange(6), np.arange(6))
    )
    assert not [name for name in message if NEIGHBOR_TIME in name]


@pytest.mark.parametrize("window", [None, 0.5, 1, 2.0**70])
@pytest.mark.parametrize("count", [1, 2])
def test_whole_times_and_times_with_fractions_of_different_types(count: int, window: Any) -> None:
    """Items are nobody's neighbours, so neighbours are searched by whole numbers."""
    edge_type = ("user", "buys", "item")
    graph = TinyGraph(
        {"item": 4, "user": 4}, {edge_type: [(u, i) for u in range(4) for i in range(4)]}
    )
    times = {"user": torch.tensor([-2, -1, 0, 1]), "item": torch.tensor([-0.5, 0.0, 0.5, -1.5])}
    views = _timed(graph, times, count, "in")
    assert not next(iter(views[0].times.values())).is_float
    plan = SamplingPlan(
        input_type="item",
        fanouts={edge_type: (-1,)},
        seed=1,
        expansion=ExpansionOptions(time_attr=TIME, time_window=window),
    )
    peers = InProcessPeers(views) if count > 1 else None
    view = as_worker_gets(views[0])
    sampler = NeighborSampler(view, plan, peers)
    request = SampleRequest(BatchTicket(0, 1, 0, 0), np.arange(4), np.arange(4))
    batch = to_hetero_data(sample_message(sampler, request), ["item", "user"], [edge_type])
    for seed, time in enumerate(times["item"].tolist()):
        reached = batch["user"].n_id[batch["user"].batch == seed].tolist()
        since = -9 if window is None else time - window
        assert reached == [u for u in range(4) if since <= times["user"][u] <= time]
    seed_times = SeedTimes(GraphReader(view, peers), plan)
    assert batch["item"].seed_time.tolist() == times["item"].tolist()
    late = seed_times.later("item", np.arange(4), np.array([-1, 0, 0, -2]))
    assert late.tolist() == [True, False, True, True], "-0.5 is after -1, and 0.5 after 0"
