"""A run that is killed goes on where it was, to the same bytes."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.scripts import run_python

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("starts_no_workers")]

ROWS = 40


def _tables(folder: Path) -> dict[str, str]:
    rng = random.Random(3)
    ids = [f"n{i}" for i in rng.sample(range(10**6), ROWS)]
    nodes = pa.table(
        {
            "id": ids,
            "x": [[float(i)] for i in range(ROWS)],
            "y": list(range(ROWS)),
            "s": [("train", "val", None)[i % 3] for i in range(ROWS)],
        }
    )
    pairs = [(rng.choice(ids), rng.choice(ids)) for _ in range(5 * ROWS)]
    edges = pa.table(
        {
            "src": [p[0] for p in pairs],
            "dst": [p[1] for p in pairs],
            "w": [i / 8 for i in range(len(pairs))],
        }
    )
    for name, table in (("nodes", nodes), ("edges", edges)):
        (folder / name).mkdir(parents=True)
        half = table.num_rows // 2
        for i in range(2):
            pq.write_table(table.slice(i * half, half), folder / name / f"{i}.parquet")
    return {"nodes": str(folder / "nodes"), "edges": str(folder / "edges")}


def _run(arguments: dict) -> int:
    script = Path(__file__).parent / "killed_job.py"
    done = run_python(str(script), json.dumps(arguments), timeout_s=90)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def _files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("method", "order", "communities"),
    [("random", "degree", None), ("ldg", "ids", None), ("ldg", "degree", 8)],
)
def test_killed_at_drawn_moments_it_ends_with_the_same_bytes(
    tmp_path: Path, method: str, order: str, communities: int | None
) -> None:
    log = tmp_path / "log"
    arguments = _tables(tmp_path / "tables") | {
        "method": method,
        "order": order,
        "communities": communities,
        "log": str(log),
    }
    whole = arguments | {"root": str(tmp_path / "whole"), "moment": 10**9}
    assert _run(whole) == 0
    rng, killed = random.Random(method), 0
    before: list[Any] = []
    root = tmp_path / "killed"
    for _ in range(60):
        moment = rng.randint(6, 25)
        log.write_text("")
        status = _run(arguments | {"root": str(root), "moment": moment})
        killed += status != 0
        begun = log.read_text().split("\n")[:-1]
        assert len(set(begun) & set(before)) <= 1, "one step of one file is done again"
        before += begun
        if status == 0:
            break
    assert status == 0, "it makes progress, or it would never end"
    assert killed >= 3
    assert _files(root) == _files(tmp_path / "whole")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["killed", "log", "tables", "whole"], "nothing is left beside the partitions"
