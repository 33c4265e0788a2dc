"""Batches whose rows are read later: the same bits, and no row is fetched twice."""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.batch.message import BatchTicket, Field
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.dataset.schema import EdgeDir
from gigl_loader.errors import PeerError
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.plan import RowsRequest, SampleRequest
from gigl_loader.sampler.row_cache.cache import RowCache
from gigl_loader.sampler.row_cache.look_ahead import DrawnBatch, RemoteIds, copy_drawn
from gigl_loader.sampler.row_cache.pipeline import Patience, Pipeline, RemoteRows, RowCounts
from gigl_loader.sampler.row_cache.tables import make_tables
from gigl_loader.sampler.rows.reader import GraphReader, Scratch
from gigl_loader.sampler.rows.row_exchange import LaterPeers, gather_rows
from gigl_loader.testing import InProcessPeers, TinyGraph, as_worker_gets
from tests.sampler.row_cache.cache_cases import OWNER, cache_of, one_table, plan_of, read_fields
from tests.support.draws import examples


class _PlannedBefore:
    """The cache as a worker has it that others overtake between its plan and its questions."""

    def __init__(self, cache: RowCache) -> None:
        self._cache = cache
        self.plans: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def plan(self, number: int, wanted: dict) -> dict:
        return self.plans.pop(number) if number in self.plans else self._cache.plan(number, wanted)


