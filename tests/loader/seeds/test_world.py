"""``shard="world"``: one sequence of batches over the job, whatever number of ranks takes it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import ConfigError, DistDataset, DistNeighborLoader
from gigl_loader.loader.epochs.epoch import EpochProgress
from gigl_loader.loader.seeds.world import WorldShare, check_shard
from gigl_loader.testing import batch_digest, run_cluster, run_ranks
from tests.loader import world_jobs
from tests.support.draws import examples

RUNS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), max_size=5)
"""(ranks, steps that each of them takes) before the number of ranks changes."""


class Deck:
    """The reference: the epoch as a deck of cards, dealt one card to each rank in turn."""

    def __init__(self, total: int, even: str | None) -> None:
        self.total, self.even = total, even
        self.cards = list(range(total))

    def deal(self, ranks: int) -> list[int | None] | None:
        """Return each rank's card of one step, None for a rank without; or None: it is over."""
        if not self.cards or (self.even == "drop" and len(self.cards) < ranks):
            return None
        hand: list[int | None] = []
        spare = list(range(self.total)) * ranks  # only a last step may need it
        for _ in range(ranks):
            if self.cards:
                hand.append(self.cards.pop(0))
            else:
                hand.append(spare.pop(0) if self.even == "wrap" else None)
        return hand


def _ranks(size: int, total: int, even: str | None, state: dict | None) -> list[EpochProgress]:
    """Return the progress of each rank of a job, resumed from ``state``."""
    found = []
    for rank in range(size):
        progress = (
            EpochProgress() if state is None else EpochProgress.from_dict(state, {"shard": "world"})
        )
        progress.share = WorldShare(rank=rank, world_size=size, total=total, even_ranks=even)
        found.append(progress)
    return found


def _take(progresses: list[EpochProgress], total: int, steps: int) -> Iterator[list[int | None]]:
    """Yield the batches of up to ``steps`` steps of all ranks, and count them."""
    positions = [progress.positions_left(total) for progress in progresses]
    for step in range(min(steps, max(map(len, positions)))):
        now = [own[step] if step < len(own) else None for own in positions]
        for progress, position in zip(progresses, now, strict=True):
            if position is not None:
                progress.note(position)
        yield [None if position is None else position % total for position in now]


@settings(deadline=None, max_examples=examples(300))
@given(st.integers(0, 40), RUNS, st.integers(1, 6), st.sampled_from([None, "drop", "wrap"]))
def test_any_ranks_and_any_cuts(
    total: int, runs: list[tuple[int, int]], last: int, even: str | None
) -> None:
    deck, state = Deck(total, even), None
    for size, steps in [*runs, (last, total + 1)]:
        progresses = _ranks(size, total, even, state)
        for found in _take(progresses, total, steps):
            assert found == deck.deal(size)
        states = [p.to_dict({"shard": "world"}) for p in progresses]
        assert states[0]["yielded"] == total - len(deck.cards)
        if even is not None:
            assert all(one == states[0] for one in states), "any rank's state is the job's"
        state = states[0]
    assert deck.deal(last) is None, "all that is to be taken was"


def test_uneven_ends() -> None:
    def positions(rank: int, even: str | None, taken: int = 0) -> list[int]:
        share = WorldShare(rank=rank, world_size=3, total=8, even_ranks=even)
        return list(share.positions(taken))

    assert [positions(rank, None) for rank in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert [positions(rank, "drop") for rank in range(3)] == [[0, 3], [1, 4], [2, 5]]
    assert [positions(rank, "wrap") for rank in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert [positions(rank, None, taken=4) for rank in range(3)] == [[4, 7], [5], [6]]
    assert [positions(rank, "wrap", taken=8) for rank in range(3)] == [[], [], []]


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"shard": "rank"}, "shard must be.*'rank'"),
        ({"shard": "world", "in_order": False}, "taken in order; leave in_order out"),
    ],
)
def test_options(how: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        check_shard(**{"in_order": True, **how})
    with pytest.raises(ConfigError, match=match):
        DistNeighborLoader(DistDataset(), [2], torch.arange(5), **how)


@pytest.mark.usefixtures("group")
def test_one_rank_takes_everything() -> None:
    """As a loader of the default; and neither resumes from the other's state."""
    with (
        world_jobs.neighbors(num_workers=0) as world,
        world_jobs.neighbors(num_workers=0, shard="machine") as machine,
    ):
        assert list(map(batch_digest, world)) == list(map(batch_digest, machine))
        assert "world_size" not in world.state_dict()
        with pytest.raises(ConfigError, match=r"shard: 'machine' -> 'world'.*between epochs"):
            world.load_state_dict(machine.state_dict())
        new = machine.state_dict()
        old = {name: new[name] for name in new.keys() - {"shard", "draw_version"}}
        machine.load_state_dict(old)
        of_two = {**machine.state_dict(), "world_size": 2, "rank": 1}
        with pytest.raises(ConfigError, match=r'world_size: 2 -> 1.*shard="world"'):
            machine.load_state_dict(of_two)


@pytest.mark.multiprocess
def test_a_job_that_changes_its_ranks(tmp_path: Path) -> None:
    """4 ranks, then 2, then 3: nodes, anchors and edges, workers, no workers and collectives."""
    expected = {name: world_jobs.undisturbed(name) for name in world_jobs.CASES}
    for stage, size in enumerate(world_jobs.SIZES):
        folder = tmp_path / f"run{stage}"
        folder.mkdir()
        run_ranks(
            world_jobs.one_stage, tmp_path, stage, world_size=size, tmp_path=folder, timeout=300
        )
    for name, batches in expected.items():
        found = world_jobs.read(tmp_path, name)
        assert found == dict(enumerate(batches)), name
        world_jobs.check_replayed(tmp_path, name, batches[world_jobs.REPLAYED])


@pytest.mark.multiprocess
def test_a_graph_store_that_serves_more_ranks_then_fewer(tmp_path: Path) -> None:
    for stage, size in enumerate((2, 1)):
        folder = tmp_path / f"run{stage}"
        folder.mkdir()
        run_cluster(
            world_jobs.stage_of_a_store,
            tmp_path,
            stage,
            dataset=world_jobs.partition,
            tmp_path=folder,
            servers=2,
            clients=size,
        )
    seed = torch.load(tmp_path / "nodes.state")["seed"]
    expected = world_jobs.undisturbed("nodes", seed=seed)
    assert world_jobs.read(tmp_path, "nodes") == dict(enumerate(expected))
    world_jobs.check_replayed(tmp_path, "nodes", expected[world_jobs.REPLAYED])
