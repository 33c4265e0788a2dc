"""The row cache: fetches what an offline optimum does, and changes no batch."""

import ctypes
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import PeerTimeoutError
from gigl_loader.memory import mutex
from gigl_loader.memory.segments import array_in, nbytes_of
from gigl_loader.message import BatchTicket
from gigl_loader.sampler.ahead import Filler, keep_structure
from gigl_loader.sampler.later import Later
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.sampler.questions import RowsRequest
from gigl_loader.sampler.row_cache import (
    CacheMemory,
    RowCache,
    Table,
    make_tables,
    segment_bytes,
)
from gigl_loader.testing import InProcessPeers, TinyGraph, as_worker_gets

OWNER = ("node", NODE)
NEVER = 1 << 60


def _cache(tables: dict) -> RowCache:
    cache = RowCache(CacheMemory(np.zeros(segment_bytes(tables), np.uint8), tables))
    cache.initialise()
    return cache


def _one_table(num_ids: int, capacity: int, references: int = 1 << 14) -> RowCache:
    matrices = {("node_features", NODE): ("float32", (1,))}
    return _cache({OWNER: Table(num_ids=num_ids, capacity=capacity, matrices=matrices,
                                references=references)})  # fmt: skip


def _optimum(batches: list[np.ndarray], capacity: int) -> int:
    """Rows that Belady's rule fetches over the whole trace, in plain Python."""
    after: dict[int, int] = {}
    uses = []
    for number in reversed(range(len(batches))):
        uses.append({i: after.get(i, NEVER) for i in batches[number].tolist()})
        after.update(dict.fromkeys(batches[number].tolist(), number))
    kept: dict[int, int] = {}
    fetched = 0
    for ids in reversed(uses):
        fetched += len(ids.keys() - kept.keys())
        kept = dict(sorted({**kept, **ids}.items(), key=lambda item: item[1])[:capacity])
    return fetched


@st.composite
def _traces(draw: st.DrawFn) -> tuple[int, list[np.ndarray], int]:
    num_ids, seed = draw(st.integers(1, 60)), draw(st.integers(0, 1000))
    random = np.random.default_rng(seed)
    batches = [
        random.permutation(np.unique((random.random(size) ** 2 * num_ids).astype(np.int64)))
        for size in draw(st.lists(st.integers(0, 25), min_size=1, max_size=40))
    ]
    return num_ids, batches, draw(st.integers(1, num_ids))


@given(trace=_traces())
def test_with_all_batches_known_the_fetches_are_the_optimum(trace: tuple) -> None:
    num_ids, batches, capacity = trace
    cache = _one_table(num_ids, capacity)
    for epoch in range(2):  # the second begins with what the first has left
        for number, ids in enumerate(batches):
            cache.add(epoch, number, {OWNER: ids}, kept=7)
        assert cache.demand(epoch) == (4 * sum(map(len, batches)), 7 * len(batches), len(batches))
        fetched, held = 0, 0
        for number, ids in enumerate(batches):
            plan = cache.plan(epoch, number, {OWNER: ids})[OWNER]
            fetched += int((plan < 0).sum())
            held = len(set((-2 - plan[plan < -1]).tolist()) | set(plan[plan >= 0].tolist()))
            assert held <= capacity
        optimum = _optimum(batches, capacity)
        assert fetched == optimum if epoch == 0 else fetched <= optimum


@given(trace=_traces(), window=st.integers(0, 6), seed=st.integers(0, 9))
def test_what_a_plan_calls_cached_was_stored(trace: tuple, window: int, seed: int) -> None:
    """With any window, batches that come late or twice, epochs broken off, and a short ring."""
    num_ids, batches, capacity = trace
    cache = _one_table(num_ids, capacity, references=60)
    random, rows = np.random.default_rng(seed), np.full(capacity, -1)
    for epoch in range(3):
        stop = int(random.integers(0, len(batches) + 1))
        added = 0
        for number in range(stop):
            order = list(range(added, min(len(batches), number + window + 1)))
            added = max(added, min(len(batches), number + window + 1))
            for one in random.permutation(np.array([*order, *order[:1]], int)).tolist():
                cache.add(epoch, one, {OWNER: batches[one]})
            plan = cache.plan(epoch, number, {OWNER: batches[number]}).get(OWNER)
            if plan is None:
                continue  # there was no room to plan it: all of it is fetched
            ids, cached = batches[number], plan >= 0
            assert np.array_equal(rows[plan[cached]], ids[cached])
            cache.store(
                OWNER, -2 - plan[plan < -1], ids[plan < -1],
                {("node_features", NODE): ids[plan < -1, None].astype(np.float32)},
                np.arange(int((plan < -1).sum())),
            )  # fmt: skip
            rows = cache.tables[OWNER].stored.copy()
            assert np.array_equal(cache.rows(OWNER, ("node_features", NODE))[rows >= 0, 0],
                                  rows[rows >= 0])  # fmt: skip


