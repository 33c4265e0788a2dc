"""Files of a mapped dataset that are changed while it is in use are refused by name."""

import faulthandler
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import (
    DistDataset,
    DistNeighborLoader,
    EdgeTable,
    FileChangedError,
    NodeTable,
    PeerError,
    partition_graph,
    partition_tables,
)
from gigl_loader.sources.workers import producer
from gigl_loader.testing import check_same_batches, run_ranks, worker_pid
from tests.support.conditions import SetConstants

pytestmark = pytest.mark.multiprocess

NODES = 60
WHERE = "node_features/default_homogeneous_node_type/values.bin"


def _partitions(root: Path, value: float = 0.0, count: int = 1) -> Path:
    graph = Data(
        x=torch.arange(NODES).float().view(-1, 1) + value,
        edge_index=torch.stack([torch.arange(NODES), torch.arange(NODES).roll(1)]),
        train_mask=torch.arange(NODES) % 2 == 0,
    )
    partition_graph(graph, count, root, overwrite=True, progress=False)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return _partitions(tmp_path / "parts")


def _write(path: Path) -> None:
    """Write other rows into a file, as a copy over it would."""
    with path.open("r+b") as file:
        file.write(np.full(NODES, 9e9, np.float32).tobytes())


def _cut(path: Path) -> None:
    os.truncate(path, 0)


def _load(root: Path, part: int = 0) -> DistDataset:
    return DistDataset.load(root, part, mmap=True, verify="off")


