"""Rows by global id, from any owner: split by owner, requested from the peers, put in place.

::

    ids --> split_by_owner() --> here: part_of() ------------------------> gather_rows() --> out
                             --> RequestedRows: peers.rows(owner, ids) --> parts() --^

Rows are gathered once at their owner, into the message, and placed once at the reader.

They may be read later: here, or where the batch is used. A sampler does not notice:
`sampler.rows.reader.GraphReader` hands out `LaterRows` if its ``peers`` say ``rows_later``, as
`LaterPeers` do, and `sampler.row_cache.pipeline` reads them. A batch may also travel without its
rows, with a description of these rows::

    sampler --> n_id, x, y, edge_index --> rows_apart() --> n_id, edge_index, #ROWS
                                                            "x: rows n_id of the node features"

The receiver of such a batch requests the rows that it does not have from their owners.

Features may be in a user's PyG ``FeatureStore``: `FeatureRows` queries it in batches, and keeps the
most recent rows.
"""

import importlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigl_loader.batch.message import EDGE, NODE, ROWS, ROWS_OF, Field
from gigl_loader.dataset.partition.partition_view import Book, PartitionView, Rows
from gigl_loader.dataset.schema import NodeType
from gigl_loader.errors import ConfigError, ProtocolError
from gigl_loader.runtime.memory import read_ahead
from gigl_loader.runtime.memory.segments import Array, storage_dtype
from gigl_loader.sampler.kernels import sampling_kernels as kernels
from gigl_loader.sampler.options import FeatureStoreOptions
from gigl_loader.sampler.plan import (
    Drawn,
    DrawRequest,
    Peers,
    PendingAnswer,
    RowPeers,
    RowsAnswer,
    RowsName,
    RowsRequest,
)

_NO_PLACES = np.empty(0, np.int64)
Part = tuple[Array, Array, Array | None]
"""Rows for `gather_rows`: (matrix, its rows, their positions in the output; None: all positions, in
order)."""

Split = dict[int, Array]
"""By partition or server that has the rows, the positions of its ids: int64, ascending."""


def split_by_owner(book: Book[Array], ids: Array, num_partitions: int) -> Split:
    """Return the positions of ``ids`` (``[n]`` int64) by the partition that owns them.

    Raises:
        ProtocolError: An id has no owner.
    """
    # neighbours from another machine may be any numbers: for ids past the end, ranges give an owner
    # past the last one, for which the kernel would count beyond ``sizes``
    if ids.size and not 0 <= ids.min() <= ids.max() < book.num_ids:
        raise ProtocolError(
            f"ids {ids.min()} to {ids.max()} were requested, where there are {book.num_ids}"
        )
    order, sizes = np.empty(ids.size, np.int64), np.empty(num_partitions, np.int64)
    kernels.group_by_owner(book.owner(ids), order, sizes)
    parts = np.split(order, np.cumsum(sizes)[:-1])
    return {p: part for p, part in enumerate(parts) if part.size}


class RequestedRows:
    """Rows of one matrix, each requested from its owner.

    All are requested before the first wait, so that several owners respond at the same time.

    Args:
        peers: Receivers of requests; None if there are no pieces.
        kind: Kind of the matrix.
        name: Name of the matrix.
        pieces: Owners and their ids.
        out: Memory for the rows, which peers write to: those of the first owner first.
    """

    def __init__(
        self,
        peers: RowPeers | None,
        kind: str,
        name: RowsName,
        pieces: Iterable[tuple[int, Array]],
        out: Array,
    ) -> None:
        self.rows, start = out, 0
        self._answers: list[PendingAnswer[RowsAnswer]] = []
        for owner, ids in pieces:
            assert peers is not None, "what is not on this machine has peers to ask"
            part = out[start : start + ids.size]
            self._answers.append(peers.rows(owner, RowsRequest.of(kind, name, ids), part))
            start += ids.size

    @property
    def has_come(self) -> bool:
        """Whether `wait` would return at once."""
        return all(answer.has_come for answer in self._answers)

    def wait(self) -> Array:
        """Return the rows of all owners; the peers must have written them to the given memory."""
        for answer in self._answers:
            answer.wait()
        return self.rows

    def parts(self, positions: Iterable[Array]) -> list[Part]:
        """Wait for all; return the rows of each owner, which go to its ``positions``."""
        # Parts of ``rows``, except for peers that read responses where they were received.
        answers = [answer.wait().values for answer in self._answers]
        return [(rows, np.arange(at.size), at) for rows, at in zip(answers, positions, strict=True)]


def located(rows: Rows[Array], ids: Array) -> Array:
    """Return the row of each of ``ids`` (``[n]`` int64); pages of the index are requested first.

    Raises:
        ProtocolError: The index has no place for one.
    """
    if rows.index is not None:
        at, end = rows.looked_up(ids), rows.index.size
        # -1 would be found at the end of the index, as the row of another id
        if at.size and not 0 <= at.min() <= at.max() < end:
            raise ProtocolError(
                f"rows of ids {ids.min()} to {ids.max()} were requested, where there are only "
                f"{rows.first} to {rows.first + end - 1}"
            )
        read_ahead.want(rows.index, at)
    positions: Array = rows.locate(ids)
    return positions


