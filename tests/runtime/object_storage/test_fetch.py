"""Files from object storage into a cache: a real server, and faults on the way."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from gigl_loader.errors import ConfigError, ObjectStorageError, PeerTimeoutError, ResourceError
from gigl_loader.runtime import files_of_others
from gigl_loader.runtime.object_storage import folder_cache as cache
from gigl_loader.runtime.object_storage import object_folder as object_storage
from gigl_loader.runtime.object_storage.fetch import Fetch, StoredFile
from gigl_loader.runtime.object_storage.folder_cache import Cache, hold
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder, is_url
from gigl_loader.testing import wait_until
from tests.runtime.object_storage.object_server import (
    SECRET,
    Answer,
    Fault,
    failing,
    flip,
    hold_back,
    reset,
)

BLOCK = 4096
MANIFEST = "manifest.json"


def _content(name: str, nbytes: int) -> bytes:
    seed = hashlib.sha256(name.encode()).digest()
    return (seed * (nbytes // len(seed) + 1))[:nbytes]


def _file(name: str, data: bytes) -> StoredFile:
    blocks = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]
    digests = [hashlib.blake2b(block, digest_size=16).hexdigest() for block in blocks]
    return StoredFile(name, len(data), digests, BLOCK)


def _write(url: str, sizes: dict[str, int]) -> list[StoredFile]:
    """Write a folder and its manifest; return its files."""
    folder, files = ObjectFolder(url), []
    for name, nbytes in sizes.items():
        data = _content(url + name, nbytes)
        folder.write(name, data)
        files.append(_file(name, data))
    content = [[file.name, file.nbytes, file.digests] for file in files]
    folder.write(MANIFEST, json.dumps([url, content]).encode())
    return files


@contextmanager
def _fetched(url: str, files: list[StoredFile], size: int | None = None) -> Iterator[Path]:
    with Cache(size=size).opened(ObjectFolder(url), MANIFEST) as copy:
        copy.fetch(files, lambda nbytes: None)
        yield copy.path


def _check(url: str, files: list[StoredFile], folder: Path) -> None:
    for file in files:
        assert (folder / file.name).read_bytes() == _content(url + file.name, file.nbytes)
    assert not list(folder.rglob("*.part"))


def test_files_of_any_size_come_in_blocks(storage) -> None:
    sizes = {f"a b/{nbytes}.bin": nbytes for nbytes in (0, 1, BLOCK - 1, BLOCK, 5 * BLOCK + 7)}
    files = _write(storage.url, {**sizes, "käse #1%20?.bin": 10})
    counts: list[int] = []
    with Cache().opened(ObjectFolder(storage.url), MANIFEST) as copy:
        copy.fetch(files, counts.append)
        _check(storage.url, files, copy.path)
        assert sum(counts) == sum(file.nbytes for file in files)
        requests = len(storage.proxy.requests)
        copy.fetch(files, counts.append)
        assert len(storage.proxy.requests) == requests
    starts = {r.start for r in storage.proxy.requests if r.key.endswith(f"/{5 * BLOCK + 7}.bin")}
    assert starts == {None, *range(0, 6 * BLOCK, BLOCK)}  # None: as it was written


@pytest.mark.parametrize(
    ("change", "times"),
    [(failing(500, "InternalError"), 2), (failing(503, "SlowDown"), 2), (reset, 2), (flip, 2)],
    ids=["500", "503", "reset", "wrong byte"],
)
def test_what_passes_is_repeated(storage, change, times) -> None:
    files = _write(storage.url, {"x.bin": 3 * BLOCK, "y.bin": 9})
    storage.proxy.faults = [Fault(change, rf".*/{name}\.bin", times=times) for name in "xy"]
    with _fetched(storage.url, files) as folder:
        _check(storage.url, files, folder)
    assert [fault.times for fault in storage.proxy.faults] == [0, 0]


def _replaced() -> Fault:
    """Let another version of the object be there after its first range."""
    numbers = iter(range(10**6))

    def change(answer: Answer) -> None:
        if number := next(numbers):
            answer.headers["ETag"] = f'"{number}"'
            answer.body = answer.body[::-1]

    return Fault(change, r".*/x\.bin")


def _missing() -> Fault:
    return Fault(failing(404, "NoSuchKey"), r".*/x\.bin")


@pytest.mark.parametrize(
    ("fault", "error", "cause"),
    [
        (Fault(failing(500, "InternalError"), r".*/x\.bin"), ObjectStorageError, "500 Internal"),
        (Fault(failing(503, "SlowDown"), r".*/x\.bin"), ObjectStorageError, r"\(SlowDown\)"),
        (Fault(reset, r".*/x\.bin"), ObjectStorageError, "body error"),
        (Fault(flip, r".*/x\.bin"), ConfigError, "do not match the checksum"),
        (_replaced(), ConfigError, "the object is damaged, was replaced or is of another run"),
        (_missing(), ConfigError, r"is missing \(NoSuchKey\)"),
        (
            Fault(failing(403, "AccessDenied"), r".*/x\.bin"),
            ObjectStorageError,
            r"403 .*\(AccessDenied\)",
        ),
    ],
    ids=["500", "503", "reset", "wrong byte", "etag", "no key", "403"],
)
def test_what_stays_is_an_error_with_key_and_cause(storage, monkeypatch, fault, error, cause):
    monkeypatch.setattr(object_storage, "_RETRIES", 1)
    files = _write(storage.url, {"x.bin": 3 * BLOCK, "y.bin": 9})
    storage.proxy.faults = [fault]
    with pytest.raises(error, match=cause) as raised, _fetched(storage.url, files):
        pass
    assert f"{storage.url}/x.bin" in str(raised.value)
    said = "".join(traceback.format_exception(raised.value))
    assert SECRET not in said
    # what came before is kept, and the rest comes later
    storage.proxy.faults = []
    with _fetched(storage.url, files) as folder:
        _check(storage.url, files, folder)


def test_a_file_that_was_given_up_does_not_get_its_name(storage, tmp_path) -> None:
    files = _write(storage.url, {"x.bin": BLOCK, "y.bin": BLOCK})
    arrived, release = threading.Event(), threading.Event()
    storage.proxy.faults = [
        Fault(hold_back(arrived, release), r".*/x\.bin"),
        Fault(failing(404, "No"), r".*/y\.bin"),
    ]
    fetch = Fetch(ObjectFolder(storage.url), tmp_path, files)
    fetch.reserve()
    failures: list[Exception] = []

    def run() -> None:
        try:
            fetch.run(lambda nbytes: None)
        except ConfigError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert arrived.wait(60)
    wait_until(fetch._stop.is_set, "the other object is missing", 60)
    release.set()
    thread.join(60)
    assert "y.bin is missing" in str(failures)
    assert not (tmp_path / "x.bin").exists()


def test_a_folder_without_its_manifest_or_with_another_object_is_refused(storage) -> None:
    files = _write(storage.url, {"x.bin": 3 * BLOCK})
    ObjectFolder(storage.url).write("x.bin", b"short")
    # its first block has other bytes, and there are no others
    with pytest.raises((ConfigError, ObjectStorageError), match=rf"{storage.url}/x\.bin"):
        _fetched(storage.url, files).__enter__()
    with pytest.raises(ConfigError, match=f"{storage.url}/none/{MANIFEST} is missing"):
        _fetched(f"{storage.url}/none", files).__enter__()
    with pytest.raises(ConfigError, match=r"/\.\./x leads out of"):
        _fetched(storage.url, [StoredFile("../x", 1, ["0"], BLOCK)]).__enter__()


@pytest.mark.parametrize("end", ["", ".part"])
def test_a_link_of_another_user_of_the_cache_is_not_written_through(
    storage, tmp_path: Path, end: str
) -> None:
    files = _write(storage.url, {"x.bin": 3 * BLOCK})
    (tmp_path / "own").write_bytes(b"own")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / f"x.bin{end}").symlink_to(tmp_path / "own")
    with pytest.raises(ConfigError, match="leads out of"):
        Fetch(ObjectFolder(storage.url), tmp_path / "copy", files)
    assert (tmp_path / "own").read_bytes() == b"own"


def test_a_server_that_sends_more_than_was_asked_for_writes_no_more(storage, tmp_path) -> None:
    files = _write(storage.url, {"x.bin": 3 * BLOCK})
    right = _content(storage.url + "x.bin", 3 * BLOCK)

    def lengthen(answer: Answer) -> None:
        answer.body += bytes(10 * BLOCK)
        answer.headers["content-length"] = str(len(answer.body))

    storage.proxy.faults = [Fault(lengthen, r".*/x\.bin", "GET")]
    fetch = Fetch(ObjectFolder(storage.url), tmp_path, files)
    fetch.reserve()
    with contextlib.suppress(ObjectStorageError):
        fetch.run(lambda nbytes: None)
        assert (tmp_path / "x.bin").read_bytes() == right
    assert max(path.stat().st_size for path in tmp_path.glob("x.bin*")) == 3 * BLOCK


def test_a_manifest_without_end_is_not_read_into_memory(storage, constants) -> None:
    """Whatever its length was said to be: a server may send another object in its place."""
    files = _write(storage.url, {"x.bin": BLOCK})
    folder = ObjectFolder(storage.url)
    size = len(folder.read(MANIFEST))
    constants(files_of_others, _MOST_BYTES=size)
    assert folder.find(MANIFEST) == folder.read(MANIFEST)

    def lengthen(answer: Answer) -> None:
        answer.body += bytes(1)
        answer.headers["content-length"] = str(len(answer.body))

    storage.proxy.faults = [Fault(lengthen, ".*/manifest.json")]
    words = rf"{storage.url}/{MANIFEST} has .* where at most .* are read at once"
    for read in (folder.read, folder.find, lambda name: _fetched(storage.url, files).__enter__()):
        with pytest.raises(ConfigError, match=words):
            read(MANIFEST)
    assert len(folder.find(MANIFEST, size + 1) or b"") == size + 1


_SCRIPT = """
import json, sys
from gigl_loader.runtime.object_storage.folder_cache import Cache
from gigl_loader.runtime.object_storage.fetch import Fetch, StoredFile
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder

