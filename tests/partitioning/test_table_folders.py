"""Which files are a table: folders of other systems, hidden files, folders named by keys."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader import DistDataset, EdgeTable, NodeTable, partition_tables
from gigl_loader.commands.partition import main
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.tables.table_folders import files_at


def _write(path: Path, **columns: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def _delta(folder: Path) -> Path:
    """Two versions of a table: the second one has replaced the first one's only file."""
    _write(folder / "part-0.parquet", src=[0, 1, 2], dst=[1, 2, 0])
    _write(folder / "part-1.parquet", src=[0, 1], dst=[1, 2])
    (folder / "_delta_log").mkdir()
    for version in (0, 1):
        (folder / f"_delta_log/{version:020}.json").write_text("{}")
    _write(folder / f"_delta_log/{1:020}.checkpoint.parquet", add=[0])
    return folder


def _iceberg(folder: Path) -> Path:
    _write(folder / "data/src=0/0.parquet", src=[0], dst=[1])
    (folder / "metadata").mkdir()
    (folder / "metadata/00001-8f3e.metadata.json").write_text("{}")
    return folder


def _hudi(folder: Path) -> Path:
    _write(folder / "0.parquet", src=[0], dst=[1])
    (folder / ".hoodie").mkdir()
    (folder / ".hoodie/hoodie.properties").write_text("")
    return folder


