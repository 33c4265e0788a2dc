"""Finished layers at a URL: a new machine goes on with them, and never with a wrong one."""

import contextlib
import itertools
import re
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from gigl_loader import DistDataset, full_graph_inference
from gigl_loader.errors import ObjectStorageError
from gigl_loader.runtime.object_storage import object_folder
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder
from gigl_loader.testing import run_ranks
from tests.runtime.object_storage import layer_jobs
from tests.runtime.object_storage.object_server import Fault, failing, flip

pytestmark = pytest.mark.usefixtures("starts_no_workers")

LAYER_0 = {"_part-00000.layer0", "_part-00000.layer0.note"}
RESULTS = {"_manifest.json", "part-00000.ids.npy", "part-00000.npy"}


@pytest.fixture
def lose_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what gives this machine an empty cache."""
    numbers = itertools.count()
    return lambda: monkeypatch.setenv(
        "GIGL_LOADER_CACHE_DIR", str(tmp_path / f"machine-{next(numbers)}")
    )


def _run(url: str, stop_in: int | None = None, **how: Any) -> tuple[str, Any]:
    """Return the layers that were computed, a digit for each chunk, and the rows.

    Args:
        url: Where to.
        stop_in: The layer in which it breaks off; then there are no rows.
        how: Other arguments.
    """
    seen: list[str] = []

    def begins(layer: int) -> None:
        if layer == stop_in:
            raise KeyboardInterrupt
        seen.append(str(layer))

    rows = None
    with contextlib.suppress(KeyboardInterrupt):
        rows = full_graph_inference(
            layer_jobs.layers(begins),
            DistDataset.from_pyg(layer_jobs.graph()),
            out=url,
            progress=False,
            **{"batch_size": 8, **how},
        )
    return "".join(seen), rows.values if rows is not None else None


def _right(rows: Any) -> bool:
    return torch.equal(rows, layer_jobs.expected())


@pytest.mark.multiprocess
@pytest.mark.parametrize("uploaded", [True, False])
def test_a_rank_whose_machine_is_lost_goes_on_with_the_last_layer(
    storage, tmp_path, uploaded
) -> None:
    names = {f"_part-0000{rank}.layer0" for rank in range(layer_jobs.WORLD)}
    folder = ObjectFolder(storage.url)

    def run(name: str, victim: int) -> list[str]:
        (tmp_path / f"group-{name}").mkdir()
        run_ranks(
            layer_jobs.infer,
            tmp_path,
            name,
            storage.url,
            victim,
            world_size=layer_jobs.WORLD,
            tmp_path=tmp_path / f"group-{name}",
            may_die=[victim],
        )
        files = [tmp_path / f"{name}{rank}" for rank in range(layer_jobs.WORLD)]
        return [file.read_text() if file.exists() else "" for file in files]

    first = run("first", victim=1)
    assert first[1] == "000"
    assert {*folder.sizes()} == names | {f"{name}.note" for name in names}
    shutil.rmtree(tmp_path / "cache1")
    if not uploaded:  # as if it had been lost a little earlier
        folder.remove(["_part-00001.layer0.note"])
    storage.proxy.requests.clear()
    second = run("second", victim=-1)
    # all ranks begin with the same layer; what one of them still has of it is not computed again
    assert second[1] == ("111222" if uploaded else "000111222")
    assert "0" not in second[0]
    fetched = {r.key.rpartition("/")[2] for r in storage.proxy.requests if r.body and r.key}
    assert names & fetched == ({"_part-00001.layer0"} if uploaded else set())
    rows = torch.empty_like(layer_jobs.expected())
    for rank in range(layer_jobs.WORLD):
        ids, part = (
            np.load(BytesIO(folder.read(f"part-0000{rank}.{end}"))) for end in ("ids.npy", "npy")
        )
        rows[ids] = torch.from_numpy(part)
    assert _right(rows)
    assert not [name for name in folder.sizes() if name.startswith("_part")]


def test_each_layer_takes_the_place_of_the_one_before(storage, lose_machine) -> None:
    assert _run(storage.url, stop_in=0) == ("", None)
    assert ObjectFolder(storage.url).sizes() == {}
    for stop_in, computed in ((1, "000"), (2, "111")):
        lose_machine()
        assert _run(storage.url, stop_in)[0] == computed
        objects = {*ObjectFolder(storage.url).sizes()}
        assert objects == {name.replace("layer0", f"layer{stop_in - 1}") for name in LAYER_0}
    lose_machine()
    storage.proxy.faults = [Fault(failing(503, "SlowDown"), r".*layer1.*", times=2)]
    computed, rows = _run(storage.url)
    assert computed == "222"
    assert _right(rows)
    assert storage.proxy.faults[0].times == 0
    assert {*ObjectFolder(storage.url).sizes()} == RESULTS
    puts = [r.key.rpartition("/")[2] for r in storage.proxy.requests if r.method == "PUT"]
    for layer in (0, 1):
        assert puts.count(f"_part-00000.layer{layer}") == 1, "once, however often it goes on"
    assert not [name for name in puts if "layer2" in name], "its rows are the results"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("a byte of rows", "layer 0 is computed again: .*layer0: bytes 0 to .* do not match"),
        ("a byte of the note", r"layer0\.note is not used: it does not match its checksum"),
        ("no rows", "layer 0 is computed again: .*layer0 is missing"),
        ("no note", ""),
        ("rows of another run", "layer 0 is computed again: .*layer0: bytes 0 to"),
        ("another run", r"layer0\.note is not used: it is of a run that differs in \['batch_size"),
        ("no text", r"layer0\.note is not used: "),
    ],
)
def test_what_is_not_whole_or_of_another_run_is_computed_again(
    storage, lose_machine, caplog, damage, words
) -> None:
    if damage == "another run":
        _run(storage.url, stop_in=1, batch_size=20)
    else:
        assert _run(storage.url, stop_in=1)[0] == "000"
    folder = ObjectFolder(storage.url)
    assert {*folder.sizes()} == LAYER_0
    if damage.startswith("a byte"):
        key = r".*layer0" if damage.endswith("rows") else r".*\.note"
        storage.proxy.faults = [Fault(flip, key)]
    elif damage == "no rows":
        folder.remove(["_part-00000.layer0"])
    elif damage == "no note":
        folder.remove(["_part-00000.layer0.note"])
    elif damage == "rows of another run":
        size = folder.sizes()["_part-00000.layer0"]
        folder.write("_part-00000.layer0", bytes(size))
    elif damage == "no text":
        folder.write("_part-00000.layer0.note", b"\xff\xfe")
    lose_machine()
    assert _run(storage.url, stop_in=1)[0] == "000"
    storage.proxy.faults = []
    lose_machine()
    computed, rows = _run(storage.url)
    assert computed == "111222", "what was computed again took the place of what was damaged"
    assert _right(rows)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == (1 if words else 0)
    assert all(re.search(words, warning) for warning in warnings)
    assert {*folder.sizes()} == RESULTS


def test_a_layer_that_is_damaged_on_this_machine_is_fetched(storage, tmp_path) -> None:
    assert _run(storage.url, stop_in=1)[0] == "000"
    (path,) = (tmp_path / "cache").rglob("_part-00000.layer0")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    computed, rows = _run(storage.url)
    assert computed == "111222"
    assert _right(rows)


def test_what_the_server_refuses_is_an_error_and_costs_nothing(
    storage, lose_machine, monkeypatch
) -> None:
    monkeypatch.setattr(object_folder, "_RETRIES", 1)
    storage.proxy.faults = [Fault(failing(503, "SlowDown"), r".*layer0", "PUT")]
    with pytest.raises(ObjectStorageError, match=r"layer0: object storage failed: .*503"):
        _run(storage.url)
    assert {*ObjectFolder(storage.url).sizes()} == {"_part-00000.layer0"}
    storage.proxy.faults = []
    assert _run(storage.url, stop_in=1)[0] == "", "this machine has the layer"
    assert {*ObjectFolder(storage.url).sizes()} == LAYER_0, "and now the next one can have it"
    lose_machine()
    for key in (r".*layer0", r".*layer0\.note"):
        storage.proxy.faults = [Fault(failing(503, "SlowDown"), key)]
        with pytest.raises(ObjectStorageError, match=f"{key}: object storage failed: .*503"):
            _run(storage.url)
    storage.proxy.faults = []
    computed, rows = _run(storage.url)
    assert computed == "111222"
    assert _right(rows)


def test_a_layer_that_computes_nothing_for_a_type_is_known_to_the_next_machine(
    storage, lose_machine
) -> None:
    data = HeteroData()
    data["user"].x, data["item"].x = torch.rand(6, 2), torch.rand(9, 2)
    data["user", "buys", "item"].edge_index = torch.randint(6, (2, 30))
    data["item", "in", "item"].edge_index = torch.randint(9, (2, 30))
    seen: list[tuple[int, str]] = []

    def layer(index: int, stops: bool) -> Any:
        def compute(x: Any, edge_index: Any, num_dst: Any) -> Any:
            if stops:
                raise KeyboardInterrupt
            seen.extend((index, name) for name in num_dst)
            if "item" in num_dst:
                return {"item": x["item"][: num_dst["item"]] + index + 1}
            return {}

        return compute

    def run(stops: bool) -> Any:
        seen.clear()
        model = [layer(0, False), layer(1, stops)]
        return full_graph_inference(
            model, DistDataset.from_pyg(data), out=storage.url, progress=False
        )

    with pytest.raises(KeyboardInterrupt):
        run(True)
    assert seen == [(0, "item"), (0, "user")]
    names = {f"item/{name}" for name in LAYER_0} | {"user/_part-00000.layer0.note"}
    assert {*ObjectFolder(storage.url).sizes()} == names
    lose_machine()
    found = run(False)
    assert seen == [(1, "item"), (1, "user")]
    assert torch.equal(found["item"].values, data["item"].x + 1 + 2)
    assert not [name for name in ObjectFolder(storage.url).sizes() if "layer" in name]
