"""Memory of another process of this machine: partitions that are mapped, not asked for."""

import contextlib
import ctypes
import dataclasses
import gc
import logging
import os
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gigl_loader.dataset.partition.partition_view import Adjacency, PartitionView
from gigl_loader.errors import ProtocolError
from gigl_loader.runtime.memory import same_host, segments
from gigl_loader.runtime.memory.same_host import (
    Mappings,
    Offer,
    OwnHostProof,
    Region,
    read_offer,
    read_offers,
)
from gigl_loader.runtime.memory.tensors import Offered
from gigl_loader.runtime.processes import ForkedProcess
from gigl_loader.testing import TinyGraph, as_worker_gets, open_files, wait_until
from tests.support.conditions import no_descriptors_but


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
    offered = Offered(_view())
    (folder / "offer.tmp").write_bytes(msgspec.msgpack.encode(offered.offer))
    (folder / "offer.tmp").rename(folder / "offer")
    wait_until(lambda: (folder / "seen").exists(), "it was read", 60)
    os._exit(0)


@pytest.mark.multiprocess
def test_a_partition_of_another_process(tmp_path: Path) -> None:
    """Every array is the same, and stays so when that process has ended."""
    owner = ForkedProcess(target=_show, args=(tmp_path,))
    owner.start()
    wait_until(lambda: (tmp_path / "offer").exists(), "it is offered", 60)
    offer = msgspec.msgpack.decode((tmp_path / "offer").read_bytes(), type=Offer)
    assert offer.description.pid == offer.mark.region.pid == owner.pid
    found = read_offers({1: [_changed(offer, "mark.region", pid=1), offer]}, PartitionView)
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
    assert read_offers({1: [offer]}, PartitionView) == {}, "there is nothing any more"


def _changed(value, path: str = "", **changes):
    """Return a frozen dataclass with fields of the part at ``path`` changed."""
    if not path:
        return dataclasses.replace(value, **changes)
    name, _, rest = path.partition(".")
    part = _changed(getattr(value, name), rest, **changes)
    return dataclasses.replace(value, **{name: part})


def test_what_is_not_what_was_meant_is_not_read(caplog, monkeypatch) -> None:
    """Another process's (a pid of another container), another region's, closed, another user's."""
    caplog.set_level(logging.INFO)
    offered, other = Offered(_view()), Offered(_view())
    offer = offered.offer
    assert list(read_offers({1: [offer]}, PartitionView)) == [1]
    assert _told(caplog) == []
    wrong = [
        _changed(offer, "mark", secret=other.offer.mark.secret),
        _changed(offer, "mark.region", pid=2**22 + 1),
        _changed(offer, "mark.region", pid=1, fd=0),
        _changed(offer, "mark.region", nbytes=31),
        _changed(offer, "description", fd=other.offer.description.fd),
        _changed(offer, "description", inode=other.offer.description.inode),
        _changed(offer, "description", nbytes=offer.description.nbytes - 1),
        _changed(offer, "description", nbytes=1 << 40),
        _changed(offer, description=offer.mark.region),
    ]
    for one in wrong:
        assert read_offers({1: [one]}, PartitionView) == {}, one
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345)
        assert read_offers({1: [offer]}, PartitionView) == {}
    assert len(_told(caplog)) == len(wrong) + 1
    offered.close()
    offered.close()
    assert read_offers({1: [offer]}, PartitionView) == {}
    del other
    gc.collect()
    assert not [link for link in _open_files() if "gigl_loader.offer" in link]


def _told(caplog) -> list[str]:
    """Return what the module under test logged; other threads may log meanwhile."""
    return [one.getMessage() for one in caplog.records if one.name == same_host.__name__]


def test_a_descriptor_that_was_used_again_is_noticed() -> None:
    first = segments.create_memfd(100)
    region = Region.of(first, 100)
    os.close(region.open())
    second = segments.create_memfd(100)
    os.dup2(second, first)
    with pytest.raises(OSError, match="other memory"):
        region.open()
    os.close(second)
    os.close(first)


