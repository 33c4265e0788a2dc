"""Scripts in processes that have imported torch and this package before they start."""

import atexit
import contextlib
import ctypes
import inspect
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from gigl_loader.runtime.processes import ForkedProcess
from gigl_loader.testing import free_port
from tests.support import zygote


def run_python(
    *words: str,
    ranks: int | None = None,
    text: str = "",
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout_s: float = 240.0,
) -> "subprocess.CompletedProcess[str]":
    """Run ``python *words`` without the seconds that its imports take.

    For tests of what a script does, in a process of its own with all that belongs to one: limits,
    signals, ``__main__``, the end of the interpreter. It is forked from the fork server, see
    `ForkedProcess`: a test of the start itself, or of what is imported when, uses `subprocess`.
    What the script starts with `subprocess` as ``[sys.executable, ...]`` is a `ForkedPython`, too.

    Args:
        words: ``"-c", code``; ``"-m", module, *arguments``; ``"-"`` for a script from standard
            input; or ``script, *arguments``.
        ranks: Start this many, with the environment that torchrun gives; None: one, without.
        text: Standard input.
        environment: Instead of ``os.environ``.
        folder: Where it runs; None: here.
        timeout_s: For all of them; what they started is killed with them.

    Returns:
        The output of all ranks, and the first exit code that is not 0.

    Raises:
        subprocess.TimeoutExpired: One did not end in time. None is left.
    """
    with tempfile.TemporaryDirectory() as pipes:
        started = [
            _Running(list(words), Path(pipes) / str(rank), text, variables, folder)
            # all are started before any is waited for: ranks wait for each other
            for rank, variables in enumerate(_environments(ranks, environment))
        ]
        try:
            _await_all(started, time.monotonic() + timeout_s, words, timeout_s)
        finally:
            for one in started:
                one.kill()
        codes = [one.process.exitcode or 0 for one in started]
        code = next((code for code in codes if code), 0)
        out, err = ("".join(one.printed(to) for one in started) for to in ("out", "err"))
        return subprocess.CompletedProcess(words, code, out, err)


_Popen: Any = subprocess.Popen  # whose private methods no types are known of
_execute_child = _Popen._execute_child
_INTERRUPTED = -signal.SIGINT
"""For the exit code of a script that Ctrl-C has ended."""
_CLONE_NEWNET = 0x40000000  # of linux/sched.h
_FLAGS = ("-u",)
"""Options of the interpreter that change nothing here: all streams of these are unbuffered."""


def _fork_or_execute(popen: "subprocess.Popen[Any]", *how: Any) -> None:
    """Do as `subprocess.Popen` does where it starts a process whose streams are all set up."""
    _start(popen, how, to_children=True)


def _fork_this_one_or_execute(popen: "subprocess.Popen[Any]", *how: Any) -> None:
    _start(popen, how, to_children=False)


def _start(popen: "subprocess.Popen[Any]", how: tuple[Any, ...], to_children: bool) -> None:
    # a private method of the standard library, by the names of its parameters: their order has
    # changed
    given = inspect.signature(_execute_child).bind(popen, *how).arguments
    words, current = _words_of(given), zygote.current_zygote()
    if words is None or current is None:
        _execute_child(popen, *how)
        return
    streams = [
        # -1: the stream is not redirected, and is this process's own
        number if (fd := given[name]) == -1 else fd
        for number, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
    ]
    script = (
        "from tests.support import scripts; "
        f"scripts.be({words!r}, {to_children}, {isinstance(popen, FinalizedPython)})"
    )
    environment = os.environ if given["env"] is None else given["env"]
    popen.pid = current.fork(
        script,
        streams,
        dict(environment),
        os.fspath(given["cwd"] or os.getcwd()),
        new_session=bool(given["start_new_session"]),
    )
    popen._child_created = True  # type: ignore[attr-defined]  # private
    pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    popen._close_pipe_fds(*(given[name] for name in pipes))  # type: ignore[attr-defined]  # private


def _words_of(given: dict[str, Any]) -> list[str] | None:
    """Return what the interpreter is told; None: it is another program, or starts another way."""
    args = given["args"]
    # a shell line; a function that would have to run in the zygote; numbers that a fork cannot
    # promise
    if isinstance(args, str | bytes | os.PathLike) or given["preexec_fn"] or given["pass_fds"]:
        return None
    program, *words = map(os.fspath, args)
    while words and words[0] in _FLAGS:
        del words[0]
    # without words it is an interactive interpreter
    if program != sys.executable or not words:
        return None
    return words if words[0] in ("-c", "-m", "-") or words[0][:1] != "-" else None


class ForkedPython(subprocess.Popen[Any]):
    """``subprocess.Popen([sys.executable, ...])``, but for the seconds that its imports take.

    A child of this process with an interpreter of its own, as far as a script can tell. It is
    forked from the zygote of this process, see `tests.support.zygote`, and has one itself;
    without a zygote, or with options of the interpreter, it starts as any other.
    """

    _execute_child = _fork_or_execute


class FinalizedPython(ForkedPython):
    """A `ForkedPython` that ends as an interpreter does, for tests of what happens then.

    Modules and what they hold are torn down, and one that Ctrl-C has ended tells so by its signal.
    The others end without, which is a fraction of a second less for each.
    """


@contextlib.contextmanager
def forked_pythons(*modules: str) -> Iterator[None]:
    """Fork what starts as ``[sys.executable, ...]`` from one process that has imported ``modules``.

    For pytest-xdist, whose processes would each import torch. What they start in turn is not
    forked, but for what says so: `ForkedProcess`, `ForkedPython`, `run_python`.
    """
    with zygote.new_zygote(*modules) as new, zygote.use_zygote(new):
        _Popen._execute_child = _fork_this_one_or_execute
        try:
            yield
        finally:
            _Popen._execute_child = _execute_child


