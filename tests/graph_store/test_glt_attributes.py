"""What subclasses written for GLT's loader read of a graph store's loader, while servers go."""

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gigl_loader import (
    BaseDistLoader,
    DistDataset,
    KHopNeighborSamplerOptions,
    RemoteDistDataset,
    UsageError,
)
from gigl_loader.graph_store import DistServer, request_server
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.testing import TinyGraph, wait_until
from tests.graph_store.in_process import joined, storage
from tests.graph_store.store_cluster import (
    compute,
    info_of,
    processes,
    run_cluster,
    serve_partition,
    tiny_partition,
)
from tests.support.glt import NodeSamplerInput

pytestmark = pytest.mark.multiprocess

LIMIT_S = 180.0

NODE_TYPE = "default_homogeneous_node_type"


class Watching(BaseDistLoader):
    """Reads the attributes in its hooks, as GLT's own methods do."""

    seen: list[Any]

    def _collate_fn(self, msg: Any) -> Any:
        self.seen.append(dict(zip(self._server_rank_list, self._producer_id_list, strict=True)))
        return super()._collate_fn(msg)

    def shutdown(self, idle_timeout: float | None = None) -> None:
        self.seen.append((self._shutdowned, list(self._producer_id_list)))
        super().shutdown(idle_timeout)


class StartsNothing(Watching):
    """GiGL's hook, written anew."""

    def _init_graph_store_connections(self, **given: Any) -> None:  # type: ignore[override]
        self.seen.append(sorted(given))


def _loader(
    info: Any, rank: int, *, timeout_s: float = 60.0, kind: Any = Watching, **how: Any
) -> Watching:
    """A loader as GiGL's main branch builds one: no producer, and no rank for ports."""
    remote = RemoteDistDataset(info, rank)
    schema, nodes = remote.fetch_schema(), remote.fetch_node_ids(rank, dist.get_world_size())
    Watching.seen = []
    sampler_options = KHopNeighborSamplerOptions([3, 2])
    BaseDistLoader.validate_for_weighted_sampling(True, remote, sampler_options)
    return kind(
        dataset=remote,
        sampler_input=[NodeSamplerInput(nodes[server], NODE_TYPE) for server in nodes],
        dataset_schema=schema,
        worker_options=BaseDistLoader.create_graph_store_worker_options(
            dataset=remote,
            worker_key=f"loader_0_rank_{rank}",
            num_workers=1,
            worker_concurrency=2,
            channel_size="64MB",
            prefetch_size=2,
        ),
        sampling_config=BaseDistLoader.create_sampling_config([3, 2], schema, 2, seed=7),
        device=torch.device("cpu"),
        runtime=BaseDistLoader.resolve_runtime(),
        producer=None,
        sampler_options=sampler_options,
        backend_key="loader_0",
        source_options=SourceOptions(seed=7, timeout_s=timeout_s, reconnect_timeout_s=timeout_s),
        **how,
    )


def _attributes(info: Any, rank: int) -> None:
    with pytest.raises(UsageError, match=r"StartsNothing\._init.* call super\(\), or set _channel"):
        _loader(info, rank, kind=StartsNothing)
    assert Watching.seen[0] == [
        "create_producer_fn",
        "dataset",
        "max_concurrent_producer_inits",
        "process_start_gap_seconds",
        "runtime",
    ]
    loader = _loader(info, rank)
    assert (loader.num_data_partitions, loader.data_partition_idx) == (2, 0), "one machine"
    assert loader._server_rank_list == [0, 1]
    assert [one.node.numel() for one in loader._input_data_list] == [
        one.node.numel() for one in loader.input_data
    ]
    assert (loader._node_types, loader._edge_types) == ([NODE_TYPE], [])
    assert (loader._input_type, loader._num_expected) == (NODE_TYPE, math.inf)
    ids = loader._producer_id_list
    for server, producer in zip([0, 1], ids, strict=True):
        if loader._input_data_list[server].node.numel():
            request_server(server, DistServer.describe_workers, producer)
    seeds = [seed for batch in loader for seed in batch.batch.tolist()]
    assert sorted(seeds) == sorted(torch.cat([one.node for one in loader.input_data]).tolist())
    assert loader._num_recv == len(loader) == len(loader.seen)
    assert loader.seen == [dict(zip([0, 1], ids, strict=True))] * len(loader)
    loader.shutdown()
    assert loader.seen[-1] == (False, ids), "its shutdown can still name the producers"
    assert loader._shutdowned
    assert loader._producer_id_list == []
    dist.barrier()
    for server, producer in zip([0, 1], ids, strict=True):
        with pytest.raises(UsageError, match="producer"):
            request_server(server, DistServer.describe_workers, producer)


def test_attributes_are_set_and_live(tmp_path: Path) -> None:
    run_cluster(tmp_path, _attributes)


def _lose_a_server(info: Any, rank: int, folder: str) -> None:
    with _loader(info, rank, timeout_s=LIMIT_S) as loader:
        before = dict(zip(loader._server_rank_list, loader._producer_id_list, strict=True))
        batches = iter(loader)
        next(batches)
        (Path(folder) / "one batch").touch()
        wait_until((Path(folder) / "killed").exists, "server 2 is killed", LIMIT_S)
        assert sum(1 for _ in batches) == len(loader) - 1
        after = dict(zip(loader._server_rank_list, loader._producer_id_list, strict=True))
        assert (set(before), set(after)) == ({0, 1, 2, 3}, {0, 1, 3})
        for server, producer in after.items():  # of the new ones, which serve the epoch's end
            request_server(server, DistServer.describe_workers, producer)
        assert loader.seen[0] == before
        assert loader.seen[-1] == after


def _half(rank: int, servers: int) -> DistDataset:
    return tiny_partition(rank % 2, 2)


def _serve(info: Any, rank: int) -> None:
    serve_partition(info, rank, _half, reconnect_timeout=LIMIT_S)


def test_they_follow_a_server_that_is_lost(tmp_path: Path) -> None:
    """Servers 0 and 2, 1 and 3 have the same partition: the others sample for server 2."""
    info = info_of(4, 1)
    with processes(tmp_path) as started:
        servers = [started.start(_serve, info, rank) for rank in range(4)]
        client = started.start(compute, info, 0, _lose_a_server, str(tmp_path))
        wait_until((tmp_path / "one batch").exists, "a batch has come", LIMIT_S)
        lost = servers.pop(2)
        assert lost.pid is not None
        os.kill(lost.pid, signal.SIGKILL)
        lost.join(60)
        (tmp_path / "killed").touch()
        started.join([client, *servers])


@pytest.mark.parametrize("weighted", [True, False])
def test_servers_say_whether_edges_have_weights(weighted: bool) -> None:
    def partition(rank: int, count: int) -> DistDataset:
        graph = TinyGraph.random(10, 20).to_pyg()
        if not weighted:
            del graph.edge_weight
        return DistDataset.from_pyg(graph)

    with storage(partition=partition) as (server,), joined(server.address) as cluster:
        answer = cluster.connection(0).call("get_edge_weights_registered").result(60)
    assert answer is weighted
