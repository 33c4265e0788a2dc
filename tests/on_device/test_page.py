"""The code of the page on GPUs, by a device's code on the CPU."""

import re
from pathlib import Path

import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.testing import one_rank

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "gpu.md"


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    edges = torch.randint(100, (2, 500), generator=torch.Generator().manual_seed(0))
    seen: list[int] = []
    names = {
        "DistDataset": DistDataset, "DistNeighborLoader": DistNeighborLoader,
        "data": Data(x=torch.rand(100, 4), edge_index=edges), "seeds": torch.arange(50),
        "seen": seen,
    }  # fmt: skip
    with one_rank(tmp_path):
        for block in blocks:
            assert '.to("cuda")' in block
            code = block.replace('.to("cuda")', '.to("cpu", kernels="torch")')
            exec(code.replace("...", "seen.append(batch.num_nodes)"), names)
    assert len(seen) == len(blocks)