@settings(max_examples=examples(25))
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
    share: float, parts: int, hetero: bool, edge_dir: EdgeDir, window: int, seed: int, start: int
) -> None:
    """Over types, partitions, cache sizes, windows, two workers, and after a restart."""
    graph = TinyGraph.random(40, 200, heterogeneous=hetero, seed=seed)
    views = [part.view() for part in graph.partitions(parts, edge_dir=edge_dir, seed=seed)]
    view, plan = as_worker_gets(views[0]), plan_of(graph, hetero)
    remote = {
        (kind, name): int((book.owner(np.arange(book.num_ids)) != 0).sum())
        for kind, books in (("node", view.node_books), ("edge", view.edge_books))
        for name, book in books.items()
    }
    kinds = dict.fromkeys(
        ("node_features", "node_labels", "edge_features", "node_attributes", "edge_attributes"),
        True,
    )
    cache: Any = _PlannedBefore(cache_of(make_tables(view, remote, share, kinds)))
    plain, user = NeighborSampler(view, plan, InProcessPeers(views)), cache.join()
    peers = [InProcessPeers(views), InProcessPeers(views)]
    samplers = [NeighborSampler(view, plan, LaterPeers(one)) for one in peers]
    pipelines = [Pipeline(one, Scratch(), cache, user, view=view, ready_s=0.0) for one in peers]
    random = np.random.default_rng(seed)
    requests = [
        SampleRequest(BatchTicket(0, 0, 0, batch), seeds := random.integers(0, 40, 4), seeds)
        for batch in range(start, 12)
    ]
    drawn: list[Any] = []
    numbers: list[int] = []
    waiting: list[Any] = []
    for number, request in enumerate(requests):
        for one in requests[len(drawn) : number + window + 1]:
            drawn.append(copy_drawn(samplers[len(drawn) % 2].sample(one), {0: view}))
            numbers.append(pipelines[0].add(drawn[-1]))
        worker, known = pipelines[number % 2], numbers[number]
        if random.random() < 0.5:
            filling = worker.ask(drawn[number], known)
            ask = partial(lambda filling: filling, filling)
        else:
            cache.plans[known] = cache.plan(known, drawn[number].wanted())
            ask = partial(worker.ask, drawn[number], known)
        waiting.append((request, worker, ask))
        if len(waiting) == 2 or number == len(requests) - 1:
            random.shuffle(waiting)  # filled in another order than planned in
            for request, worker, ask in waiting:
                found = worker.complete(ask(), read_fields)
                expected = read_fields(list(plain.sample(request)))
                assert found.keys() == expected.keys()
                for key, values in expected.items():
                    assert found[key].dtype == values.dtype
                    assert found[key].tobytes() == values.tobytes(), key
            waiting = []
    if share == 1.0 and window == 5:
        asked = [
            request
            for one in peers
            for _, request in one.asked
            if isinstance(request, RowsRequest) and request.kind == "node_labels"
        ]
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
    view, plan = as_worker_gets(views[0]), plan_of(graph, hetero=False)
    remote: dict[Any, int] = {OWNER: int((view.node_books[NODE].owner(np.arange(60)) != 0).sum())}
    kinds = dict.fromkeys(("node_features", "node_labels", "node_attributes"), True)
    cache: Any = _PlannedBefore(cache_of(make_tables(view, remote, 0.3, kinds)))
    slow, fast = _Overtaken(views), InProcessPeers(views)
    sampler = NeighborSampler(view, plan, LaterPeers(fast))
    random, user = np.random.default_rng(0), cache.join()
    pipelines = [
        Pipeline(one, Scratch(), cache, user, view=view, ready_s=0.0) for one in (slow, fast)
    ]
    batches = []
    for number in range(20):
        seeds = random.integers(0, 60, 3)
        request = SampleRequest(BatchTicket(0, 0, 0, number), seeds, seeds)
        batches.append(copy_drawn(sampler.sample(request), {0: view}))
        cache.add(user, batches[-1].wanted())
    fast.asked.clear()
    planned = hits = 0

    def fill(number: int) -> None:
        nonlocal planned, hits
        plans = cache.plans[number] = cache.plan(number, batches[number].wanted())
        if number % 2 == 0:  # the others may need rows that these wait for, and ask, too
            planned += int((plans[OWNER] < 0).sum())
        hits += int((plans[OWNER] >= 0).sum())
        pipeline = pipelines[number % 2]
        pipeline.complete(pipeline.ask(batches[number], number), read_fields)

    def fill_all(left: Iterator[int]) -> None:
        for one in left:
            fill(one)

    for number in range(0, 20, 2):
        after = iter([number + 1])
        slow.before_answer = partial(fill_all, after)
        fill(number)
    asked = [
        request.ids.size
        for _, request in slow.asked
        if isinstance(request, RowsRequest) and request.kind == "node_features"
    ]
    assert hits > 20, "there is something to lose"
    assert sum(asked) == planned


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_what_is_asked_for_is_what_the_plans_miss(share: float) -> None:
    """Though rows that come with a batch take the slots of rows that it has."""
    graph = TinyGraph.random(60, 400, seed=1)
    views = [part.view() for part in graph.partitions(2, seed=1)]
    view, peers = as_worker_gets(views[0]), InProcessPeers(views)
    remote = {OWNER: int((view.node_books[NODE].owner(np.arange(60)) != 0).sum())}
    kinds = dict.fromkeys(("node_features", "node_labels", "node_attributes"), True)
    cache: Any = _PlannedBefore(cache_of(make_tables(view, remote, share, kinds)))
    sampler = NeighborSampler(view, plan_of(graph, False), LaterPeers(peers))
    pipeline = Pipeline(peers, Scratch(), cache, cache.join(), view=view)
    drawn, missing = [], 0
    for batch in range(30):
        seeds = np.random.default_rng(batch).integers(0, 60, 4)
        fields = sampler.sample(SampleRequest(BatchTicket(0, 0, 0, batch), seeds, seeds))
        structure = copy_drawn(fields, {0: view})
        drawn.append((structure, pipeline.add(structure)))
    for structure, number in drawn:
        plans = cache.plans[number] = cache.plan(number, structure.wanted())
        missing += int((plans[OWNER] < 0).sum())
        pipeline.complete(pipeline.ask(structure, number), read_fields)
    asked = [one for _, one in peers.asked if isinstance(one, RowsRequest)]
    assert missing == sum(one.ids.size for one in asked if one.kind == "node_features")


def _two_partitions(*kinds: str) -> tuple[list, Any, RowCache]:
    views = [part.view() for part in TinyGraph.random(40, 100).partitions(2)]
    view = as_worker_gets(views[0])
    remote = {OWNER: int((view.node_books[NODE].owner(np.arange(40)) != 0).sum())}
    return (
        views,
        view,
        cache_of(make_tables(view, remote, 0.5, dict.fromkeys(("node_features", *kinds), True))),
    )


