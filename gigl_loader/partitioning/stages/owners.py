"""The owner of each node. The rules are here, never an engine's hash function."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numba
import numpy as np
import pyarrow as pa

from gigl_loader.dataset.identity import GAMMA, mixed
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.metis import communities_by_metis, cut_by_metis, import_metis
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages.edges_by_owner import EdgesByPartition
from gigl_loader.partitioning.tables.engine_sql import rows_of, to_read
from gigl_loader.partitioning.tables.spec import NodeTable
from gigl_loader.partitioning.tables.table_files import Table
from gigl_loader.runtime.memory.segments import Array

NEED_EDGES = ("ldg", "metis")
"""Methods that read edges before they place nodes."""

METIS_BYTES_AN_EDGE = 400
"""Measured: 3.8 GB for 10 million edges."""
LDG_PASSES = 3
"""Passes; each sorts and reads all edges, in both directions, once more."""
LDG_SLACK = 0.05
"""Allowed size of a partition above the mean. With none, the last nodes go to the partitions with
room, regardless of their neighbours."""


def write_owners_without_edges(
    method: str, table: Table, spec: NodeTable, num_partitions: int, seed: int, path: Path
) -> None:
    """Write the owner of each row of a table, by a method that needs no edges.

    Args:
        method: ``"contiguous"``, ``"random"`` or ``"column"``.
        table: Table of the nodes.
        spec: Its columns.
        num_partitions: Their number.
        seed: For ``"random"``.
        path: The file to write, of ``[rows]`` uint16.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        if method == "column":
            for owners in _column_owners(table, spec, num_partitions):
                file.write(owners.astype(np.uint16).data)
            return
        chunk = ResumableJob.sizes.numbers
        for start in range(0, table.num_rows, chunk):
            rows = np.arange(start, min(start + chunk, table.num_rows), dtype=np.uint64)
            if method == "contiguous":
                owners = contiguous_owner(rows, table.num_rows, num_partitions)
            else:
                owners = random_owner(rows, num_partitions, seed)
            file.write(owners.astype(np.uint16).data)


def contiguous_owner(rows: Array, num_rows: int, num_partitions: int) -> Array:
    """Return the owners of rows cut into equal runs, the first ones longer by one."""
    # `rows * num_partitions // num_rows` would be shorter, but differs from `partition_graph`.
    size, longer = divmod(num_rows, num_partitions)
    ends = np.cumsum([size + (k < longer) for k in range(num_partitions)])
    return cast("Array", np.searchsorted(ends, rows, "right"))


def random_owner(rows: Array, num_partitions: int, seed: int) -> Array:
    """Return a partition drawn for each row, independent of the other rows.

    Source:
        SplitMix64: see `mixed`, here of the row and the seed.
    """
    key = np.uint64((seed * int(GAMMA) + 0xD1B54A32D192ED03) % 2**64)
    z = mixed((rows.astype(np.uint64) + np.uint64(1)) * GAMMA ^ key)
    # The remainder favours low partitions by less than 1 in 10^16.
    return (z % np.uint64(num_partitions)).astype(np.int64)


def _column_owners(table: Table, spec: NodeTable, num_partitions: int) -> Iterator[Array]:
    if spec.partition is None:
        raise ConfigError(f'{table.where}: method="column" needs the column: give partition="..."')
    kind = str(table.type_of(spec.partition))
    if not kind.startswith(("int", "uint")):
        raise ConfigError(f"{table.where}: column {spec.partition!r} holds {kind}, not integers")
    for file in table.files:
        for row, batch in table.batches(file, [spec.partition]):
            given = batch.column(0)
            none = given.is_null().to_numpy(zero_copy_only=False)
            owners = given.fill_null(0).to_numpy(zero_copy_only=False)
            bad = np.flatnonzero(none | (owners < 0) | (owners >= num_partitions))
            if bad.size:
                table.refuse(
                    file,
                    spec.partition,
                    row + bad,
                    f"must hold partitions, 0 to {num_partitions - 1}",
                    given.take(pa.array(bad)).to_pylist(),
                )
            yield owners


# --- with edges -----------------------------------------------------------------------------------


def check_metis(num_edges: int, memory: int) -> Any:
    """Return METIS, if a graph of that size fits into memory.

    Raises:
        ConfigError: The graph does not fit, or METIS is not installed.
    """
    needed = num_edges * METIS_BYTES_AN_EDGE
    if needed > memory:
        raise ConfigError(
            f"METIS holds the graph in memory: about {needed / 1e9:.1f} GB for {num_edges} edges, "
            f'more than the {memory / 1e9:.1f} GB of memory; raise memory, or use method="ldg", '
            "which reads edges from disk"
        )
    return import_metis("ldg")


