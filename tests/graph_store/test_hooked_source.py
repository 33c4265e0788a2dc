"""A subclass that replaces the hook of a graph store: its producers, and its channel, are used."""

import queue
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from gigl_loader import BaseDistLoader, ConfigError, PeerError, RemoteDistDataset, UsageError
from gigl_loader.graph_store import (
    DistServer,
    RemoteReceivingChannel,
    async_request_server,
    request_server,
)
from gigl_loader.graph_store.client.hooked_source import HookedSource
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.testing import check_batch
from tests.graph_store.store_cluster import run_cluster, tiny_graph
from tests.support.glt import NodeSamplerInput

pytestmark = pytest.mark.multiprocess

FANOUTS, BATCH_SIZE = [3, 2], 4


class AsksAhead:
    """graphlearn-torch's way to receive: two requests ahead of each server, until it ends."""

    def __init__(self, servers: list[int], producers: list[int]) -> None:
        self.servers, self.producers = servers, producers
        self.reset()

    def reset(self) -> None:
        self.came: queue.Queue[Any] = queue.Queue()
        self.asked, self.received = dict.fromkeys(self.servers, 0), dict.fromkeys(self.servers, 0)
        self.ended: set[int] = set()

    def _ask(self, server: int, producer: int) -> None:
        came = self.came
        answer = async_request_server(server, DistServer.fetch_one_sampled_message, producer)
        answer.add_done_callback(lambda done: came.put((server, *done.value())))
        self.asked[server] += 1

    def recv(self, **_: Any) -> Any:
        while True:
            for server, producer in zip(self.servers, self.producers, strict=True):
                while server not in self.ended and self.asked[server] < self.received[server] + 2:
                    self._ask(server, producer)
            if self.asked == self.received:
                raise StopIteration
            server, message, ended = self.came.get()
            self.received[server] += 1
            if ended:
                self.ended.add(server)
            if message is not None:
                return message


class OwnProducers(BaseDistLoader):
    """The body of the seed's hook, for ranks that share no producer."""

    def _init_graph_store_connections(  # type: ignore[override]  # arguments that it does not need
        self, dataset: Any, create_producer_fn: Any, **_: Any
    ) -> None:
        answers = [
            async_request_server(
                server,
                create_producer_fn,
                seeds,
                self.sampling_config,
                self.worker_options,
                self._sampler_options,
            )
            for server, seeds in zip(self._server_rank_list, self._input_data_list, strict=True)
        ]
        self._producer_id_list = [answer.wait() for answer in answers]
        self._channel = self._make_channel()

    def _make_channel(self) -> Any:
        return RemoteReceivingChannel(
            server_rank=self._server_rank_list,
            channel_id=self._producer_id_list,
            prefetch_size=self.worker_options.prefetch_size,
            active_mask=[len(one) > 0 for one in self._input_data_list],
            pin_memory=self.to_device.type == "cuda",
        )


class OwnChannel(OwnProducers):
    def _make_channel(self) -> Any:
        return AsksAhead(self._server_rank_list, self._producer_id_list)


class Ends(AsksAhead):
    """Loses what comes after the first message."""

    def recv(self, **how: Any) -> Any:
        if sum(self.received.values()):
            raise StopIteration
        return super().recv(**how)


class EndsEarly(OwnProducers):
    def _make_channel(self) -> Any:
        return Ends(self._server_rank_list, self._producer_id_list)


class SetsNothing(BaseDistLoader):
    def _init_graph_store_connections(self, **_: Any) -> None:  # type: ignore[override]  # forgets them
        pass


class SetsNoChannel(BaseDistLoader):
    def _init_graph_store_connections(self, **_: Any) -> None:  # type: ignore[override]  # forgets them
        self._producer_id_list = [1, 2]


