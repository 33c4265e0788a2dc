"""The page that ``make gpu`` writes, and the one in the tree; the rehearsal itself is CI's."""

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.conditions import SetConstants

FOLDER = Path(__file__).parents[2] / "examples" / "benchmarks" / "gpu"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("bench")
    for name in ("bench", "_cases"):
        sys.modules.pop(name, None)


def _args(bench: ModuleType, **more: Any) -> argparse.Namespace:
    found: argparse.Namespace = bench.make_parser().parse_args([])
    vars(found).update({"device": "cpu", **bench.SMALL, **more})
    return found


def _names(bench: ModuleType) -> list[str]:
    return [*bench.OWN, *bench.PEERS, *bench.TRAINING, *bench.SCRIPTS]


def test_the_page_in_the_tree_is_of_this_benchmark_and_says_what_it_is(bench: ModuleType) -> None:
    text = (FOLDER / "README.md").read_text()
    assert all(f"| {name} |" in text or f"{name} ([page]" in text for name in _names(bench))
    rehearsed = "the CPU (" in text
    assert (bench.REHEARSAL in text) == rehearsed
    assert ("Tests: not run: a rehearsal" in text) == rehearsed
    rows = [line for name in (*bench.OWN, *bench.TRAINING) for line in text.splitlines()
            if line.startswith(f"| {name} |")]  # fmt: skip
    assert all(row.split("|")[2].strip()[0].isdigit() for row in rows), "each of our own has run"


def test_speeds_are_medians_and_shares_of_what_the_machine_copies(bench: ModuleType) -> None:
    made = bench.Bench(_args(bench))
    made.found["copies"] = [{"host_to_device_gb_per_s": 20.0, "gather_gb_per_s": 300.0}]
    made.found["workers"] = [
        {"seeds_per_s": rate, "feature_gb_per_s": rate / 100, "device_gb": 3.0}
        for rate in (900.0, 1000.0, 1300.0)
    ]
    made.problems["GraphBolt"] = "ModuleNotFoundError: No module named 'dgl'"
    text = bench.page(made, "7 passed", {title: ["| x |"] for title in bench.SCRIPTS})
    assert "| workers | 1,000 (900 to 1,300) | 10.00 | 50% | 3.0 GB |" in text
    assert "| GraphBolt | ModuleNotFoundError: No module named 'dgl' |" in text
    assert "copies 20.0 GB/s from pinned memory, and gathers 300.0 GB/s" in text
    assert "Tests: 7 passed." in text


def test_mlperfs_setting(bench: ModuleType) -> None:
    args = bench.make_parser().parse_args([])
    args.device = "cuda:0"
    case = bench.Bench(args).case("R-GAT, on the device")
    assert (case.fanout, case.hidden) == ((5, 10, 15), 512)
    assert 512 <= case.batch_size <= 1024
    assert case.nodes >= (case.warmup + case.batches) * case.batch_size, "enough seeds"
    assert args.minutes <= 30


def test_what_fails_or_takes_too_long_is_on_the_page(
    bench: ModuleType, constants: SetConstants
) -> None:
    made = bench.Bench(_args(bench, device="cuda:0"))
    constants(bench, LEAST_SECONDS=0.0)
    made.ends = 0.0
    assert made.tests() == "not done after 0 s"
    assert made.script("draws/bench_draws.py") == ["not done after 0 s"]
    made.run("workers")
    assert made.problems == {"workers": "no time was left"}
