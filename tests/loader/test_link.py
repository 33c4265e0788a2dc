"""The loader over real workers; what a batch must hold is in `link_reference`."""

import inspect
import itertools
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
import torch
import torch.distributed as dist
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    CustomSamplerOptions,
    DistABLPLoader,
    DistDataset,
    DistNeighborLoader,
    GraphPartitionData,
    PartitionOutput,
)
from gigl_loader.errors import ConfigError
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.wire.requests import NodeIdsRequest
from gigl_loader.loader.ablp import zip_with_negatives
from gigl_loader.sampler.options import SAME_MEMORY_VARIABLE
from gigl_loader.testing import batch_tensors, run_ranks
from tests.loader.link.link_reference import (
    BUYS,
    KNOWS,
    REV_BUYS,
    E,
    LinkGraph,
    N,
    check,
    check_same,
    collate,
    expect,
    fanouts_of,
    ring,
    sample,
    shop,
)

pytestmark = pytest.mark.multiprocess


@pytest.fixture
def alone(tmp_path: Path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _loader(dataset, num_neighbors, anchors, **how) -> DistABLPLoader:
    how = {"batch_size": 4, "seed": 1, "with_edge": True, **how}
    return DistABLPLoader(dataset, num_neighbors, anchors, **how)


def _lists(graph: LinkGraph, *hops: int):
    """Return ``num_neighbors`` as a user writes them."""
    if not graph.heterogeneous:
        return list(hops)
    return {edge_type: list(fanout) for edge_type, fanout in fanouts_of(graph, *hops).items()}


def _all_of(graph: LinkGraph) -> torch.Tensor:
    return torch.arange(graph.num_nodes["user" if graph.heterogeneous else N])


def _check_epoch(loader, graph, supervision, edge_dir, exclude=()) -> list[int]:
    """Check every batch against plain Python; return the anchors, in order."""
    fanouts = fanouts_of(graph, -1, -1)
    anchors = []
    for batch in loader:
        seeds = (batch["user"] if graph.heterogeneous else batch).batch.tolist()
        expected = expect(graph, seeds, supervision, fanouts, edge_dir=edge_dir, exclude=exclude)
        check(batch, graph, expected, supervision, edge_dir=edge_dir)
        anchors += seeds
    return anchors


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_heterogeneous_graphs_in_both_output_forms(edge_dir, alone) -> None:
    graph = shop()
    dataset = graph.partitions(edge_dir=edge_dir)[0]
    everybody = ("user", _all_of(graph))
    with _loader(dataset, _lists(graph, -1, -1), everybody, supervision_edge_type=BUYS) as loader:
        assert _check_epoch(loader, graph, [BUYS], edge_dir) == everybody[1].tolist()
    with _loader(
        dataset,
        _lists(graph, -1, -1),
        everybody,
        supervision_edge_type=[KNOWS, BUYS],
        use_label_edge_index_output=True,
        exclude_supervision=True,
        shuffle=True,
        num_workers=2,
    ) as loader:
        for _ in range(2):
            found = _check_epoch(loader, graph, [KNOWS, BUYS], edge_dir, tuple(graph.edges))
            assert sorted(found) == everybody[1].tolist()


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_labeled_homogeneous_graphs_yield_data(edge_dir, alone) -> None:
    graph = ring()
    dataset = graph.partitions(edge_dir=edge_dir)[0]
    for how in ({}, {"use_label_edge_index_output": True, "supervision_edge_type": E}):
        with _loader(dataset, [-1, -1], None, **how) as loader:  # None: all nodes
            assert _check_epoch(loader, graph, [E], edge_dir) == list(range(13))
    with _loader(dataset, [-1, -1], _all_of(graph)[:6], exclude_supervision=[E]) as loader:
        assert _check_epoch(loader, graph, [E], edge_dir, (E,)) == list(range(6))


def test_links_and_random_nodes_side_by_side(alone) -> None:
    graph = shop()
    dataset = graph.partitions()[0]
    with (
        _loader(dataset, [2], ("user", _all_of(graph)), supervision_edge_type=BUYS) as links,
        DistNeighborLoader(
            dataset, [2], ("item", torch.arange(16)), batch_size=6, shuffle=True, drop_last=True
        ) as items,
    ):
        pairs = list(zip_with_negatives(links, items))
        assert len(pairs) == len(links) == 6
        assert [batch["user"].batch_size for batch, _ in pairs] == [4, 4, 4, 4, 4, 2]
        drawn = [negatives["item"].batch for _, negatives in pairs]
        assert all(ids.numel() == 6 for ids in drawn)
        assert len({tuple(ids.tolist()) for ids in drawn}) > 2  # another epoch, another order


@pytest.mark.parametrize("form", [{}, {"use_label_edge_index_output": True}])
def test_most_labels_of_an_anchor(form, alone) -> None:
    """As GiGL's cap: the first labels of each anchor, here by id; 0 has 5, 1 has 1, 2 has none."""
    positives = torch.tensor([[0, 0, 0, 0, 0, 1], [9, 3, 5, 7, 4, 8]])
    negatives = torch.tensor([[2, 2, 2], [6, 5, 4]])
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=10)
    dataset = DistDataset.from_pyg(data, supervision=(positives, negatives))
    dataset.max_labels_per_anchor_node = 2
    server = StorageService(pickle.loads(ForkingPickler.dumps(dataset)))
    with _loader(dataset, [-1], torch.arange(3), **form) as loader:
        (batch,) = loader
    expected = {"y_positive": {0: [3, 4], 1: [8], 2: []}, "y_negative": {0: [], 1: [], 2: [4, 5]}}
    for name, by_anchor in expected.items():
        found = batch[name]
        if form:
            found = {a: found[1][found[0] == a] for a in range(3)}
        assert {a: batch.n_id[labels].tolist() for a, labels in found.items()} == by_anchor
    _, anchors, labels, others = server.get_ablp_input(NodeIdsRequest())
    assert anchors.tolist() == list(range(10))
    assert others is not None
    assert [table.tolist()[:3] for table in labels.values()] == [[[3, 4], [8, -1], [-1, -1]]]
    assert [table.tolist()[:3] for table in others.values()] == [[[-1, -1], [-1, -1], [4, 5]]]
    wrong: Any
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="max_labels_per_anchor_node must be an integer > 0"):
            dataset.max_labels_per_anchor_node = wrong


