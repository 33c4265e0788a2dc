"""Checkpoints of training: at a path and at a URL, whole or not there, whatever is killed."""

import errno
import itertools
import os
import random
import signal
import sys
import threading
import zipfile
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader, load_checkpoint, save_checkpoint
from gigl_loader.errors import ConfigError, ObjectStorageError, ResourceError
from gigl_loader.runtime.object_storage import object_folder
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder
from gigl_loader.testing import batch_digest
from tests.runtime.object_storage.object_server import Fault, failing, flip, hold_back
from tests.support.scripts import ForkedPython

STATE = {"model": {"weight": torch.arange(300.0)}, "loader": {"yielded": 4, "seed": None}}


def _equal(found: Any, expected: Mapping[str, Any] = STATE) -> bool:
    model = found.pop("model")["weight"]
    rest = {name: value for name, value in expected.items() if name != "model"}
    return torch.equal(model, expected["model"]["weight"]) and found == rest


@pytest.fixture(params=["path", "URL"])
def where(request: pytest.FixtureRequest, storage: Any, tmp_path: Path) -> Any:
    return tmp_path / "new" / "model.pt" if request.param == "path" else f"{storage.url}/a/model.pt"


def _names(where: Any) -> list[str]:
    """Return all that is beside a checkpoint, with hidden files, and what is left in the cache."""
    cache = Path(os.environ["GIGL_LOADER_CACHE_DIR"])
    left = [path.name for path in cache.rglob("*") if path.is_file()]
    if isinstance(where, Path):
        return [*(path.name for path in where.parent.iterdir()), *left]
    return [*ObjectFolder(where.rpartition("/")[0]).sizes(), *left]


def test_a_job_goes_on_with_the_batch_after_its_checkpoint(where) -> None:
    ids = torch.arange(40)
    data = Data(x=ids[:, None].float(), edge_index=torch.stack([ids, (ids * 7 + 3) % 40]))
    dataset = DistDataset.from_pyg(data)

    def make() -> DistNeighborLoader:
        return DistNeighborLoader(
            dataset, [2, 2], ids, batch_size=4, shuffle=True, seed=1, num_workers=0
        )

    assert load_checkpoint(where) is None
    model = torch.nn.Linear(1, 2)
    optimizer = torch.optim.Adam(model.parameters())
    with make() as loader:
        batches = iter(loader)
        for number, batch in enumerate(itertools.islice(batches, 4), start=1):
            model(batch.x).sum().backward()
            optimizer.step()
            parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
            state = {name: part.state_dict() for name, part in parts.items()}
            save_checkpoint({**state, "step": number}, where)
        rest = [batch_digest(batch) for batch in batches]
    saved = load_checkpoint(where, map_location="cpu")
    assert saved is not None
    assert saved["step"] == 4
    assert _names(where) == ["model.pt"], "one, and nothing beside it"
    again = torch.nn.Linear(1, 2)
    again.load_state_dict(saved["model"])
    assert torch.equal(again.weight, model.weight)
    torch.optim.Adam(again.parameters()).load_state_dict(saved["optimizer"])
    with make() as loader:
        loader.load_state_dict(saved["loader"])
        assert [batch_digest(batch) for batch in loader] == rest
    if isinstance(where, Path):
        assert zipfile.ZipFile(where).testzip() is None
        # what torch.save writes, with its usual permissions; and both can be loaded
        assert torch.load(where, weights_only=True).keys() == saved.keys()
        assert load_checkpoint(where.with_name("none")) is None
        torch.save({"a": 1}, where.with_name("other"))
        assert load_checkpoint(where.with_name("other")) == {"a": 1}
        assert where.stat().st_mode == where.with_name("other").stat().st_mode


