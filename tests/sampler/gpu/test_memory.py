"""Too little memory of a device is said before anything is allocated, with the plan's figures."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    ConfigError,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    SamplingError,
    partition_graph,
)
from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.commands.capacity.needs import CONCURRENCY
from gigl_loader.commands.plan import main
from gigl_loader.dataset.placement import Placement
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.sampler.batch_bounds import BATCHES_HELD
from gigl_loader.sampler.gpu import device_expansion, warp_kernels
from gigl_loader.sampler.gpu.device_expansion import DeviceExpansion
from gigl_loader.sampler.gpu.device_graph import LocalDeviceGraph
from gigl_loader.sampler.gpu.device_kernels import TorchKernels
from gigl_loader.sampler.plan import SamplingPlan
from tests.sampler.gpu.tapes import TapedMemory
from tests.support.conditions import Gpus

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
        "--nodes",
        str(NODES),
        "--edges",
        str(NODES * DEGREE),
        "--dim",
        str(DIM),
        "--batch-size",
        "50",
        "--num-neighbors",
        "5,4",
        "--gpu",
        gpu,
        "--json",
    ]
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


def test_each_batch_of_links_is_checked_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ends and negatives are roots, too, which are known with the batch alone."""
    placed = DistDataset.from_pyg(_data()).to("cpu", kernels="torch")
    monkeypatch.setattr(device_expansion, "_MOST_PLACES", 250)  # enough for 50 seeds that draw 5
    links = torch.arange(200).view(2, 100)
    with (
        DistLinkNeighborLoader(placed, [5], links, neg_sampling="binary", **ONE) as loader,
        pytest.raises(SamplingError, match=r"hop 1 over .* may draw [\d,]+ neighbours"),
    ):
        next(iter(loader))


def test_more_places_than_are_labelled_at_once_are_refused() -> None:
    """Each edge type may draw what one hop may, and all together have one index of 32 bits."""
    edge_types = [("a", f"to {at}", "b") for at in range(5)] + [("b", "back", "a")]
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = 2
    for edge_type in edge_types:
        data[edge_type].edge_index = torch.tensor([[0], [1]])
    view = DistDataset.from_pyg(data, edge_dir="out").view()
    view = replace(view, num_nodes={"a": 1 << 40, "b": 1 << 40})
    seeds = 1 << 20
    with pytest.raises(
        ConfigError,
        match=r"hop 1 may draw 1,342,177,280 neighbours over all .*no more than 1,073,741,824",
    ):
        _expansion(view, edge_types, 256).check({"a": seeds, "b": 0})
    # 5 * 2**27 neighbours, and as many nodes besides the seeds: more than 2**30 with them
    with pytest.raises(ConfigError, match=r"hop 1 may draw 671,088,640 neighbours"):
        _expansion(view, edge_types, 128).check({"a": seeds, "b": 0})
    _expansion(view, edge_types, 64).check({"a": seeds, "b": 0})


def _expansion(view: Any, edge_types: list[Any], fanout: int) -> DeviceExpansion:
    plan = SamplingPlan(input_type="a", fanouts=dict.fromkeys(edge_types, (fanout,)), seed=1)
    kernels = TorchKernels(torch.device("cpu"))
    graph = LocalDeviceGraph(view, edge_types, kernels)
    graph.degrees = dict.fromkeys(edge_types, fanout)
    return DeviceExpansion(graph, plan, kernels, None)


class SmallMemory(DeviceMemory):
    """Memory of a device that has so much free."""

    free: int

    def free_bytes(self) -> int:
        return self.free


@pytest.fixture
def small_memory(memory_of_devices: Callable[[type[DeviceMemory]], None]) -> type[SmallMemory]:
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
    features: dict[str, Any], bytes_of_a_row: int, small_memory: type[SmallMemory], tmp_path: Path
) -> None:
    partition_graph(_data(), 1, tmp_path, **features)
    dataset = DistDataset.load(tmp_path, 0).to("cpu", kernels="torch")
    small_memory.free = _bytes_of_batches(dataset, bytes_of_a_row)
    DistNeighborLoader(dataset, [5, 4], torch.arange(200), **ONE).shutdown()
    small_memory.free -= 1
    with pytest.raises(ConfigError, match="and for their rows"):
        DistNeighborLoader(dataset, [5, 4], torch.arange(200), **ONE)


def test_scratch_of_long_rows_is_counted(
    small_memory: type[SmallMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a draw allocates for the parts of long rows, and no more than one draw at a time."""
    monkeypatch.setattr(warp_kernels, "_LONG_ROW", DEGREE - 1)
    # of 1,024 rows, 128 parts: a value and a position for each of 5 neighbours, and a count
    scratch = 1024 * 128 * (5 * (8 + 8) + 4)
    dataset = DistDataset.from_pyg(_data()).to("cpu", kernels="warp")
    how = {**ONE, "sampling_method": "labor"}
    small_memory.free = _bytes_of_batches(dataset, DIM * 4) + scratch
    DistNeighborLoader(dataset, [5, 4], torch.arange(200), **how).shutdown()
    small_memory.free -= 1
    with pytest.raises(ConfigError, match="batches take up to"):
        DistNeighborLoader(dataset, [5, 4], torch.arange(200), **how)
    DistNeighborLoader(dataset, [5, 4], torch.arange(200), **ONE).shutdown()  # chooses nothing


def _bytes_of_batches(dataset: DistDataset, bytes_of_a_row: int) -> int:
    structure = _bytes_without_rows(dataset)
    rows = MOST_NODES * bytes_of_a_row + LABELS
    # and the CUDA graph of one, which has no rows
    return (CONCURRENCY + BATCHES_HELD) * (structure + rows) + structure


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


@pytest.mark.parametrize("kind", [DeviceMemory, TapedMemory], ids=["launched", "replayed"])
def test_a_kept_batch_takes_what_is_in_it(
    kind: type[DeviceMemory], memory_of_devices: Callable[[type[DeviceMemory]], None]
) -> None:
    """Predictions are kept with the ids of their nodes: without those that were not drawn."""
    memory_of_devices(kind)
    placed = DistDataset.from_pyg(_data()).to("cpu", kernels="torch")
    with DistNeighborLoader(placed, [5, 4], torch.arange(200), with_edge=True, **ONE) as loader:
        for batch in loader:
            for tensor in (batch.n_id, batch.e_id, batch.edge_index, batch.x, batch.y):
                assert tensor.untyped_storage().nbytes() == tensor.nbytes
