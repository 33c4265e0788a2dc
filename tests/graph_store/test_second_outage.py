"""Ranks that share producers are cut off from their server twice, for longer than they wait."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gigl_loader import RemoteDistDataset
from gigl_loader.graph_store import DistServer
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.testing import wait_until
from tests.graph_store.store_cluster import compute, info_of, processes, serve
from tests.runtime.transport.relay import Relay
from tests.support.glt import NodeSamplerInput

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(600)]

NODE_TYPE = "default_homogeneous_node_type"
LIMIT_S = 180.0
CUTS = (3, 12)
"""Batches of each rank before which the link is cut."""
PATIENCE_S = 2.0


class _Told(logging.Handler):
    """Touches a file each time that this rank begins anew with a server."""

    def __init__(self, start: Path) -> None:
        super().__init__()
        self._start, self._count = start, 0

    def emit(self, record: logging.LogRecord) -> None:
        if "the epoch continues" in record.getMessage():
            Path(f"{self._start} {self._count}").touch()
            self._count += 1


def _rank(info: Any, rank: int, folder: str) -> None:
    compute(info, rank, _train, folder, network_timeout=PATIENCE_S)


def _train(info: Any, rank: int, folder: str) -> None:
    logging.getLogger("gigl_loader").addHandler(_Told(Path(folder) / f"rank {rank} began anew"))
    remote = RemoteDistDataset(info, rank)
    nodes, schema = remote.fetch_node_ids(), remote.fetch_schema()
    options = BaseDistLoader.create_graph_store_worker_options(
        dataset=remote,
        compute_rank=rank,
        worker_key="both",
        num_workers=1,
        worker_concurrency=2,
        channel_size="64MB",
        prefetch_size=2,
    )
    config = BaseDistLoader.create_sampling_config([3, 2], schema, 1, seed=7)
    inputs = [NodeSamplerInput(nodes[server], NODE_TYPE) for server in nodes]
    with BaseDistLoader(
        remote,
        inputs,
        schema,
        options,
        config,
        torch.device("cpu"),
        BaseDistLoader.resolve_runtime(),
        DistServer.create_sampling_producer,
        None,
        source_options=SourceOptions(seed=7, timeout_s=LIMIT_S, reconnect_timeout_s=LIMIT_S),
    ) as loader:
        seeds: list[int] = []
        for batch in loader:
            seeds += batch.batch.tolist()
            if len(seeds) in CUTS:
                cut = CUTS.index(len(seeds))
                (Path(folder) / f"rank {rank} is at cut {cut}").touch()
                wait_until((Path(folder) / f"cut {cut}").exists, "the cut", LIMIT_S)
    everything: list[Any] = [None] * 2
    dist.all_gather_object(everything, seeds)
    assert sorted(everything[0] + everything[1]) == list(range(60)), "each seed once"


def test_a_second_outage_is_survived_by_ranks_that_share_producers(tmp_path: Path) -> None:
    """Seen: servers answered the second recovery with the producer that the first one had made."""
    info = info_of(1, 2)
    with processes(tmp_path) as started, Relay(("127.0.0.1", info.rpc_master_port)) as relay:
        server = started.start(_serve, info)
        through = info_of(1, 2, rpc_master_port=relay.address[1])
        ranks = [started.start(_rank, through, rank, str(tmp_path)) for rank in (0, 1)]

        def wait_for(what: str) -> None:
            def is_there() -> bool:
                assert all(rank.exitcode is None for rank in ranks), started.notes()
                return all((tmp_path / what.format(rank)).exists() for rank in (0, 1))

            wait_until(is_there, what, LIMIT_S)

        for cut in range(len(CUTS)):
            wait_for(f"rank {{}} is at cut {cut}")
            relay.cut.set()
            (tmp_path / f"cut {cut}").touch()
            wait_for(f"rank {{}} began anew {cut}")
            relay.cut.clear()
        started.join([*ranks, server])


def _serve(info: Any) -> None:
    serve(info, 0, 1, network_timeout=PATIENCE_S)
