"""Steps of `partition_tables` as tasks of Ray: the functions are those that run without it.

Ray positions a task on a node with enough processors and memory, and runs it again on another where
a node is lost. It raises nothing while no node is large enough, so that is looked at here.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.tables._job import RunSteps

_LOOK_SECONDS = 5.0
"""How often nodes are looked at while tasks are waited for."""
_END_SECONDS = 60.0
"""How long tasks are waited for that were interrupted, and that were killed: their node may be out
of reach."""


@contextmanager
def tasks(memory: int, threads: int | None) -> Iterator[tuple[RunSteps, int]]:
    """Yield (what runs steps as tasks, threads of each).

    A cluster that this process has joined, or that ``RAY_ADDRESS`` names, is used; where there is
    none, Ray starts one on this machine for the time being.

    Args:
        memory: Bytes of each task.
        threads: Processors of each task. None: those of the smallest node.

    Raises:
        ConfigError: Ray is not installed, or no node has that much.
    """
    ray = _import_ray()
    # What the caller has joined stays joined: it may run other things there.
    ours = not ray.is_initialized()
    if ours:
        ray.init(log_to_driver=False, include_dashboard=False)
    try:
        # The smallest node's, so that all nodes get tasks; on a larger one run several at a time.
        smallest = min((_size(node)[0] for node in _nodes(ray)), default=1)
        count = threads or max(1, int(smallest))
        if not _fits(ray, memory, count):
            raise ConfigError(_too_small(ray, memory, count))
        yield lambda makes: _run(ray, makes, memory, count), count
    finally:
        if ours:
            ray.shutdown()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of a change
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            'engine="ray" needs Ray: run pip install "gigl_loader[ray]", or use engine="duckdb"'
        ) from error
    return ray


def _run(
    ray: Any, makes: list[Callable[[], Any]], memory: int, threads: int
) -> Iterator[tuple[int, Any]]:
    # Both are what Ray counts when it places a task; that it keeps to the memory is ours to see
    # to.
    task = ray.remote(num_cpus=threads, memory=memory)(_call)
    positions = {task.remote(make): position for position, make in enumerate(makes)}
    try:
        while positions:
            done, _ = ray.wait(list(positions), timeout=_LOOK_SECONDS)
            for one in done:
                yield positions.pop(one), _result(ray, one)
            # Nodes may have left since tasks began. Ray would wait for new ones without a word.
            if not done and not _fits(ray, memory, threads):
                raise UsageError(f"{_too_small(ray, memory, threads)}; call again to go on")
    finally:  # of an error of one, or where who takes results stops: nothing is left otherwise
        _end(ray, list(positions))


def _end(ray: Any, tasks: list[Any]) -> None:
    """Cancel tasks, and wait until none of them writes any more: what they write is removed next.

    A task that is interrupted is over when it has unwound. One that is killed may be called over
    while its process still runs, so that is left for those that cannot be interrupted.
    """
    for kill in (False, True):
        for task in tasks:
            ray.cancel(task, force=kill)
        if tasks:
            _, tasks = ray.wait(tasks, num_returns=len(tasks), timeout=_END_SECONDS)


def _call(make: Callable[[], Any]) -> Any:
    return make()


def _result(ray: Any, task: Any) -> Any:
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        # The task's own error, of our classes: callers tell by it what may go on, and what to undo.
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise UsageError(f"a task of Ray was lost: {error}; call again to go on") from error


def _nodes(ray: Any) -> list[Any]:
    return [node for node in ray.nodes() if node["Alive"]]


def _size(node: Any) -> tuple[float, float]:
    """Return processors and bytes of memory of a node."""
    resources = node["Resources"]
    return resources.get("CPU", 0.0), resources.get("memory", 0.0)


def _fits(ray: Any, memory: int, threads: int) -> bool:
    return any(cpus >= threads and size >= memory for cpus, size in map(_size, _nodes(ray)))


def _too_small(ray: Any, memory: int, threads: int) -> str:
    found = "; ".join(
        f"{cpus:g} CPUs, {size / 1e9:.1f} GB" for cpus, size in map(_size, _nodes(ray))
    )
    return (
        f"no node of the Ray cluster has {threads} CPUs and {memory / 1e9:.1f} GB for a task "
        f"(nodes: {found or 'none'}): give threads= or memory= that fit"
    )