KILLED = """
import os, signal, sys
import torch
from gigl_loader import load_checkpoint, save_checkpoint
name = sys.argv[2]
if name:
    def end(*args):
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "write":  # in the middle of the file
        torch.save = lambda state, file: (file.write(bytes(500)), file.flush(), end())
    else:
        setattr(os, name, end)
save_checkpoint({"model": {"weight": torch.zeros(10_000_000)}}, sys.argv[1])
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("where", "moment"),
    [("path", "write"), ("path", "fsync"), ("path", "replace"), ("URL", "write"), ("URL", "fsync")],
    indirect=["where"],
)
def test_a_job_killed_while_it_saves_leaves_the_checkpoint_before(where, moment) -> None:
    save_checkpoint(STATE, where)
    with ForkedPython([sys.executable, "-c", KILLED, str(where), moment]) as job:
        assert job.wait() == -signal.SIGKILL
    assert _equal(load_checkpoint(where))


@pytest.mark.multiprocess
def test_a_job_killed_while_it_uploads_leaves_the_checkpoint_before(storage) -> None:
    url = f"{storage.url}/model.pt"
    save_checkpoint(STATE, url)
    arrived, release = threading.Event(), threading.Event()
    storage.proxy.faults = [Fault(hold_back(arrived, release), r".*/model\.pt", "PUT")]
    job = ForkedPython([sys.executable, "-c", KILLED, url, ""])
    assert arrived.wait(120), "the first of three parts"
    job.kill()
    assert job.wait() == -signal.SIGKILL
    release.set()
    storage.proxy.faults = []
    assert _equal(load_checkpoint(url))


def _is_refused(path: Path) -> bool:
    """Return whether a checkpoint is an error that names it; else it is what was saved."""
    try:
        assert _equal(load_checkpoint(path))
    except ConfigError as error:
        return str(path) in str(error)
    return False


def test_no_wrong_byte_is_loaded(tmp_path) -> None:
    path = tmp_path / "model.pt"
    save_checkpoint(STATE, path)
    data = path.read_bytes()
    outcomes: Counter[bool] = Counter()
    positions = random.Random(0).sample(range(len(data)), 300)
    for position in [0, len(data) - 1, *positions]:
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x11]) + data[position + 1 :])
        outcomes[_is_refused(path)] += 1
    # but for the start and the length of the comment: without them, it is a file of torch.save
    assert outcomes[False] <= 14
    for length in (0, 1, len(data) // 2, len(data) - 60):
        path.write_bytes(data[:length])
        with pytest.raises(ConfigError, match=rf"{path} (cannot be loaded: \w+|is no check)"):
            load_checkpoint(path)


class Code:
    """Runs what a file says when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("run-by-a-checkpoint",)


def test_code_in_a_checkpoint_is_not_run(where, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = BytesIO()
    torch.save({"model": Code()}, written)
    if isinstance(where, Path):
        where.parent.mkdir()
        where.write_bytes(written.getvalue())
    else:
        ObjectFolder(where.rpartition("/")[0]).write("model.pt", written.getvalue())
    with pytest.raises(ConfigError, match="has more than tensors") as raised:
        load_checkpoint(where)
    assert str(where) in str(raised.value)
    assert not Path("run-by-a-checkpoint").exists()


class _Kind(IntEnum):
    A = 1


def _cyclic() -> list[Any]:
    values: list[Any] = [Path("x")]
    values.append(values)
    return values


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"best": np.float64(0.5)}, r"state\['best'\] is of type numpy.float64.*Save its item\("),
        (
            {"a": {"b": [1, np.arange(3)]}},
            r"state\['a'\]\['b'\]\[1\] is of type numpy.ndarray.*from_numpy",
        ),
        (
            {"args": Namespace(lr=0.1)},
            r"state\['args'\] is of type argparse.Namespace.*Save vars\(\)",
        ),
        (
            {"out": (None, Path("x"))},
            r"state\['out'\]\[1\] is of type pathlib.PosixPath.*Save str\(\)",
        ),
        (
            {"model": torch.nn.Linear(1, 2)},
            r"state\['model'\] is of type torch.*Linear.*Save its state_dict",
        ),
        (
            {"optimizer": torch.optim.SGD([torch.zeros(1)], 0.1)},
            r"is of type torch.*SGD.*Save its state_",
        ),
        ({"by": {np.int64(3): 1}}, r"a key of state\['by'\] is of type numpy.int64"),
        ({"tags": {"a", Path("b")}}, r"an element of state\['tags'\] is of type pathlib"),
        ({"kind": _Kind.A}, r"state\['kind'\] is of type .*_Kind.*Save tensors and plain values"),
        ({"f": lambda: 0}, r"state\['f'\] is of type function.*Save tensors and plain values"),
        ({"lock": threading.Lock()}, r"state\['lock'\] is of type _thread.lock"),
        ({"code": Code()}, r"state\['code'\] is of type .*Code"),
        ({"cycle": _cyclic()}, r"state\['cycle'\]\[0\] is of type pathlib"),
        (torch.nn.Linear(1, 2), r"state must be a dict of parts by name, got torch.*Linear"),
    ],
    ids=lambda value: "" if isinstance(value, str) else None,
)
def test_what_could_not_be_loaded_is_refused_by_its_place_when_it_is_saved(
    tmp_path, state, words
) -> None:
    path = tmp_path / "model.pt"
    save_checkpoint(STATE, path)
    with pytest.raises(ConfigError, match=words):
        save_checkpoint(state, path)
    assert _equal(load_checkpoint(path)), "the checkpoint before is left"
    assert os.listdir(tmp_path) == ["model.pt"]


