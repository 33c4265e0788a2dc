"""Whose batch is begun next, if several jobs sample on one machine.

::

    producer --may_begin()--> yes: it gives a batch to a worker, and tells with note()
                         `--> not now: it waits; wake() tells when to ask again
"""

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator

_ASK_AGAIN_S = 1.0
"""Longest wait between two questions of `JobTurns.taking`, should a wake-up be missed."""


class JobTurns:
    """Shares a machine's sampling threads between jobs, and those of a job between its producers.

    A job alone has no limit. Of several that sample, each may have an equal share of ``most``
    batches under way; what others do not use goes to the job that has fewest. Producers of a job
    that wait begin one batch each in turn, so a job with many loaders gets no more than one with
    few.

    A job with a place is not gone while it has nothing to begin, as between two epochs: the others
    have at most ``most`` batches meanwhile. Without a limit, one with many producers would begin
    all that it can in that moment, and the job that comes back would be one among these.

    Batches under way are counted, not those that were begun: a job with large batches gets as much
    time of the machine as one with small ones. Thread-safe; only `taking` waits.

    Args:
        most: Batches of all jobs that may be under way at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._num_places: Counter[Hashable] = Counter()
        """Open places by job; jobs without any are left out."""
        self._under_way: dict[Hashable, int] = {}
        """Batches by job; jobs without any are left out."""
        self._waiting: dict[Hashable, deque[Place]] = {}
        """Producers that want to begin a batch, by job; jobs without any are left out."""
        self._last: dict[Hashable, int] = {}
        """Number of the last turn of each job that has batches or waits."""
        self._num_turns = 0

    def place(self, job: Hashable, wake: Callable[[], None]) -> "Place":
        """Return a producer's place.

        Args:
            job: Its job.
            wake: Called in any thread when the producer has to ask again; must not wait.
        """
        with self._lock:
            self._num_places[job] += 1
        return Place(self, job, wake)

    @contextlib.contextmanager
    def taking(self, job: Hashable) -> Iterator[None]:
        """Wait for a turn of ``job``, which lasts as long as the block."""
        changed = threading.Event()
        place = self.place(job, changed.set)
        try:
            while not place.may_begin():
                changed.wait(_ASK_AGAIN_S)
                changed.clear()
            place.note(1)
            yield
        finally:
            place.close()

    # -- for places, see there --------------------------------------------------------------------

    def may_begin(self, place: "Place") -> bool:
        """Return whether ``place`` may begin a batch; if not, it waits."""
        with self._lock:
            if place.is_closed:
                return False
            queue = self._waiting.setdefault(place.job, deque())
            is_first = not queue or queue[0] is place
            granted = is_first and self._may_begin(place.job)
            if granted:
                self._num_turns += 1
                self._last[place.job] = self._num_turns
                if queue:
                    queue.popleft()
            elif not place.is_waiting:
                queue.append(place)
            place.is_waiting = not granted
            if not queue:
                del self._waiting[place.job]
            return granted

    def note(self, place: "Place", under_way: int) -> None:
        """Note how many batches of ``place`` are under way."""
        with self._lock:
            under_way = 0 if place.is_closed else under_way
            count = self._under_way.pop(place.job, 0) + under_way - place.under_way
            if count:
                self._under_way[place.job] = count
            place.under_way = under_way
            self._wake()

    def withdraw(self, place: "Place") -> None:
        """Let a place wait no longer."""
        with self._lock:
            # it may be the first of its job, for which others wait
            if place.is_waiting:
                place.is_waiting = False
                self._waiting[place.job].remove(place)
                if not self._waiting[place.job]:
                    del self._waiting[place.job]
                self._wake()

    def leave(self, place: "Place") -> None:
        """Forget a place; its job may be gone by that, which may let others begin."""
        self.withdraw(place)
        with self._lock:
            if place.is_closed:
                return
            place.is_closed = True
            self._num_places[place.job] -= 1
            if not self._num_places[place.job]:
                del self._num_places[place.job]
        self.note(place, 0)

    # -- locked -----------------------------------------------------------------------------------

    def _may_begin(self, job: Hashable) -> bool:
        if len(self._num_places) == 1:
            return True
        count = self._under_way.get(job, 0)
        num_sampling = len({*self._under_way, *self._waiting, job})
        # even if others have more than their share, which they had before this job came
        if count < max(1, self._most // num_sampling):
            return True
        if sum(self._under_way.values()) >= self._most:
            return False
        return all(self._order(job) <= self._order(other) for other in self._waiting)

    def _order(self, job: Hashable) -> tuple[int, int]:
        return self._under_way.get(job, 0), self._last.get(job, 0)

    def _wake(self) -> None:
        for job in [job for job in self._last if job not in self._under_way]:
            if job not in self._waiting:
                del self._last[job]
        for job, queue in self._waiting.items():
            if queue and self._may_begin(job):
                queue[0].wake()


class Place:
    """One producer's place in `JobTurns`; the producer's lock guards the calls."""

    def __init__(self, turns: JobTurns, job: Hashable, wake: Callable[[], None]) -> None:
        self._turns, self.job, self.wake = turns, job, wake
        self.under_way = 0
        """Batches under way, as noted last."""
        self.is_waiting = self.is_closed = False

    def may_begin(self) -> bool:
        """Return whether a batch may be begun now; if not, ``wake`` is called later."""
        return self._turns.may_begin(self)

    def note(self, under_way: int) -> None:
        """Note how many batches are under way, which may let others begin."""
        self._turns.note(self, under_way)

    def withdraw(self) -> None:
        """Wait no longer, as there is nothing to begin."""
        if self.is_waiting:
            self._turns.withdraw(self)

    def close(self) -> None:
        """Leave; later calls change nothing. Idempotent."""
        self._turns.leave(self)
