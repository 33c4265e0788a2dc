"""What a channel keeps of one server, and how it lets go of it."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gigl_loader.batch.leases import BufferPool
from gigl_loader.batch.message import Attempt, BatchTicket
from gigl_loader.errors import PeerError, ServerDiedError
from gigl_loader.graph_store.client.batch_fetcher import BatchFetcher
from gigl_loader.graph_store.wire.requests import BatchMessage, FetchAnswer
from gigl_loader.runtime.memory.same_host import Region
from gigl_loader.sources.workers.schedule import BatchStream
from gigl_loader.testing import wait_until


class _Server:
    """One that lends its first batch, and the connection to it."""

    rank, name = 4, "storage server 4 at here:1"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.hung_up: list[Any] = []

    def dial(self) -> "_Server":
        return self

    def hang_up(self, caller: Any) -> None:
        self.hung_up.append(caller)

    def note_failure(self, error: Exception) -> Exception:
        return error

    def ask(self, method: str, *_: Any, **__: Any) -> Any:
        self.asked.append(method)
        region = Region(pid=1, fd=2, nbytes=16, inode=3)
        batch = BatchMessage(BatchTicket(0, 1, 0, 0), {}, [], region=region, lease=5)
        return SimpleNamespace(wait=lambda *_: FetchAnswer(batch, False))


def _fetcher(mappings: Any = None) -> tuple[BatchFetcher, _Server, list[Exception]]:
    server: Any = _Server()
    failed: list[Exception] = []
    found = BatchFetcher(
        5,
        server,
        0,
        BatchStream(0, 2),
        threading.Condition(),
        lambda *_: None,
        lambda attempt, error: failed.append(error),
        BufferPool(pin_memory=False),
        mappings,
    )
    return found, server, failed


def test_a_server_that_was_never_asked_has_nothing_to_close() -> None:
    fetcher, server, _ = _fetcher()
    assert fetcher.ended, "it has no part in an epoch before one begins"
    fetcher.hang_up()
    assert server.hung_up == []


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        # which is survived where it has a replica
        (FileNotFoundError(2, "no such"), ServerDiedError, "4 ended before a batch of it was read"),
        (ProcessLookupError(3, "no"), ServerDiedError, "4 ended before a batch of it was read"),
        (OSError(12, "Cannot allocate memory"), PeerError, "4 cannot be .*Cannot allocate memory"),
    ],
)
def test_a_batch_that_cannot_be_mapped_is_back_and_an_error(
    error: OSError, kind: type[Exception], words: str
) -> None:
    def lease(region: Region, on_drop: Any) -> None:
        raise error

    fetcher, server, failed = _fetcher(SimpleNamespace(lease=lease))
    fetcher.start(Attempt(0, 1), [0, 1, 2], [0, 1, 2])
    fetcher.ask()
    wait_until(lambda: len(failed) == 2, "both that were asked for have failed")
    assert type(failed[0]) is kind
    with pytest.raises(kind, match=words):
        raise failed[0]
    wait_until(lambda: server.asked.count("give_back") == 2, "the server has both again")
    fetcher.hang_up()
    assert server.hung_up == [server, server]
