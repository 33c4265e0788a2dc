"""`run_python` does what the interpreter would, but for the imports."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gigl_loader.sources.workers.pool import process_state
from gigl_loader.testing import Footprint, wait_until
from tests.support.scripts import FinalizedPython, forked_pythons, run_python

pytestmark = pytest.mark.multiprocess


def test_a_script_has_its_arguments_streams_folder_and_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    (tmp_path / "beside.py").write_text("TEXT = 'beside'")
    script.write_text(
        "import atexit, os, sys, beside\n"
        "atexit.register(print, 'the end')\n"
        "print(sys.argv[1:], beside.TEXT, sys.stdin.read(), os.getcwd(), os.environ['A'])\n"
        "assert __name__ == '__main__' and __file__ == sys.argv[0]\n"
        "raise SystemExit('no luck')\n"
    )
    folder = tmp_path / "here"
    folder.mkdir()
    environment = {**os.environ, "A": "b"}
    done = run_python(str(script), "x", text="in", folder=folder, environment=environment)
    assert done.stdout == f"['x'] beside in {folder} b\nthe end\n"
    assert (done.returncode, done.stderr) == (1, "no luck\n")


@pytest.mark.parametrize(
    ("words", "text", "out", "code"),
    [
        (("-",), "import sys; print(sys.argv, __name__)", "['-'] __main__\n", 0),
        (("-m", "this_is_no_module"), "", "", 1),
        (("-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), "", "", -9),
    ],
)
def test_words_as_of_the_interpreter(
    words: tuple[str, ...], text: str, out: str, code: int
) -> None:
    done = run_python(*words, text=text)
    assert (done.stdout, done.returncode) == (out, code), done.stderr
    assert ("Traceback" in done.stderr) == (code == 1)


CHILD = """
import os, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-u", "-c", sys.argv[1], "x"], env={**os.environ, "A": "b"}, cwd=sys.argv[2],
    start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
)
assert os.getpgid(child.pid) == child.pid, "at once: who sends the group a signal means this one"
assert child.communicate("in")[0].split() == [
    "['-c',", "'x']", "in", sys.argv[2], "b", str(os.getpid()), str(child.pid), "True"
]
assert child.returncode == 3
killed = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
assert killed.poll() is None
killed.kill()
assert killed.wait(60) == -9
said = subprocess.run([sys.executable, "-c", "1 / 0"], capture_output=True, text=True)
assert (said.returncode, said.stdout) == (1, "") and "ZeroDivisionError" in said.stderr
assert subprocess.run(["sh", "-c", "exit 7"]).returncode == 7
flags = subprocess.run([sys.executable, "-S", "-c", "import sys; sys.exit('torch' in sys.modules)"])
assert flags.returncode == 0, "options of the interpreter: a new one"
"""


def test_what_a_script_starts_is_a_child_of_its_own(tmp_path: Path) -> None:
    tells = (
        "import os, sys; print(sys.argv, sys.stdin.read(), os.getcwd(), os.environ['A'], "
        "os.getppid(), os.getsid(0), 'torch' in sys.modules); sys.exit(3)"
    )
    done = run_python("-c", CHILD, tells, str(tmp_path))
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


def test_pythons_are_forked_from_one_that_has_imported() -> None:
    """As the processes of pytest-xdist are; what they start themselves is not."""
    tells = (
        "import subprocess, sys; print('colorsys' in sys.modules, 'torch' in sys.modules); "
        "sys.argv[1:] and subprocess.run([sys.executable, '-c', sys.argv[1]])"
    )
    with forked_pythons("colorsys"):
        done = subprocess.run(
            [sys.executable, "-u", "-c", tells, tells], capture_output=True, text=True
        )
    assert (done.stdout, done.stderr) == ("True False\nFalse False\n", "")


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(2)", 2), ("os.kill(os.getpid(), signal.SIGINT); signal.pause()", -signal.SIGINT)],
)
def test_an_interpreter_that_is_torn_down(end: str, code: int) -> None:
    """What modules hold goes last, after threads have ended and functions of ``atexit``."""
    script = (
        "import atexit, os, signal, sys, threading\n"
        "class Held:\n"
        "    def __del__(self, print=print): print('gone')\n"
        "held = Held()\n"
        "atexit.register(print, 'exit')\n"
        "go_on = threading.Event()\n"
        "threading.Thread(target=lambda: go_on.wait() and print('thread')).start()\n"
        f"try: {end}\n"
        "finally: go_on.set()\n"
    )
    process = FinalizedPython(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, errors = process.communicate(timeout=120)
    assert (out, process.returncode) == ("thread\nexit\ngone\n", code)
    assert ("KeyboardInterrupt" in errors) == (code < 0)


def test_ranks_have_the_environment_of_torchrun() -> None:
    code = (
        "import torch, torch.distributed as dist; dist.init_process_group('gloo'); "
        "sum = torch.tensor([dist.get_rank() + 1]); dist.all_reduce(sum); print(sum.item()); "
        "dist.destroy_process_group()"
    )
    done = run_python("-c", code, ranks=2)
    assert (done.stdout, done.returncode) == ("3\n3\n", 0), done.stderr


def test_what_does_not_end_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    """Also what has no parent any more, which is below no process of the test."""
    before, told = set(Footprint.below().pids), tmp_path / "pid"
    code = (
        "import pathlib, subprocess, sys; child = subprocess.Popen(['sleep', '1000']); "
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid)); child.wait()"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        run_python("-c", code, str(told), timeout_s=2.0)
    assert set(Footprint.below().alive()) <= before
    child = int(told.read_text())
    wait_until(lambda: process_state(child) in ("gone", "dead"), "it has ended, too")


def test_one_rank_that_fails_is_the_end_of_all() -> None:
    code = "import os, signal; os.environ['RANK'] == '1' and os._exit(5); signal.pause()"
    done = run_python("-c", code, ranks=2)
    assert done.returncode in (5, -9)
