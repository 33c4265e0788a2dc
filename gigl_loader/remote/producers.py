"""One loader's producers on the storage servers: asked for on all at once, and released."""

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any

from gigl_loader._glt import NodeSamplerInput
from gigl_loader.errors import (
    GiglLoaderError,
    PeerError,
    PeerTimeoutError,
    ServerDiedError,
    UsageError,
)
from gigl_loader.options import EpochOptions
from gigl_loader.remote.client import call_server
from gigl_loader.remote.compact import NOBODY, ByServer, Runs
from gigl_loader.remote.connection import CALL_TIMEOUT_S, result_of
from gigl_loader.remote.membership import WaitReport
from gigl_loader.remote.requests import ProducerRequest
from gigl_loader.remote.service import DistServer
from gigl_loader.remote.storage_cluster import Cluster
from gigl_loader.workers.producer import LINGER_S

_log = logging.getLogger(__name__)

# a server that lives answers in milliseconds; one that is busy starting workers still does in this
_PING_S = 5.0
_RELEASE_S = 60.0
"""How long servers may take to release producers: their workers may linger."""
_RELEASE_BROKEN_S = 3.0
"""How long after a failure: servers that still live end the workers at once, waited for or not."""


class RemoteProducers:
    """What is sampled on the servers for one loader, by a producer on each.

    Args:
        cluster: Whose servers.
        sampler_input: The input of all servers.
        config: What to sample.
        sampler_options: Another sampler.
        active: Servers with an input of their own, in the order of their shards.
    """

    def __init__(
        self, cluster: Cluster, sampler_input: NodeSamplerInput, config: Any, sampler_options: Any,
        active: Sequence[int],
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._sampled = (sampler_input, config)
        self._sampler_options, self._active = sampler_options, active
        self.ids: Mapping[int, int] = ByServer()
        """By server."""
        self._made_on: Sequence[int] = ()
        """Servers that take part."""
        self._renewals: dict[int, int] = {}
        """The cluster's at creation."""

    @property
    def replaced(self) -> list[int]:
        """Servers found started again, or connected with again, since: they know no producer."""
        now, then = dict(self._cluster.renewals), self._renewals
        # both dicts have only servers that were ever lost: 0 times is not written down
        changed = (server for server in now if now[server] != then.get(server, 0))
        return sorted(server for server in changed if server in self._made_on)

    def adopt(self, ids: Mapping[int, int]) -> None:
        """Use the producers that another process asked for."""
        self._note_servers(ids)
        self.ids = ByServer.of(ids)

    def _note_servers(self, servers: Iterable[int]) -> None:
        self._made_on = Runs.of(sorted(servers))
        # a copy, since the cluster's goes on counting
        self._renewals = dict(self._cluster.renewals)

    # -- creation -------------------------------------------------------------------------------

    def request(
        self, server: int, ranks: Sequence[int], epoch_options: EpochOptions,
        request_id: str = "", servers: Sequence[int] = (),
    ) -> ProducerRequest:  # fmt: skip
        """Return which batches a server samples, and for whom; see `ProducerRequest`."""
        return ProducerRequest(
            epoch_options=epoch_options,
            # shards count servers with an input, whichever of them are up: batches keep their
            # numbers, and so their seeds and draws, while others sample in the place of lost ones
            shard=self._active.index(server) if server in self._active else None,
            num_shards=max(1, len(self._active)),
            client_ranks=Runs.of(ranks),
            request_id=request_id,
            # all of them, as a rule: then nothing is sent that grows with their number
            servers=NOBODY if len(servers) == self._cluster.num_servers else Runs.of(servers),
        )

    def create(
        self, create: Callable[..., int], options: Any, ranks: Sequence[int],
        epoch_options: EpochOptions, request_id: str, servers: Sequence[int],
    ) -> None:  # fmt: skip
        """Send the create call to ``servers``, all at once; on return, each has a producer.

        Args:
            create: What they are to call.
            options: Of the workers.
            ranks: Compute ranks that share the producers.
            epoch_options: Seed, order, deadline.
            request_id: Names this request, on all servers.
            servers: Those that take part, ascending.

        Raises:
            PeerError: One failed or is lost; those that were made are ended.
        """
        limit = 3 * epoch_options.timeout_s + _PING_S  # the servers' own, and the way
        self.ids = ByServer()
        # before anything is asked: a server that is started again meanwhile counts as replaced
        self._note_servers(servers)
        answers = {
            server: call_server(
                server, create, *self._sampled, options, self._sampler_options,
                # longer than the wait below, so that an answer that comes late still calls
                # `_end_late_one`
                timeout_s=limit + CALL_TIMEOUT_S,
                request=self.request(server, ranks, epoch_options, request_id, servers),
            )
            for server in servers
        }  # fmt: skip
        found: dict[int, int] = {}
        deadline = time.monotonic() + limit  # of all servers together
        error: Exception | None = self._silent(answers, epoch_options.timeout_s)
        if error is not None:  # the others wait for that server
            deadline = time.monotonic()
        for server, answer in answers.items():
            try:
                what = f"starting a producer on storage server {server}"
                found[server] = result_of(answer, deadline - time.monotonic(), what, limit)
            except Exception as one:  # every answer is awaited: what started must be ended
                error = error or one
                answer.add_done_callback(partial(self._end_late_one, server))
        if error is not None:
            # not one consumer's share: no rank has begun to use these
            self._release(found, None, is_broken=True)
            raise error
        self.ids = ByServer.of(found)

    def _silent(self, answers: dict[int, "Future[int]"], timeout_s: float) -> PeerError | None:
        """Wait for ``answers``; after ``timeout_s``, return an error if a server is stopped.

        A server that lives has deadlines of its own, and reports. One that is lost is reported at
        once: the others wait for it, and would until their own deadline.
        """
        deadline = time.monotonic() + timeout_s
        left: Collection[Future[int]] = list(answers.values())
        progress = WaitReport(f"compute process {self._cluster.rank}", deadline)
        while left and (limit := deadline - time.monotonic()) > 0:
            # just after the next report is due; just before, this would turn without a pause
            limit = min(limit, progress.next_in_s + 0.01)
            done, left = wait(left, limit, return_when=FIRST_COMPLETED)
            if left and progress.next_in_s == 0.0:
                slow = [server for server, answer in answers.items() if not answer.done()]
                progress.say(f"storage servers {slow[:10]} to start their workers")
            for answer in done:
                # other errors are told with those of all servers, once each has answered
                if isinstance(lost := answer.exception(), ServerDiedError):
                    return lost
        # a ping needs no lock and no worker there: who does not answer it is stopped, or has no
        # processor
        pings = {
            server: call_server(server, DistServer.ping, timeout_s=_PING_S)
            for server, answer in answers.items()
            if not answer.done()
        }
        wait(pings.values(), _PING_S)
        silent = [
            self._cluster.connection(server)
            for server, ping in pings.items()
            if not ping.done() or isinstance(ping.exception(), PeerTimeoutError)
        ]
        if not silent:
            return None
        names = " and ".join(connection.name for connection in silent)
        return PeerTimeoutError(
            f"{names} did not start a producer within {timeout_s:.0f} s, and did not answer "
            "otherwise: the process is stopped or overloaded; look at its log"
        )

    def _end_late_one(self, server: int, answer: "Future[int]") -> None:
        """End a producer that came up after this process gave it up."""
        # this runs in the thread of that call, and waits for nothing: the next call is begun and
        # left alone
        if answer.exception() is None:
            call_server(server, DistServer.destroy_sampling_producer, answer.result(), linger_s=0.0)

    # -- end ------------------------------------------------------------------------------------

    def release(self, consumer: int, *, is_broken: bool, waits: bool = True) -> None:
        """Release this process's share of all producers. Idempotent, never raises.

        A server that is stopped is not waited for, but asked until it answers: it may go on.

        Args:
            consumer: This process's number among those that share them.
            is_broken: Whether a server or worker failed: workers end at once.
            waits: Return when the servers have done so.
        """
        replaced = self.replaced  # a number means another producer there
        # taken out before anybody is asked, so that a second call finds none
        ids, self.ids = self.ids, ByServer()
        still = {s: p for s, p in ids.items() if s not in replaced}
        self._release(still, consumer, is_broken, waits)

    def _release(
        self, ids: Mapping[int, int], consumer: int | None, is_broken: bool, waits: bool = True
    ) -> None:
        """Release this process's share of producers; None: end them."""
        how = {"linger_s": 0.0 if is_broken else LINGER_S}
        limit = _RELEASE_BROKEN_S if is_broken else _RELEASE_S
        host = next(iter(self._made_on), 0)  # where the servers agreed on it
        deadline = time.monotonic() + limit  # of all servers together
        answers = []
        for server, producer in ids.items():
            if consumer is not None and server not in self._cluster.connections and server != host:
                continue  # never asked; it hears from the host when all have left the producer
            with contextlib.suppress(GiglLoaderError):
                connection = self._cluster.connection(server)
                if consumer is None:
                    answer = connection.call(
                        "destroy_sampling_producer", producer_id=producer, **how
                    )
                else:
                    answer = connection.call(
                        "release_sampling_producer", producer_id=producer, consumer=consumer, **how
                    )  # fmt: skip
                if waits:
                    answers.append((server, answer))
        for server, answer in answers:
            try:
                what = f"the release of a producer on storage server {server}"
                result_of(answer, deadline - time.monotonic(), what, limit)
            except (
                PeerError,
                UsageError,
            ) as error:  # gone, or this process left: it is freed there
                if not self._cluster.closed:
                    level = logging.DEBUG if is_broken else logging.WARNING
                    _log.log(level, "storage server %d: %s", server, error)


def name_of_recovery(key: str | None, cluster: Cluster, live: Sequence[int], attempt: int) -> str:
    """Return a worker key for producers that are made again, the same on all ranks that share them.

    Args:
        key: The worker key of those before.
        cluster: The servers, as they were started by now.
        live: Those that take part.
        attempt: Tells it from the recovery before where only this rank knows of that.
    """
    # ranks come here one by one, and cannot ask each other: what the name is made of is the same on
    # all that have seen the same servers come and go. With a name of before, servers would answer
    # with the producer of before
    parts = (key or f"rank {cluster.rank}", cluster.job, live, *cluster.incarnations, attempt)
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
