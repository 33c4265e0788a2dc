"""The code of the page on GPUs, by a device's code on the CPU."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader, partition_graph
from gigl_loader.testing import one_rank

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "gpu.md"


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    edges = torch.randint(100, (2, 500), generator=torch.Generator().manual_seed(0))
    seen: list[int] = []
    data = Data(x=torch.rand(100, 4), edge_index=edges, train_mask=torch.arange(100) < 50)
    names: dict[str, Any] = {
        "DistDataset": DistDataset,
        "DistNeighborLoader": DistNeighborLoader,
        "data": data,
        "seeds": torch.arange(50),
        "folder": tmp_path / "graph",
        "rank": 0,
        "local_rank": 0,
        "seen": seen,
    }
    monkeypatch.setenv("LOCAL_RANK", "0")
    with one_rank(tmp_path):
        partition_graph(data, num_partitions=1, root=tmp_path / "graph", method="contiguous")
        for block in blocks:
            code = re.sub(r'\.to\(f?"cuda[^)]*\)', '.to("cpu", kernels="torch")', block)
            # the page's graph, folder and process group are those of the test
            code = re.sub(r"^data = .*|^dist.init_process_group.*", "", code, flags=re.MULTILINE)
            code = code.replace('"parts"', "folder")
            assert code != block
            exec(code.replace("...", "seen.append(batch.num_nodes)"), names)
            if "with " not in block:
                with names["loader"] as loader:
                    seen.append(next(iter(loader)).num_nodes)
    assert len(seen) == len(blocks)


def test_captures_allow_the_threads_of_loaders() -> None:
    """The default mode breaks a capture off if any thread asks for an event; so does the page."""
    root = PAGE.parents[2]
    files = [PAGE, *(root / "tests").rglob("*.py"), *(root / "examples").rglob("*.py")]
    text = "".join(file.read_text() for file in files if file != Path(__file__))
    captures = re.findall(r"torch\.cuda\.graph\((.*)\)", text)
    assert len(captures) >= 3
    assert all('capture_error_mode="thread_local"' in call for call in captures)
