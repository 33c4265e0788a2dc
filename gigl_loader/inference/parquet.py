"""Embeddings as Parquet: the columns ``id`` (int64) and ``embedding`` (a list of fixed length)."""

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from gigl_loader.errors import ConfigError


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
        ids: ``[n]`` int64.
        batch_size: Rows of a row group, at most.
    """

    def __init__(self, path: Path, ids: Tensor, batch_size: int) -> None:
        self._path, self._ids, self._batch_size = path, ids, batch_size
        # a reader that looks for *.parquet never finds half a file, after a kill either
        self._half = path.with_suffix(".parquet.half")
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
            columns = [pa.array(self._ids[part].numpy()), lists]
            # each call is a row group of its own, so that no more than a chunk is held back in
            # memory
            self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
            self._written = part.stop

    def finish(self, rows: Tensor) -> None:
        """Write what is left and give the file its name."""
        # also where no chunk was left to compute: then all of the file is written here
        self.advance(rows, len(self._ids))
        self._writer.close()
        os.replace(self._half, self._path)

    def close(self) -> None:
        """Leave an unfinished file behind, under another name than it was to have."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, rows: Tensor) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # the width and the type are known with the first rows only
        if self._writer is None:
            values: Any = pa.from_numpy_dtype(rows.numpy().dtype)
            columns = {"id": pa.int64(), "embedding": pa.list_(values, rows.shape[1])}
            self._schema = pa.schema(columns)
            self._writer = pq.ParquetWriter(self._half, self._schema)
