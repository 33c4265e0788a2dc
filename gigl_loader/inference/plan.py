"""Which rank computes which node, and which rows travel before a layer reads them.

A rank computes its own nodes, and numbers the edges of each type for itself. The edges into them
start at own nodes or at nodes of other ranks, the halo. A layer sees a small graph: own rows first,
then the halo::

    row    0 ... num_out-1 | ... num_own-1 | num_own ... num_own+num_halo-1
           computed here   | read only     | fetched before the layer runs
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gigl_loader.dataset.build import owned_ids
from gigl_loader.dataset.neighbours import all_edges
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.dataset.view import Adjacency, Book, PartitionView
from gigl_loader.errors import ConfigError
from gigl_loader.exchange import RankExchange

_NO_ID = torch.iinfo(torch.int64).max


class NodeShares:
    """The nodes that each rank computes: its partition's, shared by the ranks that hold it.

    A share is a contiguous piece of the partition's ids, as the loaders cut seeds.

    Args:
        view: This rank's partition.
        exchange: All ranks that hold the graph.

    Raises:
        ConfigError: The ranks do not hold all partitions, on all ranks alike.
    """

    def __init__(self, view: PartitionView, exchange: RankExchange) -> None:
        held = exchange.gather((view.partition_idx, view.num_partitions), tuple[int, int])
        _check_held(held)
        self.rank, self.size = exchange.rank, exchange.size
        self._books: dict[NodeType, Book] = view.node_books
        # by partition, the ranks that hold it, ascending
        self._ranks = [[r for r, (p, _) in enumerate(held) if p == q] for q in range(held[0][1])]
        mates = self._ranks[view.partition_idx]
        self.own: dict[NodeType, Tensor] = {}
        """Global ids of the nodes that this rank computes, ascending, by type."""
        for name, count in view.num_nodes.items():
            book = view.node_books.get(name)
            ids = torch.arange(count) if book is None else owned_ids(book, view.partition_idx)
            self.own[name] = ids.tensor_split(len(mates))[mates.index(exchange.rank)]
        # Shares are contiguous, so that the first id of each tells them apart. Empty ones come
        # last, as tensor_split cuts; a start above every id keeps them from being anybody's.
        starts = {name: int(ids[0]) if len(ids) else _NO_ID for name, ids in self.own.items()}
        everyone = exchange.gather(starts, dict[str, int])
        self._starts = {
            name: [torch.tensor([everyone[r][name] for r in ranks]) for ranks in self._ranks]
            for name in starts
        }

    def owner(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """Return the rank that computes each of ``ids``: ``[n]`` int64, as they are."""
        book = self._books.get(node_type)
        parts = torch.zeros_like(ids) if book is None else book.owner(ids)
        # one rank for each partition, as is usual: the owner's partition says it all
        if all(len(ranks) == 1 for ranks in self._ranks):
            return torch.tensor([ranks[0] for ranks in self._ranks])[parts]
        found = torch.empty_like(ids)
        for part, ranks in enumerate(self._ranks):
            mine = parts == part
            # the last share that starts at or before the id
            at = torch.searchsorted(self._starts[node_type][part], ids[mine], right=True) - 1
            found[mine] = torch.tensor(ranks)[at]
        return found


def _check_held(held: list[tuple[int, int]]) -> None:
    counts = {count for _, count in held}
    # computed of what all ranks sent, so that all of them raise, and none waits for the others
    missing = set(range(max(counts))) - {part for part, _ in held}
    if len(counts) > 1 or missing:
        raise ConfigError(
            f"the {len(held)} ranks hold these partitions (index, of how many): {held}; together "
            "they have to hold all partitions of one graph"
            + (f", missing are {sorted(missing)}" if missing else "")
        )


@dataclass(frozen=True)
class Level:
    """One edge type as one layer reads it: all own rows, or those that a later layer needs."""

    edge_type: EdgeType
    """As messages go: source, relation, destination."""
    edge_index: Tensor
    """``[2, num_edges]`` int64; row 0 counts sources, own ones then halo; row 1 destinations."""
    exchange: RankExchange
    sources: Tensor | None
    """Own source rows in the order that ``edge_index`` counts them; None: all, as they are."""
    targets: Tensor | None
    """Own destination rows that are computed; None: all."""
    edges: Tensor | None
    """Which of the rank's edges these are; None: all."""
    num_sources: int
    """Own rows among the sources."""
    num_targets: int
    """Rows computed."""
    send_rows: Tensor
    """Own source rows that other ranks read, those for rank 0 first."""
    send: list[int]
    """Rows for each rank."""
    receive: list[int]
    """Rows from each rank; together the halo."""

    @property
    def num_rows(self) -> int:
        """Sources, own ones and halo."""
        return self.num_sources + sum(self.receive)

    def fetch(self, rows: Tensor) -> Tensor:
        """Return the halo's rows, given all own source rows. Collective."""
        return self.exchange.swap(rows[self.send_rows], self.send, self.receive)

    def extend(self, rows: Tensor) -> Tensor:
        """Return ``[num_rows, ...]``: sources and halo, given all own source rows. Collective."""
        own = rows if self.sources is None else rows[self.sources]
        # one rank owns every node: there is no halo, and no copy is made for it
        return torch.cat([own, self.fetch(rows)]) if self.exchange.size > 1 else own

    def cut(self, rows: Tensor) -> Tensor:
        """Return the destinations that are computed, of all own destination rows."""
        return rows if self.targets is None else rows[self.targets]

    def put_back(self, out: Tensor, num_own: int) -> Tensor:
        """Return what a layer computed as a row for each own node; zeros where none was."""
        out = out[: self.num_targets]
        if self.targets is None:
            return out
        whole = out.new_zeros((num_own, *out.shape[1:]))
        # not in place: the gradient flows to `out` alone
        return whole.index_copy(0, self.targets, out)

    def to(self, device: torch.device) -> "Level":
        """Return it with its tensors on ``device``."""

        def there(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device)

        return Level(
            self.edge_type, self.edge_index.to(device), self.exchange, there(self.sources),
            there(self.targets), there(self.edges), self.num_sources, self.num_targets,
            self.send_rows.to(device), self.send, self.receive,
        )  # fmt: skip


