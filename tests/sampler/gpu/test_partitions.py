"""A graph in partitions on the devices of its ranks: the batches of the CPU, and named failures.

The device is the CPU, and gloo exchanges its memory: the code is the same, launched on no stream.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader.testing import run_ranks
from tests.loader import digest_cases as cases
from tests.loader.digest_cases import CASES
from tests.sampler.gpu import device_jobs
from tests.sampler.gpu.test_device_batches import REFUSED

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("starts_no_workers")]

KNOWN = json.loads((Path(cases.__file__).parent / "digests.json").read_text())
ALL = sorted(set(CASES) - REFUSED)
FEW = ["nodes, by time", "typed nodes, weighted", "links, strict", "typed anchors"]
OTHERS = ["nodes, labor", "nodes, disjoint", "typed links, binary", "anchors"]
wide = pytest.mark.wide


@pytest.mark.parametrize(
    ("names", "world", "how"),
    [
        (FEW + OTHERS, 2, {"kernels": "torch"}),
        # what differs here is where edges and rows are, or who draws: two kinds each
        (FEW[::3], 3, {"kernels": "torch", "features": "host"}),
        (OTHERS[:2], 2, {"kernels": "warp"}),
        (OTHERS[2:], 3, {"kernels": "torch", "edges": "all", "features": "host"}),
        pytest.param(ALL, 2, {"kernels": "torch"}, marks=wide),
        pytest.param(ALL[::3], 3, {"kernels": "torch", "features": "host"}, marks=wide),
        pytest.param(ALL[1::3], 2, {"kernels": "warp"}, marks=wide),
        pytest.param(ALL, 2, {"kernels": "torch", "edges": "all"}, marks=wide),
        pytest.param(
            ALL[2::3], 3, {"kernels": "torch", "edges": "all", "features": "host"}, marks=wide
        ),
    ],
    ids=[
        *("torch", "three ranks", "warp", "all edges, three ranks"),
        *("all, torch", "all, three ranks", "all, warp", "all, all edges"),
        "all, all edges, three ranks",
    ],
)
def test_the_bits_of_the_cpu(
    names: list[str], world: int, how: dict[str, Any], tmp_path: Path
) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    run_ranks(
        device_jobs.of_partitions,
        tmp_path,
        names,
        how,
        world_size=world,
        tmp_path=ranks,
        timeout=600,
    )
    for name in names:
        assert cases.read(tmp_path, name) == KNOWN[name], name


@pytest.mark.parametrize(
    ("job", "world", "may_die"),
    [
        ("ranks_with_fewer_batches", 3, []),
        ("resumed_and_left_by_all", 2, []),
        ("degrees_that_differ", 2, []),
        ("a_rank_dies", 2, [1]),
        ("a_rank_does_not_come", 2, []),
        ("a_rank_raises", 2, []),
        ("ranks_that_differ", 2, []),
        ("hops_over_all_edges_ask_nobody", 3, []),
        ("launches_in_one_order", 2, []),
        pytest.param(
            "training_on_gpus",
            2,
            [],
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(torch.cuda.device_count() < 2, reason="takes two GPUs"),
            ],
        ),
    ],
)
def test_ranks(job: str, world: int, may_die: list[int], tmp_path: Path) -> None:
    run_ranks(
        getattr(device_jobs, job), world_size=world, tmp_path=tmp_path, may_die=may_die, timeout=300
    )


def test_quantised_rows(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    run_ranks(device_jobs.quantised_rows, tmp_path, world_size=2, tmp_path=ranks, timeout=300)
