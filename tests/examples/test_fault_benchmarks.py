"""What the scripts of ``examples/benchmarks/faults`` compare and draw, without processes."""

import contextlib
import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

pytestmark = pytest.mark.waits

FOLDER = Path(__file__).parents[2] / "examples" / "benchmarks" / "faults"


@pytest.fixture
def scripts(monkeypatch):
    """Give their modules by name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in ("_cluster", "_compare_case", "compare", "dashboard", "killed_worker"):
        sys.modules.pop(name, None)


def test_the_queries_of_the_dashboard(scripts) -> None:
    dashboard = scripts("dashboard")
    one, other = (("server", "0"),), (("server", "1"),)
    counter = [(0.0, 100.0), (1.0, 110.0), (2.0, 130.0), (3.0, 5.0), (4.0, 6.0)]  # starts again
    found = {
        "gigl_loader_a_total": {one: counter, other: [(at, 2 * at) for at, _ in counter]},
        "gigl_loader_b": {one: [(0.0, 1.0), (1.0, 1.0)], other: [(0.0, 0.0), (1.0, 1.0)]},
    }

    def last(expression: str) -> dict:
        return {key: points[-1][1] for key, points in dashboard.evaluate(expression, found).items()}

    assert last('increase(gigl_loader_a_total{server=~"$server"}[$__rate_interval])')[one] == 36
    assert last("rate(gigl_loader_a_total[$__rate_interval])") == {one: 9.0, other: 2.0}
    quotient = "rate(gigl_loader_a_total[1m]) / rate(gigl_loader_a_total[1m])"
    assert last(quotient) == {one: 1.0, other: 1.0}
    assert dashboard.evaluate("sum(gigl_loader_b)", found) == {(): [(0.0, 1.0), (1.0, 2.0)]}
    assert last("count(gigl_loader_b)") == last("sum(gigl_loader_b)") == {(): 2.0}
    assert last("max(gigl_loader_b)") == {(): 1.0}
    found["gigl_loader_c"] = {one: [(0.0, 1.0)], other: [(1.0, 1.0), (9.0, 1.0)]}
    seen = dashboard.evaluate("count(max_over_time(gigl_loader_c[1h]))", found)
    assert seen == {(): [(0.0, 1.0), (1.0, 2.0), (9.0, 2.0)]}, "one that is gone is still counted"
    gaps = dashboard._with_gaps([(0.0, 1.0), (1.0, 1.0), (9.0, 1.0)])
    assert [at for at, value in gaps if value != value] == [9.0]
    with pytest.raises(ValueError, match="avg"):
        dashboard.evaluate("avg(gigl_loader_b)", found)

    board = json.loads(dashboard.BOARD.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    names = {name for text in asked for name in re.findall(r"gigl_loader_\w+", text)}
    every = {name: {one: counter} for name in names}
    assert all(dashboard.evaluate(text, every) for text in asked)


def test_other_bits_are_noticed(scripts, tmp_path: Path) -> None:
    """The digest is over the positions of the sequence, whoever took them, once or twice."""
    job_class = scripts("_cluster").Job

    def digest(*lines: tuple[float, int, int, str]) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for at, rank, position, found in lines:
            line = {"at": at, "epoch": 0, "position": position, "rank": rank, "digest": found}
            with (folder / f"{rank}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        (folder / "9.jsonl").write_text('{"at": 3, "cut sho')  # by a kill
        job = job_class.__new__(job_class)
        job.folder = folder
        assert job.longest_pause() == 2.0
        return job.digest()

    expected = digest((0.0, 0, 0, "a"), (2.0, 0, 1, "b"))
    assert expected == digest((0.0, 1, 0, "a"), (2.0, 1, 1, "b"), (0.0, 0, 1, "b"))
    assert expected != digest((0.0, 0, 0, "a"), (2.0, 0, 1, "c"))
    assert expected != digest((0.0, 0, 0, "a"), (2.0, 0, 0, "a"))
    with pytest.raises(AssertionError, match=r"\(0, 0\)"):
        digest((0.0, 0, 0, "a"), (2.0, 0, 0, "b"))


class _Loader:
    """Batches of ten seeds in order, as a loader of `_compare_case`; ``first`` come before them."""

    def __init__(self, case, first: list[list[int]]) -> None:
        self._case, self._first = case, first

    def __iter__(self):
        seeds = torch.arange(self._case.NODES).split(self._case.BATCH)
        yield from (Data(n_id=ids) for ids in (*map(torch.tensor, self._first), *seeds))


def test_what_the_comparison_says(scripts, clock_of) -> None:
    case, compare = scripts("_compare_case"), scripts("compare")
    assert case.ROWS.keys() == compare.ROWS.keys() == compare.PROMISED.keys()
    assert case.CONTESTANTS.keys() == compare.CONTESTANTS.keys()
    clock_of(case)

    def broken_off(first: list[list[int]]) -> str:
        return case.broken_off(lambda workers: contextlib.nullcontext(_Loader(case, first)))

    assert broken_off([]) == compare.PROMISED["break"]
    assert broken_off([[7, 8, 9]]) == "in the next epoch 3 seeds **repeat** and 0 are missing"


def test_a_case_that_hangs_or_ends_is_told(scripts, tmp_path: Path) -> None:
    compare, case = scripts("compare"), tmp_path / "case.py"

    def outcome(code: str, limit_s: float = 60.0) -> str:
        case.write_text(code)
        return compare.measured(sys.executable, "ours", "killed", limit_s, case)["outcome"]

    fault = "print('{\"fault\": true}', flush=True)\n"
    assert outcome('print(\'{"outcome": "well"}\')') == "well"
    assert outcome(f"{fault}import time; time.sleep(60)", 6.0) == "**hangs**: silent for 6 s"
    assert outcome("import time; time.sleep(60)", 1.0).endswith(", before the fault")
    assert outcome(f"{fault}raise SystemExit('no')") == "ended with 1: no"


def test_the_killed_worker_is_drawn_from_what_was_recorded(scripts) -> None:
    killed_worker = scripts("killed_worker")
    record = json.loads((FOLDER / "results" / "killed_worker.json").read_text())
    picture = (FOLDER.parents[2] / "docs" / "_static" / "killed_worker.svg").read_text()
    assert killed_worker.draw(record) == picture
    kinds = [line["kind"] for line in record["lines"]]
    assert kinds[0] == "command"
    assert "loop" in kinds[: kinds.index("kill")]
    assert "loop" in kinds[kinds.index("warning") + 1 :]
    assert "the same batches as without a loss" in record["lines"][-1]["text"]
    assert record["lines"][-1]["at"] + killed_worker.REST_S == pytest.approx(20, abs=5)


def test_each_line_of_the_picture_appears_when_it_did(scripts) -> None:
    killed_worker = scripts("killed_worker")
    lines = [
        {"at": 0.0, "kind": "command", "text": "python a.py"},
        {"at": 4.0, "kind": "kill", "text": "kill -9 7"},
        {"at": 6.0, "kind": "loop", "text": "words " * 12 + "<end>"},
    ]
    picture = killed_worker.draw({"lines": lines})
    found = re.findall(r'<text id="l\d" [^>]*>([^<]*)<', picture)
    assert [text[:7] for text in found] == ["$ pytho", "words w", "words w", "$ kill "]
    assert all(len(text) <= killed_worker.COLUMNS for text in found)
    assert "&lt;end&gt;" in found[2]
    appears = [float(at) for at in re.findall(r"\{0%,([\d.]+)%\{opacity:0", picture)]
    assert appears == [0.0, 60.0, 60.0, 40.0]  # of 10 s
