"""A storage server's process: what it refuses before it listens, signals, and how it ends."""

import logging
import signal
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gigl_loader.errors import ConfigError, PeerTimeoutError, ServerDiedError
from gigl_loader.graph_store import init_storage_process
from gigl_loader.graph_store.server.storage_process import StorageProcess
from gigl_loader.runtime.transport import EndReason, certs
from gigl_loader.runtime.transport.security import (
    INSECURE_VARIABLE,
    TLS_DIR_VARIABLE,
    TOKEN_VARIABLE,
)
from tests.graph_store.store_cluster import HOST, info_of, tiny_graph
from tests.support.scripts import run_python

# --- before it listens ----------------------------------------------------------------------------


@pytest.fixture
def nothing_set(monkeypatch):
    for variable in (TLS_DIR_VARIABLE, TOKEN_VARIABLE, INSECURE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


def _check_nobody_listens(info) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, info.rpc_master_port), 5)


@pytest.mark.usefixtures("nothing_set")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({}, r"--tls DIR.*gigl-loader token.*--insecure"),
        ({"token": "secret"}, r"has 6 characters.*`gigl-loader token`"),
        ({"token": "a" * 40}, r"can be guessed"),
    ],
)
def test_a_server_that_strangers_reach_is_refused_before_it_listens(how, words):
    info = info_of(1, 1)
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        init_storage_process(0, info, tiny_graph().dataset(), host="192.0.2.1", **how)
    _check_nobody_listens(info)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_others_cannot_use_is_refused(host):
    """Others are told it, and would look for this server on their own machines."""
    info = info_of(1, 1)
    with pytest.raises(ConfigError, match=f"'{host}' means all addresses .* by which they reach"):
        init_storage_process(0, info, tiny_graph().dataset(), host=host, insecure=True)
    _check_nobody_listens(info)


@pytest.mark.usefixtures("nothing_set")
def test_a_master_whose_name_means_loopback_is_refused(host_names):
    """Distributions map a machine's own name to 127.0.1.1: nobody else would ever come."""
    host_names["storage0"] = "127.0.1.1"
    info = info_of(2, 1, storage_cluster_master_ip="storage0")
    with pytest.raises(ConfigError, match=r"'storage0' resolves to 127\.0\.1\.1 on this machine"):
        init_storage_process(0, info, tiny_graph().partitions(2)[0], token=certs.token())


@pytest.mark.parametrize(
    ("rank", "how", "words"),
    [
        (1, {}, r"storage_rank must be in \[0, 1\), got 1"),
        (-1, {}, r"storage_rank must be in \[0, 1\), got -1"),
        (0, {"num_jobs": 0}, "num_jobs must be at least 1.*got 0"),
        (
            0,
            {"network_timeout": float("inf")},
            "network_timeout must be a finite number of seconds > 0",
        ),
        (0, {"reconnect_timeout": -1.0}, "reconnect_timeout must be seconds >= 0, got -1.0"),
        (0, {"reconnect_timeout": float("nan")}, "reconnect_timeout must be seconds >= 0, got nan"),
    ],
)
def test_figures_out_of_range_are_refused_before_it_listens(rank, how, words) -> None:
    info = info_of(1, 1)
    with pytest.raises(ConfigError, match=words):
        init_storage_process(rank, info, tiny_graph().dataset(), **how)
    _check_nobody_listens(info)


def test_the_wrong_partition_is_refused_before_it_listens() -> None:
    info = info_of(4, 1)
    parts = tiny_graph().partitions(2)
    with pytest.raises(ConfigError, match="has partition 1, but must have partition 0"):
        init_storage_process(0, info, parts[1])
    with pytest.raises(ConfigError, match="storage server"):
        init_storage_process(0, info_of(1, 1), parts[0])
    _check_nobody_listens(info)


def test_a_start_that_fails_gives_the_port_back() -> None:
    """Server 1 never finds server 0; another attempt in the same process takes its port again."""
    with socket.create_server((HOST, 0)) as sock:
        port = sock.getsockname()[1]
    for _ in range(2):
        with pytest.raises(PeerTimeoutError, match="did not come up"):
            init_storage_process(
                1, info_of(2, 1), tiny_graph().partitions(2)[1], port=port, timeout=0.2
            )


# --- until it ends --------------------------------------------------------------------------------


class _Endpoint:
    """What a `StorageProcess` asks of its endpoint."""

    def __init__(self, error: ServerDiedError | None = None, *, over: bool = True) -> None:
        self.over, self.error, self.jobs_served = threading.Event(), error, 2
        self.ends: list[tuple[EndReason, str]] = []
        if over:
            self.over.set()

    def close(self, end: EndReason, words: str) -> None:
        self.ends.append((end, words))


def _process(endpoint: Any) -> StorageProcess:
    server: Any = SimpleNamespace()
    return StorageProcess(server, endpoint)


class _Over(threading.Event):
    """Is told to end in the instant in which `wait` has the event's lock."""

    def wait(self, timeout=None):
        with vars(self)["_cond"]:
            signal.raise_signal(signal.SIGTERM)
        return super().wait(timeout)


def test_a_signal_that_comes_while_a_lock_is_held(caplog):
    endpoint = _Endpoint()
    endpoint.over = _Over()
    caplog.set_level(logging.INFO)
    assert _process(endpoint).wait(60) == 2
    assert [end for end, _ in endpoint.ends] == [EndReason.SHUTDOWN]
    assert caplog.messages == ["SIGTERM: ending"]


_ENDS = """
import atexit, gc
from gigl_loader.graph_store import init_storage_process
from gigl_loader.testing import TinyGraph
from gigl_loader.testing.local_processes import store_info

atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > frozen))
partition, info = TinyGraph.random(60, 400, seed=5).partitions(1)[0], store_info(1, 1)
for _ in range(2):
    with init_storage_process(0, info, partition) as server:
        server.stop()
        server.wait()
frozen = gc.get_freeze_count()
print(gc.isenabled())
"""


def test_the_end_of_a_servers_process_looks_for_no_garbage() -> None:
    """Seen: "served" after half a second, and another 6 s at a load of 16 to end."""
    done = run_python("-c", _ENDS)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "False", "True"]), done.stderr


def test_jobs_that_are_over_end_the_others_too() -> None:
    endpoint = _Endpoint()
    assert _process(endpoint).wait() == 2
    assert [end for end, _ in endpoint.ends] == [EndReason.JOB_OVER]


def test_a_lost_server_is_told_to_clients_and_then_raised() -> None:
    lost = ServerDiedError("storage server 1 is gone")
    endpoint = _Endpoint(lost)
    with pytest.raises(ServerDiedError) as caught:
        _process(endpoint).wait()
    assert caught.value is lost
    assert endpoint.ends == [(EndReason.LOST_PEER, "it lost another storage server")]


def test_told_to_end_it_ends_in_good_order_though_another_was_lost() -> None:
    endpoint = _Endpoint(ServerDiedError("storage server 1 is gone"), over=False)
    process = _process(endpoint)
    process.stop()
    assert process.wait() == 2
    assert [end for end, _ in endpoint.ends] == [EndReason.SHUTDOWN]


def test_a_wait_that_ends_early_goes_on_serving() -> None:
    endpoint = _Endpoint(over=False)
    assert _process(endpoint).wait(0.0) == 2
    assert endpoint.ends == []


def test_another_thread_waits_without_handlers() -> None:
    """Python lets the main thread alone set them."""
    endpoint, found = _Endpoint(), []
    thread = threading.Thread(target=lambda: found.append(_process(endpoint).wait()))
    thread.start()
    thread.join(60)
    assert found == [2]
