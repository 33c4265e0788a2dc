"""One case of the GPU benchmark, in a process of its own: ``python _cases.py JSON``.

Prints one line, ``RESULT`` and a JSON object, or ends with an error that says what is missing.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from _hops import HopPlaces
from _lean import LeanGATConv, WholeStep
from _sizes import LEFT_OUT, MARK, Case
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.typing import WITH_PYG_LIB

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.sampler.batch_bounds import BatchBounds, batch_bounds

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
    drawn = torch.empty(min(count, 4096), dim).uniform_(-1, 1).to(dtype)
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
    if count > case.nodes:
        raise SystemExit(f"{count} seeds are more than {case.nodes} nodes: raise --nodes")
    return torch.randperm(case.nodes, generator=torch.Generator().manual_seed(2))[:count]


def _on_the_device(case: Case, dataset: DistDataset) -> DistDataset:
    on_host = "features on the host" in case.name
    return dataset.to(case.device, features="host" if on_host else "device", kernels=case.kernels)


def _loader(case: Case, data: Data | HeteroData, seeds: Any) -> Any:
    """Return the loader of a case; ``seeds`` are those of all its batches."""
    how: dict[str, Any] = {"num_workers": case.workers}
    if "NeighborLoader" in case.name:
        on_cuda = case.device.startswith("cuda")
        return NeighborLoader(
            data,
            list(case.fanout),
            seeds,
            batch_size=case.batch_size,
            filter_per_worker=True,
            pin_memory=on_cuda,
            persistent_workers=True,
            **how,
        )
    dataset = DistDataset.from_pyg(data)
    if "on the device" in case.name:
        dataset, how = _on_the_device(case, dataset), {"num_workers": 0}
    elif "in process" in case.name:
        how = {"num_workers": 0}
    if case.name == "on the device, one shape":  # R-GAT's, hop by hop, are made in the step
        how["pad"] = True
    return DistNeighborLoader(
        dataset,
        list(case.fanout),
        seeds,
        batch_size=case.batch_size,
        seed=3,
        pin_memory_device=torch.device(case.device),
        **how,
    )


def measured_places(case: Case, data: HeteroData, seeds: Tensor) -> HopPlaces:
    """Return places that nearly all batches fit, from a few without features."""
    bare = HeteroData()
    for name in data.node_types:
        bare[name].num_nodes = data[name].num_nodes
    for relation in data.edge_types:
        bare[relation].edge_index = data[relation].edge_index
    with DistNeighborLoader(
        DistDataset.from_pyg(bare),
        list(case.fanout),
        ("paper", seeds[: 8 * case.batch_size]),
        batch_size=case.batch_size,
        seed=3,
        num_workers=0,
        pin_memory_device="cpu",
    ) as loader:
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


def _wait(case: Case) -> None:
    if case.device.startswith("cuda"):
        torch.cuda.synchronize()


def _timed(case: Case, batches: Iterable[Any], step: Callable[[Any], Any]) -> dict[str, Any]:
    """Return seeds/s of each window behind the warm-up; each batch is used by ``step``."""
    source = iter(batches)
    for _ in range(case.warmup):
        step(next(source))
    _wait(case)
    rates, counts = [], []
    for _ in range(case.windows):
        begun, count = time.perf_counter(), 0
        while count < case.batches and time.perf_counter() - begun < WINDOW_S:
            step(next(source))
            count += 1
        _wait(case)
        rates.append(count * case.batch_size / (time.perf_counter() - begun))
        counts.append(count)
    return {"seeds_per_s": rates, "batches": counts}


def _memory(case: Case) -> dict[str, Any]:
    if not case.device.startswith("cuda"):
        return {}
    return {"device_gb": torch.cuda.max_memory_allocated() / 1e9}


def loading(case: Case) -> dict[str, Any]:
    """Load batches of one type of nodes, and read a number of each on the device."""
    moved = []

    def step(batch: Any) -> Tensor:
        batch = batch.to(case.device, non_blocking=True)  # PyG's are on the host
        moved.append(batch.x.shape[0] * batch.x.shape[1] * 4)
        return batch.x[-1].sum() + batch.edge_index[0, -1]

    with contextlib.closing(_Open(_loader(case, plain_graph(case), seeds_of(case)))) as opened:
        measured = _timed(case, opened.loader, step)
    # all batches are much alike: bytes of one, times the batches of a second
    mean = sum(moved[case.warmup :]) / len(moved[case.warmup :])
    speeds = [rate / case.batch_size * mean / 1e9 for rate in measured["seeds_per_s"]]
    return {**measured, "feature_gb_per_s": speeds, **_memory(case)}


def copies(case: Case) -> dict[str, Any]:
    """Return what the machine can do at most: copies from pinned memory, rows gathered on it."""
    on_cuda = case.device.startswith("cuda")
    host = torch.empty(case.nodes, case.dim, pin_memory=on_cuda)
    here = host.to(case.device)
    at = torch.randint(case.nodes, (case.nodes,), device=case.device)
    found = {}
    for name, work in (
        ("host_to_device", lambda: here.copy_(host, non_blocking=True)),
        ("gather", lambda: here.index_select(0, at)),
    ):
        work()
        _wait(case)
        begun = time.perf_counter()
        for _ in range(5):
            work()
        _wait(case)
        found[f"{name}_gb_per_s"] = 5 * host.nbytes / (time.perf_counter() - begun) / 1e9
    return found


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


def training(case: Case) -> dict[str, Any]:
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

    with contextlib.closing(_Open(_loader(case, data, ("paper", seeds)))) as opened:
        return {**_timed(case, opened.loader, step), **_memory(case), "larger": larger}


class _Open:
    """A loader to be closed; PyG's ends with its last reference."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def close(self) -> None:
        if hasattr(self.loader, "shutdown"):
            self.loader.shutdown()
        del self.loader


def main() -> None:
    """Run the case on the command line."""
    given = json.loads(sys.argv[1])
    case = Case(**{**given, "fanout": tuple(given["fanout"])})
    if case.name == "copies":
        result = copies(case)
    elif "NeighborLoader" in case.name and not WITH_PYG_LIB:
        result = {LEFT_OUT: f"{LEFT_OUT}: needs pyg-lib, which cannot be imported here"}
    else:
        result = training(case) if case.name.startswith("R-GAT") else loading(case)
    print(MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
