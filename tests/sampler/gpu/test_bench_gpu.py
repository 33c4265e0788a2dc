"""The page that ``make gpu`` writes, and the one in the tree; the rehearsal itself is CI's."""

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.support.conditions import Clock, Gpus
from tests.support.scripts import ForkedPython, run_python

pytestmark = pytest.mark.waits

FOLDER = Path(__file__).parents[3] / "examples" / "benchmarks" / "gpu"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("bench")
    for name in ("bench", "_cases", "_findings", "_hops", "_lean", "_sizes"):
        sys.modules.pop(name, None)


def _args(bench: ModuleType, **more: Any) -> argparse.Namespace:
    args: argparse.Namespace = bench.make_parser().parse_args(["--minutes", "9"])
    pieces = ["copies", bench.TESTS, "cases", "draws"]
    more = {"pieces": pieces, "device": "cpu", "rounds": 1, **more}
    vars(args).update(more)
    return args


def test_the_page_in_the_tree_is_of_this_benchmark_and_says_what_it_is(bench: ModuleType) -> None:
    text = (FOLDER / "README.md").read_text()
    assert all(f"| {name} |" in text for name in bench.PIECES["cases"])
    assert all(
        f"**{name}** (`{script}`): done." in text
        for name, (script, _) in bench.PROGRAMMES.items()
        if name != bench.CASES  # they have tables
    )
    assert re.search(r"`make gpu`, \d{4}-\d\d-\d\d, .*, torch \S+, Python \S+\. Written", text)
    assert "Measured on this machine: all figures below, but for shares, which are computed" in text
    rehearsed = "the CPU (" in text
    assert (bench.REHEARSAL in text) == rehearsed
    rows = [
        line
        for name in (*bench.OWN, *bench.TRAINING)
        for line in text.splitlines()
        if line.startswith(f"| {name} |")
    ]
    assert all(row.split("|")[2].strip()[0].isdigit() for row in rows), "each of our own has run"


def test_speeds_are_medians_and_shares_of_what_the_machine_copies(
    bench: ModuleType, tmp_path: Path
) -> None:
    made = bench.Bench(_args(bench), tmp_path / "gpu.md")
    made.findings["facts"] = {bench.FROM_PINNED: 20.0, bench.GATHERED: 300.0}
    made.results["workers"] = [
        {"seeds_per_s": rates, "feature_gb_per_s": [r / 100 for r in rates], "device_gb": 3.0}
        for rates in ([900.0, 1000.0], [1300.0])
    ]
    made.problems["PyG's NeighborLoader"] = "ImportError: 'NeighborSampler' requires 'pyg-lib'"
    for name, said in ((bench.TESTS, "7 passed"), ("draws", "| x |")):
        made.findings[name] = {bench.SAID: [said]}
        made.results[name] = [made.findings[name]]
    text = bench.page(made)
    assert "| workers | 1,000 (900 to 1,300) | 10.00 | 50% | 3.0 GB |" in text
    assert "| PyG's NeighborLoader | ImportError: 'NeighborSampler' requires 'pyg-lib' |" in text
    assert "20.0 GB/s from pinned memory, and 300.0 GB/s of rows of 512 B gathered" in text
    assert "): done.\n\n7 passed\n" in text
    assert "**draws** (`../draws/bench_draws.py`): done.\n\n| x |\n" in text
    assert bench.UNFINISHED in text, "other loaders are missing"


def test_mlperfs_setting(bench: ModuleType) -> None:
    case = bench.case_of("R-GAT, on the device", "cuda:0")
    assert (case.fanout, case.hidden) == ((15, 10, 5), 512), "from the seeds on"
    assert 512 <= case.batch_size <= 1024
    assert bench.make_parser().parse_args([]).minutes <= 30


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_case_has_seeds_for_all_its_batches(bench: ModuleType, device: str) -> None:
    for name in bench.PIECES["cases"]:
        case = bench.case_of(name, device)
        seeds = (case.warmup + case.windows * case.batches) * case.batch_size
        assert case.nodes >= seeds


