"""Connections to one storage server: what errors of either side become."""

import os
from concurrent.futures import Future

import pytest

from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    JoinRefusedError,
    PeerError,
    PeerLostError,
    PeerTimeoutError,
    ProtocolError,
    RemoteError,
    SamplingError,
    ServerDiedError,
    UsageError,
    WorkerDiedError,
)
from gigl_loader.graph_store.client.connection import ServerConnection, result_of
from gigl_loader.runtime.transport import EndReason, Security
from tests.graph_store.in_process import joined, storage


@pytest.mark.multiprocess
def test_a_link_that_was_closed_says_so(caplog):
    with storage() as (endpoint,):
        with joined(endpoint.address) as cluster:
            connection = cluster.connections[0]
            assert connection.call("ping").result(60) == os.getpid()
            cluster.close()
        with pytest.raises(Exception, match="this process left the cluster"):
            connection.call("ping").result(10)
        assert not [record for record in caplog.records if record.exc_info]


@pytest.fixture
def connection() -> ServerConnection:
    """To a server that nobody asks anything: no connection is made."""
    return ServerConnection(3, ("127.0.0.1", 7), Security.local(), "me", "a session", 1.0)


def test_errors_keep_their_class_and_name_the_server(connection: ServerConnection) -> None:
    name = "storage server 3 at 127.0.0.1:7"
    error: GiglLoaderError
    for error in (ConfigError("no"), UsageError("no"), PeerError("no")):
        found = connection.note_failure(error)
        assert type(found) is type(error)
        assert str(found) == f"{name}: no"
    sampling = connection.note_failure(SamplingError("worker 1", "ValueError: no", "a traceback"))
    assert isinstance(sampling, SamplingError)
    assert sampling.where == f"{name}, worker 1"
    assert sampling.remote_traceback == "a traceback"
    remote = connection.note_failure(RemoteError("the listener", "KeyError: no", "another"))
    assert isinstance(remote, RemoteError)
    assert (remote.where, remote.remote_traceback) == (name, "another")
    died = connection.note_failure(WorkerDiedError(1, 99, -9, "its note"))
    assert isinstance(died, WorkerDiedError)
    assert (died.worker, died.pid, died.exitcode) == (1, 99, -9)
    assert name in str(died)
    for error in (
        PeerTimeoutError("no"),
        ProtocolError("no"),
        JoinRefusedError("no", EndReason.CLOSED),
    ):
        assert connection.note_failure(error) is error, "these name the server themselves"
    for again in (UsageError(f"{name} is gone"), PeerError("storage server 3: no batch came")):
        assert str(connection.note_failure(again)) == str(again), (
            "named once, however often it is told"
        )
    other = connection.note_failure(PeerError("storage server 30 is gone"))
    assert str(other) == f"{name}: storage server 30 is gone"
    unknown = connection.note_failure(KeyboardInterrupt())
    assert type(unknown) is PeerError
    assert name in str(unknown)
    assert connection.error is None, "none of these ends the link"


def test_a_process_that_has_ended_ends_the_link_and_one_lost_connection_does_not(
    connection: ServerConnection,
) -> None:
    silent = connection.note_failure(PeerLostError("nothing was heard", EndReason.SILENT))
    assert isinstance(silent, ServerDiedError)
    assert "nothing was heard from it" in str(silent)
    assert connection.error is None, "the watch decides"
    gone = connection.note_failure(PeerLostError("no more", EndReason.GONE))
    assert isinstance(gone, ServerDiedError)
    assert "its process ended or was killed" in str(gone)
    first, second = connection.error, connection.error
    assert isinstance(first, ServerDiedError)
    assert first is not second, "each that raises it has a traceback of its own"
    assert str(first) == str(second) == str(gone)
    connection.close()
    assert str(connection.error) == str(gone), "the first reason counts"
    with pytest.raises(ServerDiedError, match="its process ended"):
        connection.call("ping").result(10)


def test_a_wait_ends_by_the_answer_its_error_or_the_time() -> None:
    answer: Future[int] = Future()
    with pytest.raises(PeerTimeoutError, match=r"^ping took longer than 7 s: the storage server"):
        result_of(answer, -1.0, "ping", 7.0)
    answer.set_result(5)
    assert result_of(answer, -1.0, "ping") == 5
    failed: Future[int] = Future()
    failed.set_exception(TimeoutError("a limit of the server's own"))
    with pytest.raises(TimeoutError, match="of the server's own"):
        result_of(failed, 1.0, "ping")
