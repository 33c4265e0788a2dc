"""Node features from a PyG ``FeatureStore`` of the user's: asked in batches, the last ones kept."""

import importlib
from collections.abc import Callable

import numpy as np

from gigl_loader.dataset.schema import NodeType
from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import ConfigError
from gigl_loader.memory.segments import Array
from gigl_loader.options import FeatureStoreOptions


class RecentRows:
    """The rows that were used last, as many as fit; one thread's.

    Args:
        most: Rows to keep.
        like: ``[n, ...]``: what rows look like.
    """

    def __init__(self, most: int, like: Array) -> None:
        self._most, self._rows = most, np.empty((0, *like.shape[1:]), like.dtype)
        self._positions: dict[int, int] = {}
        self._ids = np.empty(0, np.int64)
        self._used = np.empty(0, np.int64)
        self._turn = 0

    @property
    def like(self) -> Array:
        """Rows of the same shape and type."""
        return self._rows

    def take(self, ids: Array, ask: Callable[[Array], Array]) -> Array:
        """Return the rows of ``ids`` (``[n]`` int64); ``ask`` gives those that are not here."""
        self._turn += 1
        # Each id once: a database is asked for no row twice, and no row is kept twice.
        asked, inverse = np.unique(ids, return_inverse=True)
        positions = np.array([self._positions.get(one, -1) for one in asked.tolist()], np.int64)
        known, missing = np.flatnonzero(positions >= 0), np.flatnonzero(positions < 0)
        # Copied out before anything is replaced: with more rows than fit, those that are kept take
        # the positions of some that were found.
        found = np.empty((asked.size, *self._rows.shape[1:]), self._rows.dtype)
        found[known] = self._rows[positions[known]]
        self._used[positions[known]] = self._turn
        if missing.size:
            found[missing] = ask(asked[missing])
            self._keep(asked[missing], found[missing])
        rows: Array = found[inverse.reshape(-1)]
        return rows

    def _keep(self, ids: Array, rows: Array) -> None:
        """Keep ``rows``, in place of those that were not used for longest."""
        ids, rows = ids[: self._most], rows[: self._most]
        self._grow(min(self._most, len(self._positions) + ids.size))
        # Positions are taken in order and never given back, so the used ones are the first ones.
        free = np.arange(len(self._positions), self._ids.size)[: ids.size]
        stale = np.argsort(self._used[: len(self._positions)], kind="stable")
        positions = np.concatenate([free, stale[: ids.size - free.size]])
        for position in positions[free.size :].tolist():
            del self._positions[int(self._ids[position])]
        self._rows[positions], self._ids[positions], self._used[positions] = rows, ids, self._turn
        self._positions.update(zip(ids.tolist(), positions.tolist(), strict=True))

    def _grow(self, size: int) -> None:
        """Make room for ``size`` rows; memory is taken as it is needed."""
        if size > self._ids.size:
            # Half as much again: rows are moved a few times in all, not with every batch.
            size = min(self._most, size + size // 2)
            self._rows = _longer(self._rows, size)
            self._ids, self._used = _longer(self._ids, size), _longer(self._used, size)


def _longer(array: Array, size: int) -> Array:
    found = np.zeros((size, *array.shape[1:]), array.dtype)
    found[: len(array)] = array
    return found


class FeatureRows:
    """The features of all types that a user's store has; opened by the thread that samples.

    Args:
        options: Which store, and for which types.
        view: The partition: its node types, and which have features of their own.

    Raises:
        ConfigError: The store gives something that is no features.
    """

    def __init__(self, options: FeatureStoreOptions, view: PartitionView[Array]) -> None:
        module, _, name = options.class_path.rpartition(".")
        self._options = options
        self._reader = getattr(importlib.import_module(module), name)(**options.keywords)
        self._grouped = view.is_heterogeneous
        wanted = options.node_types or sorted(set(view.num_nodes) - set(view.node_features))
        self._rows: dict[NodeType, RecentRows] = {}
        for node_type in wanted:
            # One row is asked for at the start: shape and type of an empty batch are known from it.
            if view.num_nodes.get(node_type, 0):
                like = self._ask(node_type, np.zeros(1, np.int64), None)  # wrong keywords show here
                most = max(1, options.cache_bytes // max(1, like.nbytes * len(wanted)))
                self._rows[node_type] = RecentRows(most, like)

    def __contains__(self, node_type: NodeType) -> bool:
        return node_type in self._rows

    def fetch(self, node_type: NodeType, ids: Array) -> Array:
        """Return the rows of ``ids`` (``[n]`` int64, global) as ``[n, ...]``."""
        rows = self._rows[node_type]
        return rows.take(ids, lambda missing: self._ask(node_type, missing, rows.like))

    def _ask(self, node_type: NodeType, ids: Array, like: Array | None) -> Array:
        # Here: workers do without torch unless a store is asked, which speaks in its tensors.
        import torch

        group = node_type if self._grouped else None
        name = self._options.attr_name
        found = self._reader.get_tensor(
            group_name=group, attr_name=name, index=torch.from_numpy(ids), convert_type=True
        )
        shape = None if found is None else tuple(found.shape)
        what = f"{self._options.class_path} gave, for {ids.size} rows of {name!r} of {node_type},"
        if found is None or not shape or shape[0] != ids.size:
            raise ConfigError(f"{what} {'nothing' if shape is None else list(shape)}")
        # A store may answer with rows of a device, or with parameters of a model.
        values: Array = found.detach().cpu().numpy()
        if like is not None and (values.dtype, values.shape[1:]) != (like.dtype, like.shape[1:]):
            raise ConfigError(
                f"{what} {values.dtype} {list(values.shape)}, and before that rows of {like.dtype} "
                f"{list(like.shape[1:])}"
            )
        return values
