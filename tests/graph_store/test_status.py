"""What a probe learns from the exit code of `gigl-loader status`."""

import json
import socket
from collections.abc import Iterator

import pytest

from gigl_loader.graph_store import status
from gigl_loader.runtime.sizes import size_in_words
from gigl_loader.runtime.transport import Listener, Method, Security
from gigl_loader.testing import wait_until
from tests.graph_store.in_process import joined, storage

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
        assert (
            _ask(where, "--live", "--json") == status.NOT_LISTENING
        )  # a server that loads does not yet
        assert json.loads(capsys.readouterr().out)["health"] == "not listening"
        taken.listen()
        assert (
            _ask(where, "--live", "--json", "--timeout=0.2") == status.NO_ANSWER
        )  # SIGSTOP looks like that
        assert json.loads(capsys.readouterr().out)["health"] == "no answer"


def test_people_get_a_table_and_programs_json(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"ranks": [0, 1], "producers": [3], "seeds_per_s": 12345.6}
    said = {
        "health": "storage servers [1] are away: see `away`",
        "server_rank": 0,
        "num_servers": 2,
        "partition_idx": 0,
        "num_partitions": 2,
        "num_nodes": {"user": 1200, "item": 30},
        "pid": 4711,
        "uptime_s": 7200.0,
        "jobs_served": 5,
        "away": {"1": "it has not come yet"},
        "jobs": {"nightly": {**job, "queued_batches": 8, "queued_bytes": 4_000_000}},
    }
    monkeypatch.setattr(f"{__name__}.HEALTH", said)
    assert _ask(server, "--json") == status.NOT_WHOLE
    assert json.loads(capsys.readouterr().out) == said
    assert _ask(server) == status.NOT_WHOLE
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["partition", "0 of 2"] in lines
    assert ["nodes", "1,200 user, 30 item"] in lines
    assert ["process", "4711, up 2.0 h"] in lines
    assert ["server", "1 away it has not come yet"] in [[a, " ".join(b.split())] for a, b in lines]
    assert lines[-2][0] == "job"
    assert lines[-1][1].split() == ["2", "1", "12,346", "8", *size_in_words(4_000_000).split()]
    monkeypatch.setitem(said, "jobs", {})
    _ask(server)
    assert capsys.readouterr().out.splitlines()[-1] == "no job is here"


def test_the_jobs_are_those_of_compute_processes() -> None:
    """The other servers of the cluster stood there, too, under an empty name."""
    with storage(2) as endpoints:
        zero = endpoints[0]
        wait_until(lambda: zero.status()["servers"] == [1], "server 1 is known")
        with joined(zero.address, 2, job_name="nightly"):
            wait_until(lambda: zero.status()["clients"] == [0], "the job is here")
            wait_until(lambda: "nightly" in zero.server.status()["jobs"], "its job has begun")
            assert {*zero.status()["jobs"]} == {*zero.server.status()["jobs"]} == {"nightly"}
        wait_until(lambda: zero.status()["clients"] == [], "it has left")
        assert zero.server.status()["jobs"] == {}
