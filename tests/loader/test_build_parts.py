"""The parts of a loader: what ranks tell each other of their inputs, and who gets which seeds."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from gigl_loader import (
    ConfigError,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    GraphStoreInfo,
    UsageError,
)
from gigl_loader.loader.build_parts import Steps, is_remote, remote_arguments
from gigl_loader.loader.deployment.job_ranks import DistributedRuntimeInfo, from_addresses
from gigl_loader.loader.options import start_log
from gigl_loader.loader.options.loader_options import LoaderOptions
from gigl_loader.loader.seeds import seed_input
from gigl_loader.loader.seeds.seed_input import (
    RankInput,
    digest,
    share_input,
    tell_ranks_of_input,
    weighted_types,
)
from gigl_loader.sources.sampled_input import check_columns
from gigl_loader.sources.seed_checks import SeedSummary
from gigl_loader.testing import TinyGraph
from tests.support.glt import NodeSamplerInput

GRAPH = TinyGraph.random(12, 40)
PLAIN = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
ALONE = from_addresses(0, ["a"])


def _rank(number: int, machines: int, per_machine: int) -> DistributedRuntimeInfo:
    return from_addresses(number, [str(m) for m in range(machines) for _ in range(per_machine)])


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the ranks tell, in place of a process group; a test fills it in before each call."""
    everyone: list[Any] = []
    monkeypatch.setattr(seed_input, "gather_from_ranks", lambda own, *_: everyone or [own])
    return everyone


def _seeds(*ids: int, digest: bytes = b"x") -> SeedSummary:
    return SeedSummary.of(torch.tensor(ids, dtype=torch.int64), {}, 2, digest=digest)


