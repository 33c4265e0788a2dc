"""A run that survives a kill: finished steps are noted, others are repeated; here or on Ray."""

import hashlib
import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from gigl_loader.dataset.format.directory import LOCK
from gigl_loader.errors import (
    ConfigError,
    ObjectStorageError,
    UsageError,
    first_line,
    needed,
    without_only_type,
)
from gigl_loader.runtime.progress import ProgressLine

_BASE_BYTES = 100_000_000
"""Memory for the interpreter and the libraries, before a row is read."""


@dataclass(frozen=True, kw_only=True)
class WorkSizes:
    """Amounts in memory at a time. The output does not depend on them."""

    table_rows: int = 65536
    """Rows of a table: limits memory if rows are wide."""
    file_rows: int = 2**22
    """Rows of a file in scratch from a source that is no file: a killed run repeats one of them."""
    numbers: int = 2**20
    """Owners, degrees or neighbours per read or write."""
    sorted_rows: int = 1_000_000
    """Edges per batch, and nodes per write of ends: arrays of 8 MB."""
    looked_up_rows: int = 2**18
    """Most edges per look-up of ids: pieces for each thread, and batches of 4 MB."""
    waiting_bytes: int = 32 * 1024 * 1024
    """Bytes of edges that wait to be written, of all partitions together."""
    bucket_bytes: int = 2**30
    """Bytes of a bucket, and of rows being dealt: with more, a repeated step takes long."""
    edges_a_node: int = 8
    """Edges that a step counts per node: degrees are read and written once per step."""
    engine_share: float = 0.6
    """Share of memory for the engine: it exceeds its limit, and Python and Arrow need some."""
    index_share: float = 0.5
    """Share of memory for indexes of ids: the engine sorts the looked-up edges meanwhile."""


def digest_of_settings(settings: Mapping[str, Any]) -> str:
    """Return a digest of everything that determines a result."""
    # A digest, since the settings name every file of every table. `default=str`: paths and numpy's
    # numbers are not JSON, and are only compared. Memory and threads are no settings: after running
    # out of memory, a run may be resumed with more.
    return hashlib.blake2b(json.dumps(settings, default=str).encode()).hexdigest()