def part_of(rows: Rows[Array], ids: Array, at: Array | None = None) -> Part:
    """Return the rows of ``ids``, or of those at the positions ``at``, which they go to."""
    return rows.values, located(rows, ids if at is None else ids.take(at)), at


def gather_rows(parts: Sequence[Part], out: Array) -> None:
    """Write rows of matrices to ``out``.

    Args:
        parts: All matrices are contiguous and of one type and width; together they fill ``out``.
        out: ``[num_rows, ...]``, contiguous.

    Raises:
        ProtocolError: A matrix lacks such rows.
    """
    if out.size == 0:
        return
    row_bytes = out[0].nbytes
    addresses = np.empty(out.shape[0], np.int64)
    # The widest word that divides rows and all addresses: words have to be aligned.
    word_bytes = math.gcd(row_bytes, out.ctypes.data, 8)
    for values, rows, positions in parts:
        _check_alike(values, out)
        start = values.ctypes.data
        word_bytes = math.gcd(word_bytes, start)
        to = _NO_PLACES if positions is None else positions
        rows = np.ascontiguousarray(rows)
        wrong = kernels.row_addresses(rows, row_bytes, start, values.shape[0], to, addresses)
        if wrong >= 0:
            raise ProtocolError(
                f"row {rows[wrong]} of a matrix with {values.shape[0]} rows was requested"
            )
        read_ahead.want(values, rows)
    words = out.reshape(out.shape[0], -1).view(kernels.WORDS[word_bytes])
    kernels.copy_rows(addresses, words)


def _check_alike(values: Array, like: Array) -> None:
    """Check that rows can be read by address."""
    # The kernel gets only addresses: with a stride or another width it would read beside the rows.
    alike = values.dtype == like.dtype and values.shape[1:] == like.shape[1:]
    if not alike or not values.flags.c_contiguous:
        raise ProtocolError(
            f"rows of a {values.dtype} matrix {values.shape} were given for {like.dtype} "
            f"{like.shape}"
        )


class LaterPeers:
    """The same peers, for a sampler whose rows are read later.

    Args:
        peers: Receivers of requests; None if nothing has to be requested.
    """

    rows_later = True

    def __init__(self, peers: Peers | None) -> None:
        # None is allowed although a sampler without peers sends no requests: it may draw ahead all
        # the same.
        self._to_ask = peers

    @property
    def _peers(self) -> Peers:
        assert self._to_ask is not None, "what is not on this machine has peers to ask"
        return self._to_ask

    def draw(self, partition: int, request: DrawRequest) -> PendingAnswer[Drawn]:
        """Request neighbours from a worker of ``partition``."""
        return self._peers.draw(partition, request)

    def rows(self, partition: int, request: RowsRequest, out: Array) -> PendingAnswer[RowsAnswer]:
        """Request rows from a worker of ``partition``."""
        return self._peers.rows(partition, request, out)


@dataclass(frozen=True, eq=False)
class LaterRows:
    """Rows that a field will have; takes the place of its ``write``."""

    kind: str
    name: Any
    ids: Array
    """``[n]`` int64, global ids; a copy that is never written."""
    split: dict[int, Array] | None
    """Positions by owner, as `GraphReader.split` returns them."""
    read: Callable[[Array], None]
    """Reads them now, for a sampler whose draws depend on them, such as times."""

    def __call__(self, out: Array) -> None:
        """Write the rows to ``out``."""
        self.read(out)


@dataclass(frozen=True)
class RowsApart:
    """One tensor of rows that a batch lacks."""

    key: str
    """Key of the tensor in the message."""
    kind: str
    name: Any
    """Key of a matrix, its type; key of an attribute, type and name."""
    ids: str
    """Key of the tensor with the ids of the rows, ``[n]`` int64."""
    dtype: str
    shape: tuple[int, ...]
    """Shape of one row."""


def rows_apart(fields: Sequence[Field]) -> list[Field]:
    """Return the fields without rows that are read later, and one that describes these."""
    kept = [field for field in fields if not isinstance(field.write, LaterRows)]
    by_key = {field.key: field for field in kept}
    known: dict[int, str] = {}
    described = []
    for field in fields:
        if isinstance(later := field.write, LaterRows):
            # Features, labels and attributes of a type share one array of ids, which travels once.
            if id(later.ids) not in known:
                known[id(later.ids)] = _key_of_ids(field.key, later, by_key, kept)
            # JSON has no tuples; nested ones become lists anyway, and `_name` undoes both.
            name = list(later.name) if isinstance(later.name, tuple) else later.name
            described.append(
                [field.key, later.kind, name, known[id(later.ids)], field.dtype, field.shape[1:]]
            )
    order = [field.key for field in fields]
    text = json.dumps({"order": order, "rows": described}, separators=(",", ":"))
    # The order of all keys goes along: a batch must have them as if it had never lacked rows.
    return [*kept, Field.of(ROWS, np.frombuffer(text.encode(), np.uint8))]


