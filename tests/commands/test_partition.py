import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from torch_geometric.data import Data

from gigl_loader import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DistDataset,
    partition_graph,
    partition_tables,
)
from gigl_loader.commands.partition import in_shell_words, main
from gigl_loader.dataset.schema import COMMUNITY, NEIGHBOR_TIME
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.testing import TinyGraph
from tests.partitioning.table_graphs import BUYS, KNOWS, Tables, check

GRAPH = Tables(
    ["u1", "u2", "u3"],
    [7, -8],
    {BUYS: [("u1", 7), ("u3", -8), ("u1", 7)], KNOWS: [("u2", "u2")]},
    [("u2", 7)],
)


def _yaml(folder: Path) -> Path:
    nodes, edges = GRAPH.write(folder / "tables", 2)
    content = {
        "nodes": {t: {k: v for k, v in vars(one).items() if v} for t, one in nodes.items()},
        "edges": [
            {"type": list(t), **{k: v for k, v in vars(one).items() if v}}
            for t, several in edges.items()
            for one in several
        ],
        "time_attr": "time",
        "order": "degree",
    }
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_file_describes_the_tables(tmp_path: Path, capsys) -> None:
    out = tmp_path / "parts"
    arguments = [
        str(_yaml(tmp_path)),
        "--root",
        str(out),
        "--num-partitions",
        "2",
        "--method",
        "random",
    ]
    assert main([*arguments, "--threads", "1"]) == 0
    loaded = [DistDataset.load(out, k) for k in range(2)]
    check(GRAPH, loaded, "in", "degree")
    for dataset in loaded:  # the node of row i of the table has the time i
        view = dataset.view()
        kept = view.edge_attributes[BUYS, NEIGHBOR_TIME + "time"]
        users = dataset.to_original(view.adjacency[BUYS].indices.long(), "user")
        assert [f"u{time + 1}" for time in kept.values.tolist()] == users.tolist()
    shown = capsys.readouterr()
    assert "partition 1: " in shown.out
    assert "edge cut" in shown.out
    assert "map user__buys__item: 3 of 3 rows" in shown.err
    assert "0 s left" in shown.err
    assert (out / "report.svg").read_text().startswith("<svg")
    assert main(arguments) == 2
    assert "or give --overwrite\n" in capsys.readouterr().err


def test_flags_describe_a_graph_of_one_type(tmp_path: Path) -> None:
    GRAPH.write(tmp_path / "tables", 1)
    flags = [
        "--nodes",
        f"{tmp_path}/tables/user/*.parquet",
        "--id",
        "name",
        "--features",
        "x",
        "--label",
        "y",
        "z",
        "--split",
        "part",
        "--edges",
        f"{tmp_path}/tables/knows",
        "--src",
        "from",
        "--dst",
        "to",
        "--weight",
        "w",
        "--quiet",
        "--time",
        "y",
        "--time-attr",
        "time",
    ]
    assert main([*flags, "--root", str(tmp_path / "parts"), "--num-partitions", "1"]) == 0
    dataset = DistDataset.load(tmp_path / "parts", 0, mmap=True)
    order = dataset.view_by_time("time").times[DEFAULT_HOMOGENEOUS_EDGE_TYPE]
    assert order.times.tolist() == [1]  # of u2, the only neighbour
    train = dataset.train_node_ids
    assert isinstance(train, torch.Tensor)
    assert dataset.to_original(train).tolist() == ["u1"]
    assert dataset.to_original(
        dataset.view().adjacency[next(iter(dataset.view().adjacency))].indices
    ).tolist() == ["u2"]
    table = pq.read_table(next((tmp_path / "parts" / "ids").glob("*.parquet")))
    assert table.to_pydict() == {"id": ["u1", "u2", "u3"], "node": [0, 1, 2]}


def test_it_runs_without_torch(tmp_path: Path) -> None:
    """torch and PyG would take 400 MB of the memory that it may use, and seconds of each start."""
    GRAPH.write(tmp_path / "tables", 1)
    flags = [
        "--nodes",
        f"{tmp_path}/tables/user",
        "--id",
        "name",
        "--edges",
        f"{tmp_path}/tables/knows",
        "--src",
        "from",
        "--dst",
        "to",
        "--quiet",
        "--method",
        "random",
        "--root",
        f"{tmp_path}/parts",
        "--num-partitions",
        "2",
        "--features",
        "x",
        "--order",
        "degree",
    ]
    script = (
        "import sys; from gigl_loader.commands.cli import main\n"
        "print('status', main(['partition', *sys.argv[1:]]), *sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", script, *flags], capture_output=True, text=True)
    words = found.stdout[found.stdout.rindex("status") :].split()
    assert words[:2] == ["status", "0"], found.stderr
    assert not {"torch", "torch_geometric"} & set(words)
    assert len(list(tmp_path.glob("parts/part*/lookup/*.bin"))) == 2, "the flag is heard"


def _num_communities(root: Path) -> int:
    rows = DistDataset.load(root, 0).view().node_attributes[NODE, COMMUNITY]
    return int(rows.values.max()) + 1


