"""What batches carry beside features and labels, against PyG's own ``filter_data``."""

import warnings

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.utils import filter_data, filter_hetero_data

from gigl_loader import DistDataset, DistNeighborLoader, partition_graph

pytestmark = pytest.mark.multiprocess

WRITES = ("author", "writes", "paper")
CITES = ("paper", "cites", "paper")


def _homogeneous() -> Data:
    generator = torch.Generator().manual_seed(1)
    data = Data(
        x=torch.arange(40.0),
        edge_index=torch.randint(40, (2, 150), generator=generator),
        edge_attr=torch.arange(150, dtype=torch.float16),
        y=torch.arange(40) % 3,
    )
    data.train_mask = torch.arange(40) % 2 == 0
    data.time = torch.arange(40) * 10
    data.pos = np.arange(120, dtype=np.float32).reshape(40, 3)
    data.edge_weight = torch.rand(150, 1, dtype=torch.float64, generator=generator)
    data.edge_time = torch.arange(150, dtype=torch.int32)
    data.pair_index = torch.arange(300).reshape(2, 150)  # PyG's rule: "index" has rows last
    data.grid = torch.arange(40 * 6).reshape(40, 2, 3).to(torch.bfloat16)
    return data


def _heterogeneous() -> HeteroData:
    generator = torch.Generator().manual_seed(2)
    data = HeteroData()
    data["paper"].x = torch.rand(30, 4, generator=generator)
    data["paper"].time = torch.arange(30)
    data["paper"].paper_index = torch.arange(60).reshape(30, 2)  # of nodes, rows come first
    data["author"].num_nodes = 12
    data["author"].known = torch.arange(12) % 2 == 0
    for edge_type, sources in ((WRITES, 12), (CITES, 30)):
        ends = [torch.randint(count, (60,), generator=generator) for count in (sources, 30)]
        data[edge_type].edge_index = torch.stack(ends)
        data[edge_type].weights = torch.rand(60, generator=generator)
    data[CITES].pair_index = torch.arange(120).reshape(2, 60)
    return data


def _check(found, expected, names: set[str]) -> None:
    assert names <= set(found.keys())
    for name in names:
        value, wanted = found[name], expected[name]
        assert torch.equal(value, wanted), name
        assert (value.dtype, value.shape) == (wanted.dtype, wanted.shape), name


@pytest.mark.usefixtures("group")
def test_a_homogeneous_batch_has_all_that_pyg_carries() -> None:
    data = _homogeneous()
    dataset = DistDataset.from_pyg(data)
    names = {key for key in data.keys() if key != "edge_index"}  # noqa: SIM118
    with DistNeighborLoader(dataset, [3, 2], num_workers=2, batch_size=7, seed=1) as loader:
        for batch in loader:
            row, col = batch.edge_index
            expected = filter_data(data, batch.n_id, row, col, batch.e_id)
            _check(batch, expected, names)
    assert batch.x.dim() == batch.edge_attr.dim() == 1
    with DistNeighborLoader(dataset, [3], batch_size=20, with_edge=False) as loader:
        batch = next(iter(loader))
    assert "time" in batch
    assert not {"edge_weight", "edge_time", "e_id"} & set(batch.keys())


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_heterogeneous_batch_has_all_that_pyg_carries(edge_dir, tmp_path) -> None:
    """Over a partition directory, too."""
    data = _heterogeneous()
    partition_graph(data, 1, tmp_path / "graph", edge_dir=edge_dir, progress=False)
    dataset = DistDataset.load(tmp_path / "graph", 0)
    seeds = ("paper", torch.arange(30))
    with DistNeighborLoader(dataset, [2, 2], seeds, batch_size=9, seed=1) as loader:
        batches = list(loader)
    names = {WRITES: WRITES, CITES: CITES}
    if edge_dir == "out":
        names = {WRITES: ("paper", "rev_writes", "author"), CITES: CITES}
    for batch in batches:
        edges = {t: batch[name].e_id for t, name in names.items()}
        rows = {t: batch[name].edge_index[0] for t, name in names.items()}
        nodes = {t: batch[t].n_id for t in data.node_types}
        expected = filter_hetero_data(data, nodes, rows, dict(rows), edges)
        _check(batch["paper"], expected["paper"], {"x", "time", "paper_index"})
        _check(batch["author"], expected["author"], {"known"})
        _check(batch[names[WRITES]], expected[WRITES], {"weights"})
        _check(batch[names[CITES]], expected[CITES], {"weights", "pair_index"})


def test_what_cannot_be_carried_is_named() -> None:
    data = _homogeneous()
    data.title = "cora"
    data.names = [str(i) for i in range(40)]
    data.scale = torch.tensor(3.0)
    data.table = torch.zeros(7, 2)
    data.n_id = torch.arange(40)
    with pytest.warns(UserWarning, match="batches will not carry") as caught:
        DistDataset.from_pyg(data)
    text = str(caught[0].message)
    assert caught[0].filename == __file__
    for name in ("title", "names", "scale", "table", "n_id"):
        assert f"data.{name} (" in text
    assert "time" not in text
    typed = _heterogeneous()
    typed["paper"].words = ["a"] * 30
    typed.year = 2020
    with pytest.warns(UserWarning, match=r"data\['paper'\].words .*data.year"):
        DistDataset.from_pyg(typed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DistDataset.from_pyg(_homogeneous())
