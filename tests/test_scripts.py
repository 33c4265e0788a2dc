"""What the ranks of a script do together: all get the same, and what cannot be is said on all."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import on_all_ranks, shared_folder, sum_over_ranks
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.testing import run_ranks


def test_one_process_is_all_there_is(tmp_path: Path) -> None:
    ids = torch.tensor([3, 1])
    assert on_all_ranks(ids) is ids
    assert sum_over_ranks(1, 2.5) == [1.0, 2.5]
    with shared_folder(tmp_path) as folder:
        assert Path(folder).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_group_that_was_forgotten_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="sum_over_ranks: WORLD_SIZE=2 and there is no process gr"):
        sum_over_ranks(1)


def _together(rank: int, size: int, folder: str) -> None:
    own = torch.arange(rank) + 10 * rank  # rank 0 has none
    assert on_all_ranks(own).tolist() == [10, 20, 21]
    rows = torch.full((rank, 2), rank, dtype=torch.bfloat16)
    found = on_all_ranks(rows)
    assert (found.dtype, found.tolist()) == (torch.bfloat16, [[1, 1], [2, 2], [2, 2]])
    assert on_all_ranks(torch.empty(0, 4)).shape == (0, 4)
    assert sum_over_ranks(rank, 0.5) == [3.0, 1.5]
    with shared_folder(folder) as shared:
        (Path(shared) / str(rank)).touch()
        sum_over_ranks(0.0)
        assert len(list(Path(shared).iterdir())) == size
    sum_over_ranks(0.0)
    assert not Path(shared).exists()
    with pytest.raises(ConfigError, match=r"one type and width on all ranks, got torch.int64"):
        on_all_ranks(torch.zeros(1) if rank else torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"as many values on all ranks, got \[1, 2, 2\]"):
        sum_over_ranks(*range(2 if rank else 1))


@pytest.mark.multiprocess
def test_ranks_find_the_same(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    run_ranks(_together, str(tmp_path / "shared"), world_size=3, tmp_path=tmp_path)


def _blind(rank: int, size: int) -> None:
    seen = Path.is_dir
    if rank == 1:
        kind: Any = Path
        kind.is_dir = lambda path: False
    with pytest.raises(ConfigError, match=r"ranks \[1\] do not see .*give shared_folder a parent"):
        shared_folder().__enter__()
    Path.is_dir = seen


@pytest.mark.multiprocess
def test_a_machine_that_does_not_see_the_folder_is_an_error_on_all(tmp_path: Path) -> None:
    run_ranks(_blind, world_size=2, tmp_path=tmp_path)
