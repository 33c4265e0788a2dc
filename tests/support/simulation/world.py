"""Threads, locks, futures and time of a simulated cluster: one thread, one clock, one order.

A simulated thread is a greenlet. It runs until it waits; whoever is next follows from the clock and
from the order in which things were asked for, and from nothing else, so a run can be repeated.
`World.installed` lets modules of the package use these in place of ``threading``, ``time``,
``queue`` and futures; what those modules do is their own code.
"""

import contextlib
import itertools
import random
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from types import ModuleType, SimpleNamespace
from typing import Any

import greenlet

from gigl_loader.errors import GiglLoaderError
from gigl_loader.testing import Clock


class Deadlock(GiglLoaderError, RuntimeError):
    """Somebody waits, and nothing is left that could happen."""


class Process:
    """A simulated process: what ends together.

    Args:
        name: For errors and traces.
        host: Address of its machine.
    """

    def __init__(self, name: str, host: str) -> None:
        self.name, self.host = name, host
        self.alive = True
        self.slowness = 1.0
        """What its work takes longer than that of others."""
        self.at_end: dict[Callable[[], None], None] = {}
        """What the system does when it ends: connections are cut."""
        self.messages = 0
        """Questions that it asked, and their answers."""
        self.bytes = 0
        """Of those."""


class _Task:
    __slots__ = ("_run", "_world", "greenlet", "name", "on_end", "over", "process")

    def __init__(
        self, world: "World", run: Callable[[], None], process: Process, name: str
    ) -> None:
        self._world, self._run, self.process, self.name = world, run, process, name
        self.over = False
        self.on_end: Callable[[], None] | None = None
        self.greenlet: Any = None
        """What runs it, once it has begun."""

    def run(self) -> None:
        """Do all of it. In a greenlet."""
        try:
            self._run()
        except greenlet.GreenletExit:
            pass
        except BaseException as error:
            # raised by World.run(): in a greenlet nobody would see it
            self._world.failures.append((self, error, traceback.format_exc()))
        self.over = True
        if self.on_end is not None:
            self.on_end()

    def resume(self) -> None:
        """Go on, until it waits again. For the hub."""
        # Of a killed process no thread ever goes on: its greenlets stay as they are until close().
        if self.process.alive and not self.over:
            world = self._world
            world.current = self
            if self.greenlet is None:
                self.greenlet = world.idle_greenlet()
            self.greenlet.switch()
            world.current = None

    def throw(self) -> None:
        """End it where it stands."""
        if self.greenlet is not None and not self.over:
            self.greenlet.throw()


class _Waiter:
    __slots__ = ("task", "woken")

    def __init__(self, task: _Task) -> None:
        self.task: _Task | None = task
        """Who waits; None: it goes on."""
        self.woken = False

    def resume(self) -> None:
        """Let it go on, whether or not it was woken. For the hub."""
        task, self.task = self.task, None
        if task is not None:
            task.resume()


