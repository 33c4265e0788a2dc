"""A graph whose partitions lie on the devices of several ranks; a `DeviceGraph` of each of them.

Each hop of a batch, and then its rows, is one exchange of all ranks::

    frontier, by owner       host    meet: how many ids go to whom, and the keys of the draws
                             device  all_to_all: ids, trees, times
    owners draw, or read     host    meet: all of them could
                             device  all_to_all: neighbours and edge ids, or rows

A draw depends on its key and its node, so batches are those of a graph in one place. Hops and
matrices are the same on all ranks; a rank without a batch takes part with no ids. An exchange needs
sizes, so the host waits for its device once in each: for the numbers of ids. Responses have the
size that the fan-outs allow, and need no second wait.

A device exchange cannot be cancelled. So memory for a response is taken, and draws are made, before
the ranks meet the second time: a rank that raised is named there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.dataset.partition.partition_view import (
    ROW_KINDS,
    Book,
    Matrix,
    Owner,
    PartitionView,
    owner_of,
)
from gigl_loader.dataset.schema import EdgeType
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.ranks.collectives import RankExchange
from gigl_loader.runtime.sizes import size_in_words
from gigl_loader.sampler.gpu.device_graph import (
    HopRequest,
    drawn_from,
    edge_ids_at,
    max_degree,
    read_rows,
    rows_of,
)
from gigl_loader.sampler.gpu.device_kernels import HopEdges, TorchKernels
from gigl_loader.sampler.gpu.torch_numbers import signed
from gigl_loader.sampler.plan import SamplingPlan
from gigl_loader.sources.in_process.collective import CollectivePeers
from gigl_loader.sources.in_process.device_rows import device_group, wait_for_ranks

_LOWEST = torch.iinfo(torch.int64).min
_SLICE = 1 << 24
"""Edges that each rank sends at once to all others, when all edges are gathered."""


@dataclass(frozen=True)
class _Routes:
    """Ids of several kinds, each by the rank that has it. Kinds: edge types, or owners of rows."""

    orders: list[Tensor]
    """By kind ``[n]`` int64, positions of the ids: those for rank 0 first."""
    send: list[list[int]]
    """By kind and rank, ids for the rank."""
    receive: list[list[int]]
    """By kind and rank, ids from the rank."""
    further: list[list[int]]
    """By rank, the further numbers that it sent."""


class PartitionedGraph:
    """A `DeviceGraph` of the partitions of all ranks. Every call of its methods is collective.

    Args:
        view: This rank's partition, placed on its device.
        plan: How to sample; the same on all ranks.
        kernels: Kernels of the device.
        memory: Memory of the device.
        peers: The other ranks, with ``num_words`` of `words_of`.

    Raises:
        ConfigError: The backend of the process group exchanges no memory of the device.
        PeerError: A rank ended.
    """

    def __init__(
        self,
        view: PartitionView[Tensor],
        plan: SamplingPlan,
        kernels: TorchKernels,
        memory: DeviceMemory,
        peers: CollectivePeers,
    ) -> None:
        self.view, self._plan, self._kernels = view, plan, kernels
        self._memory, self._peers = memory, peers
        group = device_group(peers, memory)
        # Without a backend of the devices the host's group serves, through the memory of the CPU.
        own = peers.group if group is None else group
        self._exchange = RankExchange(own, failures=peers.named_failures)
        names = list(plan.fanouts)
        most = peers.most([max_degree(view.adjacency[name].indptr) for name in names])
        self.degrees = dict(zip(names, most, strict=True))
        parts = [peers.rank_of(partition) for partition in range(view.num_partitions)]
        self._rank_of = torch.tensor(parts, device=memory.device)
        # Read here if every rank has all rows of a matrix: then no rank takes part in an exchange.
        matrices = sorted(
            ((kind, name) for kind in ROW_KINDS for name in getattr(view, kind)), key=str
        )
        split = peers.most([int(not rows_of(view, matrix).whole) for matrix in matrices])
        self._here = {
            matrix for matrix, is_split in zip(matrices, split, strict=True) if not is_split
        }
        self._columns = 1
        """int64 of a requested node: its id; in trees the key of its draw; then its times."""
        if plan.expansion.draws_in_trees:
            self._columns = 4 if view.times else 2

    # -- all edges: see `all_edges` ----------------------------------------------------------------

    def all_ranks(self, agrees: bool) -> bool:
        """Return whether all ranks say yes."""
        return bool(self._peers.least(int(agrees)))

    def check_room(self, nbytes: int) -> None:
        """Raise `ConfigError` on all ranks if one has no room for ``nbytes`` of each of them."""
        wanted, free = sum(self._exchange.gather(nbytes, int)), self._memory.free_bytes()
        least = self._peers.least(wanted if free is None else free)
        if wanted > least:
            raise ConfigError(
                f"all edges of a type take {size_in_words(wanted)} of {self._memory.device}, and "
                f"some rank has {size_in_words(least)} free: leave the edges with their owners, "
                'with dataset.to(device, edges="own"), or take more of the features to the host'
            )

    def gathered(self, own: Tensor) -> Tensor:
        """Return the rows of all ranks, in rank order."""
        counts, begin = self._exchange.gather(own.shape[0], int), 0
        rows = own.new_empty((sum(counts), *own.shape[1:]))
        while begin < max(counts):  # slices: what is sent has a copy for each rank
            part = own[begin : begin + _SLICE]
            receive = [min(max(count - begin, 0), _SLICE) for count in counts]
            sent = part.repeat(len(counts), *[1] * (part.dim() - 1))
            came = self._exchange.all_to_all_values(sent, [part.shape[0]] * len(counts), receive)
            wait_for_ranks(self._memory, self._memory.mark(), self._peers.timeout_s)
            first = begin
            for count, piece in zip(counts, came.split(receive), strict=True):
                rows[first : first + piece.shape[0]] = piece
                first += count
            begin += _SLICE
        return rows

    # -- draws -------------------------------------------------------------------------------------

    def draw(self, requests: Sequence[HopRequest]) -> Sequence[HopEdges | None]:
        """Draw neighbours of one hop, of all edge types; None: nothing is drawn."""
        books = [self._owners_of(request) for request in requests]
        keys = [signed(request.draw.key) for request in requests]
        routes = self._routed(books, keys)
        columns = [
            self._columns_of(request)[order]
            for request, order in zip(requests, routes.orders, strict=True)
        ]
        came = self._sent(columns, routes)
        sizes = [self._response_size(request) for request in requests]
        keys_of_rows = self._keys_of_rows(routes)
        # One draw for all ranks, whose keys differ: by rank, the rows of each request.
        drawn = [
            self._drawn(
                request, torch.cat([by_kind[at] for by_kind in came]), keys_of_rows[at]
            ).split(routes.receive[at])
            for at, request in enumerate(requests)
        ]
        sent = torch.cat(
            [by_rank[rank].reshape(-1) for rank in range(self._peers.size) for by_rank in drawn]
        )
        receive, send = _totals(routes.send, sizes), _totals(routes.receive, sizes)
        out = sent.new_empty(sum(receive))
        results = [self._no_response(request) for request in requests]
        self._peers.meet()  # what may fail has been done: an exchange on a device is not cancelled
        self._swap(sent, send, receive, out)
        pieces = _cut(out, routes.send, sizes)
        for at, (request, result) in enumerate(zip(requests, results, strict=True)):
            if result is not None:
                rows = torch.cat([by_kind[at] for by_kind in pieces]).view(-1, sizes[at])
                _place(result, rows, routes.orders[at], request.width)
        return results

    def edge_ids(self, edge_type: EdgeType, edges: Tensor) -> Tensor:
        """Return the id of each edge, of `HopEdges.edges`, as int64."""
        return edges  # owners send ids

    def _owners_of(self, request: HopRequest) -> Tensor:
        """Return ``[n]`` int64, the rank of each node; the number of ranks for unused places."""
        book = self.view.node_books.get(self.view.row_type(request.draw.edge_type))
        if not request.width:
            return torch.full_like(request.ids, self._peers.size)
        ranks = self._ranks(book, request.ids.clamp(min=0))
        return torch.where(request.ids < 0, self._peers.size, ranks)

    def _columns_of(self, request: HopRequest) -> Tensor:
        """Return ``[n, columns]`` int64, what an owner has to know of each node."""
        columns = [request.ids, request.drawn_by]
        for times in (request.until, request.since):
            columns.append(torch.full_like(request.ids, _LOWEST) if times is None else times)
        return torch.stack(columns[: self._columns], 1)

    def _keys_of_rows(self, routes: _Routes) -> list[Tensor]:
        """Return by request ``[n]`` int64, the key by which each node that came is drawn for."""
        counts = np.array(routes.receive, np.int64)
        keys = np.array(routes.further, np.int64).T  # by request and rank, as the counts
        keys, repeats = self._memory.uploaded_array(np.stack([keys, counts])).view(2, -1)
        totals = counts.sum(1).tolist()
        # with its size the host waits for no result
        of_rows: Tensor = keys.repeat_interleave(repeats, output_size=sum(totals))
        return list(of_rows.split(totals))

    def _drawn(self, request: HopRequest, columns: Tensor, keys: Tensor) -> Tensor:
        """Return ``[n, response size]`` int64: neighbours and edge ids of each node."""
        name = request.draw.edge_type
        adjacency = self.view.adjacency[name]
        if not columns.numel() or not adjacency.indices.numel():
            return columns.new_full((columns.shape[0], self._response_size(request)), -1)
        # a copy: kernels read contiguous arrays
        ids, drawn_by, until, since = (
            columns[:, min(at, self._columns - 1)].contiguous() for at in range(4)
        )
        request = replace(
            request,
            ids=ids,
            drawn_by=drawn_by,
            keys=keys,
            until=until if request.draw.timed else None,
            since=since if request.draw.timed else None,
        )
        rows = adjacency.locate(ids)
        drawn = drawn_from(self.view, self._kernels, request, rows, self.degrees[name])
        if not self._plan.with_edge:
            return drawn.neighbors
        edge_ids = edge_ids_at(adjacency, drawn.edges, self._kernels)
        return torch.cat([drawn.neighbors, edge_ids], 1)

    def _response_size(self, request: HopRequest) -> int:
        return request.width * (2 if self._plan.with_edge else 1)

    def _no_response(self, request: HopRequest) -> HopEdges | None:
        if not request.width or not request.ids.numel():
            return None
        neighbors = request.ids.new_full((request.ids.numel(), request.width), -1)
        edges = torch.zeros_like(neighbors) if self._plan.with_edge else neighbors
        return HopEdges(edges, neighbors)

    # -- rows --------------------------------------------------------------------------------------

    def rows(self, ids: Mapping[Owner, Tensor], wanted: Sequence[Matrix]) -> dict[Matrix, Tensor]:
        """Return the rows of a batch on the device."""
        unsplit = [matrix for matrix in wanted if matrix in self._here]
        by_matrix = read_rows(self.view, self._kernels, ids, unsplit)
        wanted = [matrix for matrix in wanted if matrix not in self._here]
        if not wanted:
            return by_matrix
        owners = list(dict.fromkeys(owner_of(*matrix) for matrix in wanted))
        routes = self._routed([self._row_owners(owner, ids[owner]) for owner in owners])
        columns = [
            ids[owner][order][:, None] for owner, order in zip(owners, routes.orders, strict=True)
        ]
        came = self._sent(columns, routes)
        theirs = {
            owner: torch.cat([by_kind[at] for by_kind in came]).view(-1)
            for at, owner in enumerate(owners)
        }
        back = {owner: _inverse(order) for owner, order in zip(owners, routes.orders, strict=True)}
        exchanges = []
        for matrix in wanted:
            at = owners.index(owner_of(*matrix))
            rows = rows_of(self.view, matrix)
            sent = self._kernels.gather(rows.values, rows.locate(theirs[owners[at]]))
            out = sent.new_empty((sum(routes.send[at]), *sent.shape[1:]))
            exchanges.append((matrix, at, sent, out))
        self._peers.meet()
        for matrix, at, sent, out in exchanges:
            self._swap(sent, routes.receive[at], routes.send[at], out)
            by_matrix[matrix] = self._kernels.gather(out, back[owners[at]])
        return by_matrix

    def _row_owners(self, owner: Owner, ids: Tensor) -> Tensor:
        kind, name = owner
        books: Mapping[Any, Book[Tensor]] = (
            self.view.node_books if kind == "node" else self.view.edge_books
        )
        return self._ranks(books.get(name), ids)

    # -- exchange ----------------------------------------------------------------------------------

    def _ranks(self, book: Book[Tensor] | None, ids: Tensor) -> Tensor:
        if book is None:  # as for readers on the host: all is here
            return torch.full_like(ids, self._peers.rank)
        return self._rank_of[book.owner(ids)]

    def _routed(self, owners: Sequence[Tensor], further: Sequence[int] = ()) -> _Routes:
        """Tell each rank how many ids it is sent, and ``further``; the host waits for all."""
        size = self._peers.size
        orders = [torch.argsort(ranks, stable=True) for ranks in owners]
        counts = [
            ranks.new_zeros(size + 1).scatter_add_(0, ranks, torch.ones_like(ranks))[:size]
            for ranks in owners
        ]
        send = self._on_host(torch.stack(counts)) if counts else []
        words = [[column[rank] for column in send] + list(further) for rank in range(size)]
        came = self._peers.meet(words)
        receive = [[row[at] for row in came] for at in range(len(send))]
        used = [order[: sum(row)] for order, row in zip(orders, send, strict=True)]
        return _Routes(used, send, receive, [row[len(send) :] for row in came])

    def _on_host(self, numbers: Tensor) -> list[list[int]]:
        host = self._memory.downloaded(numbers)
        wait_for_ranks(self._memory, self._memory.mark(), self._peers.timeout_s)
        return host.tolist()

    def _sent(self, columns: Sequence[Tensor], routes: _Routes) -> list[list[Tensor]]:
        """Send what owners have to know; return by rank and kind what this one has to."""
        width = columns[0].shape[1]
        by_kind = [column.split(row) for column, row in zip(columns, routes.send, strict=True)]
        sent = torch.cat([by_rank[rank] for rank in range(self._peers.size) for by_rank in by_kind])
        widths = [1] * len(columns)
        receive = _totals(routes.receive, widths)
        out = sent.new_empty((sum(receive), width))
        self._swap(sent, _totals(routes.send, widths), receive, out)
        return _cut(out, routes.receive, widths)

    def _swap(self, sent: Tensor, send: list[int], receive: list[int], out: Tensor) -> None:
        self._exchange.all_to_all_values(sent, send, receive, out)


def words_of(view: PartitionView[Any], plan: SamplingPlan) -> int:
    """Return the most numbers that ranks tell each other at once: see `CollectivePeers.meet`."""
    # a count and a key for each edge type; or a count for each owner of rows
    return max(2 * len(plan.fanouts), len(view.num_nodes) + len(plan.fanouts))


def _place(result: HopEdges, rows: Tensor, at: Tensor, width: int) -> None:
    """Write the responses of owners to the places of the nodes."""
    result.neighbors.index_copy_(0, at, rows[:, :width])
    if result.edges is not result.neighbors:
        result.edges.index_copy_(0, at, rows[:, width:])


def _cut(values: Tensor, counts: list[list[int]], sizes: Sequence[int]) -> list[list[Tensor]]:
    """Return by rank and kind a part of ``values``: ``counts`` items of ``sizes`` rows each."""
    by_rank = list(zip(*counts, strict=True))
    lengths = [n * size for row in by_rank for n, size in zip(row, sizes, strict=True)]
    parts = iter(values.split(lengths))
    return [[next(parts) for _ in row] for row in by_rank]


def _inverse(order: Tensor) -> Tensor:
    """Return where each item of a permutation is: ``order[_inverse(order)]`` counts from 0."""
    places = torch.arange(order.numel(), device=order.device)
    return torch.empty_like(order).scatter_(0, order, places)


def _totals(counts: list[list[int]], sizes: Sequence[int]) -> list[int]:
    """Return by rank the sum over all kinds of counts times the size of one item."""
    return [
        sum(count * size for count, size in zip(column, sizes, strict=True))
        for column in zip(*counts, strict=True)
    ]
