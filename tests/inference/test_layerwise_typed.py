"""Layer by layer over heterogeneous graphs, with weights and features of edges, on 1 to 3 ranks."""

import copy
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
import torch_geometric.nn as pyg
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.inference import layerwise
from gigl_loader.inference.layerwise import full_graph_inference
from gigl_loader.inference.results import Results
from tests.inference import full_jobs, typed_layers
from tests.inference.exchange_in_threads import ThreadExchange, run_threads
from tests.support.draws import examples


def _on_threads(model: Any, world: int, partition: Any, **how: Any) -> list[Any]:
    """Return what each of ``world`` ranks computed, each with a copy of the model."""
    of_thread = threading.local()

    def job(exchange: ThreadExchange) -> Any:
        of_thread.exchange = exchange
        return full_graph_inference(copy.deepcopy(model), partition(exchange.rank, world), **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layerwise, "RankExchange", lambda *_: of_thread.exchange)
        return run_threads(world, job)


def _whole(parts: list[Any], count: int) -> torch.Tensor:
    ids = torch.cat([part.ids for part in parts])
    assert torch.equal(ids.sort().values, torch.arange(count))
    rows = torch.cat([part.values for part in parts])
    return rows[torch.argsort(ids)]


def _same_typed(parts: list[Any], wanted: dict[str, torch.Tensor]) -> None:
    for name, rows in wanted.items():
        found = _whole([part[name] for part in parts], len(rows))
        torch.testing.assert_close(found, rows, rtol=1e-5, atol=1e-5)


@example(2, 857, 1, 1, 2, 1)  # one rank has all edge features, and the other one none
@settings(max_examples=examples(15), deadline=None)
@given(
    st.integers(1, 3),
    st.integers(0, 1000),
    st.integers(1, 40),
    st.integers(1, 30),
    st.integers(0, 150),
    st.integers(1, 50),
)
def test_types_weights_and_features_of_edges(
    world: int, seed: int, users: int, items: int, edges: int, batch_size: int
) -> None:
    data = typed_layers.graph(seed, users, items, edges)
    model = typed_layers.layers()
    parts = _on_threads(
        model,
        world,
        lambda rank, size: typed_layers.partition(data, rank, size, seed),
        batch_size=batch_size,
        edge_weight=True,
        edge_attr=True,
    )
    _same_typed(parts, typed_layers.in_one_process(model, data))


