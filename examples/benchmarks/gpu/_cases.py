"""One case of the GPU benchmark, in a process of its own: ``python _cases.py JSON``.

Prints one line, ``RESULT`` and a JSON object, or ends with an error that says what is missing.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from _sizes import MARK, PEERS, Case
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader import DistDataset, DistNeighborLoader

WINDOW_S = 10.0
"""Seconds after which a window ends, with the batches that it has until then."""
RELATIONS = (
    ("paper", "cites", "paper"), ("paper", "written_by", "author"),
    ("author", "rev_written_by", "paper"), ("author", "affiliated_to", "institute"),
    ("institute", "rev_affiliated_to", "author"), ("paper", "topic", "fos"),
    ("fos", "rev_topic", "paper"),
)  # fmt: skip
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


def _plain(case: Case) -> Data:
    edges = _power_law(case.nodes * case.degree, case.nodes, case.nodes, 1)
    return Data(x=_rows(case.nodes, case.dim), edge_index=edges, num_nodes=case.nodes)


def _typed(case: Case) -> HeteroData:
    """Return a graph with the types and proportions of IGBH."""
    sizes = {
        "paper": case.nodes, "author": case.nodes, "institute": max(8, case.nodes // 1000),
        "fos": max(8, case.nodes // 100),
    }  # fmt: skip
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


def _seeds(case: Case) -> Tensor:
    count = (case.warmup + case.windows * case.batches) * case.batch_size
    if count > case.nodes:
        raise SystemExit(f"{count} seeds are more than {case.nodes} nodes: raise --nodes")
    return torch.randperm(case.nodes, generator=torch.Generator().manual_seed(2))[:count]


def _on_the_device(case: Case, dataset: DistDataset) -> DistDataset:
    on_host = "features on the host" in case.name
    return dataset.to(case.device, features="host" if on_host else "device", kernels=case.kernels)


def _loader(case: Case, data: Data | HeteroData, seeds: Any) -> DistNeighborLoader:
    dataset = DistDataset.from_pyg(data)
    how: dict[str, Any] = {"num_workers": case.workers}
    if "on the device" in case.name:
        dataset, how = _on_the_device(case, dataset), {"num_workers": 0}
    elif "in process" in case.name:
        how = {"num_workers": 0}
    if "one shape" in case.name:
        how["pad"] = True
    return DistNeighborLoader(
        dataset, list(case.fanout), seeds, batch_size=case.batch_size, seed=3,
        pin_memory_device=torch.device(case.device), **how,
    )  # fmt: skip


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
        moved.append(batch.x.shape[0] * batch.x.shape[1] * 4)
        return batch.x[-1].sum() + batch.edge_index[0, -1]

    with _loader(case, _plain(case), _seeds(case)) as loader:
        measured = _timed(case, loader, step)
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

        self.layers = torch.nn.ModuleList()
        width = case.dim
        for _ in case.fanout:
            convs = {
                relation: GATConv((width, width), case.hidden // 4, heads=4, add_self_loops=False)
                for relation in RELATIONS
            }
            self.layers.append(HeteroConv(convs, aggr="sum"))
            width = case.hidden
        self.head = torch.nn.Linear(case.hidden, 2983)

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> Tensor:
        """Return the scores of all papers of a batch."""
        for layer in self.layers:
            x = {name: rows.relu() for name, rows in layer(x, edges).items()}
        return self.head(x["paper"])


def training(case: Case) -> dict[str, Any]:
    """Train R-GAT, loading included."""
    seeds = ("paper", _seeds(case))
    model: torch.nn.Module = RelationalGAT(case).to(case.device)
    if "one shape" in case.name and case.device.startswith("cuda"):
        # as CUDA graphs, which need batches of one shape
        model.compile(mode="reduce-overhead", dynamic=False)
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        rows = {name: x.float() for name, x in batch.x_dict.items()}
        size = batch["paper"].batch_size
        scores = model(rows, batch.edge_index_dict)[:size]
        torch.nn.functional.cross_entropy(scores, batch["paper"].y[:size]).backward()
        optimizer.step()

    with _loader(case, _typed(case), seeds) as loader:
        return {**_timed(case, loader, step), **_memory(case)}


def graphlearn_torch(case: Case) -> dict[str, Any]:
    """Load with graphlearn-torch's CUDA mode: graph and features on the device."""
    import graphlearn_torch as glt

    data = _plain(case)
    dataset = glt.data.Dataset(edge_dir="in")
    dataset.init_graph(data.edge_index, graph_mode="CUDA", device=0)
    dataset.init_node_features(data.x, split_ratio=1.0, device=0)
    loader = glt.loader.NeighborLoader(
        dataset, list(case.fanout), _seeds(case), batch_size=case.batch_size,
        device=torch.device(case.device),
    )  # fmt: skip
    return {**_timed(case, loader, lambda batch: batch.x[-1].sum()), **_memory(case)}


def graphbolt(case: Case) -> dict[str, Any]:
    """Load with GraphBolt: graph and features on the device."""
    import dgl.graphbolt as gb

    data = _plain(case)
    order = data.edge_index[1].argsort(stable=True)
    indptr = torch.zeros(case.nodes + 1, dtype=torch.int64)
    indptr[1:] = data.edge_index[1].bincount(minlength=case.nodes).cumsum(0)
    graph = gb.fused_csc_sampling_graph(indptr, data.edge_index[0][order]).to(case.device)
    feature = gb.TorchBasedFeature(data.x.to(case.device))
    features = gb.BasicFeatureStore({("node", None, "x"): feature})
    items = gb.ItemSet(_seeds(case), names="seeds")
    pipe = gb.ItemSampler(items, batch_size=case.batch_size).copy_to(case.device)
    pipe = pipe.sample_neighbor(graph, list(reversed(case.fanout)))
    pipe = pipe.fetch_feature(features, node_feature_keys=["x"])
    batches = gb.DataLoader(pipe)
    return {**_timed(case, batches, lambda b: b.node_features["x"][-1].sum()), **_memory(case)}


def cugraph(case: Case) -> dict[str, Any]:
    """Load with cuGraph-PyG: graph and features on the device."""
    from cugraph_pyg.data import FeatureStore, GraphStore
    from cugraph_pyg.loader import NeighborLoader

    data = _plain(case)
    graph, features = GraphStore(), FeatureStore()
    graph[("n", "e", "n"), "coo", False, (case.nodes, case.nodes)] = data.edge_index.to(case.device)
    features["n", "x", None] = data.x.to(case.device)
    loader = NeighborLoader(
        (features, graph), list(case.fanout), input_nodes=_seeds(case),
        batch_size=case.batch_size,
    )  # fmt: skip
    return {**_timed(case, loader, lambda batch: batch.x[-1].sum()), **_memory(case)}


_LOADERS = dict(zip(PEERS, (graphlearn_torch, graphbolt, cugraph), strict=True))


def main() -> None:
    """Run the case on the command line."""
    given = json.loads(sys.argv[1])
    case = Case(**{**given, "fanout": tuple(given["fanout"])})
    if case.name in _LOADERS:
        result = _LOADERS[case.name](case)
    elif case.name == "copies":
        result = copies(case)
    else:
        result = training(case) if case.name.startswith("R-GAT") else loading(case)
    print(MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
