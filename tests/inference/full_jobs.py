"""What the ranks of ``test_full.py`` do; a module, so that their processes can import it."""

import copy
import os
import signal
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.errors import ConfigError, PeerError
from gigl_loader.inference.full_graph import full_graph
from gigl_loader.inference.local_graph import Level
from gigl_loader.testing.this_machine import wait_until
from tests.support.broken_groups import end_at_once, meet_in_store

WIDTH, EDGE_WIDTH, OUT = 6, 3, 4
TYPES = (("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user"))


def graph(seed: int = 0, num_nodes: int = 60, num_edges: int = 420) -> Data:
    """Return a random graph with repeated edges and loops, its edges in the dataset's order."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(num_nodes, (2, num_edges), generator=generator)
    edges = edges[:, torch.argsort(edges[1] * num_nodes + edges[0], stable=True)]
    return Data(
        x=torch.randn(num_nodes, WIDTH, generator=generator),
        edge_index=edges,
        edge_attr=torch.randn(num_edges, EDGE_WIDTH, generator=generator),
        edge_weight=torch.rand(num_edges, generator=generator),
        num_nodes=num_nodes,
    )


def typed_graph() -> HeteroData:
    data = HeteroData()
    for name, count in (("user", 50), ("item", 30)):
        data[name].x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(count))
    generator = torch.Generator().manual_seed(5)
    for src, relation, dst in TYPES:
        n, m = data[src].num_nodes, data[dst].num_nodes
        edges = torch.stack([torch.randint(k, (200,), generator=generator) for k in (n, m)])
        order = torch.argsort(edges[1] * n + edges[0], stable=True)
        data[src, relation, dst].edge_index = edges[:, order]
    return data


def partition(data: Any, rank: int, world: int, edge_dir: Any = "in") -> DistDataset:
    """Return this rank's part of ``data``; the last rank gets most."""
    generator = torch.Generator().manual_seed(world)

    def book(count: int) -> Tensor:
        return torch.randint(world + 1, (count,), generator=generator).clamp_(max=world - 1)

    books: Any = book(data.num_nodes) if isinstance(data, Data) else None
    if books is None:
        books = {name: book(data[name].num_nodes) for name in data.node_types}
    return DistDataset.from_pyg(
        data, edge_dir=edge_dir, partition_book=books, partition_idx=rank, num_partitions=world
    )


class Stack(torch.nn.Module):
    """Layers one after another. PyG's `Sequential` takes a tenth of a second to make."""

    def __init__(self, *layers: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, *edges)
        return x


def mlp(width: int, out: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(width, out), torch.nn.ReLU())


def _model(name: str, **options: Any) -> Callable[[], torch.nn.Module]:
    return lambda: getattr(pyg.models, name)(WIDTH, 8, 2, OUT, **options)


DEGREES = torch.bincount(torch.bincount(graph().edge_index[1], minlength=60))
PNA = {
    "aggregators": ["mean", "max", "std"],
    "scalers": ["identity", "amplification"],
    "deg": DEGREES,
}

MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "SAGE": _model("GraphSAGE"),
    "SAGE, jumping knowledge, batch norm": _model("GraphSAGE", norm="batch", jk="cat"),
    "SAGE, max": _model("GraphSAGE", aggr="max"),
    "GCN": _model("GCN"),
    "GCN, improved": _model("GCN", improved=True),
    "GCN, no loops": _model("GCN", add_self_loops=False),
    "GAT": _model("GAT", heads=2),
    "GATv2": _model("GAT", v2=True),
    "GIN": _model("GIN"),
    "PNA": _model("PNA", **PNA),
    "EdgeCNN": _model("EdgeCNN"),
    "Graph": lambda: pyg.Sequential(
        "x, e", [(pyg.GraphConv(WIDTH, 8), "x, e -> x"), (pyg.GraphConv(8, OUT), "x, e -> x")]
    ),
    "Transformer": lambda: Stack(pyg.TransformerConv(WIDTH, 4, 2), pyg.TransformerConv(8, OUT)),
    "ResGatedGraph": lambda: Stack(pyg.ResGatedGraphConv(WIDTH, OUT)),
    "APPNP": lambda: Stack(pyg.APPNP(4, 0.1), pyg.GCNConv(WIDTH, OUT)),
    "SG": lambda: Stack(pyg.SGConv(WIDTH, OUT, K=3)),
    "TAG": lambda: Stack(pyg.TAGConv(WIDTH, 8, K=2), pyg.TAGConv(8, OUT, normalize=False)),
    "LG": lambda: Stack(pyg.LGConv(), pyg.LGConv(normalize=False), pyg.SAGEConv(WIDTH, OUT)),
    "GatedGraph": lambda: Stack(pyg.GatedGraphConv(WIDTH, 3)),
    "GEN": lambda: Stack(pyg.GENConv(WIDTH, OUT)),
    "FiLM": lambda: Stack(pyg.FiLMConv(WIDTH, OUT)),
    "AntiSymmetric": lambda: Stack(pyg.AntiSymmetricConv(WIDTH), pyg.SAGEConv(WIDTH, OUT)),
    "Simple": lambda: Stack(pyg.SimpleConv(), pyg.SAGEConv(WIDTH, OUT)),
}

WITH_EDGES: dict[str, tuple[Callable[[], torch.nn.Module], str]] = {
    "GAT": (lambda: Stack(pyg.GATConv(WIDTH, OUT, edge_dim=EDGE_WIDTH)), "attr"),
    "GINE": (
        lambda: Stack(
            pyg.GINEConv(mlp(WIDTH, OUT), edge_dim=EDGE_WIDTH),
            pyg.GINEConv(mlp(OUT, OUT), edge_dim=EDGE_WIDTH),
        ),
        "attr",
    ),
    "NN": (lambda: Stack(pyg.NNConv(WIDTH, OUT, torch.nn.Linear(EDGE_WIDTH, WIDTH * OUT))), "attr"),
    "CG": (lambda: Stack(pyg.CGConv(WIDTH, EDGE_WIDTH)), "attr"),
    "Transformer": (lambda: Stack(pyg.TransformerConv(WIDTH, OUT, edge_dim=EDGE_WIDTH)), "attr"),
    "GCN": (lambda: Stack(pyg.GCNConv(WIDTH, 8), pyg.GCNConv(8, OUT)), "weight"),
    "Graph": (lambda: Stack(pyg.GraphConv(WIDTH, OUT)), "weight"),
    "TAG": (lambda: Stack(pyg.TAGConv(WIDTH, OUT)), "weight"),
}


