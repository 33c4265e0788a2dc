"""What was meant as a URL is one, or refused: as a path it would be in errors and on the disk."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import (
    EdgeTable,
    NodeTable,
    full_graph_inference,
    load_checkpoint,
    partition_graph,
    partition_tables,
    save_checkpoint,
)
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.errors import ConfigError
from gigl_loader.graph_store.serve import serve_main
from gigl_loader.runtime.object_storage.folder_cache import Cache
from tests.runtime.object_storage.object_server import SECRET

_DATA = Data(x=torch.arange(4.0), edge_index=torch.tensor([[0, 1], [1, 2]]))
_TABLE = NodeTable("nodes.parquet", id="id")
_EDGES = {("a", "to", "a"): EdgeTable("edges.parquet", src="src", dst="dst")}

USES: dict[str, Callable[[str], object]] = {
    "load": lambda url: DistDataset.load(url, 0),
    "cache": lambda url: Cache(url),
    "partition_graph": lambda url: partition_graph(_DATA, 1, url, progress=False),
    "partition_tables": lambda url: partition_tables({"a": _TABLE}, _EDGES, 1, url),
    "scratch": lambda url: partition_tables({"a": _TABLE}, _EDGES, 1, "parts", scratch=url),
    "a table": lambda url: partition_tables({"a": NodeTable(url, id="id")}, _EDGES, 1, "parts"),
    "save": lambda url: save_checkpoint({}, url),
    "load a checkpoint": lambda url: load_checkpoint(url),
    "inference": lambda url: full_graph_inference(
        torch.nn.Identity(), DistDataset.from_pyg(_DATA), out=url
    ),
}


@pytest.mark.parametrize("start", [" s3://", "s3:/", "\ts3://", "s3:/ /", "1s3://"])
@pytest.mark.parametrize("use", USES)
def test_a_mistyped_url_is_refused_without_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, use: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="neither a path nor a URL") as raised:
        USES[use](f"{start}AK:{SECRET}@bucket/x")
    assert SECRET not in str(raised.value)
    assert "bucket/x" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("use", ["cache", "scratch"])
def test_a_url_in_place_of_a_folder_is_refused_without_its_user(use: str) -> None:
    with pytest.raises(ConfigError, match="must be a local directory, got s3://b/x") as raised:
        USES[use](f"s3://AK:{SECRET}@b/x")
    assert SECRET not in str(raised.value)


def test_the_folder_of_copies_in_the_environment_is_no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIGL_LOADER_CACHE_DIR", "s3://bucket/x")
    with pytest.raises(ConfigError, match="must be a local directory"):
        Cache()


def test_a_server_names_no_user_of_a_mistyped_url(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert serve_main(["--root", f"s3:/AK:{SECRET}@bucket/x", "--host", "127.0.0.1"]) == 2
    assert "neither a path nor a URL" in caplog.text
    assert SECRET not in caplog.text
