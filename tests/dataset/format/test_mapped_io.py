"""Partitions that are mapped: what is read, and how processes share the files."""

import os
import pickle
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import UsageError
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.format import mapped_reader
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.memory import tensors
from gigl_loader.runtime.memory.segments import close_fds, loads
from gigl_loader.testing import open_files
from tests.dataset.dataset_reference import RING, E, N, arrays, write


def test_a_flipped_bit_is_found_in_the_background(tmp_path: Path, caplog) -> None:
    write(RING, tmp_path)
    path = tmp_path / "part0" / "edges" / "__".join(E) / "indices.bin"
    path.write_bytes(bytes(path.stat().st_size))
    dataset = DistDataset.load(tmp_path, 0, mmap=True)
    for thread in threading.enumerate():
        if thread.name == "gigl_loader.verify":
            thread.join(30)
    with pytest.raises(ConfigError, match=r"indices\.bin has changed"):
        dataset.view()
    assert "indices.bin has changed" in caplog.text


def test_a_folder_that_was_replaced_is_not_compared(tmp_path: Path, monkeypatch) -> None:
    """The comparison in the background came to the files of the next graph, and blamed them."""
    later: list[Callable[[], None]] = []
    monkeypatch.setattr(mapped_reader, "start_aside", lambda name, target: later.append(target))
    write(RING, tmp_path / "graph", method="random", seed=1)
    dataset = DistDataset.load(tmp_path / "graph", 0, mmap=True)
    neighbors = dataset.view().adjacency[E].indices.tolist()
    write(RING, tmp_path / "graph", method="random", seed=2)
    # in a thread, as it lowers the priority of its own: all later tests of this process, and what
    # they start, would have that
    compares = threading.Thread(target=later[0])
    compares.start()
    compares.join()
    dataset.check_files()
    assert dataset.view().adjacency[E].indices.tolist() == neighbors


def test_arguments_of_load_are_checked(tmp_path: Path) -> None:
    write(RING, tmp_path / "ours")
    write(RING, tmp_path / "glt", format="glt")
    for options, message in (
        ({"mmap": "disk"}, "mmap must be True or False, got 'disk'"),
        ({"memory": "disk"}, "memory must be"),
        ({"verify": True}, "verify must be"),
        ({"edge_dir": "out"}, 'partitioned for edge_dir="in", not "out"'),
        ({"whole_node_label_file": "labels.pt"}, "whole_node_label_file"),
    ):
        with pytest.raises(ConfigError, match=message):
            DistDataset.load(tmp_path / "ours", 0, **options)
    with pytest.warns(DeprecationWarning, match="memory='mapped' is now mmap=True"):
        assert DistDataset.load(tmp_path / "ours", 0, memory="mapped").view().num_nodes
    with pytest.raises(ConfigError, match="cannot be mapped"):
        DistDataset.load(tmp_path / "glt", 0, mmap=True)
    with pytest.raises(ConfigError, match="partition_idx must be in"):
        DistDataset.load(tmp_path / "ours", 2)
    with pytest.raises(UsageError, match="checksums"):
        DistDataset.load(tmp_path / "glt", 0).verify()
    with pytest.raises(UsageError, match="not made of tables"):
        DistDataset.load(tmp_path / "ours", 0).to_original(torch.tensor([0]))


def test_workers_map_the_files_themselves(tmp_path: Path) -> None:
    write(RING, tmp_path)
    for path in arrays(tmp_path):
        path.chmod(0o444)
    view = DistDataset.load(tmp_path, 1, mmap=True).view()
    data, fds = tensors.dumps(view)
    try:
        inodes = {os.fstat(fd).st_ino for fd in fds}
        read = loads(data, fds)
    finally:
        close_fds(fds)
    wanted = {
        path.stat().st_ino for path in arrays(tmp_path / "part1") if "splits" not in str(path)
    }
    assert inodes >= wanted
    assert read.adjacency[E].indices.tolist() == view.adjacency[E].indices.tolist()
    assert read.node_features[N].values.tolist() == view.node_features[N].values.tolist()


def test_what_is_written_to_a_mapped_tensor_stays_in_the_process(tmp_path: Path) -> None:
    write(RING, tmp_path)
    values = DistDataset.load(tmp_path, 0, mmap=True).view().node_features[N].values
    values.fill_(-1)
    DistDataset.load(tmp_path, 0, verify="now")


def _of(folder: Path) -> list[str]:
    """Return the files in ``folder`` that this process has open."""
    return [name for name in open_files() if name.startswith(str(folder))]


def test_descriptors_and_mappings_go_with_the_dataset(tmp_path: Path) -> None:
    write(RING, tmp_path)
    assert not _of(tmp_path)
    dataset = DistDataset.load(tmp_path, 0, mmap=True, verify="off")
    assert _of(tmp_path)
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    del dataset
    assert not _of(tmp_path)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("mmap", [False, True])
def test_a_dataset_is_pickled_without_its_data(tmp_path: Path, mmap: bool) -> None:
    write(RING, tmp_path)
    dataset: Any = DistDataset.load(tmp_path, 1, mmap=mmap)
    data = bytes(ForkingPickler.dumps(dataset))
    assert len(data) < 20_000
    copy = pickle.loads(data)
    assert copy.train_node_ids.tolist() == dataset.train_node_ids.tolist()
    assert copy.view().adjacency[E].indices.tolist() == dataset.view().adjacency[E].indices.tolist()
    again: Any = DistDataset.from_ipc_handle(dataset.share_ipc())
    assert again.node_ids.tolist() == dataset.node_ids.tolist()


def test_a_directory_that_was_replaced_is_not_opened_again(tmp_path: Path) -> None:
    write(RING, tmp_path / "graph", seed=1, method="random")
    handle = DistDataset.load(tmp_path / "graph", 0, mmap=True).share_ipc()
    write(RING, tmp_path / "graph", seed=2, method="random")
    with pytest.raises(ConfigError, match="rewritten"):
        DistDataset.from_ipc_handle(handle)
