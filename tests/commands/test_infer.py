"""``gigl-loader infer`` as its user runs it."""

import json
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric.data import Data

from gigl_loader import DistDataset, EdgeTable, NodeTable, partition_graph, partition_tables
from gigl_loader.commands.infer import main
from tests.inference import full_jobs
from tests.support.scripts import run_python

OPTIONS = {"in_channels": full_jobs.WIDTH, "hidden_channels": 8, "num_layers": 2, "out_channels": 4}


def _arguments(tmp_path: Path, num_partitions: int) -> tuple[list[str], torch.Tensor]:
    """Return the command's arguments, and what it has to compute."""
    data = full_jobs.graph()
    partition_graph(data, num_partitions, tmp_path / "graph", method="random", progress=False)
    model = pyg.GraphSAGE(**OPTIONS).eval()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    arguments = {
        "root": tmp_path / "graph",
        "out": tmp_path / "out",
        "model": "torch_geometric.nn:GraphSAGE",
        "model-options": json.dumps(OPTIONS),
        "checkpoint": tmp_path / "model.pt",
        "batch-size": 9,
    }
    flags = [text for name, value in arguments.items() for text in (f"--{name}", str(value))]
    return flags, model(data.x, data.edge_index).detach()


def _check(out: Path, wanted: torch.Tensor, num_partitions: int) -> None:
    ids, rows = (
        np.concatenate([np.load(out / f"part-{i:05d}{end}") for i in range(num_partitions)])
        for end in (".ids.npy", ".npy")
    )
    assert sorted(ids) == list(range(60))
    torch.testing.assert_close(torch.from_numpy(rows), wanted[ids], rtol=1e-5, atol=1e-5)