class GiglEdgeType(NamedTuple):
    """As GiGL's ``EdgeType``: equals the tuple; workers must never need its class."""

    src_node_type: str
    relation: str
    dst_node_type: str

    def __reduce__(self) -> NoReturn:
        raise AssertionError("it was sent to a worker")


def test_named_tuples_as_edge_types(alone) -> None:
    graph = shop()
    buys = GiglEdgeType(*BUYS)
    fanouts = {GiglEdgeType(*name): hops for name, hops in _lists(graph, -1, -1).items()}
    everybody = ("user", _all_of(graph))
    excluded = [GiglEdgeType(*REV_BUYS)]
    for exclude in (False, excluded):
        with _loader(
            graph.partitions()[0],
            fanouts,
            everybody,
            supervision_edge_type=buys,
            exclude_supervision=exclude,
        ) as loader:
            expected = tuple(excluded if exclude else ())
            assert _check_epoch(loader, graph, [BUYS], "in", expected) == everybody[1].tolist()
    data = HeteroData()
    data["user"].num_nodes = data["item"].num_nodes = 3
    links = torch.tensor([[0, 1], [2, 1]])
    data[GiglEdgeType(*REV_BUYS)].edge_index = links
    held = DistDataset.from_pyg(data, supervision={buys: (links, None)})
    built = DistDataset(0, 1)
    parts = GraphPartitionData(links, torch.arange(2))
    built.build(
        partition_output=PartitionOutput(
            node_partition_book={"user": torch.zeros(3).long(), "item": torch.zeros(3).long()},
            partitioned_edge_index={GiglEdgeType(*REV_BUYS): parts},
            partitioned_positive_labels={buys: links},
        )
    )
    for dataset in (held, built):
        ForkingPickler.dumps(dataset)
        assert dataset.schema.edge_types is not None
        assert {type(name) for name in dataset.schema.edge_types} == {tuple}


def test_workers_run_the_same_sampler_by_its_path(alone) -> None:
    graph = ring()
    keywords = {"supervision": [list(E)], "exclude": [list(E)]}  # as read from a file
    options = CustomSamplerOptions("gigl_loader.sampler.anchors.anchor_sampler", keywords)
    with _loader(graph.partitions()[0], [-1, -1], None, sampler_options=options) as loader:
        assert _check_epoch(loader, graph, [E], "in", (E,)) == list(range(13))