def position_of(ids: Tensor, among: Tensor) -> Tensor:
    """Return the position of each of ``ids`` in ``among`` (ascending), -1 where it is not there."""
    if among.numel() == 0:
        return torch.full_like(ids, -1)
    # an id above all others gets the position after the last one
    at = torch.searchsorted(among, ids).clamp_(max=among.numel() - 1)
    return torch.where(among[at] == ids, at, -1)


@dataclass
class EdgePlan:
    """All levels of one edge type.

    Attributes:
        edge_type: As messages go.
        whole: All own rows.
        positions: See `EdgeBlock`.
        halo: ``[num_halo]`` int64, global ids of the halo, by owner.
        narrow: By hops that are still to come: the rows that are needed, where ``nodes`` were
            named.
    """

    edge_type: EdgeType
    whole: Level
    positions: Tensor
    halo: Tensor
    narrow: dict[int, Level] = field(default_factory=dict)

    def level(self, hops_to_come: int | None) -> Level:
        """Return the level of a layer after which ``hops_to_come`` more follow; None: all rows."""
        return self.whole if hops_to_come is None else self.narrow.get(hops_to_come, self.whole)


def plan_edges(
    edge_type: EdgeType, adjacency: Adjacency, shares: NodeShares, exchange: RankExchange
) -> EdgePlan:
    """Number the edges into this rank's nodes and agree on the halo. Collective."""
    src, _, dst = edge_type
    own = shares.own[src]
    edges = all_edges(adjacency, shares.own[dst])
    assert edges.positions is not None
    rows = position_of(edges.sources, own)
    # Rows of the halo stand in the order in which they arrive: by owner, as all_to_all puts them.
    # Ids ascend in each owner's part, as unique() and the stable sort leave them.
    outside = rows < 0
    halo = torch.unique(edges.sources[outside])
    owner = shares.owner(src, halo)
    halo = halo[torch.argsort(owner, stable=True)]
    receive = torch.bincount(owner, minlength=exchange.size).tolist()
    rows[outside] = own.numel() + _positions(edges.sources[outside], halo)
    # a rank knows what it needs, and its owners learn it here, once; every layer then sends these
    # rows without being asked
    send = exchange.swap_counts(receive)
    wanted = exchange.swap(halo, receive, send)
    level = Level(
        edge_type, torch.stack([rows, edges.targets]), exchange, None, None, None, own.numel(),
        shares.own[dst].numel(), position_of(wanted, own), send, receive,
    )  # fmt: skip
    return EdgePlan(edge_type, level, edges.positions, halo)


