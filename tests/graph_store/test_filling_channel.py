"""A graph store whose compute processes keep rows: the same bits as without, of packed rows too."""

import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import (
    DistDataset,
    DistNeighborLoader,
    RemoteDistDataset,
    partition_graph,
    replay,
    testing,
)
from gigl_loader.batch.message import NODE, Attempt, BatchTicket, Field, Received
from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.dataset.lookup import quantise, widened
from gigl_loader.dataset.partition.partition_view import Owner
from gigl_loader.errors import PeerError
from gigl_loader.graph_store.client import filling_channel
from gigl_loader.graph_store.client.filling_channel import FillingChannel
from gigl_loader.sampler.options import SAME_MACHINE_VARIABLE, SAME_MEMORY_VARIABLE
from gigl_loader.sampler.row_cache.cache import RowCache
from gigl_loader.sampler.row_cache.kernels import USED
from gigl_loader.sampler.row_cache.machine_cache import MachineRows
from gigl_loader.sampler.rows.row_exchange import LaterRows, rows_apart
from gigl_loader.testing import TinyGraph, batch_digest, open_files, wait_until
from tests.support.conditions import SetConstants
from tests.support.draws import examples
from tests.support.sources import source_of

HOW: dict[str, Any] = {"batch_size": 4, "seed": 7, "shuffle": True, "timeout": 60.0}


# --- a cluster ------------------------------------------------------------------------------------


def _features() -> torch.Tensor:
    return torch.randn((50, 5), generator=torch.Generator().manual_seed(0))


def _partition(folder: str, rank: int, servers: int) -> DistDataset:
    return DistDataset.load(folder, rank)


def _digests(loader: DistNeighborLoader, epochs: int = 2) -> list[str]:
    found = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        found += [batch_digest(batch) for batch in loader]
    return found


def _client(info, rank: int, more: dict[str, Any]) -> None:
    del os.environ[SAME_MACHINE_VARIABLE]  # to the servers each is a machine
    os.environ[SAME_MEMORY_VARIABLE] = "0"
    dataset = RemoteDistDataset(info, rank)
    nodes = ("user", dataset.fetch_node_ids(node_type="user"))
    features = widened(*quantise(_features(), "int8", "x"))
    with DistNeighborLoader(dataset, [3, 2], nodes, **HOW, **more) as loader:
        for batch in loader:
            assert torch.equal(batch["user"].x, features[batch["user"].n_id])
        expected, at_once = _digests(loader), batch_digest(loader([3, 0, 3]))
        assert loader.stats()["hit_rate"] is None
        assert source_of(loader).channel.rows_apart, "each server asks the other machine"
    cases: dict[str, dict[str, Any]] = {"0": {"remote_cache": "20%"}, "1": {"remote_cache": "100%"}}
    for same_memory, how in cases.items():
        os.environ[SAME_MEMORY_VARIABLE] = same_memory
        with DistNeighborLoader(dataset, [3, 2], nodes, **HOW, **more, **how) as loader:
            next(iter(loader))
            assert _digests(loader) == expected, "after an epoch that was broken off"
            stats = loader.stats()
            if more["shard"] != "world":  # where ranks share batches, 2 may be the other's
                assert batch_digest(replay(loader, 1, 2)) == expected[len(loader) + 2]
            assert batch_digest(loader([3, 0, 3])) == at_once
        assert stats["hit_rate"] > 0
        # one rank may find all that it needs of a server fetched by the other one
        both: list[dict] = [{}, {}]
        dist.all_gather_object(both, stats)
        assert {server for one in both for server in one["rows_by_partition"]} == {0, 1}
        assert sum(one["network_bytes"]["rows"] for one in both) > 0
    _check_that_ranks_share(dataset, nodes, rank)


def _check_that_ranks_share(dataset: RemoteDistDataset, nodes: tuple, rank: int) -> None:
    """What rank 0 has fetched, neither rank 1 fetches again nor another loader of either."""
    keeps: dict[str, Any] = {**HOW, "shard": "none", "remote_cache": "100%"}
    with DistNeighborLoader(dataset, [3, 2], nodes, **keeps) as loader:
        for turn in range(2):
            if turn == rank:
                digests = _digests(loader)
            dist.barrier()
        with DistNeighborLoader(dataset, [3, 2], nodes, **keeps) as other:
            assert _digests(other) == digests
            assert other.stats()["network_bytes"]["rows"] == 0
            assert other.stats()["hit_rate"] == 1.0
        assert (loader.stats()["network_bytes"]["rows"] > 0) == (rank == 0)
    gc.collect()
    assert not [one for one in open_files() if "gigl_loader.rows" in one], "the memory is let go"


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "more",
    [
        {"with_edge": True, "shard": "none"},
        pytest.param({"disjoint": True, "shard": "world"}, marks=pytest.mark.wide),
    ],
    ids=["shard none", "shard world"],
)
def test_batches_of_packed_rows_are_the_same_bits(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SAME_MACHINE_VARIABLE, "0")
    data = TinyGraph.random(50, 200, heterogeneous=True).to_pyg()
    data["user"].x = _features()
    folder = str(tmp_path / "parts")
    partition_graph(data, 2, folder, feature_dtype={"user": "int8"}, progress=False)
    testing.run_cluster(_client, more, dataset=partial(_partition, folder), tmp_path=tmp_path)