def test_what_can_be_loaded_is_saved(tmp_path) -> None:
    shared = [1, 2]
    state: dict[Any, Any] = {
        "model": torch.nn.BatchNorm1d(2).state_dict(),  # with versions in an attribute
        "plain": [None, True, 1, 0.5, 1j, "a", b"b", (1, (2,)), {3, 4}, bytearray(b"c")],
        "torch": [
            torch.Size([1]),
            torch.float16,
            torch.device("cpu"),
            torch.nn.Parameter(torch.ones(2)),
        ],
        "counts": Counter(a=1),
        1: {(1, "a"): shared, "b": shared},
        "rng": torch.get_rng_state(),
    }
    save_checkpoint(state, tmp_path / "model.pt")
    loaded = load_checkpoint(tmp_path / "model.pt")
    assert loaded is not None
    assert repr(loaded) == repr(state)
    assert loaded["model"]._metadata == state["model"]._metadata


def test_a_full_disk_is_named_and_leaves_the_checkpoint_before(where, monkeypatch) -> None:
    save_checkpoint(STATE, where)

    def full(state: Any, file: Any) -> None:
        file.write(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(ResourceError, match=r"saving .*model\.pt: .*the disk is full"):
        save_checkpoint(STATE, where)
    assert _names(where) == ["model.pt"]
    assert _equal(load_checkpoint(where))


def test_what_cannot_be_read_or_written_is_named(storage, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(object_folder, "_RETRIES", 1)
    url = f"{storage.url}/model.pt"
    (tmp_path / "file").touch()
    for call in (load_checkpoint, lambda place: save_checkpoint(STATE, place)):
        for place, words in {
            f"{storage.url}/": "is a folder: give the URL of a file in it",
            Path(url): r"give it as text \(a Path loses a slash\)",
            tmp_path: "Is a directory",
            tmp_path / "file" / "model.pt": "Not a directory|File exists",
        }.items():
            with pytest.raises(ConfigError, match=words):
                call(place)
    storage.proxy.faults = [Fault(failing(503, "SlowDown"), r".*/model\.pt", times=1)]
    assert load_checkpoint(url) is None
    save_checkpoint(STATE, url)
    storage.proxy.faults = [Fault(flip, r".*/model\.pt")]
    with pytest.raises(ConfigError, match=f"{url} is damaged"):
        load_checkpoint(url)
    for method in ("GET", "PUT"):
        storage.proxy.faults = [Fault(failing(503, "SlowDown"), r".*/model\.pt", method)]
        with pytest.raises(ObjectStorageError, match=f"{url}: object storage failed: .*503"):
            save_checkpoint(STATE, url) if method == "PUT" else load_checkpoint(url)
    storage.proxy.faults = []
    assert _equal(load_checkpoint(url))
    assert _names(url) == ["model.pt"]


@pytest.mark.parametrize("end", ["?X-Amz-Signature=secret", "?a=b/c&sig=secret", "#secret"])
def test_a_signed_url_is_refused_without_its_signature(storage, end) -> None:
    for use in (load_checkpoint, lambda url: save_checkpoint(STATE, url)):
        with pytest.raises(ConfigError, match="more than a bucket and a folder") as refused:
            use(f"{storage.url}/a/model.pt{end}")
        assert "secret" not in str(refused.value)
        assert refused.value.__context__ is None
    assert not ObjectFolder(storage.url).sizes()


@pytest.mark.parametrize(("status", "code"), [(404, "NoSuchBucket"), (403, "AccessDenied")])
def test_a_bucket_that_is_not_there_is_not_a_job_without_a_checkpoint(
    storage, status, code
) -> None:
    url = f"{storage.url}/model.pt"
    assert load_checkpoint(url) is None
    storage.proxy.faults = [Fault(failing(status, code), r".*/model\.pt")]
    with pytest.raises((ConfigError, ObjectStorageError), match=rf"{url}.*{code}"):
        load_checkpoint(url)
