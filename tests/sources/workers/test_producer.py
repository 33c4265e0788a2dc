"""`DistSamplingProducer` over fake workers: any order of answers, no process, no clock."""

import contextlib
import gc
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.errors import PeerTimeoutError, SamplingError, UsageError, WorkerDiedError
from gigl_loader.sampler.row_cache.look_ahead import LookAhead
from gigl_loader.sources.sampled_input import epoch_order
from gigl_loader.sources.workers import schedule
from gigl_loader.testing import TinyGraph
from tests.sources.workers.fake_workers import drain, make_producer
from tests.support.conditions import SetConstants
from tests.support.draws import examples

GRAPH = TinyGraph.random(50, 300)
DATASET = GRAPH.dataset()


@st.composite
def setups(draw):
    length = draw(st.integers(0, 40))
    seeds = draw(st.lists(st.integers(0, 49), min_size=length, max_size=length))
    return torch.tensor(seeds, dtype=torch.int64), {
        "batch_size": draw(st.integers(1, 45)),
        "workers": draw(st.integers(1, 4)),
        "concurrency": draw(st.integers(1, 4)),
        "shuffle": draw(st.booleans()),
        "drop_last": draw(st.booleans()),
        "pool_seed": draw(st.integers(0, 1000)),
        "channel_size": draw(st.sampled_from([1, 2**17, 2**30])),
    }


def _expected(seeds: torch.Tensor, how: dict, epoch: int, seed: int = 3) -> list[list[int]]:
    """Return the positions in the input of every batch of an epoch."""
    positions = list(range(seeds.numel()))
    if how["shuffle"]:
        positions = epoch_order(seeds.numel(), seed, epoch).tolist()
    size = how["batch_size"]
    batches = [positions[i : i + size] for i in range(0, len(positions), size)]
    return batches[:-1] if how["drop_last"] and batches and len(batches[-1]) < size else batches


@settings(max_examples=examples(60))
@given(setup=setups(), in_order=st.booleans())
def test_every_epoch_has_every_seed_once(setup, in_order: bool) -> None:
    seeds, how = setup
    producer, _ = make_producer(DATASET, seeds, in_order=in_order, **how)
    for epoch in (0, 5):
        producer.start_epoch(epoch)
        expected = _expected(seeds, how, epoch)
        received = drain(producer)
        assert len(expected) == producer.num_batches == len(received)
        order = [one.ticket.batch for one in received]
        assert (order if in_order else sorted(order)) == list(range(len(expected)))
        for one in received:
            assert one.ticket.epoch == epoch
            positions = expected[one.ticket.batch]
            assert one.message["input_id"].tolist() == positions
            assert one.message["batch"].tolist() == seeds[positions].tolist()
        assert producer.next() is None, "the end stays the end"
    producer.shutdown()


class _FarAhead(LookAhead):
    """Lets all batches of an epoch be drawn at once."""

    def __init__(self) -> None: ...

    def begin(self, sequence: int, total: int) -> None: ...

    def limit(self, taken: int, room: int) -> int:
        return 1000


def test_slots_come_back_where_no_task_is_left_to_carry_them() -> None:
    producer, pool = make_producer(DATASET, torch.arange(50), batch_size=1, workers=1)
    producer._tasks.look_ahead = _FarAhead()
    producer.start_epoch(0)
    slots = []
    for _ in range(producer.num_batches):
        assert producer.next() is not None
        slots.append(pool.workers[0].num_slots)
    assert max(slots) <= 8
    producer.shutdown()