class World:
    """A clock, processes, and the threads that run in them.

    Args:
        seed: Of everything that is drawn, such as names of sessions.
    """

    def __init__(self, seed: int = 0) -> None:
        self.clock = Clock()
        self.random = random.Random(seed)
        self.hub = greenlet.getcurrent()
        self.current: _Task | None = None
        self.failures: list[tuple[_Task, BaseException, str]] = []
        self.closed = False
        self._outside = Process("the simulation", "10.255.255.255")
        self._tasks: dict[_Task, None] = {}
        self._idle: list[Any] = []
        self._numbers = itertools.count()

    # -- tasks ----------------------------------------------------------------------------------

    @property
    def process(self) -> Process:
        """The process whose code runs at the moment."""
        return self._outside if self.current is None else self.current.process

    def spawn(self, run: Callable[[], None], process: Process | None = None, name: str = "") -> Any:
        """Start a thread of a process (None: of the running one)."""
        task = _Task(self, run, process or self.process, name)
        self._tasks[task] = None
        # not at once: the running thread goes on until it waits, whoever it starts
        self.clock.call_later(0.0, task.resume)
        return task

    def idle_greenlet(self) -> Any:
        """Return a greenlet that runs the current task: a fresh one takes longer, and memory."""
        return self._idle.pop() if self._idle else greenlet.greenlet(self._run_tasks, self.hub)

    def _run_tasks(self) -> None:
        while True:
            task = self.current
            assert task is not None, "it resumes"
            task.run()
            self._tasks.pop(task, None)
            # used again by the next task: its stack is there already
            self._idle.append(greenlet.getcurrent())
            self.hub.switch()

    def kill(self, process: Process) -> None:
        """End a process at once, as SIGKILL does: none of its code runs any more."""
        if process.alive:
            process.alive = False
            for cut in list(process.at_end):
                cut()

    def run(self, until: Callable[[], bool], limit_s: float) -> None:
        """Let time pass until ``until()``.

        Args:
            until: Looked at after every event.
            limit_s: What the clock may show at most.

        Raises:
            Deadlock: It did not come to that.
        """
        # the hub's loop: greenlets switch to the hub, never to each other, so that the order is the
        # clock's
        self.clock.run(limit_s, lambda: bool(self.failures) or until())
        if self.failures:
            task, error, text = self.failures[0]
            raise RuntimeError(f"{task.process.name}, {task.name}:\n{text}") from error
        if not until():
            raise Deadlock(f"nothing can happen any more at {self.clock.now:.3f} s")

    def close(self) -> None:
        """End all that still runs. Idempotent."""
        self.closed = True
        for _ in range(3):  # what ends may start something
            for task in list(self._tasks):
                # a GreenletExit runs `finally` blocks, which may ask whose code runs
                self.current = task
                task.throw()
                self._tasks.pop(task, None)
        self.current = None
        while self._idle:
            self._idle.pop().throw()

    # -- waiting --------------------------------------------------------------------------------

    def waiter(self) -> _Waiter:
        """Return what `wait` waits for; `wake` ends it."""
        if self.current is None:
            raise RuntimeError("only a simulated thread can wait")
        return _Waiter(self.current)

    def wait(self, waiter: _Waiter, timeout_s: float | None = None) -> bool:
        """Wait until ``waiter`` is woken; return False if it was not within ``timeout_s``."""
        # what ends and would wait, in a `finally` say, ends at once
        if self.closed:
            raise greenlet.GreenletExit
        if waiter.woken:
            return True
        if timeout_s is not None:
            # never taken back: a resume that comes too late finds no task in the waiter
            self.clock.call_later(timeout_s, waiter.resume)
        self.hub.switch()
        return waiter.woken

    def wake(self, waiter: _Waiter) -> None:
        """Let whoever waits go on, once the running thread waits itself."""
        if not waiter.woken and waiter.task is not None:
            # woken and resumed are two things: a second wake, or the timeout meanwhile, does
            # nothing more
            waiter.woken = True
            self.clock.call_later(0.0, waiter.resume)

    def sleep(self, seconds: float) -> None:
        """Let time pass for the running thread."""
        self.wait(self.waiter(), seconds)

    # -- in place of modules --------------------------------------------------------------------

    def token_hex(self, size: int = 32) -> str:
        """Return a name that no other has; in place of ``secrets.token_hex``."""
        return f"{next(self._numbers):06x}{self.random.getrandbits(64):016x}".ljust(2 * size, "0")

    def _start_aside(self, name: str, target: Callable[..., Any], *args: Any) -> "Thread":
        thread = Thread(self, target, args, name)
        thread.start()
        return thread

    def modules(self) -> dict[str, Any]:
        """Return what stands in for standard modules and functions, by name in the importer."""
        bind = lambda kind: lambda *args, **how: kind(self, *args, **how)  # noqa: E731
        threads = SimpleNamespace(
            Thread=bind(Thread),
            Lock=bind(Lock),
            RLock=bind(RLock),
            Condition=bind(Condition),
            Event=bind(SimulatedEvent),
            current_thread=lambda: self.current,
        )
        now = lambda: self.clock.now  # noqa: E731
        times = SimpleNamespace(monotonic=now, perf_counter=now, sleep=self.sleep)
        tokens = SimpleNamespace(
            token_hex=self.token_hex, token_bytes=lambda size: self.token_hex(size)[:size].encode()
        )
        return {
            "threading": threads,
            "time": times,
            "secrets": tokens,
            "queue": SimpleNamespace(SimpleQueue=bind(SimpleQueue)),
            "Future": bind(SimFuture),
            "wait": self.wait_for_futures,
            # an error of a thread fails the run, whatever would be done about it
            "new_thread": lambda *, target, args=(), name, on_death: Thread(
                self, target, args, name
            ),
            "start_aside": self._start_aside,
        }

    @contextlib.contextmanager
    def installed(self, modules: Iterable[ModuleType], **more: Any) -> Iterator[None]:
        """Let ``modules`` use this world.

        Args:
            modules: Of the package.
            more: Further names to replace, in those of the modules that have them.
        """
        stands_in = {**self.modules(), **more}
        former = [
            (module, name, getattr(module, name))
            for module in modules
            for name in stands_in
            # only where the module has the name itself: it was imported there
            if hasattr(module, name)
        ]
        for module, name, _ in former:
            setattr(module, name, stands_in[name])
        try:
            yield
        finally:
            for module, name, value in former:
                setattr(module, name, value)

    def wait_for_futures(
        self,
        wanted: Iterable[Any],
        timeout: float | None = None,
        return_when: str = futures.ALL_COMPLETED,
    ) -> tuple[list[Any], list[Any]]:
        """Stand in for ``concurrent.futures.wait``; in the order of ``wanted``."""
        every = list(wanted)
        until = None if timeout is None else self.clock.now + timeout
        while True:
            done = [one for one in every if one.done()]
            left = [one for one in every if not one.done()]
            timed_out = until is not None and self.clock.now >= until
            if not left or timed_out or (done and return_when == futures.FIRST_COMPLETED):
                return done, left
            # a new one each round: callbacks of futures that are not done stay with the former
            event = SimulatedEvent(self)
            for one in left:
                one.add_done_callback(lambda _, event=event: event.set())
            event.wait(None if until is None else until - self.clock.now)


