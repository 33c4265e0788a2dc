"""Rows by global id over all partitions, fetched by ``all_to_all``; and quantized features.

::

    stored = round((x - least) / scale) + lowest        least, scale: of the column
    x'     = stored * scale + offset                    offset = least - lowest * scale

`float16` and `bfloat16` are only rounded; batches have float32 again either way.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol, cast, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from gigl_loader.dataset.identity import holders_of
from gigl_loader.dataset.partition.partition_view import PartitionView, Rows
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE, EdgeType, NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.ranks.collectives import RankExchange, RowsFromRanks

DTYPES = ("int8", "uint8", "float16", "bfloat16")
FeatureDtype = str | torch.dtype | Mapping[NodeType, str | torch.dtype]
"""A name among `DTYPES`, or torch's own; for the features of all node types, or by type."""

# Steps between the 256 values of a byte.
_LEVELS = 255
# Rows converted to float64 at a time, so that no matrix exists with 8 bytes per number.
_ROWS = 1 << 16


def quantise(values: Tensor, dtype: str, where: str) -> tuple[Tensor, Tensor]:
    """Return features as they are stored, and the scales to restore them.

    An integer column is off by at most half of its scale, 1/510 of its range, plus the rounding of
    float32; a column of one value is exact.

    Args:
        values: ``[num_rows, ...]`` floating point, finite.
        dtype: One of `DTYPES`.
        where: The owner of the features, for errors.

    Returns:
        (``[num_rows, ...]`` of that type, ``[2, ...]`` float32: scale and offset of each column;
        ``[0]`` of a short float, which has none).

    Raises:
        ConfigError: They are not floating point, not finite, or too large to be restored.
    """
    if not values.is_floating_point():
        raise ConfigError(f"{where} are {values.dtype}, and stored as they are: no feature_dtype")
    kind = getattr(torch, dtype)
    if not bool(torch.isfinite(values).all()):
        raise ConfigError(f"{where} are not finite: they cannot be stored as {dtype}")
    if kind.is_floating_point:
        stored = values.to(kind)
        if not bool(torch.isfinite(stored).all()):
            hint = ": store bfloat16" if dtype == "float16" else ""
            raise ConfigError(f"{where} have values above what {dtype} holds{hint}")
        return stored, values.new_empty(0, dtype=torch.float32)
    if values.size(0) == 0:
        return values.to(kind), values.new_zeros((2, *values.shape[1:]), dtype=torch.float32)
    lowest = torch.iinfo(kind).min
    # float64: most - least of two float32 may be infinite, or lose the digits of a small range
    least, most = (limit.double() for limit in torch.aminmax(values, dim=0))
    scale = (most - least) / _LEVELS
    scales = torch.stack([scale, least - lowest * scale]).float()
    # both ends as `widened` will compute them, in float32
    ends = [level * scales[0] + scales[1] for level in (lowest, lowest + _LEVELS)]
    if not bool(torch.isfinite(torch.stack(ends)).all()):  # batches would have infinities
        raise ConfigError(f"{where} have values too far apart for {dtype} and float32: scale them")
    stored = values.new_empty(values.shape, dtype=kind)
    # a column of one value: no division by zero, and each level is the lowest
    steps = torch.where(scale > 0, scale, 1.0)
    for start in range(0, values.size(0), _ROWS):
        rows = values[start : start + _ROWS].double()
        # rounding may give a level past the last, which would wrap around in 8 bits
        levels = ((rows - least) / steps).round().clamp(0, _LEVELS) + lowest
        stored[start : start + _ROWS] = levels.to(kind)
    return stored, scales


def widened(stored: Tensor, scales: Tensor | None) -> Tensor:
    """Return features as float32 on their device; None: unchanged."""
    if scales is None:
        return stored
    values = stored.to(torch.float32)
    if scales.numel():
        scale, offset = scales.to(values.device)
        # in place: `stored.to` made a copy already
        values.mul_(scale).add_(offset)
    return values


