"""Shared memory without names: nothing is leaked, nothing is copied twice."""

import errno
import os
import pickle
from pathlib import Path

import pytest
import torch

from gigl_loader import ResourceError
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.memory.segments import SharedMemoryError
from gigl_loader.runtime.memory.tensors import share_tensor
from gigl_loader.testing import open_files
from tests.support.conditions import files_up_to, no_descriptors_but
from tests.support.scripts import run_python


def test_errors_say_how_much_and_what_to_do() -> None:
    with (
        files_up_to(2**20),
        pytest.raises(SharedMemoryError, match=r"reserve 2 MiB of shared memory.*batch_size"),
    ):
        segments.create_memfd(2**21)
    with pytest.raises(SharedMemoryError):
        segments.map_fd(-1, 4096)
    error = SharedMemoryError(2**20, "no space")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


REFUSED = """
import ctypes, os, platform, struct, sys
import torch
from torch_geometric.data import Data
from gigl_loader import DistDataset, GiglLoaderError
from gigl_loader.commands.diagnose import main
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.transport import certs

edges = torch.zeros((2, 1), dtype=torch.int64)
number = {"x86_64": 319, "aarch64": 279}[platform.machine()]
# a filter of system calls: load the number; if it is memfd_create, fail by EPERM; else go on
lines = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
    print("this machine filters no calls")
    sys.exit()


def tried(make):
    try:
        make()
    except GiglLoaderError as error:
        print(type(error).__name__, error)


tried(lambda: segments.create_memfd(4096))
tried(lambda: DistDataset.from_pyg(Data(x=torch.zeros(1, 1), edge_index=edges)))
tried(lambda: certs.in_memory(b"pem").__enter__())
main(["--seconds", "0"])
"""


@pytest.mark.multiprocess
def test_a_sandbox_that_refuses_memfd_is_named() -> None:
    done = run_python("-c", REFUSED)
    if "filters no calls" in done.stdout:
        pytest.skip(done.stdout)
    first, *others = [line for line in done.stdout.splitlines() if "memfd_create" in line]
    assert first.startswith("ResourceError "), done.stderr
    assert "Operation not permitted" in first
    assert "seccomp" in first
    assert "batch_size" not in first
    assert [line for line in others if line.startswith("ResourceError")] == [first, first]
    assert [line for line in others if line.startswith("!! shared memory ")], done.stdout


def test_a_python_without_memfd_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    for make in (lambda: segments.create_memfd(8), lambda: share_tensor(torch.zeros(3))):
        with pytest.raises(ResourceError, match=r"memfd_create.*this Python has none"):
            make()


def test_a_process_out_of_descriptors_is_not_a_sandbox() -> None:
    with no_descriptors_but(0), pytest.raises(OSError, match="Too many open files") as raised:
        segments.create_memfd(8)
    assert raised.value.errno == errno.EMFILE


def test_memory_of_another_descriptor_is_peeked_at_under_its_name_only() -> None:
    pid = os.getpid()
    fd = segments.create_memfd(10, "gigl_loader.note")
    os.pwrite(fd, b"0123456789", 0)
    read, write = os.pipe()
    assert segments.peek(pid, fd, 4, "gigl_loader.note") == b"0123"
    assert segments.peek(pid, fd, 4, "gigl_loader") is None
    for process, wrong in ((pid, read), (pid, 2**20), (2**22 + 1, fd)):
        assert segments.peek(process, wrong, 4, "gigl_loader.note") is None, (process, wrong)
    segments.close_fds([fd, read, write])


def test_a_descriptor_of_another_user_is_closed_again() -> None:
    fd = segments.create_memfd(10)
    os.fchown(fd, 12345, -1)
    before = open_files()
    with pytest.raises(PermissionError, match=f"descriptor {fd} of process {os.getpid()}"):
        segments.open_fd_of(os.getpid(), fd)
    assert open_files() == before
    os.close(fd)


def test_a_file_that_may_be_read_only_is_opened_for_reading(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    fd = os.open(tmp_path / "x", os.O_RDONLY)
    (tmp_path / "x").chmod(0o400)  # root may write to it all the same
    own = segments.open_fd_of(os.getpid(), fd)
    assert os.pread(own, 3, 0) == b"abc"
    segments.close_fds([fd, own])


def test_files_that_are_mapped_are_known_by_any_address_in_them(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(100)))
    fd = os.open(path, os.O_RDONLY)
    address = segments.map_fd(fd, 100, populate=False, file=True)
    os.close(fd)
    found = segments.mapped_file_at(address + 99)
    assert found is not None
    assert found in segments.mapped_files()
    assert (found.address, found.nbytes, found.tells_residency) == (address, 100, True)
    assert segments.mapped_file_at(address + 100) is None
    array = segments.array_in(segments.buffer_at(address, 100), "uint8", (50,), 50)
    assert array.tolist() == list(range(50, 100))
    array[:] = 0
    assert path.read_bytes() == bytes(range(100)), "what is written stays in this process"
    segments.unmap(address, 100)
    assert segments.mapped_file_at(address) is None


def test_a_part_that_is_larger_than_its_memory_is_refused() -> None:
    fd = segments.create_memfd(8)
    mapper = segments.PartMapper([fd])
    with pytest.raises(SharedMemoryError, match="has fewer bytes"):
        mapper.array(segments.SharedPart(0, 4097, "int64", (1,), 0))
    first = mapper.array(segments.SharedPart(0, 8, "int64", (1,), 0))
    second = mapper.array(segments.SharedPart(0, 8, "int32", (1,), 4))
    os.close(fd)
    first[0] = 5 << 32
    assert second[0] == 5, "both are over one mapping"
    assert mapper.array(segments.SharedPart(None, 0, "bool", (0, 3), 0)).shape == (0, 3)


@pytest.mark.parametrize(("nbytes", "aligned"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_sizes_are_rounded_up_to_cache_lines(nbytes: int, aligned: int) -> None:
    assert segments.align(nbytes) == aligned


def test_types_that_numpy_does_not_know_are_held_by_their_bits() -> None:
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "complex32", "float16", "bool"):
        size = getattr(torch, name).itemsize
        assert segments.storage_dtype(name).itemsize == size
        assert segments.nbytes_of(name, (3, 2)) == 6 * size
    assert segments.nbytes_of("float32", ()) == 4
    assert segments.nbytes_of("float32", (5, 0)) == 0
