"""Graphs in object storage: written whole or not at all, and read as local ones are."""

import json
import logging
import pickle
import threading
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader, partition_graph
from gigl_loader.commands import cli
from gigl_loader.dataset.format.glt_files import count_partitions
from gigl_loader.dataset.identity import content_digest
from gigl_loader.errors import ConfigError, ObjectStorageError
from gigl_loader.graph_store import build_storage_dataset
from gigl_loader.graph_store.serve import parse_serve
from gigl_loader.partitioning.split_links import split_partitions
from gigl_loader.runtime import files_of_others
from gigl_loader.runtime.object_storage import object_folder as object_storage
from gigl_loader.runtime.object_storage.checked_files import note_as_checked
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder
from gigl_loader.testing import batch_digest, wait_until
from tests.runtime.object_storage.object_server import Fault, failing, flip
from tests.support import frames

MANIFEST = "gigl_loader.json"


def _graph(nodes: int = 40) -> Data:
    ids = torch.arange(nodes)
    edges = torch.stack([ids.repeat(3), torch.cat([(ids + step) % nodes for step in (1, 5, 7)])])
    return Data(x=ids[:, None].float(), y=ids % 3, edge_index=edges, train_mask=ids % 2 == 0)


def _batches(dataset: DistDataset) -> list[str]:
    with DistNeighborLoader(dataset, [2, 2], batch_size=7, num_workers=0, seed=1) as loader:
        return [batch_digest(batch) for batch in loader]


def _written(storage, **options) -> str:
    partition_graph(_graph(), 2, storage.url, method="random", progress=False, **options)
    return storage.url


def test_a_graph_is_written_and_read_as_a_local_one(storage, tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO)
    partition_graph(_graph(), 2, tmp_path / "local", method="random", progress=False)
    url = _written(storage)
    puts = [request.key for request in storage.proxy.requests if request.method == "PUT"]
    assert puts[-1].endswith(f"/{MANIFEST}")
    names = {p.relative_to(tmp_path / "local").as_posix() for p in (tmp_path / "local").rglob("*")}
    assert {*ObjectFolder(url).sizes()} == {n for n in names if (tmp_path / "local" / n).is_file()}
    assert not list((tmp_path / "cache" / "write").iterdir())  # what was uploaded is gone
    assert count_partitions(url) == 2
    storage.proxy.requests.clear()
    for index in range(2):
        local = DistDataset.load(tmp_path / "local", index)
        for mmap in (False, True):
            fetched = DistDataset.load(url, index, mmap=mmap, verify="now")
            assert content_digest(fetched.view(), whole=True) == content_digest(
                local.view(), whole=True
            )
            assert torch.equal(fetched.train_node_ids, local.train_node_ids)
    assert "fetched s3://" in caplog.text
    assert "GB/s" in caplog.text
    # each file once, though each partition was loaded twice, and shared files by both
    bodies = [r.key for r in storage.proxy.requests if r.key.endswith(".bin")]
    assert len(bodies) == len(set(bodies))


def test_batches_are_those_of_a_local_graph(storage, tmp_path) -> None:
    partition_graph(_graph(), 1, tmp_path / "local", progress=False)
    partition_graph(_graph(), 1, storage.url, progress=False)
    expected = _batches(DistDataset.load(tmp_path / "local", 0))
    assert _batches(DistDataset.load(storage.url, 0)) == expected
    mapped = DistDataset.load(storage.url, 0, mmap=True, edges="all")
    assert _batches(pickle.loads(pickle.dumps(mapped))) == expected
    assert _batches(build_storage_dataset(storage.url)) == expected


def test_rows_of_mixed_types_come_from_storage(storage) -> None:
    graph = frames.shop()
    partition_graph(graph, 1, storage.url, progress=False)
    for mmap in (False, True):
        dataset = DistDataset.load(storage.url, 0, mmap=mmap)
        seeds = ("user", torch.arange(23))
        with DistNeighborLoader(dataset, [3, 2], seeds, batch_size=8, num_workers=0) as loader:
            for batch in loader:
                frames.check_rows(batch, graph)


def _is_comparing() -> bool:
    return any(thread.name == "gigl_loader.verify" for thread in threading.enumerate())


