"""What "In your training loop" says of Accelerate and of Lightning Fabric."""

import pytest
import torch
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.testing import TinyGraph

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.filterwarnings("ignore"),  # theirs: about workers, deprecations
]
SEEDS = torch.arange(40)


def _loader() -> DistNeighborLoader:
    dataset = DistDataset.from_pyg(TinyGraph.random(60, 500).to_pyg())
    return DistNeighborLoader(
        dataset, [3, 2], SEEDS, batch_size=8, shuffle=True, seed=1,
        pin_memory_device=torch.device("cpu"),
    )  # fmt: skip


def _train(loader, model, optimizer, backward) -> list[int]:
    """Return the seeds of one epoch; the weights must have moved."""
    before = [parameter.clone() for parameter in model.parameters()]
    seen = []
    for batch in loader:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        optimizer.zero_grad()
        backward(out.square().mean())
        optimizer.step()
        seen += batch.batch.tolist()
    moved = zip(before, model.parameters(), strict=True)
    assert any(not torch.equal(old, new) for old, new in moved)
    return seen


def _parts() -> tuple[GraphSAGE, torch.optim.Optimizer]:
    model = GraphSAGE(2, 4, num_layers=2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("given", [False, True], ids=["left out", "handed over"])
def test_accelerate_prepares_the_model(given: bool) -> None:
    """Its ``prepare`` hands a loader that is no torch DataLoader through as it is."""
    from accelerate import Accelerator  # here: each process that runs tests would import it

    accelerator = Accelerator(cpu=True)
    model, optimizer = _parts()
    with _loader() as loader:
        if given:
            model, optimizer, prepared = accelerator.prepare(model, optimizer, loader)
            assert prepared is loader
        else:
            model, optimizer = accelerator.prepare(model, optimizer)
        seen = _train(loader, model, optimizer, accelerator.backward)
    assert sorted(seen) == SEEDS.tolist()


def test_fabric_sets_up_the_model_and_leaves_the_loader() -> None:
    """Its ``setup_dataloaders`` takes torch's DataLoader only."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(*_parts())
    with _loader() as loader:
        with pytest.raises(TypeError, match="DataLoader"):
            fabric.setup_dataloaders(loader)
        assert sorted(_train(loader, model, optimizer, fabric.backward)) == SEEDS.tolist()
