"""What simulated threads, locks and time promise beyond what a simulated job would notice."""

from collections.abc import Callable
from concurrent import futures
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from tests.support.simulation.world import (
    Deadlock,
    Lock,
    Process,
    SimFuture,
    SimulatedEvent,
    Thread,
    World,
)


def _run(*threads: Callable[[World, list[Any]], None], limit_s: float = 1000.0) -> list[Any]:
    """Return what the threads noted, in order, and at last the time."""
    world, notes, left = World(), list[Any](), [len(threads)]

    def whole(one: Any) -> None:
        one(world, notes)
        left[0] -= 1

    try:
        for one in threads:
            world.spawn(partial(whole, one))
        world.run(lambda: not left[0], limit_s)
    finally:
        world.close()
    return [*notes, world.clock.now]


def test_a_lock_is_held_by_one_and_taken_in_turn() -> None:
    inside: list[str] = []
    lock: list[Lock] = []

    def worker(name: str) -> Any:
        def run(world: World, notes: list[Any]) -> None:
            lock[:] = lock or [Lock(world)]
            for _ in range(2):
                with lock[0]:
                    assert not inside
                    inside.append(name)
                    world.sleep(1.0)
                    inside.remove(name)
                notes.append(name)

        return run

    found = _run(worker("a"), worker("b"), worker("c"))
    assert sorted(found[:-1]) == ["a", "a", "b", "b", "c", "c"]
    assert found[-1] == 6.0, "never two at a time"


def test_an_event_wakes_all_and_a_wait_may_time_out() -> None:
    made: list[SimulatedEvent] = []

    def waits(timeout: float | None) -> Any:
        def run(world: World, notes: list[Any]) -> None:
            made[:] = made or [SimulatedEvent(world)]
            notes.append((made[0].wait(timeout), world.clock.now))

        return run

    def sets(world: World, notes: list[Any]) -> None:
        world.sleep(3.0)
        made[0].set()
        assert made[0].wait(0.0)
        made[0].clear()  # before those that were woken run
        assert not made[0].is_set()

    found = _run(waits(None), waits(1.0), waits(9.0), sets)
    assert found == [(False, 1.0), (True, 3.0), (True, 3.0), 3.0]


def test_futures_are_waited_for_like_those_of_the_standard_library() -> None:
    def run(world: World, notes: list[Any]) -> None:
        slow, fast, never = (SimFuture(world) for _ in range(3))
        world.clock.call_later(5.0, lambda: slow.set_result("slow"))
        world.clock.call_later(2.0, lambda: fast.set_exception(KeyError("fast")))
        every = [slow, fast, never]
        done, left = world.wait_for_futures(every, return_when=futures.FIRST_COMPLETED)
        assert (done, left, world.clock.now) == ([fast], [slow, never], 2.0)
        assert slow.result() == "slow"
        with pytest.raises(KeyError):
            fast.result()
        assert world.wait_for_futures(every, timeout=4.0) == ([slow, fast], [never])
        notes.append(world.clock.now)

    assert _run(run) == [9.0, 9.0]


def test_a_thread_is_joined_and_its_error_is_raised_by_the_run() -> None:
    def run(world: World, notes: list[Any]) -> None:
        thread = Thread(world, lambda seconds: world.sleep(seconds), args=(3.0,))
        assert not thread.is_alive()
        thread.start()
        assert thread.is_alive()
        thread.join(1.0)
        notes.append((thread.is_alive(), world.clock.now))
        thread.join()
        notes.append((thread.is_alive(), world.clock.now))

    assert _run(run) == [(True, 1.0), (False, 3.0), 3.0]

    def fails(world: World, notes: list[Any]) -> None:
        world.sleep(1.0)
        raise KeyError("lost")

    with pytest.raises(RuntimeError, match=r"KeyError: 'lost'"):
        _run(fails, lambda world, notes: world.sleep(99.0))


def test_a_killed_process_does_nothing_more() -> None:
    world, notes = World(), list[Any]()
    process = Process("victim", "10.0.0.1")
    process.at_end[lambda: notes.append("connection is cut")] = None

    def victim() -> None:
        assert world.process is process
        try:
            world.sleep(1.0)
            world.sleep(9.0)
            notes.append("never")
        finally:
            notes.append(("finally", world.closed))

    world.spawn(victim, process)
    world.clock.call_later(5.0, lambda: world.kill(process))
    world.clock.call_later(6.0, lambda: world.kill(process))
    with pytest.raises(Deadlock):
        world.run(lambda: False, 100.0)
    assert notes == ["connection is cut"], "once, and no code of its own"
    world.close()
    world.close()
    assert notes == ["connection is cut", ("finally", True)]


def test_modules_use_this_world_inside_the_block_alone() -> None:
    world = World(seed=3)
    module: Any = ModuleType("some_module")
    module.time, module.Thing = "the real one", "another"
    with world.installed([module], Thing="stands in", NotThere=1):
        assert module.Thing == "stands in"
        assert module.time.monotonic() == 0.0
        assert not hasattr(module, "NotThere")
        assert not hasattr(module, "threading")
    assert (module.time, module.Thing) == ("the real one", "another")
    with pytest.raises(RuntimeError, match="only a simulated thread can wait"):
        world.waiter()
    world.close()