def _damage(cache: Path, pattern: str, nbytes: int = 64) -> Path:
    """Overwrite the last bytes of a file of the cache."""
    (path,) = cache.glob(f"read/*/{pattern}")
    with path.open("r+b") as file:
        file.seek(-nbytes, 2)
        file.write(bytes(byte ^ 0x5A for byte in path.read_bytes()[-nbytes:]))
    return path


@pytest.mark.parametrize("mmap", [False, True])
def test_a_copy_that_was_changed_on_the_disk_is_mended_before_it_is_read(
    storage, tmp_path, mmap
) -> None:
    partition_graph(_graph(), 1, storage.url, progress=False)
    expected = _batches(DistDataset.load(storage.url, 0))
    storage.proxy.requests.clear()
    damaged = {
        "part0/node_features/*/values.bin",
        "part0/edges/*/indices.bin",
        "part0/manifest.json",
    }
    for pattern in damaged:
        _damage(tmp_path / "cache", pattern, 16)
    dataset = DistDataset.load(storage.url, 0, mmap=mmap)
    assert _batches(dataset) == expected
    dataset.verify()
    # only what was damaged
    fetched = {r.key.split("/part0/")[1] for r in storage.proxy.requests if "/part0/" in r.key}
    assert len(fetched) == len(damaged)
    storage.proxy.requests.clear()
    assert _batches(DistDataset.load(storage.url, 0, mmap=mmap)) == expected
    assert not [r for r in storage.proxy.requests if "/part0/" in r.key]


@pytest.mark.parametrize("verify", ["background", "now"])
def test_a_check_that_fails_lets_the_next_load_fetch_what_is_wrong(
    storage, tmp_path, verify
) -> None:
    partition_graph(_graph(), 1, storage.url, progress=False)
    expected = _batches(DistDataset.load(storage.url, 0))
    # as a disk that gives other bytes: nothing that the system notes of a file tells it
    path = _damage(tmp_path / "cache", "part0/node_features/*/values.bin")
    note_as_checked(path.parents[3], path.relative_to(path.parents[3]).as_posix())

    def used() -> None:
        dataset = DistDataset.load(storage.url, 0, verify=verify)
        wait_until(lambda: not _is_comparing(), "the files are compared", 60)
        _batches(dataset)

    with pytest.raises(ConfigError, match=r"values\.bin .*load it again from its URL") as raised:
        used()
    assert "bytes 0 to 160" in str(raised.value)
    assert _batches(DistDataset.load(storage.url, 0, verify="now")) == expected


def test_edges_of_all_partitions_come_without_their_rows(storage, tmp_path) -> None:
    partition_graph(_graph(), 2, tmp_path / "local", method="random", progress=False)
    url = _written(storage)
    storage.proxy.requests.clear()
    fetched = DistDataset.load(url, 0, edges="all")
    expected = DistDataset.load(tmp_path / "local", 0, edges="all")
    assert content_digest(fetched.view(), whole=True) == content_digest(expected.view(), whole=True)
    others = {r.key.split("/part1/")[1] for r in storage.proxy.requests if "/part1/" in r.key}
    assert {name.split("/")[0] for name in others} == {"manifest.json", "edges"}


def test_an_upload_that_fails_leaves_nothing_that_is_read(storage, monkeypatch) -> None:
    monkeypatch.setattr(object_storage, "_RETRIES", 0)
    storage.proxy.faults = [Fault(failing(500, "InternalError"), r".*/indices\.bin", "PUT")]
    with pytest.raises(ObjectStorageError, match=r"indices\.bin: object storage failed.*Internal"):
        _written(storage)
    objects = ObjectFolder(storage.url).sizes()
    assert objects
    assert MANIFEST not in objects
    with pytest.raises(ConfigError, match=f"{storage.url}/{MANIFEST} is missing"):
        DistDataset.load(storage.url, 0)
    storage.proxy.faults = []
    _written(storage)  # over what is left
    assert DistDataset.load(storage.url, 1).num_partitions == 2


def test_a_graph_is_replaced_only_on_request_and_never_half(storage, monkeypatch) -> None:
    monkeypatch.setattr(object_storage, "_RETRIES", 0)
    first = DistDataset.load(_written(storage), 0, mmap=True)
    with pytest.raises(ConfigError, match="holds partitions: remove it, or give overwrite=True"):
        _written(storage)
    partition_graph(_graph(20), 1, storage.url, progress=False, overwrite=True)
    assert not [name for name in ObjectFolder(storage.url).sizes() if name.startswith("part1/")]
    assert DistDataset.load(storage.url, 0).node_ids.numel() == 20
    assert first.view().num_nodes  # the copy of the old one is in use, and stays
    first.check_files()
    storage.proxy.faults = [Fault(failing(500, "InternalError"), r".*/indices\.bin", "PUT")]
    with pytest.raises(ObjectStorageError):
        _written(storage, overwrite=True)
    with pytest.raises(ConfigError, match="is missing"):  # neither the old one nor half of both
        DistDataset.load(storage.url, 0)


