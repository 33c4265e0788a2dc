"""The part of the whole graph that a rank computes, and the row exchange before a layer.

A rank computes its own nodes, and numbers the edges of each type for itself. The edges into them
start at own nodes or at nodes of other ranks, the halo. A layer sees a small graph: own rows first,
then the halo::

    row    0 ... num_out-1 | ... num_own-1 | num_own ... num_own+num_halo-1
           computed here   | read only     | fetched before the layer runs
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.identity import holders_of
from gigl_loader.dataset.lookup import RowLookup, widened
from gigl_loader.dataset.partition.adjacency import all_edges
from gigl_loader.dataset.partition.build import owned_ids
from gigl_loader.dataset.partition.frames import FRAME, check_installed, is_of_frame, to_frame
from gigl_loader.dataset.partition.partition_view import Adjacency, Book, PartitionView
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    SPLITS,
    EdgeDir,
    EdgeType,
    NodeType,
    is_in_batches,
    is_label_edge_type,
    reverse_edge_type,
)
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.memory.tensors import each_tensor
from gigl_loader.runtime.ranks.collectives import RankExchange

_NO_ID = torch.iinfo(torch.int64).max


class NodeShares:
    """The nodes that each rank computes: its partition's, shared by the ranks of that partition.

    A share is a contiguous piece of the partition's ids, as the loaders cut seeds.

    Args:
        exchange: All ranks of the graph.
        exchange: All ranks that hold the graph.

    Raises:
        ConfigError: The ranks lack a partition; raised on all ranks.
    """

    def __init__(self, view: PartitionView, exchange: RankExchange) -> None:
        held = exchange.gather((view.partition_idx, view.num_partitions), tuple[int, int])
        # computed from the data of all ranks, so that all of them raise, and none waits
        if len({count for _, count in held}) > 1:
            raise ConfigError(
                f"the {len(held)} ranks hold these partitions (index, of how many): {held}; "
                "together they have to hold all partitions of one graph"
            )
        self._books: dict[NodeType, Book] = view.node_books
        self._ranks = holders_of(view.num_partitions, [part for part, _ in held])
        mates = self._ranks[view.partition_idx]
        self.own_ids: dict[NodeType, Tensor] = {}
        """Global ids of the nodes that this rank computes, ascending, by type."""
        for name, count in view.num_nodes.items():
            book = view.node_books.get(name)
            ids = (
                torch.arange(count, device="cpu")
                if book is None
                else owned_ids(book, view.partition_idx)
            )
            self.own_ids[name] = ids.tensor_split(len(mates))[mates.index(exchange.rank)]
        # Shares are contiguous, so the first id of each identifies them. Empty ones come last, as
        # tensor_split cuts; a start above every id keeps ids out of them.
        starts = {name: int(ids[0]) if len(ids) else _NO_ID for name, ids in self.own_ids.items()}
        everyone = exchange.gather(starts, dict[str, int])
        self._starts = {
            name: [
                torch.tensor([everyone[r][name] for r in ranks], device="cpu")
                for ranks in self._ranks
            ]
            for name in starts
        }

    def owner(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """Return the rank that computes each of ``ids``: ``[n]`` int64, as they are."""
        book = self._books.get(node_type)
        parts = torch.zeros_like(ids) if book is None else book.owner(ids)
        # one rank per partition is usual: the owner's partition decides
        if all(len(ranks) == 1 for ranks in self._ranks):
            return torch.tensor([ranks[0] for ranks in self._ranks], device="cpu")[parts]
        owners = torch.empty_like(ids)
        for part, ranks in enumerate(self._ranks):
            mine = parts == part
            # the last share that starts at or before the id
            at = torch.searchsorted(self._starts[node_type][part], ids[mine], right=True) - 1
            owners[mine] = torch.tensor(ranks, device="cpu")[at]
        return owners


@dataclass(frozen=True)
class Level:
    """One edge type for one layer: all own rows, or those that a later layer needs."""

    edge_type: EdgeType
    """As messages go: source, relation, destination."""
    edge_index: Tensor
    """``[2, num_edges]`` int64; row 0 counts sources, own ones then halo; row 1 destinations."""
    exchange: RankExchange
    sources: Tensor | None
    """Own source rows in the order of their numbers in ``edge_index``; None: all, in order."""
    targets: Tensor | None
    """Own destination rows that are computed; None: all."""
    edges: Tensor | None
    """The layer's edges among the rank's; None: all."""
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
        return self.exchange.all_to_all(rows[self.send_rows], self.send, self.receive)

    def extend(self, rows: Tensor) -> Tensor:
        """Return ``[num_rows, ...]``: sources and halo, given all own source rows. Collective."""
        source_rows = rows if self.sources is None else rows[self.sources]
        # one rank owns every node: there is no halo, and no copy is needed
        return torch.cat([source_rows, self.fetch(rows)]) if self.exchange.size > 1 else source_rows

    def fetch_from(self, rows: Tensor, step: int) -> Tensor:
        """Return the halo's rows of the rank ``step`` places after this one. Collective.

        Args:
            rows: ``[num_sources, ...]``, all own source rows; in step 0 they are returned.
            step: The same on all ranks, from 0 to their number - 1.
        """
        if step == 0:
            return rows
        size, source = self.exchange.size, self._source(step)
        # the rank as many places before reads this one's rows at the same time
        reader = (self.exchange.rank - step) % size
        send, receive = [0] * size, [0] * size
        send[reader], receive[source] = self.send[reader], self.receive[source]
        first = sum(self.send[:reader])
        sent = rows[self.send_rows[first : first + send[reader]]]
        return self.exchange.all_to_all(sent, send, receive)

    def num_from(self, step: int) -> int:
        """Return the number of rows of `fetch_from`."""
        return self.receive[self._source(step)] if step else self.num_sources

    def first_row_from(self, step: int) -> int:
        """Return the number, in ``edge_index``, of the first of these rows."""
        return self.num_sources + sum(self.receive[: self._source(step)]) if step else 0

    def _source(self, step: int) -> int:
        return (self.exchange.rank + step) % self.exchange.size

    def cut(self, rows: Tensor) -> Tensor:
        """Return the computed destinations, from all own destination rows."""
        return rows if self.targets is None else rows[self.targets]

    def put_back(self, out: Tensor, num_own: int) -> Tensor:
        """Return a layer's output with a row for each own node; zeros for the others."""
        out = out[: self.num_targets]
        if self.targets is None:
            return out
        whole = out.new_zeros((num_own, *out.shape[1:]))
        # not in place: the gradient only flows to `out`
        return whole.index_copy(0, self.targets, out)