def test_what_cannot_work_is_said_before_anything_starts(alone) -> None:
    graph = shop()
    dataset, users = graph.partitions()[0], ("user", _all_of(graph))
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ((dataset, [2], users), {}, "supervision_edge_type must be given"),
        ((dataset, [2], users), {"supervision_edge_type": REV_BUYS}, "no positive label edges"),
        ((dataset, [2], ("item", users[1][:9])), {"supervision_edge_type": BUYS}, "anchors are"),
        ((dataset, [2], users[1]), {"supervision_edge_type": BUYS}, "pass input_nodes=.node_type"),
        ((dataset, [2], {0: users[1]}), {"supervision_edge_type": BUYS}, "as for a graph store"),
        (
            (dataset, [2], users),
            {"supervision_edge_type": BUYS, "exclude_supervision": [KNOWS]},
            "cannot hold copies",
        ),
        (
            (dataset, [2], users),
            {"supervision_edge_type": BUYS, "prefetch_size": 2},
            "belongs to graph-store mode",
        ),
        ((ring().partitions()[0], [2], torch.tensor([13])), {}, "is no node id"),
    ]
    for args, how, match in cases:
        with pytest.raises(ConfigError, match=match):
            _loader(*args, **how)
    with pytest.raises(ConfigError, match="no positive label edges"):
        _loader(LinkGraph({N: 3}, {E: [(0, 1)]}, {}).partitions()[0], [2], None)


def test_positional_arguments_are_those_of_the_interface() -> None:
    parameters = inspect.signature(DistABLPLoader).parameters
    positional = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == [
        "dataset",
        "num_neighbors",
        "input_nodes",
        "supervision_edge_type",
        "num_workers",
        "batch_size",
        "pin_memory_device",
        "worker_concurrency",
        "prefetch_size",
        "channel_size",
        "process_start_gap_seconds",
        "num_cpu_threads",
        "shuffle",
        "drop_last",
        "with_weight",
        "sampler_options",
        "context",
        "local_process_rank",
        "local_process_world_size",
        "non_blocking_transfers",
        "use_label_edge_index_output",
    ]
    plain = inspect.signature(DistNeighborLoader).parameters
    assert set(plain) - set(parameters) == set()
    for name in set(plain) - {"self"}:
        assert parameters[name].default == plain[name].default, name


@pytest.mark.gpu
@pytest.mark.parametrize("ahead", [True, False])
def test_labels_on_a_gpu(ahead, alone) -> None:
    graph = shop()
    dataset, users = graph.partitions()[0], ("user", _all_of(graph))
    for more in ({}, {"use_label_edge_index_output": True}):
        how: dict[str, Any] = {"supervision_edge_type": BUYS, **more}
        batches = []
        for device in ("cpu", "cuda"):
            with _loader(
                dataset,
                [2, 2],
                users,
                pin_memory_device=torch.device(device),
                non_blocking_transfers=ahead,
                **how,
            ) as loader:
                batches.append([batch.clone() for batch in loader])
        for expected, found in zip(*batches, strict=True):
            assert found["user"].x.is_cuda
            check_same(batch_tensors(found.cpu()), batch_tensors(expected))


# --- two partitions ------------------------------------------------------------------------------


def _on_each_rank(rank: int, size: int) -> None:
    cases = ((shop(), [BUYS, KNOWS], ("in", "out")), (ring(), [E], ("out",)))
    for graph, supervision, edge_dirs in cases:
        for edge_dir, same_memory in itertools.product(edge_dirs, "01"):
            os.environ[SAME_MEMORY_VARIABLE] = same_memory
            dataset = graph.partitions(size, edge_dir=edge_dir)[rank]
            anchors = _all_of(graph)  # of both partitions: each rank takes its share
            given = ("user", anchors) if graph.heterogeneous else anchors
            share = anchors.tensor_split(size)[rank].tolist()
            how: dict[str, Any] = {"supervision_edge_type": supervision}
            with _loader(dataset, _lists(graph, -1, -1), given, **how) as loader:
                assert _check_epoch(loader, graph, supervision, edge_dir) == share
            how["exclude_supervision"] = True
            with _loader(dataset, _lists(graph, 2, 1), given, with_weight=True, **how) as loader:
                batches = list(loader)
            whole = graph.partitions(edge_dir=edge_dir)  # the same from one partition
            for number, batch in enumerate(batches):
                message = sample(
                    whole,
                    share[4 * number : 4 * number + 4],
                    supervision,
                    fanouts_of(graph, 2, 1),
                    number=number,
                    with_edge=True,
                    with_weight=True,
                    exclude=tuple(graph.edges),
                )
                alike = collate(message, whole[0], supervision)
                check_same(batch_tensors(batch), batch_tensors(alike), {"input_id"})
            dist.barrier()


def test_two_ranks_with_a_partition_each(tmp_path: Path) -> None:
    run_ranks(_on_each_rank, world_size=2, tmp_path=tmp_path, timeout=400)
