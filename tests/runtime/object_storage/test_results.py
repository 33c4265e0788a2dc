"""What jobs write to object storage: partitions of tables, and embeddings."""

import json
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric.data import Data

from gigl_loader import (
    DistDataset,
    EdgeTable,
    NodeTable,
    full_graph_inference,
    partition_graph,
    partition_tables,
    save_checkpoint,
)
from gigl_loader.commands.infer import main
from gigl_loader.commands.partition import main as partition
from gigl_loader.dataset.identity import content_digest
from gigl_loader.errors import ConfigError, ObjectStorageError
from gigl_loader.inference.results import Destination
from gigl_loader.runtime.object_storage import object_folder as object_storage
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder
from tests.inference.exchange_in_threads import run_threads
from tests.runtime.object_storage.object_server import Fault, failing


def _partition(folder: Path, root: Any) -> Any:
    return partition_tables(
        NodeTable(folder / "nodes.parquet", id="name", features="x", feature_dtype="float32"),
        EdgeTable(folder / "edges.parquet"),
        2,
        root,
        progress=False,
        memory="300MB",
    )


def test_tables_are_partitioned_once_though_the_upload_fails(storage, tmp_path, monkeypatch):
    monkeypatch.setattr(object_storage, "_RETRIES", 0)
    names = [f"n{i}" for i in range(30)]
    nodes = pa.table({"name": names, "x": [[float(i)] for i in range(30)]})
    pq.write_table(nodes, tmp_path / "nodes.parquet")
    edges = pa.table({"src": names[:-1], "dst": names[1:]})
    pq.write_table(edges, tmp_path / "edges.parquet")
    local = _partition(tmp_path, tmp_path / "local")
    storage.proxy.faults = [Fault(failing(500, "InternalError"), r".*\.parquet", "PUT")]
    with pytest.raises(ObjectStorageError, match="object storage failed"):
        _partition(tmp_path, storage.url)
    with pytest.raises(ConfigError, match="is missing"):
        DistDataset.load(storage.url, 0)
    storage.proxy.faults = []
    for name in ("nodes", "edges"):  # they are not read again
        (tmp_path / f"{name}.parquet").unlink()
    assert _partition(tmp_path, storage.url).run == local.run
    assert not list((tmp_path / "cache" / "write").iterdir())
    fetched, expected = DistDataset.load(storage.url, 1), DistDataset.load(tmp_path / "local", 1)
    assert content_digest(fetched.view(), whole=True) == content_digest(expected.view(), whole=True)
    ids = fetched.node_ids
    assert list(fetched.to_original(ids)) == list(expected.to_original(ids))
    assert fetched.from_original(["n3"]).tolist() == expected.from_original(["n3"]).tolist()
    with pytest.raises(ConfigError, match="holds partitions"):
        _partition(tmp_path, storage.url)


def test_the_same_versions_are_already_at_the_url(storage, tmp_path, capsys) -> None:
    ids = list(range(30))
    deltalake.write_deltalake(str(tmp_path / "nodes"), pa.table({"id": ids, "x": ids}))
    deltalake.write_deltalake(str(tmp_path / "edges"), pa.table({"src": ids, "dst": ids[::-1]}))
    (tmp_path / "graph.yaml").write_text(
        f"nodes: {{delta: {tmp_path}/nodes, features: x}}\nedges: {{delta: {tmp_path}/edges}}\n"
    )
    flags = [str(tmp_path / "graph.yaml"), "--root", storage.url, "--quiet", "--threads", "1"]
    flags += ["--num-partitions", "2"]
    folder = ObjectFolder(storage.url)

    def run(*more: str) -> tuple[int, str, bool]:
        storage.proxy.requests.clear()
        code = partition([*flags, *more])
        said = capsys.readouterr()
        return code, said.out + said.err, any(r.method == "PUT" for r in storage.proxy.requests)

    code, first, wrote = run()
    assert (code, wrote) == (0, True)
    assert "already there" not in first
    for more in ([], ["--overwrite"]):  # nothing of it is on this machine any more
        code, said, wrote = run(*more)
        assert (code, wrote) == (0, False)
        assert "already there" in said
        assert said.partition(", ")[0] == first.partition(", ")[0]
    assert run("--seed=1")[0] == 2  # another graph is refused as ever
    report = folder.read("report.json")
    for damaged in (b"{", b"[]", report.replace(b'"run": "', b'"run": "0')):
        folder.write("report.json", damaged)
        code, said, wrote = run()
        assert (code, wrote) == (2, False)
        assert "holds partitions" in said
    folder.write("report.json", report)
    folder.remove(["gigl_loader.json"])  # as an upload that was killed leaves it
    code, said, wrote = run()
    assert (code, wrote) == (0, True)
    assert "already there" not in said
    assert DistDataset.load(storage.url, 0).num_partitions == 2


