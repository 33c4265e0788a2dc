"""A job of one process needs no process group."""

import pytest
import torch
import torch.distributed as dist
from torch_geometric.data import Data

from gigl_loader import DistABLPLoader, DistDataset, DistNeighborLoader
from gigl_loader.loader.runtime import runtime_or_alone
from gigl_loader.testing import one_rank

pytestmark = pytest.mark.multiprocess

RING = Data(edge_index=torch.stack([torch.arange(20), torch.arange(20).roll(1)]), num_nodes=20)


@pytest.mark.parametrize("world_size", [None, "1"])
def test_loaders_without_a_group(world_size, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once, also under a torchrun with one process, where the script made no group."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world_size is not None:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    dataset = DistDataset.from_pyg(RING, supervision=(RING.edge_index, None))
    with (
        DistNeighborLoader(dataset, [1], batch_size=6, even_ranks="wrap") as nodes,
        DistABLPLoader(dataset, [1], torch.arange(20), batch_size=6) as links,
    ):
        for loader in (nodes, links):
            assert torch.cat([batch.batch for batch in loader]).tolist() == list(range(20))
        assert nodes.state_dict()["world_size"] == 1
    assert not dist.is_initialized()


def test_a_group_that_is_there_counts(tmp_path) -> None:
    with one_rank(tmp_path):
        found = runtime_or_alone()
    assert (found.rank, found.world_size, found.local_world_size) == (0, 1, 1)
    assert not found.should_cleanup_distributed_context
