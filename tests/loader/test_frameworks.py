"""What "In your training loop" says of Accelerate and of Lightning Fabric."""

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch_geometric.loader import ZipLoader
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistNeighborLoader, UsageError, full_graph_inference
from gigl_loader.testing import TinyGraph, check_same_batches

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.filterwarnings("ignore"),  # theirs: about workers, deprecations
]
SEEDS = torch.arange(40)


def _loader() -> DistNeighborLoader:
    dataset = DistDataset.from_pyg(TinyGraph.random(60, 500).to_pyg())
    return DistNeighborLoader(
        dataset,
        [3, 2],
        SEEDS,
        batch_size=8,
        shuffle=True,
        seed=1,
        pin_memory_device=torch.device("cpu"),
    )


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


class _Wrapped(IterableDataset):
    """What people put around a loader to hand it to torch's."""

    def __init__(self, loader: DistNeighborLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator:
        return iter(self.loader)


def test_what_is_written_for_pygs_and_torchs_loaders() -> None:
    """Seeds are counted and zipped as PyG's are; what only torch's loader has is an answer."""
    from accelerate import skip_first_batches

    with _loader() as loader:
        assert len(loader.dataset) == 40
        (pair, *others) = ZipLoader([loader, loader], batch_size=16)
        assert len(others) == 2
        assert [one.batch.tolist() for one in pair] == [list(range(16))] * 2
        with pytest.raises(UsageError, match=r"no torch sampler: .*other draws.*\"yielded\": n"):
            skip_first_batches(loader, 2)
        assert not hasattr(loader, "sampler")
        for workers in (0, 1):
            with pytest.raises(UsageError, match="iterate over it, it has its own workers"):
                next(iter(DataLoader(loader, num_workers=workers)))
        with pytest.raises(UsageError, match=r"was built in another process.*fork") as caught:
            next(iter(DataLoader(_Wrapped(loader), batch_size=None, num_workers=1)))
        assert "shut down" not in str(caught.value)
        assert len(list(loader)) == len(loader), "it is still good here"


def test_the_first_batches_of_an_epoch_are_skipped_by_its_state() -> None:
    """What accelerate's ``skip_first_batches`` means, with the bits of the whole epoch."""
    with _loader() as loader:
        _, whole = list(loader), list(loader)
        loader.set_epoch(1)
        loader.load_state_dict({**loader.state_dict(), "yielded": 2})
        assert len(whole) == 5
        check_same_batches(whole[2:], list(loader))
        assert len(list(loader)) == 5, "the next epoch is whole"


def test_layers_over_all_nodes_are_computed_without_a_loader() -> None:
    """PyG's ``model.inference`` takes its own loaders alone."""
    data = TinyGraph.random(60, 500).to_pyg()
    dataset, model = DistDataset.from_pyg(data), GraphSAGE(2, 4, 2, out_channels=3).eval()
    with torch.no_grad():  # PyG's loader itself needs a native library
        expected = model(data.x, data.edge_index)
    torch.testing.assert_close(full_graph_inference(model, dataset).values, expected)
