"""What a probe learns from the exit code of `gigl-loader status`."""

import json
import socket
from collections.abc import Iterator

import pytest

from gigl_loader.graph_store import status
from gigl_loader.runtime.transport import Listener, Method, Security

HEALTH = {"health": "serving"}


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a server that says what `HEALTH` holds."""
    method = Method(dict, dict, lambda request, peer: {"value": HEALTH})
    listener = Listener("127.0.0.1", 0, Security.resolve(), {"status": method}, "storage server 0")
    listener.start()
    yield f"127.0.0.1:{listener.address[1]}"
    listener.close()


def _ask(where: str, *more: str) -> int:
    return status.main([where, "--timeout=20", *more])


def test_serving_and_lost_are_told_apart(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _ask(server) == 0
    monkeypatch.setitem(HEALTH, "health", "storage server 1 is gone")
    assert (_ask(server), _ask(server, "--live")) == (status.NOT_WHOLE, 0)


def test_loading_and_stopped_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert _ask(where, "--live") == status.NOT_LISTENING  # a server that loads does not yet
        assert json.loads(capsys.readouterr().out)["health"] == "not listening"
        taken.listen()
        assert _ask(where, "--live", "--timeout=0.2") == status.NO_ANSWER  # SIGSTOP looks like that
        assert json.loads(capsys.readouterr().out)["health"] == "no answer"
