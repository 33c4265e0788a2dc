"""Sample messages to PyG batches. Tensors are used directly, none is copied.

Link batches also get their targets, under the names that GiGL and PyG use: labels of
anchors become ``y_positive`` and ``y_negative``; seed edges become ``edge_label_index``, or
triplets.

``transform_sampler_output`` may change the sampled nodes and edges, as PyG's ``SamplerOutput``. PyG
changes it before rows are looked up; here rows come with the message. So a transform may drop,
repeat and reorder nodes and edges, and rewire them. It cannot name a node or an edge that was not
sampled, since its row is missing here.
"""

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from gigl_loader.batch.message import (
    ATTRIBUTE,
    BATCH,
    EDGE,
    EDGE_INDEX,
    EDGE_INPUT_ID,
    EDGE_LABEL,
    EDGE_LABEL_INDEX,
    EDGE_ROWS,
    EDGE_TIME,
    EDGES_PER_HOP,
    INPUT_ID,
    IS_HETERO,
    LABEL_COUNTS,
    LABEL_LINKS,
    META,
    NEGATIVE,
    NODE,
    NODE_FEATURES,
    NODE_LABELS,
    NODE_ROWS,
    NODES_PER_HOP,
    POSITIVE,
    PPR,
    SCALES,
    SEED_TIME,
    TREE,
    SampleMessage,
    key,
    label_column,
)
from gigl_loader.batch.padding import edge_fields, node_fields
from gigl_loader.dataset.lookup import widened
from gigl_loader.dataset.schema import (
    DatasetSchema,
    EdgeType,
    NodeType,
    is_label_edge_type,
    reverse_edge_type,
)
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.user_functions import name_of, returned

if TYPE_CHECKING:
    # As PyG's own loaders tell them: which attributes a batch has depends on the graph, and
    # `transform` may return anything. PyG declares each as perhaps None.
    Batch: TypeAlias = Any
else:
    Batch = Data | HeteroData

_NODE_FIELDS = (*NODE_ROWS.values(), INPUT_ID, BATCH)
_EDGE_FIELDS = (EDGE_INDEX, *EDGE_ROWS.values())
_NODES = key(NODE, "")
"""End of the key of a type's nodes."""


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
    """Return the node types and the edge types of a heterogeneous batch, empty ones too.

    Args:
        message: From a sampler.
        schema: Types and widths of the dataset.
        edge_dir: Edge direction of the dataset; with ``"out"`` a batch has the reversed edge types.
    """
    # Types come from the schema and not from the message: a batch without edges of a type still
    # needs that type, or a model that uses `edge_index_dict` fails on it.
    known = schema.edge_types or []
    walked = [edge_type for edge_type in known if not is_label_edge_type(edge_type)]
    # A type without edges is known by its nodes alone, and messages have those of every type.
    ends = {end for edge_type in known for end in (edge_type[0], edge_type[2])}
    node_types = ends | {
        name.removesuffix(_NODES)
        for name in message
        if name.endswith(_NODES) and not name.startswith(META)
    }
    # Walked along out-edges, an edge is found at its source. `EDGE_INDEX` has the neighbour in row
    # 0, which then is the edge's destination: the reversed type is the one whose ends fit.
    if edge_dir == "out":
        walked = [reverse_edge_type(edge_type) for edge_type in walked]
    made = [(a, PPR, b) for a in sorted(node_types) for b in sorted(node_types)]
    # A relation of the graph may have that name; it is not made.
    made = [
        edge_type
        for edge_type in made
        if edge_type not in walked and key(EDGE_INDEX, edge_type) in message
    ]
    if made:  # a sampler that makes its own edges may leave out those of the graph
        walked = [edge_type for edge_type in walked if key(EDGE_INDEX, edge_type) in message]
    return sorted(node_types), walked + made


def to_hetero_data(
    message: SampleMessage, node_types: list[NodeType], edge_types: list[EdgeType]
) -> HeteroData:
    """Return a heterogeneous batch.

    Args:
        message: From a sampler.
        node_types: All node types of the dataset.
        edge_types: All edge types that a batch can have, as named in it.
    """
    data = HeteroData()
    for node_type in node_types:
        _fill_nodes(data[node_type], message, node_type)
    for edge_type in edge_types:
        _fill_edges(data[edge_type], message, edge_type)
    # per store, as in PyG, and over all types, as in GLT
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
    # PyG's name for the tree of each node. In other messages the seeds' ids have that name; a
    # message of trees lacks them.
    trees = message.get(key(TREE, node_type))
    if trees is not None:
        store.batch = trees
    times = message.get(key(SEED_TIME, node_type))
    if times is not None:
        store.seed_time = times
    # As PyG's loaders pass it on, for graphs with a given `num_nodes` because they have no rows to
    # count nodes by.
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
    """Return counts per hop; None, as in PyG, if edges belong to no hop."""
    return None if counts is None else counts.tolist()


