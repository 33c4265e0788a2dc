"""Neighbourhoods of seed edges: both ends, and the ends of negatives that are drawn for them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gigl_loader.dataset.schema import EdgeType
from gigl_loader.dataset.view import PartitionView
from gigl_loader.memory.segments import Array
from gigl_loader.message import (
    EDGE_INPUT_ID,
    EDGE_LABEL,
    EDGE_LABEL_INDEX,
    EDGE_TARGETS,
    EDGE_TIME,
    INPUT_ID,
    IS_HETERO,
)
from gigl_loader.sampler.negatives import BINARY, TRIPLET, Negatives
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.nodes import BatchNodes
from gigl_loader.sampler.plan import Field, SampleRequest, SamplingPlan
from gigl_loader.sampler.questions import Peers
from gigl_loader.sampler.reader import GraphReader
from gigl_loader.sampler.roots import Placed


class EdgeRoots:
    """The ends of seed edges and of their negatives, in one batch.

    ::

        one node type    [ sources and destinations, each once | 1st hop | 2nd hop ... ]
        two node types   [ sources, each once | 1st hop ... ]  [ destinations, each once | ... ]

    The seeds are the sources; destinations come with them as the column ``EDGE_TARGETS``, labels
    as ``EDGE_LABEL``. Negatives are keyed by seed, epoch and batch as all draws are. Where trees
    are disjoint, each end has its own, and belongs to its seed edge.

    Args:
        reader: Of all partitions.
        plan: What to sample; its input type is that of the sources.
        edge_type: Of the seed edges; names the types of both ends, and with ``strict`` the edges
            that no negative may be.
        negatives: ``"binary"``: pairs of drawn nodes; ``"triplet"``: drawn destinations for each
            source; None: there are none.
        amount: Negatives per seed edge; the number in a batch is rounded up.
        strict: No negative is an edge of ``edge_type``.
        src_weight: ``[num_nodes]``, what sources of binary negatives are drawn by; None: uniformly.
        dst_weight: The same of destinations.
    """

    def __init__(
        self,
        reader: GraphReader,
        plan: SamplingPlan,
        *,
        edge_type: Sequence[str],
        negatives: str | None = None,
        amount: float = 1,
        strict: bool = False,
        src_weight: Sequence[float] | None = None,
        dst_weight: Sequence[float] | None = None,
    ) -> None:
        self._is_heterogeneous = reader.view.is_heterogeneous
        src, relation, dst = edge_type
        self._edge_type: EdgeType = (src, relation, dst)
        self._kind = negatives
        self._negatives = Negatives(
            reader, plan, self._edge_type, kind=negatives, amount=amount, strict=strict,
            src_weight=src_weight, dst_weight=dst_weight,
        )  # fmt: skip

    def place(self, request: SampleRequest, nodes: BatchNodes) -> Placed:
        """Put the ends of seed edges and negatives down; merged, each node once."""
        src, dst = request.seeds, request.extra[EDGE_TARGETS]
        seeds = self._negatives.seeds(src.size)
        neg_src, neg_dst = self._negatives.draw(request.ticket, src, seeds, nodes.seed_times)
        own, _, other = self._edge_type
        # Labels count up in this order, which is PyG's: ends of seed edges, then of negatives.
        # Triplets have no sources of their own, so none of their seeds is used for these.
        ends = (
            nodes.label(own, src),
            nodes.label(other, dst),
            nodes.label(own, neg_src, seeds[: neg_src.size]),
            self._label_negatives(nodes, neg_dst, seeds),
        )
        return Placed([*self._fields(request, *ends), *self._times(nodes.seed_times, seeds)])

    def _label_negatives(self, nodes: BatchNodes, neg_dst: Array, seeds: Array) -> Array:
        """Label the destinations of negatives.

        Their trees lie as PyG's: one of each seed edge, then the next of each.
        """
        other = self._edge_type[2]
        if not nodes.disjoint or self._kind != TRIPLET or seeds.size == 0:
            return nodes.label(other, neg_dst, seeds)
        # Of 2 edges with 3 negatives each, 0 0 0 1 1 1 becomes 0 1, 0 1, 0 1: trees in that order.
        by_turn = np.arange(seeds.size).reshape(int(seeds[-1]) + 1, -1).T.reshape(-1)
        labels = np.empty_like(neg_dst)
        labels[by_turn] = nodes.label(other, neg_dst[by_turn], seeds[by_turn])
        return labels

    def _fields(
        self, request: SampleRequest, src: Array, dst: Array, neg_src: Array, neg_dst: Array
    ) -> list[Field]:
        """Return the ends of seed edges and negatives, local labels, and the labels given."""
        if self._kind == TRIPLET:
            links = np.concatenate([src, dst, neg_dst])
        else:
            links = np.stack([np.concatenate([src, neg_src]), np.concatenate([dst, neg_dst])])
        fields = [
            Field.of(IS_HETERO, np.uint8(self._is_heterogeneous)),
            Field.of(EDGE_LABEL_INDEX, links),
            # a loader may send other numbers than positions, in a column of that name
            Field.of(EDGE_INPUT_ID, request.extra.get(INPUT_ID, request.input_id)),
        ]
        if EDGE_LABEL in request.extra:
            fields.append(Field.of(EDGE_LABEL, request.extra[EDGE_LABEL]))
        return fields

    def _times(self, times: Array | None, seeds: Array) -> list[Field]:
        """Return the times of seed edges; in the binary form, then those of negatives."""
        if times is None:
            return []
        # PyG's triplets have one time for an edge and its negatives, binary pairs one each.
        if self._kind == BINARY:
            times = np.concatenate([times, times[seeds]])
        return [Field.of(EDGE_TIME, times)]


def edge_sampler(
    view: PartitionView[Array], plan: SamplingPlan, peers: Peers | None, **keywords: Any
) -> NeighborSampler:
    """Return a sampler around seed edges; ``keywords`` are those of `EdgeRoots`."""
    return NeighborSampler(view, plan, peers, lambda reader: EdgeRoots(reader, plan, **keywords))