def check_feature_dtype(
    feature_dtype: FeatureDtype | None, features: Mapping[NodeType, Any]
) -> dict[NodeType, str]:
    """Return the stored type of features by node type; types without an entry are unchanged.

    Raises:
        ConfigError: A type has no features, or a dtype is not one of `DTYPES`.
    """
    if feature_dtype is None:
        return {}
    if not isinstance(feature_dtype, Mapping):
        # only types with features
        feature_dtype = dict.fromkeys(features, feature_dtype)
    chosen = {
        node_type: str(dtype).removeprefix("torch.") for node_type, dtype in feature_dtype.items()
    }
    for node_type, dtype in chosen.items():
        if node_type not in features:
            known = [name for name in features if name != DEFAULT_HOMOGENEOUS_NODE_TYPE]
            raise ConfigError(
                f"feature_dtype names {node_type!r}, of which there are no features; "
                + (f"there are of {known}" if known else "give one name, such as 'int8'")
            )
        if dtype not in DTYPES:
            raise ConfigError(f"feature_dtype must be one of {DTYPES}, got {dtype!r}")
    return chosen


Kind = Literal["node_features", "node_labels", "edge_features", "node_attributes"]
RowsOf = NodeType | EdgeType | tuple[NodeType, str]
"""Name of a matrix: its type; of an attribute, the node type and the attribute."""


def type_of_ids(kind: Kind, name: RowsOf) -> NodeType | EdgeType:
    """Return the type of the ids by which a matrix is looked up."""
    return cast("NodeType | EdgeType", name[0] if kind == "node_attributes" else name)


class RowLookup:
    """Reads matrices whose rows are spread over all partitions. All ranks have to call together.

    Args:
        view: This rank's partition.
        exchange: The ranks, which hold all partitions.
    """

    def __init__(self, view: PartitionView, exchange: RankExchange) -> None:
        self._view, self._exchange = view, exchange
        whole = [
            f"{kind} {name}"
            for kind in get_args(Kind)
            for name, rows in getattr(view, kind).items()
            if rows.whole
        ]
        # once, when all ranks are here anyway: the owners of matrices do not change
        everyone = exchange.gather((view.partition_idx, whole), tuple[int, list[str]])
        # all ranks answer, or none: a rank with all rows of a small type must not stay away
        self._whole = set.intersection(*(set(names) for _, names in everyone))
        # ranks with the same partition share the requests to it
        holders = holders_of(view.num_partitions, [part for part, _ in everyone])
        self._rank_of = torch.tensor([r[exchange.rank % len(r)] for r in holders], device="cpu")

    def rows(self, kind: Kind, name: RowsOf, ids: Tensor) -> Tensor:
        """Return the rows of ``ids``, in their order; quantised features as float32. Collective.

        Args:
            kind: Which matrices.
            name: The type, or of an attribute the node type and its name.
            ids: ``[n]`` int64, global; repeats allowed.

        Raises:
            ConfigError: There is no such matrix, or an id is out of range.
            PeerError: The process group broke.
        """
        rows: Any = getattr(self._view, kind).get(name)
        if rows is None:
            raise ConfigError(f"the dataset has no {kind.replace('_', ' ')} of {name!r}")
        books: Any = self._view.edge_books if kind == "edge_features" else self._view.node_books
        of_ids = type_of_ids(kind, name)
        book = books.get(of_ids)
        check_ids(ids, of_ids, self._num_ids(of_ids, rows) if book is None else book.num_ids)
        if book is None or f"{kind} {name}" in self._whole or self._exchange.size == 1:
            return widened(_take(rows, ids, of_ids), rows.scales)
        asked = RowsFromRanks(self._exchange, ids, self._rank_of[book.owner(ids)])
        received = asked.answers(_take(rows, asked.theirs))
        out = received.new_empty((ids.numel(), *received.shape[1:]))
        mine = torch.from_numpy(asked.mine)
        out[mine] = _take(rows, ids[mine])
        out[torch.from_numpy(asked.others)] = received
        # after the exchange, which then sends one or two bytes per number, not four
        return widened(out, rows.scales)

    def rows_later(self, kind: Kind, name: RowsOf, ids: Tensor) -> "torch.futures.Future[Tensor]":
        """Return the result of `rows`, available at once, as ranks call at the same time."""
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(self.rows(kind, name, ids))
        return future

    def type_of(self, kind: Kind, given: Any) -> Any:
        """Return the type: ``given``, or the only one with such rows."""
        known = getattr(self._view, kind)
        if given is None and len(known) != 1:
            raise ConfigError(f"name the type of the ids: one of {sorted(known)}")
        return next(iter(known)) if given is None else given

    def _num_ids(self, name: NodeType | EdgeType, rows: Rows) -> int:
        """Return one past the highest id of a type without a book: there is one partition."""
        counts: Any = self._view.num_nodes
        return int(counts[name]) if name in counts else num_ids_of(rows)