def test_the_bytes_of_a_case_are_known_before_it_starts(
    bench: ModuleType, tmp_path: Path, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the bound, R-GAT would take over 80 GB; with the sizes of real batches it does not."""
    cases = importlib.import_module("_cases")
    case = bench.case_of("R-GAT, on the device, one shape", "cuda:0")
    bounds = cases._bounds(case, case.batch_size)
    most = {"nodes": bounds.nodes, "edges": bounds.edges}
    assert sum(most["nodes"].values()) > 2_000_000
    # 828,000 nodes and 1.95 million edges a batch, spread as at the bound
    real = {
        kind: {name: count * total // sum(most[kind].values()) for name, count in sizes.items()}
        for total, (kind, sizes) in zip((828_000, 1_950_000), most.items(), strict=True)
    }
    gpus.append(80 * 10**9)
    assert cases._why_left_out(case, real) is None
    reason = cases._why_left_out(case, most)
    assert reason is not None
    assert re.fullmatch(r"left out: takes about \d+ GB, and 80 GB are free", reason)
    piece = bench.Bench(_args(bench), tmp_path / "gpu.md")
    line = bench.FOUND + json.dumps([bench.LEFT_OUT, reason])
    monkeypatch.setattr(
        bench, "output_of", lambda words, seconds, heard: (heard(line) or 0, [line])
    )
    piece.run_one(case.name)
    assert f"| {case.name} | {reason} |" in bench.page(piece)


def test_hops_have_places_of_their_own(bench: ModuleType) -> None:
    """All batches have one shape, which is trimmed hop by hop, and seeds have their outputs."""
    cases = importlib.import_module("_cases")
    case = bench.case_of("R-GAT, on the device, one shape", "cpu")
    data, seeds = cases.typed_graph(case), cases.seeds_of(case)
    places = cases.measured_places(case, data, seeds)
    model, shapes = cases.RelationalGAT(case).double().eval(), set()
    small = replace(places, edges={name: [0] * 3 for name in places.edges})
    with cases._loader(case, data, ("paper", seeds), "torch") as loader, torch.no_grad():
        for batch in loader:
            for store in batch.node_stores:
                store.x = store.x.double()
            assert not small.fit(batch)
            assert places.fit(batch)
            x, edges = places.placed(batch)
            shapes.add(str([rows.shape for rows in (*x.values(), *edges.values())]))
            whole = model(batch.x_dict, batch.edge_index_dict)[: case.batch_size]
            trimmed = model(x, edges, places.hops)
            assert trimmed.shape[0] == sum(places.nodes["paper"][:2]), "the last layer reads those"
            torch.testing.assert_close(trimmed[: case.batch_size], whole)
    assert len(shapes) == 1
    found = places.totals
    assert {name: rows.shape[0] for name, rows in x.items()} == found["nodes"]
    assert {name: ends.shape[1] for name, ends in edges.items()} == found["edges"]


def test_a_peer_that_cannot_run_is_left_out_by_name(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", ForkedPython)  # PyG is imported already
    cases = importlib.import_module("_cases")
    piece = bench.Bench(_args(bench), tmp_path / "gpu.md")
    if cases.WITH_PYG_LIB:
        pytest.skip("pyg-lib is here")
    for name in bench.PEERS:
        piece.run_one(name)
        assert f"| {name} | left out: needs pyg-lib, which cannot be imp" in bench.page(piece)


# --- pieces of a run ------------------------------------------------------------------------------


class Machine:
    """Takes the place of processes: each takes a minute of the clock, and has a result."""

    def __init__(self, bench: ModuleType, clock: Clock) -> None:
        self.bench, self.clock = bench, clock
        self.ran: list[str] = []
        self.fails: dict[str, str] = {}
        self.takes: dict[str, float] = {}
        self.pages: list[str] = []
        self.page: Path | None = None

    def output_of(
        self, words: list[str], seconds: float, heard: Callable[[str], None]
    ) -> tuple[int | None, list[str]]:
        if self.page is not None and self.page.exists():
            self.pages.append(self.page.read_text())
        is_case = words[0].endswith("_cases.py")
        name = words[2] if is_case else Path(words[0]).name
        takes = self.takes.get(name, 60.0)
        self.clock.sleep(min(takes, seconds))
        self.ran.append(name)
        if takes > seconds:
            return None, ["all that it said"]
        if name in self.fails:
            return 1, [self.fails[name]]
        if is_case:
            heard(self.bench.FOUND + json.dumps(["seeds_per_s", [1000.0]]))
        return 0, ["| a table |"]


@pytest.fixture
def machine(
    bench: ModuleType, clock_of: Callable[..., Clock], monkeypatch: pytest.MonkeyPatch
) -> Machine:
    machine = Machine(bench, clock_of(bench))
    monkeypatch.setattr(bench, "output_of", machine.output_of)
    return machine


def _piece(bench: ModuleType, page: Path, *, go_on: bool, **more: Any) -> tuple[Any, bool]:
    piece = bench.Bench(_args(bench, go_on=go_on, **more), page)
    if go_on:
        piece.load()
    return piece, piece.run()


def test_pieces_of_nine_minutes_continue_each_others_page(
    bench: ModuleType, machine: Machine, tmp_path: Path
) -> None:
    page = tmp_path / "gpu.md"
    machine.page = page
    _, is_done = _piece(bench, page, go_on=False)
    assert not is_done
    assert machine.clock.now <= 1000 + 9 * 60
    first = page.read_text()
    assert bench.UNFINISHED in first
    assert "| workers | 1,000 (1,000 to 1,000) |" in first, "what was measured is on the page"
    assert "| R-GAT, on the device, one shape | not run yet |" in first
    # each case is on the page before the next one starts
    assert "| workers | not run yet |" in machine.pages[machine.ran.index("workers")]
    assert "| workers | 1,000 " in machine.pages[machine.ran.index("in process")]
    _, is_done = _piece(bench, page, go_on=True)
    assert is_done
    assert sorted(machine.ran) == sorted(set(machine.ran)), "nothing is measured twice"
    text = page.read_text()
    assert bench.UNFINISHED not in text
    assert all(f"| {name} | 1,000 " in text for name in (*bench.OWN, *bench.TRAINING))


def test_what_was_measured_is_never_said_to_have_had_no_time(
    bench: ModuleType, machine: Machine, tmp_path: Path
) -> None:
    """Time is up in the second round: the first one's figures stay, and nothing has failed."""
    page = tmp_path / "gpu.md"
    machine.takes["workers"] = 30.0
    piece, is_done = _piece(bench, page, go_on=False, rounds=9)
    while not is_done and len(piece.results["R-GAT, workers"]) < 1:
        piece, is_done = _piece(bench, page, go_on=True, rounds=9)
    assert not is_done
    assert piece.problems == {}
    assert 1 <= len(piece.results["workers"]) < 9
    assert "no time" not in page.read_text()


def test_what_fails_is_tried_again_after_all_others(
    bench: ModuleType, machine: Machine, tmp_path: Path
) -> None:
    page, name = tmp_path / "gpu.md", "in process"
    machine.fails[name] = "RuntimeError: CUDA out of memory"
    piece, _ = _piece(bench, page, go_on=False, rounds=2)
    assert machine.ran.count(name) == 1, "not in each round of a piece"
    assert f"| {name} | failed: RuntimeError: CUDA out of memory |" in page.read_text()
    del machine.fails[name]
    count = len(machine.ran)
    is_done = False
    while not is_done:
        piece, is_done = _piece(bench, page, go_on=True, rounds=2)
    assert machine.ran[count:].index(name) > machine.ran[count:].index("R-GAT, workers")
    assert piece.problems == {}


def test_a_case_that_only_the_piece_ended_starts_the_next_one(
    bench: ModuleType, machine: Machine, tmp_path: Path
) -> None:
    page, name = tmp_path / "gpu.md", "R-GAT, workers"
    machine.takes.update({name: 400.0, "bench_step.py": 20.0, "-m": 0.0})
    piece, is_done = _piece(bench, page, go_on=False)
    assert not is_done
    assert machine.ran[-1] == name
    assert name not in piece.problems
    count = len(machine.ran)
    piece, _ = _piece(bench, page, go_on=True)
    assert machine.ran[count] == name
    assert piece.problems[name] == "not done after 270 s"
    assert piece.results[name] == []


def test_pages_of_other_machines_or_sizes_are_not_continued(
    bench: ModuleType, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "gpu.md"
    with pytest.raises(SystemExit, match="is not there: start without --continue"):
        _piece(bench, page, go_on=True)
    _piece(bench, page, go_on=False)
    monkeypatch.setitem(importlib.import_module("_sizes").SMALL, "dim", 16)
    with pytest.raises(SystemExit, match="begun with dim 8, now 16"):
        _piece(bench, page, go_on=True)
    monkeypatch.setattr(bench, "device_name", lambda device: "another GPU")
    with pytest.raises(SystemExit, match=r"begun with machine .*, now 'another GPU'"):
        _piece(bench, page, go_on=True)


def test_its_tests_start_where_packages_are_missing(bench: ModuleType) -> None:
    """Pytest runs none if a file cannot be imported, and ``make gpu`` brings but a few packages."""
    missing = ["duckdb", "fsspec", "matplotlib", "pandas", "pyarrow", "ray", "sklearn", "yaml"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing})); import pytest; "
        f"sys.exit(pytest.main(['-q', '-m', 'gpu', '--collect-only', *{bench.gpu_tests()}]))"
    )
    done = run_python("-c", code, folder=FOLDER.parents[2])
    assert done.returncode == 0, done.stdout
    assert "test_on_cuda.py::test_the_bits_of_the_cpu[" in done.stdout