def test_a_drawn_batch_outlives_the_next_one_of_its_sampler() -> None:
    views, view, _ = _two_partitions()
    store, scratch = GraphReader(view, LaterPeers(InProcessPeers(views))), np.arange(20)
    split = store.split(view.node_books[NODE], scratch)
    rows = store.fetch("node_features", NODE, scratch, split)
    batch = copy_drawn([Field.of("n", scratch), Field("x", *rows)], {0: view})
    scratch[:] = -1
    assert read_fields(batch.fields[:1])["n"].tolist() == list(range(20))
    assert batch.sources == [None, (OWNER, 0)]
    (remote,) = batch.remote.values()
    owners = view.node_books[NODE].owner(np.arange(20))
    assert remote.ids.tolist() == np.flatnonzero(owners == 1).tolist() == remote.positions.tolist()
    assert batch.wanted()[OWNER] is remote.ids
    assert batch.nbytes == 2 * 20 * 8, "the ids that it has, and those that rows are asked by"
    everything_here = copy_drawn([Field("x", *rows)], {0: view, 1: view})
    assert (everything_here.sources, everything_here.remote) == ([None], {})


def test_rows_of_one_matrix_for_several_sets_of_ids() -> None:
    """Both are under way at once; of the second the cache is told nothing."""
    views, view, cache = _two_partitions()
    store = GraphReader(view, LaterPeers(InProcessPeers(views)))
    several, fields = [np.arange(20), np.arange(5, 40)[::-1].copy()], []
    for number, ids in enumerate(several):
        split = store.split(view.node_books[NODE], ids)
        fields.append(Field(f"x{number}", *store.fetch("node_features", NODE, ids, split)))
    batch = copy_drawn(fields, {0: view})
    pipeline = Pipeline(InProcessPeers(views), Scratch(), cache, cache.join(), view=view)
    assert list(batch.remote) == [(OWNER, 0), (OWNER, 1)]
    for _ in range(2):  # the second time with rows that the cache has
        filling = pipeline.ask(batch, pipeline.add(batch))
        found = pipeline.complete(filling, read_fields)
        for key, ids in zip(("x0", "x1"), several, strict=True):
            assert found[key][:, 0].tolist() == ids.tolist(), key
    assert filling.num_cached > 0


def test_patience_ends_with_rows_that_did_not_come_and_returns_with_some_that_do() -> None:
    answers = iter([None, True, False, None, False, True, True])
    patience, waited = Patience(8.0), []

    def await_others(timeout_s: float, meanwhile: object) -> bool | None:
        waited.append(timeout_s)
        return next(answers)

    rows: Any = SimpleNamespace(await_others=await_others)
    for _ in range(7):
        patience.wait(rows)
    assert waited == pytest.approx([8, 8, 8, 0.4, 0.4, 0.4, 8])


def test_rows_that_are_given_up_are_asked_for_at_once() -> None:
    """By who was to fetch them: nobody waits out the time that is meant for those who died."""
    views, view, cache = _two_partitions("node_labels", "node_attributes")
    peers = InProcessPeers(views)
    sampler = NeighborSampler(view, plan_of(TinyGraph.random(40, 100), False), LaterPeers(peers))
    seeds = np.arange(40)
    drawn = copy_drawn(
        sampler.sample(SampleRequest(BatchTicket(0, 0, 0, 0), seeds, seeds)), {0: view}
    )
    user = cache.join()
    first, second, third = (cache.add(user, drawn.wanted()) for _ in range(3))
    plan = cache.plan(first, drawn.wanted())[OWNER]
    kept = np.flatnonzero(plan < -1)
    cache.abandon(OWNER, -2 - plan[kept], drawn.wanted()[OWNER][kept])
    pipeline = Pipeline(peers, Scratch(), cache, user, view=view, ready_s=600.0)
    assert (cache.plan(second, drawn.wanted())[OWNER] >= 0).any(), "there is something to wait for"
    found = pipeline.complete(pipeline.ask(drawn, third), read_fields)
    assert found["x"][:, 0].tolist() == found["n_id"].tolist()