def position_of(ids: Tensor, among: Tensor) -> Tensor:
    """Return the position of each of ``ids`` in ``among`` (ascending), -1 if it is missing."""
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
        narrow: By number of following hops: the needed rows, if ``nodes`` were named.
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
    own_ids = shares.own_ids[src]
    edges = all_edges(adjacency, shares.own_ids[dst])
    assert edges.positions is not None
    rows = position_of(edges.sources, own_ids)
    # Rows of the halo are in the order of arrival: by owner, as all_to_all puts them. Ids ascend in
    # each owner's part, as unique() and the stable sort leave them.
    outside = rows < 0
    halo = torch.unique(edges.sources[outside])
    owner = shares.owner(src, halo)
    halo = halo[torch.argsort(owner, stable=True)]
    receive = torch.bincount(owner, minlength=exchange.size).tolist()
    rows[outside] = own_ids.numel() + _positions(edges.sources[outside], halo)
    # a rank knows its needs, and their owners learn them here, once; every layer then sends these
    # rows without a request
    send = exchange.all_to_all_counts(receive)
    wanted = exchange.all_to_all(halo, receive, send)
    level = Level(
        edge_type,
        torch.stack([rows, edges.targets]),
        exchange,
        None,
        None,
        None,
        own_ids.numel(),
        shares.own_ids[dst].numel(),
        position_of(wanted, own_ids),
        send,
        receive,
    )
    return EdgePlan(edge_type, level, edges.positions, halo)


def _positions(ids: Tensor, among: Tensor) -> Tensor:
    """Return the position of each of ``ids`` in ``among``, in any order."""
    # position_of() needs ascending ids, and the halo only ascends within each owner's part
    order = torch.argsort(among)
    return order[position_of(ids, among[order])]


