"""Too little memory of a device is said before anything is allocated, with the plan's figures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.conditions import Gpus
from torch_geometric.data import Data

from gigl_loader import ConfigError, DistDataset, DistNeighborLoader, partition_graph
from gigl_loader.commands.planning import main
from gigl_loader.dataset.placement import Placement
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.device.memory import DeviceMemory
from gigl_loader.on_device import device_expansion
from gigl_loader.on_device.device_expansion import DeviceExpansion
from gigl_loader.on_device.device_graph import LocalDeviceGraph
from gigl_loader.on_device.device_kernels import TorchKernels
from gigl_loader.plan.needs import CONCURRENCY
from gigl_loader.sampler.bounds import BATCHES_HELD
from gigl_loader.sampler.plan import SamplingPlan

NODES, DEGREE, DIM = 2000, 25, 32
ONE: dict[str, Any] = {"batch_size": 50, "num_workers": 0, "seed": 1}


def _data() -> Data:
    draw = torch.Generator().manual_seed(0)
    target = torch.arange(NODES).repeat_interleave(DEGREE)
    source = torch.randint(NODES, (NODES * DEGREE,), generator=draw)
    return Data(
        x=torch.rand(NODES, DIM), y=torch.arange(NODES), edge_index=torch.stack([source, target])
    )


def _planned(capsys: pytest.CaptureFixture[str], gpu: str = "80GB") -> dict[str, Any]:
    words = [
        "--nodes", str(NODES), "--edges", str(NODES * DEGREE), "--dim", str(DIM),
        "--batch-size", "50", "--num-neighbors", "5,4", "--gpu", gpu, "--json",
    ]  # fmt: skip
    assert main(words) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["gpu"]
    return found


def test_a_placed_graph_takes_what_was_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partition_graph(_data(), 1, tmp_path)
    planned, view = _planned(capsys), DistDataset.load(tmp_path, 0).view()
    on_device, on_host = Placement(torch.device("cpu"), "host").nbytes(view)
    assert on_host == planned["features"]
    assert on_device == pytest.approx(planned["structure"], rel=0.01)
    everything, _ = Placement(torch.device("cpu")).nbytes(view)
    assert everything == on_device + on_host


@pytest.mark.parametrize("features", ["device", "host"])
def test_a_graph_that_does_not_fit_is_refused_before_it_is_copied(
    features: Any, gpus: Gpus
) -> None:
    """Torch here has no CUDA: a copy would be another error."""
    dataset = DistDataset.from_pyg(_data())
    gpus.append(10**12)
    wanted = Placement(torch.device("cuda", 0), features).nbytes(dataset.view())[0]
    gpus[0] = wanted  # a tenth of it is the model's
    with pytest.raises(
        ConfigError, match=r"the graph takes .* of cuda:0, which has .* free.*--gpu"
    ):
        dataset.to("cuda", features=features)
    assert dataset.placement is None


@pytest.mark.parametrize(("hop", "places", "fanout"), [(1, 250, 5), (2, 1000, 4)])
def test_hops_that_may_draw_too_many_are_refused(
    hop: int, places: int, fanout: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 seeds draw 5 each, and those 4 each."""
    placed = DistDataset.from_pyg(_data()).to("cpu", kernels="torch")
    fanouts = [5, 4][:hop]
    monkeypatch.setattr(device_expansion, "_MOST_PLACES", places)
    with DistNeighborLoader(placed, fanouts, torch.arange(50), **ONE) as loader:
        assert next(iter(loader)).num_edges <= sum([250, 1000][:hop])
    monkeypatch.setattr(device_expansion, "_MOST_PLACES", places - 1)
    words = rf"hop {hop} over .* may draw {places:,} neighbours \(fan-out {fanout}, .* {DEGREE}\)"
    with pytest.raises(ConfigError, match=words):
        DistNeighborLoader(placed, fanouts, torch.arange(50), **ONE)


class SmallMemory(DeviceMemory):
    """Memory of a device that has so much free."""

    free: int

    def free_bytes(self) -> int:
        return self.free


@pytest.fixture
def small_memory(
    memory_of_devices: Callable[[type[DeviceMemory]], None],
) -> type[SmallMemory]:
    memory_of_devices(SmallMemory)
    return SmallMemory


def test_batches_that_do_not_fit_are_refused_before_one_is_launched(
    small_memory: type[SmallMemory], capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = DistDataset.from_pyg(_data()).to("cpu", kernels="torch")
    nodes = torch.arange(200)
    small_memory.free = _planned(capsys)["batches"] + (CONCURRENCY + BATCHES_HELD) * LABELS
    with DistNeighborLoader(dataset, [5, 4], nodes, **ONE) as loader:
        next(iter(loader))
    small_memory.free -= 1
    text = rf"batches take up to .* of cpu, .*: {CONCURRENCY} are under way.*plan --gpu.*lower"
    with pytest.raises(ConfigError, match=text):
        DistNeighborLoader(dataset, [5, 4], nodes, **ONE)
    with DistNeighborLoader(dataset, [5, 4], nodes, **ONE, worker_concurrency=1) as loader:
        next(iter(loader))


# 50 roots, then 5 neighbours of each, then 4 of each: every node that a batch may have
MOST_NODES = 50 * (1 + 5 + 20)
LABELS = MOST_NODES * 8
"""Bytes of `y` in a batch, which the plan has no word for."""


@pytest.mark.parametrize(
    ("features", "bytes_of_a_row"),
    [({}, DIM * 4), ({"feature_dtype": "float16"}, DIM * 6), ({"feature_dtype": "int8"}, DIM * 5)],
    ids=["float32", "float16, widened", "int8, widened"],
)
def test_rows_are_counted(
    features: dict[str, Any], bytes_of_a_row: int, small_memory: type[SmallMemory],
    tmp_path: Path,
) -> None:  # fmt: skip
    partition_graph(_data(), 1, tmp_path, **features)
    dataset = DistDataset.load(tmp_path, 0).to("cpu", kernels="torch")
    small_memory.free = (CONCURRENCY + BATCHES_HELD) * (
        _bytes_without_rows(dataset) + MOST_NODES * bytes_of_a_row + LABELS
    )
    DistNeighborLoader(dataset, [5, 4], torch.arange(200), **ONE).shutdown()
    small_memory.free -= 1
    with pytest.raises(ConfigError, match="and for their rows"):
        DistNeighborLoader(dataset, [5, 4], torch.arange(200), **ONE)


def _bytes_without_rows(dataset: DistDataset) -> int:
    """Return the most bytes of the structure of a batch."""
    view = dataset.view()
    plan = SamplingPlan(input_type=NODE, fanouts=dict.fromkeys(view.adjacency, (5, 4)), seed=1)
    kernels = TorchKernels(torch.device("cpu"))
    graph = LocalDeviceGraph(view, list(plan.fanouts), kernels)
    return DeviceExpansion(graph, plan, kernels, None).device_bytes({NODE: 50}, {})


def test_memory_that_torch_keeps_to_use_again_is_free(gpus: Gpus) -> None:
    memory = DeviceMemory(torch.device("cpu"))
    assert memory.free_bytes() is None
    memory._on_cuda = True
    gpus.append(5)
    gpus.reserved, gpus.allocated = 40, 30
    assert memory.free_bytes() == 5 + 40 - 30