class ByType(torch.nn.Module):
    """Two layers of ``HeteroConv`` with another kind of layer for each edge type."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(self._layer(width) for width in (WIDTH, 8))
        self.out = torch.nn.Linear(8, OUT)

    def _layer(self, width: int) -> pyg.HeteroConv:
        return pyg.HeteroConv(
            {
                TYPES[0]: pyg.SAGEConv((width, width), 8),
                TYPES[1]: pyg.GATConv((width, width), 8, add_self_loops=False),
                TYPES[2]: pyg.GCNConv(width, 8),
            }
        )

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> dict[str, Tensor]:
        for layer in self.layers:
            x = {name: rows.relu() for name, rows in layer(x, edges).items()}
        return {name: self.out(rows) for name, rows in x.items()}


class Plain(torch.nn.Module):
    """What ``to_hetero`` makes a heterogeneous model of."""

    def __init__(self) -> None:
        super().__init__()
        self.first = pyg.SAGEConv((WIDTH, WIDTH), 8)
        self.second = pyg.GATv2Conv((8, 8), OUT, add_self_loops=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


TYPED: dict[str, Callable[[], torch.nn.Module]] = {
    "HeteroConv": ByType,
    "to_hetero": lambda: pyg.to_hetero(Plain(), (["user", "item"], list(TYPES))),
}


def check_close(name: str, found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(
        found, wanted, rtol=1e-5, atol=1e-5, msg=lambda text: f"{name}: {text}"
    )


def _loss(out: Any) -> Tensor:
    """Return a sum over nodes, of which every rank has a part."""
    rows = out.values() if isinstance(out, dict) else [out]
    return sum((r.sin().sum() for r in rows), torch.zeros(()))


def _gradients(model: torch.nn.Module, *, over_ranks: bool) -> list[Tensor]:
    found = []
    for parameter in model.parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        if over_ranks:
            dist.all_reduce(grad)
        found.append(grad)
    model.zero_grad()
    return found


def _compare(
    name: str, make: Any, data: Any, dataset: DistDataset, inputs: Callable[[Any], Any]
) -> None:
    """Compare outputs and gradients, and outputs of a few nodes, with PyG in this process."""
    torch.manual_seed(1)
    model = make().eval()
    if isinstance(data, Data):
        model.to(data.x.dtype)
    wanted = model(*inputs(data))
    _loss(wanted).backward()
    gradients = _gradients(model, over_ranks=False)
    with full_graph(model, dataset) as mine:
        for _ in range(2):  # what the first forward kept must fit the second
            out = model(*inputs(mine))
        _loss(out).backward()
    _same_rows(name, mine, out, wanted, None)
    for found, grad in zip(_gradients(model, over_ranks=True), gradients, strict=True):
        check_close(f"gradients of {name}", found, grad)
    some: Any = torch.tensor([1, 5, 17])
    some = {"user": some} if isinstance(data, HeteroData) else some
    with full_graph(model, dataset, nodes=some) as mine, torch.no_grad():
        out = model(*inputs(mine))
    _same_rows(f"{name}, some nodes", mine, out, wanted, some)


def _same_rows(name: str, mine: Any, out: Any, wanted: Any, some: Any) -> None:
    if not isinstance(out, dict):
        mine, out, wanted, some = (
            {"": mine},
            {"": out},
            {"": wanted},
            None if some is None else {"": some},
        )
    for node_type, rows in out.items():
        store = mine[node_type]
        rows, ids = rows.detach(), store.n_id
        if some is not None:
            rows, ids = rows[store.out_index], ids[store.out_index]
            named = some.get(node_type, torch.empty(0, dtype=torch.int64))
            assert torch.equal(ids, named[torch.isin(named, store.n_id)]), name
        check_close(f"{name} {node_type}", rows, wanted[node_type].detach()[ids])


def _with_edges(name: str, data: Any) -> tuple:
    return data.x, data.edge_index, data[name]


def same_as_one_process(rank: int, world: int) -> None:
    # TAG's sums grow with the third power of the degrees, and the loss takes their sine: in float32
    # the order in which a processor's instructions add shows in the fifth digit of a gradient
    data = graph().apply(lambda t: t.double() if t.is_floating_point() else t)
    dataset = partition(data, rank, world)
    for name, make in MODELS.items():
        _compare(name, make, data, dataset, lambda d: (d.x, d.edge_index))
    for name, (make, kind) in WITH_EDGES.items():
        _compare(f"{name} with edges", make, data, dataset, partial(_with_edges, f"edge_{kind}"))


def same_by_type(rank: int, world: int) -> None:
    data = typed_graph()
    for name, make in TYPED.items():
        dataset = partition(data, rank, world)
        _compare(name, make, data, dataset, lambda d: (d.x_dict, d.edge_index_dict))


SUMS = (
    "SAGE",
    "SAGE, jumping knowledge, batch norm",
    "GCN",
    "GCN, improved",
    "GCN, no loops",
    "GAT",
    "GIN",
    "Graph",
    "ResGatedGraph",
    "APPNP",
    "SG",
    "TAG",
    "LG",
    "GatedGraph",
    "FiLM",
    "Simple",
)
"""Models that aggregate the rows of one rank at a time."""


def _trained(model: Any, data: Any, dataset: DistDataset, inputs: Any, **options: Any) -> Any:
    """Return the output, this rank's gradients of inputs, and those of parameters of all ranks."""
    with full_graph(model, dataset, **options) as mine:
        given = [value for value in inputs(mine) if not isinstance(value, dict)]
        leaves = [value.requires_grad_() for value in given if value.is_floating_point()]
        for _ in range(2):  # what the first forward kept must fit the second
            out = model(*inputs(mine))
    assert not any({"propagate", "edge_updater"} & vars(m).keys() for m in model.modules())
    _loss(out).backward()  # also after the block
    return mine, out, [leaf.grad for leaf in leaves], _gradients(model, over_ranks=True)


