import mmap
from pathlib import Path

import pytest
import torch

from gigl_loader.batch.leases import BufferPool, own_messages
from gigl_loader.batch.message import Field

WIDTH = 1000


def _mapped_bytes() -> int:
    """Return the size of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def message(memory: BufferPool, value: int, rows: int) -> torch.Tensor:
    """Return the only tensor of a message whose numbers are all ``value``."""
    fill = lambda out: out.fill(value)  # noqa: E731
    found, nbytes = memory.write([Field("x", "float32", (rows, WIDTH), fill)])
    assert nbytes >= 4 * rows * WIDTH
    assert found["x"].shape == (rows, WIDTH)
    return found["x"]


@pytest.mark.parametrize("rows", [0, 1, 500])
def test_messages_that_are_kept_keep_their_values(rows: int) -> None:
    memory = own_messages()
    kept = [message(memory, value, rows) for value in range(5)]
    for value, tensor in enumerate(kept):
        assert torch.equal(tensor, torch.full((rows, WIDTH), float(value)))


def test_memory_of_a_large_message_is_used_again_once_its_last_tensor_is_gone() -> None:
    memory = own_messages()
    first = message(memory, 1, 500)
    address, part = first.data_ptr(), first[7:9]
    del first
    second = message(memory, 2, 500)
    assert second.data_ptr() != address  # a part of the first one is still held
    assert torch.equal(part, torch.ones(2, WIDTH))
    del part
    assert message(memory, 3, 480).data_ptr() == address
    assert torch.equal(second, torch.full((500, WIDTH), 2.0))


def test_few_blocks_are_kept() -> None:
    memory, rows = own_messages(), 5000
    block, before = 4 * rows * WIDTH, _mapped_bytes()
    many = [message(memory, value, rows) for value in range(9)]
    assert _mapped_bytes() - before >= 9 * block
    del many
    message(memory, 0, rows)
    assert _mapped_bytes() - before <= 3 * 1.3 * block
    message(memory, 0, 2 * rows)  # those that are too small are given up
    assert _mapped_bytes() - before <= 2 * 1.3 * block
