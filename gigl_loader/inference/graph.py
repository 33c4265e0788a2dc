"""This rank's part of the whole graph: `Data` or `HeteroData`, and the plans of its edges."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.lookup import RowLookup
from gigl_loader.dataset.quantised import widened
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeType,
    NodeType,
    is_label_edge_type,
    reverse_edge_type,
)
from gigl_loader.dataset.view import Adjacency, PartitionView
from gigl_loader.errors import ConfigError
from gigl_loader.exchange import RankExchange
from gigl_loader.inference.plan import EdgePlan, NodeShares, narrow_plans, plan_edges, position_of

_SPLITS = ("train", "val", "test")


@dataclass
class LocalGraph:
    """The part of the graph that one rank has."""

    data: Data | HeteroData
    """Rows of the rank's own nodes; edges into them, in local numbers."""
    shares: NodeShares
    exchange: RankExchange
    plans: dict[EdgeType, EdgePlan] = field(default_factory=dict)
    """By edge type, as messages go."""


def message_types(view: PartitionView) -> dict[EdgeType, EdgeType]:
    """Return edge types as messages go to edge types as the dataset names them.

    Messages go from a neighbour to the node that is expanded, as in a sampled batch: along the
    edges where ``edge_dir="in"``, against them where it is ``"out"``.
    """
    # sorted: each type is a round of collective calls, which all ranks make in one order
    names = sorted(name for name in view.adjacency if not is_label_edge_type(name))
    if view.edge_dir == "in":
        return {name: name for name in names}
    return {reverse_edge_type(name): name for name in names}


def local_graph(
    dataset: DistDataset, exchange: RankExchange, device: torch.device, nodes: Any, num_layers: int
) -> LocalGraph:
    """Agree with the other ranks on who needs which rows. Collective.

    Args:
        dataset: This rank's partition.
        exchange: The ranks.
        device: Where rows and edges go.
        nodes: Global ids whose output is wanted, by type where there are types; None: all.
        num_layers: Layers of the model; 0: every layer computes all rows.
    """
    view = dataset.view()
    shares = NodeShares(view, exchange)
    graph = LocalGraph(HeteroData() if view.is_heterogeneous else Data(), shares, exchange)
    for edge_type, name in message_types(view).items():
        graph.plans[edge_type] = plan_edges(edge_type, view.adjacency[name], shares, exchange)
    wanted = None if nodes is None else _wanted(view, shares, exchange, nodes)
    # without num_layers all rows are computed, and `out_index` alone tells the caller of `nodes`
    if wanted is not None and num_layers:
        narrow_plans(graph.plans, wanted, num_layers)
    _fill_nodes(graph, dataset, device, wanted)
    _fill_edges(graph, view, device)
    return graph


def _wanted(
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
    found = {}
    for name, own in shares.own.items():
        ids = nodes.get(name, torch.empty(0, dtype=torch.int64)).cpu()
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < view.num_nodes[name]:
            raise ConfigError(f"nodes of {name!r} must be in [0, {view.num_nodes[name]})")
        owner = shares.owner(name, ids)
        # ids may be of any owner, and repeat; each goes to its owner, which marks it
        send = torch.bincount(owner, minlength=exchange.size).tolist()
        ids = ids[torch.argsort(owner, stable=True)]
        mine = exchange.swap(ids, send, exchange.swap_counts(send))
        found[name] = torch.zeros(own.numel(), dtype=torch.bool)
        # never -1, which would mark the last row: only own nodes were sent here
        found[name][position_of(mine, own)] = True
    return found


def _fill_nodes(graph: LocalGraph, dataset: DistDataset, device: torch.device, wanted: Any) -> None:
    view = dataset.view()
    for name, own in graph.shares.own.items():
        store = graph.data[name] if view.is_heterogeneous else graph.data
        store.n_id, store.num_nodes = own.to(device), own.numel()
        for key, kind in (("x", view.node_features), ("y", view.node_labels)):
            if name in kind:
                stored = kind[name].values[kind[name].locate(own)].to(device)
                store[key] = widened(stored, kind[name].scales)
        for (of, key), rows in view.node_attributes.items():
            if of == name:
                store[key] = rows.values[rows.locate(own)].to(device)
        for split in _SPLITS:
            ids = _of_type(dataset.split_node_ids(split), name)
            if ids is not None:
                # split ids are of the whole partition, of which this rank may compute a share
                store[f"{split}_mask"] = torch.isin(own, ids).to(device)
        if wanted is not None:
            store.out_index = wanted[name].nonzero().view(-1).to(device)


def _of_type(ids: Any, name: NodeType) -> Tensor | None:
    found: Tensor | None = ids.get(name) if isinstance(ids, dict) else ids
    return found


def _fill_edges(graph: LocalGraph, view: PartitionView, device: torch.device) -> None:
    lookup = RowLookup(view, graph.exchange)
    for edge_type, name in message_types(view).items():
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
            # collective: the features of an edge may lie with another partition than the edge
            store.edge_attr = lookup.rows("edge_features", name, ids).to(device)
        # only now: plans are made of the structure, which is on the CPU
        plan.whole = plan.whole.to(device)
        plan.narrow = {hops: level.to(device) for hops, level in plan.narrow.items()}