@pytest.mark.parametrize(
    ("code", "said", "on_page"),
    [
        (0, "=== 80 passed in 9s ===", "done.\n\n80 passed in 9s\n"),
        (1, "=== 2 failed, 78 passed in 9s ===", "failed: 2 failed, 78 passed in 9s.\n"),
        (4, "ERROR: no module named hypothesis", "failed: ERROR: no module named hypothesis.\n"),
    ],
)
def test_tests_that_fail_or_do_not_start_are_told(
    code: int,
    said: str,
    on_page: str,
    bench: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "output_of", lambda words, seconds, heard: (code, [said]))
    piece = bench.Bench(_args(bench, device="cuda:0"), tmp_path / "gpu.md")
    piece.run_one(bench.TESTS)
    monkeypatch.setattr(bench, "device_name", lambda device: "a GPU")
    assert f"gpu`): {on_page}" in bench.page(piece)
    assert (bench.TESTS in piece.todo()) == (code != 0), "it is tried again"


def test_tests_that_need_longer_than_half_a_piece_leave_time_for_the_rest(
    bench: ModuleType, machine: Machine, tmp_path: Path
) -> None:
    args = _args(bench, device="cuda:0")
    piece = bench.Bench(args, tmp_path / "gpu.md")
    machine.takes["-m"] = 1000.0
    piece.run_one(bench.TESTS)
    assert machine.clock.now == 1000 + 270
    assert piece.problems == {bench.TESTS: "not done after 270 s"}


