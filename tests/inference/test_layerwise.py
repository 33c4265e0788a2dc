"""Layer by layer in chunks, against PyG in one process."""

import contextlib
import gc
import re
import weakref
from pathlib import Path
from typing import Any

import full_jobs
import layerwise_jobs
import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from layerwise_jobs import OUT, WIDTH, make, whole

from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.inference import parquet
from gigl_loader.inference.layerwise import full_graph_inference
from gigl_loader.testing import run_ranks

ranks = pytest.mark.multiprocess
DATASET = full_jobs.partition(full_jobs.graph(), 0, 1)


def test_one_process_needs_no_group(tmp_path: Path) -> None:
    layerwise_jobs.same_as_one_process(0, 1, tmp_path)


@ranks
@pytest.mark.parametrize(
    ("job", "world"), [("same_as_one_process", 3), ("a_rank_without_nodes", 2)]
)
def test_ranks(job: str, world: int, tmp_path: Path) -> None:
    group, out = tmp_path / "group", tmp_path / "out"
    group.mkdir()
    run_ranks(getattr(layerwise_jobs, job), out, world_size=world, tmp_path=group)


@ranks
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    for job, may_die in (("killed", [0]), ("resumed", [])):
        group = tmp_path / job
        group.mkdir()
        run_ranks(
            getattr(layerwise_jobs, job), tmp_path / "out", world_size=2, tmp_path=group,
            may_die=may_die,
        )  # fmt: skip


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
    rows = np.load(tmp_path / "part-00000.npy", mmap_mode="r+")
    rows[3] = 7
    rows.flush()
    assert len(_break_off(tmp_path, after=9)) == 2
    assert "chunk 0 of layer 0 was damaged" in caplog.text
    assert np.array_equal(np.load(tmp_path / "part-00000.npy"), 2 * full_jobs.graph().x.numpy())
    assert _break_off(tmp_path, after=9) == []


def test_a_log_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    _break_off(tmp_path, after=9)
    log = tmp_path / "part-00000.log"
    log.write_text(log.read_text()[:-2])
    assert len(_break_off(tmp_path, after=9)) == 1


def test_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    full_graph_inference(make("SAGE"), DATASET, out=tmp_path, batch_size=20)
    with pytest.raises(ConfigError, match=r"differs in \['model'\]"):
        full_graph_inference(make("GIN"), DATASET, out=tmp_path, batch_size=20)
    with pytest.raises(ConfigError, match=r"differs in \['batch_size'\]"):
        full_graph_inference(make("SAGE"), DATASET, out=tmp_path, batch_size=10)


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


def test_the_size_of_chunks_goes_by_what_they_read() -> None:
    def rows_of(width: int) -> list[int]:
        data = full_jobs.Data(x=torch.randn(600, width), edge_index=torch.randint(600, (2, 3000)))
        sizes: list[int] = []

        def layer(x: torch.Tensor, edge_index: torch.Tensor, num_dst: int) -> torch.Tensor:
            sizes.append(num_dst)
            return x[:num_dst, :1]

        full_graph_inference([layer], full_jobs.DistDataset.from_pyg(data))
        return sizes

    assert rows_of(4) == [600]
    assert rows_of(1000) == [349, 251], "8 MiB of 6 rows of 4,000 bytes for each node"


def test_half_the_width_is_kept() -> None:
    model = make("SAGE")
    found = full_graph_inference(model, DATASET, dtype=torch.float16)
    assert found.values.dtype == torch.float16
    torch.testing.assert_close(found.values.float(), whole(model), rtol=1e-2, atol=1e-2)


def test_a_list_of_functions() -> None:
    conv = pyg.GATConv(WIDTH, OUT).eval()
    torch.manual_seed(0)
    layers = [lambda x, edges, n: conv((x, x[:n]), edges), lambda x, edges, n: x[:n].relu()]
    found = full_graph_inference(layers, DATASET, batch_size=13).values
    data = full_jobs.graph()
    torch.testing.assert_close(found, conv(data.x, data.edge_index).relu().detach())


def test_progress_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    full_graph_inference(make("SAGE"), DATASET, progress=True)
    shown = capsys.readouterr().err
    assert re.search(r"layer 1 of 2 +50% +[\d,]+ rows/s +\d+:\d\d left", shown)
    assert "120 rows," in shown
    full_graph_inference(make("SAGE"), DATASET)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("model", "how", "text"),
    [
        (full_jobs.ByType(), {}, "ByType is no BasicGNN .* full_graph"),
        (pyg.GraphSAGE(WIDTH, 4, 2, jk="cat").eval(), {}, "jk='cat' .* full_graph"),
        (pyg.GCN(WIDTH, 4, 2, cached=True).eval(), {}, "cached=True"),
        ([], {}, "a list of callables"),
        ([lambda x, e, n: x], {}, r"layer 0 returned \(60, 6\) for 50 destinations"),
        ([lambda x, e, n: x[:n].bfloat16()], {}, "bfloat16: choose dtype"),
        (make("SAGE"), {"batch_size": 0}, "batch_size"),
        (make("SAGE"), {"dtype": torch.int64}, "dtype"),
        (make("SAGE"), {"format": "csv"}, "format"),
        (make("SAGE"), {"format": "parquet"}, "needs out="),
    ],
)
def test_what_cannot_work_is_refused(model: Any, how: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        full_graph_inference(model, DATASET, **{"batch_size": 50, **how})


def test_training_mode_is_refused() -> None:
    with pytest.raises(UsageError, match=r"model\.eval\(\)"):
        full_graph_inference(make("SAGE").train(), DATASET)


def test_parquet_needs_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"gigl_loader\[tables\]"):
        parquet.check_parquet()