@settings(max_examples=examples(30))
@given(setup=setups(), breaks=st.lists(st.integers(0, 6), max_size=4), in_order=st.booleans())
def test_a_broken_off_epoch_leaves_no_trace(setup, breaks: list[int], in_order: bool) -> None:
    seeds, how = setup
    producer, pool = make_producer(DATASET, seeds, in_order=in_order, **how)
    for epoch, most in enumerate(breaks):
        producer.start_epoch(epoch)
        assert all(one.ticket.epoch == epoch for one in drain(producer, most))
        if epoch % 2:
            producer.cancel_epoch()
    before = sum(len(worker.sampled) for worker in pool.workers)
    producer.start_epoch(99)
    received = drain(producer)
    assert {one.ticket.epoch for one in received} <= {99}
    assert sorted(one.ticket.batch for one in received) == list(range(producer.num_batches))
    stale = sum(len(worker.sampled) for worker in pool.workers) - before - len(received)
    assert stale == 0, "what is left of a broken-off epoch is never sampled"
    while any(worker.tasks for worker in pool.workers):
        producer.pump(0.0)
    assert pool.under_way.count == 0, "every task is accounted for"
    producer.shutdown()


def test_what_is_left_of_a_broken_off_epoch_is_not_sampled() -> None:
    producer, pool = make_producer(DATASET, torch.arange(40), workers=1)
    producer.start_epoch(0)
    drain(producer, 1)
    assert len(pool.workers[0].tasks) == 2, "two batches are under way"
    producer.start_epoch(9)
    assert len(drain(producer)) == 10
    assert len([ticket for ticket in pool.workers[0].sampled if ticket.epoch == 0]) == 1
    producer.shutdown()


@settings(max_examples=examples(30))
@given(setup=setups())
def test_content_does_not_depend_on_workers_order_or_memory(setup) -> None:
    seeds, how = setup

    def epoch(**change):
        producer, _ = make_producer(DATASET, seeds, **{**how, **change})
        producer.start_epoch(2)
        found = [one.message for one in drain(producer)]
        producer.shutdown()
        return found

    first = epoch()
    for change in ({"workers": 1, "concurrency": 1}, {"workers": 3, "pool_seed": 5}):
        second = epoch(**change)
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert one.keys() == other.keys()
            assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_batches_that_are_kept_keep_their_memory() -> None:
    seeds = torch.arange(40)
    producer, _ = make_producer(DATASET, seeds, batch_size=3)
    kept, copies = [], []
    for epoch in range(3):
        producer.start_epoch(epoch)
        for position, received in enumerate(drain(producer)):
            if position % 2 == 0:
                kept.append(received.message)
                copies.append({name: value.clone() for name, value in received.message.items()})
    producer.shutdown()
    gc.collect()
    for message, copy in zip(kept, copies, strict=True):
        assert all(torch.equal(message[name], value) for name, value in copy.items())


def test_slots_of_dropped_batches_are_used_again() -> None:
    producer, pool = make_producer(DATASET, torch.arange(50), batch_size=1, workers=1)
    for epoch in range(5):
        producer.start_epoch(epoch)
        while producer.next() is not None:
            pass
    assert pool.workers[0].num_slots <= 6, "a slot for each batch under way, not for each batch"
    producer.shutdown()


def test_few_bytes_hold_batches_back_and_never_stop_them() -> None:
    producer, pool = make_producer(
        DATASET, torch.arange(40), batch_size=2, workers=4, channel_size=1
    )
    producer.start_epoch(0)
    producer.next()  # from here on the size of a message is known
    for _ in range(5):
        waiting = sum(len(worker.tasks) for worker in pool.workers)
        assert waiting + producer.queue_depth <= 8
        assert producer.next() is not None
    assert sum(len(worker.tasks) for worker in pool.workers) + producer.queue_depth <= 1
    assert len(drain(producer)) == 14
    producer.shutdown()


@pytest.mark.parametrize("together", [False, True])
def test_an_error_ends_the_epoch_and_the_next_one_is_whole(together: bool) -> None:
    producer, pool = make_producer(DATASET, torch.arange(40), batch_size=2, workers=3)
    pool.fails, pool.together = (lambda ticket: ticket.epoch == 1 and ticket.batch == 4), together
    for epoch in range(4):
        producer.start_epoch(epoch)
        if epoch == 1:
            with pytest.raises(
                SamplingError, match=r"worker \d .pid 100\d., epoch 1, batch 4"
            ) as at:
                drain(producer)
            assert "ArithmeticError: no batch 4" in str(at.value)
            assert "Traceback" in at.value.remote_traceback
        else:
            assert len(drain(producer)) == 20
    assert pool.under_way.tickets == [[], [], []], "every task is accounted for"
    producer.shutdown()


