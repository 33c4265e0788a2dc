"""One contract for graphlearn-torch's classes and for ours, which take their place."""

import dataclasses
import importlib
import inspect
import pickle
import sys
from collections.abc import Iterator
from enum import Enum
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.dataset.schema import EdgeDir, reverse_edge_type
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.runtime import glt_classes
from gigl_loader.runtime.glt_classes import classes as stand_ins
from tests.support.scripts import run_python

ADDRESS: dict[str, Any] = {"master_addr": "10.0.0.1", "master_port": 4000}
SHARED = sorted(glt_classes.EXPORTS)


def _theirs() -> SimpleNamespace:
    return SimpleNamespace(**{name: glt_classes._from_glt(name) for name in SHARED})


@pytest.fixture(params=["ours", "glt"] if glt_classes.available else ["ours"])
def classes(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Give the set of classes; afterwards the process has the role again that it had."""
    found = stand_ins if request.param == "ours" else _theirs()
    module = sys.modules[found.get_context.__module__]
    before = dict(vars(module))
    yield found
    vars(module).update(before)


# --- the two sets are the same shape --------------------------------------------------------------


@pytest.mark.glt
@pytest.mark.parametrize("name", SHARED)
def test_arguments_and_methods_are_glts(name: str) -> None:
    ours, theirs = getattr(stand_ins, name), getattr(_theirs(), name)
    if name == "DistLoader":  # a base class only
        return
    if name != "DistDataset":  # `gigl_loader.glt.distributed` has its constructor
        assert _parameters(ours) == [p for p in _parameters(theirs) if p not in _LEFT_OUT]
    if isinstance(theirs, type):
        public = {n for n in vars(theirs) if not n.startswith("_")} - _NOT_HERE
        assert public <= set(dir(ours))


_LEFT_OUT = ("glt_graph", "workload_type")
"""Of GraphScope, which needs GLT."""
_NOT_HERE = {
    "graph_handler",  # the native graph
    "load_vineyard",
    "load",
    "share_ipc",
    "from_ipc_handle",  # `gigl_loader.DistDataset` has these
}


def _parameters(thing: Any) -> list[str]:
    if isinstance(thing, type) and issubclass(thing, Enum):
        return [member.name for member in thing]
    return list(inspect.signature(thing).parameters)


@pytest.mark.glt
def test_values_of_the_enum_are_glts() -> None:
    ours = {kind.name: kind.value for kind in stand_ins.SamplingType}
    assert ours == {kind.name: kind.value for kind in _theirs().SamplingType}


# --- options --------------------------------------------------------------------------------------


def test_worker_options_have_glts_fields(classes: Any) -> None:
    options = classes.MpDistSamplingWorkerOptions(2, torch.device("cpu"), 40, **ADDRESS)
    assert vars(options) == {
        "num_workers": 2,
        "worker_world_size": None,
        "worker_ranks": None,
        "worker_devices": [torch.device("cpu")] * 2,
        "worker_concurrency": 32,
        "master_addr": "10.0.0.1",
        "master_port": 4000,
        "num_rpc_threads": None,
        "rpc_timeout": 180,
        "channel_capacity": 64,
        "channel_size": "128MB",
        "pin_memory": False,
        "use_all2all": False,
    }
    assert vars(pickle.loads(pickle.dumps(options))) == vars(options)


def test_remote_options_have_glts_fields(classes: Any) -> None:
    options = classes.RemoteDistSamplingWorkerOptions(
        [0, 2], 1, None, 8, "host", "77", 3, 9.0, "1GB", 5, "key"
    )
    assert vars(options) == {
        "num_workers": 1,
        "worker_world_size": None,
        "worker_ranks": None,
        "worker_devices": None,
        "worker_concurrency": 8,
        "master_addr": "host",
        "master_port": 77,
        "num_rpc_threads": 3,
        "rpc_timeout": 9.0,
        "server_rank": [0, 2],
        "buffer_capacity": 8,
        "buffer_size": "1GB",
        "prefetch_size": 5,
        "worker_key": "key",
        "use_all2all": False,
    }


def test_addresses_come_from_the_environment(classes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.2")
    monkeypatch.setenv("MASTER_PORT", "4000")
    options = classes.MpDistSamplingWorkerOptions()
    assert (options.master_addr, options.master_port) == ("10.0.0.2", 4001)


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT"])
def test_options_without_an_address_are_refused(
    classes: Any, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.2")
    monkeypatch.setenv("MASTER_PORT", "4000")
    monkeypatch.delenv(missing)
    with pytest.raises(ValueError, match="MASTER_"):
        classes.MpDistSamplingWorkerOptions()


def test_more_prefetch_than_buffer_is_refused(classes: Any) -> None:
    with pytest.raises(ValueError, match="prefetch"):
        classes.RemoteDistSamplingWorkerOptions(0, worker_concurrency=2, prefetch_size=3, **ADDRESS)


def test_workers_are_ranked_process_by_process(classes: Any) -> None:
    classes.init_worker_group(3, 1)
    options = classes.MpDistSamplingWorkerOptions(2, **ADDRESS)
    options._set_worker_ranks(classes.get_context())
    assert (options.worker_world_size, options.worker_ranks) == (6, [2, 3])


@pytest.mark.parametrize(
    ("servers", "clients", "shares"),
    [(4, 2, [[0, 1], [2, 3]]), (5, 2, [[0, 1, 2], [3, 4]]), (2, 5, [[0], [1], [0], [1], [0]])],
)
def test_servers_are_dealt_out(
    classes: Any, servers: int, clients: int, shares: list[list[int]]
) -> None:
    for client, share in enumerate(shares):
        classes._set_client_context(servers, clients, client)
        assert classes.RemoteDistSamplingWorkerOptions(**ADDRESS).server_rank == share


# --- roles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("set_role", "arguments", "role", "name", "figures"),
    [
        ("init_worker_group", (3, 2), "worker", "_default_worker_2", (3, 2, 3, 2, 0, 0)),
        ("init_worker_group", (3, 2, "mine"), "worker", "mine_2", (3, 2, 3, 2, 0, 0)),
        ("_set_server_context", (2, 1), "server", "_default_server_1", (2, 1, 2, 1, 2, 0)),
        ("_set_server_context", (2, 1, "s", 3), "server", "s_1", (2, 1, 5, 1, 2, 3)),
        ("_set_client_context", (2, 3, 1), "client", "_default_client_1", (3, 1, 5, 3, 2, 3)),
    ],
)
def test_a_process_knows_its_role(
    classes: Any, set_role: str, arguments: Any, role: str, name: str, figures: Any
) -> None:
    getattr(classes, set_role)(*arguments)
    context = classes.get_context()
    assert [r for r in ("worker", "server", "client") if getattr(context, f"is_{r}")()] == [role]
    assert context.role.name == role.upper()
    assert context.worker_name == name
    assert figures == (
        context.world_size,
        context.rank,
        context.global_world_size,
        context.global_rank,
        context.num_servers(),
        context.num_clients(),
    )
    assert pickle.loads(pickle.dumps(context)) == context


def test_a_rank_beyond_the_world_is_refused(classes: Any) -> None:
    with pytest.raises((ValueError, AssertionError)):
        classes.init_worker_group(2, 2)


# --- what is sampled ------------------------------------------------------------------------------


def test_sampler_input(classes: Any) -> None:
    made = classes.NodeSamplerInput(torch.tensor([5, 6, 7]), "paper")
    assert len(made) == 3
    assert (made[[2, 0]].node.tolist(), made[torch.tensor([1])].input_type) == ([7, 5], "paper")
    assert made.to(torch.device("cpu")) is made
    assert made.share_memory().node.is_shared()
    assert classes.NodeSamplerInput.cast(made) is made
    assert classes.NodeSamplerInput.cast((made.node, "author")).input_type == "author"
    assert classes.NodeSamplerInput.cast({"node": made.node}).input_type is None
    assert classes.NodeSamplerInput.cast(None) is None
    again = pickle.loads(pickle.dumps(made))
    assert (again.node.tolist(), again.input_type) == ([5, 6, 7], "paper")


def test_sampling_config_is_a_dataclass(classes: Any) -> None:
    node = classes.SamplingType.NODE
    config = classes.SamplingConfig(node, [2], 4, True, False, True, True, False, True, "in", 7)
    assert dataclasses.asdict(config) == {
        "sampling_type": node,
        "num_neighbors": [2],
        "batch_size": 4,
        "shuffle": True,
        "drop_last": False,
        "with_edge": True,
        "collect_features": True,
        "with_neg": False,
        "with_weight": True,
        "edge_dir": "in",
        "seed": 7,
    }
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_channel_has_two_methods_to_write(classes: Any) -> None:
    with pytest.raises(TypeError, match="abstract"):
        classes.ChannelBase()
    assert classes.ChannelBase.__abstractmethods__ == {"send", "recv"}


@pytest.mark.glt
def test_edge_types_are_reversed_as_in_glt() -> None:
    theirs = importlib.import_module("graphlearn_torch.typing").reverse_edge_type
    for name, turned in (
        (("a", "to", "b"), ("b", "rev_to", "a")),
        (("a", "to", "a"), ("a", "to", "a")),
        (("b", "rev_to", "a"), ("a", "to", "b")),
    ):
        assert reverse_edge_type(name) == theirs(name) == turned


# --- edges and rows -------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_cpu_graph_needs_no_native_library(classes: Any, edge_dir: EdgeDir) -> None:
    dataset = classes.DistDataset(2, 0, edge_dir=edge_dir)
    dataset.init_graph(
        torch.tensor([[0, 1, 2, 2], [1, 0, 0, 1]]),
        edge_weights=torch.tensor([1.0, 2.0, 3.0, 4.0]),
        graph_mode="CPU",
    )
    graph = dataset.get_graph()
    assert (graph.edge_count, graph.col_count) == (4, {"in": 3, "out": 2}[edge_dir])
    assert graph.row_count == graph.topo.row_count == {"in": 2, "out": 3}[edge_dir]
    assert graph.topo.indices.tolist() == {"in": [1, 2, 0, 2], "out": [1, 0, 0, 1]}[edge_dir]
    assert graph.topo.edge_ids.tolist() == {"in": [1, 2, 0, 3], "out": [0, 1, 2, 3]}[edge_dir]
    assert (graph.topo.edge_weights - 1).tolist() == graph.topo.edge_ids.tolist()
    assert graph.topo.indices.is_shared()
    assert dataset.get_node_types() is dataset.get_edge_types() is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20))
def test_edges_are_the_same_in_every_layout(edges: list[tuple[int, int]]) -> None:
    index = torch.tensor(edges).T
    sets: list[Any] = [stand_ins, *([_theirs()] if glt_classes.available else [])]
    for made in (classes.Topology(index, layout=layout) for classes in sets for layout in LAYOUTS):
        source, target, ids, weights = made.to_coo()
        found = sorted(zip(ids.tolist(), source.tolist(), target.tolist(), strict=True))
        assert found == [(i, *edge) for i, edge in enumerate(edges)]
        assert weights is None
        by_source, by_target = made.to_csr(), made.to_csc()
        assert by_source[0].diff().tolist() == _degrees([source for source, _ in edges])
        assert by_target[1].diff().tolist() == _degrees([target for _, target in edges])
        assert made.degrees.sum() == made.edge_count == len(edges)


LAYOUTS = ("CSR", "CSC")


def _degrees(ends: list[int]) -> list[int]:
    return [ends.count(node) for node in range(max(ends) + 1)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compressed_edges_are_taken_as_they_are(classes: Any, layout: str) -> None:
    offsets, others = torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1])
    index = (offsets, others) if layout == "CSR" else (others, offsets)
    ids = torch.tensor([7, 8, 9])
    same = classes.Topology(index, ids, input_layout=layout, layout=layout)
    assert (same.indptr.tolist(), same.indices.tolist()) == ([0, 2, 3], [1, 0, 1])
    assert same["edge_ids"].tolist() == [7, 8, 9]
    turned = classes.Topology(
        index, ids, input_layout=layout, layout=LAYOUTS[1 - LAYOUTS.index(layout)]
    )
    assert turned.indptr.tolist() == [0, 1, 3]
    assert (turned.indices.tolist(), turned.edge_ids.tolist()) == ([0, 0, 1], [8, 7, 9])


def test_a_graph_travels_between_processes(classes: Any) -> None:
    graph = classes.Graph(classes.Topology(torch.tensor([[0, 1], [1, 0]])), "cpu")
    again = pickle.loads(ForkingPickler.dumps(graph))
    assert torch.equal(again.topo.indices, graph.topo.indices)
    assert again.mode == "CPU"
    assert [part.tolist() for part in again.export_topology()] == [[0, 1, 2], [1, 0], [0, 1]]


def test_rows_by_id(classes: Any) -> None:
    rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    feature = classes.Feature(rows, torch.tensor([1, -1, 0]), with_gpu=False)
    assert feature[torch.tensor([0, 2])].tolist() == [[3.0, 4.0], [1.0, 2.0]]
    assert (feature.shape, feature.size(1)) == ((2, 2), 2)
    assert feature.feature_tensor.dtype == torch.float32
    assert feature.feature_tensor.is_shared()
    again = pickle.loads(ForkingPickler.dumps(feature))
    assert again.cpu_get(torch.tensor([2])).tolist() == [[1.0, 2.0]]


def test_a_range_book_finds_owners(classes: Any) -> None:
    book = classes.RangePartitionBook([(0, 3), (3, 5)], 1)
    assert book[torch.tensor([0, 2, 3, 4])].tolist() == [0, 0, 1, 1]
    assert [book.id_filter(book, i).tolist() for i in (0, 1)] == [[0, 1, 2], [3, 4]]
    assert book.id2index[torch.tensor([3, 4])].tolist() == [0, 1]
    assert (book.id2index.offset, book.device.type) == (3, "cpu")
    assert book.id2index.to("cpu") is book.id2index
    assert pickle.loads(pickle.dumps(book)).partition_bounds.tolist() == [3, 5]


@pytest.mark.parametrize("ranges", [[(0, 3), (3, 3)], [(0, 3), (4, 5)]])
def test_a_range_book_refuses_holes(classes: Any, ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match=r"[Rr]ange"):
        classes.RangePartitionBook(ranges, 0)


# --- datasets -------------------------------------------------------------------------------------


def test_a_dataset_keeps_what_it_is_given(classes: Any) -> None:
    dataset = classes.DistDataset(2, 1)
    dataset.node_pb = torch.tensor([1, 0, 1, 1, 0, 1, 1, 1])
    dataset.init_node_features(torch.ones(3, 2), with_gpu=False)
    dataset.init_edge_features(np.ones((4, 1)), with_gpu=False, dtype=torch.float64)
    dataset.init_node_labels(torch.tensor([[4], [5], [6]]))
    assert dataset.get_node_feature().shape == (3, 2)
    assert dataset.get_edge_feature().feature_tensor.dtype == torch.float64
    assert dataset.get_node_label().tolist() == [4, 5, 6]
    assert dataset.node_feat_pb is dataset.node_pb
    assert dataset.edge_feat_pb is None
    assert dataset.id_filter(dataset.node_pb, 1).tolist() == [0, 2, 3, 5, 6, 7]
    assert dataset.id_select(torch.tensor([7, 8]), torch.tensor([False, True])).tolist() == [8]
    assert dataset["edge_dir"] == "out"
    dataset["edge_dir"] = "in"
    assert (dataset.edge_dir, dataset["nothing"]) == ("in", None)
    dataset.random_node_split(0.34, 2)
    splits = [dataset.train_idx, dataset.val_idx, dataset.test_idx]
    assert [len(ids) for ids in splits] == [2, 2, 2]
    assert sorted(torch.cat(splits).tolist()) == [0, 2, 3, 5, 6, 7]


def test_a_dataset_by_types(classes: Any) -> None:
    dataset = classes.DistDataset(edge_dir="out")
    kinds = {("a", "to", "b"): 0, ("b", "back", "a"): 1}
    dataset.init_graph({t: torch.tensor([[i], [1]]) for t, i in kinds.items()}, graph_mode="CPU")
    dataset.init_node_features({"a": torch.ones(1, 2)}, with_gpu=False)
    dataset.init_node_labels({"a": torch.tensor([[4, 5]])})
    dataset.init_node_split(({"a": torch.tensor([0])}, {"a": torch.tensor([1])}, None))
    assert dataset.get_edge_types() == list(kinds)
    assert sorted(dataset.get_node_types()) == ["a", "b"]
    assert dataset.get_graph(("b", "back", "a")).topo.indptr.tolist() == [0, 0, 1]
    assert dataset.get_graph(("a", "no", "a")) is dataset.get_node_feature("b") is None
    assert dataset.get_node_feature("a").shape == (1, 2)
    assert dataset.get_node_label("a").tolist() == [4, 5]
    assert dataset.get_edge_feature() is None
    assert dataset.val_idx["a"].tolist() == 1
    assert dataset.test_idx is None


def test_labels_of_some_nodes_are_looked_up(classes: Any) -> None:
    dataset = classes.Dataset()
    dataset.init_node_labels(torch.tensor([9, 8]), id2idx=torch.tensor([1, 0]))
    assert dataset.get_node_label()[torch.tensor([0])].tolist() == [8]


# --- without graphlearn-torch ---------------------------------------------------------------------


def test_malformed_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="name 2 devices, got 1"):
        stand_ins.MpDistSamplingWorkerOptions(2, [torch.device("cpu")], **ADDRESS)
    with pytest.raises(UsageError, match="name the server ranks"):
        stand_ins._servers_of_client(None)


def test_the_base_loader_is_a_base_class_only() -> None:
    with pytest.raises(UsageError, match=r"gigl_loader\.DistNeighborLoader"):
        stand_ins.DistLoader()


# --- between a machine with graphlearn-torch and one without --------------------------------------


TRAINING = """
import sys, warnings
warnings.simplefilter("error", RuntimeWarning)
for name in list(sys.modules):  # this process has imported torch, PyG and these
    if name.partition(".")[0] in ("gigl_loader", "graphlearn_torch"):
        del sys.modules[name]
sys.modules["graphlearn_torch"] = None  # as if it were not installed
import torch
import torch.distributed as dist
from torch_geometric.data import Data
from gigl_loader import BaseDistLoader, DistDataset, DistNeighborLoader
from gigl_loader.runtime import glt_classes

assert not glt_classes.available and not glt_classes.native_available
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
ring = torch.arange(8)
data = Data(x=ring.view(-1, 1).float(), edge_index=torch.stack([ring, (ring + 1) % 8]))
dataset = DistDataset.from_pyg(data)
assert isinstance(dataset, glt_classes.DistDataset) and isinstance(dataset, glt_classes.Dataset)
with DistNeighborLoader(dataset, [1], batch_size=4) as loader:
    assert isinstance(loader, BaseDistLoader) and isinstance(loader, glt_classes.DistLoader)
    for batch in loader:
        assert batch.x.view(-1).tolist() == batch.n_id.tolist()
        print(sorted(batch.n_id.tolist()))
dist.destroy_process_group()
"""


@pytest.mark.multiprocess
def test_a_loader_needs_no_graphlearn_torch() -> None:
    done = run_python("-c", TRAINING)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 1, 2, 3, 7]\n[3, 4, 5, 6, 7]\n"