def _compare_sequential(name: str, make: Any, data: Any, dataset: Any, inputs: Any) -> None:
    """Compare with the rows of all ranks at once, and with PyG in this process, to 1e-6."""
    torch.manual_seed(1)
    model = make().to(next(iter(data.node_stores)).x.dtype)
    results = []
    for options in ({}, {"sequential": True}):
        copied = copy.deepcopy(model).train()
        results.append(_trained(copied, data, dataset, inputs, seed=3, **options))
    (_, out, leaves, gradients), (_, by_rank, leaves_by_rank, gradients_by_rank) = results
    _check_closely(name, by_rank, out, None)
    close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6)
    for grad, expected in zip(
        [*leaves_by_rank, *gradients_by_rank], [*leaves, *gradients], strict=True
    ):
        close(grad, expected, msg=lambda text: f"gradients of {name}: {text}")
    alone = model.eval()
    wanted = alone(*inputs(data))
    with full_graph(alone, dataset, sequential=True) as mine, torch.no_grad():
        out = alone(*inputs(mine))
    _check_closely(f"{name}, beside one process", out, wanted, mine)


def _check_closely(name: str, found: Any, wanted: Any, mine: Any) -> None:
    """Compare to 1e-6; ``wanted`` has all rows of the graph if ``mine`` tells which to compare."""
    for node_type, rows in _by_type(found).items():
        expected = _by_type(wanted)[node_type]
        if mine is not None:
            expected = expected[(mine[node_type] if node_type else mine).n_id]
        text = f"{name} {node_type}"
        torch.testing.assert_close(
            rows, expected, rtol=1e-6, atol=1e-6, msg=f"{text}: {rows} for {expected}"
        )


def _by_type(out: Any) -> Any:
    return {"": out} if isinstance(out, Tensor) else out


def same_by_rank(rank: int, world: int, names: Sequence[str] = ()) -> None:
    """All models, or those with ``names`` and the one by type."""
    data = graph().apply(lambda t: t.double() if t.is_floating_point() else t)
    dataset = partition(data, rank, world)
    models = {name: MODELS[name] for name in SUMS}
    models["GAT, dropout"] = _model("GAT", heads=2, dropout=0.4)
    for name, make in models.items():
        if not names or name in names:
            _compare_sequential(name, make, data, dataset, lambda d: (d.x, d.edge_index))
    for name, (make, kind) in WITH_EDGES.items():
        if not names and name not in ("NN", "Transformer"):
            inputs = partial(_with_edges, f"edge_{kind}")
            _compare_sequential(f"{name} with edges", make, data, dataset, inputs)
    typed = typed_graph()
    for store in typed.node_stores:
        store.x = store.x.double()
    dataset = partition(typed, rank, world)
    _compare_sequential("types", ByType, typed, dataset, lambda d: (d.x_dict, d.edge_index_dict))


def rows_of_one_rank_are_held_at_a_time(rank: int, world: int) -> None:
    """Forward and backward: when rows come, those that came before are gone."""
    data = graph()
    model = MODELS["GAT"]()
    came: list[Any] = []
    fetch = Level.fetch_from

    def watched(level: Level, rows: Tensor, step: int) -> Tensor:
        # gloo's own thread lets go of a tensor some time after those who wait for it go on
        wait_until(lambda: all(reference() is None for reference in came), "they are gone", 20.0)
        fetched = fetch(level, rows, step)
        if step:
            came.append(weakref.ref(fetched.untyped_storage()))
            assert len(fetched) == level.num_from(step)
        return fetched

    with (
        pytest.MonkeyPatch.context() as patch,
        full_graph(model, partition(data, rank, world), sequential=True) as mine,
    ):
        patch.setattr(Level, "fetch_from", watched)
        out = model(mine.x, mine.edge_index)
        assert len(came) == 2 * (world - 1)
        _loss(out).backward()
        assert len(came) == 4 * (world - 1)
    dist.barrier()