url, files = json.loads(sys.argv[1])
with Cache().opened(ObjectFolder(url), "manifest.json") as copy:
    print("opened", flush=True)
    counts = []
    copy.fetch([StoredFile(*file) for file in files], counts.append)
    print(sum(counts))
"""


def _start(url: str, files: list[StoredFile]) -> "subprocess.Popen[str]":
    listed = [[file.name, file.nbytes, file.digests, BLOCK] for file in files]
    words = [sys.executable, "-c", _SCRIPT, json.dumps([url, listed])]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.multiprocess
def test_a_killed_process_leaves_its_blocks_to_the_next(storage, tmp_path) -> None:
    blocks = 40
    files = _write(storage.url, {"x.bin": blocks * BLOCK})
    arrived, release = threading.Event(), threading.Event()
    storage.proxy.requests.clear()
    # the 30th request waits, and all after it
    storage.proxy.faults = [
        Fault(lambda answer: None, r".*/x\.bin", times=29),
        Fault(hold_back(arrived, release), r".*/x\.bin"),
    ]
    process = _start(storage.url, files)
    part = tmp_path / "cache" / "read"

    def kept() -> int:
        (path,) = part.glob("*/x.bin.part")
        return blocks - sum(not any(b) for b in _blocks_of(path.read_bytes()))

    assert arrived.wait(60)
    wait_until(lambda: kept() == 29, "blocks are on disk", 60)
    wait_until(lambda: len(storage.proxy.requests) == 1 + blocks, "the others were requested", 60)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    storage.proxy.faults = []
    release.set()
    storage.proxy.requests.clear()
    with Cache().opened(ObjectFolder(storage.url), MANIFEST) as copy:
        counts: list[int] = []
        copy.fetch(files, counts.append)
        assert sum(counts) == (blocks - 29) * BLOCK
        _check(storage.url, files, copy.path)
    ranges = [r for r in storage.proxy.requests if r.start is not None]
    assert sum(r.body for r in ranges) == (blocks - 29) * BLOCK


def _blocks_of(data: bytes) -> list[bytes]:
    return [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]


@pytest.mark.multiprocess
def test_two_processes_at_once_fetch_once(storage) -> None:
    files = _write(storage.url, {f"{number}.bin": 2 * BLOCK for number in range(8)})
    arrived, release = threading.Event(), threading.Event()
    storage.proxy.faults = [Fault(hold_back(arrived, release), r".*/\d\.bin")]
    processes = [_start(storage.url, files) for _ in range(2)]
    assert arrived.wait(60)
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "opened\n"
    release.set()
    counts = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert sorted(counts) == [0, 16 * BLOCK]
    assert storage.proxy.sent(r".*/\d\.bin") == 16 * BLOCK


def test_a_process_that_fetches_and_is_stopped_is_not_waited_for(storage, monkeypatch) -> None:
    files = _write(storage.url, {"x.bin": BLOCK})
    monkeypatch.setattr(cache, "_STALLED_S", 0.3)
    monkeypatch.setattr(cache, "_SAY_EVERY_S", 0.0)
    with Cache().opened(ObjectFolder(storage.url), MANIFEST) as copy:
        with (copy.path / ".fetching").open("a") as stopped:
            fcntl.flock(stopped.fileno(), fcntl.LOCK_EX)
            with pytest.raises(PeerTimeoutError, match="does not go on: is it stopped"):
                copy.fetch(files, lambda nbytes: None)
        copy.fetch(files, lambda nbytes: None)  # its lock ended with it
        _check(storage.url, files, copy.path)


def test_a_disk_that_is_too_small_is_told_before_anything_comes(storage, monkeypatch) -> None:
    files = _write(storage.url, {"x.bin": 3 * BLOCK})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2 * BLOCK))
    storage.proxy.requests.clear()
    with pytest.raises(
        ResourceError, match=r"12288 bytes are to be fetched and .* 8192 bytes free"
    ):
        _fetched(storage.url, files).__enter__()
    assert storage.proxy.sent(r".*\.bin") == 0


def test_the_oldest_folders_that_nobody_uses_are_removed(storage, tmp_path) -> None:
    names = [f"{storage.url}/{name}" for name in "abcd"]
    files = {url: _write(url, {"x.bin": 10 * BLOCK}) for url in names}
    paths = {}
    for age, url in enumerate(names[:3]):
        with _fetched(url, files[url]) as paths[url]:
            pass
        os.utime(paths[url], (age, age))
    a, b, c, d = names
    in_use = hold(paths[a])
    assert in_use is not None
    limit = 41 * BLOCK  # 4 folders and their manifests do not fit
    with _fetched(d, files[d], size=limit - 10 * BLOCK) as folder:
        assert [url for url in names[:3] if paths[url].exists()] == [a, c]
        with pytest.raises(ConfigError, match="less than what is to be fetched and what is in use"):
            _fetched(b, files[b], size=20 * BLOCK).__enter__()
        _check(d, files[d], folder)
    assert not paths[c].exists()  # room was made as far as it could be
    in_use.close()
    with _fetched(b, files[b], size=21 * BLOCK):
        assert not paths[a].exists()
    assert not list((tmp_path / "cache" / "read").glob(".evicted*"))
    assert hold(tmp_path) is None  # of no cache


def test_urls(tmp_path: Path) -> None:
    assert is_url("s3://b/x")
    assert not is_url("/data/graph")
    assert not is_url(tmp_path)
    assert not is_url("./c:/data")
    with pytest.raises(ConfigError, match="give it as text"):
        is_url(Path("s3://b/x"))
    for url, message in (
        ("https://b/x", "https://b/x must be s3://bucket/folder"),
        ("s3:///x", "s3:///x must be s3://bucket/folder"),
        ("file://x/y", "file:///folder"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            ObjectFolder(url)
    for url in (
        f"s3://me:{SECRET}@b/x",
        f"s3://me:a/{SECRET}@b/x",
        f"az://b/x?sig={SECRET}",
        f"gs://b/x#{SECRET}",
    ):
        with pytest.raises(ConfigError, match="has more than a bucket and a folder") as raised:
            ObjectFolder(url)
        assert SECRET not in str(raised.value)


def test_each_provider_by_the_same_library(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "someone")
    for url in ("s3://bucket/a", "gs://bucket/a", "az://bucket/a"):
        assert ObjectFolder(url)._store.prefix == "a"
    folder = ObjectFolder(f"file://{tmp_path}/new", create=True)
    with pytest.raises(ObjectStorageError, match="none: object storage failed"):
        ObjectFolder(f"file://{tmp_path}/none")
    folder.write("a/b.bin", b"12")
    assert (tmp_path / "new" / "a" / "b.bin").read_bytes() == b"12"
    assert folder.sizes() == {"a/b.bin": 2}
    folder.remove(["a/b.bin"])
    assert folder.sizes() == {}


def test_credentials_are_in_no_text(storage) -> None:
    assert SECRET not in repr(ObjectFolder(storage.url))


def test_a_cache_that_cannot_be_written_is_named(storage, tmp_path) -> None:
    files = _write(storage.url, {"x.bin": 1})
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ConfigError, match=r"cache cannot keep copies of s3://.*: Not a directory"):
        _fetched(storage.url, files).__enter__()


def test_a_cache_is_local() -> None:
    with pytest.raises(ConfigError, match="cache_dir must be a local directory"):
        Cache("s3://bucket/cache")


def test_requests_are_encrypted_unless_the_endpoint_says_otherwise(storage, monkeypatch) -> None:
    monkeypatch.setattr(object_storage, "_RETRIES", 0)
    # the library reads this variable, too, and nobody has said that plain HTTP is meant
    monkeypatch.setenv("AWS_ENDPOINT", os.environ["AWS_ENDPOINT_URL"])
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    with pytest.raises(ObjectStorageError):
        ObjectFolder(storage.url).read(MANIFEST)
    assert storage.proxy.requests == []


def test_without_the_library_there_is_advice(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigError, match=r'pip install "gigl_loader\[objects\]"'):
        ObjectFolder("s3://bucket/a")