def test_pieces_run_in_the_order_of_their_value(
    bench: ModuleType, machine: Machine, tmp_path: Path
) -> None:
    pieces = bench._chosen("", "tests,copies")
    _, is_done = _piece(bench, tmp_path / "gpu.md", go_on=False, pieces=pieces, minutes=60)
    assert is_done
    assert machine.ran[:5] == ["facts.py", "smoke.py", "broken.py", *["smoke.py"] * 2]
    assert machine.ran[5] == "steps.py"
    assert machine.ran[-2:] == ["bench_draws.py", "sanitizer.py"]
    assert not {"-m", "bench_step.py"} & set(machine.ran)
    assert bench._chosen("tests,facts", "tests") == ["facts"]
    with pytest.raises(SystemExit, match=r"no piece \['speed'\]: there are facts, bits"):
        bench._chosen("speed", "")


def test_a_programme_that_fails_is_named_and_is_run_again(
    bench: ModuleType, machine: Machine, tmp_path: Path
) -> None:
    page, pieces = tmp_path / "gpu.md", ["facts", "broken"]
    machine.fails["broken.py"] = "Segmentation fault"
    piece, _ = _piece(bench, page, go_on=False, pieces=pieces)
    assert "**broken** (`broken.py`): failed: Segmentation fault." in page.read_text()
    assert "**facts** (`facts.py`): done." in page.read_text()
    del machine.fails["broken.py"]
    machine.takes["broken.py"] = 1000.0
    piece, is_done = _piece(bench, page, go_on=True, pieces=pieces)
    assert piece.problems == {"broken": "not done after 270 s"}, "half of the piece"
    del machine.takes["broken.py"]
    piece, is_done = _piece(bench, page, go_on=True, pieces=pieces)
    assert (is_done, piece.problems) == (True, {})
    assert machine.ran == ["facts.py", *["broken.py"] * 3]


