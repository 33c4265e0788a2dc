"""The nodes of a batch, and the local labels that edges name them by."""

from collections.abc import Mapping

import numpy as np

from gigl_loader.dataset.schema import NodeType
from gigl_loader.memory.segments import Array
from gigl_loader.sampler import _kernels as kernels


class NodeLabels:
    """Local labels of one node type: 0, 1, 2... in order of first appearance.

    Memory is in proportion to the batch, never to the graph, and is kept for the next batch.
    """

    def __init__(self) -> None:
        self._nodes = np.zeros(1024, np.int64)
        self._table = np.zeros(4096, np.int64)
        self._mask = np.uint64(4095)
        self.count = 0

    @property
    def nodes(self) -> Array:
        """``[count]`` int64, global ids by label; a view that the next call may move."""
        return self._nodes[: self.count]

    def reset(self) -> None:
        """Forget all labels."""
        self._table.fill(0)
        self.count = 0

    def append(self, ids: Array) -> None:
        """Give each of ``ids`` a label of its own, repeats too; a repeat is found by its first."""
        start = self.count
        self._reserve(ids.size)
        self.count += ids.size
        self._nodes[start : self.count] = ids
        kernels.insert_nodes(self._table, self._mask, self._nodes, start, self.count)

    def label(self, ids: Array) -> Array:
        """Return the label of each of ``ids``; ids without one get the next free ones."""
        self._reserve(ids.size)
        labels = np.empty(ids.size, np.int64)
        self.count = int(
            kernels.relabel(self._table, self._mask, self._nodes, self.count, ids, labels)
        )
        return labels

    def find(self, ids: Array) -> Array:
        """Return the label of each of ``ids``, -1 where it has none (negative ids have none)."""
        labels = np.empty(ids.size, np.int64)
        kernels.look_up(self._table, self._mask, self._nodes, ids, labels)
        return labels

    def _reserve(self, more: int) -> None:
        need = self.count + more
        if need > self._nodes.size:
            self._nodes = np.resize(self._nodes, need + need // 4)
        if 2 * need > self._table.size:
            size = 1 << (2 * need - 1).bit_length()
            self._table = np.zeros(size, np.int64)
            self._mask = np.uint64(size - 1)
            kernels.insert_nodes(self._table, self._mask, self._nodes, 0, self.count)


class BatchNodes:
    """The nodes of one batch by type: first the roots, then what was reached from them.

    Merged, a node has one label, however it was reached. Disjoint, every root starts a tree of its
    own, and a node has one label per tree: labels are then those of numbers that hold the tree
    above the bits of the id.

    Args:
        num_nodes: Nodes of each type over all partitions.
        disjoint: Whether trees share no node.
    """

    def __init__(self, num_nodes: Mapping[NodeType, int], *, disjoint: bool = False) -> None:
        self.disjoint = disjoint
        self.types = sorted(num_nodes)
        self._labels = {node_type: NodeLabels() for node_type in self.types}
        self._bits = {name: count.bit_length() for name, count in num_nodes.items()}
        self._seeds: list[Array] = []
        self._num_trees = 0
        self.seed_times: Array | None = None
        """``[batch_size]``, the time of each seed; None: no time counts."""

    def reset(self, seed_times: Array | None = None) -> None:
        """Forget the batch before; ``seed_times`` are those of the seeds of the next one."""
        for labels in self._labels.values():
            labels.reset()
        self.seed_times = seed_times
        self._seeds, self._num_trees = [], 0

    def count(self, node_type: NodeType) -> int:
        """Return how many labels were given."""
        return self._labels[node_type].count

    def ids(self, node_type: NodeType, start: int = 0, stop: int | None = None) -> Array:
        """Return the global ids at labels ``start`` to ``stop``; a view that calls may move."""
        nodes = self._labels[node_type].nodes[start:stop]
        return nodes & ((1 << self._bits[node_type]) - 1) if self.disjoint else nodes

    # -- roots ----------------------------------------------------------------------------------

    def place(self, node_type: NodeType, ids: Array, seeds: Array | None = None) -> Array:
        """Make each of ``ids`` a root, repeats too; return their labels.

        Args:
            node_type: Their type.
            ids: ``[n]`` int64, global.
            seeds: ``[n]`` int64, the seed that each root belongs to; None: 0, 1, 2...
        """
        labels = self._labels[node_type]
        start = labels.count
        labels.append(self._new_trees(node_type, ids, seeds) if self.disjoint else ids)
        return np.arange(start, labels.count)

    def label(self, node_type: NodeType, ids: Array, seeds: Array | None = None) -> Array:
        """Make each of ``ids`` a root, once where trees are merged; see `place`."""
        if self.disjoint:
            return self.place(node_type, ids, seeds)
        return self._labels[node_type].label(ids)

    def find(self, node_type: NodeType, ids: Array) -> Array:
        """Return the label of each of ``ids``, -1 where it has none; of merged nodes only."""
        return self._labels[node_type].find(ids)

    def _new_trees(self, node_type: NodeType, ids: Array, seeds: Array | None) -> Array:
        first = self._num_trees
        self._num_trees += ids.size
        self._seeds.append(np.arange(ids.size) if seeds is None else seeds)
        trees: Array = np.arange(first, self._num_trees) << self._bits[node_type]
        return trees | ids

    # -- trees ----------------------------------------------------------------------------------

    @property
    def seeds(self) -> Array:
        """``[num_trees]`` int64: the seed that each tree belongs to."""
        return np.concatenate(self._seeds) if self._seeds else np.empty(0, np.int64)

    def trees(self, node_type: NodeType, start: int = 0, stop: int | None = None) -> Array:
        """Return the tree of each node at labels ``start`` to ``stop``."""
        trees: Array = self._labels[node_type].nodes[start:stop] >> self._bits[node_type]
        return trees

    def reach(
        self, node_type: NodeType, ids: Array, from_type: NodeType, from_labels: Array
    ) -> Array:
        """Label ``ids``, which were reached from nodes of the batch; return their labels."""
        if self.disjoint:
            origins = self._labels[from_type].nodes[from_labels] >> self._bits[from_type]
            ids = (origins << self._bits[node_type]) | ids
        return self._labels[node_type].label(ids)