def test_a_manifest_of_a_partition_is_not_read_without_bound(storage, tmp_path, constants) -> None:
    partition_graph(_graph(), 1, tmp_path, progress=False)
    _written(storage)
    folder = ObjectFolder(storage.url)
    limit = max(size for name, size in folder.sizes().items() if name.endswith(".json"))
    constants(files_of_others, _MOST_BYTES=limit)
    assert DistDataset.load(storage.url, 0).num_partitions == 2
    folder.write("part1/manifest.json", bytes(limit + 1))
    with pytest.raises(ConfigError, match=r"part1/manifest.json has .* are read at once"):
        DistDataset.load(storage.url, 1)
    constants(files_of_others, _MOST_BYTES=10)
    with pytest.raises(ConfigError, match=rf"{MANIFEST} has .* at most 10 "):
        DistDataset.load(tmp_path, 0)


def test_other_files_are_not_removed(storage) -> None:
    ObjectFolder(storage.url).write("part0/notes.txt", b"of a user")
    with pytest.raises(ConfigError, match=r"holds other files \(part0/notes\.txt"):
        _written(storage, overwrite=True)


def test_wrong_requests_are_refused_first(storage, tmp_path) -> None:
    with pytest.raises(ConfigError, match='format="glt" has no checksums'):
        _written(storage, format="glt")
    for written in storage.proxy.requests:
        assert written.method != "PUT"
    partition_graph(_graph(), 1, tmp_path / "glt", format="glt", progress=False)
    with pytest.raises(ConfigError, match="is in GLT's format, which has no checksums"):
        DistDataset.load(f"file://{tmp_path}/glt", 0)
    url = _written(storage)
    with pytest.raises(ConfigError, match=r"must be in \[0, 2\)"):
        DistDataset.load(url, 2)
    with pytest.raises(ConfigError, match="cache_size must be"):
        DistDataset.load(url, 0, cache_size="much")
    storage.proxy.faults = [Fault(flip, rf".*/{MANIFEST}")]
    with pytest.raises(ConfigError, match=f"the manifest of {url} cannot be used"):
        DistDataset.load(url, 0)
    storage.proxy.faults = [Fault(flip, r".*/part0/manifest\.json")]
    with pytest.raises(ConfigError, match=f"{url}/part0/manifest.json: bytes 0 to"):
        DistDataset.load(url, 0)


def test_links_are_split_from_one_url_to_another(storage, tmp_path) -> None:
    url = _written(storage)
    split_partitions(url, f"{url}-split", num_val=0.2, num_test=0.2)
    split_partitions(url, tmp_path / "split", num_val=0.2, num_test=0.2)
    fetched = DistDataset.load(f"{url}-split", 0)
    assert fetched.graph_identity == DistDataset.load(tmp_path / "split", 0).graph_identity


def test_a_plan_reads_a_graph_at_a_url(storage, capsys) -> None:
    words = ["--root", _written(storage), "--num-neighbors=2", "--batch-size=8", "--json"]
    assert cli.main(["plan", *words]) == 0
    assert json.loads(capsys.readouterr().out)
    assert cli.main(["plan", "--root", f"{storage.url}/none", "--num-neighbors=2"]) == 2
    assert "is missing" in capsys.readouterr().err


def test_a_server_takes_a_url_and_a_cache(storage, tmp_path) -> None:
    args = parse_serve(
        ["--root", storage.url, f"--cache-dir={tmp_path}/elsewhere", "--cache-size=1GB"]
    )
    assert (args.root, args.cache_dir, args.cache_size) == (
        storage.url,
        f"{tmp_path}/elsewhere",
        "1GB",
    )
    _written(storage)
    DistDataset.load(args.root, 1, cache_dir=args.cache_dir, cache_size=args.cache_size)
    assert len(list((tmp_path / "elsewhere" / "read").iterdir())) == 1
    assert not Path(tmp_path / "cache" / "read").exists()
