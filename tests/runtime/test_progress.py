"""Bars and full disks: what happens around the work of a directory."""

import errno
import re
import resource
from pathlib import Path

import pytest
import torch

from gigl_loader import DistDataset, ResourceError, partition_graph
from gigl_loader.errors import explained_limits
from gigl_loader.runtime import progress
from gigl_loader.testing import TinyGraph

GRAPH = TinyGraph.random(40, 200)


@pytest.fixture
def bars(monkeypatch) -> list[progress.ProgressBar]:
    made: list[progress.ProgressBar] = []

    class Recorded(progress.ProgressBar):
        def __init__(self, title: str, total: int, *, shown: bool | None) -> None:
            super().__init__(title, total, shown=False)
            self.moves: list[float] = []
            made.append(self)

        def add(self, nbytes: int) -> None:
            super().add(nbytes)
            self.moves.append(self.done / self._total)

    monkeypatch.setattr(progress, "ProgressBar", Recorded)
    return made


def test_a_long_load_says_how_far_it_is_where_nobody_asked_for_a_bar(
    tmp_path, constants, caplog
) -> None:
    partition_graph(GRAPH.to_pyg(), 1, tmp_path / "g", progress=False)
    DistDataset.load(tmp_path / "g", 0)
    assert caplog.text == "", "it did not take long"
    constants(progress, _LATE_S=0.0)
    DistDataset.load(tmp_path / "g", 0, progress=False)
    assert caplog.text == "", "it was not wanted"
    DistDataset.load(tmp_path / "g", 0)
    assert [record.levelname for record in caplog.records] == ["WARNING"], "one, then a pause"
    assert re.search(r"load partition 0: 0\.0 GB after \d+ s", caplog.text)


def test_bars_move_inside_long_steps(tmp_path, bars) -> None:
    partition_graph(GRAPH.to_pyg(), 1, tmp_path / "g")
    DistDataset.load(tmp_path / "g", 0, progress=True)
    for bar in bars:
        assert bar.moves == sorted(bar.moves)
        assert bar.moves[-1] == 1.0
        inside = [share for share in bar.moves if 0.0 < share < 1.0]
        assert len(set(inside)) >= 5, "one partition is one step, and not one move"
        assert inside[-1] > 0.7, "the total is about right"


def test_a_file_that_cannot_grow(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = TinyGraph.random(3000, 10).to_pyg()
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, before[1]))
    try:
        with pytest.raises(ResourceError, match=r"writing .*ulimit -f") as caught:
            partition_graph(big, 1, tmp_path / "g", progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    assert not list(tmp_path.iterdir()), "nothing is left"


@explained_limits("writing g")
def _fill_a_disk() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        torch.save(torch.arange(10_000), full)


def test_a_full_disk_under_an_error_of_torch() -> None:
    with pytest.raises(ResourceError, match="writing g: No space left on device: the disk is full"):
        _fill_a_disk()
    with pytest.raises(FileNotFoundError), explained_limits("reading"):
        Path("/no/such/file").read_text()
