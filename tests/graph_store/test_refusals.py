"""What a storage server refuses before it starts anything."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.dataset.partition.partition_view import Adjacency
from gigl_loader.errors import ConfigError, ProtocolError
from gigl_loader.graph_store.server import refused_joins
from gigl_loader.graph_store.server.producer_table import check_leave, check_request
from gigl_loader.graph_store.server.refused_joins import RefusedJoins
from gigl_loader.graph_store.wire.requests import ProducerRequest
from gigl_loader.sampler.options import CustomSamplerOptions, SourceOptions
from gigl_loader.sources.sampled_input import check_columns
from tests.support.conditions import Clock

EDGE = ("a", "to", "b")


def _view(**columns: Any) -> Any:
    indptr, indices = torch.tensor([0, 1]), torch.tensor([0])
    columns = {"edge_ids": None, "weights": None, **columns}
    return SimpleNamespace(adjacency={EDGE: Adjacency(indptr, indices, **columns)})


def test_columns_that_there_are_not_are_named() -> None:
    check_columns(_view())
    check_columns(_view(edge_ids=torch.tensor([7])), with_edge=True)
    check_columns(_view(first_edge=3), with_edge=True)  # ids are positions
    with pytest.raises(ConfigError, match=r"'to'.* keep no edge ids"):
        check_columns(_view(), with_edge=True)
    with pytest.raises(ConfigError, match=r"'to'.* have no weights"):
        check_columns(_view(first_edge=3), with_weight=True)


def test_a_server_caches_no_rows() -> None:
    """Its clients do, and say so; another process may ask for any size."""
    options = SourceOptions(seed=0, cache=CacheOptions(size=1 << 40), asks_for_rows=True)
    check_request(ProducerRequest(source_options=options), 1, None)
    with pytest.raises(ProtocolError, match="rows are cached where batches are taken"):
        check_request(
            ProducerRequest(source_options=replace(options, asks_for_rows=False)), 1, None
        )


def test_only_what_was_allowed_is_imported() -> None:
    allowed = ("gigl_loader.sampler", "mine.samplers")
    for path in ("mine.samplers.Sampler", "gigl_loader.sampler.x.Y"):
        check_leave(CustomSamplerOptions(path), allowed, 1)
    check_leave(None, allowed, 1)
    for path in ("mine.samplers_of_others.Sampler", "os.system"):
        with pytest.raises(ConfigError, match=f"server 1 has no permission to import.*{path}"):
            check_leave(CustomSamplerOptions(path), allowed, 1)


def test_who_asks_again_and_again_is_said_once_a_minute(
    caplog: pytest.LogCaptureFixture, clock_of: Callable[..., Clock]
) -> None:
    clock, refused = clock_of(refused_joins), RefusedJoins()
    for _ in range(50):
        refused.add("rank 0", ConfigError("another graph"))
        refused.add("rank 1", ConfigError("another graph"))
    assert caplog.messages == [f"rank {rank} cannot join: another graph" for rank in (0, 1)]
    clock.now += 60.0
    refused.add("rank 1", ConfigError("another graph"))
    assert caplog.messages[2:] == [
        "rank 1 cannot join: another graph (49 more times since it was said last)"
    ]
    caplog.clear()
    for number in range(5000):  # it makes them up
        refused.add("bad", ConfigError(f"reason {number}"))
    assert len(caplog.messages) < 1000
    assert refused.count == 5101
    clock.now += 60.0
    refused.add("rank 2", ConfigError("another cluster"))
    assert caplog.messages[-1] == "rank 2 cannot join: another cluster"


def test_reasons_that_a_process_makes_long_fill_no_memory() -> None:
    refused = RefusedJoins()
    tracemalloc.start()
    try:
        for number in range(500):
            refused.add("bad", ConfigError(f"{number} is no name: {'x' * 200_000}"))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2_000_000, "it was 100 MB"
