"""A state names what decides the content of batches; a loader with another value refuses it."""

import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import Compose, NormalizeFeatures

from gigl_loader import (
    ConfigError,
    DevicePrefetcher,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    PPRSamplerOptions,
    partition_graph,
)
from gigl_loader.testing import batch_digest, one_rank

NUM_NODES = 40
SEEDS = torch.arange(NUM_NODES)


@pytest.fixture(autouse=True, scope="module")
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_rank(tmp_path_factory.mktemp("group")):
        yield


def _graph(**other: Any) -> Data:
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(NUM_NODES, (2, 300), generator=generator)
    return Data(
        **{
            "x": torch.arange(2.0 * NUM_NODES).reshape(NUM_NODES, 2),
            "edge_index": edges,
            "edge_weight": torch.rand(300, generator=generator),
            "odds": torch.rand(300, generator=generator),
            "time": torch.arange(NUM_NODES),
            **other,
        }
    )


def _doubled(batch: Any) -> Any:
    batch.x = batch.x * 2
    return batch


def _same(value: Any) -> Any:
    return value


class _Own(DistNeighborLoader):
    """A subclass changes nothing by its name."""


def _loader(kind: Any = DistNeighborLoader, graph: Data | None = None, **how: Any) -> Any:
    given = {"num_neighbors": [3, 2], "batch_size": 8, "seed": 1, "shuffle": True, **how}
    data = DistDataset.from_pyg(_graph() if graph is None else graph)
    return kind(data, given.pop("num_neighbors"), SEEDS, num_workers=0, **given)


def _state(**how: Any) -> dict[str, Any]:
    with _loader(**how) as loader:
        batches = iter(loader)
        next(batches)
        state: dict[str, Any] = loader.state_dict()
    return state


