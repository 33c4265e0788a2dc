"""Embeddings as Parquet, row group by row group."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from gigl_loader.errors import ConfigError
from gigl_loader.inference import results
from gigl_loader.inference.layerwise import full_graph_inference
from gigl_loader.inference.results import ParquetRows, TableIds
from tests.inference import full_jobs

IDS = torch.arange(10) * 3
ROWS = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))


def _read(path: Path) -> tuple[list[int], np.ndarray]:
    table = pq.read_table(path)
    return table["id"].to_pylist(), np.array(table["embedding"].to_pylist())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_rows_come_back_with_their_ids(dtype: torch.dtype, tmp_path: Path) -> None:
    path, rows = tmp_path / "part-00000.parquet", ROWS.to(dtype)
    file = ParquetRows(path, tmp_path / "half", IDS, 4, TableIds("id", lambda ids: ids.numpy()))
    file.advance(rows, 4)
    file.advance(rows, 4)
    file.advance(rows, 6)
    assert not path.exists(), "it has its name when it is complete"
    file.finish(rows)
    file.close()
    ids, found = _read(path)
    assert ids == IDS.tolist()
    assert np.array_equal(found, rows.double().numpy())
    assert str(pq.read_schema(path).field("embedding").type).startswith("fixed_size_list")
    groups = pq.ParquetFile(path).metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [4, 2, 4]
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_rank_without_nodes_has_a_file_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "part-00003.parquet"
    own = TableIds("id", lambda ids: np.empty(0, object))
    file = ParquetRows(path, tmp_path / "half", IDS[:0], 4, own)
    file.finish(ROWS[:0])
    assert pq.read_table(path).num_rows == 0
    assert str(pq.read_schema(path).field("id").type) == "string"


@pytest.mark.parametrize(
    ("column", "names"),
    [
        ("user_id", ["user_id", "node", "embedding"]),
        ("node", ["node", "node_", "embedding"]),
        ("Embedding", ["Embedding", "node", "embedding_"]),
    ],
)
def test_ids_have_the_name_of_their_table(column: str, names: list[str], tmp_path: Path) -> None:
    """And a column of ours gives way, so that no join takes our numbers for the table's."""
    path, own = tmp_path / "part-00000.parquet", TableIds(column, lambda ids: ids.numpy() + 1)
    file = ParquetRows(path, tmp_path / "half", IDS, 4, own)
    file.finish(ROWS)
    table = pq.read_table(path)
    assert table.column_names == names
    assert table[names[0]].to_pylist() == (IDS + 1).tolist()
    assert table[names[1]].to_pylist() == IDS.tolist()


def test_what_is_not_finished_has_not_the_name(tmp_path: Path) -> None:
    file = ParquetRows(tmp_path / "part-00000.parquet", tmp_path / "half", IDS, 4, None)
    file.close()
    file.advance(ROWS, 5)
    file.close()
    assert [one.name for one in tmp_path.iterdir()] == ["half"]


def test_parquet_needs_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"gigl_loader\[tables\]"):
        results.check_parquet()


def test_rows_of_parquet_are_written_as_they_are_computed(tmp_path: Path) -> None:
    sizes = []

    def layer(x: Any, edge_index: Any, num_dst: int) -> torch.Tensor:
        sizes.append((tmp_path / "_part-00000.parquet.half").exists())
        return x[:num_dst].repeat(1, 50)

    dataset = full_jobs.partition(full_jobs.graph(), 0, 1)
    full_graph_inference([layer], dataset, out=tmp_path, batch_size=20, format="parquet")
    assert sizes == [False, True, True]