class Thread:
    """Stands in for ``threading.Thread``."""

    def __init__(
        self,
        world: World,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        name: str = "",
        daemon: bool = True,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        self._world, self._name = world, name
        self._run = lambda: target(*args, **(kwargs or {}))
        self._over = SimulatedEvent(world)
        self._task: Any = None

    def start(self) -> None:
        """Begin."""
        self._task = self._world.spawn(self._run, name=self._name)
        self._task.on_end = self._over.set

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        self._over.wait(timeout)

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self._task is not None and not self._task.over


class Lock:
    """Stands in for ``threading.Lock``."""

    __slots__ = ("_depth", "_owner", "_waiting", "_world")
    _again = False

    def __init__(self, world: World) -> None:
        self._world = world
        self._owner: Any = None
        self._depth = 0
        self._waiting: _Waiting = ()

    def acquire(self) -> bool:
        """Take it, or wait for it."""
        me = self._world.current
        if self._depth and self._again and self._owner is me:
            self._depth += 1
            return True
        # again after each wake: another thread may have taken it before this one ran
        while self._depth:
            self._waiting, waiter = _joined_by(self._world, self._waiting)
            self._world.wait(waiter)
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        """Give it back."""
        self._depth -= 1
        if self._depth == 0 and self._waiting:
            first, *self._waiting = self._waiting
            self._world.wake(first)

    def give_up(self) -> int:
        """Give it back, however often it was taken; return how often."""
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def take_back(self, depth: int) -> None:
        """Undo `give_up`."""
        self.acquire()
        self._depth = depth

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """Stands in for ``threading.RLock``."""

    __slots__ = ()
    _again = True


_Waiting = list[_Waiter] | tuple[()]
"""Nothing, and no list either, as long as nobody waits: there are many of these, few waited for."""


def _joined_by(world: World, waiting: _Waiting) -> tuple[_Waiting, _Waiter]:
    waiter = world.waiter()
    joined = waiting or []
    joined.append(waiter)
    return joined, waiter


def _without(waiting: _Waiting, waiter: _Waiter) -> _Waiting:
    return [one for one in waiting if one is not waiter]


class Condition:
    """Stands in for ``threading.Condition``."""

    __slots__ = ("_lock", "_waiting", "_world")

    def __init__(self, world: World, lock: Lock | None = None) -> None:
        self._world, self._lock = world, lock or RLock(world)
        self._waiting: _Waiting = ()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until somebody notifies."""
        self._waiting, waiter = _joined_by(self._world, self._waiting)
        # joined before the lock is given back: no notify_all() is missed in between
        depth = self._lock.give_up()
        woken = self._world.wait(waiter, timeout)
        if not woken:
            self._waiting = _without(self._waiting, waiter)
        self._lock.take_back(depth)
        return woken

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until it holds."""
        end = None if timeout is None else self._world.clock.now + timeout
        while not predicate():
            left = None if end is None else end - self._world.clock.now
            if (left is not None and left <= 0) or not self.wait(left):
                return predicate()
        return True

    def notify_all(self) -> None:
        """Wake all."""
        waiting, self._waiting = self._waiting, ()
        for waiter in waiting:
            self._world.wake(waiter)


class SimulatedEvent:
    """Stands in for ``threading.Event``."""

    __slots__ = ("_set", "_waiting", "_world")

    def __init__(self, world: World) -> None:
        self._world, self._set = world, False
        self._waiting: _Waiting = ()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it."""
        self._set = True
        waiting, self._waiting = self._waiting, ()
        for waiter in waiting:
            self._world.wake(waiter)

    def clear(self) -> None:
        """Take it back."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set."""
        if self._set:
            return True
        self._waiting, waiter = _joined_by(self._world, self._waiting)
        woken = self._world.wait(waiter, timeout)
        if not woken:
            self._waiting = _without(self._waiting, waiter)
        return woken  # and not whether it is set still: as with the real one


class SimpleQueue:
    """Stands in for ``queue.SimpleQueue``."""

    __slots__ = ("_items", "_waiting", "_world")

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: list[Any] = []
        self._waiting: _Waiting = ()

    def put(self, item: Any) -> None:
        """Add."""
        self._items.append(item)
        if self._waiting:
            first, *self._waiting = self._waiting
            self._world.wake(first)

    def get(self) -> Any:
        """Take the first, or wait for one."""
        while not self._items:
            self._waiting, waiter = _joined_by(self._world, self._waiting)
            self._world.wait(waiter)
        return self._items.pop(0)


class SimFuture(futures.Future[Any]):
    """Stands in for ``concurrent.futures.Future``: its own code, but for what it waits with."""

    def __init__(self, world: World) -> None:
        # not its own `__init__`, which makes a real condition: there are several for each batch
        self._condition = Condition(world)  # type: ignore[assignment]
        self._state, self._result, self._exception = futures._base.PENDING, None, None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
