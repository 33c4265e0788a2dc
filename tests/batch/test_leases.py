"""`LeaseTable`: when a slot may be written again, given up, lent or never touched any more."""

import gc
import os
from dataclasses import replace

import pytest
import torch

from gigl_loader.batch.leases import (
    Lease,
    LeaseTable,
    Packed,
    ServerMemory,
    field_of,
    payload_bytes,
)
from gigl_loader.batch.slots import SlotWriter
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.memory.same_host import Mappings
from gigl_loader.runtime.memory.tensors import tensors_in
from gigl_loader.testing import open_files


class _Registered:
    """Registrations that hold, by address."""

    def __init__(self) -> None:
        self.now: dict[int, int] = {}

    def __call__(self, address: int, nbytes: int) -> "_Registration":
        assert address not in self.now
        self.now[address] = nbytes
        return _Registration(self, address)


class _Registration:
    def __init__(self, all_of_them: _Registered, address: int) -> None:
        self._all, self._address = all_of_them, address

    def release(self) -> None:
        with open("/proc/self/maps") as maps:
            assert f"{self._address:x}-" in maps.read(), "it is still mapped"
        del self._all.now[self._address]


def _take(table: LeaseTable, writer: SlotWriter, size: int, sender: int = 0) -> Lease:
    written = writer.write([field_of("x", torch.full((size,), float(size)))])
    try:
        return table.take(sender, written)
    finally:
        if written.fd is not None:
            os.close(written.fd)


def test_a_worker_keeps_a_few_free_slots_beyond_its_concurrency() -> None:
    registered = _Registered()
    table, writer = LeaseTable(registered), SlotWriter()
    leases = [_take(table, writer, 9) for _ in range(8)]
    assert table.returned(0, 1) == ([], [])
    while leases:
        del leases[0]
    free, retired = table.returned(0, 1)
    assert (free, retired) == ([5, 6, 7], [0, 1, 2, 3, 4])
    assert len(registered.now) == 3
    assert table.returned(0, 1) == ([], []), "each is said once"
    writer.give_back(free, retired)
    assert _take(table, writer, 9).layout[0][:3] == ("x", "float32", (9,))
    table.close()
    assert registered.now == {}


def test_slots_that_the_worker_gave_up_are_released_with_its_next_message() -> None:
    registered = _Registered()
    table, writer = LeaseTable(registered), SlotWriter()
    small = [_take(table, writer, 9) for _ in range(2)]
    small.clear()
    writer.give_back(*table.returned(0, 2))
    assert len(registered.now) == 2
    assert table.largest == 65536
    large = _take(table, writer, 10**5)
    assert list(registered.now.values()) == [table.largest]
    assert table.largest > 4 * 10**5
    assert len(large.payload) == payload_bytes(large.layout) == 4 * 10**5 < table.largest
    table.close()
    table.close()
    assert large.tensors()["x"][-1] == 10**5, "what is leased stays"
    del large
    assert registered.now == {}
    assert table.returned(0, 2) == ([], [])


def test_a_worker_that_is_gone_takes_its_slots_and_another_takes_its_number() -> None:
    registered = _Registered()
    table, writer, other = LeaseTable(registered), SlotWriter(), SlotWriter()
    held, dropped = _take(table, writer, 5), _take(table, writer, 5)
    del dropped
    table.forget(0)
    table.forget(0)
    assert len(registered.now) == 1
    new = _take(table, other, 7)
    assert [float(one.tensors()["x"][0]) for one in (held, new)] == [5.0, 7.0], "both are of slot 0"
    del held
    assert table.returned(0, 1) == ([], []), "it was another worker's"
    assert len(registered.now) == 1, "that of the new one"
    del new
    assert table.returned(0, 1) == ([0], [])
    table.close()


def test_leased_bytes_are_those_that_wait_here() -> None:
    gc.collect()
    before = open_files()
    table, writer = LeaseTable(lends=True), SlotWriter()
    leases = [_take(table, writer, 9) for _ in range(3)]
    assert table.leased_bytes == 3 * 65536
    region = leases[0].lend()
    assert table.leased_bytes == 2 * 65536
    fd = region.open()
    assert os.pread(fd, 4, 0) == torch.tensor(9.0).numpy().tobytes()
    os.close(fd)
    assert leases[0].lend() == region, "who has mapped it knows it again"
    leases.clear()
    assert table.leased_bytes == 0
    table.close()
    assert open_files() == before


def test_a_slot_that_was_lent_is_one_like_others_when_it_is_written_again() -> None:
    """Its next message waits here until that is lent, too; and is nobody's who had it before."""
    table, writer = LeaseTable(lends=True), SlotWriter()
    for _ in range(3):
        lease = _take(table, writer, 9)
        assert table.leased_bytes == 65536, "it waits in this process"
        lease.lend()
        assert table.leased_bytes == 0
        del lease
        assert table.leased_bytes == 0
        assert table.returned(0, 2) == ([0], [])
        writer.give_back([0], [])
    table.close()


