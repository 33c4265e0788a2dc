"""Rows of mixed types in a table of nodes, whose columns `databases.encode` has written."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np

from gigl_loader.dataset.partition.frames import FrameColumns, FrameGroup, attributes_of
from gigl_loader.partitioning.tables.spec import NodeTable
from gigl_loader.runtime.memory.segments import Array

NO_TIME = -(2**63)
"""A missing timestamp in a column of seconds."""
PADDED = ("multicategorical", "sequence_numerical")
"""Kinds whose cells have several values, as many in the file as the longest has."""


@dataclass(frozen=True)
class FrameNodes(NodeTable):
    """Nodes of one type, with rows of mixed types."""

    _: KW_ONLY
    frame: FrameColumns = ()


class StoredRows(NamedTuple):
    """An attribute of a frame, and the columns of the file that it is made of."""

    name: str
    columns: list[str]
    dtype: str
    width: int
    are_times: bool = False
    """Whether columns have seconds, each of which becomes 7 numbers."""


def stored_rows(group: FrameGroup) -> Iterator[StoredRows]:
    """Yield the attributes with the columns of a kind."""
    kind, width = group.kind, sum(group.widths)
    dtypes = {"timestamp": "int16", "categorical": "int32", "multicategorical": "int32"}
    numbered = [f"{kind}-{i}" for i in range(len(group.columns))]
    columns = [kind] if kind in (*PADDED, "embedding") else numbered
    dtype = dtypes.get(kind, "float32")
    name, *of_lengths = attributes_of((group,))
    yield StoredRows(name, columns, dtype, width, kind == "timestamp")
    for name in of_lengths:
        lengths = [f"{numbered_name}-length" for numbered_name in numbered]
        yield StoredRows(name, lengths, "int32", len(lengths))


def stamp_parts(seconds: Array) -> Array:
    """Return ``[n, 7]`` int64: year, month - 1, day - 1, weekday, hour, minute, second.

    Args:
        seconds: ``[n]`` int64, since 1970; `NO_TIME` gives seven times -1.
    """
    parts: Array = np.empty((len(seconds), 7), np.int64)
    missing = seconds == NO_TIME
    days, rest = np.divmod(np.where(missing, 0, seconds), 86_400)
    dates: Any = days.astype("M8[D]")
    months = dates.astype("M8[M]")
    parts[:, 0], parts[:, 1] = np.divmod(months.astype(np.int64), 12)
    parts[:, 0] += 1970
    parts[:, 2] = (dates - months.astype("M8[D]")).astype(np.int64)
    parts[:, 3] = (days + 3) % 7  # 1970 began on a Thursday
    parts[:, 4], rest = np.divmod(rest, 3_600)
    parts[:, 5], parts[:, 6] = np.divmod(rest, 60)
    parts[missing] = -1
    return parts
