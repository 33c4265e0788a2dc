"""A digest of a partition directory, by what is promised of its bytes."""

import hashlib
import io
import json
import pickle
from pathlib import Path
from typing import Any

import torch

# What manifests have of the bytes of Parquet files, which another pyarrow may write in another way.
_OF_PARQUET = ("checksum", "run", "parts", "files")


def format_digest(root: Path) -> str:
    """Return a digest of all files: names and bytes; of Parquet and torch's files what they hold.

    Of manifests beside Parquet files it has all but what follows from these: checksum, run id,
    digests of the parts, and the files themselves.
    """
    found = hashlib.blake2b(digest_size=8)
    left_out = _OF_PARQUET if any(root.rglob("*.parquet")) else ()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(root)}\n".encode())
        found.update(_content(path, left_out))
    return found.hexdigest()


def _content(path: Path, left_out: tuple[str, ...]) -> bytes:
    if path.suffix == ".json":
        made = json.loads(path.read_text())
        return json.dumps({k: made[k] for k in made if k not in left_out}, indent=1).encode()
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return repr(pq.read_table(path).to_pydict()).encode()
    if path.suffix == ".pt":
        return repr(_plain(torch.load(path))).encode()
    if path.suffix == ".pkl":
        return repr([_plain(one) for one in _stream(path.read_bytes())]).encode()
    return path.read_bytes()


def _stream(data: bytes) -> list[Any]:
    """Return what was pickled one after the other."""
    found, file = [], io.BytesIO(data)
    while file.tell() < len(data):
        found.append(pickle.load(file))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value
