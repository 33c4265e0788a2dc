"""Files of torch.save that others wrote: what they say is bounded by what they have."""

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import load_checkpoint, save_checkpoint
from gigl_loader.commands.saved_graph import read_saved_graph
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.errors import ConfigError
from tests.dataset.dataset_reference import RING, N, write

_ZEROS = torch.zeros(2**20)


def _compressed(value: Any) -> bytes:
    """Return the file of ``torch.save`` with its records compressed; torch reads it."""
    saved, file = io.BytesIO(), io.BytesIO()
    torch.save(value, saved)
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as to:
        for name in source.namelist():
            to.writestr(name, source.read(name))
    assert torch.equal(torch.load(io.BytesIO(file.getvalue()))["x"], value["x"])
    assert len(file.getvalue()) < 2**16
    return file.getvalue()


@pytest.mark.parametrize("read", [load_checkpoint, read_saved_graph])
def test_a_compressed_file_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    """It was 1 GiB of memory for 1 MB of the disk."""
    path = tmp_path / "file.pt"
    path.write_bytes(_compressed({"x": _ZEROS}))
    with pytest.raises(ConfigError, match=r"bytes and says 4,\d+,\d+: it is compressed"):
        read(path)


@pytest.mark.parametrize(
    "name", ["node_pb.pt", "part0/graph/rows.pt", f"part0/gigl_loader/node_labels/{N}.pt"]
)
def test_a_compressed_file_of_a_partition_is_refused(tmp_path: Path, name: str) -> None:
    write(RING, tmp_path, format="glt")
    (tmp_path / name).write_bytes(_compressed({"x": _ZEROS}))
    with pytest.raises(ConfigError, match=r"is damaged: .*it is compressed"):
        DistDataset.load(tmp_path, 0)


class _OfBytes:
    """A tensor as pickle writes it, by torch's function that reads a whole file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.storage._load_from_bytes, (_compressed({"x": _ZEROS}),)


def test_a_compressed_file_in_a_stream_of_tensors_is_refused(tmp_path: Path) -> None:
    write(RING, tmp_path, format="glt")
    (tmp_path / "part0/node_feat/feats.pkl").write_bytes(pickle.dumps(_OfBytes()))
    with pytest.raises(ConfigError, match=r"feats\.pkl is damaged: .*it is compressed"):
        DistDataset.load(tmp_path, 0)


def test_large_files_of_torch_are_read(tmp_path: Path) -> None:
    save_checkpoint({"x": _ZEROS, "empty": torch.empty(0), "again": _ZEROS}, tmp_path / "file.pt")
    state = load_checkpoint(tmp_path / "file.pt")
    assert state is not None
    assert torch.equal(state["x"], _ZEROS)


def test_a_refused_file_leaves_torch_as_it_is(tmp_path: Path) -> None:
    """Pickle's BUILD sets attributes of a function that is allowed: torch.load had none then."""
    write(RING, tmp_path, format="glt")
    change = pickle.dumps((None, {"__defaults__": (), "__kwdefaults__": None}))
    (tmp_path / "META").write_bytes(
        b"\x80\x02" + b"ctorch._utils\n_rebuild_tensor_v2\n" + change[2:-1] + b"b."
    )
    defaults = torch._utils._rebuild_tensor_v2.__defaults__
    try:
        with pytest.raises(ConfigError, match="META is damaged"):
            DistDataset.load(tmp_path, 0)
        assert torch._utils._rebuild_tensor_v2.__defaults__ == defaults
    finally:
        torch._utils._rebuild_tensor_v2.__defaults__ = defaults
