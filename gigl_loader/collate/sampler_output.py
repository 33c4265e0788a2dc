"""``transform_sampler_output``: what was sampled, as PyG's ``SamplerOutput``, may be changed.

PyG changes it before rows are looked up; here rows come with the message. So a transform may drop,
repeat and reorder nodes and edges, and rewire them; what it cannot do is name a node or an edge
that was not sampled, since no row of it is here.
"""

from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.message import (
    ATTRIBUTE,
    EDGE,
    EDGE_FEATURES,
    EDGE_INDEX,
    EDGES_PER_HOP,
    INPUT_ID,
    IS_HETERO,
    NODE,
    NODE_FEATURES,
    NODE_LABELS,
    NODES_PER_HOP,
    SEED_TIME,
    TREE,
    SampleMessage,
    key,
)

Transform = Callable[[Any], Any]


def transformed(
    message: SampleMessage, transform: Transform, node_types: list[NodeType],
    edge_types: list[EdgeType], of_edges: Container[str] = (),
) -> SampleMessage:  # fmt: skip
    """Return ``message`` with what ``transform`` makes of its nodes and edges.

    Args:
        message: From a sampler.
        transform: Takes and returns a ``SamplerOutput``, or a ``HeteroSamplerOutput`` where batches
            are heterogeneous.
        node_types: All node types, of a heterogeneous message.
        edge_types: All edge types of it, as they are named in it.
        of_edges: Of a homogeneous one, the further attributes that edges have, not nodes.

    Raises:
        ConfigError: It returned something else, or a node or edge that was not sampled.
    """
    if not int(message[IS_HETERO]):
        found = transform(_output(message))
        _check(found, SamplerOutput)
        changed = dict(message)
        further = [name for name in message if name.startswith(ATTRIBUTE)]
        own = [name for name in further if name[len(ATTRIBUTE) :] in of_edges]
        rest = [name for name in further if name not in own]
        _change_nodes(changed, None, found.node, found.batch, found.num_sampled_nodes, rest)
        ends = (found.row, found.col)
        _change_edges(changed, None, ends, found.edge, found.num_sampled_edges, own)
        return changed
    found = transform(_hetero_output(message, node_types, edge_types))
    _check(found, HeteroSamplerOutput)
    # A copy of the dict alone: tensors that the transform left as they are stay shared with the
    # message, and the message stays whole for whoever else holds it.
    changed = dict(message)
    for name in node_types:
        trees, counts = (found.batch or {}).get(name), (found.num_sampled_nodes or {}).get(name)
        further = _further(message, name)
        _change_nodes(changed, name, found.node[name], trees, counts, further)
    for edge_type in edge_types:
        ids, counts = (found.edge or {}), (found.num_sampled_edges or {})
        ends = (found.row[edge_type], found.col[edge_type])
        further = _further(message, edge_type)
        _change_edges(changed, edge_type, ends, ids.get(edge_type), counts.get(edge_type), further)
    return changed


def _further(message: SampleMessage, name: NodeType | EdgeType) -> list[str]:
    return [field for field in message if field.startswith(key(ATTRIBUTE, name))]


def _check(found: Any, wanted: type) -> None:
    if not isinstance(found, wanted):
        raise ConfigError(
            f"transform_sampler_output must return the {wanted.__name__} that it was given, or one "
            f"like it, got {type(found).__name__}"
        )


def _output(message: SampleMessage) -> SamplerOutput:
    row, col = message[EDGE_INDEX]
    return SamplerOutput(
        message[NODE], row, col, message.get(EDGE), batch=message.get(TREE),
        num_sampled_nodes=_list(message.get(NODES_PER_HOP)),
        num_sampled_edges=_list(message.get(EDGES_PER_HOP)),
        metadata=_metadata(message),
    )  # fmt: skip


