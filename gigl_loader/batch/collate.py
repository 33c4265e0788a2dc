"""Sample messages to PyG batches. Tensors are used directly, none is copied.

Link batches also get their targets, under the names that GiGL and PyG use: labels of
anchors become ``y_positive`` and ``y_negative``; seed edges become ``edge_label_index``, or
triplets.

``transform_sampler_output`` may change the sampled nodes and edges, as PyG's ``SamplerOutput``. PyG
changes it before rows are looked up; here rows come with the message. So a transform may drop,
repeat and reorder nodes and edges, and rewire them. It cannot name a node or an edge that was not
sampled, since its row is missing here.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from gigl_loader.batch.message import (
    EDGE,
    EDGE_INDEX,
    FIELDS,
    NODE,
    Axis,
    SampleMessage,
    SeedEdges,
    declared,
    fields_of,
    is_heterogeneous,
    key,
    label_columns,
    label_keys,
    scales_of,
    spec_of,
    type_name,
)
from gigl_loader.dataset.lookup import widened
from gigl_loader.dataset.partition.frames import FRAME, FrameColumns, attributes_of, to_frame
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    POSITIVE,
    PPR,
    DatasetSchema,
    EdgeType,
    NodeType,
    edge_type_str,
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


AddFrame = Callable[[Any, SampleMessage], None]
"""Gives a batch, by its stores, the rows of mixed types of one type in its message."""


def _add_frame(
    of: str,
    ids: str,
    rows: dict[str, str],
    frame: FrameColumns,
    stores: Any,
    message: SampleMessage,
) -> None:
    if of in stores and message.keys() >= {ids, *rows.values()}:  # of edges only with their ids
        arrays = {name: message[field] for name, field in rows.items()}
        stores[of][FRAME] = to_frame(frame, arrays, message[ids].size(0))


def frames_of_batches(schema: DatasetSchema, edge_dir: str) -> list[AddFrame]:
    """Return what gives the batches of a dataset their rows of mixed types."""
    typed = schema.edge_types is not None and not schema.is_homogeneous_with_labeled_edge_type
    edge_types = {edge_type_str(t): t for t in schema.edge_types or [DEFAULT_HOMOGENEOUS_EDGE_TYPE]}
    found: list[AddFrame] = []
    for name, columns in schema.frames.items():
        axis: Axis = "edge" if name in edge_types else "node"
        if axis == "edge" and edge_dir == "out":
            name = edge_type_str(reverse_edge_type(edge_types[name]))
        of = name if typed else None
        rows = {one: key(declared(axis, one), of) for one in attributes_of(columns)}
        ids = key(NODE if axis == "node" else EDGE, of)
        found.append(partial(_add_frame, of or "", ids, rows, columns))
    return found


def to_data(message: SampleMessage, frames: Sequence[AddFrame] = ()) -> Data:
    """Return a homogeneous batch; ``frames``: see `frames_of_batches`."""
    data = Data()
    _fill(data, message, {"": data}, frames)
    _count_nodes([data])
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
    node_types = ends | {of for of, spec in map(spec_of, message) if spec.name == NODE}
    # Walked along out-edges, an edge is found at its source. `EDGE_INDEX` has the neighbour in row
    # 0, which then is the edge's destination: the reversed type is the one whose ends fit.
    if edge_dir == "out":
        walked = [reverse_edge_type(edge_type) for edge_type in walked]
    pairs = [(a, PPR, b) for a, b in product(sorted(node_types), repeat=2)]
    # A relation of the graph may have that name; it is not made.
    made = [pair for pair in pairs if pair not in walked and key(EDGE_INDEX, pair) in message]
    if made:  # a sampler that makes its own edges may leave out those of the graph
        walked = [edge_type for edge_type in walked if key(EDGE_INDEX, edge_type) in message]
    return sorted(node_types), walked + made


def to_hetero_data(
    message: SampleMessage,
    node_types: list[NodeType],
    edge_types: list[EdgeType],
    frames: Sequence[AddFrame] = (),
) -> HeteroData:
    """Return a heterogeneous batch.

    Args:
        message: From a sampler.
        node_types: All node types of the dataset.
        edge_types: All edge types that a batch can have, as named in it.
        frames: See `frames_of_batches`.
    """
    data = HeteroData()
    graph_types: list[NodeType | EdgeType] = [*node_types, *edge_types]
    stores = {type_name(graph_type): data[graph_type] for graph_type in graph_types}
    _fill(data, message, stores, frames)
    _count_nodes(data[node_type] for node_type in node_types)
    # per store, as in PyG, and over all types, as in GLT
    if any("num_sampled_nodes" in data[node_type] for node_type in node_types):
        data.num_sampled_nodes = {t: data[t].num_sampled_nodes for t in node_types}
        counted = [name for name in edge_types if "num_sampled_edges" in data[name]]
        data.num_sampled_edges = {t: data[t].num_sampled_edges for t in counted}
    return data


def _fill(
    data: Any, message: SampleMessage, stores: dict[str, Any], frames: Sequence[AddFrame]
) -> None:
    """Give each field its names in the store of its type; the table `FIELDS` has them."""
    of_seeds = []
    for name, value in message.items():
        graph_type, spec = spec_of(name)
        store = stores.get(graph_type)
        if spec.axis == "batch":
            data[spec.batch[0]] = value
        elif store is None or not spec.batch:
            continue
        elif spec.axis == "seed":
            of_seeds.append((store, spec, value))
        elif spec.is_declared:
            # rows come first in a message; PyG has those of an "index" attribute last
            dim = data.__cat_dim__(spec.batch[0], value, store)
            store[spec.batch[0]] = value.movedim(0, dim) if dim else value
        else:
            for attribute in spec.batch:
                store[attribute] = value.tolist() if spec.on_host else value
    for add_frame in frames:
        add_frame(stores, message)
    # last: PyG counts nodes by the first attribute that it knows, and `batch` is one
    for store, spec, value in of_seeds:
        store[spec.batch[0]] = value
        if not spec.is_declared:
            store.batch_size = value.size(0)


def _count_nodes(stores: Iterable[Any]) -> None:
    """Pass on the number of nodes that have no rows to count them by, as PyG's loaders do."""
    for store in stores:
        if "x" not in store and "y" not in store:
            store.num_nodes = store["n_id"].numel()