def test_an_error_of_a_broken_off_epoch_is_no_error_of_the_next() -> None:
    producer, pool = make_producer(
        DATASET, torch.arange(40), batch_size=2, workers=1, concurrency=4
    )
    pool.fails, pool.together = (lambda ticket: ticket.epoch == 0), True
    producer.start_epoch(0)
    for worker in pool.workers:
        while worker.tasks:
            worker.work(0, pool.fails)  # the answers are on their way when the epoch is broken off
    producer.start_epoch(1)
    assert len(drain(producer)) == 20
    producer.shutdown()


def test_some_batches_only_and_in_the_order_asked_for() -> None:
    producer, _ = make_producer(DATASET, torch.arange(40), batch_size=4)
    producer.start_epoch(0, [7, 2, 2, 9])
    assert [one.ticket.batch for one in drain(producer)] == [7, 2, 2, 9]
    producer.start_epoch(0, [])
    assert drain(producer) == []
    producer.shutdown()


def test_two_consumers_share_the_workers_and_nothing_else() -> None:
    producer, _ = make_producer(DATASET, torch.arange(40), batch_size=4, shuffle=True)
    producer.add_stream(1, 3)
    producer.start_epoch(0, stream=0)
    producer.start_epoch(7, [1, 3, 5], [11, 13, 15], stream=1)
    first = producer.next(stream=0)
    second = [one for _ in range(4) if (one := producer.next(stream=1))]
    assert first is not None
    assert (first.ticket.epoch, first.ticket.batch) == (0, 0)
    assert [one.ticket.batch for one in second] == [1, 3, 5], "and then the end"
    assert [one.ticket.position for one in second] == [11, 13, 15]
    assert second[0].message["input_id"].tolist() == epoch_order(40, 3, 7)[4:8].tolist()
    producer.remove_stream(1)
    assert len(drain(producer)) == 9
    producer.shutdown()


def _nothing(timeout_s: float) -> list[object]:
    return []


def test_it_is_ready_when_the_next_batch_or_the_end_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer, pool = make_producer(DATASET, torch.arange(4), batch_size=4)
    producer.start_epoch(0)
    with monkeypatch.context() as patch:
        patch.setattr(pool, "poll", _nothing)
        assert not producer.ready()
    assert producer.ready(), "it takes what came, without a call of next"
    monkeypatch.setattr(pool, "poll", _nothing)
    received = producer.next()
    assert received is not None
    assert received.ticket.batch == 0
    assert producer.ready()
    assert producer.next() is None
    producer.shutdown()


def test_no_progress_is_an_error_that_names_the_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    producer, pool = make_producer(DATASET, torch.arange(8), workers=2, timeout=0.05)
    producer.start_epoch(0)
    monkeypatch.setattr(pool, "poll", _nothing)
    with pytest.raises(
        PeerTimeoutError, match=r"batch 0 of epoch 0 from workers \[0, 1\].*timeout"
    ):
        producer.next()
    assert pool.deaths == 2, "it was tried once with other workers"
    producer.shutdown()


class _Slot:
    """What pinning a slot returns."""

    def __init__(self, pinned: list["_Slot"]) -> None:
        self.released = 0
        pinned.append(self)

    def release(self) -> None:
        self.released += 1


@pytest.fixture
def hasty(constants: SetConstants) -> None:
    """Replace workers without a pause."""
    constants(schedule, _LONGEST_PAUSE_S=0.0)


