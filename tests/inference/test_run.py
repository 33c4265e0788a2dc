"""One run over the layers: what it holds, and how it goes on after one that was broken off."""

import contextlib
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gigl_loader.inference import layerwise
from gigl_loader.inference.layerwise import full_graph_inference
from gigl_loader.inference.results import Results
from tests.inference import full_jobs
from tests.inference.layerwise_jobs import make, whole
from tests.support.conditions import SetConstants

DATASET = full_jobs.partition(full_jobs.graph(), 0, 1)


def _break_off(out: Path, *, after: int) -> list[int]:
    """Run a model that stops; return the chunks of layer 0 that it began."""
    seen: list[int] = []

    def first(x: torch.Tensor, edge_index: torch.Tensor, num_dst: int) -> torch.Tensor:
        if len(seen) == after:
            raise KeyboardInterrupt
        seen.append(num_dst)
        return x[:num_dst] * 2

    with contextlib.suppress(KeyboardInterrupt):
        full_graph_inference([first], DATASET, out=out, batch_size=20)
    return seen


def test_a_damaged_chunk_is_computed_again(tmp_path: Path, caplog: Any) -> None:
    assert len(_break_off(tmp_path, after=2)) == 2
    rows = np.load(tmp_path / "_part-00000.layer0", mmap_mode="r+")
    rows[3] = 7
    rows.flush()
    assert len(_break_off(tmp_path, after=9)) == 2
    assert "chunk 0 of layer 0 was damaged" in caplog.text
    assert np.array_equal(np.load(tmp_path / "part-00000.npy"), 2 * full_jobs.graph().x.numpy())
    assert _break_off(tmp_path, after=9) == []


def test_a_log_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    _break_off(tmp_path, after=9)
    log = tmp_path / "_part-00000.log"
    log.write_text(log.read_text()[:-2])
    assert len(_break_off(tmp_path, after=9)) == 1


def test_the_memory_of_a_chunk_is_free_before_the_next_one_is_computed() -> None:
    """Without the help of the garbage collector, which may be long in coming."""
    seen: list[weakref.ref[torch.Tensor]] = []
    alive = []

    def layer(x: torch.Tensor, edge_index: torch.Tensor, num_dst: int) -> torch.Tensor:
        alive.append(sum(one() is not None for one in seen))
        seen.append(weakref.ref(x))
        return x[:num_dst]

    gc.disable()
    try:
        full_graph_inference([layer], DATASET, batch_size=5)
    finally:
        gc.enable()
    assert alive == [0] * 12


def test_half_the_width_is_kept() -> None:
    model = make("SAGE")
    found: Any = full_graph_inference(model, DATASET, dtype=torch.float16)
    assert found.values.dtype == torch.float16
    torch.testing.assert_close(found.values.float(), whole(model), rtol=1e-2, atol=1e-2)


def test_a_run_goes_on_at_the_last_layer_that_is_whole(tmp_path: Path) -> None:
    """Three layers; the second is broken off in the middle: the first is not computed again."""
    seen: list[str] = []

    def layer(name: str, stops: int | None = None) -> Any:
        def compute(x: torch.Tensor, edge_index: torch.Tensor, num_dst: int) -> torch.Tensor:
            if stops is not None and seen.count(name) == stops:
                raise KeyboardInterrupt
            seen.append(name)
            return x[:num_dst] + 1

        return compute

    with contextlib.suppress(KeyboardInterrupt):
        full_graph_inference(
            [layer("a"), layer("b", 2), layer("c")], DATASET, out=tmp_path, batch_size=20
        )
    assert seen == ["a"] * 3 + ["b"] * 2
    seen.clear()
    found: Any = full_graph_inference(
        [layer("a"), layer("b"), layer("c")], DATASET, out=tmp_path, batch_size=20
    )
    assert seen == ["b"] + ["c"] * 3
    assert torch.equal(found.values, full_jobs.graph().x + 1 + 1 + 1)
    assert not list(tmp_path.glob("*.layer*")), "files of layers that nothing reads are gone"
    seen.clear()
    again: Any = full_graph_inference(
        [layer("a"), layer("b"), layer("c")], DATASET, out=tmp_path, batch_size=20
    )
    assert seen == []
    assert torch.equal(again.values, found.values)


def test_freed_memory_goes_back_every_few_chunks(
    libc_is: Callable[..., None], constants: SetConstants
) -> None:
    given: list[int] = []
    chunks: list[int] = []
    libc_is(malloc_trim=lambda kept: given.append(len(chunks)))
    constants(layerwise, _GIVE_BACK_EVERY=5)

    def layer(x: torch.Tensor, edge_index: torch.Tensor, num_dst: int) -> torch.Tensor:
        chunks.append(num_dst)
        return x[:num_dst]

    full_graph_inference([layer], DATASET, batch_size=5)
    assert given == [0, 5, 10]


def test_rows_are_noted_after_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the two leaves rows that are computed again, and never a log of no rows."""
    note = Results.note
    found = []

    def checked(self: Results, layer: int, chunk: int, rows: torch.Tensor) -> None:
        on_disk = np.load(tmp_path / "_part-00000.layer0")[chunk * 20 : chunk * 20 + 20]
        found.append(np.array_equal(on_disk, full_jobs.graph().x[chunk * 20 : chunk * 20 + 20]))
        note(self, layer, chunk, rows)

    monkeypatch.setattr(Results, "note", checked)
    full_graph_inference([lambda x, e, n: x[:n]], DATASET, out=tmp_path, batch_size=20)
    assert found == [True] * 3
