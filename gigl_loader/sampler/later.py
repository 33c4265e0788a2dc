"""Rows that a sampler asks for and that are read later: here, or where the batch is used.

A sampler does not notice: `gigl_loader.sampler.reader.GraphReader` hands out `LaterRows` where its
``peers`` are `LaterPeers`, and `gigl_loader.rowcache.pipeline` reads them. A batch may also travel
without its rows, with what says which rows these are::

    sampler --> n_id, x, y, edge_index --> rows_apart() --> n_id, edge_index, #ROWS
                                                            "x: rows n_id of the node features"

Whoever gets such a batch asks the owners for the rows that it does not have already.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigl_loader.errors import ProtocolError
from gigl_loader.memory.segments import Array, storage_dtype
from gigl_loader.message import EDGE, NODE, ROWS, ROWS_OF, Field
from gigl_loader.sampler.questions import (
    Drawn,
    DrawRequest,
    Peers,
    PendingAnswer,
    RowsAnswer,
    RowsRequest,
)


class LaterPeers:
    """``peers`` for a sampler whose rows are read later.

    Args:
        peers: Who answers questions; None: nobody has to be asked.
    """

    def __init__(self, peers: Peers | None) -> None:
        # None is allowed although a sampler without peers asks nobody: that it draws ahead shows by
        # the class of its peers alone.
        self._to_ask = peers

    @property
    def _peers(self) -> Peers:
        assert self._to_ask is not None, "what is not on this machine has peers to ask"
        return self._to_ask

    def draw(self, partition: int, request: DrawRequest) -> PendingAnswer[Drawn]:
        """Ask a worker of ``partition`` for neighbours."""
        return self._peers.draw(partition, request)

    def rows(self, partition: int, request: RowsRequest, out: Array) -> PendingAnswer[RowsAnswer]:
        """Ask a worker of ``partition`` for rows."""
        return self._peers.rows(partition, request, out)


@dataclass(frozen=True, eq=False)
class LaterRows:
    """Rows that a field is to have; stands where its ``write`` does."""

    kind: str
    name: Any
    ids: Array
    """``[n]`` int64, global ids; a copy, that nobody writes to."""
    split: dict[int, Array] | None
    """Positions by owner, as `GraphReader.split` returns them."""
    read: Callable[[Array], None]
    """Reads them now, for a sampler that draws by what they say, such as times."""

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
    kept = [one for one in fields if not isinstance(one.write, LaterRows)]
    by_key = {one.key: one for one in kept}
    known: dict[int, str] = {}
    described = []
    for one in fields:
        if isinstance(later := one.write, LaterRows):
            # Features, labels and attributes of a type are asked for by one array: its ids travel
            # once.
            if id(later.ids) not in known:
                known[id(later.ids)] = _key_of_ids(one.key, later, by_key, kept)
            # JSON has no tuples; nested ones become lists by themselves, and `_name` undoes both.
            name = list(later.name) if isinstance(later.name, tuple) else later.name
            described.append(
                [one.key, later.kind, name, known[id(later.ids)], one.dtype, one.shape[1:]]
            )
    order = [one.key for one in fields]
    text = json.dumps({"order": order, "rows": described}, separators=(",", ":"))
    # The order of all keys goes along: a batch must have them as if the rows had never been apart.
    return [*kept, Field.of(ROWS, np.frombuffer(text.encode(), np.uint8))]


def _key_of_ids(key: str, later: LaterRows, by_key: dict[str, Field], kept: list[Field]) -> str:
    """Return the key of a tensor that is ``later.ids``; it is added where there is none."""
    # As a rule the ids are in the batch already, as ``n_id`` or ``e_id`` of the same type. A
    # sampler of somebody's own may have others under that key, so the values decide.
    prefix = key.rpartition(".")[0]
    found = by_key.get(f"{prefix}.{part}" if prefix else part) if (part := _ids_of(later)) else None
    if found is not None and found.shape == later.ids.shape:
        ids = np.empty(found.shape, storage_dtype(found.dtype))
        found.write(ids)
        if np.array_equal(ids, later.ids):
            return found.key
    kept.append(Field.of(ROWS_OF + key, later.ids))
    return ROWS_OF + key


def _ids_of(later: LaterRows) -> str:
    return NODE if later.kind.startswith("node") else EDGE


def read_rows_apart(text: Array) -> tuple[list[str], list[RowsApart]]:
    """Return (keys of the whole batch in order, the rows it lacks) of what `ROWS` holds.

    Raises:
        ProtocolError: It is no such description.
    """
    try:
        told = json.loads(text.tobytes())
        rows = [
            RowsApart(key, kind, _name(name), ids, dtype, tuple(shape))
            for key, kind, name, ids, dtype, shape in told["rows"]
        ]
        return list(told["order"]), rows
    # What came from another machine may be any bytes: none of them may end the loader otherwise.
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolError(f"a batch without rows does not say which: {error}") from error


def _name(name: Any) -> Any:
    """Return a name as it was before it became JSON, where tuples are lists."""
    return tuple(_name(one) for one in name) if isinstance(name, list) else name
