"""A compute process's side of the storage cluster: all servers, and which of them are lost.

::

    up --its process ended, or it was out of reach for too long--> lost, looked for in a thread
    up <--connected again----------------------------------------- lost

Where more servers than partitions are up, server ``i`` serves partition ``i`` modulo the number of
partitions. Servers of one partition are twins: one does what was asked of another that is lost.
"""

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from gigl_loader.errors import ConfigError, GiglLoaderError, ServerDiedError, UsageError
from gigl_loader.remote.link import ServerLink, result_of
from gigl_loader.remote.membership import Join, Role
from gigl_loader.remote.patience import PATIENCE_S, Progress
from gigl_loader.transport import Security

_log = logging.getLogger(__name__)

_ATTEMPT_S, _REACH_S, _PAUSE_S = 5.0, 1.0, 0.2
"""Longest attempt to connect again with a lost server; of that, to reach it, which may have
another address by then; and the pause between two attempts."""
_LOOK_S = 0.5
"""How often who waits for lost servers looks whether the news name other ones."""


def raise_if_broken(links: Iterable[ServerLink]) -> None:
    """Raise `ServerDiedError` where a server is gone, whether or not it has work to do."""
    for link in links:
        error = link.error
        if error is not None:
            raise error


class Cluster:
    """A compute process's links to all storage servers.

    Args:
        links: By server.
        job: Number of the job.
        rank: This compute process.
        world_size: How many of them the job has.
    """

    def __init__(self, links: list[ServerLink], job: int, rank: int, world_size: int) -> None:
        self.links, self.job, self.rank, self.world_size = links, job, rank, world_size
        self.num_partitions = links[0].news.num_partitions or len(links)
        self.closed = False
        self._changed = threading.Condition()
        self._sought: set[int] = set()
        """Lost servers that a thread tries to connect with again."""

    @classmethod
    def join(
        cls, host: str, port: int, *, rank: int, world_size: int, num_servers: int,
        security: Security, timeout_s: float, patience_s: float = PATIENCE_S,
    ) -> "Cluster":  # fmt: skip
        """Meet the servers and the other compute processes; returns when all are there.

        Args:
            host: Address of storage server 0.
            port: Port of storage server 0.
            rank: This compute process.
            world_size: How many of them the job has.
            num_servers: How many storage servers there are.
            security: The same as the cluster's.
            timeout_s: How long that may take, loading of the graph included.
            patience_s: How long an outage of the network may last.

        Raises:
            JoinRefusedError: A server does not let this process in, or is another service.
            PeerTimeoutError: Somebody did not come; says who.
            ConfigError: The servers have other figures.
        """
        deadline = time.monotonic() + timeout_s
        me, session = f"compute process {rank}", secrets.token_hex(16)
        progress = Progress(me, deadline)
        join = Join(role=Role.CLIENT, rank=rank, num_servers=num_servers, world_size=world_size)
        links = [ServerLink(0, (host, port), security, me, session, patience_s)]
        try:
            links[0].enter(join, deadline, progress)
            news = links[0].wait_until_in(
                lambda news: news.job is not None, deadline, timeout_s, progress
            )
            assert news.job is not None
            links[0].generation = news.generations[0]
            links += [
                ServerLink(server, address, security, me, session, patience_s, generation)
                for server, (address, generation) in enumerate(
                    zip(news.addresses, news.generations, strict=True)
                )
                if server > 0
            ]
            known = Join(
                role=Role.CLIENT, rank=rank, num_servers=num_servers, world_size=world_size,
                job=news.job,
            )  # fmt: skip
            for link in links:
                if link.rank in news.away:
                    link.give_up("storage server 0 says that it is away")
            here = [link for link in links[1:] if link.error is None]
            for link in here:
                link.enter(known, deadline, progress)
            for link in here:
                link.wait_until_in(lambda news: news.number > 0, deadline, timeout_s, progress)
        except BaseException:
            for link in links:
                link.close()
            raise
        return cls(links, news.job, rank, world_size)

    def link(self, server_rank: int) -> ServerLink:
        """Return the link to a server.

        Raises:
            ConfigError: There is no such server.
        """
        if not 0 <= server_rank < len(self.links):
            raise ConfigError(f"server rank must be in [0, {len(self.links)}), got {server_rank}")
        return self.links[server_rank]

    # -- who is lost ----------------------------------------------------------------------------

    @property
    def lost(self) -> list[int]:
        """Servers that are gone, or were started again and are not connected with yet."""
        broken = {link.rank for link in self.links if link.error is not None}
        return sorted(broken | set(self._stale()))

    def _stale(self) -> list[int]:
        """Return the servers of which server 0 knows a later one than the link leads to."""
        generations = self.links[0].news.generations
        return [
            link.rank
            for link, generation in zip(self.links, generations, strict=False)
            if 0 < link.generation < generation
        ]

    @property
    def is_whole(self) -> bool:
        """Whether all servers are those that the links lead to."""
        return not self.lost

    @property
    def generations(self) -> tuple[int, ...]:
        """Of the servers that the links lead to."""
        return tuple(link.generation for link in self.links)

    def twin_of(self, server: int, servers: Sequence[int]) -> int | None:
        """Return one of ``servers`` that serves the same partition; None: there is none."""
        partitions = self.num_partitions
        same = [one for one in servers if (one - server) % partitions == 0]
        return same[server // partitions % len(same)] if same else None

    def stand_in(self, server: int) -> int:
        """Return who answers for a server: itself, or a twin of it where it is lost."""
        lost = self.lost
        if server not in lost:
            return server
        live = [link.rank for link in self.links if link.rank not in lost]
        twin = self.twin_of(server, live)
        return server if twin is None else twin

    # -- going on without them, or until they are back ------------------------------------------

    def await_servers(self, deadline: float, wanted: Sequence[int] = ()) -> list[int]:
        """Return the servers to go on with: at least one of each partition, ascending.

        A lost server is looked for in the background. It is waited for where it has no twin.

        Args:
            deadline: Until when servers are waited for (`time.monotonic`).
            wanted: Servers that are waited for in any case.

        Raises:
            ServerDiedError: A server did not come back in time.
        """
        with self._changed:
            while True:
                lost = self.lost
                self._seek(lost)
                live = [link.rank for link in self.links if link.rank not in lost]
                missing = [one for one in lost if one in wanted or self.twin_of(one, live) is None]
                if not missing or self.closed:
                    return live
                if time.monotonic() > deadline:
                    raise self.links[missing[0]].error or ServerDiedError(
                        f"{self.links[missing[0]].name} was started again, and cannot be reached"
                    )
                self._changed.wait(_LOOK_S)

    def _seek(self, lost: Iterable[int]) -> None:
        """Connect again with lost servers, each in a thread. With the lock held."""
        for rank in set(lost) - self._sought:
            self._sought.add(rank)
            name = f"looks for {self.links[rank].name}"
            threading.Thread(target=self._look_for, args=(rank,), name=name, daemon=True).start()

    def _look_for(self, rank: int) -> None:
        try:
            while rank in self.lost and not self.closed:
                try:
                    self._connect_again(rank)
                except GiglLoaderError as error:
                    _log.debug("%s is not back: %s", self.links[rank].name, error)
                    time.sleep(_PAUSE_S)
        finally:
            with self._changed:
                self._sought.discard(rank)
                self._changed.notify_all()

    def _connect_again(self, rank: int) -> None:
        now, former = time.monotonic(), self.links[rank]
        join = Join(
            role=Role.CLIENT, rank=self.rank, num_servers=len(self.links),
            world_size=self.world_size, job=self.job,
        )  # fmt: skip
        news = self.links[0].news
        known = rank > 0 and len(news.addresses) > rank and news.generations[rank] > 0
        fresh = former.again(news.addresses[rank] if known else former.address)
        progress = Progress(f"compute process {self.rank}", now + _ATTEMPT_S)
        try:
            fresh.enter(join, now + _REACH_S, progress)
            said = fresh.wait_until_in(
                lambda news: bool(news.addresses) if rank == 0 else news.number > 0,
                now + _ATTEMPT_S, _ATTEMPT_S, progress,
            )  # fmt: skip
            if said.server != rank:  # its port was given to another one
                raise ServerDiedError(f"{former.name} is now storage server {said.server}")
        except BaseException:
            fresh.close()
            raise
        fresh.generation = said.generation
        with self._changed:
            if self.closed:
                fresh.close()
            self.links[rank] = fresh
        _log.warning("%s is back", fresh.name)

    # -- questions that survive -----------------------------------------------------------------

    def ask_each(
        self, name: str, requests: Mapping[int, dict[str, Any]], timeout_s: float,
        reconnect_s: float,
    ) -> dict[int, Any]:  # fmt: skip
        """Ask several servers at once for a method of `DistServer`; twins answer for lost ones.

        A question is asked again where its server is lost, so the method must be one that may be.

        Args:
            name: A key of `CALLS`.
            requests: The arguments by server.
            timeout_s: How long all of them may take to answer.
            reconnect_s: How long servers without a twin may be away; 0: a lost one is an error.

        Raises:
            ServerDiedError: A server did not come back in time.
            PeerTimeoutError: One did not answer.
        """
        found: dict[int, Any] = {}
        away_until = time.monotonic() + reconnect_s
        while True:
            left = {server: args for server, args in requests.items() if server not in found}
            error = self._ask_those_up(name, left, timeout_s, found)
            if error is None:
                return found
            if time.monotonic() >= away_until or self.closed:
                raise error
            time.sleep(_PAUSE_S)  # a question may be lost before its server is known to be
            self.await_servers(away_until)

    def _ask_those_up(
        self, name: str, requests: Mapping[int, dict[str, Any]], timeout_s: float,
        found: dict[int, Any],
    ) -> GiglLoaderError | None:  # fmt: skip
        """Put answers into ``found``; return why some are missing, if their servers are lost."""
        asked: dict[int, tuple[ServerLink, Future[Any]]] = {}
        for server, arguments in requests.items():
            link = self.link(self.stand_in(server))
            asked[server] = link, link.call(name, timeout_s, **arguments)
        deadline = time.monotonic() + timeout_s  # of all servers together
        missing: GiglLoaderError | None = None
        for server, (link, answer) in asked.items():
            what = f"{name} on storage server {link.rank}"
            try:
                found[server] = result_of(answer, deadline - time.monotonic(), what, timeout_s)
            except ServerDiedError as error:
                missing = error
            except UsageError as error:
                if link.error is None:  # of the server, and not of a link that was replaced
                    raise
                missing = error
        return missing

    def close(self) -> None:
        """Leave. Idempotent."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        for link in self.links:
            link.close()
