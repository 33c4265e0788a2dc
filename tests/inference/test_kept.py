"""Tensors that are fetched once and kept, in memory or in a file without a name."""

import errno
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gigl_loader.errors import ProtocolError
from gigl_loader.inference.graph_sources import KeptTensors

PARTS: list[list[Tensor | None]] = [
    [torch.arange(7), None, torch.rand(3, 2), torch.rand(4, 3).bfloat16().t()],
    [torch.empty(0, dtype=torch.int64), torch.empty(0, 5), None, torch.tensor([True, False])],
]


def _same(found: list[Tensor | None], wanted: list[Tensor | None]) -> None:
    for one, other in zip(found, wanted, strict=True):
        if one is None or other is None:
            assert one is other
        else:
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_was_fetched_comes_again(on_disk: bool, tmp_path: Path) -> None:
    kept = KeptTensors(tmp_path if on_disk else None)
    for _ in range(2):
        for key, parts in enumerate(PARTS):
            _same(kept.get(key, lambda parts=parts: parts), parts)  # type: ignore[misc]  # a default binds the loop's
    _same(kept.get(0, lambda: pytest.fail("fetched again")), PARTS[0])
    assert not list(tmp_path.iterdir()), "the file has no name"
    kept.close()


def test_a_full_disk_keeps_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = KeptTensors(tmp_path)
    _same(kept.get("first", lambda: PARTS[0]), PARTS[0])

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        _same(kept.get("second", lambda: PARTS[1][:1] + PARTS[0]), PARTS[1][:1] + PARTS[0])
    assert "No space left" in caplog.text
    fetched = []
    _same(kept.get("second", lambda: fetched.append(1) or PARTS[1]), PARTS[1])  # type: ignore[func-returns-value]  # None, then the value
    assert fetched, "it was not kept"
    _same(kept.get("first", lambda: pytest.fail("fetched again")), PARTS[0])
    kept.close()


def test_a_file_that_was_cut_is_an_error(tmp_path: Path) -> None:
    kept = KeptTensors(tmp_path)
    kept.get("key", lambda: PARTS[0])
    assert kept._file is not None
    os.truncate(kept._file.fileno(), 10)
    with pytest.raises(ProtocolError, match=r"kept edges end at byte 10, 46 bytes too early"):
        kept.get("key", lambda: PARTS[0])
    kept.close()
