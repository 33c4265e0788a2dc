"""`.ci/pack_gpu.py`: what of a library is set to zero, and that the rest still compiles."""

import importlib.util
import os
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[1] / ".ci" / "pack_gpu.py"


@pytest.fixture(scope="module")
def pack_gpu() -> Any:
    spec = importlib.util.spec_from_file_location("pack_gpu", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _code(kind: int, arch: int, body: bytes) -> bytes:
    """Return a piece of device code: a head of 64 bytes, which says its kind and GPU."""
    head = struct.pack("<HHIQ", kind, 0, 64, len(body)) + bytes(12) + struct.pack("<I", arch)
    return head.ljust(64, b"\x01") + body


def _library(sections: dict[bytes, bytes]) -> bytes:
    """Return a shared library of 64 bits, as far as a reader of its sections looks."""
    names = b"\0" + b"\0".join([*sections, b".shstrtab"]) + b"\0"
    data, heads = bytearray(64), []
    for name, body in {**sections, b".shstrtab": names}.items():
        heads.append((names.index(name), len(data), len(body)))
        data += body
    struct.pack_into("<Q", data, 0x28, len(data))
    struct.pack_into("<HHH", data, 0x3A, 64, len(heads), len(heads) - 1)
    for name_at, offset, size in heads:
        data += struct.pack("<IIQQQQ", name_at, 1, 0, 0, offset, size).ljust(64, b"\0")
    return bytes(data)


PIECES = [
    (2, 80, b"\xa1" * 96),
    (2, 90, b"\xa2" * 80),
    (1, 90, b"\xa3" * 72),
    (2, 100, b"\xa4" * 64),
]


def _with_code(table: bytes = b"") -> bytes:
    inside = b"".join(_code(*piece) for piece in PIECES)
    fat = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(inside)) + inside
    return _library({b".data": table, b".nv_fatbin": bytes(8) + fat + fat})


def test_machine_code_of_one_gpu_stays(pack_gpu: Any) -> None:
    before = _with_code()
    data = bytearray(before)
    assert pack_gpu.zero_device_code(data) == 2 * (96 + 72 + 64)
    assert len(data) == len(before)
    assert data.count(b"\xa2" * 80) == 2
    assert not any(data.count(byte) for byte in (b"\xa1", b"\xa3", b"\xa4"))
    kept = before.replace(b"\xa1", b"\0").replace(b"\xa3", b"\0").replace(b"\xa4", b"\0")
    assert bytes(data) == kept, "heads, and all else"


def test_tables_that_nothing_packs_are_zero(pack_gpu: Any) -> None:
    noise, few, text = os.urandom(1 << 20), os.urandom(1 << 19), b"plain text " * (1 << 14)
    data = bytearray(_with_code(text[: 1 << 16] + noise + text[: 1 << 16] + few))
    assert pack_gpu.zero_tables(data) == 1 << 20
    assert noise[:4096] not in data
    assert few in data
    assert data.count(text[: 1 << 16]) == 2


@pytest.mark.parametrize(
    ("first", "then", "is_refused"), [("a", "a", False), ("a", "b", True), ("", "", True)]
)
def test_what_compiles_to_other_bytes_is_refused(
    pack_gpu: Any,
    first: str,
    then: str,
    is_refused: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library, noise = tmp_path / "warp/bin/warp.so", os.urandom(2 << 20)
    library.parent.mkdir(parents=True)
    library.write_bytes(_with_code(noise + b"end"))

    def compiled(site: Path) -> dict[str, str]:
        digest = first if noise in (site / "warp/bin/warp.so").read_bytes() else then
        return {".cubin": digest} if digest else {}

    monkeypatch.setattr(pack_gpu, "compiled", compiled)
    if is_refused:
        with pytest.raises(SystemExit, match="does not compile our programs to the same bytes"):
            pack_gpu.shrink(tmp_path)
    else:
        assert pack_gpu.shrink(tmp_path) == 2 * (96 + 72 + 64) + (2 << 20)


def _bring(site: Path, version: str) -> None:
    for name in ("a", "b"):
        file = site / f"brought/{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{name}.py" * 750)


def test_a_pack_has_all_that_was_brought_or_is_too_large(
    pack_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_gpu, "bring", _bring)
    monkeypatch.setattr(pack_gpu, "shrink", lambda site: 0)
    monkeypatch.setattr(pack_gpu, "PACK", tmp_path / "pack")
    monkeypatch.setattr(pack_gpu, "MOST_BYTES", 10)
    with pytest.raises(SystemExit, match="too large"):
        pack_gpu.pack("3.12")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(pack_gpu, "MOST_BYTES", 1 << 20)
    pack_gpu.pack("3.12")
    with tarfile.open(tmp_path / "pack" / "python3.12.tar.xz") as tar:
        tar.extractall(tmp_path / "there", filter="data")
    assert (tmp_path / "there" / "brought" / "b.py").read_text() == "b.py" * 750
