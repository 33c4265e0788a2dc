"""Whose batch is begun next: jobs in turns, a job's producers in turns, nobody always last."""

import threading
from collections import Counter, deque
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.sources.workers.job_turns import JobTurns, Place
from gigl_loader.testing import wait_until


def _check_no_job_is_left(turns: JobTurns) -> None:
    """A job that is alone has no limit; beside any other it has one."""
    place = turns.place("alone", lambda: None)
    for under_way in range(1, 20):
        assert place.may_begin()
        place.note(under_way)
    place.close()


class _Machine:
    """Producers that always have a batch to begin; batches end in a drawn order."""

    def __init__(self, most: int, producers: dict[str, int]) -> None:
        self.turns, self.woken = JobTurns(most), deque[int]()
        self.places: list[Place] = []
        for job, count in producers.items():
            for _ in range(count):
                wake = partial(self.woken.append, len(self.places))
                self.places.append(self.turns.place(job, wake))
        self.begun: Counter[int] = Counter()
        self.order = deque[int]()
        """Producers of the batches under way, in the order in which these were begun."""
        self.limit = 8
        """Batches of a producer that its channel has room for."""

    def dispatch(self, number: int) -> None:
        place = self.places[number]
        place.note(place.under_way)
        while place.under_way < self.limit and place.may_begin():
            self.begun[number] += 1
            self.order.append(number)
            place.note(place.under_way + 1)
        if place.under_way >= self.limit:
            place.withdraw()

    def follow_wakes(self) -> None:
        while self.woken:
            self.dispatch(self.woken.popleft())

    def start(self) -> None:
        for number in range(len(self.places)):
            self.dispatch(number)
            self.follow_wakes()

    def end_batch(self, choice: int) -> None:
        number = self.order[choice % len(self.order)]
        self.order.remove(number)
        place = self.places[number]
        place.note(place.under_way - 1)
        self.dispatch(number)
        self.follow_wakes()

    def under_way(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for place in self.places:
            counts[str(place.job)] += place.under_way
        return counts

    def begun_by_job(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for number, count in self.begun.items():
            counts[str(self.places[number].job)] += count
        return counts


def test_a_job_alone_has_no_limit() -> None:
    machine = _Machine(2, {"a": 3})
    machine.start()
    assert machine.under_way() == {"a": 24}


def test_two_equal_jobs_begin_as_many_batches() -> None:
    machine = _Machine(4, {"a": 2, "b": 2})
    machine.start()
    for _ in range(50):  # what the first had begun alone
        machine.end_batch(0)
    machine.begun.clear()
    for _ in range(1000):  # in the order in which they were begun, as they are of one size
        machine.end_batch(0)
    share = machine.begun_by_job()["a"] / 1000
    assert 0.45 <= share <= 0.55


@given(
    st.integers(1, 8),
    st.integers(1, 20),
    st.integers(1, 3),
    st.lists(st.integers(0, 1000), min_size=80, max_size=80),
)
def test_a_job_of_many_loaders_has_no_more_under_way_than_one_of_few(
    most: int, many: int, few: int, ends: list[int]
) -> None:
    """In whatever order batches end; and what may run does."""
    machine = _Machine(most, {"infer": many, "train": few})
    machine.start()
    while sum(machine.under_way().values()) > max(most, 2):  # what the first had begun alone
        machine.end_batch(0)
    for end in ends:
        machine.end_batch(end)
        counts = machine.under_way()
        share = max(1, most // 2)
        assert counts["train"] >= min(share, 8 * few)
        assert sum(counts.values()) >= most, "nobody waits while there is room"
        assert abs(counts["train"] - counts["infer"]) <= 1


@given(st.integers(2, 6), st.lists(st.integers(0, 1000), min_size=150, max_size=150))
def test_producers_of_a_job_take_turns(most: int, ends: list[int]) -> None:
    machine = _Machine(most, {"infer": 5, "train": 1})
    machine.start()
    for end in range(100):
        machine.end_batch(end)
    for end in ends:
        machine.end_batch(end)
    begun = [machine.begun[number] for number in range(5)]
    assert min(begun) > 8, "each of them began some after those that it had at first"


@pytest.mark.parametrize("many", [1, 10])
def test_what_a_job_does_not_use_is_for_the_others_until_it_comes_back(many: int) -> None:
    """As between two epochs, in which the other must not begin all that it can."""
    machine = _Machine(4, {"a": 1, "b": many})
    machine.start()
    for _ in range(50):
        machine.end_batch(0)
    assert machine.under_way() == {"a": 2, "b": 2}
    a = machine.places[0]
    a.withdraw()  # all of its epoch was begun
    for _ in range(2):
        machine.order.remove(0)
        a.note(a.under_way - 1)
        machine.follow_wakes()
    for _ in range(20):
        assert machine.under_way() == {"a": 0, "b": 4}, "all of the turns, and no more"
        machine.end_batch(0)
    machine.dispatch(0)
    assert machine.under_way() == {"a": 2, "b": 4}, "at once"
    for _ in range(6):
        machine.end_batch(0)
    assert machine.under_way() == {"a": 2, "b": 2}
    a.close()
    a.close()
    machine.follow_wakes()
    assert machine.under_way() == {"a": 0, "b": 8 * many}, "it is alone"


def test_who_leaves_while_it_is_first_lets_the_next_one_begin() -> None:
    machine = _Machine(1, {"a": 1, "b": 2})
    machine.limit = 1
    machine.start()
    a, first, second = machine.places
    waiting = [place for place in (first, second) if place.is_waiting]
    assert len(waiting) == 1, "each job has one under way"
    third = machine.turns.place("b", lambda: machine.woken.append(9))
    assert not third.may_begin()
    waiting[0].close()
    assert not waiting[0].may_begin()
    waiting[0].note(5)
    assert machine.under_way() == {"a": 1, "b": 1}, "nothing counts of who has left"
    busy = next(place for place in (first, second) if place.under_way)
    machine.woken.clear()
    busy.close()
    assert 9 in machine.woken
    assert third.may_begin()
    third.close()
    a.close()
    _check_no_job_is_left(machine.turns)


def test_answers_are_given_in_turns_of_jobs() -> None:
    turns, order = JobTurns(1), list[str]()
    may_end = threading.Event()

    def answer(job: str) -> None:
        with turns.taking(job):
            order.append(job)
            assert may_end.wait(60)

    threads = [threading.Thread(target=answer, args=(job,)) for job in ("a", "b", "b", "b", "c")]
    for thread in threads:
        thread.start()
    # one of each: none waits for those that another job has
    wait_until(lambda: set(order) == {"a", "b", "c"}, "each job has an answer under way")
    may_end.set()
    for thread in threads:
        thread.join(60)
    assert sorted(order) == ["a", "b", "b", "b", "c"]
    _check_no_job_is_left(turns)


def test_a_failed_answer_ends_its_turn() -> None:
    turns = JobTurns(1)
    with pytest.raises(ValueError, match="no"), turns.taking("a"):
        raise ValueError("no")
    _check_no_job_is_left(turns)