OTHERS: dict[str, dict[str, Any]] = {
    "num_neighbors": {"num_neighbors": [4, 2]},
    "num_neighbors ": {"num_neighbors": [3, 2, 2]},
    "replace": {"replace": True},
    "with_weight": {"with_weight": True},
    "weight_attr": {"weight_attr": "odds"},
    "with_edge": {"with_edge": False},
    "sampling_method": {"sampling_method": "labor"},
    "subgraph_type": {"subgraph_type": "induced"},
    "disjoint": {"disjoint": True},
    "time_attr": {"time_attr": "time"},
    "sampler_options": {"sampler_options": PPRSamplerOptions()},
    "transform": {"transform": _doubled},
    "transform ": {"transform": lambda batch: batch.x},
    "transform_sampler_output": {"transform_sampler_output": _same},
    "graph": {"graph": _graph(x=torch.zeros(NUM_NODES, 2))},
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_option_is_refused_by_name(name: str) -> None:
    state, option = _state(), name.strip()
    with _loader(**OTHERS[name]) as other:
        before = other.state_dict()
        with pytest.raises(ConfigError, match=rf"\b{option}: .* -> .*strict=False"):
            other.load_state_dict(state)
        assert other.state_dict() == before, "what was refused changed nothing"
        other.load_state_dict(state, strict=False)
        assert len(list(other)) == 4


PAIRS: dict[str, tuple[Any, Any]] = {
    "two functions": (_doubled, _same),
    "two lambdas": (lambda batch: batch.x, lambda batch: batch.n_id),
    "partial": (functools.partial(max, key=id), functools.partial(max, key=len)),
    "objects": (Compose([NormalizeFeatures()]), Compose([])),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_transforms_are_told_apart_and_known_again(pair: str) -> None:
    first, second = PAIRS[pair]
    with _loader(transform=first) as one, _loader(transform=second) as other:
        one.load_state_dict(one.state_dict())
        with pytest.raises(ConfigError, match="transform: "):
            other.load_state_dict(one.state_dict())
    with _loader(transform=first) as again:
        again.load_state_dict(_state(transform=first))


def test_the_error_says_what_the_state_and_the_loader_have() -> None:
    state = _state()
    with _loader(num_neighbors=[4, 2], replace=True) as other, pytest.raises(ConfigError) as raised:
        other.load_state_dict(state)
    text = str(raised.value)
    assert "num_neighbors: [3, 2] -> [4, 2]" in text
    assert "replace: not set -> True" in text
    assert "batch_size" not in text


def test_what_decides_no_content_may_differ() -> None:
    with _loader() as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = [batch_digest(batch) for batch in batches]
    other = {"worker_concurrency": 1, "device_prefetch": 5, "timeout": 77.0, "in_order": False}
    with _loader(_Own, **other, channel_size="64MB", non_blocking_transfers=False) as resumed:
        resumed.load_state_dict(state)
        assert sorted(map(batch_digest, resumed)) == sorted(expected)


@pytest.mark.multiprocess
def test_workers_continue_what_this_process_began() -> None:
    state = _state()
    data = DistDataset.from_pyg(_graph())
    with DistNeighborLoader(
        data, [3, 2], SEEDS, batch_size=8, seed=1, shuffle=True, num_workers=2
    ) as workers:
        workers.load_state_dict(state)
        assert len(list(workers)) == 4


def test_a_state_without_the_record_loads_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    state = {name: value for name, value in _state().items() if name != "options"}
    with _loader(replace=True) as other, caplog.at_level(logging.INFO, "gigl_loader"):
        caplog.clear()
        other.load_state_dict(state)
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 1
        assert "no record of the options" in lines[0]
        assert len(list(other)) == 4


@pytest.mark.parametrize("record", [3, {"replace": 1}, {2: "True"}, ["replace"]])
def test_a_damaged_record_is_no_state(record: Any) -> None:
    with (
        _loader() as loader,
        pytest.raises(ConfigError, match=r"not a loader state: options .*a state_dict\(\)"),
    ):
        loader.load_state_dict({**loader.state_dict(), "options": record})


@pytest.mark.parametrize("shard", ["machine", "world"])
def test_a_position_beyond_the_end_is_not_an_empty_epoch(shard: Any) -> None:
    with _loader(shard=shard) as loader:
        state = loader.state_dict()
        for yielded in (6, 1000):
            with pytest.raises(ConfigError, match="beyond the 5 batches of an epoch"):
                loader.load_state_dict({**state, "yielded": yielded})
        loader.load_state_dict({**state, "yielded": 4})
        assert len(list(loader)) == 1


def test_strict_false_still_refuses_other_seeds() -> None:
    state = _state()
    with (
        _loader(batch_size=4, replace=True) as other,
        pytest.raises(ConfigError, match=r"batch_size: 8 -> 4.*replace: not set -> True"),
    ):
        other.load_state_dict(state, strict=False)


def test_it_goes_through_torch_save_and_a_prefetcher(tmp_path: Path) -> None:
    torch.save(_state(transform=_doubled), tmp_path / "state")
    state = torch.load(tmp_path / "state", weights_only=True)
    assert all(isinstance(text, str) for text in state["options"].values())
    with _loader() as loader:
        ahead = DevicePrefetcher(loader, "cpu", cast={"x": torch.float64})
        with pytest.raises(ConfigError, match="transform: "):
            ahead.load_state_dict(state)
        ahead.load_state_dict(state, strict=False)
        assert len(list(ahead)) == 4


def test_keywords_of_samplers_count() -> None:
    with _loader(sampler_options=PPRSamplerOptions(alpha=0.25)) as first:
        state = first.state_dict()
    with (
        _loader(sampler_options=PPRSamplerOptions(alpha=0.5)) as other,
        pytest.raises(ConfigError, match=r"sampler_options: .*0\.25.* -> .*0\.5"),
    ):
        other.load_state_dict(state)


def test_other_kinds_of_loaders() -> None:
    data = DistDataset.from_pyg(_graph())
    how: dict[str, Any] = {"batch_size": 8, "seed": 1, "num_workers": 0}
    pairs = torch.arange(32).reshape(2, 16)
    with (
        DistLinkNeighborLoader(data, [2], pairs, neg_sampling="binary", **how) as first,
        DistLinkNeighborLoader(data, [2], pairs, neg_sampling="triplet", **how) as other,
        pytest.raises(ConfigError, match=r"sampler_options: .*binary.* -> .*triplet"),
    ):
        other.load_state_dict(first.state_dict())
    with (
        DistSubGraphLoader(data, SEEDS, [2], **how) as sub,
        DistNeighborLoader(data, [2], SEEDS, **how) as plain,
        pytest.raises(ConfigError, match=r"sampler_options: .*subgraph_type: induced -> not set"),
    ):
        plain.load_state_dict(sub.state_dict())


def test_the_form_of_labels_counts() -> None:
    links = torch.stack([torch.arange(20), torch.arange(20) + 10])
    data = DistDataset.from_pyg(_graph(), supervision=(links, None))
    how: dict[str, Any] = {"batch_size": 8, "seed": 1, "num_workers": 0}
    anchors = torch.arange(20)
    with (
        DistABLPLoader(data, [2], anchors, **how) as first,
        DistABLPLoader(data, [2], anchors, use_label_edge_index_output=True, **how) as other,
        pytest.raises(ConfigError, match="use_label_edge_index_output: not set -> True"),
    ):
        other.load_state_dict(first.state_dict())


def test_a_directory_is_known_again_and_another_is_not(tmp_path: Path) -> None:
    graphs = {"one": _graph(), "two": _graph(), "other": _graph(x=torch.ones(NUM_NODES, 2))}
    for name, graph in graphs.items():
        partition_graph(graph, 1, tmp_path / name)
    how: dict[str, Any] = {"batch_size": 8, "seed": 1, "num_workers": 0}
    loaded = {name: DistDataset.load(tmp_path / name, 0) for name in graphs}
    with DistNeighborLoader(loaded["one"], [2], SEEDS, **how) as loader:
        state = loader.state_dict()
    with DistNeighborLoader(loaded["two"], [2], SEEDS, **how) as again:
        again.load_state_dict(state)
    with (
        DistNeighborLoader(loaded["other"], [2], SEEDS, **how) as other,
        pytest.raises(ConfigError, match="graph: "),
    ):
        other.load_state_dict(state)
