"""The old name of the storage server's command does what the command does."""

import json
import runpy
import sys
from typing import Any

import pytest

from gigl_loader.runtime.transport import Listener, Method, Security

MODULE = "gigl_loader.graph_store.serve"


def _run(patch: pytest.MonkeyPatch, *words: str) -> Any:
    """Return the exit code of ``python -m gigl_loader.graph_store.serve WORDS``."""
    patch.setattr(sys, "argv", [MODULE, *words])
    patch.delitem(sys.modules, MODULE, raising=False)  # runpy warns of one that is imported
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(MODULE, run_name="__main__")
    return ended.value.code


def test_it_asks_a_server_for_its_status(monkeypatch, capsys) -> None:
    health = {"health": "serving"}
    method = Method(dict, dict, lambda request, peer: {"value": health})
    listener = Listener("127.0.0.1", 0, Security.resolve(), {"status": method}, "storage server 0")
    listener.start()
    try:
        where = f"127.0.0.1:{listener.address[1]}"
        assert _run(monkeypatch, "--status", "--json", where) == 0
        assert json.loads(capsys.readouterr().out) == health
        health["health"] = "storage server 1 is gone"
        assert _run(monkeypatch, "--status", where) != 0, "the command's exit code is passed on"
    finally:
        listener.close()


def test_it_refuses_what_the_command_refuses(monkeypatch, capsys) -> None:
    assert _run(monkeypatch) == 2
    assert "--root" in capsys.readouterr().err


def test_importing_it_starts_nothing(command_line, monkeypatch) -> None:
    command_line(MODULE)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)  # as above
    assert callable(runpy.run_module(MODULE, run_name="imported")["main"])
