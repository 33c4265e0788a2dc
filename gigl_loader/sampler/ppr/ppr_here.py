"""Pushes where all edges are in this process's memory: one seed after the other, to its end.

`ForwardPush` pushes all seeds of a batch turn by turn, so that a turn asks another partition once.
Where nobody has to be asked, the turns of one seed can follow each other, and what the seed has
reached stays in the processor's caches. Seeds do not depend on each other: both give the same bits.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from gigl_loader.dataset.partition.partition_view import Adjacency, PartitionView
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.kernels import ppr_kernels as kernels
from gigl_loader.sampler.options import PPRSamplerOptions
from gigl_loader.sampler.plan import Draw
from gigl_loader.sampler.ppr.ppr_push import TopNodes

_FEW_SLOTS = 1 << 12
_MANY_MARKS = 1 << 30
"""Marks after which a table is wiped: they have 31 bits."""


class PushHere:
    """Finds the top nodes of seeds; memory is kept for the next batch.

    Args:
        view: The only partition.
        ends: By edge type, (type that is expanded, type of its neighbours).
        types: All node types.
        options: How to push, and how much to keep.
    """

    def __init__(
        self,
        view: PartitionView[Array],
        ends: Mapping[EdgeType, tuple[NodeType, NodeType]],
        types: Sequence[NodeType],
        options: PPRSamplerOptions,
    ) -> None:
        self._view, self._types, self._options = view, list(types), options
        self._type_bits = (len(self._types) - 1).bit_length()
        self._edges = {
            edge_type: [self._types.index(end) for end in of] + _places(view.adjacency[edge_type])
            for edge_type, of in ends.items()
        }
        self._marks = np.zeros(1, np.int64)
        self._make_room(_FEW_SLOTS)

    def _make_room(self, slots: int) -> None:
        codes, touched, due, hops = (np.empty(slots, np.int64) for _ in range(4))
        score, taken, rest = (np.empty(slots) for _ in range(3))
        table = np.zeros(1 << (4 * slots + 1).bit_length(), np.int64)
        state = np.empty(slots, kernels.SLOT), score
        self._memory = table, codes, *state, touched, due, taken, rest, hops
        self._slots = slots

    def tops(
        self, draws: Sequence[Draw], node_type: NodeType, seeds: Array
    ) -> dict[NodeType, TopNodes]:
        """Return the top of all seeds, by type of the nodes.

        Args:
            draws: The requests for rows of the edge types to walk.
            node_type: Type of the seeds.
            seeds: ``[n]`` int64, global ids; repeats are allowed.
        """
        options, walked = self._options, [draw.edge_type for draw in draws]
        others = [edge_type for edge_type in self._edges if edge_type not in walked]
        edges = np.array([self._edges[name] for name in walked + others], np.int64)
        draw_keys = np.array([draw.key for draw in draws], np.uint64)
        codes = seeds << self._type_bits | self._types.index(node_type)
        topup, most = options.enable_residual_topup, options.max_ppr_nodes
        how = self._type_bits, options.alpha, options.eps, topup, most
        request = codes, edges, len(walked), draw_keys, options.num_neighbors_per_hop, how
        while True:
            if self._marks[0] > _MANY_MARKS:
                self._memory[0].fill(0)
                self._marks[0] = 0
            size = len(self._types), seeds.size * min(most, self._slots)
            out = *(np.empty(size, np.int64) for _ in range(3)), np.empty((*size, 2))
            counts = np.zeros(len(self._types), np.int64)
            needed = kernels.push_each(*request, self._memory, self._marks, out, counts)
            if not needed:
                break
            self._make_room(needed + needed // 2)
        found = {}
        for name, count, *columns in zip(self._types, counts, *out, strict=True):
            seed, ids, pushed, values = (column[:count] for column in columns)
            found[name] = TopNodes(seed, ids, values, pushed)
        return found


def _places(adjacency: Adjacency[Array]) -> list[int]:
    """Return what `ppr_kernels.push_each` knows of the edges of a type, after its ends."""
    indptr, indices = adjacency.indptr, adjacency.indices
    rows = [adjacency.first_row, indptr.size - 1]
    return [*rows, indptr.ctypes.data, indices.ctypes.data, indices.itemsize]


def can_push_here(view: PartitionView[Array], options: PPRSamplerOptions) -> bool:
    """Return whether edges lie as `PushHere` reads them, and the options ask for no more."""
    arrays = [array for one in view.adjacency.values() for array in (one.indptr, one.indices)]
    if options.max_fetch_iterations is not None or options.include_sampled_edges:
        return False
    return all(array.flags.c_contiguous and array.dtype.kind == "i" for array in arrays)
