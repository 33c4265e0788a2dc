"""Manifests: a changed byte is refused by our own error, what had no checksum still opens."""

import hashlib
import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.errors import ConfigError
from tests.dataset.dataset_reference import RING, SHOP, arrays, check_partitions, write, written


def refuse_flips(path: Path, load: Callable[[], object], most: int = 400) -> None:
    """Flip a bit of a byte of a file in turn; each has to be refused."""
    content, draw = path.read_bytes(), random.Random(0)
    # all of the beginning, which says how the rest is to be read
    for at in {*range(80), *draw.sample(range(len(content)), min(most, len(content)))}:
        changed = bytearray(content)
        changed[at] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(ConfigError):
            load()
    path.write_bytes(content)
    load()


@pytest.mark.parametrize("format", ["mapped", "glt"])
@pytest.mark.parametrize("name", ["gigl_loader.json", "part1/manifest.json"])
def test_a_changed_byte_of_a_manifest_is_refused(tmp_path: Path, format: str, name: str) -> None:
    if format == "mapped":
        write(SHOP, tmp_path)
    else:
        written(SHOP, 2, tmp_path)
    if not (tmp_path / name).exists():  # graphlearn-torch's format has no manifest of a partition
        assert (format, name) == ("glt", "part1/manifest.json")
        return
    refuse_flips(tmp_path / name, lambda: DistDataset.load(tmp_path, 1, verify="off"))


@pytest.mark.parametrize("lines", [slice(2, None), slice(0, 0)])
def test_a_manifest_without_its_checksum_is_refused(tmp_path: Path, lines: slice) -> None:
    write(RING, tmp_path)
    path = tmp_path / "gigl_loader.json"
    kept = path.read_text().splitlines(keepends=True)[lines]
    path.write_text("".join(["{\n", *kept]))
    with pytest.raises(ConfigError, match=r"gigl_loader\.json is damaged"):
        DistDataset.load(tmp_path, 0)


def as_before_checksums(root: Path) -> dict:
    """Turn a directory into one as written before manifests had a checksum; return its header."""

    def rewrite(path: Path, **changed: object) -> str:
        made = json.loads(path.read_text())
        del made["checksum"], made["files"]
        path.write_text(json.dumps({**made, "format_version": 2, **changed}, indent=1) + "\n")
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()

    folders = sorted(root.glob("part*"))
    parts = [rewrite(folder / "manifest.json") for folder in folders]
    rewrite(root / "gigl_loader.json", parts=parts)
    found: dict = json.loads((root / "gigl_loader.json").read_text())
    return found


def test_a_directory_without_checksums_of_manifests_still_opens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(SHOP, tmp_path, method="random")
    as_before_checksums(tmp_path)
    found = [DistDataset.load(tmp_path, index, verify="now") for index in range(2)]
    check_partitions(SHOP, found, "in")
    assert found[0].graph_identity == found[1].graph_identity
    assert "no checksums: a damaged file is not noticed" in caplog.text
    assert "partition the graph again" in caplog.text
    arrays(tmp_path)[0].write_bytes(b"")
    with pytest.raises(ConfigError, match="has 0 bytes"):
        [DistDataset.load(tmp_path, index) for index in range(2)]


def test_a_damaged_manifest_without_checksum_raises_our_own_error(tmp_path: Path) -> None:
    write(SHOP, tmp_path, method="random")
    made = as_before_checksums(tmp_path)
    path, draw = tmp_path / "gigl_loader.json", random.Random(1)
    for key in made:
        for value in ("missing", None, [], {}, {"item": 3}, 7, "text", [[1]]):
            changed = {one: made[one] for one in made if one != key}
            path.write_text(json.dumps(changed if value == "missing" else {**changed, key: value}))
            _opens_or_is_refused(tmp_path)
    content = json.dumps(made, indent=1).encode()
    for _ in range(200):
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        _opens_or_is_refused(tmp_path)


def _opens_or_is_refused(root: Path) -> None:
    with suppress(ConfigError):
        DistDataset.load(root, 0, verify="now")