def num_ids_of(rows: Rows[Any]) -> int:
    """Return the number of ids of a matrix, if all of them are here."""
    if rows.index is None and rows.ids is not None:  # ascending
        return int(rows.ids[-1]) + 1 if len(rows.ids) else 0
    return rows.first + len(rows.values if rows.index is None else rows.index)


def check_ids(ids: Tensor, name: NodeType | EdgeType, count: int | None) -> None:
    """Raise `ConfigError` unless ``ids`` are ``[n]`` int64 ids of existing nodes or edges.

    Args:
        ids: Global ids.
        name: Their type, for the error.
        count: The number of ids; None: unknown.
    """
    if ids.dim() != 1 or ids.dtype != torch.int64:
        raise ConfigError(f"ids must be 1-D int64, got {tuple(ids.shape)} {ids.dtype}")
    if not ids.numel():
        return
    # here, before anything is sent: at the owner, another rank would get the error
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or (count is not None and most >= count):
        end = "the number of ids" if count is None else count
        raise ConfigError(f"ids of {name!r} must be in [0, {end}), got {least} to {most}")


def _take(rows: Any, ids: Tensor, name: NodeType | EdgeType | None = None) -> Tensor:
    """Return the rows of ``ids``; ``name``: their type; if given, ids without a row are refused."""
    positions: Tensor = rows.locate(ids)
    if name is not None and bool((positions < 0).any()):
        lost = ids[positions < 0]
        raise ConfigError(f"{lost.numel()} of the ids of {name!r} have no row: {int(lost[0])}...")
    taken: Tensor = rows.values[positions]
    return taken


class OfPartition(Protocol):
    """A dataset whose look-ups are collective, as ``DistDataset``."""

    def view(self) -> PartitionView[Tensor]:
        """Return the rows that this process has."""


class OfGraphStore(Protocol):
    """A dataset whose look-ups are requests, as ``RemoteDistDataset``."""

    @property
    def lookup(self) -> Any:
        """Sends the requests; see ``StoreLookup``."""


class DistFeature:
    """Features, or another matrix, of all partitions; GLT's name for it.

    Over a ``DistDataset`` every look-up is collective: all ranks make it, each with its own ids, or
    with none. Over a ``RemoteDistDataset`` each process sends requests to the storage servers at
    any time.

    Args:
        dataset: A ``DistDataset`` of ours, or a ``RemoteDistDataset``.
        kind: ``"node_features"``, ``"node_labels"``, ``"edge_features"`` or ``"node_attributes"``.
        group: Process group of the ranks; None: the default one, or a single process. Not for a
            ``RemoteDistDataset``.
    """

    def __init__(
        self,
        dataset: OfPartition | OfGraphStore,
        kind: Kind = "node_features",
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if kind not in get_args(Kind):
            raise ConfigError(f"kind must be one of {get_args(Kind)}, got {kind!r}")
        self._kind: Kind = kind
        self._lookup: Any = getattr(dataset, "lookup", None)  # of a graph store
        if self._lookup is None:
            exchange = RankExchange(group, f"{kind} were looked up")
            self._lookup = RowLookup(cast("OfPartition", dataset).view(), exchange)

    def get(self, ids: Tensor, input_type: RowsOf | None = None) -> Tensor:
        """Return the rows of ``ids``, in their order. Collective, except over a graph store.

        Args:
            ids: ``[n]`` int64, global; repeats allowed.
            input_type: Node or edge type, or of an attribute ``(node type, name)``; None if there
                is one.

        Raises:
            ConfigError: There is no such matrix or id, or the type is missing. All ranks need valid
                arguments: otherwise the others wait for the failed one.
            PeerError: A rank ended, or a storage server.
        """
        name = self._lookup.type_of(self._kind, input_type)
        rows: Tensor = self._lookup.rows(self._kind, name, ids)
        return rows

    def __getitem__(self, ids: Tensor | tuple[NodeType | EdgeType, Tensor]) -> Tensor:
        return self.get(ids[1], ids[0]) if isinstance(ids, tuple) else self.get(ids)

    def async_get(
        self, ids: Tensor, input_type: RowsOf | None = None
    ) -> "torch.futures.Future[Tensor]":
        """Return the result of `get` as a future, as GLT does.

        Over a graph store the caller goes on while the response arrives. Over a ``DistDataset`` the
        result is complete on return: a collective needs all ranks at the same time.
        """
        name = self._lookup.type_of(self._kind, input_type)
        return cast("torch.futures.Future[Tensor]", self._lookup.rows_later(self._kind, name, ids))
