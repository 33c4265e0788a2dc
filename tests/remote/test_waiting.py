"""What a compute process says while it waits, and when it gives up. Real sockets, one process."""

import contextlib
import os
import re
import threading
import time

import pytest
import torch.distributed as dist
from store_cluster import HOST, free_port, info_of, tiny_graph

from gigl_loader.errors import ConfigError, PeerTimeoutError, ServerDiedError
from gigl_loader.graph_store import DistServer
from gigl_loader.remote import client, wire
from gigl_loader.remote.command import parse_args
from gigl_loader.remote.endpoint import Endpoint
from gigl_loader.remote.rpc import Cluster
from gigl_loader.testing import wait_until

TOKEN = wire.cluster_token("waiting")


@contextlib.contextmanager
def _server_0(num_servers, port=0):
    """Storage server 0 of ``num_servers``, the others of which never come."""
    server = DistServer(tiny_graph().partitions(num_servers)[0], 0, num_servers)
    endpoint = Endpoint(server, wire.listen(HOST, port), TOKEN, num_jobs=1)
    try:
        yield endpoint
    finally:
        endpoint.close()


def _join(port, timeout_s, num_servers=2, rank=1, world_size=2):
    return Cluster.join(
        HOST, port, rank=rank, world_size=world_size, num_servers=num_servers, token=TOKEN,
        timeout_s=timeout_s,
    )  # fmt: skip


@pytest.fixture
def talkative(monkeypatch):
    monkeypatch.setattr(wire, "_FIRST_REPORT_S", 0.2)
    monkeypatch.setattr(wire, "_REPORT_EVERY_S", 0.2)


@pytest.mark.usefixtures("talkative")
def test_a_server_that_does_not_answer(caplog):
    port = free_port()
    with pytest.raises(PeerTimeoutError) as caught:
        _join(port, 1.0)
    assert re.fullmatch(
        rf"storage server 0 at 127\.0\.0\.1:{port} did not come up within 1 s "
        r"\(last: \[Errno 111\] Connection refused\): look at its log, check address and firewall, "
        r"or raise the timeout",
        str(caught.value),
    )
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert 2 <= len(lines) <= 5
    assert lines[0] == (
        f"compute process 1 waits for storage server 0 at 127.0.0.1:{port} since 0 s; gives up "
        "after 1 s"
    )


@pytest.mark.usefixtures("talkative")
def test_a_server_that_waits_for_others(caplog):
    with _server_0(num_servers=2) as endpoint:
        port = endpoint.address[1]
        with pytest.raises(PeerTimeoutError) as caught:
            _join(port, 1.0)
        missing = (
            "1 of 2 compute processes are here; storage servers [1] have not loaded their "
            "partitions yet"
        )
        name = f"storage server 0 (127.0.0.1:{port})"
        assert str(caught.value) == f"{name} did not let this process in within 1 s: {missing}"
        lines = [record.getMessage() for record in caplog.records if " waits " in record.message]
        assert lines[0] == (
            f"compute process 1 waits for {name} to let it in ({missing}) since 0 s; gives up "
            "after 1 s"
        )
        assert 2 <= len(lines) <= 5


def test_a_server_that_accepts_and_says_nothing():
    """As one that is stopped does: the system accepts for it. No longer than the caller's limit."""
    with (
        wire.listen(HOST, 0) as sock,
        pytest.raises(PeerTimeoutError, match=r"within 1 s .last: it"),
    ):
        _join(sock.getsockname()[1], 1.0)


def test_whom_to_ask_for_its_status(capsys):
    with pytest.raises(SystemExit):
        parse_args(["--status", "storage0"])
    assert "--status takes HOST:PORT, got 'storage0'" in capsys.readouterr().err
    assert parse_args(["--status", "storage0:1"]).status == "storage0:1"


def test_a_client_that_comes_in_while_the_server_is_made(monkeypatch):
    """The listener accepts in a thread of its own: all that a session reads is there before it."""
    seen = []

    class Listener(wire.Listener):
        def __init__(self, sock, token, admit):
            seen.append((admit.__self__.address, admit.__self__._leader))
            super().__init__(sock, token, admit)

    monkeypatch.setattr(wire, "Listener", Listener)
    with _server_0(num_servers=1) as endpoint:
        assert seen == [(endpoint.address, None)]


def test_a_server_that_ends_while_clients_wait():
    with _server_0(num_servers=2) as endpoint:
        found = []

        def join():
            with pytest.raises(ServerDiedError) as caught:
                _join(endpoint.address[1], 30.0)
            found.append(str(caught.value))

        thread = threading.Thread(target=join)
        thread.start()
        wait_until(lambda: endpoint.status()["clients"], "the client is there")
        endpoint.close("it was shut down")
        thread.join(10)
        assert found
        assert "storage server 0" in found[0]
        assert "is gone: it was shut down. The loaders of this job cannot go on" in found[0]


def test_compute_processes_that_do_not_meet(monkeypatch):
    """All joined the storage cluster, then one died: the others do not wait for half an hour."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("GIGL_LOADER_CLUSTER_TOKEN", "waiting")
    monkeypatch.setattr(client, "_set_client_context", lambda *_: None)  # GLT's is per process
    info = info_of(1, 2)
    with _server_0(num_servers=1, port=info.rpc_master_port):
        thread = threading.Thread(
            target=lambda: _join(info.rpc_master_port, 30.0, num_servers=1).close()
        )
        thread.start()
        with pytest.raises(PeerTimeoutError, match=r"compute process 0 did not meet the others at"):
            client.init_compute_process(0, info, "gloo", timeout_s=3.0)
        thread.join()
    assert not dist.is_initialized()
    with pytest.raises(Exception, match="not part of a graph store"):
        client.current_cluster()
    with wire.listen(HOST, 0) as taken:
        busy = info_of(1, 2, compute_cluster_master_port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match="compute_cluster_master_port"):
            client._start_group(0, 2, busy, "gloo", time.monotonic() + 5)


def test_a_link_that_was_closed_ignores_what_still_comes(caplog):
    """The server answers a request while this side leaves: nothing to report."""
    with _server_0(num_servers=1) as endpoint:
        cluster = _join(endpoint.address[1], 10.0, num_servers=1, rank=0, world_size=1)
        link, held = cluster.links[0], threading.Event()
        monitored = link._connection.close
        link._connection.close = lambda: (held.wait(10), monitored())
        answer = link.call(os.getpid)
        late = threading.Thread(target=link.close)
        late.start()  # the link is over, its reader still reads
        wait_until(answer.done, "the call has failed, or was answered")
        link._connection.send(wire.CALL, 10**6, (os.getpid, (), {}))
        threading.Event().wait(0.3)
        held.set()
        late.join()
        assert not [record for record in caplog.records if record.exc_info]
