"""Rows of layers in files, and what of them is taken up again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg

from gigl_loader.errors import ConfigError
from gigl_loader.inference.results import Results, model_digest, tensor_digest

IDS = torch.arange(7)
ROWS = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))


def _bounds(chunk: int) -> tuple[int, int]:
    return chunk * 3, min(chunk * 3 + 3, 7)


def _open(folder: Path | None, ids: torch.Tensor = IDS, **identity: Any) -> Results:
    return Results(folder, 1, ids, {"model": "m", **identity})


def _write(results: Results, chunks: list[int], layer: int = 0, last: bool = False) -> torch.Tensor:
    rows = results.create(layer, 3, torch.float32, last=last)
    for chunk in chunks:
        start, stop = _bounds(chunk)
        rows[start:stop] = ROWS[start:stop]
        results.note(layer, chunk, rows[start:stop])
    return rows


def test_finished_chunks_are_found_again(tmp_path: Path) -> None:
    results = _open(tmp_path)
    _write(results, [0, 2])
    results.close()
    again = _open(tmp_path)
    rows = again.existing(0, last=False)
    assert rows is not None
    assert again.finished(0, rows, _bounds) == {0, 2}
    assert torch.equal(rows[:3], ROWS[:3])
    assert again.existing(1, last=False) is None
    rows[3:6] = ROWS[3:6]
    again.note(0, 1, rows[3:6])
    again.close()
    once_more = _open(tmp_path)
    rows = once_more.existing(0, last=False)
    assert rows is not None
    assert once_more.finished(0, rows, _bounds) == {0, 1, 2}, "written to the same file"
    once_more.close()


def test_in_memory_nothing_is_kept_for_later() -> None:
    results = _open(None)
    _write(results, [0, 1, 2])
    assert results.existing(0, last=False) is None
    assert results.path() is None
    results.note_nothing(1)
    assert results.has_nothing(1)
    assert not results.has_nothing(0)
    results.forget(0)
    results.close()


@pytest.mark.parametrize(
    ("ids", "identity", "named"),
    [
        (IDS, {"model": "other"}, r"\['model'\]"),
        (IDS + 1, {}, r"\['ids'\]"),
        (IDS, {"more": 1}, r"\['more'\]"),
        (IDS[:3], {"model": "x"}, r"\['ids', 'model'\]"),
    ],
)
def test_another_run_is_refused_before_it_writes(
    ids: torch.Tensor, identity: dict[str, Any], named: str, tmp_path: Path
) -> None:
    results = _open(tmp_path)
    _write(results, [0])
    results.close()
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=rf"_part-00001.json is of a run that differs in {named}"):
        _open(tmp_path, ids, **identity)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


def test_parts_of_one_folder_do_not_meet(tmp_path: Path) -> None:
    for part in (0, 1):
        results = Results(tmp_path, part, IDS + part, {"rank": part})
        _write(results, [part])
        results.close()
    results = Results(tmp_path, 0, IDS, {"rank": 0})
    rows = results.existing(0, last=False)
    assert rows is not None
    assert results.finished(0, rows, _bounds) == {0}
    results.close()


def test_rows_that_are_not_as_they_were_left_count_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results = _open(tmp_path)
    _write(results, [0, 1])
    results.close()
    file = tmp_path / "_part-00001.layer0"
    mapped = np.load(file, mmap_mode="r+")
    mapped[4, 2] += 1
    mapped.flush()
    again = _open(tmp_path)
    rows = again.existing(0, last=False)
    assert rows is not None
    assert again.finished(0, rows, _bounds) == {0}
    assert "chunk 1 of layer 0 was damaged" in caplog.text
    again.close()


@pytest.mark.parametrize("how", ["removed", "cut", "other rows"])
def test_a_file_that_is_not_whole_is_computed_anew(how: str, tmp_path: Path) -> None:
    results = _open(tmp_path)
    _write(results, [0, 1, 2])
    results.close()
    file = tmp_path / "_part-00001.layer0"
    if how == "removed":
        file.unlink()
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:50])
    else:
        with file.open("wb") as other:
            np.save(other, np.zeros((5, 3), np.float32))
    again = _open(tmp_path)
    assert again.existing(0, last=False) is None
    assert again.finished(0, ROWS, _bounds) == set(), "the log is of rows that are gone"
    again.close()


def test_a_file_whose_end_is_gone_keeps_what_is_before_it(tmp_path: Path) -> None:
    """numpy makes a mapped file as long as its header says: what it adds are zeros."""
    results = _open(tmp_path)
    _write(results, [0, 1, 2])
    results.close()
    file = tmp_path / "_part-00001.layer0"
    file.write_bytes(file.read_bytes()[:-8])
    again = _open(tmp_path)
    rows = again.existing(0, last=False)
    assert rows is not None
    assert again.finished(0, rows, _bounds) == {0, 1}
    again.close()


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_a_line_that_was_cut_off_takes_no_other_with_it(cut: int, tmp_path: Path) -> None:
    results = _open(tmp_path)
    _write(results, [0, 1])
    results.close()
    log = tmp_path / "_part-00001.log"
    log.write_text(log.read_text()[:-cut])
    again = _open(tmp_path)
    rows = again.existing(0, last=False)
    assert rows is not None
    wanted = {0, 1} if cut == 1 else {0}  # without its newline the line is whole
    assert again.finished(0, rows, _bounds) == wanted
    rows[6:] = ROWS[6:]
    again.note(0, 2, rows[6:])
    again.close()
    once_more = _open(tmp_path)
    rows = once_more.existing(0, last=False)
    assert rows is not None
    assert once_more.finished(0, rows, _bounds) == {*wanted, 2}
    once_more.close()


def test_a_layer_without_rows_for_the_type_is_remembered(tmp_path: Path) -> None:
    results = _open(tmp_path)
    results.note_nothing(2)
    results.close()
    again = _open(tmp_path)
    assert again.has_nothing(2)
    assert not again.has_nothing(1)
    again.close()


def test_a_layer_that_nothing_reads_is_removed_and_the_last_one_stays(tmp_path: Path) -> None:
    results = _open(tmp_path)
    _write(results, [0])
    _write(results, [0], layer=1, last=True)
    results.forget(0)
    results.forget(0)
    assert not (tmp_path / "_part-00001.layer0").exists()
    assert results.path() == tmp_path / "part-00001.npy"
    results.finish(1)
    assert np.array_equal(np.load(tmp_path / "part-00001.ids.npy"), IDS.numpy())
    assert np.load(tmp_path / "part-00001.npy").shape == (7, 3)
    results.close()


def test_a_rank_without_nodes_has_empty_files(tmp_path: Path) -> None:
    results = _open(tmp_path, IDS[:0])
    assert results.create(0, 3, torch.float16, last=True).shape == (0, 3)
    results.finish(0)
    found = np.load(tmp_path / "part-00001.npy")
    assert (found.shape, found.dtype) == ((0, 3), np.float16)
    results.close()


def test_what_was_computed_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    _open(tmp_path, ranks=2).close()
    found = json.loads((tmp_path / "_part-00001.json").read_text())
    assert (found["model"], found["ranks"]) == ("m", 2)
    assert not list(tmp_path.glob("*.half"))


def test_digests_tell_values_apart() -> None:
    assert tensor_digest(ROWS) == tensor_digest(ROWS.clone())
    assert tensor_digest(ROWS.t()) == tensor_digest(ROWS.t().contiguous())
    assert tensor_digest(ROWS) != tensor_digest(ROWS + 1)
    assert tensor_digest(ROWS.bfloat16()) != tensor_digest(ROWS.half())
    assert tensor_digest(ROWS[:0]) == tensor_digest(ROWS[:0])


def test_models_are_told_apart_by_structure_and_values() -> None:
    def model(aggr: str = "mean", scale: float = 1.0) -> torch.nn.Module:
        torch.manual_seed(0)
        made = pyg.SAGEConv(4, 4, aggr=aggr)
        with torch.no_grad():
            made.lin_l.bias.mul_(scale)
        return made

    assert model_digest(model()) == model_digest(model())
    assert model_digest(model()) != model_digest(model(scale=2.0))
    assert model_digest(model()) != model_digest(torch.nn.Sequential(model()))
    layers = [model(), lambda x, e, n: x[:n]]
    assert model_digest(layers) == model_digest([model(), lambda x, e, n: 2 * x[:n]]), (
        "what a function does cannot be told, and its address differs in each run"
    )
    assert model_digest(layers) != model_digest([model(scale=2.0), layers[1]])


@pytest.mark.parametrize("how", ["cut", "damaged"])
def test_a_finished_file_that_was_damaged_has_its_name_again_when_it_is_whole(
    how: str, tmp_path: Path
) -> None:
    results = _open(tmp_path)
    _write(results, [0, 1, 2], last=True)
    results.finish(0)
    results.close()
    file = tmp_path / "part-00001.npy"
    content = file.read_bytes()
    file.write_bytes(content[:50] if how == "cut" else content[:-1] + b"\x01")
    again = _open(tmp_path)
    rows: Any = again.existing(0, last=True)
    if how == "cut":
        assert rows is None
        rows = again.create(0, 3, torch.float32, last=True)
    else:
        assert again.finished(0, rows, _bounds) == {0, 1}
        again.withdraw(0)
    assert not file.exists()
    rows[:] = ROWS
    again.finish(0)
    assert file.read_bytes() == content
    again.close()