def _read(fields: list) -> dict[str, np.ndarray]:
    found = {}
    for field in fields:
        buffer = np.zeros(nbytes_of(field.dtype, field.shape) + 1, np.uint8)
        field.write(out := array_in(buffer, field.dtype, field.shape, 0))
        found[field.key] = out
    return found


def _plan(graph: TinyGraph, hetero: bool, **changes: object) -> SamplingPlan:
    fanouts = {name: (3, 2) for name in sorted(graph.edges)}
    return SamplingPlan(input_type="user" if hetero else NODE, fanouts=fanouts, seed=3,
                        with_edge=True, **changes)  # fmt: skip


@settings(max_examples=25)
@given(
    share=st.sampled_from([0.01, 0.1, 0.4, 1.0]),
    parts=st.integers(2, 3),
    hetero=st.booleans(),
    edge_dir=st.sampled_from(["in", "out"]),
    window=st.integers(0, 5),
    seed=st.integers(0, 100),
    start=st.integers(0, 5),
)
def test_batches_are_the_same_bits(
    share: float, parts: int, hetero: bool, edge_dir: str, window: int, seed: int, start: int
) -> None:
    """Over types, partitions, cache sizes, windows, two workers, and after a restart."""
    graph = TinyGraph.random(40, 200, heterogeneous=hetero, seed=seed)
    views = [part.view() for part in graph.partitions(parts, edge_dir=edge_dir, seed=seed)]
    view, plan = as_worker_gets(views[0]), _plan(graph, hetero)
    remote = {
        (kind, name): int((book.owner(np.arange(book.num_ids)) != 0).sum())
        for kind, books in (("node", view.node_books), ("edge", view.edge_books))
        for name, book in books.items()
    }
    kinds = dict.fromkeys(("node_features", "node_labels", "edge_features", "node_attributes",
                           "edge_attributes"), True)  # fmt: skip
    cache = _cache(make_tables(view, remote, share, kinds))
    plain = NeighborSampler(view, plan, InProcessPeers(views))
    peers = [InProcessPeers(views), InProcessPeers(views)]
    samplers = [NeighborSampler(view, plan, Later(one)) for one in peers]
    fillers = [Filler(view, one, cache, ready_s=0.0) for one in peers]
    random = np.random.default_rng(seed)
    requests = [
        SampleRequest(BatchTicket(0, 0, 0, batch), seeds := random.integers(0, 40, 4), seeds)
        for batch in range(start, 12)
    ]
    drawn, waiting = [], []
    for number, request in enumerate(requests):
        for one in requests[len(drawn) : number + window + 1]:
            drawn.append(keep_structure(samplers[len(drawn) % 2].sample(one), {0: view}))
            cache.add(0, len(drawn) - 1, drawn[-1].wanted())
        batch = drawn[number]
        waiting.append((request, batch, cache.plan(0, number, batch.wanted()), number % 2))
        if len(waiting) == 2 or number == len(requests) - 1:
            random.shuffle(waiting)  # filled in another order than planned in
            for request, batch, plans, worker in waiting:
                found = _read(fillers[worker].fill(batch, plans))
                expected = _read(list(plain.sample(request)))
                assert found.keys() == expected.keys()
                for key, values in expected.items():
                    assert found[key].dtype == values.dtype
                    assert found[key].tobytes() == values.tobytes(), key
            waiting = []
    if share == 1.0 and window == 5:
        asked = [request for one in peers for _, request in one.asked
                 if isinstance(request, RowsRequest) and request.kind == "node_labels"]  # fmt: skip
        most = 2 * sum(remote["node", name] for name in view.num_nodes)
        assert sum(request.ids.size for request in asked) <= most, "each row once, or twice"


class _Overtaken(InProcessPeers):
    """Answers when it is waited for the first time, after ``before_answer`` ran."""

    before_answer = staticmethod(lambda: None)

    def rows(self, partition: int, request: RowsRequest, out: np.ndarray):
        answer = super().rows(partition, request, out)
        return SimpleNamespace(wait=lambda: (self.before_answer(), answer.wait())[1])


