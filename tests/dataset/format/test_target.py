"""Where partitions may be written."""

from pathlib import Path
from typing import Any

import pytest

from gigl_loader import partition_graph
from gigl_loader.dataset.format.directory import check_format, check_order, check_target
from gigl_loader.errors import ConfigError
from gigl_loader.testing import TinyGraph
from tests.dataset.dataset_reference import RING, written

GRAPH = TinyGraph.random(40, 200)


@pytest.mark.parametrize(
    "where", ["notes.txt", "part0/notes.txt", "part0/graph/notes.txt", "mine/a.pt", "model.pt"]
)
def test_somebodys_file_in_a_directory_of_ours_stays(tmp_path, where: str) -> None:
    root = tmp_path / "g"
    partition_graph(GRAPH.to_pyg(), 2, root, progress=False)
    with pytest.raises(ConfigError, match=r"holds partitions: .*overwrite=True"):
        partition_graph(GRAPH.to_pyg(), 3, root, progress=False)
    assert len(list(root.glob("part*"))) == 2
    partition_graph(GRAPH.to_pyg(), 3, root, progress=False, overwrite=True)
    path = root / where
    path.parent.mkdir(exist_ok=True)
    path.write_text("dear diary")
    with pytest.raises(ConfigError, match=rf"holds other files \(.*{path.name}"):
        partition_graph(GRAPH.to_pyg(), 2, root, progress=False, overwrite=True)
    assert path.read_text() == "dear diary"


def test_other_peoples_files_are_safe(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        written(RING, 2, tmp_path)
    with pytest.raises(ConfigError, match="is a file"):
        written(RING, 2, tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_order_of_rows_is_checked(tmp_path: Path) -> None:
    bad: Any = (({"order": "size"}, "must be"), ({"format": "glt"}, "needs format"))
    for options, match in bad:
        with pytest.raises(ConfigError, match=match):
            partition_graph(RING.to_pyg(), 1, tmp_path / "a", **{"order": "degree", **options})
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("gigl_loader.json", True),
        ("report.svg", True),
        ("part0/manifest.json", True),
        ("part12/edges/a__to__b/indptr.bin", True),
        ("books/node/a.bin", True),
        ("node_pb.pt", True),
        ("edge_pb/a__to__b.pt", True),
        ("ids/a.parquet", True),
        ("part0/edges/a/manifest.csv", False),
        ("partx/values.bin", False),
        ("my_part0/values.bin", False),
        ("edge_pb.txt", False),
        ("sub/META", False),
    ],
)
def test_whose_file_it_is(tmp_path: Path, name: str, ours: bool) -> None:
    for file in ("gigl_loader.json", "META", name):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    if ours:
        check_target(tmp_path, overwrite=True)
        with pytest.raises(ConfigError, match="holds partitions: remove it, or give overwrite"):
            check_target(tmp_path, overwrite=False)
    else:
        with pytest.raises(ConfigError, match=f"holds other files .*{Path(name).name}"):
            check_target(tmp_path, overwrite=True)


def test_directories_that_may_be_written(tmp_path: Path) -> None:
    check_target(tmp_path, overwrite=False)
    check_target(tmp_path / "new", overwrite=False)
    (tmp_path / "META").touch()  # which GLT's own partitioner writes, too
    with pytest.raises(ConfigError, match="holds other files"):
        check_target(tmp_path, overwrite=True)


def test_formats_and_orders() -> None:
    check_format("glt")
    check_order("ids", "glt")
    check_order("degree", "mapped")
    with pytest.raises(ConfigError, match='"mapped" or "glt", got \'csv\''):
        check_format("csv")
