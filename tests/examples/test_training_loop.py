"""What a training loop does with loaders on several ranks: DDP with uneven inputs."""

from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.testing import run_ranks

pytestmark = pytest.mark.multiprocess


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = SAGEConv(1, 1)

    def forward(self, batch: Data) -> torch.Tensor:
        return self.conv(batch.x, batch.edge_index)[: batch.batch_size]


def _loader(num_seeds: int, even_ranks: Literal["drop", "wrap"] | None) -> DistNeighborLoader:
    edge_index = torch.stack([torch.arange(40), torch.arange(40).roll(1)])
    data = Data(x=torch.ones(40, 1), edge_index=edge_index)
    return DistNeighborLoader(
        DistDataset.from_pyg(data),
        [2],
        torch.arange(num_seeds),
        batch_size=4,
        seed=0,
        even_ranks=even_ranks,
    )


def _train(loader: DistNeighborLoader, model: DistributedDataParallel) -> list[int]:
    seeds: list[int] = []
    for batch in loader:
        model(batch).sum().backward()
        seeds += batch.batch.tolist()
    return seeds


def _resume_from_rank_0(loader: DistNeighborLoader, steps: int) -> None:
    """One rank writes the checkpoint: in step, the others go on from it, too."""
    epoch = [batch.batch.tolist() for batch in loader]
    loader.set_epoch(loader.epoch - 1)
    batches = iter(loader)
    first = next(batches).batch.tolist()
    state = [loader.state_dict()]
    dist.broadcast_object_list(state, src=0)
    loader.load_state_dict(state[0])
    rest = [batch.batch.tolist() for batch in loader]
    assert [first, *rest] == epoch
    assert len(epoch) == steps


def _no_rank_waits_for_ever(rank: int, size: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(_Model())
    # 9 seeds on 2 ranks: 5 and 4 of them, that is 2 batches and 1
    steps: list[int] = [0] * size
    cases: list[tuple[Literal["drop", "wrap"], list[int]]] = [("drop", [1, 1]), ("wrap", [2, 2])]
    for even_ranks, expected in cases:
        with _loader(9, even_ranks) as loader:
            dist.all_gather_object(steps, len(loader))
            assert steps == expected, even_ranks
            assert len(_train(loader, model)) >= 4
            _resume_from_rank_0(loader, expected[0])
    with _loader(9, None) as loader:
        dist.all_gather_object(steps, len(loader))
        assert steps == [2, 1]
        with Join([model]):  # the rank that has finished answers the other's collectives
            seeds = _train(loader, model)
    found: list[list[int]] = [[]] * size
    dist.all_gather_object(found, seeds)
    assert sorted(found[0] + found[1]) == list(range(9))


def test_ddp_with_uneven_inputs_ends(tmp_path: Path) -> None:
    run_ranks(_no_rank_waits_for_ever, world_size=2, tmp_path=tmp_path, timeout=400)
