"""What a compute process says while it waits, and when it gives up. Real sockets, one process."""

import contextlib
import re
import socket
import threading
from dataclasses import replace

import pytest
import torch.distributed as dist

from gigl_loader.errors import ConfigError, JoinRefusedError, PeerTimeoutError, ServerDiedError
from gigl_loader.graph_store import status
from gigl_loader.graph_store.client import compute_process
from gigl_loader.graph_store.client.storage_cluster import Cluster
from gigl_loader.graph_store.serve import parse_serve
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.server.storage_process import Endpoint
from gigl_loader.runtime.transport import Security
from gigl_loader.testing import free_port, wait_until
from tests.graph_store.store_cluster import HOST, info_of, tiny_graph

pytestmark = pytest.mark.waits

SECURITY = Security.local()


@contextlib.contextmanager
def _server_0(num_servers, port=0, security=SECURITY, **how):
    """Storage server 0 of ``num_servers``, the others of which never come."""
    server = StorageService(tiny_graph().partitions(num_servers)[0], 0, num_servers)
    endpoint = Endpoint(server, HOST, port, security, **{"num_jobs": 1, **how})
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.close()


def _join(port, timeout_s, num_servers=2, rank=1, world_size=2, security=SECURITY):
    return Cluster.join(
        HOST,
        port,
        job_name="train",
        rank=rank,
        world_size=world_size,
        num_servers=num_servers,
        security=security,
        timeout_s=timeout_s,
    )


@pytest.mark.usefixtures("talkative")
def test_a_server_that_does_not_answer(caplog):
    port = free_port()
    with pytest.raises(PeerTimeoutError) as caught:
        _join(port, 1.4)
    assert re.fullmatch(
        rf"storage server 0 at 127\.0\.0\.1:{port} did not come up within \d+ s "
        r"\(last: \[Errno 111\] Connection refused\): see its log, check address, port and "
        r"firewall",
        str(caught.value),
    )
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert 1 <= len(lines) <= 5
    assert re.fullmatch(
        rf"compute process 1 has waited \d+ s for storage server 0 at 127\.0\.0\.1:{port} "
        r"\(nothing listens there: it loads, was not started, or has served its jobs\); it "
        "gives up after 1 s",
        lines[0],
    )


@pytest.mark.usefixtures("talkative")
def test_a_server_that_waits_for_others(caplog):
    missing = (
        "1 of 2 compute processes of job 'train' are here; storage servers [1] have not loaded "
        "their partitions yet"
    )
    with _server_0(num_servers=2) as endpoint:
        port = endpoint.address[1]
        for limit_s in (1.4, 5.0, 20.0, 60.0):  # where the first ends before a busy server answers
            caplog.clear()
            with pytest.raises(PeerTimeoutError) as caught:
                _join(port, limit_s)
            if missing in (error := str(caught.value)):
                break
    name = f"storage server 0 at 127.0.0.1:{port}"
    assert error == f"{name} did not let this process in within {limit_s:.0f} s: {missing}"
    lines = [record.getMessage() for record in caplog.records if " has waited " in record.message]
    waited = re.escape(f"{name} to let it in ({missing})")
    pattern = rf"compute process 1 has waited \d+ s for {waited}; it gives up after {limit_s:.0f} s"
    told = [bool(re.fullmatch(pattern, line)) for line in lines]
    assert any(told)
    assert told == sorted(told), "first perhaps that it said nothing"
    assert len(lines) <= 7 * limit_s, "one for each pause, not for each look"


def test_a_server_that_accepts_and_says_nothing():
    """As one that is stopped does: the system accepts for it. No longer than the caller's limit."""
    with (
        socket.create_server((HOST, 0)) as sock,
        pytest.raises(PeerTimeoutError, match=r"within \d+ s .last: it did not answer"),
    ):
        _join(sock.getsockname()[1], 1.0)


def test_another_service_says_what_it_answered():
    """A port that somebody else listens on is no reason to wait."""

    def serve(sock):
        with sock.accept()[0] as connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server((HOST, 0)) as sock:
        thread = threading.Thread(target=serve, args=(sock,))
        thread.start()
        with pytest.raises(JoinRefusedError, match=r"another service, .*HTTP/1"):
            _join(sock.getsockname()[1], 20.0)
        thread.join()


def test_whom_to_ask_for_its_status(capsys):
    with pytest.raises(SystemExit):
        status.parser().parse_args(["storage0"])
    assert "HOST:PORT, got 'storage0'" in capsys.readouterr().err
    assert status.parser().parse_args(["storage0:1"]).where == ("storage0", 1)
    assert status.parser().parse_args(["[::1]:1"]).where == ("::1", 1)
    with pytest.raises(SystemExit):
        parse_serve([])
    assert "--root" in capsys.readouterr().err


