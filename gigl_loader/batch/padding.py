"""Batches of one shape: dead nodes and dead edges behind the real ones.

::

    nodes    [ seeds | 1st hop | 2nd hop | dead nodes ]      pad_node_mask   1 1 1 1 1 1 0 0 0
    edges    [ 1st hop | 2nd hop | dead edges ]              pad_edge_mask   1 1 1 1 0 0

A dead edge leads from a dead node to another one, so nothing reaches a real node. Only the inputs
of models are padded. Values of seeds (``batch_size``, ``input_id``, ``edge_label_index``...) have
an entry for each seed of the batch and no more: a loss over them has a term for seeds only.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gigl_loader.batch.message import (
    EDGE_INDEX,
    NODE,
    TOKENS,
    Axis,
    SampleMessage,
    declared,
    key,
    num_seeds,
    spec_of,
    type_name,
)
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError

LEAST_DEAD = 2
"""Least number of dead nodes of each type. A single one could only have an edge to itself.
Convolutions that remove such edges (`GATConv`, `GCNConv`) would then turn one shape into as many as
there are batches."""
NODE_MASK, EDGE_MASK = "pad_node_mask", "pad_edge_mask"
"""PyG's names, of its transform ``Pad``: True where a node or edge is real."""
SEED_MASK = "seed_mask"
"""True at the seeds of a batch, which are fewer than ``batch_size`` in a smaller one."""
PAD_ATTRIBUTES = (NODE_MASK, EDGE_MASK, SEED_MASK)


@dataclass(frozen=True)
class PadShape:
    """Places for nodes and edges by type, as batches name types; None: homogeneous."""

    nodes: dict[NodeType | None, int]
    """Dead ones included, `LEAST_DEAD` at least."""
    edges: dict[EdgeType | None, int]

    def covers(self, nodes: Mapping[Any, int], edges: Mapping[Any, int]) -> bool:
        """Return whether a batch of so many nodes and edges fits, by type."""
        return all(nodes[name] + LEAST_DEAD <= size for name, size in self.nodes.items()) and all(
            edges[name] <= size for name, size in self.edges.items()
        )

    def fits(self, message: SampleMessage) -> bool:
        """Return whether a batch fits."""
        return self.covers(
            {name: message[key(NODE, name)].size(0) for name in self.nodes},
            {name: message[key(EDGE_INDEX, name)].size(1) for name in self.edges},
        )


def padded(message: SampleMessage, shape: PadShape, num_trees: int) -> SampleMessage:
    """Return ``message`` with dead nodes and edges up to ``shape``, on the same device.

    Their unknown values are 0, ids too: look-ups by ``n_id`` and ``e_id`` find some row.

    Args:
        message: From a sampler, with features as models see them; it fits ``shape``.
        shape: Places for nodes and edges.
        num_trees: Seeds of a whole batch. In disjoint sampling, dead nodes have their own tree of
            that number, which comes after those of all seeds.
    """
    nodes = {type_name(name): size for name, size in shape.nodes.items()}
    edges = {type_name(name): size for name, size in shape.edges.items()}
    dead = {
        type_name(name): range(message[key(NODE, name)].size(0), size)
        for name, size in shape.nodes.items()
    }
    links = {type_name(name): message[key(EDGE_INDEX, name)] for name in shape.edges}
    longer = dict(message)
    for name, value in message.items():
        of_type, spec = spec_of(name)
        if spec.axis == "node" and of_type in nodes:
            fill = num_trees if spec.of_trees else 0
            longer[name] = _longer(value, nodes[of_type], fill=fill)
        elif spec.axis == "edge" and of_type in edges and not spec.is_index:
            longer[name] = _longer(value, edges[of_type])
        elif spec.axis == "node_hop" and of_type in nodes:
            longer[name] = _with_dead(value, len(dead[of_type]))
        elif spec.axis == "edge_hop" and of_type in edges:
            longer[name] = _with_dead(value, edges[of_type] - links[of_type].size(1))
    for node_type, size in shape.nodes.items():
        ids = message[key(NODE, node_type)]
        _mark(longer, "node", node_type, NODE_MASK, ids, slice(ids.size(0)), size)
        if (seeds := num_seeds(message, node_type)) is not None:
            _mark(longer, "node", node_type, SEED_MASK, ids, _rows_of_seeds(message, seeds), size)
    for edge_type, size in shape.edges.items():
        real = links[type_name(edge_type)]
        src, _, dst = edge_type or ("", "", "")
        longer[key(EDGE_INDEX, edge_type)] = _with_dead_edges(real, size, dead[src], dead[dst])
        _mark(longer, "edge", edge_type, EDGE_MASK, real, slice(real.size(1)), size)
    return longer


