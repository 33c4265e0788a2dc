"""Where a process stands among the others; a job of one process needs no process group."""

import pytest
import torch
import torch.distributed as dist
from torch_geometric.data import Data

from gigl_loader import ConfigError, DistABLPLoader, DistDataset, DistNeighborLoader, UsageError
from gigl_loader.loader.deployment.job_ranks import (
    DistributedContext,
    from_addresses,
    init_neighbor_loader_worker,
    reachable,
    resolve_runtime,
    runtime_or_alone,
)
from gigl_loader.runtime.transport import own_address
from gigl_loader.testing import one_rank
from tests.support.conditions import Gpus
from tests.support.glt import get_context, init_worker_group

RING = Data(edge_index=torch.stack([torch.arange(20), torch.arange(20).roll(1)]), num_nodes=20)


@pytest.mark.multiprocess
@pytest.mark.parametrize("world_size", [None, "1"])
def test_loaders_without_a_group(world_size, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once, also under a torchrun with one process, where the script made no group."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world_size is not None:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    dataset = DistDataset.from_pyg(RING, supervision=(RING.edge_index, None))
    with (
        DistNeighborLoader(dataset, [1], batch_size=6, even_ranks="wrap") as nodes,
        DistABLPLoader(dataset, [1], torch.arange(20), batch_size=6) as links,
    ):
        for loader in (nodes, links):
            assert torch.cat([batch.batch for batch in loader]).tolist() == list(range(20))
        assert nodes.state_dict()["world_size"] == 1
    assert not dist.is_initialized()


def test_a_group_that_is_there_counts(tmp_path) -> None:
    with one_rank(tmp_path):
        found = runtime_or_alone()
    assert (found.rank, found.world_size, found.local_world_size) == (0, 1, 1)
    assert not found.should_cleanup_distributed_context


def test_machine_and_local_rank_follow_from_the_addresses() -> None:
    addresses = ["10.0.0.2"] * 2 + ["10.0.0.1"] * 2 + ["10.0.0.3"] * 2
    found = [from_addresses(rank, addresses) for rank in range(6)]
    assert [one.node_rank for one in found] == [0, 0, 1, 1, 2, 2]
    assert [one.local_rank for one in found] == [0, 1] * 3
    assert {(one.world_size, one.node_world_size, one.local_world_size) for one in found} == {
        (6, 3, 2)
    }
    assert {one.master_ip_address for one in found} == {"10.0.0.2"}


@pytest.mark.parametrize(
    ("addresses", "words"),
    [
        (["a", "a", "b"], "same number of processes, found {'a': 2, 'b': 1}"),
        (["a", "b", "a", "b"], "must follow one another"),
        (["a", "b", "b", "a"], "must follow one another"),
    ],
)
def test_machines_that_cannot_be_told_from_ranks(addresses: list[str], words: str) -> None:
    """Dealt out in turn, ranks 0 and 2 would both be local rank 0 of a: one GPU, the same seeds."""
    with pytest.raises(ConfigError, match=words):
        from_addresses(0, addresses)


def test_machines_that_all_find_loopback_are_told_what_to_set() -> None:
    """As without MASTER_ADDR, with ``init_method="tcp://..."``: they would pass for one machine."""
    told = [("127.0.0.1", "node1"), ("127.0.0.1", "node1"), ("127.0.0.1", "node2")]
    with pytest.raises(ConfigError, match=r"2 machines, \['node1', 'node2'\].* set MASTER_ADDR"):
        reachable(told)
    assert reachable(told[:2]) == ["127.0.0.1"] * 2
    apart = [("10.0.0.1", "a"), ("10.0.0.2", "b")]
    assert reachable(apart) == ["10.0.0.1", "10.0.0.2"]
    assert reachable([("10.0.0.1", "a"), ("10.0.0.1", "b")]) == ["10.0.0.1"] * 2, "two containers"


def test_a_context_tells_where_a_process_stands(tmp_path) -> None:
    context = DistributedContext("10.0.0.1", global_rank=2, global_world_size=3)
    with one_rank(tmp_path):  # a group that is there is used, and is not this loader's to end
        found = resolve_runtime(context, 1, 4)
    assert (found.rank, found.world_size) == (9, 12)
    assert (found.node_rank, found.local_rank, found.master_ip_address) == (2, 1, "10.0.0.1")
    assert not found.should_cleanup_distributed_context
    with pytest.raises(ConfigError, match="are required, got None and 4"):
        resolve_runtime(context, None, 4)
    with pytest.raises(ConfigError, match=r"in \[0, 4\), got 4"):
        resolve_runtime(context, 4, 4)


def test_a_rank_that_forgot_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="init_process_group"):
        runtime_or_alone()


@pytest.mark.parametrize(
    ("master", "ways", "expected"),
    [
        ("node0", {"node0": "10.0.0.7"}, "10.0.0.7"),
        # a name that the own hosts file calls loopback: the way out is that of the default route
        ("node0", {"node0": "127.0.1.1", "192.0.2.1": "10.0.0.7"}, "10.0.0.7"),
        ("node0", {"node0": "127.0.1.1"}, "127.0.1.1"),  # no default route: one machine
        ("localhost", {"localhost": "127.0.0.1", "192.0.2.1": "10.0.0.7"}, "127.0.0.1"),
        ("127.0.0.1", {"127.0.0.1": "127.0.0.1", "192.0.2.1": "10.0.0.7"}, "127.0.0.1"),
    ],
)
def test_the_address_that_other_machines_see(
    master: str, ways: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def towards(host: str) -> str:
        if host not in ways:
            raise ConfigError("no way")
        return ways[host]

    monkeypatch.setenv("MASTER_ADDR", master)
    assert own_address(towards) == expected


@pytest.mark.parametrize("threads", [None, 3])
def test_a_process_is_prepared_as_gigls_function_does(
    threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines of two processes: this is process 1 of machine 1."""
    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    before = get_context()
    try:
        init_neighbor_loader_worker(
            "127.0.0.1",
            1,
            2,
            1,
            2,
            11111,
            torch.device("cpu"),
            should_use_cpu_workers=True,
            num_cpu_threads=threads,
        )
        context = get_context()
        assert context is not None
        assert (context.is_worker(), context.rank, context.world_size) == (True, 3, 4)
        assert given == [threads or 2]
    finally:
        if before is not None:
            init_worker_group(before.world_size, before.rank, before.group_name)


def test_a_device_that_is_not_there_is_named(gpus: Gpus) -> None:
    for device in ("cpu", "cuda:0"):
        with pytest.raises(ConfigError, match=r"one of 0 CUDA devices.*should_use_cpu_workers"):
            init_neighbor_loader_worker("host", 0, 1, 0, 1, 0, torch.device(device))
    for wrong, name in (((2, 2, 0, 1), "local_process_rank"), ((0, 1, -1, 1), "rank")):
        with pytest.raises(ConfigError, match=f"^{name} must be in"):
            init_neighbor_loader_worker("host", *wrong, 0, torch.device("cpu"), True)
