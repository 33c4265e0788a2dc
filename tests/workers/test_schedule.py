"""The pure part: which batch is started next, which is handed out next."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gigl_loader.message import BatchTicket
from gigl_loader.workers.schedule import BatchStream, FairQueue, num_batches


@given(seeds=st.integers(0, 200), size=st.integers(1, 50), drop_last=st.booleans())
def test_num_batches(seeds: int, size: int, drop_last: bool) -> None:
    sizes = [len(range(seeds)[i : i + size]) for i in range(0, seeds, size)]
    assert num_batches(seeds, size, drop_last) == len(
        [n for n in sizes if n == size or not drop_last]
    )


class Streams(RuleBasedStateMachine):
    """Any interleaving of start, cancel, next, arrival and take, against plain lists."""

    @initialize(limit=st.integers(1, 4), in_order=st.booleans())
    def make(self, limit: int, in_order: bool) -> None:
        self.stream: BatchStream[int] = BatchStream(3, limit, in_order)
        self.batches: list[int] = []
        self.under_way: list[tuple] = []
        self.stale: list[tuple] = []
        self.taken: list[int] = []

    @rule(batches=st.lists(st.integers(0, 9), max_size=6), epoch=st.integers(0, 3))
    def start(self, batches: list[int], epoch: int) -> None:
        before = self.stream.generation
        assert self.stream.start(epoch, batches) > before
        self.stale += self.under_way
        self.batches, self.under_way, self.taken = batches, [], []

    @rule()
    def cancel(self) -> None:
        self.stream.cancel()
        self.stale += self.under_way
        self.batches, self.under_way, self.taken = [], [], []

    @rule()
    def next_ticket(self) -> None:
        found = self.stream.next_ticket()
        started = self.started
        if started == len(self.batches) or started - len(self.taken) >= self.stream.limit:
            assert found is None
        else:
            assert found is not None
            ticket, position = found
            assert (ticket.stream, ticket.generation) == (3, self.stream.generation)
            assert (position, ticket.batch) == (started, self.batches[started])
            self.under_way.append(found)

    @precondition(lambda self: any(one[0] is not None for one in self.under_way))
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        ticket, position = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove((ticket, position))
        assert self.stream.arrived(ticket, position, position)
        self.arrived.append(position)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def arrive_late(self, data: st.DataObject) -> None:
        waiting = self.stream.waiting
        ticket, position = data.draw(st.sampled_from(self.stale))
        assert not self.stream.arrived(ticket, position, 99)
        assert self.stream.waiting == waiting

    @rule()
    def take(self) -> None:
        could = self.stream.can_take
        item = self.stream.take()
        assert (item is not None) == could
        if item is not None:
            assert item in self.arrived
            self.arrived.remove(item)
            self.taken.append(item)

    @property
    def started(self) -> int:
        return len(self.taken) + len(self.arrived) + len(self.under_way)

    @property
    def arrived(self) -> list[int]:
        if getattr(self, "_of", None) != self.stream.generation:
            self._of = self.stream.generation
            self._arrived: list[int] = []
        return self._arrived

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "stream"):
            return
        stream = self.stream
        assert stream.waiting == len(self.arrived)
        assert stream.in_flight == len(self.under_way) + len(self.arrived) <= stream.limit
        assert stream.finished == (len(self.taken) == len(self.batches))
        assert len(set(self.taken)) == len(self.taken)
        if stream.in_order:
            assert self.taken == list(range(len(self.taken)))
            assert stream.can_take == (len(self.taken) in self.arrived)
        if stream.in_order and not stream.finished:
            assert stream.awaited == self.batches[len(self.taken)]


TestStreams = Streams.TestCase
TestStreams.settings = settings(max_examples=100, stateful_step_count=40)


@given(counts=st.lists(st.integers(0, 8), min_size=1, max_size=5))
def test_streams_are_served_in_turn(counts: list[int]) -> None:
    queue: FairQueue[int] = FairQueue()
    for number, count in enumerate(counts):
        stream: BatchStream[int] = BatchStream(number, 100)
        queue.add(stream)
        stream.start(0, range(count))
    served = []
    while (found := queue.next_ticket()) is not None:
        served.append(found[0].stream)
    assert [served.count(number) for number in range(len(counts))] == counts
    for turn in range(max(counts)):  # each generation serves every stream that has something left
        left = [number for number, count in enumerate(counts) if count > turn]
        start = sum(min(count, turn) for count in counts)
        assert sorted(served[start : start + len(left)]) == left


def _next_ticket(queue: FairQueue[int]) -> tuple[BatchTicket, int]:
    found = queue.next_ticket()
    assert found is not None
    return found


def test_a_removed_stream_is_cancelled_and_forgotten() -> None:
    queue: FairQueue[int] = FairQueue()
    one, other = BatchStream[int](0, 2), BatchStream[int](1, 2)
    queue.add(one)
    queue.add(other)
    one.start(0, range(5))
    other.start(0, range(5))
    ticket, position = _next_ticket(queue)
    assert ticket.stream == 0
    queue.remove(0)
    queue.remove(0)
    assert not one.arrived(ticket, position, 1)
    assert {_next_ticket(queue)[0].stream for _ in range(2)} == {1}
    assert queue.next_ticket() is None, "at its limit"
