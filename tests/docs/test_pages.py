"""The code on the site and in the README runs, page by page, in order."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.support.pages import blocks
from tests.support.scripts import ForkedPython

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/index.md",
    "docs/quickstart.md",
    "docs/concepts.md",
    "docs/guide/datasets.md",
    "docs/guide/tables.md",
    "docs/guide/table_versions.md",
    "docs/guide/databases.md",
    "docs/guide/cores.md",
    "docs/guide/logging.md",
    "docs/guide/changing_graphs.md",
    "docs/guide/colocated.md",
    "docs/guide/node_classification.md",
    "docs/guide/link_prediction.md",
    "docs/guide/sampling.md",
    "docs/guide/sequences.md",
    "docs/guide/tasks.md",
    "docs/guide/your_own_loader.md",
    "docs/guide/padding.md",
    "docs/guide/training_loop.md",
    "docs/guide/same_batches.md",
    "docs/guide/after_training.md",
    "docs/guide/partition_format.md",
    "docs/guide/object_storage.md",
    "docs/guide/tuning.md",
    "docs/guide/migrating.md",
    "docs/guide/from_glt.md",
    "docs/guide/from_gigl.md",
    "docs/guide/beside_gigl.md",
    "docs/guide/ppr.md",
    "docs/guide/feature_store.md",
)

pytestmark = pytest.mark.multiprocess


@pytest.fixture
def page_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setattr(subprocess, "Popen", ForkedPython)  # the package is imported already
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page: str, page_place: None) -> None:
    names: dict[str, object] = {"__name__": "page"}
    text = (ROOT / page).read_text()
    found = blocks(text)
    assert found, f"{page} has no code"
    for block in found:
        exec(compile(block, page, "exec"), names)
    # where one outlives its group, the end of the group may hang in torch itself
    kept = [name for name, value in names.items() if isinstance(value, DistributedDataParallel)]
    assert not kept, f"{page} ends its process group while {kept} live"
    assert not dist.is_initialized(), f"{page} leaves its process group behind"


def test_a_sampler_of_ones_own_is_short() -> None:
    for name in ("walk_sampler.py", "hop_sampler.py"):
        assert len((ROOT / "examples" / name).read_text().splitlines()) <= 40
