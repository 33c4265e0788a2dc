"""The ids that nodes had in the tables they came from, kept beside the partitions.

A partition's nodes have their ids in order, so the way back is a look-up in an array; text is kept
as bytes one after the other, with offsets. The way there is a search through a Parquet file with
all pairs, ``ids/<type>.parquet``, block by block, for a batch of ids at a time.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigl_loader.dataset.mapped import Part, array_path, verify_file
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.memory.segments import Array, storage_dtype

PARQUET = "ids/{node_type}.parquet"
"""Where the pairs (``id``, ``node``) of a type are, ascending by ``node``."""


EDGE_ROWS = "edge_rows/{edge_type}/part{partition}.values"
"""Array with the row that each edge of a partition had in its table, in the order of edge ids."""


class OriginalIds:
    """The dictionary of one node type. Files are mapped when they are first asked.

    Or the rows of the edges of a type, which are kept in the same way, but for the way there.

    Args:
        root: The partition directory.
        node_type: The type.
        shared: The manifest of what all partitions share.
        bounds: ``[num_partitions]`` int64, where the ids of each partition end.
        folder: ``"ids"`` or ``"edge_rows"``.
    """

    def __init__(
        self, root: Path, node_type: str, shared: Part, bounds: Sequence[int],
        folder: str = "ids",
    ) -> None:  # fmt: skip
        self._root, self._node_type, self._shared = root, node_type, shared
        self._folder = folder
        self._ends = np.array(bounds, np.int64)
        self._starts = np.concatenate([[0], self._ends[:-1]]).astype(np.int64)
        self.is_text = self._name(0, "text") in shared.arrays
        self._mapped: dict[str, Array] = {}
        self._is_compared = False

    def __getstate__(self) -> dict[str, Any]:
        # a pickle of a mapped array would be the whole file
        return {**vars(self), "_mapped": {}}

    def _name(self, partition: int, what: str) -> str:
        return f"{self._folder}/{self._node_type}/part{partition}.{what}"

    def _array(self, partition: int, what: str) -> Array:
        name = self._name(partition, what)
        if name not in self._mapped:
            spec, path = self._shared.arrays[name], array_path(self._root, name)
            dtype = storage_dtype(spec.dtype)
            empty = spec.nbytes == 0  # mmap(2) refuses it; a partition may have none of a type
            self._mapped[name] = (
                np.empty(spec.shape, dtype) if empty else np.memmap(path, dtype, "r", 0, spec.shape)
            )
        return self._mapped[name]

    def to_original(self, ids: Array) -> Array:
        """Return the ids that nodes had in the tables.

        Args:
            ids: ``[n]`` int64, ids in the dataset, of any partition.

        Returns:
            ``[n]`` int64, or an array of `str` objects.

        Raises:
            ConfigError: There is no such node, or edge.
        """
        count = int(self._ends[-1])
        # numpy would take -1 for the last row, and search a partition that there is not
        if ids.size and not 0 <= ids.min() <= ids.max() < count:
            raise ConfigError(
                f"ids of {self._node_type!r} must be in [0, {count}), "
                f"got {ids.min()} to {ids.max()}"
            )
        found = np.empty(ids.shape, object if self.is_text else np.int64)
        owners = np.searchsorted(self._ends, ids, "right")
        # one read of each partition's file for all of its ids, not one for each id
        for partition in np.unique(owners):
            at = np.flatnonzero(owners == partition)
            rows = ids[at] - self._starts[partition]
            found[at] = self._take(int(partition), rows)
        return found

    def _take(self, partition: int, rows: Array) -> Any:
        if not self.is_text:
            return self._array(partition, "values")[rows]
        ends, text = self._array(partition, "ends"), self._array(partition, "text")
        # `ends` has no leading 0: row 0 begins where the text does
        return [
            bytes(text[ends[row - 1] if row else 0 : ends[row]]).decode() for row in rows.tolist()
        ]

    def from_original(self, values: Any) -> Array:
        """Return the ids in the dataset of nodes that are named as in the tables.

        Args:
            values: A sequence of `int` or `str`, or an array of them.

        Returns:
            ``[n]`` int64.

        Raises:
            ConfigError: One of them is not there.
        """
        pa, compute, parquet = _import_pyarrow()
        try:
            wanted = pa.array(values, pa.string() if self.is_text else pa.int64())
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise WrongTypeError(
                f"ids of {self._node_type!r} are {'text' if self.is_text else 'integers'} in the "
                f"tables: {error}"
            ) from error
        # each block is searched for `keys` by hash; repeated ids would be looked for again and
        # again
        keys = wanted.unique()
        nodes = np.full(len(keys), -1, np.int64)
        file = parquet.ParquetFile(self._pairs())
        # a block at a time: the dictionary of a large graph is larger than the memory of who asks
        for batch in file.iter_batches():
            positions = compute.index_in(batch.column("id"), keys)
            known = positions.is_valid().to_numpy(zero_copy_only=False)
            at = positions.drop_null().to_numpy()
            nodes[at] = batch.column("node").to_numpy()[known]
        missing = np.flatnonzero(nodes < 0)
        if missing.size:
            raise ConfigError(
                f"{missing.size} of these ids are no {self._node_type!r} of the tables, the first: "
                f"{keys[int(missing[0])].as_py()!r}"
            )
        # back from distinct ids to those asked for, in their order
        found: Array = nodes[compute.index_in(wanted, keys).to_numpy()]
        return found

    def _pairs(self) -> Path:
        """Return the file of all pairs, compared with its checksum once."""
        name = PARQUET.format(node_type=self._node_type)
        path, spec = self._root / name, self._shared.files.get(name)
        # here, where it is read whole: the comparison in the background may not have come to it
        if spec is not None and not self._is_compared:  # None: directories of the version before
            verify_file(path, spec)
            self._is_compared = True
        return path


def _import_pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.compute as compute
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ConfigError(
            'to look ids up needs pyarrow: run pip install "gigl_loader[tables]"'
        ) from error
    return pa, compute, parquet