class Union:
    """All node types and all sampled edges, as one undirected graph; read from disk.

    Args:
        job: The run.
        counts: Nodes by type.
        edges: By type, edges whose ends are rows of the tables, and the grouped end.
        row_end: 0 or 1: the end that groups the edges of a type.
    """

    def __init__(
        self,
        job: ResumableJob,
        counts: dict[NodeType, int],
        edges: dict[EdgeType, EdgesByPartition],
        row_end: int,
    ) -> None:
        self._job = job
        self.starts: dict[NodeType, int] = {}
        self.num_nodes = 0
        for node_type, count in counts.items():
            self.starts[node_type] = self.num_nodes
            self.num_nodes += count
        self._parts = [
            (mapped.of_partition(0), self.starts[t[2 * row_end]], self.starts[t[2 - 2 * row_end]])
            for t, mapped in edges.items()
        ]
        self.num_edges = 2 * sum(int(mapped.counts[0]) for mapped in edges.values())

    def read(self) -> Iterator[tuple[Array, Array]]:
        """Yield (node, neighbour) of edges in both directions, ascending by node."""
        selects = []
        for files, row, neighbor in self._parts:
            if not files:
                continue
            source = rows_of(f"[{', '.join(map(to_read, files))}]")
            ends = f"CAST(row AS BIGINT) + {row} AS u, CAST(neighbor AS BIGINT) + {neighbor} AS v"
            selects.append(f"SELECT {ends} FROM {source}")
        if not selects:
            return
        # Loops do not affect placement. Parallel edges stay: they count as weights.
        both = " UNION ALL ".join(selects)
        with self._job.engine() as engine:
            edges = engine.sql(
                f"WITH e AS ({both}) SELECT u, v FROM (SELECT u, v FROM e UNION ALL "
                "SELECT v AS u, u AS v FROM e) WHERE u <> v ORDER BY u, v"
            )
            for batch in edges.to_arrow_reader(1_000_000):
                yield batch.column(0).to_numpy(), batch.column(1).to_numpy()


def place_by_metis(
    union: Union, num_partitions: int, seed: int, metis: Any, communities: int | None = None
) -> tuple[Array, Array | None]:
    """Return ``[nodes]`` int64, owners by METIS, and their communities if a number is given."""
    # CSR, filled batch by batch: edges come ascending by node, so neighbours are appended.
    pointer = np.zeros(union.num_nodes + 1, np.int64)
    pieces = []
    for nodes, neighbors in union.read():
        pointer[1:] += np.bincount(nodes, minlength=union.num_nodes)
        pieces.append(neighbors.astype(np.int64))
    graph = np.cumsum(pointer), np.concatenate([np.empty(0, np.int64), *pieces])
    owners = cut_by_metis(metis, *graph, num_partitions, seed)
    if communities is None:
        return owners, None
    return owners, communities_by_metis(metis, *graph, owners, num_partitions, communities, seed)


def place_by_ldg(
    union: Union, num_partitions: int, step: Callable[[int, Callable[[], Array]], Array]
) -> Array:
    """Return ``[nodes]`` int16, owners by linear deterministic greedy, in several passes.

    A node goes to the partition with most of its neighbours, with a penalty for full ones. Memory:
    4 bytes per node.

    Args:
        union: The graph.
        num_partitions: Their number.
        step: Runs a pass, or returns its result from a run that was killed.

    Source:
        I. Stanton, G. Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012,
        section 4 (LDG); J. Nishimura, J. Ugander, "Restreaming graph partitioning", KDD 2013
        (reLDG: from the second pass on, neighbours not yet placed count where the last pass had
        placed them).
    """
    # int16: -1 is not placed yet, and there are 1,024 partitions at most. Two are in memory.
    owners = np.full(union.num_nodes, -1, np.int16)
    for number in range(LDG_PASSES):

        def one_pass(before: Array = owners) -> Array:
            return _ldg_pass(union, before, num_partitions)

        owners = step(number, one_pass)
    return owners


def _ldg_pass(union: Union, before: Array, num_partitions: int) -> Array:
    owners = np.full(union.num_nodes, -1, np.int16)
    loads, scores = np.zeros(num_partitions, np.int64), np.zeros(num_partitions, np.int64)
    # All partitions together have more room than there are nodes, so one always has room.
    capacity = (1 + LDG_SLACK) * max(1, -(-union.num_nodes // num_partitions))
    node = 0
    for nodes, neighbors in union.read():
        node = _ldg(nodes, neighbors, owners, before, loads, scores, capacity, node)
    _ldg_rest(owners, loads, scores, capacity, node)
    return owners


@numba.njit(cache=True, nogil=True)
def _ldg_position(node: Any, owners: Any, loads: Any, scores: Any, capacity: Any) -> Any:
    best, best_score = -1, 0.0
    for k in range(loads.shape[0]):
        if loads[k] >= capacity:
            continue
        # Among equal scores (without placed neighbours, all are 0) the emptiest partition: else the
        # first ones would fill up before the others get a node.
        score = scores[k] * (1.0 - loads[k] / capacity)
        if best < 0 or score > best_score or (score == best_score and loads[k] < loads[best]):
            best, best_score = k, score
    scores[:] = 0
    owners[node] = best
    loads[best] += 1


@numba.njit(cache=True, nogil=True)
def _ldg(
    nodes: Any,
    neighbors: Any,
    owners: Any,
    before: Any,
    loads: Any,
    scores: Any,
    capacity: Any,
    node: Any,
) -> Any:
    """Take edges; return the node whose edges are perhaps incomplete."""
    for i in range(nodes.shape[0]):
        # Nodes without edges do not occur, and are placed in between. `nodes[i]` itself waits: its
        # edges may go on in the next batch.
        while node < nodes[i]:
            _ldg_position(node, owners, loads, scores, capacity)
            node += 1
        owner = owners[neighbors[i]]
        if owner < 0:
            owner = before[neighbors[i]]
        if owner >= 0:
            scores[owner] += 1
    return node


@numba.njit(cache=True, nogil=True)
def _ldg_rest(owners: Any, loads: Any, scores: Any, capacity: Any, node: Any) -> Any:
    while node < owners.shape[0]:
        _ldg_position(node, owners, loads, scores, capacity)
        node += 1
