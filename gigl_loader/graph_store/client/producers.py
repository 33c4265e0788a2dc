"""A loader's producers on the storage servers: agreement of ranks, creation, release.

Rank 0 decides for all, before and after producers are created: see
`gigl_loader.runtime.ranks.collectives.decide_with_ranks`.
"""

import contextlib
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gigl_loader.batch.message import columns_of
from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    PeerError,
    PeerTimeoutError,
    SamplingError,
    ServerDiedError,
    UsageError,
)
from gigl_loader.graph_store.client.compute_process import call_server
from gigl_loader.graph_store.client.connection import CALL_TIMEOUT_S, result_of
from gigl_loader.graph_store.client.storage_cluster import Cluster
from gigl_loader.graph_store.wire.membership import WaitReport
from gigl_loader.graph_store.wire.requests import NOBODY, ByServer, ProducerRequest, Runs
from gigl_loader.graph_store.wire.signatures import DistServer
from gigl_loader.runtime.glt_classes import NodeSamplerInput
from gigl_loader.runtime.ranks.collectives import check_same_options
from gigl_loader.runtime.transport.failures import Failure, rebuild
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.sampler.row_cache.machine_cache import RowsOffer
from gigl_loader.sources.batch_source import LINGER_S
from gigl_loader.sources.held_seeds import joined
from gigl_loader.sources.seed_checks import SeedSummary, check_each_once, check_same_seeds

_log = logging.getLogger(__name__)

# a live server responds in milliseconds; even one that is busy starting workers does in this time
_PING_S = 5.0
_NOTICE_S = 5.0
"""Seconds in which a server's end is noticed after a worker failed to reach that server."""
_RELEASE_S = 60.0
"""Seconds that servers may take to release producers, whose workers may linger."""
_RELEASE_BROKEN_S = 3.0
"""Seconds that releases may take after a failure: live servers then end the workers at once."""


