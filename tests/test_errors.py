"""Errors cross processes, tell what to do next, and give the system's limits by name."""

import errno
import pickle
import signal
from pathlib import Path

import pytest

from gigl_loader import errors
from gigl_loader.errors import (
    ConfigError,
    JoinRefusedError,
    PeerLostError,
    RemoteError,
    ResourceError,
    SamplingError,
    WorkerDiedError,
    WrongTypeError,
    explained_limits,
    first_line,
)

EXAMPLES: list[errors.GiglLoaderError] = [
    ConfigError("a"),
    WorkerDiedError(3, 99, -9, "no more", "server 1"),
    WorkerDiedError(0, 1, None),
    SamplingError("worker 1", "KeyError: 3", "Traceback"),
    RemoteError("server 0", "OSError"),
    PeerLostError("gone", "silent"),
    JoinRefusedError("no", "refused: mode"),
    errors.JobStoppedError("job 'a' was stopped"),
    ResourceError(errno.ENOSPC, "full"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: errors.GiglLoaderError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_each_error_is_also_the_builtin_that_callers_know() -> None:
    for kind, builtin in {
        ConfigError: ValueError,
        WrongTypeError: TypeError,
        errors.UsageError: RuntimeError,
        errors.NotReadyError: ValueError,
        errors.PeerError: RuntimeError,
        errors.PeerTimeoutError: TimeoutError,
        ResourceError: OSError,
        errors.NativeLibraryError: RuntimeError,
        errors.ProtocolError: RuntimeError,
    }.items():
        assert issubclass(kind, builtin)
        assert issubclass(kind, errors.GiglLoaderError)
    assert issubclass(WrongTypeError, ConfigError)
    assert issubclass(errors.FileChangedError, ConfigError)
    assert issubclass(JoinRefusedError, PeerLostError)


@pytest.mark.parametrize(
    ("exitcode", "text"),
    [
        (1, "exit code 1; its traceback is in the worker's stderr"),
        (-signal.SIGKILL, "SIGKILL; if nobody sent it, the host ran out of memory"),
        (-signal.SIGBUS, "SIGBUS; a page of a mapped file could not be read: its disk failed"),
        (-(signal.SIGRTMIN + 1), f"signal {signal.SIGRTMIN + 1}; if nobody sent it"),
        (None, "exit code unknown; its supervising process was ended"),
    ],
)
def test_a_workers_end_is_named(exitcode: int | None, text: str) -> None:
    found = str(WorkerDiedError(2, 77, exitcode, "3 were replaced", "storage server 1"))
    assert found.startswith("storage server 1: sampling worker 2 (pid 77) died: ")
    assert text in found
    assert found.endswith("; 3 were replaced")


@pytest.mark.parametrize("kind", [SamplingError, RemoteError])
def test_a_remote_traceback_comes_last(kind: type[SamplingError]) -> None:
    assert str(kind("server 0", "KeyError: 3")) == "server 0 failed: KeyError: 3"
    text = str(kind("server 0", "KeyError: 3", "Traceback of there"))
    assert text == "server 0 failed: KeyError: 3\n--- traceback of server 0 ---\nTraceback of there"


@pytest.mark.parametrize("number", errors._LIMITS)
@pytest.mark.parametrize("depth", [0, 2])
def test_a_limit_is_named_however_deep_it_is(number: int, depth: int) -> None:
    """As cause and as context: libraries wrap errors of the system in their own."""

    def work(left: int) -> None:
        if left == 0:
            raise OSError(number, "as the system says it")
        try:
            work(left - 1)
        except Exception as error:
            if left % 2:
                raise ValueError("library") from error
            raise ValueError("library")  # noqa: B904

    doing = explained_limits("writing rows")
    with pytest.raises(ResourceError, match=r"writing rows: .*: ") as caught, doing:
        work(depth)
    assert caught.value.errno == number
    assert isinstance(caught.value.__cause__, OSError if depth == 0 else ValueError)


def test_memory_that_there_is_not_is_named_though_its_error_has_no_number() -> None:
    named = pytest.raises(ResourceError, match=r"writing: .*too little memory")
    with named, explained_limits("writing"):
        raise MemoryError("malloc of size 20000000000 failed")


def test_other_errors_stay_as_they_are() -> None:
    told = ResourceError(errno.ENOSPC, "told already")
    for error in (OSError(errno.ENOENT, "no file"), ValueError("x"), told):
        with pytest.raises(type(error)) as caught, explained_limits("writing"):
            raise error
        assert caught.value is error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("one\ntwo"), "one"),
        (RuntimeError(), "RuntimeError"),
        (EOFError("\n \n"), "EOFError"),
        (ValueError("\n  second"), "second"),
        (OSError(errno.ENOENT, "gone", "a"), "[Errno 2] gone: 'a'"),
        (ValueError("bad. Detail: Python exception: Traceback...\nx"), "bad"),
    ],
)
def test_the_first_line_of_any_error_is_words(error: Exception, line: str) -> None:
    assert first_line(error) == line


def test_nobody_takes_a_first_line_that_may_not_be_there() -> None:
    package = Path(errors.__file__).parent
    assert [f for f in package.rglob("*.py") if "str(error).splitlines()" in f.read_text()] == []