def _add_rest(data: Any, message: SampleMessage, stores: dict[str, Any]) -> None:
    """Add the remaining fields: further attributes to their stores, by prefix, and META."""
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
    """Return ``message`` with float32 features, and without their scales."""
    # Widening comes after the copy to the device, so that fewer bytes cross the bus.
    scales = {
        name.removeprefix(SCALES): value
        for name, value in message.items()
        if name.startswith(SCALES)
    }
    # The common case: the same message object, so that its next reader sees no copy either.
    if not scales:
        return message
    kept = {name: value for name, value in message.items() if not name.startswith(SCALES)}
    return {**kept, **{name: widened(kept[name], scale) for name, scale in scales.items()}}


Labels = Tensor | dict[int, Tensor]
"""``[2, num_labels]`` int64, or the labels of each anchor."""

_ATTRIBUTES = {POSITIVE: "y_positive", NEGATIVE: "y_negative"}


def add_labels(
    data: Any, message: SampleMessage, supervision: Sequence[EdgeType], *, as_edge_index: bool
) -> None:
    """Give ``data`` its ``y_positive``, and its ``y_negative`` if there are negatives.

    Args:
        data: A `Data` or `HeteroData`.
        message: From a sampler with `gigl_loader.sampler.anchors.AnchorRoots`.
        supervision: Edge types that are predicted. With one, an attribute is its labels; with
            several, a dict of them by edge type.
        as_edge_index: Labels as one tensor, anchors in row 0, label nodes in row 1; otherwise as a
            dict from each anchor to its label nodes. All of them are local.

    Raises:
        ConfigError: The message has no positives: another sampler made it.
    """
    for sign, attribute in _ATTRIBUTES.items():
        labels = {}
        for edge_type in supervision:
            name = label_column(sign, edge_type)
            if LABEL_LINKS + name in message:
                links, counts = message[LABEL_LINKS + name], message[LABEL_COUNTS + name]
                labels[edge_type] = links if as_edge_index else by_anchor(links, counts)
            # Every anchor sampler writes positives, even if a batch has none; negatives are
            # written only if the user gave some.
            elif sign == POSITIVE:
                raise ConfigError(
                    f"the sampler gave no positives of {edge_type}: a sampler of your own for a "
                    "DistABLPLoader needs the roots gigl_loader.sampler.anchors.AnchorRoots"
                )
        if labels:
            data[attribute] = labels if len(supervision) > 1 else next(iter(labels.values()))


def by_anchor(links: Tensor, counts: Tensor) -> dict[int, Tensor]:
    """Return the label nodes of each anchor, an empty tensor if it has none.

    Args:
        links: ``[2, num_labels]`` int64, ascending by anchor (row 0); any device.
        counts: ``[num_anchors]`` int64 on the CPU, labels of each anchor.

    Returns:
        By local index of the anchor: views of ``links[1]``, nothing is copied.
    """
    # Anchors are the first nodes of their type, so the n-th count is that of local index n. The
    # counts are on the host, where `split` needs them: on the device they would cost a wait per
    # batch.
    return dict(enumerate(torch.split(links[1], counts.tolist())))


_NOT_OF_A_BATCH = ("edge_label_index", "edge_label", "edge_label_time")
"""Attributes of a whole graph from `RandomLinkSplit`; a batch has its own, or none."""
TRIPLET_ATTRIBUTES = ("src_index", "dst_pos_index", "dst_neg_index")


def add_edge_labels(
    data: Any, message: SampleMessage, edge_type: EdgeType | None, *, kind: str | None
) -> None:
    """Give ``data`` its seed edges, by the names that PyG's ``LinkNeighborLoader`` uses.

    Args:
        data: A `Data` or `HeteroData`.
        message: From a sampler with `gigl_loader.sampler.edges.EdgeRoots`.
        edge_type: Type of the seed edges; None on a `Data`.
        kind: ``"binary"``, ``"triplet"``, or None without negatives.

    Raises:
        ConfigError: The message has no seed edges: another sampler made it.
    """
    if EDGE_LABEL_INDEX not in message:
        raise ConfigError(
            "the sampler gave no seed edges: a sampler of your own for a DistLinkNeighborLoader "
            "needs the roots gigl_loader.sampler.edges.EdgeRoots"
        )
    # On a `Data` all three are the batch itself; on a `HeteroData` PyG keeps values of edges with
    # the edge type, and values of one end with the node type of that end.
    store, src, dst = data, data, data
    if edge_type is not None:
        store, src, dst = data[edge_type], data[edge_type[0]], data[edge_type[2]]
    # They came with the graph's own attributes: those of all edges would pass for the batch's
    # wherever the batch sets none of its own.
    for name in _NOT_OF_A_BATCH:
        if name in store:
            del store[name]
    # In a triplet batch `links` is one row, [sources, positives, negatives]; else two, sources over
    # destinations, with the columns of the negatives behind those of the seed edges.
    links, store.input_id = message[EDGE_LABEL_INDEX], message[EDGE_INPUT_ID]
    num_edges = store.input_id.numel()
    if kind == "triplet":
        src.src_index, dst.dst_pos_index = links[:num_edges], links[num_edges : 2 * num_edges]
        # Row i has the negatives of seed edge i. PyG drops the second dimension if each has one.
        negatives = links[2 * num_edges :].view(num_edges, -1)
        dst.dst_neg_index = negatives.squeeze(-1)
        if EDGE_TIME in message:
            src.seed_time = dst.seed_time = message[EDGE_TIME]
        return
    store.edge_label_index = links
    if EDGE_TIME in message:
        store.edge_label_time = message[EDGE_TIME]
    label = message.get(EDGE_LABEL)
    # A missing label stays missing without negatives: there would be nothing to distinguish.
    if kind == "binary":
        label = _with_zeros(label, num_edges, links)
    if label is not None:
        store.edge_label = label


