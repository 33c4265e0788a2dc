"""The format that is mapped: what is wrong with a directory is named."""

import shutil
from pathlib import Path

import pytest

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.format import mapped
from gigl_loader.dataset.format.mapped import write_manifest
from gigl_loader.errors import ConfigError
from tests.dataset.dataset_reference import RING, SHOP, N, arrays, check_partitions, write


def test_a_part_of_another_run_is_named(tmp_path: Path) -> None:
    write(RING, tmp_path / "a", seed=1, method="random")
    write(RING, tmp_path / "b", seed=2, method="random")
    shutil.rmtree(tmp_path / "a" / "part1")
    shutil.copytree(tmp_path / "b" / "part1", tmp_path / "a" / "part1")
    DistDataset.load(tmp_path / "a", 0)
    with pytest.raises(ConfigError, match=r"part1 is of another run"):
        DistDataset.load(tmp_path / "a", 1)


def test_a_part_in_the_position_of_another_is_named(tmp_path: Path) -> None:
    write(RING, tmp_path)
    shutil.rmtree(tmp_path / "part1")
    shutil.copytree(tmp_path / "part0", tmp_path / "part1")
    with pytest.raises(ConfigError, match=r"manifest\.json has changed.*another partition"):
        DistDataset.load(tmp_path, 1)


def test_every_missing_or_short_file_is_named(tmp_path: Path) -> None:
    write(SHOP, tmp_path, method="random")
    for path in arrays(tmp_path):
        index = 0 if "part0" in path.parts else 1
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(ConfigError, match=rf"{path.name} has {len(content) - 1} bytes"):
            DistDataset.load(tmp_path, index)
        path.unlink()
        with pytest.raises(ConfigError, match=rf"{path.name} is missing"):
            DistDataset.load(tmp_path, index)
        path.write_bytes(content)
    for name in ("part0/manifest.json", "gigl_loader.json"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text[: len(text) // 2])
        with pytest.raises(ConfigError, match=r"json (is damaged|has changed)"):
            DistDataset.load(tmp_path, 0)
        (tmp_path / name).write_text(text)
    check_partitions(SHOP, [DistDataset.load(tmp_path, index) for index in range(2)], "in")


def test_a_flipped_bit_is_found_on_request(tmp_path: Path, constants) -> None:
    constants(mapped, BLOCK_BYTES=16)
    write(RING, tmp_path)
    path = tmp_path / "part0" / "node_features" / N / "values.bin"
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"values\.bin has changed.*bytes 16 to 32"):
        DistDataset.load(tmp_path, 0, verify="now")
    dataset = DistDataset.load(tmp_path, 0, verify="off")
    with pytest.raises(ConfigError, match=r"values\.bin has changed"):
        dataset.verify()
    DistDataset.load(tmp_path, 1, verify="now")


def test_another_version_is_named(tmp_path: Path) -> None:
    write(RING, tmp_path)
    write_manifest(tmp_path / "gigl_loader.json", {"format_version": 7})
    with pytest.raises(ConfigError, match="format version 7, this gigl_loader reads 2 and 3"):
        DistDataset.load(tmp_path, 0)
