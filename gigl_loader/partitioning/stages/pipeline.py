"""The stages of `partition_tables`, in order."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from gigl_loader.dataset.format.mapped import Part, rows_at
from gigl_loader.dataset.format.mapped_writer import seal, write_npy, write_numbers
from gigl_loader.dataset.partition.doubts import check_enough_nodes, empty_partitions, warn_of
from gigl_loader.dataset.schema import (
    COMMUNITY,
    EdgeDir,
    EdgeType,
    NodeType,
    edge_type_str,
    is_label_edge_type,
)
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages.communities import CommunityCut
from gigl_loader.partitioning.stages.degree_order import EdgeFile, Positions, count_degrees
from gigl_loader.partitioning.stages.edges_by_owner import (
    EdgesByPartition,
    EndIds,
    Extras,
    check_ends,
    check_values,
    map_edges,
    read_extras,
    sort_edges,
)
from gigl_loader.partitioning.stages.node_ids import (
    Dictionary,
    Numbering,
    finish_ids,
    open_dictionary,
    write_dictionary,
)
from gigl_loader.partitioning.stages.node_rows import (
    NodeRows,
    check_time_attr,
    write_neighbor_times,
)
from gigl_loader.partitioning.stages.owners import (
    NEED_EDGES,
    Union,
    check_metis,
    place_by_ldg,
    place_by_metis,
    write_owners_without_edges,
)
from gigl_loader.partitioning.tables.row_sources import (
    Sources,
    newest_sources,
    noted_sources,
    versions_of,
)
from gigl_loader.partitioning.tables.spec import (
    FrameNodes,
    Report,
    TableGraph,
    columns_used,
    describe_part,
    edges_of,
    is_npy,
    nodes_of,
)
from gigl_loader.partitioning.tables.table_files import Table, files_are_gone, id_kind, stamp
from gigl_loader.runtime.memory.segments import Array


class Run:
    """The stages of one run."""

    def __init__(
        self,
        job: ResumableJob,
        graph: TableGraph,
        num_partitions: int,
        method: str,
        edge_dir: EdgeDir,
        seed: int,
        memory: int,
        drop_dangling: bool,
        out: Path,
        time_attr: str | None = None,
        order: str = "ids",
        edge_rows: bool = False,
        communities: int | None = None,
        request: str = "",
    ) -> None:
        self._job, self._graph, self._count, self._out = job, graph, num_partitions, out
        self._method, self._edge_dir, self._seed = method, edge_dir, seed
        self._memory, self._drop, self._time_attr = memory, drop_dangling, time_attr
        self._by_degree, self._edge_rows = order == "degree", edge_rows
        self._communities, self._request = communities, request
        self._shared = Part(out)
        self._parts = [Part(out / f"part{k}") for k in range(num_partitions)]
        sources = self._sources()
        self._nodes = {t: self._table(f"nodes-{t}", nodes_of(t), sources) for t in graph.nodes}
        self._edges = {
            t: self._table(f"edges-{edge_type_str(t)}", edges_of(t), sources) for t in graph.edges
        }
        self._tables = tables = (*self._nodes.values(), *self._edges.values())
        names = [file.name for table in tables for file in table.files]
        names += [str(table.features) for table in graph.nodes.values() if is_npy(table.features)]
        inputs = [[name, *stamp(name)] for name in names]
        # As a killed run found them, if this one resumes it.
        self._inputs: list[list[Any]] = job.step("inputs", lambda: inputs)
        self._check_unchanged()
        self._numbering: dict[NodeType, Numbering] = {}
        self._ids: dict[NodeType, Dictionary] = {}
        self._classes: dict[NodeType, int] = {}

    def _sources(self) -> Sources:
        """Return the source of each table, at the version from the start of the run."""
        tables, opened = self._graph.tables, Sources()

        def choose() -> dict[str, dict[str, Any]]:
            opened.update(newest_sources(tables))
            return versions_of(opened)

        # A resumed run goes on with these versions, however the tables have moved on.
        self._versions = self._job.step("versions", choose)
        # Those that were just opened as they are: a stream is compared with its first read.
        return opened or noted_sources(tables, self._versions)

    def _table(self, key: str, where: str, sources: Sources) -> Table:
        table = self._graph.tables[where]
        return Table(self._job, key, sources[where] or table.source, where, columns_used(table))

    def _check_unchanged(self) -> None:
        """Check that the files of all tables are those from the start of the run.

        Raises:
            ConfigError: One of them has changed; the message names it.
        """
        # Half of a result from the old tables and half from the new ones would look well-formed. By
        # size and time: a comparison of the contents would take as long as a second read.
        changed = [name for name, *noted in self._inputs if stamp(name) != noted]
        for table in self._tables:
            lost = [file.name for file in table.files if file.name in changed]
            if table.in_place_of is not None and lost:
                raise files_are_gone(table.in_place_of, lost)
        if changed:
            raise ConfigError(
                f"the tables have changed since the run began: {', '.join(changed[:3])}"
                f"{'...' if len(changed) > 3 else ''}; unfinished work is removed: run again when "
                "nothing writes to them"
            )

    def make(self, began: float) -> Report:
        """Run all stages.

        Raises:
            ConfigError: The tables cannot work, or have changed meanwhile.
        """
        try:
            return self._make(began)
        except Exception:
            # If a change caused the error, that is named: the error is about a file that is gone.
            self._check_unchanged()
            raise

    def _make(self, began: float) -> Report:
        # Each stage reads the output of the previous one from disk, and returns only the noted
        # values: a resumed run passes all stages, and works on unfinished steps.
        job, out = self._job, self._out
        has_times = self._time_attr is not None
        stage = partial(job.begin_stage, of=8 if has_times else 7)
        stage(1, what="check the tables")
        rows, extras = self._check_tables()
        out.mkdir(parents=True, exist_ok=True)
        stage(2, what="assign nodes to partitions")
        before: dict[EdgeType, EdgesByPartition] = {}
        if self._method in NEED_EDGES and (self._count > 1 or self._communities is not None):
            before = self._map_rows()
        self._place(before)
        if self._communities is not None:
            for node_type, writer in rows.items():
                kept = np.load(self._communities_path(node_type), mmap_mode="r")
                writer.add_attribute(COMMUNITY, kept)
        stage(3, what="number the nodes")
        self._write_ids()
        stage(4, what="map the edges")
        mapped = self._map(extras)
        stage(5, what="sort the edges")
        counts = self._sort(mapped, extras)
        stage(6, what="write the rows of nodes")
        # Rows come after edges: by degree, their places follow from the written edges.
        for node_type, writer in rows.items():
            positions = self._positions(node_type) if self._by_degree and writer.has_rows else None
            classes = writer.write(self._numbering[node_type], self._parts, positions)
            self._classes |= {} if classes is None else {node_type: classes}
        # After rows, which have the times of nodes.
        if self._time_attr is not None:
            stage(7, what="write the times of neighbours")
            ends = {t: numbering.ends for t, numbering in self._numbering.items()}
            write_neighbor_times(
                job, self._parts, self._graph, ends, self._edge_dir, self._time_attr
            )
        dangling = {edge_type_str(t): m.dangling for t, m in mapped.items()}
        self._check_unchanged()  # Everything is read: later changes do not matter.
        for name, text in self._graph.files.items():
            (out / name).write_text(text, encoding="utf-8")
            self._shared.note_file(name)
        stage(8 if has_times else 7, what="compute checksums")
        run = job.step("seal", lambda: self._seal(counts))
        seconds = time.monotonic() - began
        versions, request = self._versions, self._graph.database or self._request
        if self._graph.database:
            versions = {"database": {"digest": request}}
        report = Report(run, self._describe(), dangling, seconds, versions, request)
        report.write(out)
        return report

    def _check_tables(self) -> tuple[dict[NodeType, NodeRows], dict[EdgeType, Extras]]:
        """Check all columns of all tables, before anything is written."""
        # Types first, from the files' footers only; then sizes; values of edges, which need a pass
        # over the tables, last.
        graph, rows, extras = self._graph, {}, {}
        num_nodes = sum(table.num_rows for table in self._nodes.values())
        check_enough_nodes(num_nodes, self._communities)
        warn_of(empty_partitions(num_nodes, self._count))
        for node_type, table in self._nodes.items():
            id_kind(table, graph.nodes[node_type].id)
            rows[node_type] = NodeRows(self._job, table, graph.nodes[node_type], node_type)
        for edge_type, table in self._edges.items():
            spec = graph.edges[edge_type]
            for node_type, column in ((edge_type[0], spec.src), (edge_type[2], spec.dst)):
                id_column = graph.nodes[node_type].id
                check_ends(table, self._nodes[node_type], column, id_column)
            # Label edges have no ids that a batch could carry.
            rows_kept = self._edge_rows and not is_label_edge_type(edge_type)
            extras[edge_type] = read_extras(table, spec, rows=rows_kept)
        if self._time_attr is not None:
            check_time_attr(graph, rows, self._time_attr)
        if self._method == "metis" and (self._count > 1 or self._communities is not None):
            edges = sum(self._edges[t].num_rows for t in graph.walked)
            check_metis(edges, self._memory)
        for edge_type, table in self._edges.items():
            spec = graph.edges[edge_type]
            check_values(self._job, table, spec, extras[edge_type], edge_type_str(edge_type))
        return rows, extras

    # --- nodes ------------------------------------------------------------------------------------

    def _owners_path(self, node_type: NodeType) -> Path:
        return self._job.folder / "owners" / f"{node_type}.bin"

    def _communities_path(self, node_type: NodeType) -> Path:
        return self._job.folder / "communities" / f"{node_type}.npy"

    def _place(self, before: dict[EdgeType, EdgesByPartition]) -> None:
        """Decide the owner of each node."""
        # With edges, all types are placed together, since edges connect them.
        job = self._job
        if before:
            self._place_with_edges(before)
        for node_type, table in self._nodes.items():
            path, spec = self._owners_path(node_type), self._graph.nodes[node_type]
            if not before:
                method = "contiguous" if self._count == 1 else self._method
                position = partial(
                    write_owners_without_edges, method, table, spec, self._count, self._seed, path
                )
                job.step(f"owners/{node_type}", position)
            size = table.num_rows
            # Mapped: two bytes per node, read once per stage. An empty file cannot be mapped.
            owners = np.memmap(path, np.uint16, "r", 0, (size,)) if size else np.empty(0, np.uint16)
            self._numbering[node_type] = Numbering.of(table, owners, self._count)

    def _place_with_edges(self, before: dict[EdgeType, EdgesByPartition]) -> None:
        counts = {t: table.num_rows for t, table in self._nodes.items()}
        union = Union(self._job, counts, before, 1 if self._edge_dir == "in" else 0)

        def write(owners: Array, communities: Array | None) -> None:
            for node_type, start in union.starts.items():
                of_type = slice(start, start + counts[node_type])
                write_numbers(self._owners_path(node_type), owners[of_type].astype(np.uint16))
                if communities is not None:
                    write_npy(self._communities_path(node_type), communities[of_type])

        if self._method == "metis":
            # Half of them: the union has each edge in both directions.
            metis = check_metis(union.num_edges // 2, self._memory)
            given = union, self._count, self._seed, metis, self._communities
            self._job.step("owners", lambda: write(*place_by_metis(*given)))
            return
        communities = None
        if self._communities is None:
            owners = place_by_ldg(union, self._count, lambda k, part: self._kept(f"ldg/{k}", part))
        else:
            cut = CommunityCut(self._job, union, self._count, self._communities, self._kept)
            owners, communities = cut.cut()
        self._job.step("owners", lambda: write(owners, communities))

    def _kept(self, name: str, make: Callable[[], Array]) -> Array:
        """Return the array of a step, from now or from the run that was killed."""
        # Notes are JSON, unsuitable for a number of each node.
        path = self._job.folder / f"{name}.npy"
        self._job.step(name, lambda: write_npy(path, make()))
        return cast("Array", np.load(path))

    def _write_ids(self) -> None:
        for node_type, numbering in self._numbering.items():
            self._ids[node_type] = self._dictionary(node_type, numbering, "number", self._shared)
            column = self._graph.nodes[node_type].id
            text = id_kind(self._nodes[node_type], column) == "text"
            finish_ids(self._job, self._shared, node_type, numbering, text=text, column=column)

    def _dictionary(
        self, node_type: NodeType, numbering: Numbering, name: str, shared: Part | None
    ) -> Dictionary:
        table, spec = self._nodes[node_type], self._graph.nodes[node_type]
        folder = write_dictionary(self._job, table, spec, node_type, numbering, name, shared)
        return open_dictionary(self._job, table, spec.id, node_type, folder)

    # --- edges ------------------------------------------------------------------------------------

    def _ends(
        self, edge_type: EdgeType, ids: dict[NodeType, Dictionary], bounds: dict[NodeType, Array]
    ) -> EndIds:
        row, spec = self._row_end(edge_type), self._graph.edges[edge_type]
        types, columns = (edge_type[0], edge_type[2]), (spec.src, spec.dst)
        return EndIds(
            columns[row], columns[1 - row], ids[types[row]], ids[types[1 - row]], bounds[types[row]]
        )

    def _row_end(self, edge_type: EdgeType) -> int:
        # Label edges are stored with their anchor, the source: that seed requests them.
        return 1 if self._edge_dir == "in" and not is_label_edge_type(edge_type) else 0

    def _map_rows(self) -> dict[EdgeType, EdgesByPartition]:
        """Map the ends of sampled edges to rows of the tables."""
        # As if one partition owned all nodes: the number of a node is then its row.
        ids, bounds = {}, {}
        for node_type, table in self._nodes.items():
            numbering = Numbering.of(table, np.zeros(table.num_rows, np.uint16), 1)
            ids[node_type] = self._dictionary(node_type, numbering, "rows-of", None)
            bounds[node_type] = numbering.ends
        none = Extras(None, [])
        return {
            t: self._mapped(t, self._ends(t, ids, bounds), none, "map-rows")
            for t in self._graph.walked
        }

    def _map(self, extras: dict[EdgeType, Extras]) -> dict[EdgeType, EdgesByPartition]:
        bounds = {t: numbering.ends for t, numbering in self._numbering.items()}
        return {
            t: self._mapped(t, self._ends(t, self._ids, bounds), extras[t], "map")
            for t in self._edges
        }

    def _mapped(
        self, edge_type: EdgeType, ends: EndIds, extras: Extras, stage: str
    ) -> EdgesByPartition:
        return map_edges(
            self._job,
            self._edges[edge_type],
            ends,
            extras,
            edge_type,
            stage,
            drop_dangling=self._drop,
            skip_nulls=bool(self._graph.database),
        )

    def _sort(
        self, mapped: dict[EdgeType, EdgesByPartition], extras: dict[EdgeType, Extras]
    ) -> dict[EdgeType, list[int]]:
        """Write each partition's edges; return the ends of the partitions' edge ids, by type."""
        ends_by_type = {}
        for edge_type, edges in mapped.items():
            label, row = is_label_edge_type(edge_type), self._row_end(edge_type)
            types = (edge_type[0], edge_type[2])
            nodes, others = self._numbering[types[row]], self._numbering[types[1 - row]]
            ends = np.cumsum(edges.counts)  # edge ids count partition by partition, as nodes do
            sorts = {
                f"sort/{edge_type_str(edge_type)}/{k}": sort_edges(
                    self._job,
                    edges,
                    extras[edge_type],
                    edge_type,
                    k,
                    part,
                    self._shared,
                    rows=(int(nodes.starts[k]), int(nodes.ends[k])),
                    num_neighbors=others.num_nodes,
                    first_edge=None if label else int(ends[k] - edges.counts[k]),
                )
                for k, part in enumerate(self._parts)
            }
            edges_of = dict(zip(sorts, edges.counts.tolist(), strict=True))
            with self._job.work_on(f"sort {edge_type_str(edge_type)}", int(ends[-1])) as progress:
                for name, _ in self._job.steps(sorts):
                    progress(edges_of[name])
            if not label:
                ends_by_type[edge_type] = ends.tolist()
        return ends_by_type

    def _positions(self, node_type: NodeType) -> Positions:
        """Compute the positions of a type's node rows, from the written edges."""
        # An epoch reads only the seeds of label edges, so they do not count.
        edges = []
        for edge_type in self._graph.walked:
            if edge_type[0 if self._edge_dir == "in" else 2] == node_type:
                name = f"{rows_at('edges', edge_type)}/indices"
                for part in self._parts:
                    spec = part.arrays[name]
                    edges.append(EdgeFile(part.path(name), spec.dtype, spec.shape[0]))
        numbering = self._numbering[node_type]
        degrees = count_degrees(self._job, node_type, numbering.num_nodes, edges)
        return Positions(self._job, self._parts, node_type, numbering, degrees)

    # --- the end ----------------------------------------------------------------------------------

    def _seal(self, edge_ends: dict[EdgeType, list[int]]) -> str:
        return seal(
            self._shared,
            self._parts,
            edge_dir=self._edge_dir,
            heterogeneous=self._graph.heterogeneous,
            num_nodes={t: n.num_nodes for t, n in self._numbering.items()},
            node_bounds={t: n.ends.tolist() for t, n in self._numbering.items()},
            edge_types=list(self._graph.edges),
            edge_bounds=edge_ends,
            original_ids=list(self._graph.nodes),
            num_classes=self._classes,
            frames={t: n.frame for t, n in self._graph.nodes.items() if isinstance(n, FrameNodes)},
            method=self._method,
            seed=self._seed,
            **({"versions": self._versions} if self._versions else {}),
        )

    def _describe(self) -> list[Any]:
        ends = {t: n.ends for t, n in self._numbering.items()}
        return [
            describe_part(part, k, self._graph.walked, self._edge_dir, ends)
            for k, part in enumerate(self._parts)
        ]