def with_widened_features(message: SampleMessage) -> SampleMessage:
    """Return ``message`` with float32 features, and without their scales."""
    # Widening comes after the copy to the device, so that fewer bytes cross the bus.
    scales = scales_of(message)
    # The common case: the same message object, so that its next reader sees no copy either.
    if not scales:
        return message
    wide = dict(message)
    for features, key_of_scales in scales.items():
        wide[features] = widened(message[features], wide.pop(key_of_scales))
    return wide


Labels = Tensor | dict[int, Tensor]
"""``[2, num_labels]`` int64, or the labels of each anchor."""


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
    labels: dict[str, dict[EdgeType, Labels]] = {}
    for sign, edge_type, name in label_columns(supervision):
        of_links, of_counts = label_keys(name)
        if of_links in message:
            links = message[of_links]
            found = links if as_edge_index else by_anchor(links, message[of_counts])
            labels.setdefault(sign, {})[edge_type] = found
        # Every anchor sampler writes positives, even if a batch has none; negatives are written
        # only if the user gave some.
        elif sign == POSITIVE:
            raise ConfigError(
                f"the sampler gave no positives of {edge_type}: a sampler of your own for a "
                "DistABLPLoader needs the roots gigl_loader.sampler.anchors.AnchorRoots"
            )
    for sign, found_labels in labels.items():
        several = len(supervision) > 1
        data[f"y_{sign}"] = found_labels if several else next(iter(found_labels.values()))


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
    edges = SeedEdges.of(message)
    if edges is None:
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
    links, store.input_id = edges.links, edges.input_id
    num_edges = store.input_id.numel()
    if kind == "triplet":
        src.src_index, dst.dst_pos_index = links[:num_edges], links[num_edges : 2 * num_edges]
        # Row i has the negatives of seed edge i. PyG drops the second dimension if each has one.
        negatives = links[2 * num_edges :].view(num_edges, -1)
        dst.dst_neg_index = negatives.squeeze(-1)
        if edges.time is not None:
            src.seed_time = dst.seed_time = edges.time
        return
    store.edge_label_index = links
    if edges.time is not None:
        store.edge_label_time = edges.time
    label = edges.label
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
) -> SampleMessage:
    """Return ``message`` with its nodes and edges changed by ``transform``.

    Args:
        message: From a sampler.
        transform: Takes and returns a ``SamplerOutput``, or a ``HeteroSamplerOutput`` where batches
            are heterogeneous.
        node_types: All node types, of a heterogeneous message.
        edge_types: All edge types of it, as they are named in it.

    Raises:
        ConfigError: It returned something else, or a node or edge that was not sampled.
    """
    typed = is_heterogeneous(message)
    given = _hetero_output(message, node_types, edge_types) if typed else _output(message)
    output = _checked(transform(given), transform, type(given))
    # A copy of the dict alone: tensors that the transform did not change stay shared with the
    # message, and the message stays whole for its other holders.
    changed = dict(message)
    for name in node_types if typed else (None,):
        _change_nodes(changed, name, _of_type(output, "node", name))
    for edge_type in edge_types if typed else (None,):
        _change_edges(changed, edge_type, _of_type(output, "edge", edge_type))
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


