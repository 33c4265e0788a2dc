"""One case of the GPU benchmark, in a process of its own: ``python _cases.py --part NAME``.

Its findings are figures, or why it was left out.
"""

import copy
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from _findings import Programme, wait
from _hops import HopPlaces
from _lean import LeanGATConv, WholeStep
from _sizes import LEFT_OUT, Case, case_of
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.typing import WITH_PYG_LIB

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.sampler.batch_bounds import BatchBounds, batch_bounds
from gigl_loader.sampler.gpu.kernel_choice import kinds_on

WINDOW_S = 10.0
"""Seconds after which a window ends, with the batches that it has until then."""
RELATIONS = (
    ("paper", "cites", "paper"),
    ("paper", "written_by", "author"),
    ("author", "rev_written_by", "paper"),
    ("author", "affiliated_to", "institute"),
    ("institute", "rev_affiliated_to", "author"),
    ("paper", "topic", "fos"),
    ("fos", "rev_topic", "paper"),
)
"""Edge types of IGBH, which MLPerf's R-GAT is trained on."""


def _power_law(count: int, sources: int, targets: int, seed: int) -> Tensor:
    """Return ``[2, count]`` edges; few nodes have most of them, as in real graphs."""
    made = torch.Generator().manual_seed(seed)
    source = (torch.rand(count, generator=made) ** 3 * sources).long().clamp(max=sources - 1)
    target = torch.randint(targets, (count,), generator=made)
    return torch.stack([source * 7919 % sources, target])