def _with_zeros(label: Tensor | None, num_edges: int, links: Tensor) -> Tensor:
    """Return the labels of seed edges (1 if none were given), then 0 for each negative."""
    if label is None:
        label = torch.ones(num_edges, device=links.device)
    # Labels may have several dimensions, [num_edges, ...]; a negative is 0 in all of them.
    size = (links.size(1) - num_edges, *label.shape[1:])
    return torch.cat([label, label.new_zeros(size)])


Transform = Callable[[Any], Any]


def transform_outputs(
    message: SampleMessage,
    transform: Transform,
    node_types: list[NodeType],
    edge_types: list[EdgeType],
    of_edges: Container[str] = (),
) -> SampleMessage:
    """Return ``message`` with its nodes and edges changed by ``transform``.

    Args:
        message: From a sampler.
        transform: Takes and returns a ``SamplerOutput``, or a ``HeteroSamplerOutput`` where batches
            are heterogeneous.
        node_types: All node types, of a heterogeneous message.
        edge_types: All edge types of it, as they are named in it.
        of_edges: Further attributes of edges, not nodes, in a homogeneous message.

    Raises:
        ConfigError: It returned something else, or a node or edge that was not sampled.
    """
    if not int(message[IS_HETERO]):
        output = _checked(transform(_output(message)), transform, SamplerOutput)
        changed = dict(message)
        rows = node_fields(message, None, of_edges), edge_fields(message, None, of_edges)
        _change_nodes(changed, None, output.node, output.batch, output.num_sampled_nodes, rows[0])
        ends = (output.row, output.col)
        _change_edges(changed, None, ends, output.edge, output.num_sampled_edges, rows[1])
        return changed
    given = _hetero_output(message, node_types, edge_types)
    output = _checked(transform(given), transform, HeteroSamplerOutput)
    # A copy of the dict alone: tensors that the transform did not change stay shared with the
    # message, and the message stays whole for its other holders.
    changed = dict(message)
    for name in node_types:
        trees, counts = (output.batch or {}).get(name), (output.num_sampled_nodes or {}).get(name)
        _change_nodes(changed, name, output.node[name], trees, counts, node_fields(message, name))
    for edge_type in edge_types:
        ids, counts = (output.edge or {}), (output.num_sampled_edges or {})
        ends = (output.row[edge_type], output.col[edge_type])
        rows_of = edge_fields(message, edge_type)
        _change_edges(changed, edge_type, ends, ids.get(edge_type), counts.get(edge_type), rows_of)
    return changed


def _checked(output: Any, transform: Transform, wanted: type) -> Any:
    what = f"the {wanted.__name__} that it was given, or one like it"
    output = returned(output, "transform_sampler_output=", transform, what)
    if not isinstance(output, wanted):
        raise ConfigError(
            f"transform_sampler_output= {name_of(transform)} must return {what}, got "
            f"{type(output).__name__}"
        )
    return output


def _output(message: SampleMessage) -> SamplerOutput:
    row, col = message[EDGE_INDEX]
    return SamplerOutput(
        message[NODE],
        row,
        col,
        message.get(EDGE),
        batch=message.get(TREE),
        num_sampled_nodes=_ints(message.get(NODES_PER_HOP)),
        num_sampled_edges=_ints(message.get(EDGES_PER_HOP)),
        metadata=_metadata(message),
    )