def test_a_description_that_is_none() -> None:
    """Bytes that another process wrote are decoded into the expected type, or refused."""
    offered = Offered(_view())
    region = offered.offer.description
    data = bytearray(os.pread(region.fd, region.nbytes, 0))
    with pytest.raises(ProtocolError, match="Adjacency"):
        read_offer(offered.offer, Adjacency)
    for at in range(0, min(200, len(data))):
        os.pwrite(region.fd, bytes([data[at] ^ 0xFF]), at)
        with contextlib.suppress(ProtocolError, OSError):
            read_offer(offered.offer, PartitionView)
        os.pwrite(region.fd, data[at : at + 1], at)
    assert read_offer(offered.offer, PartitionView).num_partitions == 2
    offered.close()


def test_mapped_partitions_keep_no_descriptor() -> None:
    """There may be hundreds of tensors, and eight partitions on a machine."""
    gc.collect()
    offered = Offered(_view())
    before = _open_files()
    found = read_offers({1: [offered.offer]}, PartitionView)
    assert _open_files() == before
    assert found[1].num_partitions == 2
    offered.close()


def _open_files() -> list[str]:
    return sorted(name for name in open_files() if "gigl_loader" in name)


def test_nothing_stays_open_when_it_cannot_all_be_read() -> None:
    offered = Offered(_view())
    gc.collect()
    before = _open_files()
    for count in range(6):  # at the mark, at the description, and after each of four tensors
        with no_descriptors_but(count):
            assert read_offers({1: [offered.offer]}, PartitionView) == {}, count
        assert _open_files() == before, count
    assert read_offers({1: [offered.offer]}, PartitionView)
    offered.close()


def test_a_mark_is_seen_by_who_can_map_it() -> None:
    mark, other = OwnHostProof(), OwnHostProof()
    assert mark.mark.is_seen()
    assert not _changed(mark.mark, secret=other.mark.secret).is_seen()
    elsewhere = dataclasses.replace(mark.mark.region, pid=2**22 + 1)
    assert not dataclasses.replace(mark.mark, region=elsewhere).is_seen()
    mark.close()
    mark.close()
    assert not mark.mark.is_seen()
    other.close()


def test_mappings_are_used_again_and_the_longest_idle_go() -> None:
    name = "gigl_loader.lent"

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(name)

    fds = [segments.create_memfd(4096, name) for _ in range(4)]
    for number, fd in enumerate(fds):
        os.pwrite(fd, bytes([number]), 0)
    mappings = Mappings(most_idle=2)
    dropped: list[int] = []
    regions = [Region.of(fd, 4096) for fd in fds]
    leases = [mappings.lease(one, partial(dropped.append, i)) for i, one in enumerate(regions)]
    assert mapped() == 4
    addresses = [ctypes.addressof(lease) for lease in leases]
    view = np.frombuffer(leases[0], np.uint8)[5:]
    while leases:
        del leases[0]
    assert dropped == [1, 2, 3], "an array over the first one is still held"
    del view
    assert dropped == [1, 2, 3, 0]
    assert mapped() == 2
    again = mappings.lease(regions[3], lambda: None)
    assert ctypes.addressof(again) == addresses[3]
    assert bytes(again)[0] == 3
    mappings.close()
    mappings.close()
    assert mapped() == 1, "what is used stays"
    del again
    assert mapped() == 0
    segments.close_fds(fds)


def test_the_owner_may_lend_a_region_again_as_soon_as_it_is_told() -> None:
    """It is told when the mapping is idle, not before: else it would be mapped twice."""
    fd = segments.create_memfd(4096)
    mappings, again = Mappings(), []
    lent = [mappings.lease(Region.of(fd, 4096), lambda: again.append(lend()))]

    def lend() -> int:
        return ctypes.addressof(mappings.lease(Region.of(fd, 4096), lambda: None))

    address = ctypes.addressof(lent[0])
    lent.clear()
    assert again == [address]
    mappings.close()
    os.close(fd)