def test_communities_are_asked_for_in_the_file_or_by_a_flag(tmp_path: Path, capsys) -> None:
    ring = TinyGraph.random(12, 40)
    GRAPH.write(tmp_path / "tables", 1)
    path, common = tmp_path / "graph.yaml", ["--num-partitions", "1", "--quiet"]
    tables = {"source": f"{tmp_path}/tables/user", "id": "name"}
    edges = {"source": f"{tmp_path}/tables/knows", "src": "from", "dst": "to"}
    path.write_text(yaml.safe_dump({"nodes": tables, "edges": edges, "communities": 2}))
    for name, more, count in (("file", [], 2), ("flag", ["--communities", "3"], 3)):
        arguments = [str(path), "--root", f"{tmp_path}/{name}", "--method", "ldg", *common, *more]
        assert main(arguments) == 0
        assert _num_communities(tmp_path / name) == count
    saved = ["--pyg", str(_saved(tmp_path, ring.to_pyg())), "--root", f"{tmp_path}/saved", *common]
    assert main([*saved, "--method", "metis", "--communities", "4"]) == 0
    assert _num_communities(tmp_path / "saved") == 4
    assert main([*saved, "--overwrite", "--method", "random", "--communities", "4"]) == 2
    assert '--communities 4 needs --method "metis"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nodes: {source: a}", "must have the keys nodes and edges"),
        ("nodes: [", "is not valid YAML"),
        ("nodes: {source: a, colour: b}\nedges: {source: b}", "unknown colour"),
        ("nodes: {user: {id: a}}\nedges: []", "nodes, user: source is missing"),
        ("nodes: {user: {source: a}}\nedges: [{source: b}]", "each table needs type"),
        ("nodes: {source: gone.parquet}\nedges: {source: b}", "no Parquet or CSV file at gone"),
    ],
)
def test_what_is_wrong_with_the_file_is_said(tmp_path, content, message, capsys) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(content)
    out = str(tmp_path / "parts")
    assert main([str(path), "--root", out, "--num-partitions", "1"]) == 2
    assert message in capsys.readouterr().err
    assert main(["--root", out, "--num-partitions", "1"]) == 2
    assert "--nodes and --edges" in capsys.readouterr().err


def _saved(folder: Path, value: Any) -> Path:
    path = folder / "graph.pt"
    torch.save(value, path)
    return path


def _with_class() -> Any:
    data = TinyGraph.random(12, 40).to_pyg()
    data.note = Path("a")
    return data


GRAPHS = {
    "homogeneous": TinyGraph.random(12, 40),
    "heterogeneous": TinyGraph.random(12, 40, heterogeneous=True),
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("shape", ["graph", "dict", "dataset"])
def test_a_saved_pyg_graph(tmp_path: Path, graph: TinyGraph, shape: str, capsys) -> None:
    data = graph.to_pyg()
    saved = {"graph": data, "dict": data.to_dict(), "dataset": (data.to_dict(), None, type(data))}[
        shape
    ]
    flags = ["--pyg", str(_saved(tmp_path, saved)), "--num-partitions", "2", "--quiet"]
    assert main([*flags, "--root", str(tmp_path / "parts"), "--method", "random"]) == 0
    assert "parts: 2 partitions" in capsys.readouterr().out
    partition_graph(data, 2, tmp_path / "same", method="random", progress=False)
    for index in range(2):
        found, same = (DistDataset.load(tmp_path / one, index) for one in ("parts", "same"))
        assert repr(found) == repr(same)
        assert found.graph_identity == same.graph_identity
    assert main([*flags, "--root", str(tmp_path / "parts")]) == 2
    assert "or give --overwrite\n" in capsys.readouterr().err
    assert main([*flags, "--root", str(tmp_path / "parts"), "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("value", "more", "message"),
    [
        ([1], [], "must hold a Data or HeteroData, got list"),
        (({}, {"x": torch.arange(2)}, Data), [], "several graphs: save one of them"),
        (_with_class(), [], "save data.to_dict() instead"),
        ({"edge_index": torch.tensor([[0], [9]]), "num_nodes": 3}, [], "edge_index"),
        (_with_class().to_dict() | {"note": 1}, ["--memory", "1GB"], "leave out --memory"),
        ([1], ["--nodes", "a", "--edge-rows"], "leave out --edge-rows, --nodes"),
        ([1], ["tables.yaml"], "or --pyg, not both"),
    ],
)
def test_what_is_no_saved_graph_is_refused(tmp_path, value, more, message, capsys) -> None:
    flags = ["--pyg", str(_saved(tmp_path, value)), "--num-partitions", "1", "--quiet"]
    assert main([*flags, "--root", str(tmp_path / "parts"), *more]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "parts").exists()


def test_a_file_that_torch_did_not_write_is_refused(tmp_path: Path, capsys) -> None:
    path = tmp_path / "graph.pt"
    flags = ["--pyg", str(path), "--num-partitions", "1", "--root", str(tmp_path / "parts")]
    assert main(flags) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
    path.write_text("no graph")
    assert main(flags) == 2
    assert "graph.pt" in capsys.readouterr().err


def test_words_of_python_become_those_of_the_shell() -> None:
    text = 'give overwrite=True, feature_dtype="float64", threads= or memory= that fit; a=True'
    assert in_shell_words(text, ["overwrite", "feature_dtype", "threads", "memory"]) == (
        'give --overwrite, --feature-dtype "float64", --threads or --memory that fit; a=True'
    )


def test_tables_are_read_through_fsspec(tmp_path: Path) -> None:
    import fsspec

    nodes, edges = GRAPH.write(tmp_path / "tables", 2)
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path / "tables"), "/bucket", recursive=True)
    local = f"{tmp_path}/tables"

    def remote(table):
        return dataclasses.replace(table, source=table.source.replace(local, "memory://bucket"))

    partition_tables(
        {t: remote(one) for t, one in nodes.items()},
        {t: [remote(one) for one in several] for t, several in edges.items()},
        2,
        tmp_path / "parts",
        method="random",
        progress=False,
        threads=1,
    )
    check(GRAPH, [DistDataset.load(tmp_path / "parts", k) for k in range(2)], "in")