def _hetero_output(
    message: SampleMessage, node_types: list[NodeType], edge_types: list[EdgeType]
) -> HeteroSamplerOutput:
    def nodes(field: str) -> dict[NodeType, Tensor]:
        return {t: message[key(field, t)] for t in node_types if key(field, t) in message}

    def edges(field: str) -> dict[EdgeType, Tensor]:
        return {t: message[key(field, t)] for t in edge_types if key(field, t) in message}

    # PyG tells "no ids" and "no trees" by None and would take an empty dict for ids of no type.
    links = edges(EDGE_INDEX)
    return HeteroSamplerOutput(
        nodes(NODE), {t: one[0] for t, one in links.items()},
        {t: one[1] for t, one in links.items()}, edges(EDGE) or None, batch=nodes(TREE) or None,
        num_sampled_nodes={t: one.tolist() for t, one in nodes(NODES_PER_HOP).items()},
        num_sampled_edges={t: one.tolist() for t, one in edges(EDGES_PER_HOP).items()},
        metadata=_metadata(message),
    )  # fmt: skip


def _metadata(message: SampleMessage) -> tuple[Tensor | None, Tensor | None]:
    """Return (input ids, times of the seeds), as PyG has them."""
    found = []
    # Seeds are of one type, so at most one key ends with either name.
    for field in (INPUT_ID, SEED_TIME):
        names = [name for name in message if name == field or name.endswith("." + field)]
        found.append(message[names[0]] if names else None)
    return found[0], found[1]


def _list(counts: Tensor | None) -> list[int] | None:
    return None if counts is None else counts.tolist()


def _change_nodes(
    message: SampleMessage, name: NodeType | None, nodes: Tensor, trees: Tensor | None,
    counts: list[int] | None, further: list[str],
) -> None:  # fmt: skip
    before = message[key(NODE, name)]
    # Most transforms touch edges alone: the same nodes need no look-up, and no copy of their
    # features.
    if nodes is not before and not torch.equal(nodes, before):
        fields = [key(NODE_FEATURES, name), key(NODE_LABELS, name), *further]
        _take(message, fields, _positions(before, nodes, f"a node of {name or 'the graph'}"))
        message[key(NODE, name)] = nodes
    _set(message, key(TREE, name), trees)
    _set(message, key(NODES_PER_HOP, name), None if counts is None else torch.tensor(counts))


def _change_edges(
    message: SampleMessage, name: EdgeType | None, ends: tuple[Tensor, Tensor], ids: Tensor | None,
    counts: list[int] | None, further: list[str],
) -> None:  # fmt: skip
    row, col = ends
    if row.shape != col.shape:
        raise ConfigError(
            "transform_sampler_output must keep `row` and `col` in step: they have "
            f"{row.numel()} and {col.numel()} ends of edges"
        )
    links, before = torch.stack(ends), message.get(key(EDGE, name))
    if before is None:
        _check_rows_fit(message, [key(EDGE_FEATURES, name), *further], links.size(1))
    else:
        if ids is None or ids.numel() != links.size(1):
            raise ConfigError(
                "transform_sampler_output must keep `edge` in step with `row` and `col`: there are "
                f"{links.size(1)} edges and {'no ids' if ids is None else ids.numel()}"
            )
        rows = _positions(before, ids, f"an edge of {name or 'the graph'}")
        _take(message, [key(EDGE_FEATURES, name), *further], rows)
        message[key(EDGE, name)] = ids
    message[key(EDGE_INDEX, name)] = links
    _set(message, key(EDGES_PER_HOP, name), None if counts is None else torch.tensor(counts))


def _check_rows_fit(message: SampleMessage, fields: list[str], num_edges: int) -> None:
    """Check that edges without ids are as many as before, where they have rows."""
    # Edges that a sampler made have no ids by which their rows, as PPR's scores, could follow them.
    for field in fields:
        if field in message and message[field].size(0) != num_edges:
            raise ConfigError(
                f"transform_sampler_output left {num_edges} of {message[field].size(0)} edges that "
                f"have {field!r} and no ids by which that could follow them: keep these edges"
            )


def _take(message: SampleMessage, fields: list[str], rows: Tensor) -> None:
    """Take ``rows`` of those of ``fields`` that there are."""
    for field in fields:
        if field in message:
            message[field] = message[field].index_select(0, rows)


def _positions(known: Tensor, wanted: Tensor, what: str) -> Tensor:
    """Return the first place in ``known`` of each of ``wanted``."""
    # Nodes repeat over trees, and edges where they are drawn with replacement. Which of the
    # positions is found does not matter, as the rows of one id are the same; the first one, for it
    # to be the same each time.
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
