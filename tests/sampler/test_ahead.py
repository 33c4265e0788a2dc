"""Batches whose rows are read later: the same bits, and no row is fetched twice."""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cache_cases import OWNER, cache_of, plan_of, read_fields
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.dataset.schema import EdgeDir
from gigl_loader.message import BatchTicket, Field
from gigl_loader.sampler.ahead import Filler, Patience, keep_structure
from gigl_loader.sampler.cache_tables import make_tables
from gigl_loader.sampler.later import Later
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.plan import SampleRequest
from gigl_loader.sampler.questions import RowsRequest
from gigl_loader.sampler.reader import GraphReader
from gigl_loader.sampler.row_cache import RowCache
from gigl_loader.testing import InProcessPeers, TinyGraph, as_worker_gets


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
    kinds = dict.fromkeys(("node_features", "node_labels", "edge_features", "node_attributes",
                           "edge_attributes"), True)  # fmt: skip
    cache = cache_of(make_tables(view, remote, share, kinds))
    plain = NeighborSampler(view, plan, InProcessPeers(views))
    peers = [InProcessPeers(views), InProcessPeers(views)]
    samplers = [NeighborSampler(view, plan, Later(one)) for one in peers]
    fillers = [Filler(view, one, cache, ready_s=0.0) for one in peers]
    random = np.random.default_rng(seed)
    requests = [
        SampleRequest(BatchTicket(0, 0, 0, batch), seeds := random.integers(0, 40, 4), seeds)
        for batch in range(start, 12)
    ]
    drawn: list[Any] = []
    numbers: list[int] = []
    waiting: list[Any] = []
    user = cache.join()
    for number, request in enumerate(requests):
        for one in requests[len(drawn) : number + window + 1]:
            drawn.append(keep_structure(samplers[len(drawn) % 2].sample(one), {0: view}))
            numbers.append(cache.add(user, drawn[-1].wanted()))
        batch = drawn[number]
        plans = cache.plan(numbers[number], batch.wanted())
        waiting.append((request, batch, plans, number % 2))
        if len(waiting) == 2 or number == len(requests) - 1:
            random.shuffle(waiting)  # filled in another order than planned in
            for request, batch, plans, worker in waiting:
                found = read_fields(fillers[worker].fill(batch, plans))
                expected = read_fields(list(plain.sample(request)))
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
    view, plan = as_worker_gets(views[0]), plan_of(graph, hetero=False)
    remote: dict[Any, int] = {OWNER: int((view.node_books[NODE].owner(np.arange(60)) != 0).sum())}
    kinds = dict.fromkeys(("node_features", "node_labels", "node_attributes"), True)
    cache = cache_of(make_tables(view, remote, 0.3, kinds))
    slow, fast = _Overtaken(views), InProcessPeers(views)
    sampler = NeighborSampler(view, plan, Later(fast))
    fillers = [Filler(view, one, cache, ready_s=0.0) for one in (slow, fast)]
    random, user = np.random.default_rng(0), cache.join()
    batches = []
    for number in range(20):
        seeds = random.integers(0, 60, 3)
        request = SampleRequest(BatchTicket(0, 0, 0, number), seeds, seeds)
        batches.append(keep_structure(sampler.sample(request), {0: view}))
        cache.add(user, batches[-1].wanted())
    fast.asked.clear()
    planned = hits = 0

    def fill(number: int) -> None:
        nonlocal planned, hits
        plans = cache.plan(number, batches[number].wanted())
        if number % 2 == 0:  # the others may need rows that these wait for, and ask, too
            planned += int((plans[OWNER] < 0).sum())
        hits += int((plans[OWNER] >= 0).sum())
        read_fields(fillers[number % 2].fill(batches[number], plans))

    def fill_all(left: Iterator[int]) -> None:
        for one in left:
            fill(one)

    for number in range(0, 20, 2):
        after = iter([number + 1])
        slow.before_answer = partial(fill_all, after)
        fill(number)
    asked = [request.ids.size for _, request in slow.asked
             if isinstance(request, RowsRequest) and request.kind == "node_features"]  # fmt: skip
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
    cache = cache_of(make_tables(view, remote, share, kinds))
    sampler = NeighborSampler(view, plan_of(graph, False), Later(peers))
    filler = Filler(view, peers, cache)
    drawn, user, missing = [], cache.join(), 0
    for batch in range(30):
        seeds = np.random.default_rng(batch).integers(0, 60, 4)
        fields = sampler.sample(SampleRequest(BatchTicket(0, 0, 0, batch), seeds, seeds))
        structure = keep_structure(fields, {0: view})
        drawn.append((structure, cache.add(user, structure.wanted())))
    for structure, number in drawn:
        plans = cache.plan(number, structure.wanted())
        missing += int((plans[OWNER] < 0).sum())
        read_fields(filler.fill(structure, plans))
    asked = [one for _, one in peers.asked if isinstance(one, RowsRequest)]
    assert missing == sum(one.ids.size for one in asked if one.kind == "node_features")


