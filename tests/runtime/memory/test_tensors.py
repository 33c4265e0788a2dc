"""Tensors in shared memory and mapped files: one copy at most, and nothing is left open."""

import gc
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.runtime.memory import segments, tensors
from gigl_loader.runtime.memory.tensors import as_array
from gigl_loader.runtime.system import Footprint
from gigl_loader.testing import open_files, wait_until
from tests.support.conditions import no_descriptors_but


def _descriptors() -> int:
    return sum("gigl_loader" in name for name in open_files())


@dataclass
class _Thing:
    name: str
    tensors: list[torch.Tensor]


def _round_trip(obj):
    data, fds = tensors.dumps(obj)
    try:
        return segments.loads(data, fds)
    finally:
        segments.close_fds(fds)


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=3), offset=st.integers(0, 3))
def test_tensors_over_a_buffer(sizes: list[int], offset: int) -> None:
    fd = segments.create_memfd(4096)
    address = segments.map_fd(fd, 4096)
    os.close(fd)
    buffer = segments.buffer_at(address, 4096)
    tensor = tensors.tensor_in(buffer, "int64", tuple(sizes), 8 * offset)
    assert tuple(tensor.shape) == tuple(sizes)
    tensor.fill_(3)
    flat = segments.array_in(buffer, "int64", (512,), 0)
    assert flat.nonzero()[0].tolist() == list(range(offset, offset + tensor.numel()))
    segments.unmap(address, 4096)


def test_tensors_keep_their_values_types_and_shapes() -> None:
    base = torch.arange(24)
    tensors = [
        base,
        base[3:9],
        base.view(4, 6)[:, 1:3],
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.ones(2, dtype=torch.bool),
        torch.rand(3).half(),
        torch.rand(2, 2, requires_grad=True),
        torch.rand(5).bfloat16(),
        torch.rand(2, 3).to(torch.float8_e5m2),
    ]
    found = _round_trip(_Thing("x", tensors))
    assert found.name == "x"
    for tensor, other in zip(tensors, found.tensors, strict=True):
        array = as_array(tensor)
        assert (array.dtype, array.shape) == (other.dtype, other.shape)
        assert np.array_equal(array, other)


def test_the_other_side_sees_the_same_memory() -> None:
    tensor = tensors.share_tensor(torch.zeros(5))
    assert tensors.share_tensor(tensor) is tensor
    found = _round_trip({"a": tensor, "b": tensor[2:]})
    tensor[3] = 7.0
    assert found["a"][3] == found["b"][1] == 7.0


def test_descriptors_are_given_back() -> None:
    gc.collect()
    before = _descriptors()
    for _ in range(50):
        tensor = tensors.share_tensor(torch.arange(100))
        found = _round_trip([tensor, tensor[1:]])
        assert found[1][0] == 1
        del tensor, found
    wait_until(lambda: _descriptors() <= before, "all descriptors are closed")


def test_descriptors_are_given_back_where_no_more_may_be_opened() -> None:
    tensors_to_send = [tensors.share_tensor(torch.arange(count)) for count in (3, 4)]
    before = open_files()
    with no_descriptors_but(1), pytest.raises(OSError, match="Too many open files"):
        tensors.dumps(tensors_to_send)
    assert open_files() == before
    with no_descriptors_but(2):
        segments.close_fds(tensors.dumps(tensors_to_send)[1])


def test_nothing_gets_a_name() -> None:
    def names() -> set[str]:
        return {one for one in Footprint.below(itself=True).leftovers() if "/dev/shm" in one}

    before = names()
    tensor = tensors.share_tensor(torch.zeros(1000))
    assert names() <= before
    assert tensor.is_shared()


def test_bits_of_any_tensor_as_an_array() -> None:
    half = torch.tensor([1.5, -2.0]).bfloat16()
    assert as_array(half).tolist() == [0x3FC0, 0xC000]
    assert as_array(half).ctypes.data == half.data_ptr(), "not a copy"
    lazy = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert as_array(lazy).tolist() == [1 - 2j, 3 + 1j]
    assert as_array(lazy.imag).tolist() == [-2.0, 1.0]
    assert as_array(torch.arange(6.0, requires_grad=True)[::2]).tolist() == [0.0, 2.0, 4.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16, torch.float8_e5m2])
def test_names_of_types_are_undone(dtype: torch.dtype) -> None:
    assert tensors.dtype_named(tensors.dtype_name(dtype)) is dtype


@pytest.mark.parametrize("shape", [(), (1,), (3, 2), (0, 2)])
def test_bytes_of_a_tensor_are_a_view(shape: tuple[int, ...]) -> None:
    tensor = torch.full(shape, 258, dtype=torch.int16)
    found = tensors.bytes_of(tensor)
    assert bytes(found) == b"\x02\x01" * tensor.numel()
    tensor.fill_(0)
    assert not any(bytes(found))
    assert bytes(tensors.bytes_of(torch.arange(10)[7:8])) == (7).to_bytes(8, "little")


def test_a_mapped_file_is_handed_on_by_its_descriptor(tmp_path: Path) -> None:
    path, values = tmp_path / "x.bin", np.arange(20, dtype=np.int32)
    path.write_bytes(values.tobytes())
    gc.collect()
    before, known = open_files(), set(tensors._mapped_files)  # other tests keep theirs
    mapped = tensors.map_file(path, "int32", (5, 4))
    assert mapped.tolist() == values.reshape(5, 4).tolist()
    assert tensors.is_mapped_file(mapped[2:])
    assert tensors.share_tensor(mapped) is mapped, "not copied to memory"
    found = _round_trip([mapped, mapped[3:], mapped[:, 1:2]])
    assert found[1].tolist() == values.reshape(5, 4)[3:].tolist()
    assert found[2].ravel().tolist() == [1, 5, 9, 13, 17]
    mapped[0, 0] = 77  # copied to this process's own memory, as it is written to
    assert (found[0][0, 0], np.fromfile(path, np.int32)[0]) == (0, 0)
    del mapped, found
    gc.collect()
    assert open_files() == before
    assert set(tensors._mapped_files) <= known


def test_an_empty_file_is_an_empty_tensor(tmp_path: Path) -> None:
    (tmp_path / "x.bin").touch()
    found = tensors.map_file(tmp_path / "x.bin", "float32", (0, 4))
    assert (found.shape, found.dtype) == ((0, 4), torch.float32)


def test_tensors_of_one_storage_share_a_descriptor() -> None:
    base = tensors.share_tensor(torch.arange(10))
    shared = tensors.SharedTensors()
    parts = [shared.part_of(one) for one in (base, base[4:], base[::2], torch.empty(0))]
    assert [part.index for part in parts] == [0, 0, 1, None]
    assert [part.offset for part in parts] == [0, 32, 0, 0]
    assert len(shared.fds) == 2
    with pytest.raises(TypeError, match="a list cannot be shared"):
        shared.part_of([1])


def test_empty_shared_memory_takes_the_shape_and_type_asked_for() -> None:
    for shape in ((), (3,), (2, 3), (0, 5)):
        found = tensors.empty_shared(shape, torch.float16)
        assert (tuple(found.shape), found.dtype, found.is_contiguous()) == (
            shape,
            torch.float16,
            True,
        )
        assert found.is_shared() == (found.numel() > 0)
