"""Simulated threads, locks, queues and time promise what the real ones do, in a fixed order."""

from collections.abc import Callable
from concurrent import futures
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from tests.support.simulation.world import (
    Condition,
    Deadlock,
    Lock,
    Process,
    RLock,
    SimFuture,
    SimpleQueue,
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


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    def sleeper(name: str, *times: float) -> Any:
        def run(world: World, notes: list[Any]) -> None:
            for seconds in times:
                world.sleep(seconds)
                notes.append((name, world.clock.now))

        return run

    found = _run(sleeper("a", 3.0, 3.0), sleeper("b", 1.0, 4.0), sleeper("c", 3.0))
    assert found == [("b", 1.0), ("a", 3.0), ("c", 3.0), ("b", 5.0), ("a", 6.0), 6.0]


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


def test_a_thread_may_take_its_own_rlock_again_and_not_a_lock() -> None:
    def again(kind: type[Lock]) -> Any:
        def run(world: World, notes: list[Any]) -> None:
            lock = kind(world)
            with lock, lock:
                notes.append("twice")
            with lock:
                notes.append("free")

        return run

    assert _run(again(RLock)) == ["twice", "free", 0.0]
    with pytest.raises(Deadlock, match="nothing can happen any more"):
        _run(again(Lock))


def test_waiting_on_a_condition_gives_the_lock_away_however_often_it_was_taken() -> None:
    made: list[Condition] = []

    def waits(world: World, notes: list[Any]) -> None:
        made.append(Condition(world))
        with made[0], made[0]:
            notes.append(made[0].wait())
            notes.append(("woken", world.clock.now))
            notes.append(made[0].wait(2.0))

    def notifies(world: World, notes: list[Any]) -> None:
        world.sleep(1.0)
        with made[0]:
            made[0].notify_all()
            world.sleep(4.0)  # who was woken has to wait for the lock
            notes.append("let go")

    assert _run(waits, notifies) == ["let go", True, ("woken", 5.0), False, 7.0]


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


def test_a_queue_gives_each_item_once_in_order() -> None:
    made: list[SimpleQueue] = []

    def takes(world: World, notes: list[Any]) -> None:
        made[:] = made or [SimpleQueue(world)]
        notes.extend(made[0].get() for _ in range(3))

    def puts(world: World, notes: list[Any]) -> None:
        for item in range(6):
            world.sleep(1.0)
            made[0].put(item)

    found = _run(takes, takes, puts)
    assert sorted(found[:-1]) == [0, 1, 2, 3, 4, 5]


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
        assert module.time.time_ns() != module.time.time_ns(), "two names that are made of it"
        assert not hasattr(module, "NotThere")
        assert not hasattr(module, "threading")
    assert (module.time, module.Thing) == ("the real one", "another")
    world.close()


def test_names_are_drawn_once_and_the_same_for_a_seed() -> None:
    first, again = ([world.token_hex(8) for _ in range(100)] for world in (World(3), World(3)))
    assert first == again
    assert len({*first}) == 100


def test_only_a_simulated_thread_can_wait() -> None:
    world = World()
    with pytest.raises(RuntimeError, match="only a simulated thread can wait"):
        world.waiter()
    world.close()
