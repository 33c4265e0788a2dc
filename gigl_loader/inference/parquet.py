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


def write_parquet(path: Path, ids: Tensor, rows: Tensor, batch_size: int) -> None:
    """Write ``rows`` (``[n, width]``) under ``ids``, ``batch_size`` rows at a time.

    The file appears under its name when it is complete.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    half = path.with_suffix(".parquet.half")
    values: Any = pa.from_numpy_dtype(rows.numpy().dtype)
    schema = pa.schema({"id": pa.int64(), "embedding": pa.list_(values, rows.shape[1])})
    with pq.ParquetWriter(half, schema) as writer:
        for start in range(0, len(ids), batch_size):
            part = slice(start, start + batch_size)
            flat = pa.array(rows[part].reshape(-1).numpy())
            lists = pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
            columns = [pa.array(ids[part].numpy()), lists]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    os.replace(half, path)
