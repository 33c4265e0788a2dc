"""Two ranks, two partitions: TCP between their workers, or one memory. Few spawns, many cases."""

import itertools
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from gigl_loader import DistNeighborLoader
from gigl_loader.runtime.transport.certs import make_folder
from gigl_loader.testing import batch_tensors, run_ranks
from tests.loader import rank_jobs

pytestmark = pytest.mark.multiprocess


def _expected(name: str, rank: int, epochs: Sequence[int] = (0, 3)) -> list[dict]:
    """Return the same epochs of one rank, sampled over one partition."""
    graph, edge_dir, given, how = rank_jobs.CASES[name]
    with DistNeighborLoader(
        graph.dataset(edge_dir=edge_dir),
        input_nodes=rank_jobs.share(given, rank, 2),
        **rank_jobs.COMMON,
        **how,
    ) as loader:
        found = []
        for epoch in epochs:
            loader.set_epoch(epoch)
            found += [batch_tensors(batch) for batch in loader]
        return found


@pytest.mark.usefixtures("group")
@pytest.mark.longest
def test_two_partitions_two_ranks(tmp_path: Path) -> None:
    """Same bits as one partition, over TCP and in one memory; early leavers; equal steps..."""
    run_ranks(
        rank_jobs.cases_without_faults, tmp_path, world_size=2, tmp_path=tmp_path, timeout=400.0
    )
    for name, rank in itertools.product(rank_jobs.CASES, range(2)):
        expected = _expected(name, rank)
        for same_memory in ("0", "1", "0 cached", "1 cached"):
            _check_same(tmp_path / f"{name}{rank}{same_memory}.pt", expected)


@pytest.mark.usefixtures("group")
def test_two_machines(tmp_path: Path) -> None:
    """Workers that other machines reach: closed unless somebody opens them; the same bits then."""
    make_folder(tmp_path / "tls", ["127.0.0.1"])
    run_ranks(
        rank_jobs.ranks_of_two_machines, tmp_path, world_size=2, tmp_path=tmp_path, timeout=220.0
    )
    for rank in range(2):
        expected = _expected("plain", rank, epochs=(0,))
        for name in ("insecure", "token", "certificates"):
            _check_same(tmp_path / f"{name}{rank}.pt", expected)


def _check_same(file: Path, expected: list[dict]) -> None:
    found = torch.load(file, weights_only=False)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            same = torch.equal if isinstance(value, torch.Tensor) else lambda a, b: a == b
            assert same(value, other[key]), (file.name, key)


def test_some_partitions_in_memory_and_others_not(tmp_path: Path) -> None:
    run_ranks(rank_jobs.partitions_here_and_there, world_size=3, tmp_path=tmp_path, timeout=400.0)


@pytest.mark.longest
def test_faults_of_other_ranks(tmp_path: Path) -> None:
    """A peer's worker dies, or is stopped; a rank cannot start; no address to answer on."""
    run_ranks(
        rank_jobs.faults_that_leave_the_ranks_alive,
        tmp_path,
        world_size=2,
        tmp_path=tmp_path,
        timeout=400.0,
    )
    _check_gone(tmp_path)


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    run_ranks(
        rank_jobs.a_peer_rank_dies,
        tmp_path,
        world_size=2,
        tmp_path=tmp_path,
        timeout=400.0,
        may_die=[1],
    )
    _check_gone(tmp_path)


def test_a_rank_that_is_cut_off(tmp_path: Path) -> None:
    run_ranks(
        rank_jobs.a_rank_is_cut_off,
        tmp_path,
        world_size=2,
        tmp_path=tmp_path,
        timeout=400.0,
        may_die=[1],
    )
    _check_gone(tmp_path)


def _check_gone(folder: Path) -> None:
    for rank in range(2):
        seen = pickle.loads((folder / f"seen{rank}.pkl").read_bytes())
        assert len(seen.pids) >= 2, "a supervisor and a worker were seen"
        assert seen.sockets, "a listening worker was seen"
        seen.check_gone()
