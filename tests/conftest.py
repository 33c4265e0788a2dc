import gc
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.draws import ALL

# Here and in all that is started: each process would compile the package, and rewrite all tests,
# anew; half of what a process that runs tests does before its first one.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# before torch is imported, here and in all that is started: its threads sleep while they wait for
# each other, as on a busy machine they would spin for most of a test's processor time
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Ray's processes are at niceness 15 of their own accord: beside busy tests one of them took ten
# minutes for an import
os.environ.setdefault("RAY_worker_niceness", "0")

# In memory, where there is much: before ext4 makes a file it looks at each one that was removed in
# the last five minutes, which with thousands of tests was a thirtieth of their processor time.
_MEMORY = Path("/dev/shm")
if (
    "PYTEST_DEBUG_TEMPROOT" not in os.environ
    and os.access(_MEMORY, os.W_OK)
    and shutil.disk_usage(_MEMORY).free > 4 << 30
):
    # not by the name of the package: its tests look for what it may leave there
    _root = _MEMORY / f"tests-of-loaders-{os.getuid()}"
    _root.mkdir(mode=0o700, exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(_root)

pytest_plugins = ("tests.support.conditions",)

IMPORTED_ONCE = "sklearn.datasets", "matplotlib.backends.backend_agg", "warp"
"""By nearly each process of each example, which takes it a second; and by each that runs tests."""

_FEW_OBJECTS = 100_000
"""A search for garbage among so many takes some hundredths of a second."""

settings.register_profile(
    "all",  # make test-all
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # by the clock: a busy machine would fail it
    max_examples=ALL,
)
settings.register_profile("quarter", settings.get_profile("all"), max_examples=ALL // 4)
settings.load_profile("quarter")


@pytest.hookimpl(trylast=True)  # once it is known which tests run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch  # here: the process that only hands tests to others needs none of it

    from tests.support import glt

    here = {"gpu": torch.cuda.is_available(), "glt": glt.available, "native": glt.native_available}
    for item in items:
        for marker, available in here.items():
            if item.get_closest_marker(marker) and not available:
                item.add_marker(pytest.mark.skip(reason=f"no {marker} on this machine"))
    _long_ones_first(items)


def _long_ones_first(items: list[pytest.Item]) -> None:
    """Let each process that runs tests begin with long ones: short ones fill the end.

    Each is given a run of ``items`` of equal length at first, so these are dealt like cards: files
    whose tests start processes, then the others. A hand has just that length: the first tests of a
    longer one would be the last that the process before it runs.

    What waits most of its time is spread over the first: several at once leave the cores idle.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    # as pytest-xdist cuts them
    lengths = [(len(items) + position) // count for position in range(count)]
    hands: list[list[pytest.Item]] = [[] for _ in lengths]
    waiting = [[item] for item in items if item.get_closest_marker("longest")]
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("longest"):
            files.setdefault(item.path, []).append(item)
    waiting += [
        files.pop(item.path)
        for item in items
        if item.get_closest_marker("waits") and item.path in files
    ]
    starts = {item.path for item in items if item.get_closest_marker("multiprocess")}
    every = 1 + len(starts) // (2 * len(waiting) + 1)  # so that all have begun by the middle
    for position, path in enumerate(sorted(files, key=lambda path: path not in starts)):
        if position % every == 0 and waiting:
            hands[position // every % count].extend(waiting.pop(0))
        min(hands, key=len).extend(files[path])  # a file stays together: its fixtures are shared
    hands[0].extend(chain(*waiting))
    spare = [
        hand.pop()
        for hand, length in zip(hands, lengths, strict=True)
        for _ in range(len(hand) - length)
    ]
    for hand, length in zip(hands, lengths, strict=True):
        hand.extend(spare.pop() for _ in range(length - len(hand)))
    items[:] = chain(*hands)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Import once for all processes that run tests: they are forked from one that has done so.

    Not the tests: their modules hold graphs in shared memory, by descriptors that a fork has not.
    """
    from tests.support.scripts import forked_pythons

    until_the_end = ExitStack()
    config.add_cleanup(until_the_end.close)
    # the oldest versions are tried without what the examples and some tests need
    here = [name for name in IMPORTED_ONCE if find_spec(name.partition(".")[0])]
    until_the_end.enter_context(forked_pythons("tests.support.warm", "pytest", *here))
    gc.freeze()  # pytest collects garbage at its end, several times


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the fork server import while the first tests run, and be there before tests count."""
    from gigl_loader.runtime.processes import start_fork_server

    if session.config.option.collectonly:
        return
    gc.collect()
    gc.freeze()  # the garbage collector need not look at modules and tests again and again
    if any(item.get_closest_marker("multiprocess") for item in session.items):
        with pytest.MonkeyPatch.context() as patch:
            # Python 3.11 does not tell the fork server where `tests` is
            patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
            start_fork_server("tests.support.warm", "pytest")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave what the tests of a file have imported out of later searches for garbage.

    Ray, Warp, sympy...: with them a search takes most of a second, and many tests ask for one.
    """
    another_file = nextitem is not None and nextitem.path != item.path
    if another_file and len(gc.get_objects()) > _FEW_OBJECTS:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _loggers_stay() -> Iterator[None]:
    """Undo what a test, or a library in it, does to loggers that other tests read.

    In full runs lines in Ray's format came to a test that expects none, and no line to one that
    expects some, each after others in the same process.
    """
    before = {one: _settings(one) for one in _loggers()}
    yield
    for logger in _loggers():
        # one that the test was the first to ask for is as new
        level, disabled, propagate, handlers = before.get(logger, (logging.NOTSET, False, True, []))
        logger.disabled, logger.propagate = disabled, propagate
        for added in set(logger.handlers) - set(handlers):
            if not type(added).__module__.startswith("_pytest"):  # its own, of each phase
                logger.removeHandler(added)
        if logger.level != level:
            logger.setLevel(level)


def _loggers() -> list[logging.Logger]:
    """Return the root of all loggers and those of this package."""
    known = [logging.root, *logging.root.manager.loggerDict.values()]
    return [
        one
        for one in known
        if isinstance(one, logging.Logger) and one.name.partition(".")[0] in ("root", "gigl_loader")
    ]


def _settings(logger: logging.Logger) -> tuple[int, bool, bool, list[logging.Handler]]:
    return logger.level, logger.disabled, logger.propagate, list(logger.handlers)


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """Fail whoever leaves a signal blocked or handled: what later tests start would inherit it."""
    before = _signals()
    yield
    assert _signals() == before


def _signals() -> object:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return blocked, [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]


@pytest.fixture(scope="session", autouse=True)
def _fast_supervisors() -> Iterator[None]:
    """Start the supervisors of sampling workers from a process that has imported all they need."""
    from tests.support.zygote import fast_supervisors

    with fast_supervisors():
        yield


@pytest.fixture
def starts_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes of the test have no zygote, which takes each a fiftieth of a second.

    A pool of workers that one of them starts nevertheless starts as a user's does.
    """
    from tests.support import zygote

    monkeypatch.setenv(zygote.VARIABLE, "0")


@pytest.fixture(scope="session", autouse=True)
def _certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """With GIGL_LOADER_TEST_TLS=1, let all processes of all tests speak TLS with certificates."""
    if os.environ.get("GIGL_LOADER_TEST_TLS") != "1":
        yield
        return
    from gigl_loader.runtime.transport import certs
    from gigl_loader.runtime.transport.security import TLS_DIR_VARIABLE

    folder = certs.make_folder(tmp_path_factory.mktemp("certificates"), ["127.0.0.1", "localhost"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TLS_DIR_VARIABLE, str(folder))
        yield