def _rows(count: int, dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return rows of features; a few, many times: to draw all would take longer than a window."""
    made = torch.Generator().manual_seed(1)
    drawn = torch.rand(min(count, 4096), dim, generator=made).to(dtype)
    return drawn.repeat(-(-count // len(drawn)), 1)[:count]


def plain_graph(case: Case) -> Data:
    edges = _power_law(case.nodes * case.degree, case.nodes, case.nodes, 1)
    return Data(x=_rows(case.nodes, case.dim), edge_index=edges, num_nodes=case.nodes)


def typed_graph(case: Case) -> HeteroData:
    """Return a graph with the types and proportions of IGBH."""
    sizes = _counts(case)
    data = HeteroData()
    for name, count in sizes.items():
        data[name].x = _rows(count, case.dim, torch.float16)
    data["paper"].y = torch.arange(case.nodes) % 2983
    for seed, (source, relation, target) in enumerate(RELATIONS):
        if relation.startswith("rev_"):
            turned = data[target, relation.removeprefix("rev_"), source].edge_index.flip(0)
            data[source, relation, target].edge_index = turned
        else:
            count = case.nodes * (case.degree if relation == "cites" else 3)
            data[source, relation, target].edge_index = _power_law(
                count, sizes[source], sizes[target], seed
            )
    return data


def seeds_of(case: Case) -> Tensor:
    count = (case.warmup + case.windows * case.batches) * case.batch_size
    return torch.randperm(case.nodes, generator=torch.Generator().manual_seed(2))[:count]


def own_loader(case: Case, dataset: DistDataset, seeds: Any, **how: Any) -> DistNeighborLoader:
    """Return a loader of ours; without workers, if ``how`` has no number of them."""
    return DistNeighborLoader(
        dataset,
        list(case.fanout),
        seeds,
        batch_size=case.batch_size,
        seed=3,
        pin_memory_device=torch.device(case.device),
        **{"num_workers": 0, **how},
    )


def _loader(
    case: Case, data: Data | HeteroData, seeds: Any, kernels: Any
) -> AbstractContextManager[Any]:
    """Return the loader of a case, to be opened; ``seeds`` are those of all its batches."""
    if "NeighborLoader" in case.name:
        peer = NeighborLoader(
            data,
            list(case.fanout),
            seeds,
            batch_size=case.batch_size,
            filter_per_worker=True,
            pin_memory=case.device.startswith("cuda"),
            persistent_workers=True,
            num_workers=case.workers,
        )
        return nullcontext(peer)  # it ends with its last reference
    dataset, how = DistDataset.from_pyg(data), {}
    if "on the device" in case.name:
        on_host = "features on the host" in case.name
        dataset = dataset.to(case.device, features="host" if on_host else "device", kernels=kernels)
    elif "in process" not in case.name:
        how["num_workers"] = case.workers
    if case.name == "on the device, one shape":  # R-GAT's, hop by hop, are made in the step
        how["pad"] = True
    return own_loader(case, dataset, seeds, **how)


def measured_places(case: Case, data: HeteroData, seeds: Tensor) -> HopPlaces:
    """Return places that nearly all batches fit, from a few without features."""
    bare = copy.copy(data)
    for store in bare.node_stores:
        store.num_nodes = store.pop("x").size(0)
    few = "paper", seeds[: 8 * case.batch_size]
    with own_loader(replace(case, device="cpu"), DistDataset.from_pyg(bare), few) as loader:
        return HopPlaces.for_most(loader, torch.device(case.device))


def _bounds(case: Case, seeds: int) -> BatchBounds:
    """Return the most nodes and edges that a batch of R-GAT can have."""
    fanouts = dict.fromkeys(RELATIONS, case.fanout)
    return batch_bounds(fanouts, {"paper": seeds}, _counts(case), edge_dir="in")


def needed_bytes(case: Case, sizes: dict[str, Any]) -> int:
    """Return about how many bytes of the device training takes.

    Args:
        case: One of R-GAT.
        sizes: Nodes and edges of a batch, by type.
    """
    nodes = _counts(case)
    edges = {name: case.nodes * (case.degree if "cites" in name else 3) for name in RELATIONS}
    graph = 0
    if "on the device" in case.name:
        # features; edges with ids and begins of rows
        graph = sum(nodes.values()) * (case.dim * 2 + 8 * 2) + sum(edges.values()) * (4 + 8)
    rows = sum(sizes["nodes"].values()) * case.dim * 2
    # four under way, and two that are held
    batches = 6 * ((_bounds(case, case.batch_size).device_bytes if graph else 0) + rows)
    # A layer transforms the rows of both ends for each relation, and keeps a message for each edge,
    # before and after attention, for the way back; both have gradients. bfloat16.
    ends = sum(sizes["nodes"][source] + sizes["nodes"][target] for source, _, target in RELATIONS)
    layer = (2 * ends + 3 * sum(sizes["edges"].values())) * case.hidden * 2
    # the inner layers, trimmed, see a share of the nodes and edges that falls with each hop
    return int(graph + batches + layer * 1.5)


def _counts(case: Case) -> dict[str, int]:
    """Return the nodes of each type, in the proportions of IGBH."""
    return {
        "paper": case.nodes,
        "author": case.nodes,
        "institute": max(8, case.nodes // 1000),
        "fos": max(8, case.nodes // 100),
    }


def _why_left_out(case: Case, sizes: dict[str, Any]) -> str | None:
    """Return why a case is not started, if it does not fit into the device's memory."""
    if not case.device.startswith("cuda"):
        return None
    needed, free = needed_bytes(case, sizes), torch.cuda.mem_get_info(case.device)[0]
    if needed <= free:
        return None
    return f"{LEFT_OUT}: takes about {needed / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free"


def _timed(case: Case, batches: Iterable[Any], step: Callable[[Any], Any]) -> dict[str, Any]:
    """Return seeds/s of each window behind the warm-up; each batch is used by ``step``."""
    source = iter(batches)
    for _ in range(case.warmup):
        step(next(source))
    wait(case.device)
    rates, counts = [], []
    for _ in range(case.windows):
        begun, count = time.perf_counter(), 0
        while count < case.batches and time.perf_counter() - begun < WINDOW_S:
            step(next(source))
            count += 1
        wait(case.device)
        rates.append(count * case.batch_size / (time.perf_counter() - begun))
        counts.append(count)
    return {"seeds_per_s": rates, "batches": counts}


def _memory(case: Case) -> dict[str, Any]:
    if not case.device.startswith("cuda"):
        return {}
    return {"device_gb": torch.cuda.max_memory_allocated() / 1e9}


def loading(case: Case, kernels: Any) -> dict[str, Any]:
    """Load batches of one type of nodes, and read a number of each on the device."""
    moved = []

    def step(batch: Any) -> Tensor:
        batch = batch.to(case.device, non_blocking=True)  # PyG's are on the host
        moved.append(batch.x.shape[0] * batch.x.shape[1] * 4)
        return batch.x[-1].sum() + batch.edge_index[0, -1]

    with _loader(case, plain_graph(case), seeds_of(case), kernels) as loader:
        measured = _timed(case, loader, step)
    # all batches are much alike: bytes of one, times the batches of a second
    mean = sum(moved[case.warmup :]) / len(moved[case.warmup :])
    speeds = [rate / case.batch_size * mean / 1e9 for rate in measured["seeds_per_s"]]
    return {**measured, "feature_gb_per_s": speeds}


class RelationalGAT(torch.nn.Module):
    """R-GAT as MLPerf trains it: three layers, four heads, a GAT for each relation, summed."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        from torch_geometric.nn import GATConv, HeteroConv

        layer = LeanGATConv if "lean layers" in case.name else GATConv
        self.layers = torch.nn.ModuleList()
        width = case.dim
        for _ in case.fanout:
            convs = {
                relation: layer((width, width), case.hidden // 4, heads=4, add_self_loops=False)
                for relation in RELATIONS
            }
            self.layers.append(HeteroConv(convs, aggr="sum"))
            width = case.hidden
        self.head = torch.nn.Linear(case.hidden, 2983)

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor], hops: Any = None) -> Tensor:
        """Return the scores of all papers of a batch.

        Args:
            x: Features by type.
            edges: By relation.
            hops: Counts of nodes and of edges by hop; None: layers see the whole batch.
        """
        from torch_geometric.utils import trim_to_layer

        for at, layer in enumerate(self.layers):
            if hops is not None:
                x, edges, _ = trim_to_layer(at, *hops, x, edges)
            x = {name: rows.relu() for name, rows in layer(x, edges).items()}
        return self.head(x["paper"])


def training(case: Case, kernels: Any) -> dict[str, Any]:
    """Train R-GAT, loading included."""
    data, seeds = typed_graph(case), seeds_of(case)
    places = measured_places(case, data, seeds)
    reason = _why_left_out(case, places.totals)
    if reason is not None:
        return {LEFT_OUT: reason}
    one_shape, larger = "one shape" in case.name, 0
    on_cuda, whole = case.device.startswith("cuda"), "whole step" in case.name
    # bfloat16: else the figure is of matrix products in float32
    model: torch.nn.Module = RelationalGAT(case).to(case.device, torch.bfloat16)
    if one_shape and on_cuda and not whole:
        # as CUDA graphs, which need batches of one shape
        model.compile(mode="reduce-overhead", dynamic=False)
    optimizer = torch.optim.Adam(model.parameters(), capturable=whole and on_cuda)
    as_one = WholeStep(model, optimizer, places.hops, case.batch_size)

    def step(batch: Any) -> None:
        nonlocal larger
        batch = batch.to(case.device, non_blocking=True)  # PyG's are on the host
        for store in batch.node_stores:
            store.x = store.x.bfloat16()
        size = batch["paper"].batch_size
        labels = batch["paper"].y[:size]
        fits = one_shape and places.fit(batch)
        larger += one_shape and not fits
        if fits and whole and size == case.batch_size:
            as_one(*places.placed(batch), labels)
            return
        run: Any = model
        if fits:
            given: Any = (*places.placed(batch), places.hops)
        else:  # not compiled: of a batch larger than the shape, it would be one more CUDA graph
            hops = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
            run, given = model.forward, (batch.x_dict, batch.edge_index_dict, hops)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(run(*given)[:size].float(), labels).backward()
        optimizer.step()

    with _loader(case, data, ("paper", seeds), kernels) as loader:
        return {**_timed(case, loader, step), "larger": larger}


def main() -> int:
    """Run one case; return the exit status."""
    run = Programme(__doc__)
    case, kernels = case_of(run.part, run.device), kinds_on(torch.device(run.device))[-1]
    if "NeighborLoader" in case.name and not WITH_PYG_LIB:
        run.found(LEFT_OUT, f"{LEFT_OUT}: needs pyg-lib, which cannot be imported here")
        return 0
    measure = training if case.name.startswith("R-GAT") else loading
    for name, value in measure(case, kernels).items():
        run.found(name, value)
    if run.on_cuda:
        run.found("device_gb", torch.cuda.max_memory_allocated() / 1e9)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
