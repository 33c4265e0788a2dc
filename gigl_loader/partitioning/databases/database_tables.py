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
from msgspec.structs import asdict

from gigl_loader.dataset.column_stats import DATABASE_FILE
from gigl_loader.dataset.schema import EdgeType
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.databases.encode import Embed, EncodedTable, check_keys, encode_table
from gigl_loader.partitioning.databases.source import MANIFEST, Database, as_arrow
from gigl_loader.partitioning.partition_tables import digest_of_table
from gigl_loader.partitioning.tables.spec import (
    EdgeTable,
    FrameNodes,
    NodeTable,
    TableGraph,
    read_graph,
)
from gigl_loader.partitioning.tables.table_files import stamp
from gigl_loader.runtime.decoding import analysed

_log = logging.getLogger(__name__)


def digest_of_source(source: Any, table: str = "") -> Any:
    """Return what changes with the rows of a source: sizes and times of files, or digests.

    With the name of a table, the source is that table.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source).absolute()
        files = [path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}.wal")]
        if path.is_dir():
            files = [path / MANIFEST, *sorted((path / "db").glob("*.parquet"))]
        return [[str(file), *stamp(str(file))] for file in files]
    if table:
        return digest_of_table(as_arrow(table, source))
    if isinstance(source, Mapping):
        return [[table, digest_of_source(value, table)] for table, value in source.items()]
    return None  # refused where it is opened


def check_kinds(database: Database, kinds: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that kinds are chosen for columns that are features.

    Raises:
        ConfigError: There is no such table or column, or it is a key.
    """
    features = {
        (table, column)
        for table, keys in database.tables.items()
        for column in database.columns[table].keys() - {keys.pkey, *keys.fkeys}
    }
    if unknown := [(t, c) for t, of in kinds.items() for c in of if (t, c) not in features]:
        raise ConfigError(
            f"kinds name {unknown[:5]}, which are no columns, or keys: there are {sorted(features)}"
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
    as_text = job.step("keys", lambda: check_keys(job, database, drop=drop))
    nodes: dict[str, NodeTable] = {}
    edges: dict[EdgeType, EdgeTable] = {}
    stats, left_out = {}, dict[str, list[str]]()
    for number, (table, keys) in enumerate(database.tables.items()):
        path, chosen = job.folder / "tables" / str(number) / "rows.parquet", kinds.get(table, {})
        given = (job, database, table, as_text, chosen, before, embed, path)
        made = job.step(f"rows/{number}", partial(encode_table, *given))
        rows = msgspec.convert(made, analysed(EncodedTable))
        stats[table] = rows.stats
        for reason, names in rows.left_out.items():
            left_out.setdefault(reason, []).extend(f"{table}.{name}" for name in names)
        time = "time" if keys.time_col else None
        nodes[table] = FrameNodes(str(path), time=time, frame=rows.frame)
        for i, (column, parent) in enumerate(keys.fkeys.items()):
            name = f"key-{i}"
            edges[table, f"f2p_{column}", parent] = EdgeTable(str(path), src="id", dst=name)
            edges[parent, f"rev_f2p_{column}", table] = EdgeTable(str(path), src=name, dst="id")
    for reason, names in left_out.items():
        _log.warning("columns left out (%s): %s", reason, ", ".join(names))
    described = {
        "version": 1,
        "source": database.source,
        "files": None if database.source is None else digest_of_source(database.source),
        "tables": {table: asdict(keys) for table, keys in database.tables.items()},
        "val_timestamp": database.val_timestamp,
        "test_timestamp": database.test_timestamp,
        "upto": database.cut,
        "col_stats": stats,
    }
    files = {DATABASE_FILE: json.dumps(described, indent=1)}
    return replace(read_graph(nodes, edges), files=files, database=digest)