class _Lost(InProcessPeers):
    """Answers until it is gone: then it refuses questions, or does not answer them."""

    refuses = breaks = False

    def rows(self, partition: int, request: RowsRequest, out: np.ndarray):
        if self.refuses:
            raise PeerError("no connection")
        answer = super().rows(partition, request, out)
        return SimpleNamespace(wait=partial(self._wait, answer), has_come=True)

    def _wait(self, answer: Any) -> Any:
        if self.breaks:
            raise PeerError("it is gone")
        return answer.wait()


@pytest.mark.parametrize("how", ["refuses", "breaks", "write"])
def test_rows_of_a_batch_that_fails_are_awaited_by_nobody(how: str) -> None:
    """Neither where a question fails, nor an answer, nor what writes the batch."""
    views, view, cache = _two_partitions("node_labels", "node_attributes")
    lost, peers = _Lost(views), InProcessPeers(views)
    sampler = NeighborSampler(view, plan_of(TinyGraph.random(40, 100), False), LaterPeers(peers))
    seeds = np.arange(40)
    drawn = copy_drawn(
        sampler.sample(SampleRequest(BatchTicket(0, 0, 0, 0), seeds, seeds)), {0: view}
    )
    # alone: what the batch is to store is stored last
    first = Pipeline(lost, Scratch(), cache, cache.join(), view=view, is_only=True)
    second = Pipeline(peers, Scratch(), cache, 0, view=view, ready_s=600.0)
    numbers = [first.add(drawn), second.add(drawn)]
    lost.refuses, lost.breaks = how == "refuses", how == "breaks"

    def write(fields: list[Field]) -> None:
        raise OSError("no memory")

    with pytest.raises((PeerError, OSError), match=r"no connection|it is gone|no memory"):
        first.complete(first.ask(drawn, numbers[0]), write)
    filling = second.ask(drawn, numbers[1])
    assert filling.num_cached > 0, "there is something to wait for"
    found = second.complete(filling, read_fields)
    assert filling.num_cached == 0
    assert found["x"][:, 0].tolist() == found["n_id"].tolist()


def _rows_of(ids: np.ndarray, reader: GraphReader) -> list[Field]:
    split = reader.split(reader.view.node_books[NODE], ids)
    return [
        Field(kind, *reader.fetch(kind, NODE, ids, split))
        for kind in ("node_features", "node_labels")
    ]


def _drawn(ids: np.ndarray, view: Any, peers: InProcessPeers) -> DrawnBatch:
    return copy_drawn(_rows_of(ids, GraphReader(view, LaterPeers(peers))), {0: view})


