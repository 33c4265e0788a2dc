"""A graph store whose compute processes keep rows: the same bits as without, of packed rows too."""

import os
import threading
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
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
from gigl_loader.dataset.quantised import quantise, widened
from gigl_loader.errors import PeerError
from gigl_loader.message import NODE, BatchTicket, Field, Received
from gigl_loader.options import SAME_MEMORY_VARIABLE, CacheOptions
from gigl_loader.remote.row_cache import RowKeeper
from gigl_loader.remote.rows import Fetched
from gigl_loader.sampler.apart import rows_apart
from gigl_loader.sampler.later import LaterRows
from gigl_loader.testing import TinyGraph, batch_digest

HOW = {"batch_size": 4, "seed": 7, "shuffle": True, "timeout": 60.0}


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


def _client(info, rank: int) -> None:
    dataset = RemoteDistDataset(info, rank)
    nodes = ("user", dataset.fetch_node_ids(node_type="user"))
    features = widened(*quantise(_features(), "int8", "x"))
    for more in ({"with_edge": True}, {"disjoint": True, "shard": "world"}):
        with DistNeighborLoader(dataset, [3, 2], nodes, **HOW, **more) as loader:
            for batch in loader:
                assert torch.equal(batch["user"].x, features[batch["user"].n_id])
            expected, at_once = _digests(loader), batch_digest(loader([3, 0, 3]))
            assert loader.stats()["hit_rate"] is None
            assert loader._remote_source.channel.rows_apart, "each server asks the other machine"
        cases = {"0": {"remote_cache": "20%"}, "1": {"remote_cache": "100%", "lookahead": 0}}
        for same_memory, how in cases.items():
            os.environ[SAME_MEMORY_VARIABLE] = same_memory
            with DistNeighborLoader(dataset, [3, 2], nodes, **HOW, **more, **how) as loader:
                next(iter(loader))
                assert _digests(loader) == expected, "after an epoch that was broken off"
                stats = loader.stats()
                assert batch_digest(replay(loader, 1, 2)) == expected[len(loader) + 2]
                assert batch_digest(loader([3, 0, 3])) == at_once
            assert stats["hit_rate"] > 0
            assert set(stats["rows_by_partition"]) == {0, 1}
            assert stats["network_bytes"]["rows"] > 0


@pytest.mark.multiprocess
def test_batches_of_packed_rows_are_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SAME_MEMORY_VARIABLE, "0")  # of the servers: each is a machine
    data = TinyGraph.random(50, 200, heterogeneous=True).to_pyg()
    data["user"].x = _features()
    folder = str(tmp_path / "parts")
    partition_graph(data, 2, folder, feature_dtype={"user": "int8"}, progress=False)
    testing.run_cluster(_client, dataset=partial(_partition, folder), tmp_path=tmp_path, clients=1)


# --- the keeper alone -----------------------------------------------------------------------------

ROWS = {("node_features", NODE): ("float32", (3,)), ("node_labels", NODE): ("int64", ())}


class _Servers:
    """Answers questions for rows, of which each says its id; breaks after so many of them."""

    def __init__(self, num_ids: int) -> None:
        self._num_ids, self.num_asked, self.left = num_ids, 0, 1 << 60

    def meet(self) -> None:
        pass

    def num_ids(self, owner) -> int:
        return self._num_ids

    def by_owner(self, owner, ids):
        found = [(server, np.flatnonzero(ids % 3 == server)) for server in range(3)]
        return [(server, places) for server, places in found if places.size]

    def ask(self, spec, ids, split) -> Fetched:
        self.num_asked += ids.size
        self.left -= 1
        if self.left < 0:
            raise PeerError("a server is gone")
        ids = np.concatenate([ids[:0], *(ids[places] for _, places in split)])
        return Fetched(_rows(ids, spec.dtype, spec.shape), [])

    def hang_up(self) -> None:
        pass

    close = hang_up


def _rows(ids: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(ids.reshape(-1, *[1] * len(shape)), (ids.size, *shape)).astype(dtype)


class _Channel:
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


def _taken(keeper: RowKeeper) -> list[dict[str, torch.Tensor]]:
    found = []
    while (received := keeper.next(20.0)) is not None:
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


@settings(max_examples=60, deadline=None)
@given(
    trace=_traces(), share=st.sampled_from([None, 0.1, 0.4, 1.0]),
    ahead=st.sampled_from([None, 0, 3]), breaks=st.integers(0, 30),
)  # fmt: skip
def test_rows_are_those_of_the_ids(
    trace: tuple, share: float | None, ahead: int | None, breaks: int
) -> None:
    """Epoch after epoch, one of which ends early, where a server is lost; without a cache, too."""
    num_ids, batches = trace
    threads = set(threading.enumerate())
    servers = _Servers(num_ids)
    options = None if share is None else CacheOptions(size=share, lookahead=ahead)
    keeper = RowKeeper(SimpleNamespace(links=[]), options, 3, 20.0, False)
    keeper._questions.close()
    keeper._questions = servers
    try:
        for epoch in range(3):
            servers.left = breaks if epoch == 1 else 1 << 60
            keeper.begin(_Channel(batches), len(batches))
            try:
                found = _taken(keeper)
            except PeerError:
                assert epoch == 1
                continue
            assert len(found) == len(batches)
            for ids, message in zip(batches, found, strict=True):
                assert np.array_equal(message["node_labels"].numpy(), ids)
                assert np.array_equal(message["node_features"].numpy(), _rows(ids, "float32", (3,)))
    finally:
        keeper.close()
    if share == 1.0:
        assert servers.num_asked <= 2 * len(ROWS) * num_ids + 25 * 4 * len(ROWS)
    more = set(threading.enumerate()) - threads
    assert not [one for one in more if one.name == "rows of batches"]