def _loader(kind: type, info: Any, rank: int, name: str, **how: Any) -> Any:
    remote = RemoteDistDataset(info, rank)
    schema = remote.fetch_schema()
    nodes = remote.fetch_node_ids(rank, dist.get_world_size())
    seed = how.pop("seed", None)
    return kind(
        dataset=remote,
        sampler_input=[NodeSamplerInput(nodes[server], None) for server in range(2)],
        dataset_schema=schema,
        worker_options=BaseDistLoader.create_graph_store_worker_options(
            dataset=remote,
            worker_key=f"{name} of rank {rank}",
            num_workers=1,
            worker_concurrency=2,
            channel_size="64MB",
            prefetch_size=2,
        ),
        sampling_config=BaseDistLoader.create_sampling_config(
            FANOUTS, schema, BATCH_SIZE, shuffle=True, seed=seed
        ),
        device=torch.device("cpu"),
        runtime=BaseDistLoader.resolve_runtime(),
        producer=DistServer.create_sampling_producer,
        source_options=SourceOptions(seed=0, timeout_s=30.0, **how),
    )


def _seeds(loader: Any) -> list[int]:
    """Return the seeds of an epoch, each of whose batches is one of the graph."""
    found = []
    for batch in loader:
        check_batch(batch, tiny_graph(), seeds=batch.batch, num_neighbors=FANOUTS)
        found += batch.batch.tolist()
    return found


def _whole_epochs(info: Any, rank: int) -> None:
    for kind in (OwnProducers, OwnChannel):
        for turn in ("first", "again"):  # the key of workers that ended may be another's
            loader = _loader(kind, info, rank, "mine")
            wanted = sorted(torch.cat([one.node for one in loader.input_data]).tolist())
            ids = loader._producer_id_list
            epochs = [_seeds(loader), _seeds(loader)]
            assert [sorted(one) for one in epochs] == [wanted] * 2, (kind, turn)
            assert epochs[0] != epochs[1], "each epoch has an order of its own"
            assert loader._num_recv == len(loader)
            next(iter(loader))
            assert sorted(_seeds(loader)) == wanted, "an epoch that was broken off leaves nothing"
            loader.shutdown()
            for server, producer in enumerate(ids):
                with pytest.raises(UsageError, match="was destroyed"):
                    request_server(server, DistServer.describe_workers, producer)
    dist.barrier()


def test_epochs_of_producers_that_a_hook_created(tmp_path: Path) -> None:
    run_cluster(tmp_path, _whole_epochs)


def _refusals(info: Any, rank: int) -> None:
    for kind in (SetsNothing, SetsNoChannel):
        named = rf"{kind.__name__}\._init_graph_store_connections has to call super\(\), or set "
        with pytest.raises(UsageError, match=f"{named}_channel and _producer_id_list, started$"):
            _loader(kind, info, rank, kind.__name__)
    with pytest.raises(ConfigError, match="seed=3: a RemoteReceivingChannel draws by itself"):
        _loader(OwnProducers, info, rank, "drawn", seed=3)
    with pytest.raises(ConfigError, match=r"^replace: for the samplers of this package, not for a"):
        _loader(OwnProducers, info, rank, "replaced", replace=True)
    for server in range(2):
        assert not request_server(server, DistServer.status)["producers"], "they were ended"
    with _loader(EndsEarly, info, rank, "short") as loader:
        with pytest.raises(PeerError, match="channel of Ends ended before its epoch did: 1 of the"):
            list(loader)
        with pytest.raises(UsageError, match="samples whole epochs"):
            loader([0])
        with pytest.raises(UsageError, match="in any order, so nothing says where to go on"):
            loader.state_dict()


def test_what_such_a_hook_forgets_and_what_it_cannot_promise(tmp_path: Path) -> None:
    run_cluster(tmp_path, _refusals, clients=1)


def test_a_source_ends_after_its_process_has_left_the_servers() -> None:
    config = Mock(drop_last=False, batch_size=BATCH_SIZE)
    source = HookedSource({0: 1}, [4], config, None, AsksAhead([], []))
    with pytest.raises(UsageError):
        request_server(0, DistServer.destroy_sampling_producer, 1)
    source.shutdown()
    source.shutdown()
