"""A run that can be killed: steps that are done are noted, others start again."""

import hashlib
import json
import os
import resource
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from gigl_loader.dataset.directory import LOCK
from gigl_loader.errors import ConfigError, UsageError

_ENGINE_SHARE = 0.6
"""Of the memory, for the engine: it goes over its limit, and Python and Arrow need some, too."""
_BASE_BYTES = 100_000_000
"""Of the memory, for the interpreter and the libraries, before a row is read."""
_SPARE_FILES = 64
"""Open files beside those of partitions: those of the engine, of tables and of libraries."""


def _mark_of(settings: Mapping[str, Any]) -> str:
    # A digest, since the settings name every file of every table. `default=str`: paths and numpy's
    # numbers are no JSON, and are compared only. Memory and threads are no settings: a run that had
    # too little memory is to go on with more.
    return hashlib.blake2b(json.dumps(settings, default=str).encode()).hexdigest()


class Job:
    """Scratch space, memory and progress of one run.

    Args:
        folder: The scratch directory. What a run with the same settings left there is used.
        settings: Everything that decides the result.
        memory: Bytes that the process may use.
        threads: Of the engine, and of look-ups.
        progress: Show it on stderr.
        run_steps: Runs steps that do not need each other, in any order, and yields (position,
            result) of each as it ends. None: here, one after the other.

    Raises:
        ConfigError: ``folder`` holds something else.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], *, memory: int, threads: int,
        progress: bool, run_steps: "RunSteps | None" = None,
    ) -> None:  # fmt: skip
        self._run_steps = run_steps or _one_by_one
        self.folder, self.threads, self._shown = folder, threads, progress
        self.usable_bytes = memory - _BASE_BYTES
        mark, state = _mark_of(settings), folder / "job.json"
        if state.exists():
            if json.loads(state.read_text()) != mark:
                raise ConfigError(
                    f"{folder} holds the unfinished run of other tables or settings: run that one "
                    "again to finish it, remove the directory, or give overwrite=True, which is "
                    "--overwrite in the shell"
                )
        elif folder.exists() and any(path.name != LOCK for path in folder.iterdir()):
            raise ConfigError(f"scratch {folder} holds other files: give an empty directory")
        folder.mkdir(parents=True, exist_ok=True)
        # The first file in the directory, so that one without it is known to be another's.
        _write_whole(state, json.dumps(mark))
        # Of steps that were not done: their names are new each time, so nothing else replaces them.
        for path in (folder / "spill", *folder.glob("**/*.tmp")):
            shutil.rmtree(path, ignore_errors=True)

    @staticmethod
    def is_of_others(folder: Path, settings: Mapping[str, Any]) -> bool:
        """Return whether ``folder`` holds what a run with other settings left."""
        state = folder / "job.json"
        return state.exists() and json.loads(state.read_text()) != _mark_of(settings)

    def step(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returns, or returned in the run that was killed.

        It is run again where the run ended before it was done, so it must not mind what it left.
        """
        note = self._note(name)
        if note.exists():
            return json.loads(note.read_text())
        return self._done(name, make())

    def steps(self, makes: Mapping[str, Callable[[], Any]]) -> Iterator[tuple[str, Any]]:
        """Yield (name, what `step` would return) of steps that do not need each other.

        They come as they end. They may run elsewhere, so what they are made of is pickled.
        """
        # What is left to do is listed before the first result goes out: who takes results may be
        # slow, and the notes of this run must not be taken for those of the one before.
        to_do = [name for name in makes if not self._note(name).exists()]
        for name in makes:
            if name not in to_do:
                yield name, json.loads(self._note(name).read_text())
        for position, found in self._run_steps([makes[name] for name in to_do]):
            yield to_do[position], self._done(to_do[position], found)

    def _note(self, name: str) -> Path:
        return self.folder / "done" / f"{name}.json"

    def _done(self, name: str, found: Any) -> Any:
        note = self._note(name)
        note.parent.mkdir(parents=True, exist_ok=True)
        # The note comes last: a run that is killed before it repeats the step, one that is killed
        # after it does not. The result is read back, so that a run that goes on gets the same
        # types (tuples are lists) as one that was never killed.
        _write_whole(note, json.dumps(found))
        return json.loads(note.read_text())

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what hands out steps: a copy elsewhere runs one."""
        return {**vars(self), "_run_steps": _one_by_one}

    @contextmanager
    def engine(self, *, ordered: bool = False, beside: int = 0) -> Iterator[Any]:
        """Yield a connection of DuckDB that spills to the scratch directory.

        Args:
            ordered: Rows keep the order of the file, which costs memory.
            beside: Bytes of memory that something else takes meanwhile.

        Raises:
            UsageError: Memory or disk are too small. The run can go on.
        """
        spill = self.folder / "spill" / uuid.uuid4().hex  # of each engine, wherever it runs
        spill.mkdir(parents=True)
        limit = int((self.usable_bytes - beside) * _ENGINE_SHARE)
        connection = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{limit}B",
                "threads": self.threads,
                # The engine's default is a directory below the current one, which may be full.
                "temp_directory": str(spill),
                "preserve_insertion_order": ordered,
                # A query that needs an extension fails, instead of downloading code.
                "autoinstall_known_extensions": False,
            },
        )
        try:
            yield connection
        # Both leave the notes of done steps where they are. A full disk may be either: the engine
        # spills into nine tenths of what is free, and calls the rest of it out of memory.
        except duckdb.OutOfMemoryException as error:
            raise UsageError(
                f"{limit / 1e6:.0f} MB for the engine are too few, or {spill} is full: "
                f"{str(error).splitlines()[0]}; call again with more memory, or with free space "
                "there, to go on"
            ) from error
        except duckdb.IOException as error:
            raise UsageError(f"{error}; call again to go on where it was") from error
        finally:
            connection.close()
            shutil.rmtree(spill, ignore_errors=True)

    @contextmanager
    def stage(self, name: str, total: int, unit: str = "rows") -> Iterator[Callable[[int], None]]:
        """Show progress of a stage; yield what to call with the rows that were done."""
        stage = _Stage(name, total, self._shown, unit)
        yield stage.add
        stage.end()


RunSteps = Callable[[list[Callable[[], Any]]], Iterable[tuple[int, Any]]]


def _one_by_one(makes: list[Callable[[], Any]]) -> Iterator[tuple[int, Any]]:
    for position, make in enumerate(makes):
        yield position, make()


def allow_files(count: int) -> None:
    """Let this process open ``count`` more files: the soft limit is often 1,024.

    Raises:
        UsageError: It may not have as many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        held = len(os.listdir("/proc/self/fd"))
    except OSError:  # it needs one more to look: all of them are in use
        held = soft
    need = held + count + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or need <= soft:
        return
    if hard != resource.RLIM_INFINITY and need > hard:
        raise UsageError(
            f"{need} files have to be open at a time, and this process may have {hard}: raise "
            "ulimit -n and call again to go on, or make fewer partitions"
        )
    # To what is needed and no more: programs that still use select() break on descriptors past
    # 1,023, and it is the caller's process.
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def _write_whole(path: Path, text: str) -> None:
    # Renaming is atomic: a note that is there is whole, whenever the run is killed. Nothing is
    # synced, neither notes nor what they vouch for: a run goes on after a kill, and not after a
    # crash of the machine.
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(text)
    os.replace(draft, path)


