"""Three servers for two partitions: servers 0 and 2 share the first, server 1 has the second."""

from itertools import chain
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gigl_loader import DistDataset, DistNeighborLoader, GraphStoreInfo, RemoteDistDataset
from gigl_loader.commands.cli import main
from gigl_loader.graph_store import DistServer, request_server
from gigl_loader.testing import check_batch, run_cluster
from tests.graph_store.store_cluster import tiny_graph

SERVERS, PARTITIONS = 3, 2
FANOUT = [3, 2]


def _partition(rank: int, servers: int) -> DistDataset:
    assert servers == SERVERS
    return tiny_graph().partitions(PARTITIONS)[rank % PARTITIONS]


def _train(info: GraphStoreInfo, rank: int) -> None:
    dataset = RemoteDistDataset(info, rank)
    parts = [part.node_ids for part in tiny_graph().partitions(PARTITIONS)]
    assert isinstance(parts[0], torch.Tensor)
    assert isinstance(parts[1], torch.Tensor)
    everything = dataset.fetch_node_ids()
    assert torch.equal(torch.cat([everything[0], everything[2]]), parts[0])
    assert abs(everything[0].numel() - everything[2].numel()) <= 1, "halves"
    assert torch.equal(everything[1], parts[1])

    nodes = dataset.fetch_node_ids(rank, info.compute_cluster_world_size)
    seen = []
    with DistNeighborLoader(
        dataset, FANOUT, nodes, batch_size=4, seed=7, shuffle=True, timeout=90.0
    ) as loader:
        for batch in loader:
            check_batch(batch, tiny_graph(), seeds=batch.batch, num_neighbors=FANOUT)
            seen += batch.batch.tolist()
    of_all: list[list[int]] = [[] for _ in range(info.compute_cluster_world_size)]
    dist.all_gather_object(of_all, seen)
    assert sorted(chain.from_iterable(of_all)) == list(range(60)), "each seed once over the job"
    for server in range(SERVERS):
        totals = request_server(server, DistServer.status)["totals"]
        assert sum(job["batches"] for job in totals.values()) > 0, "each server samples"


@pytest.mark.multiprocess
def test_an_epoch_with_more_servers_than_partitions(tmp_path: Path) -> None:
    run_cluster(_train, dataset=_partition, tmp_path=tmp_path, servers=SERVERS, clients=2)


def test_help_says_how_many_servers_there_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "at least one for each partition" in said
    assert "multiple" not in said