def test_only_a_table_that_lends_keeps_descriptors() -> None:
    gc.collect()
    before = sum("gigl_loader.slot" in name for name in open_files())
    table, writer = LeaseTable(), SlotWriter()
    lease = _take(table, writer, 9)
    assert sum("gigl_loader.slot" in name for name in open_files()) == before
    with pytest.raises(AssertionError, match="keeps descriptors"):
        lease.lend()
    table.close()


def test_a_slot_that_cannot_be_mapped_leaves_nothing() -> None:
    gc.collect()
    before = open_files()
    table, writer = LeaseTable(lends=True), SlotWriter()
    written = writer.write([field_of("x", torch.ones(3))])
    assert written.fd is not None
    larger_than_memory = replace(written, nbytes=2**60)
    with pytest.raises(segments.SharedMemoryError, match="Cannot allocate memory"):
        table.take(0, larger_than_memory)
    os.close(written.fd)
    assert open_files() == before
    assert table.returned(0, 1) == ([], [])


def test_a_packed_message_is_its_bytes() -> None:
    memory, writer = ServerMemory(4), SlotWriter()
    packed = _write(writer, memory, 3.0)
    assert isinstance(packed, Packed)
    assert dict(packed) == {}
    assert bytes(packed.lease.payload) == torch.full((1000,), 3.0).numpy().tobytes()
    assert torch.equal(packed.lease.tensors()["x"], torch.full((1000,), 3.0))
    payload = packed.lease.payload
    del packed
    assert memory.returned(0, 4) == ([], []), "its bytes keep the slot"
    del payload
    assert memory.returned(0, 4) == ([0], [])
    memory.close()


def test_bytes_of_a_layout_reach_to_its_last_byte() -> None:
    layout = [("a", "int64", (3,), 0), ("b", "uint8", (5,), 64), ("c", "float32", (0, 4), 128)]
    assert payload_bytes(layout) == 128
    assert payload_bytes(layout[:2]) == 69
    assert payload_bytes([]) == 0


def _write(writer: SlotWriter, memory: ServerMemory, value: float):
    written = writer.write([field_of("x", torch.full((1000,), value))])
    packed = memory.open(0, written)
    if written.fd is not None:
        os.close(written.fd)
    return packed


def test_a_slot_is_written_again_when_it_was_given_back_and_never_when_it_was_lost() -> None:
    writer, memory, mappings = SlotWriter(), ServerMemory(4), Mappings(most_idle=0)
    packed, dropped = _write(writer, memory, 1.0), []
    assert memory.leased_bytes > 0
    position = packed.lease.lend()
    assert memory.leased_bytes == 0, "what a client reads is not queued any more"
    read = tensors_in(mappings.lease(position, lambda: dropped.append(1)), packed.lease.layout)["x"]
    part = read[10:20]
    del read
    assert memory.returned(0, 4) == ([], [])
    assert not dropped, "a view of the tensor keeps the memory"
    del part
    assert dropped == [1]
    del packed  # as the server does when it is told
    assert memory.returned(0, 4) == ([0], [])
    writer.give_back([0], [])
    packed = _write(writer, memory, 2.0)
    kept = tensors_in(mappings.lease(packed.lease.lend(), lambda: None), packed.lease.layout)["x"]
    packed.lease.poison()  # the client left, and still reads
    del packed
    assert memory.returned(0, 4) == ([], [0]), "given up, not written again"
    writer.give_back([], [0])
    for value in range(3, 9):
        del_me = _write(writer, memory, float(value))
        assert float(tensors_in(del_me.lease.payload, del_me.lease.layout)["x"][0]) == value
        del del_me
    assert torch.equal(kept, torch.full((1000,), 2.0))
    memory.close()
    assert torch.equal(kept, torch.full((1000,), 2.0))


@pytest.mark.parametrize("call", ["forget", "close", "returned", "leased_bytes", "take"])
@pytest.mark.parametrize("objects", range(1, 12))
def test_a_lease_that_the_collector_ends_within_a_call(call: str, objects: int) -> None:
    """The collector runs wherever an object is made, and tensors may be in a cycle."""
    registered = _Registered()
    table, writer = LeaseTable(registered), SlotWriter()
    kept = [_take(table, writer, 9) for _ in range(3)]
    written = writer.write([field_of("x", torch.zeros(9))])
    calls = {
        "forget": lambda: table.forget(0),
        "close": table.close,
        "returned": lambda: table.returned(0, 1),
        "leased_bytes": lambda: table.leased_bytes,
        "take": lambda: kept.append(table.take(0, written)),
    }
    thresholds, called = gc.get_threshold(), calls[call]
    gc.disable()
    gc.collect()  # what is there is old from now on, and the cycle is young
    cycle: list[object] = [kept.pop(), kept.pop()]
    cycle.append(cycle)
    del cycle
    gc.set_threshold(objects)  # so many are made before the collector runs
    try:
        gc.enable()
        called()
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    if written.fd is not None:
        os.close(written.fd)
    kept.clear()
    table.close()
    assert registered.now == {}, "none is left"
