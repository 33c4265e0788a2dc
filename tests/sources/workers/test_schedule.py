"""The pure part: which batch is started next, which is handed out next."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gigl_loader.batch.message import Attempt, BatchTicket
from gigl_loader.errors import SamplingError
from gigl_loader.sources.sampled_input import num_batches
from gigl_loader.sources.workers.schedule import BatchStream, FairQueue
from tests.support.draws import examples


@given(seeds=st.integers(0, 200), size=st.integers(1, 50), drop_last=st.booleans())
def test_num_batches(seeds: int, size: int, drop_last: bool) -> None:
    sizes = [len(range(seeds)[i : i + size]) for i in range(0, seeds, size)]
    assert num_batches(seeds, size, drop_last) == len(
        [n for n in sizes if n == size or not drop_last]
    )


class Streams(RuleBasedStateMachine):
    """Any interleaving of what a stream can be told, against plain lists of turns."""

    @initialize(limit=st.integers(1, 4), in_order=st.booleans())
    def make(self, limit: int, in_order: bool) -> None:
        self.stream: BatchStream[int] = BatchStream(3, limit, in_order)
        self.serial = 0
        self.stale: list[BatchTicket] = []
        self.under_way: list[BatchTicket] = []
        self._forget([])

    def _forget(self, batches: list[int]) -> None:
        self.stale += self.under_way
        self.batches, self.to_start = batches, list(range(len(batches)))
        self.positions = list(range(len(batches)))
        self.under_way, self.arrived, self.taken = [], list[int](), list[int]()

    @rule(batches=st.lists(st.integers(0, 9), max_size=6), epoch=st.integers(0, 3))
    def start(self, batches: list[int], epoch: int) -> None:
        self.serial += 1
        positions = list(range(7, 7 + 3 * len(batches), 3))
        started = self.stream.start(Attempt(epoch, self.serial), batches, positions)
        assert started.serial == self.serial
        assert not self.stream.is_broken_off
        self._forget(batches)
        self.positions = positions

    @rule(batches=st.lists(st.integers(0, 9), max_size=6), epoch=st.integers(0, 3))
    def start_without_a_count(self, batches: list[int], epoch: int) -> None:
        self.serial += 1
        assert self.stream.start(epoch, batches) == Attempt(epoch, self.serial)
        self._forget(batches)

    @rule()
    def cancel(self) -> None:
        self.stream.cancel()
        assert self.stream.is_broken_off
        self._forget([])

    @precondition(lambda self: self.serial > 0)
    @rule()
    def fail(self) -> None:
        self.stream.fail(SamplingError("worker 0", "no luck"))
        for _ in range(2):
            assert self.stream.can_take
            with pytest.raises(SamplingError, match="worker 0 failed: no luck"):
                self.stream.take()
        self._forget([])
        self.stream.cancel()

    @rule()
    def next_ticket(self) -> None:
        ticket = self.stream.next_ticket()
        waited_for = self.stream.in_order and self.to_start[:1] == [len(self.taken)]
        has_room = len(self.under_way) + len(self.arrived) < self.stream.limit
        if not self.to_start or not (has_room or waited_for):
            assert ticket is None
        else:
            assert ticket is not None
            assert (ticket.stream, ticket.attempt) == (3, self.stream.attempt)
            assert ticket.turn == self.to_start.pop(0)
            assert ticket.batch == self.batches[ticket.turn]
            assert ticket.position == self.positions[ticket.turn]
            self.under_way.append(ticket)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(ticket)
        assert self.stream.arrived(ticket, ticket.turn)
        self.arrived.append(ticket.turn)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def arrive_late(self, data: st.DataObject) -> None:
        waiting = self.stream.waiting
        assert not self.stream.arrived(data.draw(st.sampled_from(self.stale)), 99)
        assert self.stream.waiting == waiting

    @rule()
    def take(self) -> None:
        could = self.stream.can_take
        item = self.stream.take()
        assert (item is not None) == could
        if item is not None:
            assert item == (len(self.taken) if self.stream.in_order else self.arrived[0])
            self.arrived.remove(item)
            self.taken.append(item)

    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        taken = data.draw(st.integers(0, len(self.taken)))
        self.stream.put_back(taken)
        self.to_start = self.taken[taken:] + self.to_start
        del self.taken[taken:]

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "stream"):
            return
        stream = self.stream
        assert (stream.waiting, stream.taken) == (len(self.arrived), len(self.taken))
        assert stream.in_flight == len(self.under_way) + len(self.arrived) <= stream.limit + 1
        assert stream.left == len(self.batches) - len(self.taken)
        assert stream.finished == (stream.left == 0)
        if stream.in_order and not stream.finished:
            assert stream.can_take == (len(self.taken) in self.arrived)
            assert stream.awaited == self.batches[len(self.taken)]


TestStreams = Streams.TestCase
TestStreams.settings = settings(max_examples=examples(100), stateful_step_count=40)


@given(counts=st.lists(st.integers(0, 8), min_size=1, max_size=5))
def test_streams_are_served_in_turn(counts: list[int]) -> None:
    queue: FairQueue[int] = FairQueue()
    for number, count in enumerate(counts):
        stream: BatchStream[int] = BatchStream(number, 100)
        queue.add(stream)
        stream.start(0, range(count))
    served = []
    while (found := queue.next_ticket()) is not None:
        served.append(found.stream)
    assert [served.count(number) for number in range(len(counts))] == counts
    for turn in range(max(counts)):  # each round serves every stream that has something left
        left = [number for number, count in enumerate(counts) if count > turn]
        start = sum(min(count, turn) for count in counts)
        assert sorted(served[start : start + len(left)]) == left


def _next_ticket(queue: FairQueue[int]) -> BatchTicket:
    found = queue.next_ticket()
    assert found is not None
    return found


def test_a_batch_that_is_waited_for_is_started_again_behind_a_full_window() -> None:
    stream: BatchStream[int] = BatchStream(0, 2)
    stream.start(Attempt(0, 1), range(8))
    lost, _ = [_begun(stream) for _ in range(2)]
    assert stream.arrived(lost, 0)
    assert stream.take() == 0
    _begun(stream)
    assert stream.next_ticket() is None, "two are under way"
    stream.put_back(0)  # its answer was lost on the way
    assert _begun(stream) == lost, "nothing else can be taken before it"
    assert stream.next_ticket() is None


def test_what_arrives_after_an_error_is_of_no_use() -> None:
    stream: BatchStream[int] = BatchStream(0, 2)
    stream.start(Attempt(0, 1), range(8))
    late = _begun(stream)
    assert stream.wants(late)
    stream.fail(SamplingError("worker 0", "no luck"))
    assert not stream.wants(late)
    assert not stream.arrived(late, 0), "whoever has it gives its memory back"


def test_each_thread_gets_an_error_of_its_own() -> None:
    """One object would collect the tracebacks of all threads that raise it."""
    stream: BatchStream[int] = BatchStream(0, 2)
    stream.start(Attempt(0, 1), range(8))
    error = SamplingError("worker 0", "ValueError: no luck", "Traceback ...")
    error.__cause__ = ValueError("no luck")
    stream.fail(error)
    with ThreadPoolExecutor(2) as pool:
        one, other = [pool.submit(stream.take).exception(60) for _ in range(2)]
    assert len({id(error), id(one), id(other)}) == 3
    for found in (one, other):
        assert isinstance(found, SamplingError)
        assert (found.args, str(found)) == (error.args, str(error))
        assert found.remote_traceback == "Traceback ..."
        assert found.__cause__ is error.__cause__


def _begun(stream: BatchStream[int]) -> BatchTicket:
    ticket = stream.next_ticket()
    assert ticket is not None
    return ticket


def test_a_removed_stream_is_cancelled_and_forgotten() -> None:
    queue: FairQueue[int] = FairQueue()
    one, other = BatchStream[int](0, 2), BatchStream[int](1, 2)
    queue.add(one)
    queue.add(other)
    one.start(0, range(5))
    other.start(0, range(5))
    ticket = _next_ticket(queue)
    assert ticket.stream == 0
    queue.remove(0)
    queue.remove(0)
    assert not one.arrived(ticket, 1)
    assert {_next_ticket(queue).stream for _ in range(2)} == {1}
    assert queue.next_ticket() is None, "at its limit"
