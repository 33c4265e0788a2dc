"""Sample messages to PyG batches. Pure functions: tensors are taken as they are, none is copied."""

from typing import Any

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader.dataset.quantised import widened
from gigl_loader.dataset.schema import (
    DatasetSchema,
    EdgeType,
    NodeType,
    is_label_edge_type,
    reverse_edge_type,
)
from gigl_loader.message import (
    ATTRIBUTE,
    BATCH,
    EDGE,
    EDGE_FEATURES,
    EDGE_INDEX,
    EDGES_PER_HOP,
    INPUT_ID,
    META,
    NODE,
    NODE_FEATURES,
    NODE_LABELS,
    NODES_PER_HOP,
    PPR,
    SCALES,
    SEED_TIME,
    TREE,
    SampleMessage,
    key,
)

_NODE_FIELDS = (NODE_FEATURES, NODE_LABELS, INPUT_ID, BATCH)
_EDGE_FIELDS = (EDGE_INDEX, EDGE_FEATURES)


def to_data(message: SampleMessage) -> Data:
    """Return a homogeneous batch."""
    data = Data()
    _fill_nodes(data, message, None)
    _fill_edges(data, message, None)
    _add_rest(data, message, {"": data})
    return data


def batch_types(
    message: SampleMessage, schema: DatasetSchema, edge_dir: str
) -> tuple[list[NodeType], list[EdgeType]]:
    """Return the node types and the edge types that a heterogeneous batch has, empty ones too.

    Args:
        message: What was sampled.
        schema: What the dataset holds.
        edge_dir: Of the dataset; with ``"out"`` a batch has the reversed edge types.
    """
    # Types come from the schema and not from the message: a batch without any edge of a type has to
    # have that type all the same, or a model that goes by `edge_index_dict` fails on it.
    known = schema.edge_types or []
    walked = [edge_type for edge_type in known if not is_label_edge_type(edge_type)]
    node_types = {end for edge_type in known for end in (edge_type[0], edge_type[2])}
    # Walked along out-edges, an edge is found at its source. `EDGE_INDEX` has the neighbour in row
    # 0, which then is the edge's destination: the reversed type is the one whose ends fit.
    if edge_dir == "out":
        walked = [reverse_edge_type(edge_type) for edge_type in walked]
    made = [(a, PPR, b) for a in sorted(node_types) for b in sorted(node_types)]
    made = [edge_type for edge_type in made if key(EDGE_INDEX, edge_type) in message]
    if made:  # a sampler that makes edges of its own may leave those of the graph out
        walked = [edge_type for edge_type in walked if key(EDGE_INDEX, edge_type) in message]
    return sorted(node_types), walked + made


def to_hetero_data(
    message: SampleMessage, node_types: list[NodeType], edge_types: list[EdgeType]
) -> HeteroData:
    """Return a heterogeneous batch.

    Args:
        message: From a sampler.
        node_types: All node types of the dataset.
        edge_types: All edge types that a batch can have, as they are named in it.
    """
    data = HeteroData()
    for node_type in node_types:
        _fill_nodes(data[node_type], message, node_type)
    for edge_type in edge_types:
        _fill_edges(data[edge_type], message, edge_type)
    # per store, as PyG has it, and over all types, as GLT has it
    if any(key(NODES_PER_HOP, node_type) in message for node_type in node_types):
        data.num_sampled_nodes = {t: data[t].num_sampled_nodes for t in node_types}
        counted = [name for name in edge_types if "num_sampled_edges" in data[name]]
        data.num_sampled_edges = {t: data[t].num_sampled_edges for t in counted}
    graph_types: list[NodeType | EdgeType] = [*node_types, *edge_types]
    stores = {key("", graph_type): data[graph_type] for graph_type in graph_types}
    _add_rest(data, message, stores)
    return data


def _fill_nodes(store: Any, message: SampleMessage, node_type: NodeType | None) -> None:
    store.n_id = store.node = message[key(NODE, node_type)]  # PyG's name, GLT's name
    for name in _NODE_FIELDS:
        value = message.get(key(name, node_type))
        if value is not None:
            store[name] = value
    # Only the type of the seeds has either. In trees there is no BATCH, but INPUT_ID there is.
    for name in (BATCH, INPUT_ID):
        if name in store:
            store.batch_size = store[name].numel()
    # PyG's name for the tree of each node; the seeds' ids, which else have that name, are not in a
    # message of trees.
    trees = message.get(key(TREE, node_type))
    if trees is not None:
        store.batch = trees
    times = message.get(key(SEED_TIME, node_type))
    if times is not None:
        store.seed_time = times
    # As PyG's loaders carry it along, of graphs that were given `num_nodes` because they have no
    # rows to count nodes by.
    if NODE_FEATURES not in store and NODE_LABELS not in store:
        store.num_nodes = store.n_id.numel()
    store.num_sampled_nodes = _ints(message.get(key(NODES_PER_HOP, node_type)))


def _fill_edges(store: Any, message: SampleMessage, edge_type: EdgeType | None) -> None:
    for name in _EDGE_FIELDS:
        value = message.get(key(name, edge_type))
        if value is not None:
            store[name] = value
    edge_ids = message.get(key(EDGE, edge_type))
    if edge_ids is not None:
        store.e_id = store.edge = edge_ids
    store.num_sampled_edges = _ints(message.get(key(EDGES_PER_HOP, edge_type)))


def _ints(counts: Tensor | None) -> list[int] | None:
    """Return counts per hop; None, as PyG has it, where edges are of no hop."""
    return None if counts is None else counts.tolist()


def _add_rest(data: Any, message: SampleMessage, stores: dict[str, Any]) -> None:
    """Add what has no place of its own: further attributes to their stores, by prefix, and META."""
    for name, value in message.items():
        if name.startswith(META):
            data[name[len(META) :]] = value
            continue
        # The prefix up to the last dot is the type, as `key` writes it; an attribute's name has no
        # dot.
        start = name.rfind(".") + 1
        if name.startswith(ATTRIBUTE, start):
            attribute = name[start + len(ATTRIBUTE) :]
            # rows come first in a message; PyG has those of an "index" attribute last
            store = stores[name[:start]]
            dim = data.__cat_dim__(attribute, value, store)
            store[attribute] = value.movedim(0, dim) if dim else value


def with_widened_features(message: SampleMessage) -> SampleMessage:
    """Return ``message`` with float32 features, and without what made them."""
    # Widening comes after the copy to the device: what crosses the bus is the fewer bytes.
    scales = {name.removeprefix(SCALES): value for name, value in message.items()
              if name.startswith(SCALES)}  # fmt: skip
    # The common case: the very same message, so that who reads it next sees no copy either.
    if not scales:
        return message
    kept = {name: value for name, value in message.items() if not name.startswith(SCALES)}
    return {**kept, **{name: widened(kept[name], some) for name, some in scales.items()}}
