"""Which rank is missing when an exchange of all ranks breaks.

gloo tells only that a connection was closed, or that time is up, and closes all connections then: a
rank whose connections are closed by another one, which gave up on a third, cannot tell which of
them is missing. So each rank that sees a group break leaves a note in the process group's store,
and looks for those of the others. The ranks without one are missing; of those on this machine the
system knows whether they have ended or are stopped.
"""

import contextlib
import hashlib
import os
import time
from dataclasses import dataclass

from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from gigl_loader.errors import PeerError
from gigl_loader.runtime.system import machine_name
from gigl_loader.sources.workers.pool import process_state
from gigl_loader.sources.workers.rendezvous import StoreRendezvous

LOOK_S = 2.0
"""Longest look for the notes of other ranks."""
_NAP_S = 0.05
_NOTE = "saw the group break"
_ENDED = ("gone", "dead")
"""Answers of `process_state` for a process that has ended."""


@dataclass(frozen=True)
class Missing:
    """A rank that took no part."""

    rank: int
    text: str
    has_ended: bool = False
    is_stopped: bool = False


class RankWatch:
    """Finds missing ranks, for one process group.

    Args:
        name: Name of the group, the same on all ranks, and no other group's.
        members: Process id and machine of each rank, from `own_place`.
        rank: This rank.
    """

    def __init__(self, name: str, members: list[tuple[int, int]], rank: int) -> None:
        self._members, self._rank = members, rank
        self._name = f"gigl_loader/missing/{name}"

    def missing(self) -> list[Missing]:
        """Return the ranks that did not see the group break; takes `LOOK_S` seconds at most."""
        deadline = time.monotonic() + LOOK_S
        others = [rank for rank in range(len(self._members)) if rank != self._rank]
        with contextlib.suppress(PeerError, RuntimeError):
            store = PrefixStore(self._name, _get_default_store())
            notes = StoreRendezvous(store, self._rank, len(self._members), LOOK_S, answers_s=LOOK_S)
            with contextlib.closing(notes):
                notes.publish(_NOTE, b"")
                while others := notes.missing(_NOTE, others):
                    # one that is known to be lost is the cause, whoever else may come
                    if any(self._is_lost(rank) for rank in others) or time.monotonic() >= deadline:
                        break
                    time.sleep(_NAP_S)
        described = [self._describe(rank) for rank in others]
        # of the others nothing is known, where the store ended with such a rank
        return [lost for lost in described if lost.has_ended or lost.is_stopped] or described

    def _state(self, rank: int) -> str | None:
        """Return the state of a rank's process; None: it is on another machine."""
        pid, machine = self._members[rank]
        return process_state(pid) if machine == self._members[self._rank][1] else None

    def _is_lost(self, rank: int) -> bool:
        state = self._state(rank)
        return state is not None and (state in _ENDED or "stopped" in state)

    def _describe(self, rank: int) -> Missing:
        pid, state = self._members[rank][0], self._state(rank)
        if state is None:
            return Missing(
                rank,
                f"rank {rank}, on another machine, is silent: it has ended, is stopped or cut off, "
                "or computes",
            )
        if state in _ENDED:
            return Missing(rank, f"rank {rank} (pid {pid}) has ended", has_ended=True)
        if "stopped" in state:
            return Missing(rank, f"rank {rank} (pid {pid}) is {state}", is_stopped=True)
        return Missing(rank, f"rank {rank} (pid {pid}) is silent, its process is {state}")


def own_place() -> tuple[int, int]:
    """Return the id of this process, and a number of the machine that can look it up."""
    digest = hashlib.blake2b(machine_name().encode(), digest_size=8).digest()
    return os.getpid(), int.from_bytes(digest, "little") >> 1  # an int64