@pytest.mark.multiprocess
def test_it_starts_a_rank_for_each_partition(tmp_path: Path) -> None:
    arguments, wanted = _arguments(tmp_path, 2)
    done = run_python("-m", "gigl_loader.commands.infer", *arguments, timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert "rank 1: " in done.stdout
    _check(tmp_path / "out", wanted, 2)


def _tables(tmp_path: Path, ids: list) -> list[str]:
    """Partition tables with these ids; node ``i`` of the table has the features ``[i]``."""
    nodes = pa.table({"name": ids, "x": [[float(i)] for i in range(len(ids))]})
    edges = pa.table({"src": ids[:-1], "dst": ids[1:]})
    partition_tables(
        NodeTable(nodes, id="name", features="x", feature_dtype="float32"),
        EdgeTable(edges),
        2,
        tmp_path / "graph",
        method="random",
        progress=False,
        memory="300MB",
    )
    # weights are 1 for the node itself and 0 for its neighbours
    model = pyg.GraphSAGE(1, 1, num_layers=1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.fill_(1.0 if "lin_r" in name else 0.0)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    options = json.dumps({"in_channels": 1, "hidden_channels": 1, "num_layers": 1})
    return [
        "--root",
        str(tmp_path / "graph"),
        "--out",
        str(tmp_path / "out"),
        "--model",
        "torch_geometric.nn:GraphSAGE",
        "--model-options",
        options,
        "--checkpoint",
        str(tmp_path / "model.pt"),
        "--format",
        "parquet",
        "--quiet",
    ]


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "ids", [["zoë", "b", "", "d", "e"], [50, 3, 2**40, -7, 9]], ids=["text", "integers"]
)
def test_parquet_has_the_ids_of_the_tables_and_is_read_as_a_folder(
    tmp_path: Path, ids: list
) -> None:
    arguments = _tables(tmp_path, ids)
    done = run_python("-m", "gigl_loader", "infer", *arguments, timeout_s=300)
    assert done.returncode == 0, done.stderr
    table = pyarrow.dataset.dataset(tmp_path / "out").to_table()
    assert table.column_names == ["name", "node", "embedding"], "the table's own name"
    found = {row["name"]: row["embedding"] for row in table.to_pylist()}
    assert found == {one: [float(i)] for i, one in enumerate(ids)}
    dataset = DistDataset.load(tmp_path / "graph", 0)
    assert dataset.to_original(table["node"].to_numpy()).tolist() == table["name"].to_pylist()
    # and it is joined with the file of all ids, by either column
    pairs = pq.read_table(next((tmp_path / "graph" / "ids").glob("*.parquet")))
    joined = table.select(["name", "node"]).join(
        pairs, keys=["name", "node"], right_keys=["id", "node"], join_type="inner"
    )
    assert joined.num_rows == len(ids)
    assert pq.read_table(tmp_path / "out").num_rows == len(ids), "as pandas reads a folder"


def test_a_row_that_has_changed_is_another_graph(tmp_path: Path, capsys) -> None:
    data = Data(x=torch.rand(20_000, 1), edge_index=torch.tensor([[0], [1]]))
    partition_graph(data, 1, tmp_path / "graph", progress=False)
    arguments = [
        "--root",
        str(tmp_path / "graph"),
        "--out",
        str(tmp_path / "out"),
        "--model",
        "torch_geometric.nn:GraphSAGE",
        "--model-options",
        '{"in_channels": 1, "hidden_channels": 1, "num_layers": 1}',
        "--quiet",
        "--checkpoint",
        str(tmp_path / "model.pt"),
    ]
    torch.save(pyg.GraphSAGE(1, 1, num_layers=1).state_dict(), tmp_path / "model.pt")
    assert main(arguments) == 0
    assert main(arguments) == 0, "it goes on, with nothing to do"
    for row in (3, 10_001):
        changed = data.clone()
        changed.x[row] += 1
        partition_graph(changed, 1, tmp_path / "graph", progress=False, overwrite=True)
        assert main(arguments) == 2
        assert "differs in ['data']" in capsys.readouterr().err
    # on disk, behind our back
    (path,) = (tmp_path / "graph").rglob("node_features/*/values.bin")
    content = bytearray(path.read_bytes())
    content[777] ^= 4
    path.write_bytes(content)
    assert main(arguments) == 2
    assert "values.bin has changed since it was written" in capsys.readouterr().err


KILLED = """
import os, signal, sys
import torch
from torch_geometric.data import Data
from gigl_loader import DistDataset, full_graph_inference
out, last = sys.argv[1], int(sys.argv[2])
data = Data(x=torch.arange(60.0).view(-1, 1), edge_index=torch.tensor([[0], [1]]))
chunks = []
def layer(x, edge_index, num_dst):
    chunks.append(num_dst)
    if len(chunks) == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return x[:num_dst] + 1
full_graph_inference([layer, layer], DistDataset.from_pyg(data), out=out, batch_size=20)
print(len(chunks))
"""


@pytest.mark.multiprocess
def test_what_a_killed_run_leaves_is_not_taken_for_a_result(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for last in (2, 4):  # in the first layer, in the second one
        done = run_python("-c", KILLED, str(out), str(last))
        assert done.returncode == -signal.SIGKILL
        names = [path.name for path in out.iterdir()]
        assert names
        assert all(name.startswith("_") and not name.endswith(".npy") for name in names), names
    done = run_python("-c", KILLED, str(out), "0")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 2, "it went on"
    assert np.load(out / "part-00000.npy").tolist() == [[i + 2.0] for i in range(60)]
    assert np.load(out / "part-00000.ids.npy").tolist() == list(range(60))
    (out / "_part-00000.json").unlink()
    done = run_python("-c", KILLED, str(out), "0")
    assert "part-00000.npy was not written by such a run" in done.stderr


@pytest.mark.multiprocess
def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    arguments, wanted = _arguments(tmp_path, 2)
    done = run_python(
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--standalone",
        "-m",
        "gigl_loader",
        "infer",
        *arguments,
        timeout_s=300,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1: " in done.stdout
    _check(tmp_path / "out", wanted, 2)


def test_one_partition_needs_no_other_process(tmp_path: Path) -> None:
    arguments, wanted = _arguments(tmp_path, 1)
    assert main(arguments) == 0
    _check(tmp_path / "out", wanted, 1)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (("--model", "torch_geometric.nn:Nothing"), "--model torch_geometric.nn:Nothing cannot"),
        (("--model", "no_such_module:Model"), "cannot be made: No module"),
        (("--checkpoint", "missing.pt"), "--checkpoint missing.pt cannot be loaded"),
        (("--root", "missing"), "root='missing' does not exist"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(
    wrong: tuple[str, str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, _ = _arguments(tmp_path, 1)
    assert main([*arguments, *wrong]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