def _two_partitions() -> tuple[list, Any, RowCache]:
    views = [part.view() for part in TinyGraph.random(40, 100).partitions(2)]
    view = as_worker_gets(views[0])
    remote = {OWNER: int((view.node_books[NODE].owner(np.arange(40)) != 0).sum())}
    return views, view, cache_of(make_tables(view, remote, 0.5, {"node_features": True}))


def test_a_drawn_batch_outlives_the_next_one_of_its_sampler() -> None:
    views, view, _ = _two_partitions()
    store, scratch = GraphReader(view, Later(InProcessPeers(views))), np.arange(20)
    split = store.split(view.node_books[NODE], scratch)
    rows = store.fetch("node_features", NODE, scratch, split)
    batch = keep_structure([Field.of("n", scratch), Field("x", *rows)], {0: view})
    scratch[:] = -1
    assert read_fields(batch.fields[:1])["n"].tolist() == list(range(20))
    assert batch.sources == [None, (OWNER, 0)]
    (remote,) = batch.remote.values()
    owners = view.node_books[NODE].owner(np.arange(20))
    assert remote.ids.tolist() == np.flatnonzero(owners == 1).tolist() == remote.positions.tolist()
    assert batch.wanted()[OWNER] is remote.ids
    assert batch.nbytes == 2 * 20 * 8, "the ids that it has, and those that rows are asked by"
    everything_here = keep_structure([Field("x", *rows)], {0: view, 1: view})
    assert (everything_here.sources, everything_here.remote) == ([None], {})


def test_rows_of_one_matrix_for_several_sets_of_ids() -> None:
    """Both are under way at once; of the second the cache is told nothing."""
    views, view, cache = _two_partitions()
    store = GraphReader(view, Later(InProcessPeers(views)))
    several, fields = [np.arange(20), np.arange(5, 40)[::-1].copy()], []
    for number, ids in enumerate(several):
        split = store.split(view.node_books[NODE], ids)
        fields.append(Field(f"x{number}", *store.fetch("node_features", NODE, ids, split)))
    batch, filler = keep_structure(fields, {0: view}), Filler(view, InProcessPeers(views), cache)
    assert list(batch.remote) == [(OWNER, 0), (OWNER, 1)]
    user = cache.join()
    for _ in range(2):  # the second time with rows that the cache has
        number = cache.add(user, batch.wanted())
        found = read_fields(filler.fill(batch, cache.plan(number, batch.wanted())))
        for key, ids in zip(("x0", "x1"), several, strict=True):
            assert found[key][:, 0].tolist() == ids.tolist(), key
    assert filler.num_cached > 0


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
    views, view, cache = _two_partitions()
    peers = InProcessPeers(views)
    sampler = NeighborSampler(view, plan_of(TinyGraph.random(40, 100), False), Later(peers))
    seeds = np.arange(40)
    drawn = keep_structure(sampler.sample(SampleRequest(BatchTicket(0, 0, 0, 0), seeds, seeds)),
                           {0: view})  # fmt: skip
    user = cache.join()
    first, second = (cache.add(user, drawn.wanted()) for _ in range(2))
    plan = cache.plan(first, drawn.wanted())[OWNER]
    kept = np.flatnonzero(plan < -1)
    cache.abandon(OWNER, -2 - plan[kept], drawn.wanted()[OWNER][kept])
    filler = Filler(view, peers, cache, ready_s=600.0)
    found = read_fields(filler.fill(drawn, cache.plan(second, drawn.wanted())))
    assert found["x"][:, 0].tolist() == found["n_id"].tolist()