def test_rows_are_fetched_once_where_a_later_batch_comes_sooner() -> None:
    """It takes the slots of rows that the earlier one uses for the last time."""
    graph = TinyGraph.random(60, 400, seed=1)
    views = [part.view() for part in graph.partitions(2, seed=1)]
    view, plan = as_worker_gets(views[0]), _plan(graph, hetero=False)
    remote = {("node", NODE): int((view.node_books[NODE].owner(np.arange(60)) != 0).sum())}
    kinds = dict.fromkeys(("node_features", "node_labels", "node_attributes"), True)
    cache = _cache(make_tables(view, remote, 0.3, kinds))
    slow, fast = _Overtaken(views), InProcessPeers(views)
    sampler = NeighborSampler(view, plan, Later(fast))
    fillers = [Filler(view, one, cache, ready_s=0.0) for one in (slow, fast)]
    random = np.random.default_rng(0)
    batches = []
    for number in range(20):
        seeds = random.integers(0, 60, 3)
        request = SampleRequest(BatchTicket(0, 0, 0, number), seeds, seeds)
        batches.append(keep_structure(sampler.sample(request), {0: view}))
        cache.add(0, number, batches[-1].wanted())
    fast.asked.clear()
    planned = hits = 0

    def fill(number: int) -> None:
        nonlocal planned, hits
        plans = cache.plan(0, number, batches[number].wanted())
        if number % 2 == 0:  # the others may need rows that these wait for, and ask, too
            planned += int((plans[OWNER] < 0).sum())
        hits += int((plans[OWNER] >= 0).sum())
        _read(fillers[number % 2].fill(batches[number], plans))

    for number in range(0, 20, 2):
        after = iter([number + 1])
        slow.before_answer = lambda after=after: [fill(one) for one in after]
        fill(number)
    asked = [request.ids.size for _, request in slow.asked
             if isinstance(request, RowsRequest) and request.kind == "node_features"]  # fmt: skip
    assert hits > 20, "there is something to lose"
    assert sum(asked) == planned


def test_a_holder_that_was_killed_leaves_an_empty_cache() -> None:
    cache, ids = _one_table(10, 4), np.arange(4)
    for number in range(2):
        cache.add(0, number, {OWNER: ids})
    cache.plan(0, 0, {OWNER: ids})
    memory = ctypes.c_void_p(cache._mutex.ctypes.data)  # threads that end are as processes are
    holder = threading.Thread(target=mutex._libc.pthread_mutex_lock, args=(memory,))
    holder.start()
    holder.join()
    assert cache.plan(0, 1, {OWNER: ids}) == {}, "nothing is known any more: all is fetched"
    cache.begin(0, 9)
    cache.allow(5, 3)
    assert cache.may_fill(0, 4), "and nothing waits for what is to come"
    cache.add(1, 0, {OWNER: ids})
    assert (cache.plan(1, 0, {OWNER: ids})[OWNER] < -1).all(), "the next epoch fills it again"


def test_a_batch_is_filled_when_those_after_it_are_known() -> None:
    cache, ids = _one_table(10, 4), np.arange(4)
    assert not cache.may_fill(7, 0)
    cache.begin(7, 3)
    cache.add(7, 1, {OWNER: ids})
    cache.allow(2, 1)
    assert not cache.may_fill(7, 1), "batch 0 is not known"
    cache.add(7, 0, {OWNER: ids})
    assert [cache.may_fill(7, batch) for batch in range(3)] == [True, False, False]
    cache.add(7, 2, {OWNER: ids})
    assert [cache.may_fill(7, batch) for batch in range(3)] == [True, True, False], "2: not allowed"
    cache.allow(3, 99)
    assert cache.may_fill(7, 2), "all that there are are known"
    assert not any(cache.may_fill(sequence, 0) for sequence in (6, 8))


def test_a_holder_that_is_stopped_is_not_waited_for_for_ever() -> None:
    memory = np.zeros(mutex.MUTEX_BYTES, np.uint8)
    mutex.make_mutex(memory)
    failed: list[PeerTimeoutError] = []

    def wait() -> None:
        with (
            pytest.raises(PeerTimeoutError, match="is stopped") as found,
            mutex.holding(memory, 0.01),
        ):
            pass
        failed.append(found.value)

    with mutex.holding(memory, 1.0) as was_abandoned:
        assert not was_abandoned
        other = threading.Thread(target=wait)
        other.start()
        other.join()
    assert len(failed) == 1
    with mutex.holding(memory, 1.0) as was_abandoned:
        assert not was_abandoned


def test_sizes() -> None:
    view = TinyGraph.random(1000, 100).partitions(2)[0].view()
    remote = {OWNER: 500, ("edge", EDGE): 50}
    kinds = {"node_features": True, "node_labels": True, "edge_features": False}
    share = make_tables(view, remote, 0.2, kinds)
    assert {owner: table.capacity for owner, table in share.items()} == {OWNER: 100}
    assert share[OWNER].row_bytes == 2 * 4 + 3 * 8, "features and labels"
    whole = make_tables(view, remote, 1 << 30, kinds)
    assert whole[OWNER].capacity == 500
    half = segment_bytes(make_tables(view, remote, 0.5, kinds))
    table = make_tables(view, remote, half, kinds)[OWNER]
    assert 245 <= table.capacity <= 250
    assert segment_bytes({OWNER: table}) <= half
