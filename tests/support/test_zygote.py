"""Supervisors from a zygote: children as any other, that end with their trainer."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gigl_loader.runtime.processes import ForkedProcess
from gigl_loader.runtime.system import read_stat
from gigl_loader.sources.workers import pool
from gigl_loader.sources.workers.pool import process_state
from gigl_loader.testing import Footprint, wait_until
from tests.support.scripts import ForkedPython
from tests.support.zygote import NAME, slow_supervisors, uses_zygote

pytestmark = pytest.mark.multiprocess

_SCRIPT = """
import os, sys
out = open(int(sys.argv[1]), "w")
print(os.getppid(), os.getcwd(), os.environ.get("SET_LATE"),
      len(os.listdir("/proc/self/fd")), sys.stdin.read() == "", file=out)
"""


def test_it_is_a_child_with_the_environment_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET_LATE", "yes")
    monkeypatch.chdir(tmp_path)
    assert uses_zygote()
    read, write = os.pipe()
    with open(read) as answer:
        process = pool.start_supervisor(_SCRIPT, [write])
        os.close(write)
        told = answer.read().split()
    assert process.wait(60) == 0
    fds = 5  # three streams, the pipe, and what lists them
    assert told == [str(os.getpid()), str(tmp_path), "yes", str(fds), "True"]


def test_orphans_of_others_are_not_adopted() -> None:
    """Its parent would never wait for them: it adopts while the zygote forks, and then no more."""
    pool.start_supervisor("", []).wait(60)
    left = ["sh", "-c", "sleep 600 > /dev/null & echo $!"]
    orphan = int(subprocess.run(left, stdout=subprocess.PIPE, check=True).stdout)
    try:
        stat = read_stat(orphan)
        assert stat is not None
        assert stat[1] != str(os.getpid())
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_an_error_is_its_exit_code() -> None:
    assert pool.start_supervisor("1 / 0", []).wait(60) == 1


def test_one_that_is_killed() -> None:
    process = pool.start_supervisor("import signal; signal.pause()", [])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL


def test_whoever_knows_its_pid_sees_no_zygote() -> None:
    """Footprints leave zygotes out: they would miss one that has no name of its own yet."""
    for _ in range(5):
        process = pool.start_supervisor("import signal; signal.pause()", [])
        name = Path(f"/proc/{process.pid}/comm").read_text().strip()
        process.kill()
        process.wait(60)
        assert name == "python"


def test_where_the_start_is_tested_there_is_none() -> None:
    with slow_supervisors():
        assert not uses_zygote()
        process = pool.start_supervisor("import sys; sys.exit('torch' in sys.modules)", [])
        assert process.wait(60) == 0
    assert uses_zygote()


def _tell_of_a_spawned_process(queue: Any) -> None:
    queue.put((os.getpid(), os.getppid(), "torch" in sys.modules, uses_zygote()))
    raise SystemExit(5)


def test_processes_that_multiprocessing_spawns_are_forked() -> None:
    """They have a zygote themselves, for the workers of their loaders."""
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.SimpleQueue()
    process = spawn.Process(target=_tell_of_a_spawned_process, args=(queue,))
    process.start()
    try:
        wait_until(lambda: not queue.empty(), "it has told")
        assert queue.get() == (process.pid, os.getpid(), True, True)
    finally:
        process.join(60)
    assert process.exitcode == 5


def _start_and_wait(folder: Path) -> None:
    assert uses_zygote()
    process = pool.start_supervisor("import signal; signal.pause()", [])
    forked = os.fork()
    if forked == 0:  # as long as this one lives, its end of the zygote's socket is open
        signal.pause()
    (folder / f"{process.pid} {forked}").touch()
    process.wait()


def _children_of(pid: int | None) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        stat = read_stat(int(entry.name)) if entry.name.isdigit() else None
        if stat is not None and stat[1] == str(pid):
            found.append(int(entry.name))
    return found


def test_the_zygote_of_a_process_ends_with_it(tmp_path: Path) -> None:
    process, children = ForkedProcess(target=_start_and_wait, args=(tmp_path,)), set[int]()
    process.start()
    try:
        wait_until(lambda: list(tmp_path.iterdir()), "it has started one")
        (told,) = tmp_path.iterdir()
        children = {int(pid) for pid in told.name.split()}
        seen = Footprint.below(process.pid)
        assert set(seen.pids) == children, "zygotes are the tests' own and do not count"
        (zygote,) = set(_children_of(process.pid)) - children
        assert Path(f"/proc/{zygote}/comm").read_text().strip() == NAME
        assert not _children_of(zygote), "what was between it and the child is no zombie"
        process.kill()
        wait_until(lambda: process_state(zygote) in ("gone", "dead"), "the zygote has ended", 20)
    finally:
        process.kill()
        process.join()
        for child in children:
            os.kill(child, signal.SIGKILL)
    seen.check_gone()


_CHILD = """
import subprocess, sys
print(subprocess.run([sys.executable, "-c", "print(5)"], capture_output=True, text=True).stdout)
"""
_WITH_A_SECOND_ZYGOTE = f"""
import subprocess, sys
from tests.support.zygote import fork_zygote
fork_zygote()
subprocess.run([sys.executable, "-c", {_CHILD!r}], check=True)
"""


def test_what_a_second_zygote_forks_keeps_the_one_of_its_own() -> None:
    """It inherits the first one's object, whose descriptor is another file's there."""
    with ForkedPython(
        [sys.executable, "-c", _WITH_A_SECOND_ZYGOTE], stdout=subprocess.PIPE, text=True
    ) as process:
        said, _ = process.communicate(timeout=200)
    assert (process.returncode, said.split()) == (0, ["5"])