def _rows_of_seeds(message: SampleMessage, seeds: int) -> slice | Tensor:
    """Return where the seeds are: first, but with tokens a seed that comes twice has one row."""
    if TOKENS + "row" not in message:
        return slice(seeds)
    length = message[TOKENS + "length"]
    return message[TOKENS + "row"][(length.cumsum(0) - length)[:seeds]].long()


def _longer(rows: Tensor, size: int, fill: int = 0) -> Tensor:
    """Return ``rows`` with rows of ``fill`` behind them, ``size`` in all."""
    # Written once: zeros for all of them first would be a second pass over the real ones.
    longer = rows.new_empty(size, *rows.shape[1:])
    longer[: rows.size(0)] = rows
    longer[rows.size(0) :] = fill
    return longer


def hops_of(per_hop: list[int]) -> Tensor:
    """Return ``[num_nodes]`` int64, the hop of each node: nodes lie in the order of their hops."""
    return torch.arange(len(per_hop), device="cpu").repeat_interleave(
        torch.tensor(per_hop, dtype=torch.int64, device="cpu")
    )


def _with_dead_edges(links: Tensor, size: int, sources: range, destinations: range) -> Tensor:
    """Return ``[2, size]``: the edges, then dead ones between dead nodes."""
    real = links.size(1)
    edges = links.new_empty(2, size)
    edges[:, :real] = links
    # Spread over the dead nodes: at a single node they would wait for each other if sums are
    # atomic. Within one type, the target is the next dead node, so that no dead edge is a loop.
    place = torch.arange(size - real, device=links.device)
    edges[0, real:] = sources.start + place % len(sources)
    edges[1, real:] = destinations.start + (place + 1) % len(destinations)
    return edges


def _with_dead(counts: Tensor, dead: int) -> Tensor:
    """Count dead nodes or edges with the last hop."""
    # `trim_to_layer` cuts the ends of tensors, by the last counts: so dead ones go first, with
    # those of the last hop, and the rest is the same as without them.
    return torch.cat([counts[:-1], counts[-1:] + dead]) if counts.numel() else counts


def _mark(
    message: SampleMessage,
    axis: Axis,
    graph_type: NodeType | EdgeType | None,
    name: str,
    like: Tensor,
    true: slice | Tensor,
    size: int,
) -> None:
    mask = torch.zeros(size, dtype=torch.bool, device=like.device)
    mask[true] = True
    message[key(declared(axis, name), graph_type)] = mask


def padding_sizes(batches: Iterable[Any], *, share: float = 0.99) -> dict[str, Any]:
    """Return sizes for ``pad=`` that fit a share of the given batches, dead nodes included.

    The rest, and others as large in later epochs, will be split. Give some hundred batches of a
    loader with the same seeds, fan-outs and batch size: an epoch, or
    ``itertools.islice(loader, 200)``. That loader may pad: its dead nodes are not counted.

    Args:
        batches: `Data` or `HeteroData` of one loader.
        share: Share of the batches, in (0, 1]; at least so many fit all sizes at once.

    Raises:
        ConfigError: There is no batch, or ``share`` is out of range.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"share must be in (0, 1], got {share!r}")
    counts = [_real_counts(batch) for batch in batches]
    if not counts:
        raise ConfigError("padding_sizes needs batches, and there was none")
    most = _largest(counts)
    # A batch counts by its largest type: without the batches that are largest by that, the others
    # fit all together, which quantiles of each type would not ensure.
    counts.sort(key=lambda sizes: max(n / max(most[name], 1) for name, n in sizes.items()))
    kept = _largest(counts[: max(math.ceil(share * len(counts)), 1)])
    nodes = {name: _rounded(n + LEAST_DEAD) for (kind, name), n in kept.items() if kind == "nodes"}
    edges = {name: _rounded(n) for (kind, name), n in kept.items() if kind == "edges"}
    if None in nodes:
        return {"nodes": nodes[None], "edges": edges[None]}
    return {"nodes": nodes, "edges": edges}


_Counts = dict[tuple[str, Any], int]
"""By ``"nodes"`` or ``"edges"``, and type."""


def _real_counts(batch: Any) -> _Counts:
    if not hasattr(batch, "node_types"):
        return {
            ("nodes", None): _real(batch, NODE_MASK, batch.num_nodes),
            ("edges", None): _real(batch, EDGE_MASK, batch.num_edges),
        }
    counts: _Counts = {}
    for name in batch.node_types:
        counts["nodes", name] = _real(batch[name], NODE_MASK, batch[name].num_nodes)
    for name in batch.edge_types:
        counts["edges", name] = _real(batch[name], EDGE_MASK, batch[name].num_edges)
    return counts


def _real(store: Any, mask: str, count: int) -> int:
    return int(store[mask].sum()) if mask in store else count


def _largest(counts: list[_Counts]) -> _Counts:
    return {name: max(sizes[name] for sizes in counts) for name in counts[0]}


def _rounded(count: int) -> int:
    # Matrix units of GPUs work on blocks of eight rows.
    return -(-count // 8) * 8
