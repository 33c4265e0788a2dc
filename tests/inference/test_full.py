"""An unchanged model over a distributed graph, against PyG in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_geometric.nn as pyg
from torch_geometric.data import Data

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.inference.full_graph import full_graph
from gigl_loader.inference.layerwise import full_graph_inference
from gigl_loader.testing import run_ranks
from tests.inference import full_jobs

pytestmark = pytest.mark.usefixtures("starts_no_workers")

ranks = pytest.mark.multiprocess


@ranks
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.wide)])
@pytest.mark.parametrize("job", ["same_as_one_process", "same_by_type"])
def test_outputs_and_gradients_are_those_of_one_process(
    job: str, world: int, tmp_path: Path
) -> None:
    run_ranks(getattr(full_jobs, job), world_size=world, tmp_path=tmp_path)


@ranks
@pytest.mark.parametrize(
    ("world", "names"),
    [(2, []), (3, ["SAGE", "GAT"]), pytest.param(3, [], marks=pytest.mark.wide)],
    ids=["two", "three", "three, all"],
)
def test_one_rank_at_a_time_gives_the_same(world: int, names: list[str], tmp_path: Path) -> None:
    run_ranks(full_jobs.same_by_rank, names, world_size=world, tmp_path=tmp_path)


@pytest.mark.parametrize("job", ["same_as_one_process", "same_by_type", "against_the_edges"])
def test_one_process_needs_no_group(job: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", lambda grad: None)
        getattr(full_jobs, job)(0, 1)


@ranks
@pytest.mark.parametrize(
    ("job", "world"),
    [
        ("against_the_edges", 2),
        ("bits_do_not_depend_on_ranks", 3),
        ("shared_partitions", 3),
        ("a_missing_partition_is_named", 2),
        ("rows_of_one_rank_are_held_at_a_time", 3),
        ("ranks_differ_in_sequential", 2),
    ],
)
def test_ranks(job: str, world: int, tmp_path: Path) -> None:
    run_ranks(getattr(full_jobs, job), world_size=world, tmp_path=tmp_path)


@ranks
@pytest.mark.parametrize("job", ["a_rank_dies", "a_rank_dies_before_backward"])
def test_a_killed_rank_is_an_error_on_the_others(job: str, tmp_path: Path) -> None:
    run_ranks(getattr(full_jobs, job), world_size=2, tmp_path=tmp_path, may_die=[1])


def _use(model: Any, data: Any, how: str) -> None:
    if how == "other edges":
        model(data.x, data.edge_index.clone())
    elif how == "other rows":
        model(data.x[:-1], data.edge_index)
    elif how == "twice":
        model.convs[1] = model.convs[0]
        model(data.x, data.edge_index)


@pytest.mark.parametrize(
    ("how", "nodes", "text"),
    [
        ("other edges", None, "edge_index that is not one of the graph's"),
        ("other rows", None, "got 59 rows"),
        ("twice", torch.tensor([1]), "runs twice"),
        ("", torch.tensor([60]), r"must be in \[0, 60\)"),
        ("", {"user": torch.tensor([1])}, "unknown node types"),
    ],
)
def test_misuse_is_refused(how: str, nodes: Any, text: str) -> None:
    model = pyg.GraphSAGE(full_jobs.WIDTH, full_jobs.WIDTH, 2)
    dataset = full_jobs.partition(full_jobs.graph(), 0, 1)
    with pytest.raises(ConfigError, match=text), full_graph(model, dataset, nodes=nodes) as data:
        _use(model, data, how)


class _OfUser(pyg.SAGEConv):
    pass


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (pyg.GATv2Conv(6, 4), "GATv2Conv at 'layers.0' cannot aggregate"),
        (pyg.SAGEConv(6, 4, aggr="max"), "MaxAggregation is no sum or mean"),
        (_OfUser(6, 4), "_OfUser at 'layers.0' cannot .* or leave sequential out"),
    ],
)
def test_layers_that_need_all_rows_at_once_are_refused(layer: Any, text: str) -> None:
    model = full_jobs.Stack(layer)
    dataset = full_jobs.partition(full_jobs.graph(), 0, 1)
    with pytest.raises(ConfigError, match=text), full_graph(model, dataset, sequential=True):
        pass


def test_sequential_is_a_bool() -> None:
    rows: Any = "rows"
    dataset = full_jobs.partition(full_jobs.graph(), 0, 1)
    with (
        pytest.raises(WrongTypeError, match="sequential must be True or False, got 'rows'"),
        full_graph(torch.nn.Identity(), dataset, sequential=rows),
    ):
        pass


def test_hooks_end_with_the_block() -> None:
    model = pyg.GraphSAGE(full_jobs.WIDTH, 4, 2).eval()
    data = full_jobs.graph()
    before = model(data.x, data.edge_index)
    dataset = full_jobs.partition(data, 0, 1)
    with pytest.raises(ZeroDivisionError), full_graph(model, dataset):
        raise ZeroDivisionError
    assert torch.equal(model(data.x, data.edge_index), before)


def test_label_edges_carry_no_messages() -> None:
    """A labeled-homogeneous dataset, as link prediction trains on: embeddings of all its nodes."""
    data = full_jobs.graph()
    pairs = torch.tensor([[i, (7 * i + 3) % 60] for i in range(60)]).t()
    plain = Data(x=data.x, edge_index=data.edge_index)
    dataset = DistDataset.from_pyg(plain, supervision=(pairs, pairs.roll(1, 1)))
    model = full_jobs.MODELS["GCN"]().eval()
    wanted = model(data.x, data.edge_index)
    with full_graph(model, dataset) as mine:
        torch.testing.assert_close(model(mine.x, mine.edge_index), wanted)
    found = full_graph_inference(model, dataset, batch_size=11).values
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-5, atol=1e-5)


def test_rows_that_nothing_depends_on_are_not_computed() -> None:
    """A path: the output of node 3 reads nodes 2 and 1 by two layers, and no others."""
    data = full_jobs.graph()
    data.edge_index = torch.stack([torch.arange(59), torch.arange(1, 60)])
    data.edge_attr = data.edge_weight = None
    model = pyg.GraphSAGE(full_jobs.WIDTH, 4, 2)
    seen = []
    for conv in model.convs:
        conv.register_propagate_forward_pre_hook(lambda m, i: seen.append(i[0].size(1)))
    with full_graph(model, full_jobs.partition(data, 0, 1), nodes=torch.tensor([3])) as mine:
        model(mine.x, mine.edge_index)
    assert seen == [2, 1]


def test_a_graph_store_is_another_deployment() -> None:
    none: Any = None
    with pytest.raises(WrongTypeError, match="DistDataset"), full_graph(torch.nn.Identity(), none):
        pass