class ResumableJob:
    """Scratch space, memory and progress of one run.

    Args:
        folder: The scratch directory. Work of a run with the same settings there is continued.
        settings: Everything that determines the result.
        memory: Memory limit of the process in bytes.
        threads: Threads of the engine, and of look-ups.
        progress: Show it on stderr.
        run_steps: Runs independent steps, in any order, and yields (position, result) of each as it
            ends. None: here, one after the other.

    Raises:
        ConfigError: ``folder`` has other contents.
    """

    sizes = WorkSizes()

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        *,
        memory: int,
        threads: int,
        progress: bool,
        run_steps: "RunSteps | None" = None,
    ) -> None:
        self._run_steps = run_steps or _one_by_one
        self._idle: list[_Database] = []
        self.folder, self.threads, self._shown = folder, threads, progress
        self.usable_bytes = memory - _BASE_BYTES
        mark, state = digest_of_settings(settings), folder / "job.json"
        if state.exists():
            if json.loads(state.read_text()) != mark:
                raise ConfigError(
                    f"{folder} holds the unfinished run of other tables or settings (Arrow batches "
                    "without version= are others each time): run that one again to finish it, "
                    "remove the directory, or give overwrite=True"
                )
        # A run may be killed while it writes its very first file: then only the draft is there.
        elif folder.exists() and {p.name for p in folder.iterdir()} - {LOCK, _draft(state).name}:
            raise ConfigError(f"scratch {folder} holds other files: give an empty directory")
        folder.mkdir(parents=True, exist_ok=True)
        # The first file in the directory, so that one without it is recognised as foreign.
        _write_whole(state, json.dumps(mark))
        # From unfinished steps: their names are new each time, so nothing else replaces them.
        for path in (folder / "spill", *folder.glob("**/*.tmp")):
            shutil.rmtree(path, ignore_errors=True)

    @staticmethod
    def is_of_others(folder: Path, settings: Mapping[str, Any]) -> bool:
        """Return whether ``folder`` has work of a run with other settings."""
        state = folder / "job.json"
        return state.exists() and json.loads(state.read_text()) != digest_of_settings(settings)

    def step(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the result of ``make``, from now or from the run that was killed.

        It runs again if that run ended before it was done, so it must accept its own leftovers.
        """
        note = self._note(name)
        if note.exists():
            return json.loads(note.read_text())
        return self._done(name, make())

    def steps(self, makes: Mapping[str, Callable[[], Any]]) -> Iterator[tuple[str, Any]]:
        """Yield (name, result of `step`) of independent steps.

        Results come in the order of completion. Steps may run elsewhere, so their inputs are
        pickled.
        """
        # The open steps are listed before the first result is yielded: the consumer may be slow,
        # and notes of this run must not pass as notes of the one before.
        to_do = [name for name in makes if not self._note(name).exists()]
        for name in makes:
            if name not in to_do:
                yield name, json.loads(self._note(name).read_text())
        for position, result in self._run_steps([makes[name] for name in to_do]):
            yield to_do[position], self._done(to_do[position], result)

    def _note(self, name: str) -> Path:
        return self.folder / "done" / f"{name}.json"

    def _done(self, name: str, result: Any) -> Any:
        note = self._note(name)
        note.parent.mkdir(parents=True, exist_ok=True)
        # The note comes last: a run killed before it repeats the step, one killed after it does
        # not. The result is read back, so that a resumed run gets the same types (tuples are lists)
        # as an uninterrupted one.
        _write_whole(note, json.dumps(result))
        return json.loads(note.read_text())

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without step runner and databases: a copy elsewhere runs one step."""
        return {**vars(self), "_run_steps": _one_by_one, "_idle": []}

    def close(self) -> None:
        """Close the databases that wait for the next `engine`."""
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def engine(self, *, ordered: bool = False, beside: int = 0) -> Iterator[Any]:
        """Yield a connection of DuckDB that spills to the scratch directory.

        Args:
            ordered: Rows keep the order of the file, which costs memory.
            beside: Bytes of memory in use elsewhere meanwhile.

        Raises:
            ConfigError: A table is damaged.
            UsageError: Memory or disk are too small. The run can be resumed.
        """
        limit = int((self.usable_bytes - beside) * self.sizes.engine_share)
        # A database that has not spilled serves the next engine: a small table takes a few
        # milliseconds, and to open a database takes ten.
        database = self._idle.pop() if self._idle else _Database(self.folder, self.threads)
        is_done = False
        try:
            yield database.connect(limit, ordered)
            is_done = True
        # Both keep the notes of finished steps. A full disk may raise either: the engine spills
        # into nine tenths of the free space, and reports the rest as out of memory.
        except duckdb.OutOfMemoryException as error:
            raise UsageError(
                f"{limit / 1e6:.0f} MB for the engine are too few, or {database.spill} is full: "
                f"{first_line(error)}; call again with more memory, or with free space "
                "there, to continue"
            ) from error
        except duckdb.IOException as error:
            raise UsageError(f"{error}; call again to continue") from error
        except duckdb.Error as error:
            # Of a file system in Python it has the traceback alone, as text.
            found = re.search(rf"^[\w.]*\b{ObjectStorageError.__name__}: (.*)", str(error), re.M)
            if found is None:
                raise ConfigError(
                    f"the engine cannot read a table, which may be damaged: {first_line(error)}"
                ) from error
            raise ObjectStorageError(f"{found[1]}; call again to continue") from None
        finally:
            if is_done and database.disconnect():
                self._idle.append(database)
            else:
                database.close()

    def begin_stage(self, number: int, of: int, what: str) -> None:
        """Say which stage of the run begins."""
        if self._shown:
            print(f"stage {number} of {of}: {what}", file=sys.stderr, flush=True)

    @contextmanager
    def work_on(self, name: str, total: int, unit: str = "rows") -> Iterator[Callable[[int], None]]:
        """Show progress of some work; yield a function that adds finished rows."""
        # A resumed run counts earlier rows in its first moment: the rate is too high at first.
        line = ProgressLine(total, shown=self._shown, name=without_only_type(name), unit=unit)
        yield line.add
        line.end()


class _Database:
    """A database of DuckDB in memory, for one `ResumableJob.engine` after the other.

    Args:
        folder: The scratch directory.
        threads: Threads of the engine.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        self.spill = folder / "spill" / uuid.uuid4().hex  # one per database, on any node
        self.spill.mkdir(parents=True)
        self._database = duckdb.connect(
            ":memory:",
            config={
                "threads": threads,
                # The engine's default is in the current directory, whose disk may be full.
                "temp_directory": str(self.spill),
                # A query that needs an extension fails, instead of a download of code.
                "autoinstall_known_extensions": False,
                # Files that were read would stay in memory, beside the indexes of the next step.
                "enable_external_file_cache": False,
            },
        )
        self._connection: Any = None

    def connect(self, memory_limit: int, ordered: bool) -> Any:
        """Return a connection for one engine: what it registers, the next one does not see."""
        self._connection = self._database.cursor()
        self._connection.execute(
            f"SET memory_limit = '{memory_limit}B'; SET preserve_insertion_order = {ordered};"
            # The engine's own bar goes to stdout once a query takes two seconds; stages have
            # theirs.
            "SET enable_progress_bar = false"
        )
        return self._connection

    def disconnect(self) -> bool:
        """End the connection; return whether the database may serve another one.

        One that has spilled may not: it keeps its file, and may keep its memory.
        """
        self._connection.close()
        for filesystem in self._database.list_filesystems():  # they outlive the connection
            self._database.unregister_filesystem(filesystem)
        return not any(self.spill.iterdir())

    def close(self) -> None:
        """Close the database and its connection, and remove what it has spilled."""
        if self._connection is not None:
            self._connection.close()
        self._database.close()
        shutil.rmtree(self.spill, ignore_errors=True)


RunSteps = Callable[[list[Callable[[], Any]]], Iterable[tuple[int, Any]]]


def _one_by_one(makes: list[Callable[[], Any]]) -> Iterator[tuple[int, Any]]:
    for position, make in enumerate(makes):
        yield position, make()


def _write_whole(path: Path, text: str) -> None:
    # Renaming is atomic: an existing note is whole, even after a kill. Nothing is synced, neither
    # notes nor their data: a run can be resumed after a kill, but not after a crash of the machine.
    draft = _draft(path)
    draft.write_text(text)
    os.replace(draft, path)


def _draft(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


# --- steps as tasks of Ray ------------------------------------------------------------------------
#
# The functions are the same as without Ray. Ray places a task on a node with enough processors and
# memory, and runs it again on another if a node is lost. If no node is large enough, it raises
# nothing, so that is checked here.

_LOOK_SECONDS = 5.0
"""Interval of checks of nodes while tasks run."""
_END_SECONDS = 60.0
"""Time limits for tasks that were interrupted, and for killed ones: their node may be
unreachable."""


def runner_of(engine: str, memory: int, threads: int | None) -> AbstractContextManager[Any]:
    """Return a context of (step runner, threads per step); None: steps run here.

    Args:
        engine: ``"duckdb"`` or ``"ray"``.
        memory: Bytes for each step.
        threads: Threads of each step.
    """
    if engine == "duckdb":
        return nullcontext((None, threads or os.cpu_count() or 1))
    return _tasks(memory, threads)


@contextmanager
def _tasks(memory: int, threads: int | None) -> Iterator[tuple[RunSteps, int]]:
    """Yield (step runner for tasks, threads per step).

    It uses the cluster that this process has joined, or that ``RAY_ADDRESS`` names; without one,
    Ray starts one on this machine for the duration.

    Args:
        memory: Bytes of each task.
        threads: Processors of each task. None: those of the smallest node.

    Raises:
        ConfigError: Ray is not installed, or no node is large enough.
    """
    ray = _import_ray()
    # A cluster that the caller joined stays joined: it may run other work there.
    ours = not ray.is_initialized()
    if ours:
        ray.init(log_to_driver=False, include_dashboard=False)
    try:
        # The smallest node's, so that all nodes get tasks; larger ones run several at a time.
        smallest = min((_size(node)[0] for node in _nodes(ray)), default=1)
        count = threads or max(1, int(smallest))
        if not _some_node_fits(ray, memory, count):
            raise ConfigError(_too_small(ray, memory, count))
        yield lambda makes: run_tasks(ray, makes, memory, count), count
    finally:
        if ours:
            ray.shutdown()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a change
    text = 'engine="ray" needs Ray: run pip install "gigl_loader[ray]", or use engine="duckdb"'
    with needed(text):
        import ray
    return ray


def run_tasks(
    ray: Any, makes: list[Callable[[], Any]], memory: int, threads: int
) -> Iterator[tuple[int, Any]]:
    """Run steps as tasks of ``memory`` bytes and ``threads`` processors each; see `RunSteps`."""
    # Ray counts both when it places a task; we have to keep to the memory ourselves.
    task = ray.remote(num_cpus=threads, memory=memory)(_call)
    positions = {task.remote(make): position for position, make in enumerate(makes)}
    try:
        while positions:
            done, _ = ray.wait(list(positions), timeout=_LOOK_SECONDS)
            for ref in done:
                yield positions.pop(ref), _result(ray, ref)
            # Nodes may have left since tasks began. Ray would silently wait for new ones.
            if not done and not _some_node_fits(ray, memory, threads):
                raise UsageError(f"{_too_small(ray, memory, threads)}; call again to continue")
    finally:  # after a failed task, or if the consumer stops; else none is left
        _end(ray, list(positions))


def _end(ray: Any, tasks: list[Any]) -> None:
    """Cancel tasks, and wait until none of them writes: their output is removed next.

    A task that is interrupted ends after it has unwound. A killed one may be reported as ended
    while its process still runs, so only tasks that cannot be interrupted are killed.
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
        # The task's own error class: it tells callers whether a run can be resumed, or must be
        # undone.
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise UsageError(f"a task of Ray was lost: {error}; call again to continue") from error


def _nodes(ray: Any) -> list[Any]:
    return [node for node in ray.nodes() if node["Alive"]]


def _size(node: Any) -> tuple[float, float]:
    """Return processors and bytes of memory of a node."""
    resources = node["Resources"]
    return resources.get("CPU", 0.0), resources.get("memory", 0.0)


def _some_node_fits(ray: Any, memory: int, threads: int) -> bool:
    return any(cpus >= threads and size >= memory for cpus, size in map(_size, _nodes(ray)))


def _too_small(ray: Any, memory: int, threads: int) -> str:
    sizes = "; ".join(
        f"{cpus:g} CPUs, {size / 1e9:.1f} GB" for cpus, size in map(_size, _nodes(ray))
    )
    return (
        f"no node of the Ray cluster has {threads} CPUs and {memory / 1e9:.1f} GB for a task "
        f"(nodes: {sizes or 'none'}): give threads= or memory= that fit"
    )
