"""Rows by position, of every type and width: what Warp reads where it lies is what torch reads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.sampler.gpu.device_kernels import TorchKernels
from gigl_loader.sampler.gpu.warp_kernels import WarpKernels
from tests.support.draws import examples

CPU = torch.device("cpu")
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool)


@settings(max_examples=examples(60), deadline=None)
@given(
    dtype=st.sampled_from(TYPES),
    shape=st.sampled_from([(), (1,), (3,), (4,), (7,), (2, 5)]),
    count=st.integers(0, 9),
)
def test_rows_are_those_of_torch(dtype: torch.dtype, shape: tuple[int, ...], count: int) -> None:
    values = torch.randint(-100, 100, (11, *shape)).to(dtype)
    rows = torch.randint(11, (count,))
    found = WarpKernels(CPU).gather(values, rows)
    assert found.dtype == dtype
    assert torch.equal(found, values[rows])
    assert torch.equal(TorchKernels(CPU).gather(values, rows), found)


def test_words_are_read_at_multiples_of_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that reads others ends its process's work for good; the CPU reads them, too."""
    kernels, words = WarpKernels(CPU), []
    monkeypatch.setattr(
        kernels, "_launch", lambda program, shape, *inputs: words.append(inputs[-1])
    )
    numbers = torch.arange(26, dtype=torch.int32)
    for first, size in ((0, 8), (1, 4)):
        kernels.gather(numbers[first : first + 24].view(12, 2), torch.arange(3))
        assert words[-1].element_size() == size


@pytest.mark.parametrize("width", [1, 2])
def test_rows_beyond_a_page(width: int) -> None:
    """Warp's indices have 32 bits: large arrays are read page by page."""
    values = torch.arange((1 << 20) * 3 * width).reshape(-1, width)
    rows = torch.tensor([0, (1 << 20) - 1, 1 << 20, (1 << 20) * 3 - 1])
    assert torch.equal(WarpKernels(CPU).gather(values, rows), values[rows])