KINDS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "Delta Lake": (_delta, "part-1.parquet"),
    "Iceberg": (_iceberg, "data/src=0/0.parquet"),
    "Hudi": (_hudi, "0.parquet"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_with_versions_is_refused_however_it_is_reached(tmp_path: Path, kind: str) -> None:
    make, file = KINDS[kind]
    folder = make(tmp_path / "lake/[a] table")
    (tmp_path / "link").symlink_to(folder / file)
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/deep/down").symlink_to(folder)
    sources = (
        folder,
        f"{folder}/",
        tmp_path / "lake",
        tmp_path / "in",
        folder / file,
        (folder / file).parent,
        f"{tmp_path}/lake/*/{file}",
        f"{tmp_path}/**/*.parquet",
        tmp_path / "link",
        f"file://{folder}",
        f"file://{folder}/{file}",
        f"file://{tmp_path}/lake/*/{file}",
    )
    for source in sources:
        with pytest.raises(
            ConfigError, match=rf"edges: .*(table|down) is a {kind} table.*earlier.*Give"
        ):
            files_at(str(source), "edges")


def test_the_message_names_the_table_and_nothing_is_left(tmp_path: Path, capsys) -> None:
    nodes, edges = _write(tmp_path / "n.parquet", id=[0, 1, 2]), _delta(tmp_path / "follows")
    root = tmp_path / "parts"
    with pytest.raises(ConfigError, match=rf"edges of .*: {edges} is a Delta Lake table"):
        partition_tables(NodeTable(nodes), EdgeTable(edges), 1, root, progress=False)
    with pytest.raises(ConfigError, match=rf"nodes of .*: {edges} is a Delta Lake table"):
        partition_tables(NodeTable(edges, id="src"), EdgeTable(nodes), 1, root, progress=False)
    flags = ["--root", str(root), "--num-partitions", "1", "--quiet", "--nodes", str(nodes)]
    assert main([*flags, "--edges", f"{edges}/*.parquet"]) == 2
    assert f"{edges} is a Delta Lake table" in capsys.readouterr().err
    (tmp_path / "graph.yaml").write_text(f"nodes: {{source: {nodes}}}\nedges: {{source: {edges}}}")
    assert main([str(tmp_path / "graph.yaml"), *flags[:5]]) == 2
    assert f"{edges} is a Delta Lake table" in capsys.readouterr().err
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["follows", "graph.yaml", "n.parquet"]
    # Its current rows, as a reader of such tables returns them.
    current = pq.read_table(edges / "part-1.parquet")
    partition_tables(NodeTable(nodes), EdgeTable(current), 1, root, progress=False)
    (adjacency,) = DistDataset.load(root, 0).view().adjacency.values()
    assert adjacency.indices.numel() == 2


def test_folders_beside_such_a_table_are_read(tmp_path: Path) -> None:
    _delta(tmp_path / "lake/follows")
    plain = _write(tmp_path / "lake/people/0.parquet", id=[0])
    # Folders of the same names that are not what such tables have.
    (tmp_path / "lake/people/metadata").mkdir()
    (tmp_path / "lake/people/metadata/notes.json").write_text("{}")
    (tmp_path / "lake/_delta_log").mkdir()
    assert files_at(str(plain.parent), "nodes") == ([str(plain)], None)


def test_what_writers_hide_is_no_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "_mine/table"
    kept = [_write(folder / name, id=[1]) for name in ("_k=1/0.parquet", "sub/1.parquet")]
    hidden = ("_temporary/0/task_1/2.parquet", ".3.parquet", "sub/_4.parquet", ".staging/5.parquet")
    for name in hidden:
        _write(folder / name, id=[1])
    wanted = [str(path) for path in kept]
    with caplog.at_level(logging.WARNING):
        assert files_at(str(folder), "nodes")[0] == wanted
    assert f"nodes: 4 of 6 files at {folder} are left out" in caplog.text
    assert files_at(f"{folder}/**/*.parquet", "nodes")[0] == wanted
    assert files_at(f"file://{folder}", "nodes")[0] == [f"file://{path}" for path in wanted]
    # Asked for by name.
    assert files_at(str(folder / hidden[2]), "nodes")[0] == [str(folder / hidden[2])]
    assert files_at(f"{folder}/sub/_*.parquet", "nodes")[0] == [str(folder / hidden[2])]
    assert files_at(str(folder / "_temporary"), "nodes")[0] == [str(folder / hidden[0])]


def test_a_linked_folder_is_read_once(tmp_path: Path) -> None:
    one = _write(tmp_path / "table/0.parquet", id=[1])
    _write(tmp_path / "other/1.parquet", id=[2])
    (tmp_path / "table/linked").symlink_to(tmp_path / "other")
    (tmp_path / "table/ring").symlink_to(tmp_path / "table")
    found, _ = files_at(str(tmp_path / "table"), "nodes")
    assert found == [str(one), str(tmp_path / "table/linked/1.parquet")]


@pytest.mark.parametrize("memory", ["2GB", "300MB"])
def test_folders_named_by_keys_change_no_column(tmp_path: Path, memory: str, work_sizes) -> None:
    """The engine takes ``id=7`` in any path, also of its own files, for a column of all rows."""
    at = tmp_path / "id=7/node=7/row=7"
    nodes = _write(at / "n.parquet", id=[10, 11, 12])
    _write(at / "e/dst=11/src=12/0.parquet", src=[10, 10, 12], dst=[12, 10, 10])
    _write(at / "e/dst=12/src=12/0.parquet", src=[10], dst=[12])
    if memory == "300MB":
        work_sizes(index_share=0.0)  # ids are joined on disk
    partition_tables(
        NodeTable(nodes),
        EdgeTable(at / "e"),
        1,
        at / "parts",
        memory=memory,
        threads=1,
        progress=False,
        edge_rows=True,
        method="contiguous",
    )
    dataset = DistDataset.load(at / "parts", 0)
    (adjacency,) = dataset.view().adjacency.values()
    assert adjacency.indptr.tolist() == [0, 2, 2, 4]
    assert adjacency.indices.tolist() == [0, 2, 0, 0]
    assert dataset.to_original(np.array([0, 1, 2])).tolist() == [10, 11, 12]


def test_a_column_in_the_names_of_folders_is_refused(tmp_path: Path) -> None:
    nodes = _write(tmp_path / "n.parquet", id=[0, 1])
    for day in ("2024-01-01", "2024-01-02"):
        _write(tmp_path / f"e/day={day}/0.parquet", src=[0], dst=[1])
    root = tmp_path / "parts"
    where = r"has no column 'day'; .*names of folders only \(day=2024-01-01\): write it into"
    edges = EdgeTable(tmp_path / "e", time="day")
    with pytest.raises(ConfigError, match=where):
        partition_tables(NodeTable(nodes), edges, 1, root, progress=False)
    partition_tables(NodeTable(nodes), EdgeTable(tmp_path / "e"), 1, root, progress=False)
    (adjacency,) = DistDataset.load(root, 0).view().adjacency.values()
    assert adjacency.indices.tolist() == [0, 0], "the rows of both days"