def narrow_plans(
    plans: dict[EdgeType, EdgePlan], wanted: dict[str, Tensor], num_layers: int
) -> None:
    """Compute, layer by layer from the last one, the rows that ``wanted`` depends on. Collective.

    Args:
        plans: By edge type; their ``narrow`` is filled.
        wanted: ``[num_own]`` bool by node type, the required rows of the last layer.
        num_layers: Layers of the model.
    """
    for hops in range(num_layers):
        # computed rows are read as well: a node's own row goes into its new one
        needed = {name: mask.clone() for name, mask in wanted.items()}
        # Two passes: edges of several types need a type's rows, and all of these must have marked
        # theirs before the rows are numbered. Each swap is collective: all ranks go through the
        # edge types in the order of `plans`.
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
    # a mask, not ids: all ranks have agreed on the halo, so a byte per row suffices
    mask = torch.zeros(whole.num_rows, dtype=torch.bool, device="cpu")
    mask[whole.edge_index[0, edges]] = True
    needed |= mask[: whole.num_sources]
    asked = whole.exchange.all_to_all(mask[whole.num_sources :], whole.receive, whole.send)
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
    # -1 stays for omitted rows: no selected edge starts or ends there
    number = torch.full((whole.num_rows,), -1, device="cpu")
    number[sources] = torch.arange(sources.numel(), device="cpu")
    outside = halo.nonzero().view(-1)
    number[whole.num_sources + outside] = sources.numel() + torch.arange(
        outside.numel(), device="cpu"
    )
    position = torch.full((wanted[dst].numel(),), -1, device="cpu")
    position[targets] = torch.arange(targets.numel(), device="cpu")
    old = whole.edge_index[:, edges]
    # the others drop rows of their halos, too: these remain of the rows for them
    asked = whole.exchange.all_to_all(halo, whole.receive, whole.send)
    return Level(
        whole.edge_type,
        torch.stack([number[old[0]], position[old[1]]]),
        whole.exchange,
        sources,
        targets,
        edges,
        sources.numel(),
        targets.numel(),
        whole.send_rows[asked],
        _per_rank(asked, whole.send),
        _per_rank(halo, whole.receive),
    )


def _per_rank(mask: Tensor, sizes: list[int]) -> list[int]:
    return [int(part.sum()) for part in mask.split(sizes)]


# --- this rank's part of the graph, for a model ---------------------------------------------------


@dataclass
class LocalGraph:
    """The part of the graph that one rank has."""

    data: Data | HeteroData
    """Rows of the rank's own nodes; edges into them, in local numbers."""
    shares: NodeShares
    exchange: RankExchange
    plans: dict[EdgeType, EdgePlan] = field(default_factory=dict)
    """By edge type, as messages go."""


def message_types(edge_types: Iterable[EdgeType], edge_dir: EdgeDir) -> dict[EdgeType, EdgeType]:
    """Return edge types in message direction, to edge types as the dataset names them.

    Messages go from a neighbour to the expanded node, as in a sampled batch: along the edges if
    ``edge_dir="in"``, against them if it is ``"out"``.
    """
    # sorted: each type is a round of collective calls, which all ranks make in one order
    names = sorted(name for name in edge_types if not is_label_edge_type(name))
    if edge_dir == "in":
        return {name: name for name in names}
    return {reverse_edge_type(name): name for name in names}


def local_graph(
    dataset: DistDataset, exchange: RankExchange, device: torch.device, nodes: Any, num_layers: int
) -> LocalGraph:
    """Agree with the other ranks on the rows that each needs. Collective.

    Args:
        dataset: This rank's partition.
        exchange: The ranks.
        device: The device of rows and edges.
        nodes: Global ids whose output is wanted, by type if there are types; None: all.
        num_layers: Layers of the model; 0: every layer computes all rows.
    """
    view = dataset.view()
    check_installed(view.frames)
    shares = NodeShares(view, exchange)
    graph = LocalGraph(HeteroData() if view.is_heterogeneous else Data(), shares, exchange)
    for edge_type, name in message_types(view.adjacency, view.edge_dir).items():
        graph.plans[edge_type] = plan_edges(edge_type, view.adjacency[name], shares, exchange)
    wanted = None if nodes is None else _wanted_masks(view, shares, exchange, nodes)
    # without num_layers all rows are computed, and only `out_index` gives the rows of `nodes`
    if wanted is not None and num_layers:
        narrow_plans(graph.plans, wanted, num_layers)
    _fill_nodes(graph, dataset, device, wanted)
    _fill_edges(graph, view, device)
    return graph