def _loader(dataset: DistDataset, num_workers: int, **how: Any) -> DistNeighborLoader:
    assert isinstance(dataset.train_node_ids, torch.Tensor)
    return DistNeighborLoader(
        dataset, [1], dataset.train_node_ids, num_workers=num_workers, batch_size=5, seed=1, **how
    )


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "written": (_write, r"written to at \d{4}-"),
    "cut": (_cut, "had 240 bytes and now has 0"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_epoch_does_not_start_over_changed_files(
    root: Path, num_workers: int, change: str
) -> None:
    alter, words = CHANGES[change]
    told = rf"part0/{WHERE} was changed while it was in use \({words}.*never changed.*start the job"
    with _loader(_load(root), num_workers) as loader:
        assert sum(batch.x[: batch.batch_size].sum() for batch in loader) == sum(range(0, NODES, 2))
        alter(root / "part0" / WHERE)
        with pytest.raises(FileChangedError, match=told):
            iter(loader)
        with pytest.raises(FileChangedError, match=told):
            loader([0, 1])
    # A new job reads what is there, or is told that it is not whole.
    if change == "written":
        with _loader(_load(root), num_workers) as loader:
            assert next(iter(loader)).x[0] == 9e9


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_epoch_does_not_end_over_changed_files(root: Path, num_workers: int) -> None:
    """Also if the last batch was sampled by then: there may be no other epoch that would tell."""
    with _loader(_load(root), num_workers) as loader:
        batches = iter(loader)
        taken = [next(batches) for _ in range(len(loader) - num_workers)]
        _write(root / "part0" / WHERE)
        with pytest.raises(FileChangedError, match=WHERE):
            taken += list(batches)
        assert len(taken) >= len(loader) - num_workers


def test_splits_are_watched_too(root: Path) -> None:
    with _loader(_load(root), 0) as loader:
        _cut(root / "part0/splits/train/default_homogeneous_node_type.bin")
        with pytest.raises(FileChangedError, match="splits/train"):
            iter(loader)


def test_a_worker_that_reads_past_the_end_names_the_file(
    root: Path, constants: SetConstants
) -> None:
    constants(producer, _FILES_EVERY_S=3600.0)  # a look between two batches would name it first
    seeds = torch.arange(NODES).repeat(40)  # more than are sampled before they are taken
    with DistNeighborLoader(_load(root), [1], seeds, batch_size=1, num_workers=1) as loader:
        batches = iter(loader)
        next(batches)
        pid = worker_pid(loader, 0)
        _cut(root / "part0" / WHERE)
        # The end of a worker that is in a page which is gone, without the luck of the moment.
        os.kill(pid, signal.SIGBUS)
        told = rf"worker 0 \(pid {pid}\) died: SIGBUS; .*{WHERE} was changed"
        with pytest.raises(FileChangedError, match=told):
            list(batches)


def test_a_process_that_reads_past_the_end_ends(root: Path) -> None:
    """Nothing in Python can catch that: why files are compared before each batch."""
    dataset = _load(root)
    (rows,) = dataset.view().node_features.values()
    _cut(root / "part0" / WHERE)
    if (pid := os.fork()) == 0:
        faulthandler.disable()
        os._exit(int(rows.values[0, 0]))
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGBUS


@pytest.mark.parametrize("num_workers", [0, 1])
def test_overwriting_writes_beside_and_leaves_a_running_job_its_graph(
    root: Path, num_workers: int
) -> None:
    expected = list(_batches(root, num_workers))
    with _loader(_load(root), num_workers) as loader:
        first = next(batches := iter(loader))
        _partitions(root, value=1000.0)
        if num_workers:  # its successor gets the descriptors of the old files
            os.kill(worker_pid(loader, 0), signal.SIGKILL)
        check_same_batches([first, *batches], expected)
        loader.set_epoch(0)
        check_same_batches(list(loader), expected)
    assert next(iter(_batches(root, num_workers))).x.min() >= 1000


def _batches(root: Path, num_workers: int) -> list:
    with _loader(_load(root), num_workers) as loader:
        return list(loader)


def test_another_process_gets_the_same_files_or_none(root: Path) -> None:
    dataset = _load(root)
    make, given = dataset.share_ipc()
    sent = pickle.dumps(given)
    assert DistDataset.from_ipc_handle((make, pickle.loads(sent))).num_nodes == NODES
    _write(root / "part0" / WHERE)
    with pytest.raises(FileChangedError, match=WHERE):
        DistDataset.from_ipc_handle((make, pickle.loads(sent)))
    _partitions(root, value=1.0)
    with pytest.raises(FileChangedError, match="was rewritten while it was in use"):
        DistDataset.from_ipc_handle((make, pickle.loads(sent)))


@pytest.mark.parametrize("mmap", [True, False])
def test_original_ids_are_those_of_the_graph_that_was_loaded(tmp_path: Path, mmap: bool) -> None:
    def write(first: int) -> None:
        nodes = pa.table({"id": range(first, first + 4)})
        edges = pa.table({"src": [first], "dst": [first + 1]})
        partition_tables(
            NodeTable(nodes),
            EdgeTable(edges),
            1,
            tmp_path / "parts",
            overwrite=True,
            progress=False,
            threads=1,
        )

    write(10)
    opened, unopened = (DistDataset.load(tmp_path / "parts", 0, mmap=mmap) for _ in range(2))
    assert opened.to_original(np.array([0, 3])).tolist() == [10, 13]
    write(20)
    assert opened.to_original(np.array([0, 3])).tolist() == [10, 13], "it has them mapped"
    with pytest.raises(FileChangedError, match=r"ids/.* \(another file is in its place\)"):
        unopened.to_original(np.array([0]))
    again = DistDataset.load(tmp_path / "parts", 0, mmap=mmap)
    assert again.to_original(np.array([0])).tolist() == [20]
    (values,) = (tmp_path / "parts/ids").glob("*/*.values.bin")
    values.write_bytes(values.read_bytes())
    with pytest.raises(FileChangedError, match="written to at"):
        again.to_original(np.array([0]))


def test_a_file_in_memory_may_change(root: Path) -> None:
    dataset = DistDataset.load(root, 0, verify="off")
    _cut(root / "part0" / WHERE)
    with _loader(dataset, 0) as loader:
        assert len(list(loader)) == len(loader)


def _one_rank_has_changed_files(rank: int, size: int) -> None:
    root = Path(os.environ["CHANGED_ROOT"])
    with _loader(_load(root, rank), 0, exchange="collective") as loader:
        list(loader)
        if rank == 1:
            _write(root / "part1" / WHERE)
        with pytest.raises(FileChangedError if rank == 1 else PeerError, match="1"):
            list(loader)


def test_ranks_that_sample_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANGED_ROOT", str(_partitions(tmp_path / "parts", count=2)))
    run_ranks(_one_rank_has_changed_files, world_size=2, tmp_path=tmp_path, timeout=100)