def _halves_elsewhere(view: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return two halves of the other partition's nodes; the rows of one fill the cache."""
    remote = np.flatnonzero(view.node_books[NODE].owner(np.arange(40)) == 1)
    return remote[: remote.size // 2], remote[remote.size // 2 :]


def test_rows_of_a_batch_under_way_serve_the_next_one_though_its_slots_went_to_others() -> None:
    views, view, cache = _two_partitions("node_labels")
    peers, (mine, others) = InProcessPeers(views), _halves_elsewhere(view)
    pipeline = Pipeline(peers, Scratch(), cache, cache.join(), view=view, ready_s=600.0)
    batch, other = _drawn(mine, view, peers), _drawn(others, view, peers)
    numbers = [pipeline.add(batch) for _ in range(2)]
    first = pipeline.ask(batch, numbers[0])
    second = pipeline.ask(batch, numbers[1], [first])
    taking = Pipeline(peers, Scratch(), cache, cache.join(), view=view)
    known = [taking.add(other) for _ in range(2)]  # it comes again: its rows are kept
    taking.complete(taking.ask(other, known[0]), read_fields)
    pipeline.complete(first, read_fields)
    asked = len(peers.asked)
    found = pipeline.complete(second, read_fields)
    assert len(peers.asked) == asked, "no row is asked for again"
    assert second.num_cached == 2 * mine.size
    assert found["node_features"][:, 0].tolist() == mine.tolist()


def test_rows_whose_slots_go_to_others_while_a_batch_is_written_are_fetched_again() -> None:
    """Features are written, then another loader takes the slots, then labels are written."""
    views, view, cache = _two_partitions("node_labels")
    peers, (mine, others) = InProcessPeers(views), _halves_elsewhere(view)
    pipeline = Pipeline(peers, Scratch(), cache, cache.join(), view=view, is_only=True)
    batch, other = _drawn(mine, view, peers), _drawn(others, view, peers)
    numbers = [pipeline.add(batch) for _ in range(2)]
    pipeline.complete(pipeline.ask(batch, numbers[0]), read_fields)
    filling = pipeline.ask(batch, numbers[1])
    assert filling.num_cached == 2 * mine.size, "all that it needs is here"

    def write(fields: list[Field]) -> dict[str, np.ndarray]:
        found = read_fields(fields[:1])
        assert filling.num_cached == 2 * mine.size
        taking = Pipeline(peers, Scratch(), cache, user := cache.join(), view=view)
        known = [cache.add(user, other.wanted()) for _ in range(2)]  # it comes again: rows are kept
        taking.complete(taking.ask(other, known[0]), read_fields)
        found |= read_fields(fields[1:])
        assert filling.num_cached < 2 * mine.size, "slots went to others"
        return found

    found = pipeline.complete(filling, write)
    expected = read_fields(_rows_of(mine, GraphReader(view, InProcessPeers(views))))
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert np.array_equal(found[key], values), key


def test_without_a_cache_all_rows_are_fetched_and_nothing_is_told() -> None:
    views, view, _ = _two_partitions()
    sampler = NeighborSampler(
        view, plan_of(TinyGraph.random(40, 100), False), LaterPeers(InProcessPeers(views))
    )
    seeds = np.arange(40)
    drawn = copy_drawn(
        sampler.sample(SampleRequest(BatchTicket(0, 0, 0, 0), seeds, seeds)), {0: view}
    )
    pipeline = Pipeline(InProcessPeers(views), Scratch(), view=view)
    number = pipeline.add(drawn)
    pipeline.forget(number)
    filling = pipeline.ask(drawn, number)
    found = pipeline.complete(filling, read_fields)
    assert found["x"][:, 0].tolist() == found["n_id"].tolist()
    assert (filling.num_cached, set(filling.counts.by_owner)) == (0, {1})
    widths = sum(
        one.ids.size * np.prod(shape, dtype=int) * np.dtype(dtype).itemsize
        for one in drawn.remote.values()
        for dtype, shape in one.matrices.values()
    )
    assert filling.counts.nbytes == widths


def test_rows_that_lost_their_slots_come_from_the_batch_that_fetched_them() -> None:
    """A slot is planned for another row before its own has come, as two batches are under way."""
    cache = one_table(10, 2)
    matrix = ("node_features", OWNER[1])
    user, room, counts = cache.join(), Scratch(), RowCounts()
    several = [np.array([4, 7]), np.array([7, 4, 1]), np.array([1, 2]), np.array([1, 2])]
    numbers = [cache.add(user, {OWNER: ids}) for ids in several]
    peers: Any = SimpleNamespace(rows=_own_ids)

    def asked(at: int, earlier: list[RemoteRows]) -> RemoteRows:
        ids = several[at]
        plan = cache.plan(numbers[at], {OWNER: ids})[OWNER]
        remote = RemoteIds({0: np.arange(ids.size)}, ids, {matrix: ("float32", (1,))})
        owner: Any = (OWNER, at)
        return RemoteRows(owner, remote, plan, cache, peers, room, counts, earlier, True)

    first = asked(0, [])
    second = asked(1, [first])
    third = asked(2, [first, second])
    for rows, ids in zip((first, second, third), several, strict=False):
        rows.wait()
        rows.store()
        assert rows.await_others(0.0) is None, "none is fetched again"
        out = np.zeros((ids.size, 1), np.float32)
        gather_rows(rows.parts(matrix), out)
        rows.repair(matrix, out)
        assert out[:, 0].tolist() == ids.tolist()


def _own_ids(partition: int, request: Any, out: np.ndarray) -> Any:
    out[:, 0] = request.ids
    return SimpleNamespace(wait=lambda: SimpleNamespace(rows=out), has_come=True)
