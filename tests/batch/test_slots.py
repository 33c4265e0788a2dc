"""`SlotWriter`: which slot a message is written to, and what the trainer is told of the others."""

import gc
import os
import resource
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.batch.leases import field_of
from gigl_loader.batch.message import Field
from gigl_loader.batch.slots import SlotWriter, Written, layout_of, write_fields
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.memory.segments import SharedMemoryError
from gigl_loader.testing import open_files
from tests.support.conditions import files_up_to, limited


def _num_of_ours() -> int:
    """Return how many descriptors this process has of memory of this package."""
    return sum("gigl_loader" in name for name in open_files())


def _write(writer: SlotWriter, nbytes: int) -> Written:
    written = writer.write([field_of("a", torch.zeros(nbytes, dtype=torch.uint8))])
    if written.fd is not None:
        os.close(written.fd)
    return written


_DTYPES = st.sampled_from(["int64", "float32", "bool", "bfloat16"])
_SHAPES = st.lists(st.integers(0, 7), max_size=3)


@given(st.lists(st.tuples(_DTYPES, _SHAPES), max_size=8))
def test_tensors_of_a_message_lie_apart_and_in_order(drawn: list[tuple[str, list[int]]]) -> None:

    def fill(value: int, out: np.ndarray) -> None:
        out.reshape(-1).view(np.uint8).fill(value)

    fields = [
        Field(f"f{i}", dtype, tuple(shape), partial(fill, i + 1))
        for i, (dtype, shape) in enumerate(drawn)
    ]
    layout, nbytes = layout_of(fields)
    assert [(one.key, one.dtype, one.shape) for one in fields] == [part[:3] for part in layout]
    assert all(offset % segments.ALIGNMENT == 0 for *_, offset in layout)
    buffer = bytearray(nbytes)
    write_fields(fields, layout, buffer)
    counts = np.bincount(np.frombuffer(buffer, np.uint8), minlength=len(fields) + 1)[1:]
    assert counts.tolist() == [segments.nbytes_of(one.dtype, one.shape) for one in fields]


def test_the_smallest_slot_that_fits_is_taken() -> None:
    writer = SlotWriter()
    sizes = [10**6, 10**5, 3 * 10**5]
    slots = [_write(writer, size).slot for size in sizes]
    writer.give_back(slots, [])
    assert [_write(writer, size).slot for size in (2 * 10**5, 10**5, 10**5)] == [2, 1, 0]


def test_slots_that_are_too_small_are_given_up_and_the_trainer_is_told_once() -> None:
    writer = SlotWriter()
    slots = [_write(writer, 10).slot for _ in range(3)]
    writer.give_back(slots[:2], slots[2:])  # the last one is the trainer's own wish
    larger = _write(writer, 10**6)
    assert larger.slot == 3, "a number is given once"
    assert larger.fd is not None
    assert larger.retired == (0, 1)
    assert _write(writer, 10**6).retired == ()


def test_the_trainer_is_told_of_slots_that_were_given_up_for_a_message_that_failed() -> None:
    """Else it would keep their memory mapped until the worker ends."""

    def fail(*given: object) -> None:
        raise OSError(28, "No space left on device")

    writer = SlotWriter()
    writer.give_back([_write(writer, 10).slot, _write(writer, 10).slot], [])
    with files_up_to(10**5), pytest.raises(SharedMemoryError):
        _write(writer, 10**6)
    assert _write(writer, 10).retired == (0, 1)
    writer.give_back([2], [])
    with pytest.raises(OSError, match="No space"):
        writer.write([Field("a", "uint8", (10**6,), fail)])
    assert _write(writer, 10).retired == (2,)


def test_a_message_without_bytes_has_a_slot() -> None:
    writer = SlotWriter()
    written = writer.write([])
    assert (written.slot, written.layout) == (0, [])
    assert written.fd is not None
    os.close(written.fd)
    writer.give_back([0], [])
    again = writer.write([field_of("a", torch.empty(0, 3))])
    assert (again.slot, again.fd) == (0, None)


def test_a_failed_write_gives_its_slot_back() -> None:
    writer = SlotWriter()

    def fail(out: object) -> None:
        raise ArithmeticError("no rows")

    for _ in range(2):
        with pytest.raises(ArithmeticError):
            writer.write([Field("a", "float32", (9,), fail)])
    assert not writer._leased
    assert not writer._free, "the trainer has never heard of these: they are gone"
    kept = _write(writer, 10)
    writer.give_back([kept.slot], [])
    with pytest.raises(ArithmeticError):
        writer.write([Field("a", "float32", (9,), fail)])
    again = _write(writer, 10)
    assert (again.slot, again.fd) == (kept.slot, None), "one that it knows is free again"


def test_no_memory_left() -> None:
    gc.collect()
    before = _num_of_ours()
    writer = SlotWriter()
    with (
        files_up_to(2**20),
        pytest.raises(SharedMemoryError, match=r"could not reserve .* MiB.*lower batch_size"),
    ):
        writer.write([Field.of("a", torch.zeros(5_000_000))])
    assert _num_of_ours() == before
    assert writer.write([Field.of("a", torch.zeros(5))]).slot == 0


def test_a_slot_that_cannot_be_mapped_leaves_no_descriptor() -> None:
    """There is memory for the file, and no room in the address space for its mapping."""
    writer, nbytes, before = SlotWriter(), 1 << 28, _num_of_ours()
    field = Field("a", "uint8", (nbytes,), lambda out: None)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    with limited(resource.RLIMIT_AS, pages * resource.getpagesize() + nbytes // 2):
        with pytest.raises((SharedMemoryError, OSError)):
            writer.write([field])
        assert _num_of_ours() == before
    written = writer.write([field])
    assert written.fd is not None
    os.close(written.fd)
