"""Embeddings as Parquet: ``id``, ``node`` (int64) and ``embedding`` (a list of fixed length)."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from gigl_loader.errors import ConfigError

ToOriginal = Callable[[Tensor], Any]
"""Gives nodes (``[n]`` int64) the ids of their tables, as ``[n]`` array."""


def check_parquet() -> None:
    """Raise `ConfigError` where Parquet cannot be written."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            'format="parquet" needs pyarrow: pip install "gigl_loader[tables]"'
        ) from error


class ParquetRows:
    """Writes rows as they are computed; the file has its name when it is complete.

    Rows go in order. A run that goes on after a kill writes those that were computed before again,
    from the mapped file that keeps them: a Parquet file that was not closed cannot be read.

    Args:
        path: The file.
        draft: What it is called until it is complete.
        nodes: ``[n]`` int64.
        batch_size: Rows of a row group, at most.
        to_original: What ``id`` is; None: there is no such column.
    """

    def __init__(
        self, path: Path, draft: Path, nodes: Tensor, batch_size: int,
        to_original: ToOriginal | None,
    ) -> None:  # fmt: skip
        self._path, self._half, self._nodes, self._batch_size = path, draft, nodes, batch_size
        self._to_original = to_original
        self._writer: Any = None
        self._schema: Any = None
        self._written = 0

    def advance(self, rows: Tensor, stop: int) -> None:
        """Write the rows up to ``stop`` that were not yet written; ``rows`` is ``[n, width]``."""
        import pyarrow as pa

        self._open(rows)
        for start in range(self._written, stop, self._batch_size):
            part = slice(start, min(start + self._batch_size, stop))
            # one flat array and a fixed length: a list of lists would make a Python object of each
            # number
            flat = pa.array(rows[part].reshape(-1).numpy())
            lists = pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
            columns = [*self._ids(self._nodes[part]), pa.array(self._nodes[part].numpy()), lists]
            # each call is a row group of its own, so that no more than a chunk is held back in
            # memory
            self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
            self._written = part.stop

    def finish(self, rows: Tensor) -> None:
        """Write what is left and give the file its name."""
        # also where no chunk was left to compute: then all of the file is written here
        self.advance(rows, len(self._nodes))
        self._writer.close()
        os.replace(self._half, self._path)

    def close(self) -> None:
        """Leave an unfinished file behind, under another name than it was to have."""
        if self._writer is not None:
            self._writer.close()

    def _ids(self, nodes: Tensor) -> list[Any]:
        """Return the column of the tables' ids, if there is one."""
        import pyarrow as pa

        if self._to_original is None:
            return []
        found = self._to_original(nodes)
        # said: of no texts, the type could not be seen
        return [pa.array(found, pa.string() if found.dtype == object else pa.int64())]

    def _open(self, rows: Tensor) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # the width and the type are known with the first rows only
        if self._writer is None:
            values: Any = pa.from_numpy_dtype(rows.numpy().dtype)
            kinds = [("id", ids.type) for ids in self._ids(self._nodes[:0])]
            kinds += [("node", pa.int64()), ("embedding", pa.list_(values, rows.shape[1]))]
            self._schema = pa.schema(kinds)
            self._writer = pq.ParquetWriter(self._half, self._schema)