def test_a_client_that_comes_in_while_the_server_is_made():
    """The port is taken at once, and nobody is let in before all is there that a client reads."""
    server = StorageService(tiny_graph().dataset())
    endpoint = Endpoint(server, HOST, 0, SECURITY, num_jobs=1)
    try:
        with pytest.raises(PeerTimeoutError, match="did not answer the handshake"):
            _join(endpoint.address[1], 0.5, num_servers=1, rank=0, world_size=1)
        endpoint.start()
        _join(endpoint.address[1], 30.0, num_servers=1, rank=0, world_size=1).close()
        assert endpoint.over.wait(60)
        assert endpoint.jobs_served == 1
    finally:
        endpoint.close()


def test_a_server_that_ends_while_clients_wait():
    with _server_0(num_servers=2) as endpoint:
        found = []

        def join():
            with pytest.raises(ServerDiedError) as caught:
                _join(endpoint.address[1], 60.0)
            found.append(str(caught.value))

        thread = threading.Thread(target=join)
        thread.start()
        wait_until(lambda: endpoint.status()["clients"], "the client is there")
        endpoint.close(words="it was shut down")
        thread.join(60)
        assert found
        assert "storage server 0" in found[0]
        assert "is gone: it was shut down. Start it again with the same arguments" in found[0]


def test_compute_processes_that_do_not_meet(monkeypatch):
    """All joined the storage cluster, then one died: the others do not wait for half an hour."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("GIGL_LOADER_CLUSTER_TOKEN", "waiting")
    monkeypatch.setenv("GIGL_LOADER_JOB", "train")
    monkeypatch.setattr(
        compute_process, "_set_client_context", lambda *_: None
    )  # GLT's is per process
    info = info_of(1, 2)
    security = Security.resolve()

    def try_to_meet(info, error, words):
        """Join as rank 0 of two, of which the other one ends once it has joined."""
        thread = threading.Thread(
            target=lambda: _join(info.rpc_master_port, 60.0, 1, security=security).close()
        )
        thread.start()
        with pytest.raises(error, match=words) as caught:
            compute_process.init_compute_process(0, info, "gloo", timeout=6.0)
        thread.join()
        assert "\n" not in str(caught.value), "the first line of torch's error"
        assert not dist.is_initialized()
        with pytest.raises(Exception, match="not part of a graph store"):
            compute_process.current_cluster()

    port = info.rpc_master_port
    with _server_0(num_servers=1, port=port, security=security, num_jobs=2):
        where = rf"{HOST}:{info.compute_cluster_master_port}"
        words = rf"compute process 0 did not meet the others at {where} within"
        try_to_meet(info, PeerTimeoutError, words)
        with socket.create_server((HOST, 0)) as taken:
            busy = taken.getsockname()[1]
            again = replace(info, compute_cluster_master_port=busy)
            words = rf"cannot listen on {HOST}:{busy}, .* another compute_cluster_master_port"
            try_to_meet(again, ConfigError, words)


def test_the_first_client_says_how_many_come():
    """The servers were not told; a client that counts others is refused with both figures."""
    with _server_0(num_servers=1, num_jobs=None) as endpoint:
        port = endpoint.address[1]
        first = []
        thread = threading.Thread(
            target=lambda: first.append(_join(port, 60.0, 1, rank=0, world_size=2))
        )
        thread.start()
        wait_until(lambda: endpoint.status()["clients"] == [0], "the first client is there")
        with pytest.raises(ConfigError, match="has 3 processes, the others say 2"):
            _join(port, 60.0, 1, rank=1, world_size=3)
        with pytest.raises(ConfigError, match="two processes joined as compute rank 0"):
            _join(port, 60.0, 1, rank=0, world_size=2)
        with pytest.raises(ConfigError, match="counts 2 storage servers, server 0 counts 1"):
            _join(port, 60.0, 2, rank=1, world_size=2)
        second = _join(port, 60.0, 1, rank=1, world_size=2)
        thread.join(60)
        assert (first[0].world_size, first[0].job, second.job) == (2, 0, 0)
        third = []
        thread = threading.Thread(target=lambda: third.append(_join(port, 60.0, 1, 0, 1)))
        thread.start()  # of the next job, which may count others
        first[0].close()
        second.close()
        thread.join(60)
        assert third[0].job == 1
        third[0].close()