# --- the channel alone ----------------------------------------------------------------------------

OWNER: Owner = ("node", NODE)
ROWS = {("node_features", NODE): ("float32", (3,)), ("node_labels", NODE): ("int64", ())}


class _Servers:
    """Answers questions for rows, of which each says its id; breaks after so many of them."""

    def __init__(self, num_ids: int) -> None:
        self._num_ids, self.num_asked, self.left = num_ids, 0, 1 << 60
        self.num_batches = 0

    def begin_batch(self) -> None:
        self.num_batches += 1

    def meet(self) -> None:
        pass

    def num_ids(self, owner) -> int:
        return self._num_ids

    def by_owner(self, owner, ids):
        found = {server: np.flatnonzero(ids % 3 == server) for server in range(3)}
        return {server: positions for server, positions in found.items() if positions.size}

    def rows(self, server, request, out):
        assert (request.ids % 3 == server).all()
        self.num_asked += request.ids.size
        self.left -= 1
        if self.left < 0:
            raise PeerError("a server is gone")
        out[...] = _rows(request.ids, out.dtype, out.shape[1:])
        return SimpleNamespace(wait=lambda: None, has_come=True)

    def hang_up(self) -> None:
        pass

    close = hang_up


def _rows(ids: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(ids.reshape(-1, *[1] * len(shape)), (ids.size, *shape)).astype(dtype)


class _Batches:
    """Batches without rows, all there at once."""

    def __init__(self, trace: list[np.ndarray]) -> None:
        self._left = deque(enumerate(trace))

    def ready(self) -> bool:
        return True

    def cancel(self) -> None:
        self._left.clear()

    def next(self) -> Received | None:
        if not self._left:
            return None
        number, ids = self._left.popleft()
        fields = [Field.of(NODE, ids)]
        for (kind, name), (dtype, shape) in ROWS.items():
            later = LaterRows(kind, name, ids, None, lambda out: None)
            fields.append(Field(kind, dtype, (ids.size, *shape), later))
        message = {}
        for one in rows_apart([fields[1], fields[0], fields[2]]):
            out = np.empty(one.shape, one.dtype)
            one.write(out)
            message[one.key] = torch.from_numpy(out)
        return Received(BatchTicket(0, 0, 0, number), message, {})


def _taken(channel: FillingChannel) -> list[dict[str, torch.Tensor]]:
    found = []
    while (received := channel.next(20.0)) is not None:
        assert list(received.message) == ["node_features", NODE, "node_labels"]
        found.append(received.message)
    return found


@st.composite
def _traces(draw: st.DrawFn) -> tuple[int, list[np.ndarray]]:
    """Ids of batches; some batches have ids twice, as those of disjoint trees."""
    num_ids, seed = draw(st.integers(1, 40)), draw(st.integers(0, 1000))
    random = np.random.default_rng(seed)
    sizes = draw(st.lists(st.integers(0, 25), min_size=1, max_size=30))
    return num_ids, [random.integers(0, num_ids, size) for size in sizes]


def _channel(servers: _Servers, options: CacheOptions | None, memory: MachineRows | None = None):
    cluster: Any = SimpleNamespace(num_servers=0)
    asked: Any = servers
    channel: Any = FillingChannel(cluster, options, 3, 20.0, False, memory, asked)
    return channel


def _check(batches: list[np.ndarray], found: list[dict[str, torch.Tensor]]) -> None:
    assert len(found) == len(batches)
    for ids, message in zip(batches, found, strict=True):
        assert np.array_equal(message["node_labels"].numpy(), ids)
        assert np.array_equal(message["node_features"].numpy(), _rows(ids, "float32", (3,)))


@settings(max_examples=examples(60), deadline=None)
@given(
    trace=_traces(),
    share=st.sampled_from([None, 0.1, 0.4, 1.0]),
    ahead=st.sampled_from([None, 0, 3]),
    breaks=st.integers(0, 30) | st.just(1 << 60),
    ranks=st.integers(1, 2),
)
def test_rows_are_those_of_the_ids(
    trace: tuple, share: float | None, ahead: int | None, breaks: int, ranks: int
) -> None:
    """Epoch after epoch, one of which ends early, where a server is lost; without a cache, too.

    Of one rank, or of two that share what they keep: both go through the batches at once, and the
    second one is at the other end of them.
    """
    num_ids, batches = trace
    threads = set(threading.enumerate())
    options = None if share is None else CacheOptions(size=share, lookahead=ahead)
    memory = MachineRows.new()
    servers = [_Servers(num_ids) for _ in range(ranks)]
    channels = [_channel(one, options, memory) for one in servers]
    orders = [batches, batches[::-1]]
    try:
        for epoch in range(3):
            servers[0].left = breaks if epoch == 1 else 1 << 60
            attempt = Attempt(epoch, epoch + 1)
            for channel, order in zip(channels, orders, strict=False):
                channel.begin(_Batches(order), attempt, len(order))
            for rank, channel in enumerate(channels):
                try:
                    _check(orders[rank], _taken(channel))
                except PeerError:
                    assert (rank, epoch) == (0, 1)
                    if ranks == 1 and (cache := channel._cache) is not None:
                        _check_that_nothing_is_awaited(cache)
    finally:
        for channel in channels:
            channel.close()
    if share == 1.0 and breaks == 1 << 60:
        used = np.unique(np.concatenate(batches)).size
        assert sum(one.num_asked for one in servers) == used * len(ROWS), "each row once"
    assert not _fill() - threads


def _fill() -> set[threading.Thread]:
    """Return the threads that fill batches."""
    return {one for one in threading.enumerate() if one.name == "rows of batches"}


class _Broken(_Batches):
    """Has no more once its batches are on their way; then it fails."""

    def ready(self) -> bool:
        return bool(self._left)

    def next(self) -> Received | None:
        if not self._left:
            raise PeerError("a server is gone")
        return super().next()


def test_batches_that_were_filled_before_a_failure_are_handed_out_before_it() -> None:
    batches, threads = [np.arange(5), np.arange(3, 9)], _fill()
    channel = _channel(_Servers(9), None)
    try:
        channel.begin(_Broken(batches), Attempt(0, 1), 3)
        wait_until(lambda: not _fill() - threads, "the epoch has failed")
        assert channel.queue_depth == 2, "and nobody has taken a batch so far"
        found = [channel.next(20.0) for _ in batches]
        _check(batches, [received.message for received in found if received is not None])
        with pytest.raises(PeerError, match="a server is gone"):
            channel.next(20.0)
    finally:
        channel.close()


def _check_that_nothing_is_awaited(cache: RowCache) -> None:
    """Slots whose rows did not come are given up, or the next batches would wait for them."""
    arrays = cache.tables[OWNER]
    slots = np.arange(int(arrays.state[USED]), dtype=np.int32)
    ids = arrays.holders[slots]
    empty = cache.absent(OWNER, slots, ids)
    assert not cache.is_held(OWNER, slots[empty], ids[empty])


@given(st.integers(0, 1000), st.integers(1, 30))
@settings(max_examples=examples(20), deadline=None)
def test_with_all_batches_known_as_many_rows_are_fetched_as_at_best(seed: int, size: int) -> None:
    """Though slots are planned for later rows while those of earlier batches are on their way."""
    random = np.random.default_rng(seed)
    batches = [np.unique((random.random(15) ** 2 * 60).astype(np.int64)) for _ in range(20)]
    kept: set[int] = set()
    fetched = 0
    for number, batch in enumerate(batches):  # Belady's rule
        fetched += len(set(batch.tolist()) - kept)
        rest = batches[number + 1 :]
        uses = {
            one: next((at for at, ids in enumerate(rest) if one in ids), len(rest))
            for one in kept | set(batch.tolist())
        }
        kept = set(sorted(uses, key=uses.__getitem__)[:size])
    servers = _Servers(60)
    channel = _channel(servers, CacheOptions(size=size / 60, lookahead=20))
    try:
        channel.begin(_Batches(batches), Attempt(0, 1), len(batches))
        _check(batches, _taken(channel))
    finally:
        channel.close()
    assert servers.num_asked == fetched * len(ROWS)
    assert servers.num_batches == len(batches), "lost servers are looked for once a batch"


class _Deadly(_Servers):
    """Kills who asks once too often."""

    def rows(self, server, request, out):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().rows(server, request, out)


@pytest.mark.multiprocess
def test_what_a_killed_rank_has_stored_stays_and_what_it_was_to_fetch_is_fetched(
    constants: SetConstants,
) -> None:
    constants(filling_channel, READY_S=0.05)
    batches = [np.arange(10 * start, 10 * start + 20) for start in range(12)]
    memory, options = MachineRows.new(), CacheOptions(size=1.0, lookahead=3)
    servers = _Servers(130)

    def take_all(memory: MachineRows) -> None:
        deadly = _Deadly(130)
        deadly.left = 4 * 3 * len(ROWS)  # of three servers each
        opened = MachineRows.of(memory.offer("rows"))
        channel = _channel(deadly, options, opened)
        channel.begin(_Batches(batches), Attempt(0, 1), len(batches))
        _taken(channel)

    killed = multiprocessing.get_context("fork").Process(target=take_all, args=(memory,))
    killed.start()
    killed.join(120)
    assert killed.exitcode == -signal.SIGKILL
    killed.close()
    channel = _channel(servers, options, memory)
    try:
        for epoch in range(2):
            channel.begin(_Batches(batches), Attempt(epoch, epoch + 1), len(batches))
            if epoch == 0:
                _check(batches, _taken(channel))
                stored = 130 - servers.num_asked // len(ROWS)
                assert 0 < stored < 130
            else:
                _check(batches, _taken(channel))
        assert servers.num_asked == (130 - stored) * len(ROWS), "nothing twice"
    finally:
        channel.close()
    del memory, channel
    gc.collect()
    assert not [one for one in open_files() if "gigl_loader.rows" in one]
