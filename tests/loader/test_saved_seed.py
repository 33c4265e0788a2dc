"""A loader without ``seed=`` continues the state of another one: it takes the saved seed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import ConfigError, DistNeighborLoader, replay
from gigl_loader.testing import batch_digest, run_cluster, run_ranks
from tests.loader import saved_seed_jobs, world_jobs

SOURCES: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "on a device": {"num_workers": 0, "dataset": "placed"},
    "workers": {"num_workers": 2},
    "drawn ahead": {"num_workers": 1, "in_order": False, "batch_size": 12},
}


def _loader(dataset: Any = None, **how: Any) -> DistNeighborLoader:
    data = (
        world_jobs.GRAPH.dataset()
        if dataset is None
        else world_jobs.GRAPH.dataset().to("cpu", kernels="torch")
    )
    common = {"batch_size": 7, "shuffle": True, "with_weight": dataset is None}
    return DistNeighborLoader(data, [3, 2], torch.arange(60), **{**common, **how})


@pytest.mark.multiprocess
@pytest.mark.parametrize("source", SOURCES)
def test_a_new_loader_continues_with_the_same_batches(source: str) -> None:
    how = SOURCES[source]
    with _loader(**how) as first, _loader(**how) as second:
        batches = iter(first)
        for _ in range(3):
            next(batches)
        state = first.state_dict()
        rest = sorted(map(batch_digest, batches))
        following = sorted(map(batch_digest, first))
        assert second.state_dict()["seed"] != state["seed"]
        second.load_state_dict(state)
        assert second.state_dict() == state
        assert sorted(map(batch_digest, second)) == rest
        assert sorted(map(batch_digest, second)) == following
        assert batch_digest(second([5, 1])) == batch_digest(first([5, 1]))
        assert batch_digest(replay(second, 4, 2)) == batch_digest(replay(first, 4, 2))
        again = second.state_dict()
    with _loader(**how, seed=state["seed"]) as third:
        third.load_state_dict(again)
        assert sorted(map(batch_digest, third)) == sorted(
            map(batch_digest, _epoch(how, state["seed"], 2))
        )


def _epoch(how: dict[str, Any], seed: int, epoch: int) -> list[Any]:
    with _loader(**how, seed=seed) as loader:
        loader.set_epoch(epoch)
        return list(loader)


def test_a_chosen_seed_stays() -> None:
    with _loader(num_workers=0) as drawn, _loader(num_workers=0, seed=3) as chosen:
        state = drawn.state_dict()
        with pytest.raises(ConfigError, match=rf"seed: {state['seed']} -> 3"):
            chosen.load_state_dict(state)
        for wrong in ({**state, "seed": -1}, {**state, "seed": None}, {**state, "shuffle": False}):
            with pytest.raises(ConfigError, match=r"differs in .*(seed|shuffle): "):
                drawn.load_state_dict(wrong)
        assert drawn.state_dict() == state, "a refused state changes nothing"


@pytest.mark.multiprocess
def test_all_ranks(tmp_path: Path) -> None:
    run_ranks(saved_seed_jobs.ranks, world_size=2, tmp_path=tmp_path, timeout=300)


@pytest.mark.multiprocess
def test_a_graph_store(tmp_path: Path) -> None:
    run_cluster(saved_seed_jobs.store, dataset=world_jobs.partition, tmp_path=tmp_path)
