"""Rows of mixed types: the columns of PyTorch Frame's ``TensorFrame`` as plain arrays, and back.

They are attributes of nodes or edges, `frame_attribute`, and travel as all attributes do: processes
without PyTorch Frame, and without torch, hand them on. The first three kinds ("stypes") are one,
``[n, bytes]`` uint8 with the kinds of a row side by side: a row is read in one place, not in three.

| kind | stored | in a ``TensorFrame`` |
| --- | --- | --- |
| numerical | ``[n, c]``, as given (float32); missing NaN | the same |
| categorical | ``[n, c]`` int32; missing -1 | int64 |
| timestamp | ``[n, 7 c]`` int16; missing seven times -1 | ``[n, c, 7]`` int64 |
| embedding | ``[n, sum d]``, as given (float32) | ``MultiEmbeddingTensor`` |
| multicategorical | ``[n, c w]`` int32; and the lengths of cells | ``MultiNestedTensor``, int64 |
| sequence_numerical | ``[n, c w]``, as given; and the lengths | ``MultiNestedTensor`` |

Integers are int64 if one of them does not fit. ``w`` is the length of the longest cell.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.errors import ConfigError
from gigl_loader.runtime.memory.segments import Array, storage_dtype

if TYPE_CHECKING:  # workers read this module and do without torch
    from torch import Tensor

FRAME = "tf"
"""The attribute of a graph and of a batch, as RelBench and PyG name it."""
MOST_VALUES = 256
"""Values in a cell of a column of varying length."""
PADDED = ("multicategorical", "sequence_numerical")
"""Kinds of varying length: a cell has as many stored numbers as the longest."""
_SIDE_BY_SIDE = ("numerical", "categorical", "timestamp")
"""Kinds that are one attribute."""
STORED = {"categorical": "int32", "timestamp": "int16", "multicategorical": "int32"}
"""Types of stored integers, by kind."""
_WORD = 8
"""Bytes by which rows are copied: longer ones are whole words."""
NO_TIME = -(2**63)
"""A missing timestamp among seconds."""
_PREFIX = "tf-"
_WAYS_OUT = {
    "text_tokenized": "give the texts as text_embedded, or tokenize them in the training loop",
    **dict.fromkeys(("text_embedded", "image_embedded"), "materialize with an embedder"),
}


@dataclass(frozen=True, repr=False)
class FrameGroup:
    """The columns of one kind of a ``TensorFrame``."""

    kind: str
    """The name of its ``stype``."""
    columns: tuple[str, ...]
    """Names, in the order of the ``TensorFrame``."""
    widths: tuple[int, ...]
    """Stored numbers of each column: 1; 7 of a time; d of an embedding; w of varying length."""
    dtype: str = ""
    """Type of the stored numbers."""

    def __post_init__(self) -> None:
        try:
            storage_dtype(self.dtype)
        except TypeError as error:
            raise ValueError(
                f"{self} has the type {self.dtype!r}: other versions write rows of mixed types in "
                "another form, so partition the graph again"
            ) from error

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(self.columns)})"


FrameColumns = tuple[FrameGroup, ...]
"""The columns of a ``TensorFrame``, in its order of kinds."""
Frames = dict[str, FrameColumns]
"""By node type, and by the text of an edge type."""


def frame_attribute(kind: str) -> str:
    """Return the name of the attribute with the columns of a kind; no user's has such a name."""
    return _PREFIX + ("rows" if kind in _SIDE_BY_SIDE else kind)


def attributes_of(columns: FrameColumns) -> list[str]:
    """Return the names of the attributes that hold rows with these columns."""
    kinds = [group.kind for group in columns]
    lengths = [lengths_attribute(kind) for kind in kinds if kind in PADDED]
    return [*dict.fromkeys(map(frame_attribute, kinds)), *lengths]