@given(
    inputs=st.lists(st.integers(0, 1), min_size=4, max_size=4),
    size=st.integers(0, 11),
    machines=st.sampled_from([1, 2]),
)
def test_each_seed_goes_to_one_process_of_those_that_were_given_it(
    inputs: list[int], size: int, machines: int
) -> None:
    """Processes of a machine with one input share it; one with its own keeps it whole.

    Where two machines are given the same input, all ranks raise alike.
    """
    given: list[Any] = [
        SimpleNamespace(node=torch.arange(size) + 100 * kind, input_type="user") for kind in (0, 1)
    ]
    for kind, one in enumerate(given):
        one.extra = {"t": one.node * (kind + 2)}
    by_rank = [given[kind] for kind in inputs]
    everyone: list[RankInput] = []
    shares, errors = [], []

    def tell(own: RankInput, *_: object) -> list[RankInput]:
        everyone.append(own)
        return [own]

    with pytest.MonkeyPatch.context() as patch:
        # Each rank tells first, and then each goes on with what all told.
        patch.setattr(seed_input, "gather_from_ranks", tell)
        for one in by_rank:
            share_input(one, _rank(0, machines, 4 // machines), RankInput())
        patch.setattr(seed_input, "gather_from_ranks", lambda own, *_: everyone)
        for rank, one in enumerate(by_rank):
            try:
                share, _ = share_input(one, _rank(rank, machines, 4 // machines), RankInput())
                shares.append(share)
            except ConfigError as error:
                errors.append(str(error))
    if machines == 2 and set(inputs[:2]) & set(inputs[2:]) and size:
        assert len(errors) == 4
        assert len(set(errors)) == 1
        assert f"the same {size} seeds" in errors[0]
        return
    assert not errors
    for machine in range(machines):
        here = range(machine * 4 // machines, (machine + 1) * 4 // machines)
        for kind in {inputs[rank] for rank in here}:
            parts = [shares[rank] for rank in here if inputs[rank] == kind]
            assert torch.cat([one.node for one in parts]).equal(given[kind].node)
            assert torch.cat([one.extra["t"] for one in parts]).equal(given[kind].extra["t"])


@pytest.mark.parametrize("shard", ["world", "none"])
def test_with_another_shard_each_rank_keeps_all(shard: str, told: list) -> None:
    seeds: Any = SimpleNamespace(node=torch.arange(7), input_type="user")
    mine = RankInput(options={"shard": shard})
    same = SeedSummary(digest=digest([seeds.node])) if shard == "world" else SeedSummary()
    told += [replace(mine, seeds=same)] * 2
    assert share_input(seeds, _rank(1, 1, 2), mine) == (seeds, 0)
    if shard == "world":
        told[0] = replace(mine, seeds=SeedSummary(digest=b"other"))
        with pytest.raises(ConfigError, match=r"the seeds of the whole job.*on ranks .1.$"):
            share_input(seeds, _rank(1, 1, 2), mine)
    told[0] = RankInput(seeds=same)
    with pytest.raises(ConfigError, match="the same shard on all ranks"):
        share_input(seeds, _rank(1, 1, 2), mine)


@pytest.mark.parametrize(
    ("partitions", "words"),
    [
        ([(2, 0), (2, 0)], r"no process loaded partitions \[1\] of 2"),
        ([(2, 0), (3, 1)], "different numbers of partitions: {0: 2, 1: 3} by rank"),
    ],
)
def test_all_partitions_of_one_graph_are_held(partitions: list, words: str, told: list) -> None:
    told += [
        RankInput(partition=(2, 1), seeds=_seeds(1)),
        RankInput(partition=(2, 0), seeds=_seeds(2)),
    ]
    assert [one.seeds.count for one in tell_ranks_of_input(_rank(0, 1, 2), told[0])] == [1, 1]
    told[:] = [RankInput(partition=one) for one in partitions]
    with pytest.raises(ConfigError, match=words):
        tell_ranks_of_input(_rank(0, 1, 2), told[0])


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool, torch.bfloat16])
def test_fingerprints_tell_values_and_shapes(dtype: torch.dtype) -> None:
    one = torch.tensor([0, 1, 1, 0]).to(dtype)
    assert digest([one]) == digest([one.clone()])
    assert digest([one.view(2, 2).t()]) == digest([one.view(2, 2).t().contiguous()])
    others = [one.flip(0).roll(1), one.view(2, 2), one[:3]]
    assert len({digest([one]), *(digest([other]) for other in others)}) == 4
    assert digest([one[:2], one[2:]]) != digest([one])


def test_weights_that_only_one_partition_has(told: list) -> None:
    types = [{("a", "to", "a"): True}, {("a", "to", "a"): False}, {}, None]
    told += [RankInput(weighted=one) for one in types]
    with pytest.raises(ConfigError, match=r"weights on ranks \[0\] and none on ranks \[1\]"):
        tell_ranks_of_input(_rank(0, 1, 4), told[0])
    told[1] = told[0]
    assert len(tell_ranks_of_input(_rank(0, 1, 4), told[0])) == 4


def test_weights_and_edge_ids_that_a_dataset_has_not() -> None:
    plain, full = DistDataset.from_pyg(PLAIN), GRAPH.dataset()
    check_columns(plain.view())
    check_columns(full.view(), with_weight=True)
    assert set(weighted_types(full).values()) == {True}
    assert set(weighted_types(plain).values()) == {False}
    with pytest.raises(ConfigError, match="have no weights: give the graph an edge_weight"):
        check_columns(plain.view(), with_weight=True)
    check_columns(full.view(), with_edge=True)
    without = replace(next(iter(full.view().adjacency.values())), edge_ids=None)
    keeps_none: Any = SimpleNamespace(adjacency={("a", "to", "a"): without})
    check_columns(keeps_none)
    if not without.has_edge_ids:
        with pytest.raises(ConfigError, match="keep no edge ids"):
            check_columns(keeps_none, with_edge=True)


def test_a_graph_store_is_told_by_what_it_can_do() -> None:
    assert is_remote(SimpleNamespace(fetch_node_ids=None))
    assert not is_remote(GRAPH.dataset())


def _steps(**how: Any) -> Steps:
    """Return a loader that is being built, which its hooks have not been called for."""
    hook: Any = None
    return Steps(LoaderOptions(num_neighbors=[2], **how), ALONE, hook, hook, "one")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"num_workers": 0}, "num_workers=0 .* belong to colocated mode"),
        ({"exchange": "collective"}, "belong to colocated mode"),
        ({"worker_init_fn": print}, "these workers run on servers"),
    ],
)
def test_a_graph_store_refuses_what_is_colocated(how: dict, words: str) -> None:
    """Before it is asked for anything: `object()` has nothing to ask."""
    with pytest.raises(ConfigError, match=words):
        remote_arguments(_steps(**how), object(), [])


