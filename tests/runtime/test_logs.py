"""Whose log line it is."""

import logging
import platform
import threading
from collections.abc import Callable, Iterator

import pytest

from gigl_loader.runtime.logs import WhereFilter, answering, know, showing_where

HOST = f"host={platform.node()}"
NOTHING = {"job": None, "rank": None, "server": None}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    know(**NOTHING)
    monkeypatch.delenv("RANK", raising=False)
    yield
    know(**NOTHING)


def _where() -> str:
    record = logging.LogRecord("gigl_loader", logging.INFO, "", 0, "text", (), None)
    assert WhereFilter().filter(record) is True
    return str(vars(record)["where"])


def test_a_line_says_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _where() == HOST
    monkeypatch.setenv("RANK", "5")
    assert _where() == f"rank=5 {HOST}"
    know(job=2, rank=3)
    assert _where() == f"job=2 rank=3 {HOST}", "the environment is for those that know nothing"
    know(job=None, rank=None, nothing=None)
    assert _where() == f"rank=5 {HOST}"


def test_a_server_speaks_for_whom_it_answers_in_that_thread_alone() -> None:
    know(server=0)
    inside, go_on, other = threading.Event(), threading.Event(), []

    def answer() -> None:
        with answering(job=1, rank=9):
            inside.set()
            go_on.wait(60)

    thread = threading.Thread(target=answer)
    thread.start()
    assert inside.wait(60)
    other.append(_where())
    go_on.set()
    thread.join()
    assert other == [f"server=0 {HOST}"]
    with answering(job=1, rank=4):
        with answering(job=2, rank=6):
            assert _where() == f"server=0 job=2 rank=6 {HOST}"
        assert _where() == f"server=0 job=1 rank=4 {HOST}"
    assert _where() == f"server=0 {HOST}"


def test_handlers_show_it_inside_the_block(handlers_of_root: Callable[..., None]) -> None:
    root, handler = logging.getLogger(), logging.NullHandler()
    level = root.level
    handlers_of_root(handler)
    with showing_where():
        assert any(isinstance(one, WhereFilter) for one in handler.filters)
        assert root.handlers == [handler]
    assert handler.filters == []
    assert root.level == level


def test_where_there_is_no_handler_lines_go_to_stderr(
    handlers_of_root: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    level = root.level
    handlers_of_root()
    with showing_where():
        logging.getLogger("gigl_loader.test").info("hello")
    assert f"INFO [{HOST}] gigl_loader.test: hello" in capsys.readouterr().err
    assert root.handlers == []
    assert root.level == level
