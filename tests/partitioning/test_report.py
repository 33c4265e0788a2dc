"""The report of a run: figures of a graph whose cut is known, and their picture."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from gigl_loader.partitioning.partition_tables import partition_tables
from gigl_loader.partitioning.tables.spec import EdgeTable, NodeTable, PartReport, Report

SVG = "{http://www.w3.org/2000/svg}"


def test_figures_of_a_known_graph(tmp_path: Path) -> None:
    nodes = pa.table(
        {
            "id": ["a", "b", "c", "d", "e"],
            "part": [0, 0, 0, 1, 1],
            "split": ["train", "test", "test", "train", "test"],
        }
    )
    edges = pa.table({"src": ["b", "c", "d", "a", "e"], "dst": ["a", "a", "a", "d", "e"]})
    report = partition_tables(
        NodeTable(nodes, id="id", split="split", partition="part"),
        EdgeTable(edges, src="src", dst="dst"),
        2,
        tmp_path / "out",
        method="column",
        progress=False,
        threads=1,
    )
    # edges into a: from b and c here, from d there; into d: from a there; into e: from e here
    assert [(p.nodes, p.edges, p.cut) for p in report.parts] == [(3, 3, 1), (2, 2, 1)]
    remote = [(p.training_neighbors, p.remote_training_neighbors) for p in report.parts]
    assert remote == [(3, 1), (1, 1)]
    assert (report.edge_cut, report.remote_training_share) == (2 / 5, 2 / 4)
    read = Report.read(tmp_path / "out")
    assert (read.run, read.parts) == (report.run, report.parts)
    drawn = ElementTree.parse(tmp_path / "out" / "report.svg").getroot()
    assert "edge cut 40.0%, remote neighbours of training nodes 50.0%" in _texts(drawn)[0]


@pytest.mark.parametrize("method", ["contiguous", "ldg"])
def test_people_read_no_name_of_ours(tmp_path: Path, capsys: Any, method: Any) -> None:
    """A graph of one type has no type in its progress and its report; each stage is numbered."""
    nodes = pa.table({"id": [1, 2, 3], "time": [5, 6, 7]})
    edges = pa.table({"src": [1, 2, 9], "dst": [2, 3, 1]})
    report = partition_tables(
        NodeTable(nodes, time="time"),
        [EdgeTable(edges), EdgeTable(edges, supervision="positive")],
        2,
        tmp_path / "out",
        method=method,
        threads=1,
        drop_dangling=True,
        time_attr="time",
    )
    lines = str(report).splitlines()
    assert lines[-2:] == [
        "dangling edges left out: 1",
        "dangling edges left out of to_gigl_positive: 1",
    ]
    shown = capsys.readouterr().err.splitlines()
    stages = [line for line in shown if line.startswith("stage ")]
    assert stages == [
        "stage 1 of 8: check the tables",
        "stage 2 of 8: assign nodes to partitions",
        "stage 3 of 8: number the nodes",
        "stage 4 of 8: map the edges",
        "stage 5 of 8: sort the edges",
        "stage 6 of 8: write the rows of nodes",
        "stage 7 of 8: write the times of neighbours",
        "stage 8 of 8: compute checksums",
    ]
    works = [line.partition(":")[0] for line in shown if line not in stages]
    assert works[:3] == [
        "read the Arrow table of nodes",
        "read the Arrow table of edges",
        "read the Arrow table of edges of 'to_gigl_positive'",
    ]
    assert {"number", "map", "map to_gigl_positive", "sort", "rows", "times"} <= set(works)
    assert not [line for line in [*lines, *shown] if "default_homogeneous" in line]


def test_bars_are_as_long_as_what_they_stand_for(tmp_path: Path) -> None:
    parts = [PartReport(10, 400, 7000, 40, 0, 0), PartReport(5, 100, 7000, 10, 0, 0)]
    Report("run", parts, {}, 1.0).write(tmp_path)
    drawn = ElementTree.parse(tmp_path / "report.svg").getroot()
    texts = _texts(drawn)
    assert texts[0].startswith("2 partitions, edge cut 10.0%")
    assert texts[1:5] == ["part 0", "10 nodes", "400 edges", "7,000 bytes"]
    assert texts[5:] == ["part 1", "5 nodes", "100 edges", "7,000 bytes"]
    page, *bars = drawn.iter(f"{SVG}rect")
    lengths = [float(bar.get("width", "nan")) for bar in bars]
    assert [length / max(lengths) for length in lengths] == [1, 1, 1, 0.5, 0.25, 1]
    bottom = max(float(bar.get("y", "nan")) + float(bar.get("height", "nan")) for bar in bars)
    assert bottom <= float(page.get("height", "nan")), "nothing is cut off"


def _texts(drawn: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in drawn.iter(f"{SVG}text")]