@pytest.fixture
def store() -> Any:
    """A handle on a graph store that can be asked for facts of the graph alone."""
    schema = DistDataset.from_pyg(Data(edge_index=torch.tensor([[0], [1]]))).schema
    return SimpleNamespace(
        fetch_schema=lambda: schema,
        fetch_num_nodes=dict,
        cluster_info=GraphStoreInfo(1, 1, 1, "h", "h", "h", 0, 0, 0, 1, 0),
    )


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, 4),
        ({"worker_concurrency": 1}, 4),
        ({"worker_concurrency": 9}, 9),
        ({"worker_concurrency": 9, "prefetch_size": 2}, 2),
    ],
)
def test_as_many_batches_are_requested_ahead_as_a_worker_has(
    how: dict, expected: int, take_part: Callable[[Any], None], store: Any
) -> None:
    """And no server is asked for a port, which nothing would listen on."""
    take_part(SimpleNamespace(rank=0, world_size=1))
    inputs = [NodeSamplerInput(torch.arange(2))]
    made = remote_arguments(_steps(**how), store, inputs)
    assert made["worker_options"].prefetch_size == expected


def test_a_graph_store_needs_the_process_group_that_joined_it(
    take_part: Callable[[Any], None], store: Any
) -> None:
    inputs = [NodeSamplerInput(torch.arange(2))]
    for rank, size in ((0, 2), (1, 1)):
        take_part(SimpleNamespace(rank=rank, world_size=size))
        with pytest.raises(UsageError, match=rf"as {rank} of {size}, and is 0 of 1 in torch"):
            remote_arguments(_steps(), store, inputs)


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name.endswith("start_log")]


def test_the_log_says_what_a_loader_samples(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    nodes = torch.arange(100)
    data = Data(edge_index=torch.stack([nodes, nodes.roll(1)]), train_mask=nodes < 60)
    dataset = DistDataset.from_pyg(data)
    for seeds in (None, dataset.train_node_ids, nodes < 60, torch.arange(7), [1, 2, 3]):
        DistNeighborLoader(dataset, [2], seeds, num_workers=0, batch_size=9).shutdown()
    DistLinkNeighborLoader(
        dataset, [2], data.edge_index[:, :8], num_workers=0, batch_size=2
    ).shutdown()
    assert _lines(caplog) == [
        "DistNeighborLoader starts: all 100 nodes",
        "DistNeighborLoader starts: the train split, 60 nodes",
        "DistNeighborLoader starts: the train split, 60 nodes",
        "DistNeighborLoader starts: 7 given nodes",
        "DistNeighborLoader starts: 3 given nodes",
        "DistLinkNeighborLoader starts: 8 given edges",
    ]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"batch_size": 2}, ""),
        ({"batch_size": 1}, ""),
        ({}, "batch_size was left at 1, so these 10001 seeds are as many batches"),
        (
            {"batch_size": 2, "num_neighbors": []},
            "num_neighbors is empty: batches hold their seeds",
        ),
    ],
)
def test_slips_are_worth_a_line(
    how: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = DistDataset.from_pyg(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=10_001))
    DistNeighborLoader(dataset, num_workers=0, **({"num_neighbors": [1]} | how)).shutdown()
    found = _lines(caplog)
    assert [one.startswith(words) for one in found] == [True] * bool(words)


def test_the_fourth_argument_is_not_the_batch_size(caplog: pytest.LogCaptureFixture) -> None:
    dataset = DistDataset.from_pyg(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=10_001))
    DistNeighborLoader(dataset, [3], None, 0).shutdown()
    DistNeighborLoader(dataset, [3], None, 0, 1).shutdown()
    (line,) = _lines(caplog)
    assert "the fourth argument is num_workers" in line


def test_more_workers_than_cpus_are_worth_a_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus = 4
    monkeypatch.setattr(start_log, "usable_cpus", lambda: cpus)
    for workers, ranks in ((4, 1), (2, 2), (5, 1), (3, 2)):
        start_log.log_workers(workers, ranks)
    assert [one.split(":")[0] for one in _lines(caplog)] == [
        "num_workers=5, and this machine has 4 CPUs for them",
        "num_workers=3 on each of 2 ranks, and this machine has 4 CPUs for them",
    ]
    caplog.clear()
    cpus = 0
    dataset = DistDataset.from_pyg(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2))
    with DistNeighborLoader(dataset, [2], num_workers=1, batch_size=2):
        assert len(_lines(caplog)) == 1