def ranks_differ_in_sequential(rank: int, world: int) -> None:
    with (
        pytest.raises(ConfigError, match="same sequential on all ranks, got False on ranks"),
        full_graph(MODELS["SAGE"](), partition(graph(), rank, world), sequential=rank == 1),
    ):
        pass


def against_the_edges(rank: int, world: int) -> None:
    """With ``edge_dir="out"`` messages come from the nodes that an edge points to."""
    data = graph()
    turned = data.edge_index.flip(0)
    order = torch.argsort(turned[1] * 60 + turned[0], stable=True)
    turned_data = Data(x=data.x, edge_index=turned[:, order])
    dataset = partition(data, rank, world, "out")
    _compare("out", MODELS["GCN"], turned_data, dataset, lambda d: (d.x, d.edge_index))


def bits_do_not_depend_on_ranks(rank: int, world: int) -> None:
    """One process with all of the graph, and these ranks: training too, dropout and all."""
    alone = next(g for r in range(world) if (g := dist.new_group([r])) and r == rank)
    data = graph()
    models: dict[str, dict[str, Any]] = {
        "GraphSAGE": {"dropout": 0.5, "norm": "batch"},
        "GAT": {"dropout": 0.5, "heads": 2},
        "GCN": {"dropout": 0.3},
    }
    for name, options in models.items():
        torch.manual_seed(1)
        first = _model(name, **options)().train()
        second = copy.deepcopy(first)
        with full_graph(first, partition(data, 0, 1), group=alone, seed=3) as whole:
            for _ in range(2):
                wanted = first(whole.x, whole.edge_index)
            _loss(wanted).backward()
        with full_graph(second, partition(data, rank, world), seed=3) as mine:
            for _ in range(2):
                out = second(mine.x, mine.edge_index)
            _loss(out).backward()
        check_close(name, out.detach(), wanted.detach()[mine.n_id])
        grads = _gradients(first, over_ranks=False), _gradients(second, over_ranks=True)
        for one, other in zip(*grads, strict=True):
            check_close(f"gradients of {name}", other, one)
        for one, other in zip(first.buffers(), second.buffers(), strict=True):
            check_close(f"buffers of {name}", other, one)


def shared_partitions(rank: int, world: int) -> None:
    """Three ranks, two partitions: ranks 1 and 2 share the nodes of the second."""
    data = graph()
    dataset = partition(data, min(rank, 1), 2)
    torch.manual_seed(1)
    model = MODELS["GCN"]().eval()
    with full_graph(model, dataset) as mine, torch.no_grad():
        out = model(mine.x, mine.edge_index)
    found: list[Any] = [None] * world
    dist.all_gather_object(found, mine.n_id)
    assert torch.equal(torch.cat(found).sort().values, torch.arange(60))
    check_close("shared", out, model(data.x, data.edge_index).detach()[mine.n_id])


def a_missing_partition_is_named(rank: int, world: int) -> None:
    with (
        pytest.raises(ConfigError, match=r"no rank loaded partitions \[1\] of 2"),
        full_graph(MODELS["SAGE"](), partition(graph(), 0, 2)),
    ):
        pass


def _run_for_ever(model: torch.nn.Module, mine: Any) -> None:
    while True:
        model(mine.x, mine.edge_index)


def a_rank_dies_before_backward(rank: int, world: int) -> None:
    dataset = partition(graph(), rank, world)
    model = MODELS["SAGE"]()
    with full_graph(model, dataset, sequential=True) as mine:
        loss = _loss(model(mine.x, mine.edge_index))
        meet_in_store("before rank 1 dies")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerError, match="a rank has ended"):
            loss.backward()
    end_at_once()


def a_rank_dies(rank: int, world: int) -> None:
    dataset = partition(graph(), rank, world)
    model = MODELS["SAGE"]()
    with full_graph(model, dataset) as mine:
        model(mine.x, mine.edge_index)
        meet_in_store("before rank 1 dies")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerError, match="a rank has ended"):
            _run_for_ever(model, mine)
    end_at_once()
