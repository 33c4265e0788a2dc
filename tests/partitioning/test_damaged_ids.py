"""Dictionaries of ids on disk: each changed byte is refused by our own error."""

from pathlib import Path

import pyarrow as pa
import pytest
import torch

from gigl_loader import DistDataset, EdgeTable, NodeTable, partition_tables
from gigl_loader.errors import ConfigError


@pytest.mark.parametrize("ids", [["äa", "b", "cc", "d"], [7, 3, 5, 10**12]], ids=["text", "int"])
def test_a_changed_byte_of_ids_is_refused(tmp_path: Path, ids: list) -> None:
    nodes = NodeTable(pa.table({"id": ids}))
    edges = EdgeTable(pa.table({"src": [ids[0]], "dst": [ids[1]]}))
    root = tmp_path / "graph"
    partition_tables(nodes, edges, 2, root, progress=False, memory="300MB")
    files = sorted(path for path in (root / "ids").rglob("*") if path.is_file())
    assert len(files) >= 3
    for path in files:
        content = path.read_bytes()
        for at in range(0, len(content), 1 if path.suffix == ".bin" else 37):
            path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
            with pytest.raises(ConfigError, match=f"{path.name} has changed"):
                DistDataset.load(root, 0, verify="now")
            if path.suffix == ".parquet":  # read whole, so compared whatever was asked for
                with pytest.raises(ConfigError, match=f"{path.name} has changed"):
                    DistDataset.load(root, 0, verify="off").from_original(ids[:1])
        path.unlink()
        with pytest.raises(ConfigError, match=f"{path.name} is missing"):
            DistDataset.load(root, 0)
        path.write_bytes(content)
    dataset = DistDataset.load(root, 0, verify="now")
    assert dataset.to_original(torch.arange(4)).tolist() == ids
    assert dataset.from_original(ids).tolist() == [0, 1, 2, 3]