class _Stage:
    """A line on stderr, renewed on a terminal and written at most every 10 s elsewhere."""

    def __init__(self, name: str, total: int, shown: bool, unit: str = "rows") -> None:
        self._name, self._total, self._shown, self._unit = name, total, shown, unit
        self._start, self._done = time.monotonic(), 0
        self._last = self._start

    def add(self, rows: int) -> None:
        self._done += rows
        now = time.monotonic()
        # Often enough for an eye; in a log file, a day's run is some thousand lines at most.
        if self._shown and now - self._last > (0.2 if sys.stderr.isatty() else 10.0):
            self._last = now
            self._print(now, "\r" if sys.stderr.isatty() else "\n")

    def end(self) -> None:
        if self._shown:
            self._print(time.monotonic(), "\n")

    def _print(self, now: float, end: str) -> None:
        # A run that goes on counts what was done before in its first moment: the rate is too high
        # at first. The bounds keep a stage without rows or time from dividing by zero.
        rate = self._done / max(now - self._start, 1e-3)
        left = (self._total - self._done) / max(rate, 1e-3)
        print(
            f"{self._name}: {self._done:,} of {self._total:,} {self._unit}, {rate:,.0f} "
            f"{self._unit}/s, {now - self._start:.1f} s, {max(left, 0):.0f} s left",
            end=end, file=sys.stderr, flush=True,
        )  # fmt: skip
