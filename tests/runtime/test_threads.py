"""A thread of ours that ends by an error says so, and what hangs on it ends."""

import ast
from pathlib import Path

import pytest

from gigl_loader.runtime.threads import new_thread, nothing_hangs_on_it, start_aside

PACKAGE = Path(__file__).parent.parent.parent / "gigl_loader"


def _run(target, on_death) -> None:
    thread = new_thread(target=target, name="the tester", on_death=on_death)
    assert thread.daemon
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), SystemExit(3)])
def test_who_relies_on_a_thread_is_told_of_its_death(error, caplog) -> None:
    def fail() -> None:
        raise error

    told: list[BaseException] = []
    _run(fail, told.append)
    assert told == [error]
    assert f"thread 'the tester' ended by {type(error).__name__}" in caplog.text
    assert "Traceback" in caplog.text


def test_an_end_without_an_error_is_no_death(caplog) -> None:
    told: list[BaseException] = []
    _run(lambda: None, told.append)
    assert told == []
    assert caplog.text == ""


def test_what_cannot_be_ended_is_said_too(caplog) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    _run(fail, fail)
    assert "what hung on thread 'the tester' could not be ended" in caplog.text
    nothing_hangs_on_it(ValueError())


def test_a_thread_aside_is_a_started_daemon_whose_death_is_logged(caplog) -> None:
    def fail(error: Exception) -> None:
        raise error

    thread = start_aside("the tester", fail, OSError(24, "Too many open files"))
    assert thread.daemon
    thread.join(60)
    assert not thread.is_alive()
    assert "thread 'the tester' ended by OSError" in caplog.text


def test_no_thread_is_started_in_another_way() -> None:
    """`threading.Thread` dies in silence."""
    found = [
        f"{file.relative_to(PACKAGE)}:{node.lineno}"
        for file in PACKAGE.rglob("*.py")
        if file.name != "threads.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "threading.Thread"
    ]
    # its requests are answered by threads of `http.server`
    assert [one for one in found if not one.startswith("graph_store/server/metrics.py")] == []