@lru_cache(maxsize=256)
def places_in_row(columns: FrameColumns) -> tuple[dict[str, slice], int]:
    """Return the place of each kind in a row of those that are side by side, and a row's bytes.

    ``rows.view(dtype)[:, place]`` are the columns of a kind, of numpy's arrays and of torch's: the
    widest numbers come first, so that all are aligned, and kinds of one width in their order.
    """
    places, end = dict[str, slice](), 0
    sizes = {g: storage_dtype(g.dtype).itemsize for g in columns if g.kind in _SIDE_BY_SIDE}
    for group in sorted(sizes, key=lambda group: -sizes[group]):
        start, end = end, end + sizes[group] * sum(group.widths)
        places[group.kind] = slice(start // sizes[group], end // sizes[group])
    word = max([*sizes.values(), _WORD if end > _WORD else 1])
    return places, -(-end // word) * word


def is_of_frame(attribute: str) -> bool:
    """Return whether an attribute is a part of a ``TensorFrame``."""
    return attribute.startswith(_PREFIX)


def as_json(frames: Mapping[str, FrameColumns]) -> dict[str, Any]:
    """Return descriptions as an entry of a manifest; none, so that others stay the same."""
    found = {name: [asdict(group) for group in columns] for name, columns in frames.items()}
    return {"frames": found} if found else {}


# --- to arrays ------------------------------------------------------------------------------------


def is_frame(value: Any) -> bool:
    """Return whether ``value`` is a ``TensorFrame``; nothing is imported for it."""
    torch_frame = sys.modules.get("torch_frame")
    return torch_frame is not None and isinstance(value, torch_frame.TensorFrame)


def as_columns(frame: Any, where: str) -> "tuple[FrameColumns, dict[str, Tensor]]":
    """Return the columns of a ``TensorFrame``, and by attribute the arrays of its rows, on the CPU.

    Args:
        frame: ``[n]`` rows.
        where: Its name in errors.

    Raises:
        ConfigError: A column is of a kind that cannot travel, or a cell has too many values.
    """
    import torch

    groups: list[FrameGroup] = []
    arrays: dict[str, Tensor] = {}
    of_kinds: dict[str, Tensor] = {}
    for stype, values in frame.feat_dict.items():
        kind, names = str(stype.value), tuple(map(str, frame.col_names_dict[stype]))
        width = {"numerical": 1, "categorical": 1, "timestamp": 7}.get(kind)
        widths = (width or 0,) * len(names)
        if width and not hasattr(values, "offset") and values[:0].flatten(1).size(1) == sum(widths):
            rows = values.flatten(1)
        elif kind == "embedding" and hasattr(values, "offset"):
            widths = tuple(values.offset.diff().tolist())
            rows = values.values.reshape(len(values), sum(widths))  # without rows it may be 1-D
        elif kind in PADDED and hasattr(values, "offset"):
            lengths = values.offset.diff().view(len(values), len(names))
            width = _longest(lengths, names, f"{where}, {kind}")
            arrays[lengths_attribute(kind)], widths = lengths.cpu().int(), (width,) * len(names)
            rows = _padded(values.values, lengths, width)
        else:
            raise ConfigError(
                f"{where}: columns {list(names)} are {kind} (as {type(values).__name__}), which "
                f"batches cannot carry: {_WAYS_OUT.get(kind, 'leave them out of col_to_stype')}"
            )
        of_kinds[kind] = rows = _narrowed(rows.detach().cpu(), STORED.get(kind))
        groups.append(FrameGroup(kind, names, widths, str(rows.dtype).removeprefix("torch.")))
    columns = tuple(groups)
    places, nbytes = places_in_row(columns)
    if places:
        whole = torch.zeros(len(frame), nbytes, dtype=torch.uint8, device="cpu")
        for kind, place in places.items():
            rows = of_kinds.pop(kind)
            whole.view(rows.dtype)[:, place] = rows
        arrays[frame_attribute(next(iter(places)))] = whole
    return columns, arrays | {frame_attribute(kind): rows for kind, rows in of_kinds.items()}


def lengths_attribute(kind: str) -> str:
    """Return the name of the attribute with the lengths of cells, ``[n, c]`` int32."""
    return frame_attribute(f"{kind}-lengths")


def _longest(lengths: "Tensor", names: tuple[str, ...], where: str) -> int:
    """Return the length of the longest cell, 1 at least."""
    longest, at = lengths.max(0).values.max(0) if lengths.numel() else (1, 0)
    if longest > MOST_VALUES:
        raise ConfigError(
            f"{where}: column {names[int(at)]!r} has a cell with {int(longest)} values, and "
            f"batches carry {MOST_VALUES} at most: cut the lists, or make an embedding of them"
        )
    return max(int(longest), 1)


def _is_value(lengths: "Tensor", width: int) -> "Tensor":
    """Return ``[n * c, width]`` bool: the places of padded cells that have a value."""
    import torch

    return torch.arange(width, device=lengths.device) < lengths.reshape(-1, 1)


def _padded(values: "Tensor", lengths: "Tensor", width: int) -> "Tensor":
    """Return ``[n, c * width]``: the values of each cell, and zeros behind them."""
    padded = values.new_zeros(lengths.numel(), width)
    padded[_is_value(lengths, width)] = values
    return padded.view(lengths.size(0), lengths.size(1) * width)


def _narrowed(values: "Tensor", dtype: str | None) -> "Tensor":
    """Return integers as ``dtype`` if it holds all of them, else as int64; None: unchanged."""
    import torch

    if dtype is None:
        return values
    kind = getattr(torch, dtype)
    low, high = map(int, torch.aminmax(values)) if values.numel() else (0, 0)
    limits = torch.iinfo(kind)
    return values.to(kind if limits.min <= low and high <= limits.max else torch.int64)


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


# --- to a TensorFrame -----------------------------------------------------------------------------


def check_installed(frames: Iterable[str]) -> None:
    """Raise `ConfigError` if PyTorch Frame is needed, for rows of the given types, and missing."""
    types = sorted(frames)
    if not types:
        return
    try:
        import torch_frame  # noqa: F401  # in the training process alone: it takes a second
    except ImportError as error:
        raise ConfigError(
            f"the dataset has rows of mixed types (tf of {types}), and batches with these need "
            f'PyTorch Frame: run pip install "gigl_loader[relational]" ({error})'
        ) from error


def to_frame(columns: FrameColumns, arrays: "Mapping[str, Tensor]", num_rows: int) -> Any:
    """Return ``num_rows`` rows as a ``TensorFrame``; ``arrays``: on their device, by attribute.

    Nothing waits for a device, except for columns of varying length, whose values are counted.
    """
    makers, checked = _how_to_make(columns)
    feats = {stype: make(arrays, num_rows) for stype, make in makers.items()}
    frame = copy(checked)  # PyTorch Frame's checks take longer than most of the rest
    frame.feat_dict, frame._num_rows = feats, None if feats else num_rows
    frame.col_names_dict = {stype: list(names) for stype, names in checked.col_names_dict.items()}
    return frame


@lru_cache(maxsize=256)
def _how_to_make(columns: FrameColumns) -> tuple[dict[Any, Callable[..., Any]], Any]:
    """Return what makes the values of each ``stype``, and a ``TensorFrame`` without rows."""
    import torch
    import torch_frame

    makers: dict[Any, Callable[..., Any]] = {}
    feats, names = {}, {}
    places, _ = places_in_row(columns)
    for group in columns:
        stype = torch_frame.stype(group.kind)
        dtype = getattr(torch, group.dtype)
        makers[stype] = partial(_values_of, group, dtype, places.get(group.kind))
        names[stype] = list(group.columns)
        feats[stype] = torch.empty(0, len(names[stype]), device="cpu")
    return makers, torch_frame.TensorFrame(feats, names, num_rows=None if feats else 0)


def _values_of(
    group: FrameGroup,
    dtype: Any,
    place: slice | None,
    arrays: "Mapping[str, Tensor]",
    num_rows: int,
) -> Any:
    import torch

    stored, count = arrays[frame_attribute(group.kind)], len(group.columns)
    if place is not None:
        # by column, as models read them: row by row, a copy takes up to four times as long
        by_column = stored.view(dtype).t()[place]
        if group.kind in STORED:
            by_column = by_column.to(torch.int64, memory_format=torch.contiguous_format)
        stored = by_column.contiguous().t()
        return stored.view(num_rows, count, 7) if group.kind == "timestamp" else stored
    if group.kind == "embedding":
        values = copy(_no_vectors(group.widths, str(stored.device)))
        values.num_rows, values.values = num_rows, stored
        return values
    from torch_frame.data import MultiNestedTensor  # varying lengths

    lengths, width = arrays[lengths_attribute(group.kind)], group.widths[0]
    offset = stored.new_zeros(lengths.numel() + 1).long()
    offset[1:] = lengths.reshape(-1).cumsum(0)
    values = stored.view(-1, width)[_is_value(lengths, width)]
    values = values.long() if group.kind in STORED else values
    return MultiNestedTensor(num_rows, count, values, offset)


@lru_cache(maxsize=256)  # by columns and device: the same in each batch
def _no_vectors(widths: tuple[int, ...], device: str) -> Any:
    """Return a ``MultiEmbeddingTensor`` without rows; making one would wait for a device."""
    import torch
    from torch_frame.data import MultiEmbeddingTensor

    ends = torch.tensor((0, *widths), dtype=torch.int64, device="cpu").cumsum(0)
    none = torch.empty(0, sum(widths), device="cpu")
    return MultiEmbeddingTensor(0, len(widths), none, ends).to(device)