def enter_namespace(name: str) -> None:
    """Let this process be on another machine, a network namespace, as `ip netns exec` does."""
    with open(f"/var/run/netns/{name}") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {name}")
    if zygote.uses_zygote():
        zygote.fork_zygote()  # another one: this process's own is where it has been so far


def in_namespace(name: str, *words: str) -> list[str]:
    """Return the command of a `ForkedPython` that runs ``python *words`` in a network namespace."""
    script = f"from tests.support import scripts; scripts.enter_namespace({name!r}); "
    return [sys.executable, "-c", f"{script}scripts._interpret({list(words)!r})"]


def be(words: list[str], to_children: bool, finalized: bool) -> None:
    """Be the interpreter that is told ``words``: the streams, folder and environment are set."""
    if os.environ.get(zygote.VARIABLE) != "0":
        zygote.fork_zygote()
    if finalized:
        _prepare_to_interpret(to_children)
        _end_the_interpreter(_call(words))
    raise SystemExit(_interpret_to_the_end(words, to_children))


class _Running:
    def __init__(
        self, words: list[str], pipes: Path, text: str, variables: dict[str, str], folder: Any
    ) -> None:
        self._pipes = pipes
        pipes.mkdir()
        (pipes / "in").write_text(text)
        self.process = ForkedProcess(
            target=_run, args=(words, pipes, variables, folder or Path.cwd())
        )
        self.process.start()
        assert self.process.pid is not None
        self._pid = self.process.pid

    def printed(self, to: str) -> str:
        path = self._pipes / to
        return path.read_text() if path.exists() else ""

    def kill(self) -> None:
        """Kill it with all that it has started."""
        if self.process.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                # The group, which _run() has made: also what the script started. Before it has,
                # there is none of that number.
                os.killpg(self._pid, signal.SIGKILL)
            self.process.kill()
        self.process.join()


def _environments(ranks: int | None, environment: Mapping[str, str] | None) -> list[dict[str, str]]:
    variables = dict(os.environ if environment is None else environment)
    if ranks is None:
        return [variables]
    # one port for all of them, or they would not meet
    size, port = str(ranks), str(free_port())
    group = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1"}
    group["MASTER_PORT"] = port
    return [
        {**variables, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)
    ]


def _await_all(
    started: list[_Running], deadline: float, words: tuple[str, ...], timeout_s: float
) -> None:
    """Return when all have ended, or one has failed."""
    while alive := [one for one in started if one.process.exitcode is None]:
        # the others may wait for the one that failed: whoever called kills them
        if any(one.process.exitcode for one in started):
            return
        left = max(0.0, deadline - time.monotonic())
        if not wait([one.process.sentinel for one in alive], left):
            printed = "".join(one.printed("out") + one.printed("err") for one in started)
            raise subprocess.TimeoutExpired(words, timeout_s, printed)


def _run(words: list[str], pipes: Path, variables: dict[str, str], folder: Path) -> None:
    # a group of its own, to be killed with all that is in it
    os.setsid()
    for number, name in enumerate(("in", "out", "err")):
        flags = os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY
        # files, not pipes: nobody has to read them while the script runs
        fd = os.open(pipes / name, flags, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    raise SystemExit(_interpret_to_the_end(words))


def _interpret_to_the_end(words: list[str], to_children: bool = True) -> int:
    """Do what the interpreter does between its start and its end; return the exit code."""
    _prepare_to_interpret(to_children)
    code = _call(words)
    # as the interpreter does at its end, in this order: threads are waited for, atexit functions
    # run, streams are flushed
    vars(threading)["_shutdown"]()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == _INTERRUPTED:
        # whoever started it sees that Ctrl-C ended it, and not an exit code
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    return code


def _prepare_to_interpret(to_children: bool) -> None:
    sys.stdin, sys.stdout, sys.stderr = (
        # new objects: those of the process that was forked may hold what it had not yet written
        open(number, mode, buffering=1, closefd=False)  # noqa: SIM115 - until the end of the process
        for number, mode in enumerate(("r", "w", "w"))
    )
    if to_children:
        _Popen._execute_child = _fork_or_execute
    _use_threads(os.environ.get("OMP_NUM_THREADS"))


def _end_the_interpreter(code: int) -> None:
    """Tear the interpreter down, and end the process, as ``python`` does."""
    if code == _INTERRUPTED:
        code, libc = signal.SIGINT, ctypes.CDLL(None)
        libc.on_exit(libc["raise"], None)  # once all is torn down, C calls it with the exit code
    ctypes.pythonapi.Py_Exit(int(code))


def _use_threads(count: str | None) -> None:
    """Do what OpenMP does with the variable where torch is imported."""
    torch = sys.modules.get("torch")
    if count is not None and torch is not None:
        torch.set_num_threads(int(count))


def _call(words: list[str]) -> int:
    """Do as the interpreter does; return the exit code."""
    try:
        _interpret(words)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()  # holds what it held
        traceback.print_exc()
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _interpret(words: list[str]) -> None:
    first, *rest = words
    if first == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first in ("-c", "-"):
        sys.path.insert(0, "")
        sys.argv = [first, *rest[first == "-c" :]]
        code, name = (rest[0], "<string>") if first == "-c" else (sys.stdin.read(), "<stdin>")
        # Fresh, so that the script does not see the names of this process's main module; in
        # sys.modules, so that pickle and inspect find its functions.
        main = type(sys)("__main__")
        if first == "-":
            main.__file__ = name
        sys.modules["__main__"] = main
        exec(compile(code, name, "exec"), main.__dict__)
    else:
        sys.path.insert(0, str(Path(first).resolve().parent))
        sys.argv = words
        runpy.run_path(first, run_name="__main__")
