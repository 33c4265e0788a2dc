"""An executable that forks: to who starts it, it is Python."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gigl_loader.testing import wait_until
from tests.support.executable import forked_executable

pytestmark = pytest.mark.multiprocess

SCRIPT = """
import os, sys
print("torch" in sys.modules, "tabnanny" in sys.modules, __name__, *sys.argv[1:], flush=True)
print(os.environ["COLOUR"], os.environ.get("HOME"), os.getcwd(), sys.executable, flush=True)
os.write(int(sys.argv[1]), b"by the descriptor")
print(sys.stdin.read(), file=sys.stderr, flush=True)
sys.exit(3)
"""
WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    with forked_executable("tabnanny") as path:
        yield path


@contextmanager
def _started(python: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Give a process that waits, and the pid that it says it has."""
    with subprocess.Popen(
        [python, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as started:
        assert started.stdout is not None
        try:
            yield started, int(started.stdout.readline())
        finally:
            started.kill()


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_it_is_as_the_interpreter(python: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    read, write = os.pipe()
    with os.fdopen(read) as pipe:
        done = subprocess.run(
            ["/bin/sh", "-c", '"$@"', "sh", python, "-u", str(script), str(write), "a b", ""],
            env={"COLOUR": "blue"},
            cwd=tmp_path,
            input="what it is told",
            pass_fds=[write],
            capture_output=True,
            text=True,
            timeout=200,
        )
        os.close(write)
        assert pipe.read() == "by the descriptor"
    assert done.stdout.splitlines() == [
        f"True True __main__ {write} a b ",
        f"blue None {tmp_path} {python}",
    ]
    assert (done.stderr, done.returncode) == ("what it is told\n", 3)


def test_what_it_does_not_fork_it_executes(python: str) -> None:
    words = [python, "-S", "-c", "import sys; print('torch' in sys.modules, sys.flags.no_site)"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.stderr) == ("False 1\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_go_through(python: str, number: signal.Signals) -> None:
    with _started(python) as (started, pid):
        assert pid != started.pid
        started.send_signal(number)
        assert started.wait(200) == -number
        wait_until(lambda: _is_gone(pid), "the process is gone")


def test_it_ends_as_the_process_ends(python: str) -> None:
    with _started(python) as (started, pid):
        os.kill(pid, signal.SIGUSR1)
        assert started.wait(200) == -signal.SIGUSR1


def test_nothing_outlives_the_block() -> None:
    with ExitStack() as block:
        python = block.enter_context(forked_executable())
        with _started(python) as (started, pid):
            block.close()
            wait_until(lambda: _is_gone(pid), "the process is gone")
            assert started.wait(200) == 1
    assert not Path(python).parent.exists()