def _key_of_ids(key: str, later: LaterRows, by_key: dict[str, Field], kept: list[Field]) -> str:
    """Return the key of a tensor equal to ``later.ids``; it is added if there is none."""
    # As a rule the ids are in the batch already, as ``n_id`` or ``e_id`` of the same type. A
    # custom sampler may have others under that key, so the values decide.
    prefix = key.rpartition(".")[0]
    field = by_key.get(f"{prefix}.{part}" if prefix else part) if (part := _ids_of(later)) else None
    if field is not None and field.shape == later.ids.shape:
        ids = np.empty(field.shape, storage_dtype(field.dtype))
        field.write(ids)
        if np.array_equal(ids, later.ids):
            return field.key
    kept.append(Field.of(ROWS_OF + key, later.ids))
    return ROWS_OF + key


def _ids_of(later: LaterRows) -> str:
    return NODE if later.kind.startswith("node") else EDGE


def read_rows_apart(text: Array) -> tuple[list[str], list[RowsApart]]:
    """Return (keys of the whole batch in order, the rows it lacks) from the contents of `ROWS`.

    Raises:
        ProtocolError: It is no such description.
    """
    try:
        description = json.loads(text.tobytes())
        rows = [
            RowsApart(key, kind, _name(name), ids, dtype, tuple(shape))
            for key, kind, name, ids, dtype, shape in description["rows"]
        ]
        return list(description["order"]), rows
    # Data of another machine may be any bytes: they must not end the loader in another way.
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolError(f"a batch without rows does not say which: {error}") from error


def _name(name: Any) -> Any:
    """Return a name as it was before JSON, which turns tuples into lists."""
    return tuple(_name(part) for part in name) if isinstance(name, list) else name


class RecentRows:
    """The most recently used rows, as many as fit; for one thread.

    Args:
        most: Rows to keep.
        like: ``[n, ...]``: array with the shape and type of rows.
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
        """Return the rows of ``ids`` (``[n]`` int64); ``ask`` gets those that are not here."""
        self._turn += 1
        # Each id once: no row is queried twice in a database, or kept twice.
        distinct, inverse = np.unique(ids, return_inverse=True)
        positions = np.array(
            [self._positions.get(row_id, -1) for row_id in distinct.tolist()], np.int64
        )
        known, missing = np.flatnonzero(positions >= 0), np.flatnonzero(positions < 0)
        # Copied out before anything is replaced: with more rows than fit, kept rows take the
        # positions of some that were found.
        unique_rows = np.empty((distinct.size, *self._rows.shape[1:]), self._rows.dtype)
        unique_rows[known] = self._rows[positions[known]]
        self._used[positions[known]] = self._turn
        if missing.size:
            unique_rows[missing] = ask(distinct[missing])
            self._keep(distinct[missing], unique_rows[missing])
        return unique_rows[inverse.reshape(-1)]

    def _keep(self, ids: Array, rows: Array) -> None:
        """Keep ``rows``, in place of the least recently used ones."""
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
    longer = np.zeros((size, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


class FeatureRows:
    """The features of all types in a user's store; opened by the sampling thread.

    Args:
        options: The store, and the types.
        view: The partition: its node types, and those with features of their own.

    Raises:
        ConfigError: The store returns something other than features.
    """

    def __init__(self, options: FeatureStoreOptions, view: PartitionView[Array]) -> None:
        module, _, name = options.class_path.rpartition(".")
        self._options = options
        self._reader = getattr(importlib.import_module(module), name)(**options.keywords)
        self._grouped = view.is_heterogeneous
        wanted = options.node_types or sorted(set(view.num_nodes) - set(view.node_features))
        self._rows: dict[NodeType, RecentRows] = {}
        for node_type in wanted:
            # One row is requested at the start: it gives shape and type of an empty batch.
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
        # Here: workers avoid torch unless a store is used, which works with its tensors.
        import torch

        group = node_type if self._grouped else None
        name = self._options.attr_name
        rows = self._reader.get_tensor(
            group_name=group, attr_name=name, index=torch.from_numpy(ids), convert_type=True
        )
        shape = None if rows is None else tuple(rows.shape)
        what = f"{self._options.class_path} gave, for {ids.size} rows of {name!r} of {node_type},"
        if rows is None or not shape or shape[0] != ids.size:
            raise ConfigError(f"{what} {'nothing' if shape is None else list(shape)}")
        # A store may return rows on a device, or parameters of a model.
        values: Array = rows.detach().cpu().numpy()
        if like is not None and (values.dtype, values.shape[1:]) != (like.dtype, like.shape[1:]):
            raise ConfigError(
                f"{what} {values.dtype} {list(values.shape)}, and before that rows of {like.dtype} "
                f"{list(like.shape[1:])}"
            )
        return values