def _wanted_masks(
    view: PartitionView, shares: NodeShares, exchange: RankExchange, nodes: Any
) -> dict[NodeType, Tensor]:
    """Return ``[num_own]`` bool by type: the rank's own among the nodes that any rank named."""
    if isinstance(nodes, Tensor):
        if view.is_heterogeneous:
            raise ConfigError("nodes must be a dict {node type: ids} on a heterogeneous graph")
        nodes = {DEFAULT_HOMOGENEOUS_NODE_TYPE: nodes}
    unknown = set(nodes) - set(view.num_nodes)
    if unknown:
        raise ConfigError(f"nodes names unknown node types {sorted(unknown)}")
    masks = {}
    for name, own_ids in shares.own_ids.items():
        ids = nodes.get(name, torch.empty(0, dtype=torch.int64, device="cpu")).cpu()
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < view.num_nodes[name]:
            raise ConfigError(f"nodes of {name!r} must be in [0, {view.num_nodes[name]})")
        owner = shares.owner(name, ids)
        # ids may have any owner, and repeat; each goes to its owner, which marks it
        send = torch.bincount(owner, minlength=exchange.size).tolist()
        ids = ids[torch.argsort(owner, stable=True)]
        mine = exchange.all_to_all(ids, send, exchange.all_to_all_counts(send))
        masks[name] = torch.zeros(own_ids.numel(), dtype=torch.bool, device="cpu")
        # never -1, which would mark the last row: only own ids arrive here
        masks[name][position_of(mine, own_ids)] = True
    return masks


def _fill_nodes(graph: LocalGraph, dataset: DistDataset, device: torch.device, wanted: Any) -> None:
    view = dataset.view()
    for name, own_ids in graph.shares.own_ids.items():
        store = graph.data[name] if view.is_heterogeneous else graph.data
        store.n_id, store.num_nodes = own_ids.to(device), own_ids.numel()
        for key, kind in (("x", view.node_features), ("y", view.node_labels)):
            if name in kind:
                stored = kind[name].values[kind[name].locate(own_ids)].to(device)
                store[key] = widened(stored, kind[name].scales)
        parts: dict[str, Tensor] = {}
        for (of, key), rows in view.node_attributes.items():
            if of == name and is_in_batches(key):
                target = parts if is_of_frame(key) else store
                target[key] = widened(rows.values[rows.locate(own_ids)].to(device), rows.scales)
        if name in view.frames:
            store[FRAME] = to_frame(view.frames[name], parts, own_ids.numel())
        for split in SPLITS:
            ids = _of_type(dataset.known_split(split), name)
            if ids is not None:
                # split ids are of the whole partition; this rank may compute a share of it
                store[f"{split}_mask"] = torch.isin(own_ids, ids).to(device)
        if wanted is not None:
            store.out_index = wanted[name].nonzero().view(-1).to(device)


def _of_type(ids: Any, name: NodeType) -> Tensor | None:
    return cast("Tensor | None", ids.get(name) if isinstance(ids, dict) else ids)


def _fill_edges(graph: LocalGraph, view: PartitionView, device: torch.device) -> None:
    lookup = RowLookup(view, graph.exchange)
    for edge_type, name in message_types(view.adjacency, view.edge_dir).items():
        plan = graph.plans[edge_type]
        adjacency: Adjacency = view.adjacency[name]
        store = graph.data[edge_type] if view.is_heterogeneous else graph.data
        store.edge_index = plan.whole.edge_index.to(device)
        if adjacency.weights is not None:
            store.edge_weight = adjacency.weights[plan.positions].to(device)
        if adjacency.has_edge_ids:
            # weights, ids and features follow `positions`, the order of the columns of edge_index
            ids = adjacency.edge_ids_at(plan.positions)
            store.e_id = ids.to(device)
        if name in view.edge_features and adjacency.has_edge_ids:
            # collective: the features of an edge may be on another partition than the edge
            store.edge_attr = lookup.rows("edge_features", name, ids).to(device)
        # only now: plans are made of the structure, which is on the CPU
        plan.whole = each_tensor(plan.whole, lambda tensor: tensor.to(device))
        plan.narrow = each_tensor(plan.narrow, lambda tensor: tensor.to(device))
