"""The server that an actor runs, without Ray: a child, watched and started again."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gigl_loader import ResourceError, partition_graph
from gigl_loader.graph_store.ray.actor import ServerOptions, StorageServer, free_address
from gigl_loader.runtime.transport.security import TOKEN_VARIABLE
from gigl_loader.testing import TinyGraph, wait_until
from tests.support.scripts import ForkedPython

pytestmark = pytest.mark.multiprocess

HOST = "127.0.0.1"
TOKEN = {TOKEN_VARIABLE: "0123456789abcdef0123456789abcdef"}


def _options(root: Path, **how: Any) -> ServerOptions:
    address = free_address(0, 1, HOST)
    options = {
        "rank": 0,
        "num_servers": 1,
        "master": address,
        "port": address[1],
        "environment": TOKEN,
    }
    return ServerOptions(root=str(root), **{**options, **how})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray") / "graph"
    partition_graph(TinyGraph.random(60, 400, seed=5).to_pyg(), 1, folder, progress=False)
    return folder


STAND_IN = """
import sys, time
from gigl_loader.runtime.transport import Listener, Method, Security

told = dict(word[2:].split("=") for word in sys.argv[2:])
status = Method(dict, dict, lambda request, peer: {"value": {"health": "serving"}})
address = told["host"], int(told["port"])
listener = Listener(*address, Security.resolve(), {"status": status}, "a stand-in")
print("it listens", file=sys.stderr, flush=True)  # first: once it answers, it may be killed
listener.start()
time.sleep(600)
"""
"""Answers as a server does, and does not import torch."""


@contextmanager
def _started(root: Path, **how: Any) -> Iterator[StorageServer]:
    command = (sys.executable, "-c", STAND_IN)
    one = StorageServer(_options(root, **{"command": command, "health_timeout_s": 120.0, **how}))
    try:
        yield one
    finally:
        one.stop()
        one.stop()


@pytest.fixture
def server(root: Path) -> Iterator[StorageServer]:
    with _started(root, max_restarts=2) as one:
        yield one


def _wait_for(server: StorageServer, state: str, after: int = 0) -> dict[str, Any]:
    """Return the health of a process that was started after generation ``after``."""

    def there() -> bool:
        found = server.health()
        return bool(found["state"] == state and found["generation"] > after)

    wait_until(there, f"the server is {state}: {server.health()}", 200)
    return server.health()


def test_a_server_is_started_again_until_its_restarts_are_used_up(server: StorageServer) -> None:
    assert server.health()["state"] == "loading", "known at once, while it loads"
    first = _wait_for(server, "serving")
    assert first["status"] == {"health": "serving"}

    os.kill(first["pid"], signal.SIGKILL)
    second = _wait_for(server, "serving", first["generation"])
    assert (second["restarts"], second["why"]) == (1, "it was ended by SIGKILL")

    os.kill(second["pid"], signal.SIGKILL)
    third = _wait_for(server, "serving", second["generation"])
    assert third["last_log"] == ["it listens"], "of one start alone"

    os.kill(third["pid"], signal.SIGKILL)
    assert _wait_for(server, "failed")["restarts"] == 2


def test_a_server_that_does_not_answer_is_started_again(root: Path) -> None:
    """Ray would never notice. A busy machine may do it more than once: it is a short patience."""
    with _started(root, health_timeout_s=3.0) as server:
        first = _wait_for(server, "serving")
        os.kill(first["pid"], signal.SIGSTOP)
        later = _wait_for(server, "serving", first["generation"])
        assert "did not answer" in later["why"]


def test_the_token_is_in_no_log(root: Path) -> None:
    """Ray writes the arguments of an actor into its logs and errors."""
    assert TOKEN[TOKEN_VARIABLE] not in repr(_options(root))


def test_a_server_that_is_told_to_stop_is_not_started_again(server: StorageServer) -> None:
    pid = _wait_for(server, "serving")["pid"]
    server.stop()
    found = server.health()
    assert (found["state"], found["restarts"]) == ("stopped", 0)
    assert not Path(f"/proc/{pid}").exists()


def test_a_server_that_cannot_start_says_why(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = "import sys; sys.exit('there is no such graph')"
    with _started(root, max_restarts=0, command=(sys.executable, "-c", failing)) as server:
        found = _wait_for(server, "failed")
    assert (found["served"], found["why"]) == (False, "it ended with exit code 1")
    assert found["last_log"] == ["there is no such graph"]
    assert capsys.readouterr().err == "there is no such graph\n", (
        "for the actor's log, which Ray keeps"
    )


ROOT = Path(__file__).parents[3]
SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.graph_store.on_ray.test_actor import StorageServer, _options, _wait_for
server = StorageServer(_options(Path(sys.argv[2])))
health = _wait_for(server, "serving")
assert health["status"]["pid"] == health["pid"]
print(health["pid"], flush=True)
time.sleep(600)
"""


def test_a_real_server_ends_with_its_actor(root: Path) -> None:
    actor = ForkedPython(
        [sys.executable, "-c", SCRIPT, str(ROOT), str(root)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert actor.stdout is not None
        pid = int(actor.stdout.readline())
    finally:
        actor.kill()
        actor.communicate()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the server is gone")


def test_servers_of_one_node_get_different_ports() -> None:
    with pytest.raises(ResourceError, match=r"no port of 192\.0\.2\.1 .* an address of this node"):
        free_address(0, 5, "192.0.2.1")  # kept for examples in texts: no machine has it
    found = {free_address(rank, 5, HOST) for rank in range(5)}
    assert len(found) == 5
    assert {port % 5 for _, port in found} == {0, 1, 2, 3, 4}


def test_the_actor_is_there_before_torch_is() -> None:
    script = "import sys, gigl_loader.graph_store.ray.actor as s; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "gigl_loader.graph_store.ray.actor" in found.stdout.split(), found.stderr
    assert not {"torch", "ray", "torch_geometric"} & set(found.stdout.split())