def _graph() -> Data:
    ids = torch.arange(20)
    return Data(x=ids[:, None].float(), edge_index=torch.stack([ids, (ids + 1) % 20]))


def test_embeddings_are_read_from_the_url(storage, tmp_path, capsys) -> None:
    partition_graph(_graph(), 1, f"{storage.url}/graph", progress=False)
    model = pyg.GraphSAGE(1, 4, num_layers=1)
    save_checkpoint({"model": model.state_dict()}, f"{storage.url}/model.pt")
    options = json.dumps({"in_channels": 1, "hidden_channels": 4, "num_layers": 1})
    words = [
        "--root",
        f"{storage.url}/graph",
        "--out",
        f"{storage.url}/out",
        "--format=parquet",
        "--model=torch_geometric.nn:GraphSAGE",
        "--model-options",
        options,
        f"--checkpoint={storage.url}/model.pt",
        "--quiet",
    ]
    assert main(words) == 0
    assert f"{storage.url}/out/part-00000.parquet" in capsys.readouterr().out
    puts = [r.key for r in storage.proxy.requests if r.method == "PUT"]
    assert puts[-1].endswith("/out/_manifest.json")
    # by the file system that pandas takes for such a URL
    table = pd.read_parquet(f"{storage.url}/out").set_index("node").sort_index()
    wanted = model.eval()(_graph().x, _graph().edge_index).detach()
    torch.testing.assert_close(torch.tensor(np.stack(table["embedding"].to_list())), wanted)
    assert not list((tmp_path / "cache" / "write").iterdir())
    assert main(words) == 2
    assert "has results: give out= another folder" in capsys.readouterr().err


def test_a_run_whose_upload_failed_only_uploads_again(storage, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(object_storage, "_RETRIES", 0)
    dataset, calls = DistDataset.from_pyg(_graph()), []

    def layer(x, edge_index, num_dst):
        calls.append(num_dst)
        return x[:num_dst] + 1

    storage.proxy.faults = [Fault(failing(500, "InternalError"), r".*\.npy", "PUT")]
    with pytest.raises(ObjectStorageError):
        full_graph_inference([layer], dataset, out=storage.url, progress=False)
    computed = len(calls)
    assert "_manifest.json" not in ObjectFolder(storage.url).sizes()
    storage.proxy.faults = []
    found = full_graph_inference([layer], dataset, out=storage.url, progress=False)
    assert len(calls) == computed
    assert found.path == f"{storage.url}/part-00000.npy"
    assert found.values[:, 0].tolist() == [i + 1.0 for i in range(20)]
    manifest = json.loads(ObjectFolder(storage.url).read("_manifest.json"))
    sizes = ObjectFolder(storage.url).sizes()
    assert manifest == {"files": {n: sizes[n] for n in ("part-00000.npy", "part-00000.ids.npy")}}


def test_the_manifest_comes_after_the_files_of_all_ranks(storage) -> None:
    folder = ObjectFolder(storage.url)
    for name in ("part-00002.parquet", "user/part-00007.ids.npy", "notes.parquet"):
        folder.write(name, b"of a killed run with more ranks, or of a user")

    def rank(exchange) -> None:
        destination = Destination(storage.url)
        assert destination.folder is not None
        destination.folder.mkdir(parents=True, exist_ok=True)
        path = destination.folder / f"part-{exchange.rank:05d}.parquet"
        path.write_bytes(bytes(exchange.rank + 1))
        (destination.folder / f"_part-{exchange.rank:05d}.log").touch()
        destination.publish(exchange, None)

    run_threads(2, rank)
    puts = [r.key for r in storage.proxy.requests if r.method == "PUT"]
    assert puts[-1].endswith("/_manifest.json")
    names = {"part-00000.parquet": 1, "part-00001.parquet": 2}
    assert json.loads(folder.read("_manifest.json")) == {"files": names}
    assert {*folder.sizes()} == {*names, "_manifest.json", "notes.parquet"}
