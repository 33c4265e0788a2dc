"""Layer by layer in chunks, against PyG in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric.data import Data

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.inference import layerwise
from gigl_loader.inference.full_graph import full_graph
from gigl_loader.inference.layerwise import full_graph_inference
from gigl_loader.sampler.options import SAME_MEMORY_VARIABLE
from gigl_loader.testing import run_ranks
from tests.inference import full_jobs, layerwise_jobs
from tests.inference.layerwise_jobs import OUT, WIDTH, make

pytestmark = pytest.mark.usefixtures("starts_no_workers")

ranks = pytest.mark.multiprocess
DATASET = full_jobs.partition(full_jobs.graph(), 0, 1)


def test_one_process_needs_no_group(tmp_path: Path) -> None:
    layerwise_jobs.same_as_one_process(0, 1, tmp_path)


@ranks
@pytest.mark.parametrize(
    ("job", "world", "same_memory"),
    [
        ("same_as_one_process", 3, "1"),
        ("a_rank_without_nodes", 2, "1"),
        ("same_as_one_process", 2, "0"),
        ("a_rank_without_nodes", 2, "0"),
    ],
)
def test_ranks(
    job: str, world: int, same_memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SAME_MEMORY_VARIABLE, same_memory)
    group, out = tmp_path / "group", tmp_path / "out"
    group.mkdir()
    run_ranks(getattr(layerwise_jobs, job), out, world_size=world, tmp_path=group)


@ranks
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    for job, may_die in (("killed", [0]), ("resumed", [])):
        group = tmp_path / job
        group.mkdir()
        run_ranks(
            getattr(layerwise_jobs, job),
            tmp_path / "out",
            world_size=2,
            tmp_path=group,
            may_die=may_die,
        )


def test_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    full_graph_inference(make("SAGE"), DATASET, out=tmp_path, batch_size=20)
    with pytest.raises(ConfigError, match=r"differs in \['model'\]"):
        full_graph_inference(make("GIN"), DATASET, out=tmp_path, batch_size=20)
    with pytest.raises(ConfigError, match=r"differs in \['batch_size'\]"):
        full_graph_inference(make("SAGE"), DATASET, out=tmp_path, batch_size=10)


def test_the_size_of_chunks_goes_by_what_they_read() -> None:
    def rows_of(width: int) -> list[int]:
        data = Data(x=torch.randn(600, width), edge_index=torch.randint(600, (2, 3000)))
        sizes: list[int] = []

        def layer(x: torch.Tensor, edge_index: torch.Tensor, num_dst: int) -> torch.Tensor:
            sizes.append(num_dst)
            return x[:num_dst, :1]

        full_graph_inference([layer], DistDataset.from_pyg(data))
        return sizes

    assert rows_of(4) == [600]
    assert rows_of(1000) == [349, 251], "8 MiB of 6 rows of 4,000 bytes for each node"


class _Skipping(pyg.GraphSAGE):
    """A skip connection from the features to the output."""

    def forward(self, x: torch.Tensor, *args: Any, **how: Any) -> torch.Tensor:
        return super().forward(x, *args, **how) + x[:, :1]


def test_a_skip_connection_is_computed_on_the_full_graph() -> None:
    model, data = _Skipping(WIDTH, OUT, 2).eval(), full_jobs.graph()
    with full_graph(model, DATASET) as whole, torch.no_grad():
        found, ids = model(whole.x, whole.edge_index), whole.n_id
    torch.testing.assert_close(found, model(data.x, data.edge_index)[ids].detach())


def test_a_list_of_functions() -> None:
    conv = pyg.GATConv(WIDTH, OUT).eval()
    torch.manual_seed(0)
    layers = [lambda x, edges, n: conv((x, x[:n]), edges), lambda x, edges, n: x[:n].relu()]
    found = full_graph_inference(layers, DATASET, batch_size=13).values
    data = full_jobs.graph()
    torch.testing.assert_close(found, conv(data.x, data.edge_index).relu().detach())


@pytest.mark.parametrize(
    ("model", "how", "text"),
    [
        (full_jobs.ByType(), {}, "ByType is no BasicGNN .* full_graph"),
        (pyg.GraphSAGE(WIDTH, 4, 2, jk="cat").eval(), {}, "jk='cat' .* full_graph"),
        (pyg.GCN(WIDTH, 4, 2, cached=True).eval(), {}, "cached=True"),
        (_Skipping(WIDTH, OUT, 2).eval(), {}, r"_Skipping has a forward\(\) of its own"),
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


@pytest.mark.parametrize("late", [0, 1])
def test_an_output_is_copied_while_the_next_chunk_is_computed(
    late: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: the copy has no values before it was waited for."""
    log: list[str] = []

    class LateDownload(layerwise._Download):
        def __init__(self, rows: torch.Tensor, dtype: torch.dtype) -> None:
            super().__init__(rows, dtype)
            self._values, self._host = self._host, torch.full_like(self._host, torch.nan)
            self._number = log.count("computed")
            log.append("computed")

        def come(self) -> torch.Tensor:
            self._host.copy_(self._values)
            log.append(f"came {self._number}")
            return super().come()

    expected = full_graph_inference(make("SAGE"), DATASET, batch_size=20)
    monkeypatch.setattr(layerwise, "_Download", LateDownload)
    monkeypatch.setattr(layerwise, "_num_late", lambda device: late)
    found = full_graph_inference(make("SAGE"), DATASET, batch_size=20, out=tmp_path)
    assert found.values.equal(expected.values)
    computed = [at for at, what in enumerate(log) if what == "computed"]
    came = [log.index(f"came {number}") for number in range(len(computed))]
    assert came == sorted(came)
    assert len(came) > 4
    assert log[:4] == (
        ["computed", "computed", "came 0", "computed"]
        if late
        else ["computed", "came 0", "computed", "came 1"]
    )
    # the end of a layer waits for its last chunk
    assert all(begun < end for begun, end in zip(computed, came, strict=True))
