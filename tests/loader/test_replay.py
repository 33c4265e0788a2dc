"""Any batch again, alone: the bits of the epoch, and the loader stays where it was."""

from typing import Any

import pytest
import torch

from gigl_loader import ConfigError, UsageError, WrongTypeError, replay
from gigl_loader.testing import batch_digest
from tests.loader import world_jobs
from tests.support.sources import source_of

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("group")]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", [world_jobs.anchors, world_jobs.edges, world_jobs.neighbors])
def test_any_batch_in_any_order(make: Any, num_workers: int) -> None:
    with make(num_workers=num_workers, shard="machine") as loader:
        epochs = [list(map(batch_digest, loader)) for _ in range(2)]
        loader.stats(reset=True)
        before = loader.state_dict()
        for epoch, batch in ((1, 14), (0, 0), (1, 3), (1, 3)):
            assert batch_digest(replay(loader, epoch, batch)) == epochs[epoch][batch]
        assert loader.state_dict() == before
        assert loader.stats()["batches"] == 0
        assert loader.epoch == 2


def test_a_loader_that_was_broken_off_goes_on_where_it_was() -> None:
    with world_jobs.neighbors(shard="machine") as loader:
        whole = list(map(batch_digest, loader))
        loader.set_epoch(0)
        batches = iter(loader)
        taken = [batch_digest(next(batches)) for _ in range(4)]
        with pytest.raises(UsageError, match=r"during an epoch.*state_dict\(\)"):
            replay(loader, 0, 1)
        state = loader.state_dict()
        del batches
        assert batch_digest(replay(loader, 0, 7)) == whole[7]
        loader.load_state_dict(state)
        assert taken + list(map(batch_digest, loader)) == whole


def test_what_there_is_not() -> None:
    with world_jobs.neighbors(num_workers=0, shard="machine") as loader:
        batch: Any
        for epoch, batch, match in (
            (0, 15, r"batch must be.*\[0, 15\).*got 15"),
            (0, -1, "batch must be.*-1"),
            (-1, 0, "epoch must be.*>= 0, got -1"),
            (True, 0, "epoch must be.*True"),
            (0, 1.0, r"batch must be.*1\.0"),
        ):
            with pytest.raises(ConfigError, match=match):
                replay(loader, epoch, batch)
        with pytest.raises(WrongTypeError, match="got list"):
            replay([loader], 0, 0)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(UsageError, match="shut down"):
        replay(loader, 0, 0)


def test_an_empty_input_has_no_batch() -> None:
    seeds = torch.arange(0)
    with (
        world_jobs.neighbors(seeds=seeds, num_workers=0) as loader,
        pytest.raises(ConfigError, match=r"\[0, 0\)"),
    ):
        replay(loader, 0, 0)


def test_what_failed_is_not_left_under_way() -> None:
    """Else its batch would still be sampled, and wait for somebody to take it."""
    with world_jobs.neighbors(num_workers=0, shard="machine") as loader:
        whole = list(map(batch_digest, loader))
        asked: list[str] = []
        source = source_of(loader)
        cancel, take = source.cancel_epoch, source.next

        def fail() -> None:
            asked.append("next")
            raise ZeroDivisionError

        def note_and_cancel() -> None:
            asked.append("cancel")
            cancel()

        source.next, source.cancel_epoch = fail, note_and_cancel
        with pytest.raises(ZeroDivisionError):
            replay(loader, 0, 3)
        assert asked[asked.index("next") :] == ["next", "cancel"], "after the failure"
        source.next, source.cancel_epoch = take, cancel
        assert batch_digest(replay(loader, 0, 3)) == whole[3]
