"""How producers of different ranks meet: a port on the master, a token, each other's workers."""

import hashlib
import json
import os
import secrets
import socket
from typing import Any

from gigl_loader._glt import get_context
from gigl_loader.dataset.held import check_held
from gigl_loader.dataset.view import PartitionView
from gigl_loader.options import CLUSTER_TOKEN_VARIABLE, reads_same_memory
from gigl_loader.sampler.peers import PeerAddress
from gigl_loader.sampler.rendezvous import Rendezvous
from gigl_loader.workers.same_host import ShownPartition, ShownPlace

Addresses = dict[int, tuple[PeerAddress, ...]]
"""Workers that answer for a partition, by partition."""


class Meeting:
    """The other ranks of a GLT context. With one rank alone, every step is a no-op.

    Args:
        view: This rank's partition.
        options: GLT's worker options: ``master_addr`` and ``master_port`` name the place.
    """

    def __init__(self, view: PartitionView, options: Any) -> None:
        self._view, self._options = view, options
        self._rendezvous: Rendezvous | None = None
        self._addresses: Addresses = {}
        self._token = b""
        self._shown: ShownPartition | None = None
        self.nearby: dict[int, list[ShownPlace]] = {}
        """By partition, where others of this machine show it; known after `exchange`."""

    @property
    def has_peers(self) -> bool:
        """Whether other partitions will be asked."""
        context = get_context()
        alone = context is None or context.world_size == 1
        return self._view.num_partitions > 1 and not alone

    def join(self, timeout_s: float) -> None:
        """Go to the place; rank 0 opens it.

        Raises:
            PeerError, ConfigError: The port is taken, or the master does not answer.
        """
        context = get_context()
        if context is None or context.world_size == 1:
            return
        self._rendezvous = Rendezvous(
            self._options.master_addr, self._options.master_port, context.rank, context.world_size,
            timeout_s=timeout_s, is_master=context.rank == 0, token=_cluster_token(),
        )  # fmt: skip

    def announce(self, what: str) -> None:
        """Tell the other ranks that this one got so far."""
        if self._rendezvous is not None:
            self._rendezvous.publish(what, b"1")

    def wait_for_rank_before(self, what: str) -> None:
        """Wait until the rank before this one announced ``what``.

        Raises:
            PeerError: A rank failed, or did not come so far in time.
        """
        if self._rendezvous is not None:
            self._rendezvous.wait_for(what, get_context().rank - 1)

    def token(self) -> bytes:
        """Return the secret of this job's workers.

        A nonce of rank 0 tells jobs apart; what keeps strangers out is the cluster's own token,
        from the environment.
        """
        if self._rendezvous is None:
            return b""
        if get_context().rank == 0:
            self._rendezvous.publish("nonce", secrets.token_bytes(32))
        nonce = self._rendezvous.wait_for("nonce", 0)
        self._token = hashlib.sha256(_cluster_token() + nonce).digest()
        return self._token

    @property
    def host(self) -> str | None:
        """This machine's address as the master sees it; None where nobody asks."""
        if not self.has_peers:
            return None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self._options.master_addr, 9))  # sends nothing
            return str(probe.getsockname()[0])

    def exchange(self, workers: list[tuple[str, int] | None]) -> Addresses | None:
        """Tell where this rank's workers answer; return the other partitions', None: none needed.

        Call `token` before.

        Raises:
            PeerError: A rank failed, or did not come up in time.
            ConfigError: A partition has no rank.
        """
        if self._rendezvous is None or not self.has_peers:
            check_held(self._view.num_partitions, [self._view.partition_idx], who=_holder())
            return None
        own = self._view.partition_idx
        mine = {"partition": own, "workers": workers, "host": self.host, "shown": None}
        if reads_same_memory():
            self._shown = ShownPartition(self._view, self._token)
            mine["shown"] = self._shown.place
        self._rendezvous.publish("workers", json.dumps(mine).encode())
        ranks = range(get_context().world_size)
        found = [json.loads(raw) for raw in self._rendezvous.gather("workers", ranks)]
        every: Addresses = {}
        for rank, theirs in enumerate(found):
            more = tuple(
                PeerAddress(host, port, worker_name(rank, worker))
                for worker, (host, port) in enumerate(theirs["workers"])
            )
            every[theirs["partition"]] = every.get(theirs["partition"], ()) + more
        check_held(self._view.num_partitions, every, who=_holder())
        self._addresses = {p: who for p, who in every.items() if p != own}
        for theirs in found if self._shown is not None else ():
            partition = theirs["partition"]
            if partition != own and theirs["host"] == mine["host"] and theirs["shown"]:
                self.nearby.setdefault(partition, []).append(ShownPlace(*theirs["shown"]))
        return self._addresses

    @property
    def others(self) -> list[str]:
        """Names of the workers of other partitions, once they are known."""
        return [worker.name for workers in self._addresses.values() for worker in workers]

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks why this one gives up."""
        if self._rendezvous is not None:
            self._rendezvous.fail(f"{type(error).__name__}: {error}"[:2000])

    def close(self) -> None:
        """Leave. Idempotent."""
        try:
            if self._rendezvous is not None:
                self._rendezvous.close()
        finally:
            if self._shown is not None:
                self._shown.close()


def _holder() -> str:
    context = get_context()
    is_server = context is not None and context.is_server()
    return "storage server" if is_server else "process"


def _cluster_token() -> bytes:
    return os.environ.get(CLUSTER_TOKEN_VARIABLE, "").encode()


def worker_name(rank: int, worker: int) -> str:
    """Return what a worker is called in errors of other ranks."""
    return f"rank {rank} worker {worker}"