def _positions(ids: Tensor, among: Tensor) -> Tensor:
    """Return the position of each of ``ids`` in ``among``, in any order."""
    # place_of() searches what ascends, and the halo ascends within each owner's part only
    order = torch.argsort(among)
    return order[position_of(ids, among[order])]


def narrow_plans(
    plans: dict[EdgeType, EdgePlan], wanted: dict[str, Tensor], num_layers: int
) -> None:
    """Work out, layer by layer from the last one, which rows ``wanted`` depend on. Collective.

    Args:
        plans: By edge type; their ``narrow`` is filled.
        wanted: ``[num_own]`` bool by node type, the rows that the last layer has to give.
        num_layers: Layers of the model.
    """
    for hops in range(num_layers):
        # what is computed is read as well: a node's own row goes into its new one
        needed = {name: mask.clone() for name, mask in wanted.items()}
        # Two passes: a type's rows are needed by the edges of several types, and all of these have
        # to have marked theirs before the rows are numbered. Each swap is collective: all ranks go
        # through the edge types in the order of `plans`.
        picks = {}
        for edge_type, plan in plans.items():
            edges = wanted[edge_type[2]][plan.whole.edge_index[1]].nonzero().view(-1)
            halo = _mark_sources(plan.whole, edges, needed[edge_type[0]])
            picks[edge_type] = edges, halo
        for edge_type, plan in plans.items():
            plan.narrow[hops] = _narrow(plan.whole, *picks[edge_type], needed, wanted)
        wanted = needed


def _mark_sources(whole: Level, edges: Tensor, needed: Tensor) -> Tensor:
    """Mark the sources of ``edges`` as needed at their owners; return the halo's part, a mask."""
    # a mask, not ids: all have agreed on the halo, so that a byte for each of its rows tells it all
    mask = torch.zeros(whole.num_rows, dtype=torch.bool)
    mask[whole.edge_index[0, edges]] = True
    needed |= mask[: whole.num_sources]
    asked = whole.exchange.swap(mask[whole.num_sources :], whole.receive, whole.send)
    needed[whole.send_rows[asked]] = True
    return mask[whole.num_sources :]


def _narrow(
    whole: Level, edges: Tensor, halo: Tensor, needed: dict[str, Tensor], wanted: dict[str, Tensor]
) -> Level:
    src, _, dst = whole.edge_type
    targets = wanted[dst].nonzero().view(-1)
    sources = needed[src].nonzero().view(-1)
    if src == dst:  # the rows that are computed come first
        sources = torch.cat([targets, (needed[src] & ~wanted[src]).nonzero().view(-1)])
    # -1 stays where a row is left out: no edge that was picked starts or ends there
    number = torch.full((whole.num_rows,), -1)
    number[sources] = torch.arange(sources.numel())
    outside = halo.nonzero().view(-1)
    number[whole.num_sources + outside] = sources.numel() + torch.arange(outside.numel())
    position = torch.full((wanted[dst].numel(),), -1)
    position[targets] = torch.arange(targets.numel())
    old = whole.edge_index[:, edges]
    # the others drop rows of their halos, too: of those sent to them, these are left
    asked = whole.exchange.swap(halo, whole.receive, whole.send)
    return Level(
        whole.edge_type, torch.stack([number[old[0]], position[old[1]]]), whole.exchange, sources,
        targets, edges, sources.numel(), targets.numel(), whole.send_rows[asked],
        _per_rank(asked, whole.send), _per_rank(halo, whole.receive),
    )  # fmt: skip


def _per_rank(mask: Tensor, sizes: list[int]) -> list[int]:
    return [int(part.sum()) for part in mask.split(sizes)]