class RemoteProducers:
    """One loader's sampling on the servers, by a producer on each.

    Args:
        cluster: The storage servers.
        sampler_input: The input of all servers.
        config: Sampling configuration.
        sampler_options: Options of another sampler.
        active: Servers with input of their own, in the order of their shards.
    """

    def __init__(
        self,
        cluster: Cluster,
        sampler_input: NodeSamplerInput,
        config: Any,
        sampler_options: Any,
        active: Sequence[int],
    ) -> None:
        self._cluster = cluster
        self._sampled = (sampler_input, config)
        self._sampler_options, self._active = sampler_options, active
        self.ids: Mapping[int, int] = ByServer()
        """Producer ids by server."""
        self._made_on: Sequence[int] = ()
        """Servers that take part."""
        self._renewals: dict[int, int] = {}
        """The cluster's counts of restarts when the producers were created."""
        self._recoveries: Counter[str] = Counter()
        """How often producers were recreated, by the state of the servers."""

    @property
    def replaced(self) -> list[int]:
        """Servers restarted, or reconnected, since creation: they do not know the producers."""
        now, then = dict(self._cluster.renewals), self._renewals
        # both dicts have only servers that were ever lost: a count of 0 is not stored
        changed = (server for server in now if now[server] != then.get(server, 0))
        return sorted(server for server in changed if server in self._made_on)

    def caused_by_lost_server(self, error: GiglLoaderError) -> bool:
        """Return whether a server that is gone or was restarted caused ``error``.

        The failure of a worker that called it may arrive before the end of its connection.
        """
        if isinstance(error, ServerDiedError):
            return True
        if not isinstance(error, PeerError | UsageError):
            return False
        about_peers = isinstance(error, SamplingError) and error.cause.startswith("Peer")
        unknown = isinstance(error, UsageError)  # the server was restarted
        deadline = time.monotonic() + (_NOTICE_S if about_peers or unknown else 0.0)
        # polled, as a closed or replaced connection, or the news of server 0, shows it
        while not (lost := self._some_lost()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return lost

    def _some_lost(self) -> bool:
        """Return whether a server that takes part is gone or was restarted."""
        return bool(self.replaced) or not set(self._made_on).isdisjoint(self._cluster.lost)

    def adopt(self, ids: Mapping[int, int]) -> None:
        """Use the producers that another process requested."""
        self._note_servers(ids)
        self.ids = ByServer.of(ids)

    def _note_servers(self, servers: Iterable[int]) -> None:
        self._made_on = Runs.of(sorted(servers))
        # a copy, since the cluster continues to count
        self._renewals = dict(self._cluster.renewals)

    # -- creation -------------------------------------------------------------------------------

    def request(
        self,
        server: int,
        ranks: Sequence[int],
        source_options: SourceOptions,
        request_id: str = "",
        servers: Sequence[int] = (),
    ) -> ProducerRequest:
        """Return the batches that a server samples, and their consumers; see `ProducerRequest`."""
        return ProducerRequest(
            source_options=source_options,
            # Shards count servers with an input, whether or not they are up. So batches keep their
            # numbers, and with them seeds and draws, while others sample in place of lost ones.
            shard=self._active.index(server) if server in self._active else None,
            num_shards=max(1, len(self._active)),
            client_ranks=Runs.of(ranks),
            request_id=request_id,
            # usually all of them: then the message does not grow with their number
            servers=NOBODY if len(servers) == self._cluster.num_servers else Runs.of(servers),
        )

    def create(
        self,
        create: Callable[..., int],
        options: Any,
        ranks: Sequence[int],
        source_options: SourceOptions,
        request_id: str,
        servers: Sequence[int],
    ) -> None:
        """Send the create call to ``servers``, all at once; on return, each has a producer.

        Args:
            create: The method to call on the servers.
            options: Options of the workers.
            ranks: Compute ranks that share the producers.
            source_options: Seed, order and deadline.
            request_id: Name of this request, the same on all servers.
            servers: Servers that take part, ascending.

        Raises:
            PeerError: A server failed or is lost; producers that were created are ended.
        """
        limit = 3 * source_options.timeout_s + _PING_S  # the servers' own limit, and the transfer
        self.ids = ByServer()
        # noted before the first request: a server that restarts meanwhile counts as replaced
        self._note_servers(servers)
        answers = {
            server: call_server(
                server,
                create,
                *self._sampled,
                options,
                self._sampler_options,
                # longer than the wait below, so that a late response still calls
                # `_end_late_one`
                timeout_s=limit + CALL_TIMEOUT_S,
                request=self.request(server, ranks, source_options, request_id, servers),
            )
            for server in servers
        }
        ids: dict[int, int] = {}
        deadline = time.monotonic() + limit  # one deadline for all servers
        error: Exception | None = self._silent(answers, source_options.timeout_s)
        if error is not None:  # do not wait: the other servers wait for that one
            deadline = time.monotonic()
        for server, answer in answers.items():
            try:
                what = f"starting a producer on storage server {server}"
                ids[server] = result_of(answer, deadline - time.monotonic(), what, limit)
            except Exception as failure:
                # await every response: a producer that started must be ended
                error = error or failure
                answer.add_done_callback(partial(self._end_late_one, server))
        if error is not None:
            # ends them for all consumers, as no rank has begun to use them
            self._release(ids, None, is_broken=True)
            raise error
        self.ids = ByServer.of(ids)

    def _silent(self, answers: dict[int, "Future[int]"], timeout_s: float) -> PeerError | None:
        """Wait for ``answers``; after ``timeout_s``, return an error if a server is stopped.

        A live server has its own deadlines and reports. A lost one is reported at once, as the
        others would wait for it until their own deadline.
        """
        deadline = time.monotonic() + timeout_s
        left: Collection[Future[int]] = list(answers.values())
        progress = WaitReport(f"compute process {self._cluster.rank}", deadline)
        while left and (limit := deadline - time.monotonic()) > 0:
            # just after the next report is due; just before it, this would be a busy loop
            limit = min(limit, progress.next_in_s + 0.01)
            done, left = wait(left, limit, return_when=FIRST_COMPLETED)
            if left and progress.next_in_s == 0.0:
                slow = [server for server, answer in answers.items() if not answer.done()]
                progress.say(f"storage servers {slow[:10]} to start their workers")
            for answer in done:
                # other errors are reported with those of all servers, once each has responded
                if isinstance(lost := answer.exception(), ServerDiedError):
                    return lost
        # a ping needs no lock and no worker there: a server that does not respond is stopped, or
        # gets no CPU
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
        # this runs in the thread of that call and waits for nothing: the next call is sent, its
        # response ignored
        if answer.exception() is None:
            call_server(server, DistServer.destroy_sampling_producer, answer.result(), linger_s=0.0)

    def fresh_name(self, key: str | None, live: Sequence[int]) -> str:
        """Return a worker key that this rank has not used, for producers to be recreated.

        Servers remember producers that ended, and ranks that share producers cannot ask each other.
        Ranks that see the same servers come and go count alike, as the count starts again at each
        restart. A rank that is behind learns that the producer of a name was destroyed, and tries
        the next name. A rank that does not meet the others gets its own workers, and the same
        batches.

        Args:
            key: The worker key of the former producers.
            live: Servers that take part.
        """
        first = name_of_recovery(key, self._cluster, live, 0)
        self._recoveries[first] += 1
        return name_of_recovery(key, self._cluster, live, self._recoveries[first])

    # -- end ------------------------------------------------------------------------------------

    def release(self, consumer: int, *, is_broken: bool, waits: bool = True) -> None:
        """Release this process's share of all producers. Idempotent, never raises.

        It does not wait for a stopped server, but repeats the request, as it may continue.

        Args:
            consumer: Number of this process among those that share them.
            is_broken: Whether a server or worker failed: workers end at once.
            waits: Whether to wait until the servers have done so.
        """
        replaced = self.replaced  # there, a number means another producer
        # removed before any request, so that a second call finds none
        ids, self.ids = self.ids, ByServer()
        remaining = {s: p for s, p in ids.items() if s not in replaced}
        self._release(remaining, consumer, is_broken, waits)

    def _release(
        self, ids: Mapping[int, int], consumer: int | None, is_broken: bool, waits: bool = True
    ) -> None:
        """Release this process's share of producers; None: end them."""
        name = "destroy_sampling_producer" if consumer is None else "release_sampling_producer"
        how = {} if consumer is None else {"consumer": consumer}
        linger_s = 0.0 if is_broken else LINGER_S
        limit = _RELEASE_BROKEN_S if is_broken else _RELEASE_S
        host = next(iter(self._made_on), 0)  # the server at which they agreed on it
        deadline = time.monotonic() + limit  # one deadline for all servers
        answers = []
        for server, producer in ids.items():
            if consumer is not None and server not in self._cluster.connections and server != host:
                continue  # never used; it learns from the host when all have left the producer
            with contextlib.suppress(GiglLoaderError):
                connection = self._cluster.connection(server)
                answer = connection.call(name, producer_id=producer, linger_s=linger_s, **how)
                if waits:
                    answers.append((server, answer))
        for server, answer in answers:
            try:
                what = f"the release of a producer on storage server {server}"
                result_of(answer, deadline - time.monotonic(), what, limit)
            except (PeerError, UsageError) as error:
                # the server is gone, or this process left: it is freed there anyway
                if not self._cluster.closed:
                    level = logging.DEBUG if is_broken else logging.WARNING
                    _log.log(level, "%s", error)  # which names the server


def name_of_recovery(key: str | None, cluster: Cluster, live: Sequence[int], attempt: int) -> str:
    """Return a worker key for recreated producers, the same on all ranks that share them.

    Args:
        key: The worker key of the former producers.
        cluster: The servers, in their current incarnations.
        live: Those that take part.
        attempt: Tells this recovery from an earlier one that only this rank knows.
    """
    # Ranks come here one by one, and cannot talk: the parts of the name are equal on all ranks
    # that have seen the same servers come and go. For an old name, servers would return the old
    # producer.
    parts = (key or f"rank {cluster.rank}", cluster.job, live, *cluster.incarnations, attempt)
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


# --- reports of compute ranks to rank 0, and its conclusions --------------------------------------


@dataclass(frozen=True)
class Proposal:
    """Report of a compute process to the others before producers are created."""

    key: str
    digest: str
    options: SourceOptions
    shared: dict[str, str]
    """Values by name that must be equal on all ranks, ``shard`` among them."""
    seeds: SeedSummary
    rows: RowsOffer | None = None
    """Offer of this rank's memory for cached rows to the ranks of its machine."""


@dataclass(frozen=True)
class Sharing:
    """The ranks that share one worker key, if there are several."""

    key: str
    ranks: Runs
    options: SourceOptions
    """The leader's options, which all of them use."""
    differ: list[int]
    """Ranks with another input or config than the leader."""


@dataclass(frozen=True)
class AgreedSettings:
    """Rank 0's conclusions from the proposals of all ranks."""

    sharing: list[Sharing]
    first: SourceOptions
    """The options of rank 0."""
    error: str | None = None
    """Error if values differ between ranks that must not."""
    rows: list[RowsOffer] = field(default_factory=list)
    """Memory in which ranks of one machine cache rows together."""

    def of(self, rank: int, key: str, own: SourceOptions) -> Sharing:
        """Return the ranks that share a key: only ``rank`` if rank 0 sent none."""
        # most ranks share with none, and all get the same response: a group of one is made here,
        # not sent
        known = next((sharing for sharing in self.sharing if sharing.key == key), None)
        return known or Sharing(key, Runs.of([rank]), own, [])

    def position_of(self, rank: int) -> int:
        """Return the position of a leader, given by rank, among all leaders."""
        before = (sharing.ranks.before(rank) for sharing in self.sharing)
        return rank - sum(count - 1 for count in before if count)  # each key's first is a leader


@dataclass(frozen=True)
class Outcome:
    """Outcome of creating producers, from the process that created them."""

    producers: ByServer | None
    """Ids of the producers by server."""
    failure: Failure | None


@dataclass(frozen=True)
class Outcomes:
    """Rank 0's conclusions from the outcomes of all ranks."""

    producers: dict[int, ByServer]
    """Outcomes by leader, of leaders whose producers others share."""
    failed: int | None = None
    """The lowest rank that failed."""
    failure: Failure | None = None

    def failure_on(self, rank: int, own: object) -> Exception | None:
        """Return the first failure of any rank; if it is ``rank``'s, with its own traceback."""
        if self.failure is None or self.failed is None:
            return None
        if self.failed == rank and isinstance(own, Exception):
            return own
        return rebuild(self.failure, f"rank {self.failed}")


def agree_on_terms(proposals: list[Proposal]) -> AgreedSettings:
    """Return the terms for all ranks. Runs on rank 0, which must not raise here."""
    try:
        # caught and sent: if rank 0 alone raised, the others would wait for its
        # response
        _check(proposals)
    except ConfigError as error:
        return AgreedSettings([], proposals[0].options, str(error))
    by_key: dict[str, list[int]] = {}
    for rank, proposal in enumerate(proposals):
        # ranks ascend, so the first of each key is its leader on all ranks
        by_key.setdefault(proposal.key, []).append(rank)
    sharing = [
        Sharing(
            key,
            Runs.of(ranks),
            proposals[ranks[0]].options,
            [other for other in ranks if proposals[other].digest != proposals[ranks[0]].digest],
        )
        for key, ranks in by_key.items()
        if len(ranks) > 1
    ]
    rows = RowsOffer.firsts([proposal.rows for proposal in proposals])
    return AgreedSettings(sharing, proposals[0].options, rows=rows)


def _check(proposals: list[Proposal]) -> None:
    """Raise `ConfigError` if ranks differ in shared settings, or seeds would come twice."""
    check_same_options([proposal.shared for proposal in proposals], "a loader")
    shard = proposals[0].shared.get("shard")
    if shard == "world":
        check_same_seeds([proposal.seeds for proposal in proposals])
    elif shard == "machine":
        # the ranks of one key share its batches
        check_each_once(
            [proposal.seeds for proposal in proposals], [proposal.key for proposal in proposals]
        )


def merge_outcomes(leaders: set[int], outcomes: list[Outcome]) -> Outcomes:
    """Return the conclusions for all ranks. Runs on rank 0."""
    producers = {
        rank: outcome.producers
        for rank, outcome in enumerate(outcomes)
        if rank in leaders and outcome.producers is not None
    }
    # the lowest rank's failure if there are several, so that all ranks raise the same one
    for rank, outcome in enumerate(outcomes):
        if outcome.failure is not None:
            return Outcomes(producers, rank, outcome.failure)
    return Outcomes(producers)


# --- the inputs of all servers as one -------------------------------------------------------------


def concatenated(inputs: Sequence[NodeSamplerInput]) -> NodeSamplerInput:
    """Return the inputs of all servers as one, on the CPU; further columns go with the seeds.

    Columns of labels may differ in width: they are padded with -1.

    Raises:
        ConfigError: There is no input, or the inputs are of several types.
    """
    if not inputs:
        raise ConfigError("sampler_input is an empty list: give one input per storage server")
    # a loader's seeds have one type, as positions in the whole input do not tell a type
    types = {server_input.input_type for server_input in inputs}
    if len(types) > 1:
        raise ConfigError(f"the inputs of the storage servers are of several types: {types}")
    whole: NodeSamplerInput | None = joined(inputs)
    if whole is None:
        nodes = torch.cat([server_input.node.cpu() for server_input in inputs])
        whole = NodeSamplerInput(nodes, types.pop())
    extras = [columns_of(server_input) for server_input in inputs]
    # sorted below, as all ranks that share a producer must get the same digest
    names = {name for extra in extras for name in extra}
    whole.extra = {
        name: _stacked([extra[name].cpu() for extra in extras if name in extra])
        for name in sorted(names)
    }
    for name, column in whole.extra.items():
        # Compared in rows: a server without seeds of this rank may omit its empty columns.
        if column.size(0) != len(whole):
            raise ConfigError(f"column {name!r} of the input is missing for some servers' seeds")
    return whole


def _stacked(columns: list[Tensor]) -> Tensor:
    if columns[0].dim() < 2:
        return torch.cat(columns)
    width = max(column.size(1) for column in columns)
    # -1 is not a node id; padding within a server's table uses it too
    padded = [torch.nn.functional.pad(c, (0, width - c.size(1)), value=-1) for c in columns]
    return torch.cat(padded)