@pytest.mark.usefixtures("hasty")
@settings(max_examples=examples(25))
@given(setup=setups(), in_order=st.booleans(), lot=st.integers(0, 10_000).map(random.Random))
def test_lost_workers_cost_no_batch(setup, in_order: bool, lot) -> None:
    """Same batches, same bits, in the same order, whichever workers die when, but not of a batch.

    The memory of those that died is released once, also where its batches are still held.
    """
    seeds, how = setup
    quiet, _ = make_producer(DATASET, seeds, in_order=in_order, **how)
    pinned: list[_Slot] = []
    producer, pool = make_producer(
        DATASET,
        seeds,
        in_order=in_order,
        max_restarts=1000,
        register=lambda address, nbytes: _Slot(pinned),
        **how,
    )
    killers: set[tuple[int, int]] = set()

    def dies(ticket) -> bool:
        content = (ticket.epoch, ticket.batch)
        suspected = pool.under_way.losses([ticket])  # twice in a row is an error
        if suspected or content in killers or lot.random() > 0.25:
            return False
        killers.add(content)
        return True

    pool.kills_of = dies
    for epoch in range(2):
        for one in (quiet, producer):
            one.start_epoch(epoch)
        _check_same(drain(quiet), drain(producer), in_order)
    assert pool.under_way.count == 0, "every task is accounted for"
    assert producer.num_restarts == pool.deaths
    for one in (quiet, producer):
        one.shutdown()
    assert [slot.released for slot in pinned] == [1] * len(pinned)


def _check_same(expected: list, found: list, in_order: bool) -> None:
    if not in_order:
        for some in (expected, found):
            some.sort(key=lambda received: received.ticket.batch)
    assert [one.ticket.batch for one in found] == [one.ticket.batch for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.message.keys() == other.message.keys()
        assert all(torch.equal(v, other.message[name]) for name, v in one.message.items())


@pytest.mark.usefixtures("hasty")
def test_a_batch_that_kills_two_workers_is_not_tried_again() -> None:
    """Others that were under way with it when it did are sampled."""
    producer, pool = make_producer(DATASET, torch.arange(40), workers=2, shuffle=True)
    pool.kills_of = lambda ticket: ticket.batch == 5
    producer.start_epoch(0)
    assert len(drain(producer, 5)) == 5
    expected = epoch_order(40, 3, 0)[20:24].tolist()
    with pytest.raises(
        WorkerDiedError,
        match=r"SIGSEGV.*batch 5 of epoch 0 .* two workers .* 4 seeds are \[" + str(expected)[1:-1],
    ):
        drain(producer)
    assert pool.deaths == 3, "at first others were under way with it, then it was alone"
    with pytest.raises(WorkerDiedError, match="batch 5"):
        producer.start_epoch(1)
    producer.shutdown()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("most", [0, 2])
def test_as_many_are_replaced_as_may_be_in_each_epoch(most: int, caplog) -> None:
    producer, pool = make_producer(DATASET, torch.arange(40), max_restarts=most, concurrency=1)
    for epoch in range(2):
        killers = set(range(most))
        pool.kills_of = lambda ticket, left=killers: (
            ticket.batch in left and not left.remove(ticket.batch)
        )
        producer.start_epoch(epoch)
        assert len(drain(producer)) == 10
    told = [text for text in caplog.messages if "it is replaced" in text]
    assert producer.num_restarts == 2 * most == len(told)
    assert all("pid 100" in text and "SIGSEGV" in text for text in told)
    producer.start_epoch(2)
    for _ in range(most + 1):
        pool.kill(0)
        with contextlib.suppress(WorkerDiedError):
            producer.pump(10.0)
            producer.pump(10.0)
    used_up = "are used up" if most else "batch_size$"
    with pytest.raises(WorkerDiedError, match=rf"worker 0 .pid 1000. died: SIGKILL.*{used_up}"):
        drain(producer)
    producer.shutdown()


def test_use_after_shutdown() -> None:
    producer, pool = make_producer(DATASET, torch.arange(8))
    producer.shutdown()
    producer.shutdown()
    assert pool.stopped == 1
    producer.cancel_epoch()
    for use in (producer.next, lambda: producer.start_epoch(0)):
        with pytest.raises(UsageError, match="shut down"):
            use()