_OUTPUT = [spec for spec in FIELDS.values() if spec.output]
"""Fields that are attributes of PyG's outputs of samplers."""


def _output(message: SampleMessage) -> SamplerOutput:
    absent = {name: None for spec in _OUTPUT for name in spec.output}
    given = {**absent, **_attributes(message, None)}
    return SamplerOutput(**given, metadata=_metadata(message))


def _hetero_output(
    message: SampleMessage, node_types: list[NodeType], edge_types: list[EdgeType]
) -> HeteroSamplerOutput:
    """Return a message as PyG's output of a sampler; types without an entry are left out."""
    given: dict[str, Any] = {name: {} for spec in _OUTPUT for name in spec.output}
    graph_types: list[NodeType | EdgeType] = [*node_types, *edge_types]
    for graph_type in graph_types:
        for name, value in _attributes(message, graph_type).items():
            given[name][graph_type] = value
    # PyG tells "no ids" and "no trees" by None and would take an empty dict for ids of no type.
    for name in ("edge", "batch"):
        given[name] = given[name] or None
    return HeteroSamplerOutput(**given, metadata=_metadata(message))


def _attributes(message: SampleMessage, graph_type: NodeType | EdgeType | None) -> dict[str, Any]:
    """Return what a message has for a type, by attribute of PyG's output of a sampler."""
    found: dict[str, Any] = {}
    for spec in _OUTPUT:
        value = message.get(key(spec.name, graph_type))
        if value is not None:
            given: Any = value.tolist() if spec.on_host else value
            found.update(zip(spec.output, given if len(spec.output) > 1 else [given], strict=True))
    return found


def _of_type(output: Any, axis: Axis, graph_type: NodeType | EdgeType | None) -> dict[str, Any]:
    """Return what an output has for the nodes or the edges of a type, by field of a message."""
    found: dict[str, Any] = {}
    for spec in _OUTPUT:
        if spec.axis not in (axis, f"{axis}_hop"):
            continue
        values = [getattr(output, name) for name in spec.output]
        if graph_type is not None:
            values = [(of_types or {}).get(graph_type) for of_types in values]
        found[spec.name] = values[0] if len(values) == 1 else tuple(values)
    return found


def _metadata(message: SampleMessage) -> tuple[Tensor | None, Tensor | None]:
    """Return (input ids, times of the seeds), as in PyG."""
    of_seeds = {}
    for name, value in message.items():
        spec = spec_of(name)[1]
        if spec.axis == "seed" and spec.batch:  # seeds are of one type
            of_seeds[spec.batch[0]] = value
    return of_seeds.get("input_id"), of_seeds.get("seed_time")


def _change_nodes(message: SampleMessage, name: NodeType | None, changed: dict[str, Any]) -> None:
    before, nodes = message[key(NODE, name)], changed.pop(NODE)
    # Most transforms change only edges: the same nodes need no look-up, and no copy of their
    # features.
    if nodes is not before and not torch.equal(nodes, before):
        at = _positions(before, nodes, f"a node of {name or 'the graph'}")
        _take(message, fields_of(message, "node", name), at)
    _set(message, name, changed)


def _change_edges(message: SampleMessage, name: EdgeType | None, changed: dict[str, Any]) -> None:
    (row, col), ids = changed.pop(EDGE_INDEX), changed.pop(EDGE)
    if row.shape != col.shape:
        raise ConfigError(
            "transform_sampler_output must keep `row` and `col` in step: they have "
            f"{row.numel()} and {col.numel()} ends of edges"
        )
    links, before = torch.stack((row, col)), message.get(key(EDGE, name))
    rows = [field for field in fields_of(message, "edge", name) if field != key(EDGE_INDEX, name)]
    if before is None:
        _check_rows_fit(message, rows, links.size(1))
    else:
        if ids is None or ids.numel() != links.size(1):
            raise ConfigError(
                "transform_sampler_output must keep `edge` in step with `row` and `col`: there are "
                f"{links.size(1)} edges and {'no ids' if ids is None else ids.numel()}"
            )
        _take(message, rows, _positions(before, ids, f"an edge of {name or 'the graph'}"))
    message[key(EDGE_INDEX, name)] = links
    _set(message, name, changed)


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


def _set(
    message: SampleMessage, graph_type: NodeType | EdgeType | None, values: dict[str, Any]
) -> None:
    """Give a type its other values, by field; None removes one."""
    for name, value in values.items():
        if value is None:
            message.pop(key(name, graph_type), None)
        else:
            given = value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")
            message[key(name, graph_type)] = given
