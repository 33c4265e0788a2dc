"""The nodes of a batch, and their local labels, which edges refer to."""

from collections.abc import Callable, Mapping

import numpy as np

from gigl_loader.dataset.schema import NodeType
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.kernels import sampling_kernels as kernels
from gigl_loader.sampler.kernels import tree_kernels


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
        """Give each of ``ids`` a label of its own, repeats too; `find` returns the first one."""
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

    def with_room(self, more: int) -> tuple[Array, np.uint64, Array]:
        """Return table, mask and ids for a kernel that gives up to ``more`` labels itself.

        It sets `count` afterwards.
        """
        self._reserve(more)
        return self._table, self._mask, self._nodes

    def find(self, ids: Array) -> Array:
        """Return the label of each of ``ids``, -1 if it has none (negative ids have none)."""
        labels = np.empty(ids.size, np.int64)
        kernels.look_up(self._table, self._mask, self._nodes, ids, labels)
        return labels

    def _reserve(self, more: int) -> None:
        need = self.count + more
        if need > self._nodes.size:
            # A quarter more: batches are of about one size, and the memory stays for the next one.
            self._nodes = np.resize(self._nodes, need + need // 4)
        # At most half full, so that a search reads few positions, and always reaches a free one.
        # Before labels are given: the kernels do not grow arrays.
        if 2 * need > self._table.size:
            size = 1 << (2 * need - 1).bit_length()
            self._table = np.zeros(size, np.int64)
            self._mask = np.uint64(size - 1)
            kernels.insert_nodes(self._table, self._mask, self._nodes, 0, self.count)


class TreeLabels:
    """Local labels of the nodes of one type in disjoint trees, by keys; see `tree_kernels`.

    Args:
        bits: Bits of an id; those above are the tree's.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.count = 0
        self._keys = np.zeros(1024, np.int64)
        self._table = np.zeros(4096, np.int64)
        self._entered = 0
        self._layout = tree_kernels.layout(4096, 1)

    @property
    def nodes(self) -> Array:
        """``[count]`` int64, keys by label; a view that the next call may move."""
        return self._keys[: self.count]

    def reset(self) -> None:
        """Forget all labels."""
        self._table.fill(0)
        self.count = self._entered = 0

    def append(self, keys: Array) -> None:
        """Give each of ``keys`` a label of its own, repeats too; `find` returns the first one."""
        # Not entered into the table yet: a tree's place there depends on the number of trees, and
        # more roots may come.
        start = self.count
        self._make_room(keys.size)
        self.count += keys.size
        self._keys[start : self.count] = keys

    def label_ids(self, ids: Array, origins: "TreeLabels", at: Array, num_trees: int) -> Array:
        """Return the labels of ``ids`` in the trees of ``origins`` at the labels ``at``."""
        return self._label(ids, num_trees, lambda: (origins.nodes, origins.bits, at))

    def label(self, ids: Array, trees: Array, num_trees: int) -> Array:
        """Return the labels of ``ids`` in ``trees``; those without one get the next free ones."""
        return self._label(ids, num_trees, lambda: (trees, 0, np.arange(ids.size)))

    def _label(
        self, ids: Array, num_trees: int, reached_from: Callable[[], tuple[Array, int, Array]]
    ) -> Array:
        self._make_room(ids.size)  # first, since it may move the keys
        self._enter(self.count + ids.size, num_trees)
        labels = np.empty(ids.size, np.int64)
        where = (self._table, np.uint64(self._table.size - 1), *self._layout, self.bits, self._keys)
        self.count = int(tree_kernels.label_ids(*where, self.count, ids, *reached_from(), labels))
        self._entered = self.count
        return labels

    def _enter(self, need: int, num_trees: int) -> None:
        """Enter appended keys; if the table is too small or its layout changes, enter all again."""
        size = self._table.size
        if 2 * need > size:
            size = 1 << (2 * need - 1).bit_length()
            self._table, self._entered = np.zeros(size, np.int64), 0
        # More trees have narrower shares: earlier entries would be searched elsewhere.
        layout = tree_kernels.layout(size, num_trees)
        if layout != self._layout and self._entered:
            self._table.fill(0)
            self._entered = 0
        self._layout = layout
        where = (self._table, np.uint64(size - 1), *layout, self.bits, self._keys)
        tree_kernels.enter(*where, self._entered, self.count)
        self._entered = self.count

    def replace(self, keys: Array) -> None:
        """Have these keys, which were labelled elsewhere; they are read alone from then on."""
        self._keys, self.count = keys, keys.size

    def _make_room(self, more: int) -> None:
        need = self.count + more
        if need > self._keys.size:
            self._keys = np.resize(self._keys, need + need // 4)


class BatchNodes:
    """The nodes of one batch by type: first the roots, then the nodes reached from them.

    Merged, a node has one label, however it was reached. Disjoint, every root starts its own tree,
    or all roots of one time share a tree, and a node has one label per tree.

    Args:
        num_nodes: Nodes of each type over all partitions.
        disjoint: Whether trees share no node.
        by_time: Whether disjoint trees are one per time instead of one per root.
    """

    def __init__(
        self, num_nodes: Mapping[NodeType, int], *, disjoint: bool = False, by_time: bool = False
    ) -> None:
        self.disjoint, self._by_time = disjoint, by_time
        self.types = sorted(num_nodes)
        self._merged: dict[NodeType, NodeLabels] = {}
        self._apart: dict[NodeType, TreeLabels] = {}
        if disjoint:
            # Tree and id in one int64: with 40 bits for ids, 2 ** 23 trees; a batch has far fewer.
            bits = {name: count.bit_length() for name, count in num_nodes.items()}
            self._apart = {name: TreeLabels(bits[name]) for name in self.types}
        else:
            self._merged = {name: NodeLabels() for name in self.types}
        self._labels: Mapping[NodeType, NodeLabels | TreeLabels] = self._apart or self._merged
        self._seeds: list[Array] = []
        self._num_trees = 0
        self._tree_of_seed = np.empty(0, np.int64)
        self.seed_times: Array | None = None
        """``[batch_size]``, the time of each seed; None without times."""
        self.seed_starts: Array | None = None
        """``[batch_size]`` int64, the earliest time in each seed's tree, as `TimeOrder.times`;
        None: no time is too early."""
        self.places: Array | None = None
        """``[num_trees]`` int64, numbers of trees in the keys of draws; None: their own."""

    def reset(self, seed_times: Array | None = None, seed_starts: Array | None = None) -> None:
        """Forget the previous batch; take the times of the next one's seeds."""
        for labels in self._labels.values():
            labels.reset()
        self.seed_times, self.seed_starts = seed_times, seed_starts
        self._seeds, self._num_trees = [], 0
        if self._by_time and seed_times is not None:
            # Seeds of one time share a tree: all trees are known before any root is placed.
            _, first, trees = np.unique(seed_times, return_index=True, return_inverse=True)
            self._seeds, self._num_trees = [first], first.size
            self._tree_of_seed = trees.reshape(-1)

    def count(self, node_type: NodeType) -> int:
        """Return the number of labels."""
        return self._labels[node_type].count

    def ids(self, node_type: NodeType, start: int = 0, stop: int | None = None) -> Array:
        """Return the global ids at labels ``start`` to ``stop``; a view that calls may move."""
        nodes = self._labels[node_type].nodes[start:stop]
        # Keys without the tree: for trees this is a copy.
        return nodes & ((1 << self._apart[node_type].bits) - 1) if self.disjoint else nodes

    def keys(self, node_type: NodeType) -> Array:
        """Return ``[count]`` int64: ids or, in trees, ``tree << bits | id``; calls may move it."""
        return self._labels[node_type].nodes

    @property
    def bits(self) -> dict[NodeType, int] | None:
        """Bits of an id in a key, by type; None if nodes are merged, and keys are ids."""
        if not self.disjoint:
            return None
        return {name: labels.bits for name, labels in self._apart.items()}

    # -- roots ----------------------------------------------------------------------------------

    def place(self, node_type: NodeType, ids: Array, seeds: Array | None = None) -> Array:
        """Make each of ``ids`` a root, repeats too; return their labels.

        Args:
            node_type: Type of the roots.
            ids: ``[n]`` int64, global.
            seeds: ``[n]`` int64, the seed of each root; None: 0, 1, 2...
        """
        labels = self._labels[node_type]
        start = labels.count
        if self.disjoint:
            ids = self._trees_of(ids, seeds) << self._apart[node_type].bits | ids
        labels.append(ids)
        return np.arange(start, labels.count)

    def label(self, node_type: NodeType, ids: Array, seeds: Array | None = None) -> Array:
        """Make each of ``ids`` a root, once if roots share a tree; see `place`."""
        if not self.disjoint:
            return self._merged[node_type].label(ids)
        if not self._by_time:
            return self.place(node_type, ids, seeds)
        trees = self._trees_of(ids, seeds)
        return self._apart[node_type].label(ids, trees, self._num_trees)

    def add(self, node_type: NodeType, ids: Array) -> Array:
        """Return the labels of ``ids``, new ones if needed; for merged nodes that are no roots."""
        return self._merged[node_type].label(ids)

    def find(self, node_type: NodeType, ids: Array) -> Array:
        """Return the label of each of ``ids``, -1 if it has none; for merged nodes only."""
        return self._merged[node_type].find(ids)

    def _trees_of(self, ids: Array, seeds: Array | None) -> Array:
        """Return the tree of each root in ``ids``; new trees unless they go by time."""
        seeds = np.arange(ids.size) if seeds is None else seeds
        if self._by_time:
            return self._tree_of_seed[seeds]
        self._seeds.append(seeds)
        self._num_trees += ids.size
        return np.arange(self._num_trees - ids.size, self._num_trees)

    # -- trees ----------------------------------------------------------------------------------

    @property
    def seeds(self) -> Array:
        """``[num_trees]`` int64: the seed of each tree; of several, the first."""
        return np.concatenate(self._seeds) if self._seeds else np.empty(0, np.int64)

    def trees(self, node_type: NodeType, start: int = 0, stop: int | None = None) -> Array:
        """Return the tree of each node at labels ``start`` to ``stop``."""
        labels = self._apart[node_type]
        return labels.nodes[start:stop] >> labels.bits

    def replace(self, keys: Mapping[NodeType, Array]) -> None:
        """Have the keys of trees that were grown elsewhere, from the roots that are here."""
        for name, labels in self._apart.items():
            labels.replace(keys[name])

    def write_seeds(self, node_type: NodeType, out: Array) -> None:
        """Write the seed of each node's tree to ``out``, ``[count]`` int64."""
        labels = self._apart[node_type]
        tree_kernels.seeds_of(labels.nodes, labels.bits, self.seeds, out)

    def label_ids(
        self, node_type: NodeType, ids: Array, from_type: NodeType, from_labels: Array
    ) -> Array:
        """Label ``ids``, which were reached from nodes of the batch; return their labels."""
        if not self.disjoint:
            return self._merged[node_type].label(ids)
        origins = self._apart[from_type]
        return self._apart[node_type].label_ids(ids, origins, from_labels, self._num_trees)
