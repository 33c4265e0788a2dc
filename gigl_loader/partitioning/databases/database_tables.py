"""The tables of a database as `partition_tables` takes them, and what is written beside them."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from gigl_loader.dataset.column_stats import DATABASE_FILE
from gigl_loader.dataset.schema import EdgeType
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.databases.encode import (
    Embed,
    EncodedTable,
    KeyFacts,
    check_keys,
    encode_table,
)
from gigl_loader.partitioning.databases.schema_picture import draw_schema
from gigl_loader.partitioning.databases.source import MANIFEST, Database, as_arrow
from gigl_loader.partitioning.partition_tables import digest_of_table
from gigl_loader.partitioning.tables.frame_rows import FrameNodes
from gigl_loader.partitioning.tables.spec import EdgeTable, NodeTable, TableGraph, read_graph
from gigl_loader.partitioning.tables.table_files import stamp
from gigl_loader.runtime.decoding import analysed

_PICTURE = "schema.svg"
_log = logging.getLogger(__name__)


def digest_of_source(source: Any) -> Any:
    """Return what changes with the rows of a source: sizes and times of files, or digests."""
    if isinstance(source, Mapping):
        return [
            [
                table,
                digest_of_source(value)
                if isinstance(value, str | os.PathLike)
                else digest_of_table(as_arrow(table, value)),
            ]
            for table, value in source.items()
        ]
    if not isinstance(source, str | os.PathLike):
        return None  # refused where it is opened
    path = Path(source).absolute()
    files = [path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}.wal")]
    if path.is_dir():
        files = [path / MANIFEST, *sorted((path / "db").glob("*.parquet"))]
    return [[str(file), *stamp(str(file))] for file in files]


def check_kinds(database: Database, kinds: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that kinds are chosen for columns that are features.

    Raises:
        ConfigError: There is no such table or column, or it is a key.
    """
    for table, of_table in kinds.items():
        if table not in database.tables:
            raise ConfigError(
                f"kinds name table {table!r}, and there are {sorted(database.tables)}"
            )
        keys = database.tables[table]
        features = sorted({*database.columns[table]} - {keys.pkey, *keys.fkeys})
        if unknown := sorted(set(of_table) - set(features)):
            raise ConfigError(
                f"kinds of table {table!r} name {unknown}, which are no columns, or keys: there "
                f"are {features}"
            )


def tables_of(
    job: Any,
    database: Database,
    kinds: Mapping[str, Mapping[str, Any]],
    before: int | None,
    embed: Embed | None,
    digest: str,
    *,
    drop: bool,
) -> TableGraph:
    """Check the keys, write the rows, and return the tables of them.

    Args:
        job: The run.
        database: The database, with its cut.
        kinds: Kinds that the caller chose.
        before: See `encode_table`.
        embed: See there.
        digest: Of all that was asked for.
        drop: See `check_keys`.
    """
    # All keys before all rows: an error should not wait for them.
    checked = job.step("keys", lambda: check_keys(job, database, drop=drop))
    facts = {table: KeyFacts(**of_table) for table, of_table in checked.items()}
    encoded: dict[str, EncodedTable] = {}
    for number, table in enumerate(database.tables):
        folder, chosen = job.folder / "tables" / str(number), kinds.get(table, {})
        given = (job, database, table, facts, chosen, before, embed, folder)
        made = job.step(f"rows/{number}", partial(encode_table, *given))
        encoded[table] = msgspec.convert(made, analysed(EncodedTable))
    left_out: dict[str, list[str]] = {}
    for table, rows in encoded.items():
        for reason, names in rows.left_out.items():
            left_out.setdefault(reason, []).extend(f"{table}.{name}" for name in names)
    for reason, names in left_out.items():
        _log.warning("columns left out (%s): %s", reason, ", ".join(names))
    nodes: dict[str, NodeTable] = {}
    edges: dict[EdgeType, EdgeTable] = {}
    for table, keys in database.tables.items():
        rows, time = encoded[table], "time" if keys.time_col else None
        nodes[table] = FrameNodes(rows.path, time=time, frame=rows.frame)
        for column, parent in keys.fkeys.items():
            path, name = rows.edges[column]
            edges[table, f"f2p_{column}", parent] = EdgeTable(path, src="id", dst=name)
            edges[parent, f"rev_f2p_{column}", table] = EdgeTable(path, src=name, dst="id")
    described = {
        "version": 1,
        "source": database.source,
        "files": None if database.source is None else digest_of_source(database.source),
        "tables": {table: vars(keys) for table, keys in database.tables.items()},
        "val_timestamp": database.val_timestamp,
        "test_timestamp": database.test_timestamp,
        "upto": database.cut,
        "col_stats": {table: rows.stats for table, rows in encoded.items()},
    }
    picture = draw_schema(database, {table: rows.rows for table, rows in encoded.items()})
    files = {DATABASE_FILE: json.dumps(described, indent=1), _PICTURE: picture}
    return replace(read_graph(nodes, edges), files=files, database=digest)