def _hetero_output(
    message: SampleMessage, node_types: list[NodeType], edge_types: list[EdgeType]
) -> HeteroSamplerOutput:
    """Return a message as PyG's output of a sampler; types without an entry are left out."""

    def nodes(field: str) -> dict[NodeType, Tensor]:
        return {t: message[key(field, t)] for t in node_types if key(field, t) in message}

    def edges(field: str) -> dict[EdgeType, Tensor]:
        return {t: message[key(field, t)] for t in edge_types if key(field, t) in message}

    # PyG tells "no ids" and "no trees" by None and would take an empty dict for ids of no type.
    links = edges(EDGE_INDEX)
    return HeteroSamplerOutput(
        nodes(NODE),
        {t: ends[0] for t, ends in links.items()},
        {t: ends[1] for t, ends in links.items()},
        edges(EDGE) or None,
        batch=nodes(TREE) or None,
        num_sampled_nodes={t: counts.tolist() for t, counts in nodes(NODES_PER_HOP).items()},
        num_sampled_edges={t: counts.tolist() for t, counts in edges(EDGES_PER_HOP).items()},
        metadata=_metadata(message),
    )


def _metadata(message: SampleMessage) -> tuple[Tensor | None, Tensor | None]:
    """Return (input ids, times of the seeds), as in PyG."""
    values = []
    # Seeds are of one type, so at most one key ends with either name.
    for field in (INPUT_ID, SEED_TIME):
        names = [name for name in message if name == field or name.endswith("." + field)]
        values.append(message[names[0]] if names else None)
    return values[0], values[1]


def _change_nodes(
    message: SampleMessage,
    name: NodeType | None,
    nodes: Tensor,
    trees: Tensor | None,
    counts: list[int] | None,
    rows: list[str],
) -> None:
    before = message[key(NODE, name)]
    # Most transforms change only edges: the same nodes need no look-up, and no copy of their
    # features.
    if nodes is not before and not torch.equal(nodes, before):
        _take(message, rows, _positions(before, nodes, f"a node of {name or 'the graph'}"))
        message[key(NODE, name)] = nodes
    _set(message, key(TREE, name), trees)
    _set(message, key(NODES_PER_HOP, name), None if counts is None else torch.tensor(counts))


def _change_edges(
    message: SampleMessage,
    name: EdgeType | None,
    ends: tuple[Tensor, Tensor],
    ids: Tensor | None,
    counts: list[int] | None,
    rows: list[str],
) -> None:
    row, col = ends
    if row.shape != col.shape:
        raise ConfigError(
            "transform_sampler_output must keep `row` and `col` in step: they have "
            f"{row.numel()} and {col.numel()} ends of edges"
        )
    links, before = torch.stack(ends), message.get(key(EDGE, name))
    if before is None:
        _check_rows_fit(message, rows, links.size(1))
    else:
        if ids is None or ids.numel() != links.size(1):
            raise ConfigError(
                "transform_sampler_output must keep `edge` in step with `row` and `col`: there are "
                f"{links.size(1)} edges and {'no ids' if ids is None else ids.numel()}"
            )
        _take(message, rows, _positions(before, ids, f"an edge of {name or 'the graph'}"))
        message[key(EDGE, name)] = ids
    message[key(EDGE_INDEX, name)] = links
    _set(message, key(EDGES_PER_HOP, name), None if counts is None else torch.tensor(counts))


def _check_rows_fit(message: SampleMessage, fields: list[str], num_edges: int) -> None:
    """Check that edges without ids are as many as before, if they have rows."""
    # Edges made by a sampler have no ids to match their rows by, such as PPR's scores.
    for field in fields:
        if message[field].size(0) != num_edges:
            raise ConfigError(
                f"transform_sampler_output left {num_edges} of {message[field].size(0)} edges that "
                f"have {field!r} and no ids by which that could follow them: keep these edges"
            )


def _take(message: SampleMessage, fields: list[str], rows: Tensor) -> None:
    """Take ``rows`` of ``fields``."""
    for field in fields:
        message[field] = message[field].index_select(0, rows)


def _positions(known: Tensor, wanted: Tensor, what: str) -> Tensor:
    """Return the first place in ``known`` of each of ``wanted``."""
    # Nodes repeat over trees, and edges if drawn with replacement. Any of their positions would do,
    # as the rows of one id are the same; the first one makes the result reproducible.
    ids, order = known.sort(stable=True)
    # An id beyond the last one would be placed behind the end: it is clamped, and then found
    # missing by its value like any other.
    at = torch.searchsorted(ids, wanted.contiguous()).clamp(max=max(ids.numel() - 1, 0))
    missing = wanted if ids.numel() == 0 else wanted[ids[at] != wanted]
    if missing.numel():
        raise ConfigError(
            f"transform_sampler_output names {int(missing[0])}, {what} that was not sampled: "
            "features come with the sample, so nothing can be added to it"
        )
    return order[at] if ids.numel() else at


def _set(message: SampleMessage, field: str, value: Tensor | None) -> None:
    if value is None:
        message.pop(field, None)
    else:
        message[field] = value
