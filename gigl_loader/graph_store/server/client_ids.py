"""What a storage server calls its clients: a rank of a job, or a visitor that has joined none."""

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass, field

from gigl_loader.graph_store.wire.membership import MOST_RANKS


@dataclass(frozen=True)
class Visitor:
    """A process that has not joined a job: all connections of one session.

    Other clients are a job's, ``(JobId, rank)``, on whichever session they come.
    """

    session: str

    def __str__(self) -> str:
        # not the session, which is this process's only proof that it is the same one
        digest = hashlib.blake2b(self.session.encode(), digest_size=4).hexdigest()
        return f"visitor {digest}"

    __repr__ = __str__


@dataclass(frozen=True)
class JobId:
    """A job: one start of those that have its name, one after another."""

    name: str
    number: int
    world_size: int = field(default=MOST_RANKS, compare=False)
    """Number of its compute processes."""

    def __str__(self) -> str:
        return f"{self.name} (number {self.number})"

    __repr__ = __str__


def scope_of(client: Hashable) -> Hashable:
    """Return what a client's worker keys and request ids belong to: its job, or a visitor alone.

    None: the server itself asks.
    """
    if isinstance(client, Visitor):
        return client
    return client[0] if isinstance(client, tuple) else None
