"""What came out: sizes, edge cut, remote neighbours; as JSON and as a picture."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gigl_loader.dataset.mapped import Part, rows_at
from gigl_loader.dataset.schema import EdgeDir, EdgeType, NodeType
from gigl_loader.memory.segments import Array, storage_dtype

REPORT, PICTURE = "report.json", "report.svg"
_CHUNK_EDGES = 2**22
"""Edges that are counted at a time: some arrays of 32 MB."""
_COLORS = ("#4c78a8", "#f58518", "#54a24b")


@dataclass(frozen=True)
class PartReport:
    """One partition."""

    nodes: int
    edges: int
    """That are walked; label edges do not count."""
    nbytes: int
    """Bytes of all files of the partition."""
    cut: int
    """Edges whose neighbour is in another partition."""
    training_neighbors: int
    """Edges of its training nodes."""
    remote_training_neighbors: int
    """Those of them whose neighbour is in another partition."""


@dataclass(frozen=True)
class Report:
    """Result of `partition_tables`: counts and sizes, by partition and type."""

    run: str
    """The run id: a digest of all that was written."""
    parts: list[PartReport]
    dangling: dict[str, int]
    """Edges that were left out by edge type, since an end of them is no node."""
    seconds: float
    """Seconds that this call took; a run that was killed and resumed took longer."""

    @property
    def edge_cut(self) -> float:
        """The share of edges between partitions."""
        return _share(sum(p.cut for p in self.parts), sum(p.edges for p in self.parts))

    @property
    def remote_training_share(self) -> float:
        """The share of the neighbours of training nodes that are in another partition."""
        return _share(
            sum(p.remote_training_neighbors for p in self.parts),
            sum(p.training_neighbors for p in self.parts),
        )

    def __str__(self) -> str:
        lines = [
            f"partition {k}: {p.nodes:,} nodes, {p.edges:,} edges, {p.nbytes / 1e6:,.1f} MB"
            for k, p in enumerate(self.parts)
        ]
        lines.append(f"edge cut {self.edge_cut:.1%}")
        if any(p.training_neighbors for p in self.parts):
            lines.append(f"remote neighbours of training nodes {self.remote_training_share:.1%}")
        lines += [
            f"{name}: {n:,} dangling edges left out" for name, n in self.dangling.items() if n
        ]
        return "\n".join(lines)

    @classmethod
    def read(cls, root: Path) -> "Report":
        """Return the report that was written below a directory."""
        content = json.loads((root / REPORT).read_text())
        parts = [PartReport(**part) for part in content["parts"]]
        return cls(content["run"], parts, content["dangling"], 0.0)

    def write(self, out: Path) -> None:
        """Write it below a directory, without the time, which no two runs share."""
        content: dict[str, Any] = asdict(self)
        content.pop("seconds")
        content |= {"edge_cut": self.edge_cut, "remote_training_share": self.remote_training_share}
        (out / REPORT).write_text(json.dumps(content, indent=1) + "\n")
        (out / PICTURE).write_text(_picture(self))


def _share(some: int, of: int) -> float:
    return some / of if of else 0.0


def describe_part(
    part: Part, k: int, walked: list[EdgeType], edge_dir: EdgeDir, ends: dict[NodeType, Array]
) -> PartReport:
    """Return the figures of a partition, read from its files, a part at a time."""
    row_end = 2 if edge_dir == "in" else 0
    # All node types, and only edges that are walked: labels are looked up, not sampled.
    nodes = sum(int(e[k] - (e[k - 1] if k else 0)) for e in ends.values())
    totals = np.zeros(4, np.int64)
    for edge_type in walked:
        totals += _count(part, edge_type, edge_type[row_end], ends[edge_type[2 - row_end]], k)
    nbytes = sum(spec.nbytes for spec in part.arrays.values())
    return PartReport(nodes, int(totals[0]), nbytes, *(int(n) for n in totals[1:]))


def _count(part: Part, edge_type: EdgeType, row_type: NodeType, ends: Array, k: int) -> Array:
    """Return edges, cut edges, edges of training nodes, and cut ones of those."""
    where = rows_at("edges", edge_type)
    spec = part.arrays[f"{where}/indices"]
    # 8 bytes for each node of this partition; its edges, which may not fit, are read in chunks.
    pointer = np.fromfile(part.path(f"{where}/indptr"), np.int64)
    training = np.zeros(len(pointer) - 1, bool)
    name = f"splits/train/{row_type}"
    if name in part.arrays:
        # A partition's splits are of its own nodes, and so are the rows of its edges.
        ids = np.fromfile(part.path(name), np.int64)
        training[ids - part.ranges[where]["first_row"]] = True
    first, last = (ends[k - 1] if k else 0), ends[k]
    totals, row = np.zeros(4, np.int64), 0
    with part.path(f"{where}/indices").open("rb") as file:
        while row < len(training):
            # Whole rows, as many as have so many edges; one at least, however many it has.
            stop = int(np.searchsorted(pointer, pointer[row] + _CHUNK_EDGES, "right")) - 1
            stop = min(max(stop, row + 1), len(training))
            count = int(pointer[stop] - pointer[row])
            found = np.fromfile(file, storage_dtype(spec.dtype), count)
            # A partition owns a range of ids: who owns a neighbour is two comparisons.
            remote = (found < first) | (found >= last)
            mine = np.repeat(training[row:stop], np.diff(pointer[row : stop + 1]))
            totals += [count, remote.sum(), mine.sum(), (remote & mine).sum()]
            row = stop
    return totals


def _picture(report: Report) -> str:
    """Return bars for each partition, each figure as a share of the largest."""
    rows = (("nodes", "nodes"), ("edges", "edges"), ("nbytes", "bytes"))
    height, width = 18 * len(report.parts) * len(rows) + 12 * len(report.parts) + 60, 640
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="20">{len(report.parts)} partitions, edge cut {report.edge_cut:.1%}, '
        f"remote neighbours of training nodes {report.remote_training_share:.1%}</text>",
    ]
    y = 40
    for k, part in enumerate(report.parts):
        lines.append(f'<text x="10" y="{y + 12}">part {k}</text>')
        for (name, label), color in zip(rows, _COLORS, strict=True):
            value = getattr(part, name)
            # Bars of a kind are as long as their share of the longest: 640 wide, 380 for those, the
            # rest for names before them and figures behind.
            most = max(1, *(getattr(one, name) for one in report.parts))
            bar = 380 * value / most
            lines.append(f'<rect x="70" y="{y}" width="{bar:.1f}" height="14" fill="{color}"/>')
            lines.append(f'<text x="{75 + bar:.1f}" y="{y + 12}">{value:,} {label}</text>')
            y += 18
        y += 12
    return "\n".join([*lines, "</svg>", ""])