def test_a_finding_is_on_the_page_within_a_second(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its programme goes on: a machine may be gone at any time."""
    script, page = tmp_path / "slow.py", tmp_path / "gpu.md"
    script.write_text(
        "import json, pathlib, sys, time\n"
        f"print({bench.FOUND!r} + json.dumps(['speed', [7, 'GB/s']]), flush=True)\n"
        f"page = pathlib.Path({str(page)!r})\n"
        "ends = time.monotonic() + 1\n"
        "while not (page.exists() and 'GB/s\"]' in page.read_text()):\n"
        "    if time.monotonic() > ends: sys.exit(3)\n"
        "    time.sleep(0.02)\n"
    )
    piece = bench.Bench(_args(bench), page)
    piece.save()
    monkeypatch.setitem(bench.PROGRAMMES, "facts", (str(script), 60.0))
    piece.run_one("facts")
    assert piece.problems == {}
    assert '- speed: [7, "GB/s"]' in page.read_text()
    assert json.loads((tmp_path / "gpu.json").read_text())["findings"] == {
        "facts": {"speed": [7, "GB/s"]}
    }
    assert "facts: FOUND " in (tmp_path / "gpu.log").read_text()


def test_a_programme_goes_on_behind_what_fails(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = importlib.import_module("_findings")
    monkeypatch.setattr(sys, "argv", ["facts.py", "--device", "cpu"])
    run = findings.Programme("About")
    run.attempt("first", lambda: [][0])
    assert run.failed
    run.attempt("second", lambda: "good")
    first, second = (
        json.loads(line.removeprefix(bench.FOUND)) for line in capsys.readouterr().out.splitlines()
    )
    assert first[1][0] == "FAILED: IndexError: list index out of range"
    assert second[1][0] == "good"


@pytest.mark.parametrize("part", ["dropout", "pinned", "streams", "last_error"])
def test_what_breaks_is_tried_on_the_cpu_too(part: str) -> None:
    """Two ranks, and the eight ways, are CI's rehearsal."""
    words = [str(FOLDER / "broken.py"), "--device", "cpu", "--part", part]
    done = run_python(*words, folder=FOLDER.parents[2])
    assert done.returncode == 0, done.stderr


def test_processes_of_a_case_that_is_ended_end_with_it(bench: ModuleType, tmp_path: Path) -> None:
    """A pipe that the grandchild holds tells when it is gone, too."""
    os.mkfifo(tmp_path / "alive")
    script = tmp_path / "case.py"
    script.write_text(
        "import subprocess, sys, time\n"
        f"subprocess.Popen(['sleep', '600'], stdout=open({str(tmp_path / 'alive')!r}, 'w'))\n"
        "print('started', flush=True); time.sleep(600)\n"
    )
    with ThreadPoolExecutor() as pool:
        ended = pool.submit((tmp_path / "alive").read_bytes)
        heard: list[str] = []
        assert bench.output_of([str(script)], 5.0, heard.append) == (None, ["started"])
        assert heard == ["started"]
        assert ended.result(timeout=60) == b""


def test_it_starts_as_a_plain_script_in_any_folder(tmp_path: Path) -> None:
    """Without make, an environment of its own, or the package on the path."""
    script, page = str(FOLDER / "bench.py"), str(tmp_path / "gpu.md")
    words = [script, "--rehearse", "--minutes", "0", "--out", page]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 3, done.stderr
    assert "go on with --continue" in done.stdout
    assert "not run yet" in (tmp_path / "gpu.md").read_text()