GRAPH = full_jobs.graph()
WIDTH, OUT, EDGE_WIDTH = full_jobs.WIDTH, full_jobs.OUT, full_jobs.EDGE_WIDTH
MODELS = {
    "GCN": (lambda: pyg.GCN(WIDTH, 8, 2, OUT), "weight"),
    "GCN, improved": (lambda: pyg.GCN(WIDTH, 8, 2, OUT, improved=True), "weight"),
    "GAT": (lambda: pyg.GAT(WIDTH, 8, 2, OUT, heads=2, edge_dim=EDGE_WIDTH), "attr"),
    "PNA": (lambda: pyg.PNA(WIDTH, 8, 2, OUT, edge_dim=EDGE_WIDTH, **full_jobs.PNA), "attr"),
    "layers of PyG": (
        lambda: [pyg.GraphConv(WIDTH, 8), pyg.TAGConv(8, 8, K=1), pyg.GraphConv(8, OUT)],
        "weight",
    ),
    "layers with features": (
        lambda: [
            pyg.GINEConv(full_jobs.mlp(WIDTH, 8), edge_dim=EDGE_WIDTH),
            pyg.TransformerConv(8, OUT, edge_dim=EDGE_WIDTH),
        ],
        "attr",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_features_of_a_homogeneous_graph(name: str) -> None:
    make, kind = MODELS[name]
    torch.manual_seed(1)
    model: Any = make()
    _eval(model)
    wanted = GRAPH.x
    key = f"edge_{kind}"
    with torch.no_grad():
        for layer in model if isinstance(model, list) else [model]:
            wanted = layer(wanted, GRAPH.edge_index, **{key: GRAPH[key]})
    for world in (1, 2, 3):
        parts = _on_threads(
            model,
            world,
            lambda rank, size: full_jobs.partition(GRAPH, rank, size),
            batch_size=9,
            **{key: True},
        )
        torch.testing.assert_close(_whole(parts, 60), wanted, rtol=1e-5, atol=1e-5)


def _eval(model: Any) -> None:
    for one in model if isinstance(model, list) else [model]:
        one.eval()


def test_functions_are_given_what_they_name() -> None:
    """One layer counts the edges' weights, the next one adds the node's id and a feature."""

    def weigh(x: Any, edge_index: Any, num_dst: int, edge_weight: Any) -> torch.Tensor:
        return torch.zeros(num_dst, 1).index_add_(0, edge_index[1], edge_weight[:, None])

    def add(x: Any, edge_index: Any, num_dst: int, *, n_id: Any, edge_attr: Any) -> torch.Tensor:
        total = torch.zeros(num_dst, EDGE_WIDTH).index_add_(0, edge_index[1], edge_attr)
        return x[:num_dst] + n_id[:num_dst, None] + total[:, :1]

    wanted = torch.arange(60.0)[:, None]
    target = GRAPH.edge_index[1]
    wanted = wanted.index_add(0, target, GRAPH.edge_weight[:, None])
    wanted = wanted.index_add(0, target, GRAPH.edge_attr[:, :1])
    parts = _on_threads(
        [weigh, add], 2, lambda rank, size: full_jobs.partition(GRAPH, rank, size), batch_size=7
    )
    torch.testing.assert_close(_whole(parts, 60), wanted, rtol=1e-5, atol=1e-4)


DATA = typed_layers.graph()
EDGES: dict[str, Any] = {"edge_weight": True, "edge_attr": True}


def test_a_folder_for_each_type(tmp_path: Path) -> None:
    model = typed_layers.layers()
    wanted = typed_layers.in_one_process(model, DATA)
    dataset = typed_layers.partition(DATA, 0, 1)
    found: Any = full_graph_inference(model, dataset, out=tmp_path / "npy", batch_size=7, **EDGES)
    for name, rows in wanted.items():
        folder = tmp_path / "npy" / name
        assert found[name].path == folder / "part-00000.npy"
        written = np.load(folder / "part-00000.npy")
        torch.testing.assert_close(torch.from_numpy(written), rows, rtol=1e-5, atol=1e-5)
        assert np.array_equal(np.load(folder / "part-00000.ids.npy"), found[name].ids.numpy())
        assert not list(folder.glob("*layer*"))


def test_types_that_a_layer_does_not_compute_are_left_out() -> None:
    only = pyg.HeteroConv({typed_layers.KNOWS: pyg.SAGEConv(5, 3)}).eval()
    last = pyg.HeteroConv({typed_layers.KNOWS: pyg.SAGEConv(3, 2)}).eval()
    parts = _on_threads(
        [only, last], 2, lambda rank, size: typed_layers.partition(DATA, rank, size), batch_size=7
    )
    assert all(list(part) == ["user"] for part in parts)
    with torch.no_grad():
        wanted = last(only(DATA.x_dict, DATA.edge_index_dict), DATA.edge_index_dict)
    _same_typed(parts, wanted)


class _Killed(BaseException):
    pass


def test_a_run_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    """In every chunk once, of every type and layer, with Parquet written as it is computed."""
    model = typed_layers.layers()
    wanted = typed_layers.in_one_process(model, DATA)
    dataset = typed_layers.partition(DATA, 0, 1)
    how: Any = {"out": tmp_path, "batch_size": 10, "format": "parquet", **EDGES}
    computed = 0
    with pytest.MonkeyPatch.context() as patch:
        note = Results.note

        def note_and_end(self: Any, *args: Any) -> None:
            note(self, *args)
            raise _Killed

        patch.setattr(Results, "note", note_and_end)
        while True:
            try:
                found: Any = full_graph_inference(model, dataset, **how)
                break
            except _Killed:
                computed += 1
    assert computed == 3 * (4 + 3), "each chunk of the 3 layers of users and items was kept"
    for name, rows in wanted.items():
        table = parquet.read_table(found[name].path)
        assert table.column("id").to_pylist() == found[name].ids.tolist()
        written = torch.tensor(table.column("embedding").to_pylist())
        torch.testing.assert_close(written, rows, rtol=1e-5, atol=1e-5)
        assert not list((tmp_path / name).glob("*.half"))


def _refused(text: str, model: Any, dataset: Any, error: Any = ConfigError, **how: Any) -> None:
    with pytest.raises(error, match=text):
        full_graph_inference(model, dataset, batch_size=20, **how)


def test_what_cannot_work_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    typed, plain = typed_layers.partition(DATA, 0, 1), full_jobs.partition(GRAPH, 0, 1)
    bare = DistDataset.from_pyg(Data(x=GRAPH.x, edge_index=GRAPH.edge_index))
    sage, gcn = pyg.GraphSAGE(WIDTH, 8, 2).eval(), pyg.GCN(WIDTH, 8, 2).eval()
    _refused("HeteroConv .* or use full_graph", sage, typed)
    _refused("edge_weight=True, and the graph's edges have none", gcn, bare, edge_weight=True)
    _refused("GraphSAGE takes no edge_weight", sage, plain, edge_weight=True)
    _refused("edge_dim=3: give edge_attr=True", typed_layers.layers(), typed)
    _refused("layer 0 takes edge_attr", [lambda x, e, n, edge_attr: x[:n]], bare)
    _refused("layer 0 is in training mode", [pyg.SAGEConv(6, 2)], plain, UsageError)
    conv = pyg.GCNConv(WIDTH, 8)
    _refused("a function runs GCNConv", [lambda x, e, n: conv(x, e)[:n]], plain)
    gcn_by_type = pyg.GCNConv(5, 5, add_self_loops=False)
    mixed = pyg.HeteroConv(
        {typed_layers.BUYS: gcn_by_type, typed_layers.BOUGHT: pyg.SAGEConv((5, 5), 5)}
    ).eval()
    _refused("GCNConv has no degrees", [mixed], typed)
    assert "weights" not in caplog.text
    full_graph_inference(gcn, plain, batch_size=20)
    assert "GCN takes them, but they are not read" in caplog.text
