"""One writer at a time: real processes that write to one directory, and that are killed there."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gigl_loader import UsageError, partition_graph
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.format.directory import lock_of, only_writer
from gigl_loader.errors import ConfigError
from tests.dataset.dataset_reference import RING, ring, write
from tests.support.scripts import ForkedPython, run_python

WRITER = """
import os, signal, sys
import torch
from torch_geometric.data import Data
from gigl_loader.partitioning import partition_graph as partition
root, at = sys.argv[1:]
data = Data(x=torch.ones(8, 1), edge_index=torch.tensor([[0], [1]]))
def stop(*args, **kwargs):
    print("half", flush=True)
    sys.stdin.readline()
def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)
if at == "half":
    partition.write_views = stop
if at == "between renames":  # the old directory has stepped aside, the new one has no name yet
    rename = os.rename
    os.rename = lambda a, b: rename(a, b) if str(b).endswith("/old") else die()
partition.partition_graph(data, 2, root, progress=False, overwrite=True)
"""


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.multiprocess
def test_a_second_writer_is_refused_and_a_killed_one_leaves_nothing_in_the_way(
    tmp_path: Path,
) -> None:
    root = tmp_path / "graph"
    with ForkedPython(
        [sys.executable, "-c", WRITER, str(root), "half"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "half\n"
            with pytest.raises(UsageError, match=rf"being written by process {other.pid} on"):
                partition_graph(ring(), 2, root, progress=False, overwrite=True)
            assert other.poll() is None
            assert not root.exists()
            left = _names(tmp_path)
            assert [name[:15] for name in left] == [".graph.lock", ".graph.partial-"]
        finally:
            other.kill()
    assert _names(tmp_path) == left, "a kill leaves the lock's file, and not the lock"
    partition_graph(ring(), 2, root, progress=False)
    assert _names(tmp_path) == ["graph"]
    DistDataset.load(root, 0, verify="now")


@pytest.mark.multiprocess
def test_what_a_writer_was_to_replace_is_back_after_it_was_killed(tmp_path: Path) -> None:
    root = write(RING, tmp_path / "graph")
    before = DistDataset.load(root, 0).graph_identity
    done = run_python("-c", WRITER, str(root), "between renames")
    assert done.returncode == -signal.SIGKILL
    assert not root.exists()
    with pytest.raises(ConfigError, match="holds partitions"):
        partition_graph(ring(), 2, root, progress=False)
    assert DistDataset.load(root, 0, verify="now").graph_identity == before
    assert _names(tmp_path) == ["graph"]


def test_of_writers_that_begin_at_once_one_writes_and_its_result_stays(tmp_path: Path) -> None:
    for number in range(5):
        root, gate = tmp_path / str(number), threading.Barrier(4)
        ended: list[Any] = []

        def writer(seed: int, root=root, ended=ended, gate=gate) -> None:
            gate.wait(60)
            try:
                partition_graph(
                    ring(), 2, root, method="random", seed=seed, progress=False, overwrite=False
                )
                ended.append(DistDataset.load(root, 0, verify="now").graph_identity)
            except (ConfigError, UsageError) as error:
                ended.append(error)

        threads = [threading.Thread(target=writer, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wrote = [one for one in ended if not isinstance(one, Exception)]
        assert len(ended) == 4
        assert len(wrote) == 1, ended
        found = [DistDataset.load(root, k, verify="now").graph_identity for k in range(2)]
        assert found == [wrote[0]] * 2
    assert _names(tmp_path) == ["0", "1", "2", "3", "4"]


def test_a_lock_is_one_threads_and_its_file_goes_with_it(tmp_path: Path) -> None:
    lock = lock_of(tmp_path / "graph")
    lock.write_text("not what we write")
    with only_writer(lock, tmp_path):
        mine = rf"process {os.getpid()} on .*, since 20"
        with pytest.raises(UsageError, match=mine), only_writer(lock, tmp_path):
            pass
        lock.write_text("")
        other = "by another process"
        with pytest.raises(UsageError, match=other), only_writer(lock, tmp_path):
            pass
    assert _names(tmp_path) == []
    # its owner removed the directory that it lies in, and another writer made it anew
    with only_writer(lock, tmp_path):
        lock.unlink()
        with only_writer(lock, tmp_path):
            pass
        lock.touch()
    assert _names(tmp_path) == [".graph.lock"], "not the first one's to remove"
