"""A directory of partitions of others: nothing outside of it is read, by a name or by a link."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.format.mapped import write_manifest
from gigl_loader.errors import ConfigError
from tests.dataset.dataset_reference import RING, SHOP, E, N, write
from tests.dataset.format.sealed import seal_again

_RING_FILES = [
    "node_pb.pt",
    "edge_pb.pt",
    "part0/graph/rows.pt",
    "part0/graph/eids.pt",
    "part0/graph/weights.pt",
    "part0/node_feat/feats.pkl",
    "part0/node_feat/ids.pkl",
    f"part0/gigl_loader/node_labels/{N}.pt",
    f"part0/gigl_loader/splits/train/{N}.pt",
]


def _moved_out(path: Path, outside: Path) -> None:
    """Put a link in place of a file, or of a folder."""
    shutil.move(path, outside)
    path.symlink_to(outside)


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        f"part0/node_features/{N}/values.bin",
        f"part0/edges/{'__'.join(E)}/indices.bin",
        f"part0/splits/train/{N}.bin",
        f"books/node/{N}.bin",
        "part0/node_features",
    ],
)
def test_a_link_in_place_of_an_array_is_refused(tmp_path: Path, name: str, mmap: bool) -> None:
    root = write(RING, tmp_path / "graph", method="random")
    _moved_out(root / name, tmp_path / "outside")
    with pytest.raises(ConfigError, match=r"leads out of .*part0|leads out of .*graph"):
        DistDataset.load(root, 0, mmap=mmap)


@pytest.mark.parametrize("name", [*_RING_FILES, "part0/graph", "part0"])
def test_a_link_in_a_directory_of_glt_is_refused(tmp_path: Path, name: str) -> None:
    root = write(RING, tmp_path / "graph", format="glt")
    _moved_out(root / name, tmp_path / "outside")
    with pytest.raises(ConfigError, match=r"leads out of .*graph"):
        DistDataset.load(root, 0)


@pytest.mark.parametrize("kind", ["glt", "mapped"])
def test_a_relative_path_is_read_from_where_one_is(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(RING, tmp_path / "graph", format=kind)
    monkeypatch.chdir(tmp_path)
    dataset = DistDataset.load("graph", 0)
    assert dataset.num_nodes == DistDataset.load(tmp_path / "graph", 0).num_nodes


def test_links_to_directories_and_within_them_are_followed(tmp_path: Path) -> None:
    root = write(RING, tmp_path / "graph")
    _moved_out(root / "part0", tmp_path / "other_disk")
    values = root / "part1" / "node_features" / N / "values.bin"
    _moved_out(values, root / "part1" / "kept")
    (tmp_path / "link").symlink_to(root)
    for index in range(2):
        assert DistDataset.load(tmp_path / "link", index, verify="now").view().num_nodes == {N: 8}


@pytest.mark.parametrize("name", ["../../outside", "node_features/../../../outside", "/"])
def test_an_array_that_a_manifest_names_outside_is_refused(tmp_path: Path, name: str) -> None:
    root = write(RING, tmp_path / "graph")
    values = f"node_features/{N}/values"
    shutil.copy(root / "part0" / f"{values}.bin", tmp_path / "outside.bin")
    name = str(tmp_path / "outside") if name == "/" else name

    def add(content: dict[str, Any]) -> None:
        content["arrays"][name] = content["arrays"][values]

    seal_again(root, part=add)
    with pytest.raises(ConfigError, match="leads out of"):
        DistDataset.load(root, 0)


@pytest.mark.parametrize("one", ["../../../outside", "/etc", "..", ".", "", "a\0b"])
def test_types_that_lead_outside_are_refused(tmp_path: Path, one: str) -> None:
    mapped = write(SHOP, tmp_path / "mapped")

    def add(content: dict[str, Any]) -> None:
        content["num_nodes"][one], content["node_bounds"][one] = 0, [0, 0]

    seal_again(mapped, header=add)
    with pytest.raises(ConfigError, match=r"gigl_loader\.json: type .* cannot be the name of"):
        DistDataset.load(mapped, 0)
    theirs = write(SHOP, tmp_path / "glt", format="glt")
    meta = pickle.loads((theirs / "META").read_bytes())
    (theirs / "META").write_bytes(pickle.dumps({**meta, "node_types": [*meta["node_types"], one]}))
    with pytest.raises(ConfigError, match=r"META: type .* cannot be the name of a file"):
        DistDataset.load(theirs, 0)


def test_a_split_that_leads_outside_is_refused(tmp_path: Path) -> None:
    root = write(RING, tmp_path / "graph", format="glt")
    torch.save(torch.arange(3), tmp_path / f"{N}.pt")
    content = json.loads((root / "gigl_loader.json").read_text())
    del content["checksum"], content["format_version"]
    content["splits"]["../../../.."] = [N]
    write_manifest(root / "gigl_loader.json", content)
    with pytest.raises(ConfigError, match="leads out of"):
        DistDataset.load(root, 0)
