"""The report of a run: figures of a graph whose cut is known, and their picture."""

from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa

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
