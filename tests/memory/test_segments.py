"""Shared memory without names: nothing is leaked, nothing is copied twice."""

import gc
import os
import pickle
import resource
import signal
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.memory import segments, tensors
from gigl_loader.memory.segments import SharedMemoryError
from gigl_loader.memory.tensors import as_array
from gigl_loader.testing import open_files, wait_until
from gigl_loader.testing._footprint import _shared_memory_of


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


def test_tensors_keep_their_values_types_and_shapes() -> None:
    base = torch.arange(24)
    tensors = [
        base, base[3:9], base.view(4, 6)[:, 1:3], torch.tensor(2.5), torch.empty(0, 3),
        torch.ones(2, dtype=torch.bool), torch.rand(3).half(), torch.rand(2, 2, requires_grad=True),
        torch.rand(5).bfloat16(), torch.rand(2, 3).to(torch.float8_e5m2),
    ]  # fmt: skip
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


def test_descriptors_are_given_back_where_no_more_may_be_opened(monkeypatch) -> None:
    tensors_to_send = [torch.arange(3), torch.arange(4)]
    segments.close_fds(tensors.dumps(tensors_to_send)[1])  # both are shared now, and stay so
    before, dup, copied = open_files(), os.dup, []

    def dup_once(fd: int) -> int:
        if copied:
            raise OSError(24, "Too many open files")
        copied.append(dup(fd))
        return copied[0]

    monkeypatch.setattr(os, "dup", dup_once)
    with pytest.raises(OSError, match="Too many open files"):
        tensors.dumps(tensors_to_send)
    assert len(copied) == 1
    assert open_files() == before


def test_nothing_gets_a_name() -> None:
    own = {os.getpid(): ""}
    before = set(_shared_memory_of(own))
    tensor = tensors.share_tensor(torch.zeros(1000))
    assert set(_shared_memory_of(own)) <= before
    assert tensor.is_shared()


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


def test_errors_say_how_much_and_what_to_do() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(SharedMemoryError, match=r"reserve 2 MiB of shared memory.*batch_size"):
            segments.create_memfd(2**21)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(SharedMemoryError):
        segments.map_fd(-1, 4096)
    error = SharedMemoryError(2**20, "no space")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
