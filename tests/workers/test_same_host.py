"""Partitions that are read in the memory of another process of this machine."""

import contextlib
import dataclasses
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from gigl_loader.memory import segments
from gigl_loader.testing import TinyGraph, as_worker_gets, wait_until
from gigl_loader.testing._forked import ForkedProcess
from gigl_loader.workers import same_host
from gigl_loader.workers.same_host import ShownPartition, ShownPlace, read_partitions

TOKEN = b"of this job"


def _view():
    graph = TinyGraph.random(40, 300, heterogeneous=True)
    return graph.partitions(2, edge_dir="in")[1].view()


def _flat(value) -> dict:
    """Return the fields of nested dataclasses and dicts by path."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if not isinstance(value, dict):
        return {(): value}
    return {
        (name, *path): leaf for name, part in value.items() for path, leaf in _flat(part).items()
    }


def _show(folder: Path) -> None:
    shown = ShownPartition(_view(), TOKEN)
    (folder / "place.tmp").write_text(repr(tuple(shown.place)))
    (folder / "place.tmp").rename(folder / "place")
    wait_until(lambda: (folder / "seen").exists(), "it was read", 60)
    os._exit(0)


@pytest.mark.multiprocess
def test_a_partition_of_another_process(tmp_path: Path) -> None:
    """Every array is the same, and stays so when that process has ended."""
    owner = ForkedProcess(target=_show, args=(tmp_path,))
    owner.start()
    wait_until(lambda: (tmp_path / "place").exists(), "it is shown", 60)
    place = ShownPlace(*eval((tmp_path / "place").read_text()))
    assert place.pid == owner.pid
    found = read_partitions({1: [place._replace(pid=1), place]}, TOKEN)
    (tmp_path / "seen").touch()
    owner.join(60)
    assert owner.exitcode == 0
    one, other = _flat(found[1]), _flat(as_worker_gets(_view()))
    assert one.keys() == other.keys()
    arrays = [path for path, value in one.items() if isinstance(value, np.ndarray)]
    assert len(arrays) > 10
    for path, value in one.items():
        same = np.array_equal if path in arrays else lambda a, b: a == b
        assert same(value, other[path]), path
    assert read_partitions({1: [place]}, TOKEN) == {}, "there is nothing any more"


def test_what_is_not_what_was_meant_is_not_read(caplog, monkeypatch) -> None:
    """Another job's, another partition's (a pid of another container), closed, another user's."""
    caplog.set_level(logging.INFO)
    shown, other = ShownPartition(_view(), TOKEN), ShownPartition(_view(), TOKEN)
    place = shown.place
    assert list(read_partitions({1: [place]}, TOKEN)) == [1]
    assert not caplog.messages
    spoiled = [
        place._replace(proof=other.place.proof),
        place._replace(nbytes=place.nbytes - 1),
        place._replace(fd=other.place.fd),
        place._replace(pid=2**22 + 1),
        place._replace(pid=1, fd=0),
    ]
    for wrong in spoiled:
        assert read_partitions({1: [wrong]}, TOKEN) == {}
    assert read_partitions({1: [place]}, b"of another job") == {}
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345)
        assert read_partitions({1: [place]}, TOKEN) == {}
    with monkeypatch.context() as patch:  # what was shown is gone, its descriptor used again
        patch.setattr(same_host, "_inode", lambda fd: (1, 2))
        assert read_partitions({1: [place]}, TOKEN) == {}
    assert len(caplog.messages) == len(spoiled) + 3
    shown.close()
    shown.close()
    assert read_partitions({1: [place]}, TOKEN) == {}
    del other
    assert not [link for link in _open_files() if "gigl_loader.partition" in link]


def test_only_what_was_shown_is_opened(tmp_path: Path) -> None:
    """Not a file that happens to have the right bytes: they would be unpickled."""
    shown = ShownPartition(_view(), TOKEN)
    place = shown.place
    (tmp_path / "copy").write_bytes(os.pread(place.fd, place.nbytes, 0))
    with (tmp_path / "copy").open("r+b") as file:
        assert read_partitions({1: [place._replace(fd=file.fileno())]}, TOKEN) == {}
    assert list(read_partitions({1: [place]}, TOKEN)) == [1]
    shown.close()


def test_mapped_partitions_keep_no_descriptor() -> None:
    """There may be hundreds of tensors, and eight partitions on a machine."""
    shown = ShownPartition(_view(), TOKEN)
    before = _open_files()
    found = read_partitions({1: [shown.place]}, TOKEN)
    assert _open_files() == before
    assert found[1].num_partitions == 2
    shown.close()


def _open_files() -> list[str]:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists them
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(link for link in links if not link.startswith("/proc/"))


def test_nothing_stays_open_when_it_cannot_all_be_read(monkeypatch) -> None:
    shown = ShownPartition(_view(), TOKEN)
    opened = []

    def open_some(pid: int, fd: int) -> int:
        if len(opened) == 5:  # the description, and four tensors
            raise PermissionError("no more")
        opened.append(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR))
        return opened[-1]

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(segments, "open_fd_of", open_some)
    assert read_partitions({1: [shown.place]}, TOKEN) == {}
    assert len(opened) == 5
    assert len(os.listdir("/proc/self/fd")) == before
    shown.close()
