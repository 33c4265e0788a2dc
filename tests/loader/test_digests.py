"""Every kind of loader, in every deployment, gives the bits of ``runtime.digests.json``.

The file holds one digest a case, taken from the code as it was before the redesign. A change of
one is a change of what users' seeds and saved states mean: it needs a new `draw_version`, or a
defect that the changelog names.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gigl_loader import DistDataset, partition_graph
from gigl_loader.runtime.transport import certs
from gigl_loader.runtime.transport.security import TLS_DIR_VARIABLE
from gigl_loader.testing import run_cluster, run_ranks
from tests.loader import digest_cases as cases
from tests.loader.digest_cases import CASES

KNOWN = json.loads(Path(__file__).with_name("digests.json").read_text())
PLAIN = [name for name, case in CASES.items() if not case.typed and case.edge_dir == "in"]
TYPED = [name for name, case in CASES.items() if case.typed and case.edge_dir == "in"]
FEW_PLAIN = ["nodes, by time", "nodes, ppr", "links, strict", "anchors"]
FEW_PLAIN += ["nodes, ppr tokens", "nodes, tokens by time"]
FEW_PLAIN += ["links, windows", "anchors, start and end", "nodes, adaptive by time"]
FEW_TYPED = ["typed nodes, weighted", "typed subgraphs", "typed links, binary", "typed anchors"]
FEW_TYPED += ["typed anchors, tokens", "typed nodes, adaptive, weighted"]
FEW = FEW_PLAIN + FEW_TYPED
"""Each kind of loader, and each kind of seeds and draws that a deployment treats on its own."""
IN_GROUPS = ["nodes, in groups"]
"""Each way to reach all partitions reads their groups."""


def test_each_case_has_a_digest() -> None:
    assert set(KNOWN) == set(CASES)
    assert len(set(KNOWN.values())) == len(CASES)


@pytest.mark.parametrize("name", CASES)
def test_in_the_training_process(name: str) -> None:
    case = CASES[name]
    assert cases.in_one_process(case, case.partition(0, 1), num_workers=0) == KNOWN[name]


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "name",
    # workers of two ranks have more kinds below
    [
        pytest.param(name, marks=() if number % 3 == 0 else pytest.mark.wide)
        for number, name in enumerate(list(CASES)[::3])
    ],
)
def test_with_two_workers(name: str) -> None:
    case = CASES[name]
    assert cases.in_one_process(case, case.partition(0, 1), num_workers=2) == KNOWN[name]


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        pytest.param(False, FEW_PLAIN, id="plain"),
        pytest.param(True, FEW_TYPED, id="typed"),
        pytest.param(False, PLAIN, id="all plain", marks=pytest.mark.wide),
        pytest.param(True, TYPED, id="all typed", marks=pytest.mark.wide),
    ],
)
def test_mapped_from_disk(typed: bool, names: list[str], tmp_path: Path) -> None:
    partition_graph(cases.graph(typed), 1, tmp_path / "parts")
    dataset = DistDataset.load(tmp_path / "parts", 0, mmap=True)
    for name in names:
        if "anchors" not in name:  # labels are not written
            found = cases.in_one_process(CASES[name], dataset, num_workers=0)
            assert found == KNOWN[name], name


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("how", "names"),
    [
        pytest.param({}, FEW + IN_GROUPS, id="workers-few"),
        # the others differ from it where questions are sent: by what is typed, not by the kind
        pytest.param({"remote_cache": "20%"}, FEW[::3], id="cache-few"),
        pytest.param({"exchange": "collective"}, FEW[1::3], id="collective-few"),
        pytest.param({}, list(CASES), id="workers-all", marks=pytest.mark.wide),
        pytest.param({"remote_cache": "20%"}, list(CASES), id="cache-all", marks=pytest.mark.wide),
        pytest.param(
            {"exchange": "collective"}, list(CASES), id="collective-all", marks=pytest.mark.wide
        ),
    ],
)
def test_on_two_ranks(how: dict[str, Any], names: list[str], tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    run_ranks(cases.of_a_rank, tmp_path, names, how, world_size=2, tmp_path=ranks)
    for name in names:
        assert cases.read(tmp_path, name) == KNOWN[name], name


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("how", "names"),
    [
        # what differs from own edges is where neighbours are read: each kind of draw
        pytest.param({}, ["nodes, ppr", *FEW[::2]], id="workers-few"),
        pytest.param({"remote_cache": "20%"}, FEW[1::6], id="cache-few"),
        pytest.param({}, list(CASES), id="workers-all", marks=pytest.mark.wide),
        pytest.param({"remote_cache": "20%"}, list(CASES), id="cache-all", marks=pytest.mark.wide),
        pytest.param(
            {"exchange": "collective"}, list(CASES), id="collective-all", marks=pytest.mark.wide
        ),
    ],
)
def test_all_edges_on_two_ranks(how: dict[str, Any], names: list[str], tmp_path: Path) -> None:
    ranks, stored = tmp_path / "ranks", tmp_path / "stored"
    ranks.mkdir()
    cases.write_partitions(stored)
    run_ranks(cases.of_a_rank, tmp_path, names, how, stored, world_size=2, tmp_path=ranks)
    for name in names:
        assert cases.read(tmp_path, name) == KNOWN[name], name


ROWS: dict[str, Any] = {}
CACHE: dict[str, Any] = {"remote_cache": "20%"}


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("typed", "how", "names"),
    [
        # time is read from two stores in test_expansion.py
        pytest.param(False, ROWS, FEW_PLAIN[1:] + IN_GROUPS, id="plain-rows"),
        # links and anchors in test_link_graph_store.py
        pytest.param(True, CACHE, FEW_TYPED[:2], id="typed-cache"),
        pytest.param(False, ROWS, PLAIN, id="all plain-rows", marks=pytest.mark.wide),
        pytest.param(False, CACHE, PLAIN, id="all plain-cache", marks=pytest.mark.wide),
        pytest.param(True, ROWS, TYPED, id="all typed-rows", marks=pytest.mark.wide),
        pytest.param(True, CACHE, TYPED, id="all typed-cache", marks=pytest.mark.wide),
    ],
)
def test_from_a_graph_store(
    typed: bool, how: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    from_a_graph_store(typed, how, tmp_path, names)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "names", [FEW_PLAIN[:1], pytest.param(FEW_PLAIN, marks=pytest.mark.wide)], ids=["one", "few"]
)
def test_from_a_graph_store_with_certificates(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = certs.make_folder(tmp_path / "certs", ["127.0.0.1", "localhost"])
    monkeypatch.setenv(TLS_DIR_VARIABLE, str(folder))
    from_a_graph_store(False, {"remote_cache": "20%"}, tmp_path, names)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("typed", "how", "names"),
    [
        pytest.param(True, ROWS, FEW_TYPED[::3], id="typed-rows"),
        pytest.param(False, ROWS, PLAIN, id="all plain-rows", marks=pytest.mark.wide),
        pytest.param(True, CACHE, TYPED, id="all typed-cache", marks=pytest.mark.wide),
    ],
)
def test_all_edges_on_each_server(
    typed: bool, how: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    cases.write_partitions(tmp_path / "stored")
    dataset = partial(cases.stored_partition, folder=tmp_path / "stored", typed=typed)
    from_a_graph_store(typed, how, tmp_path, names, dataset)


def from_a_graph_store(
    typed: bool, how: dict[str, Any], folder: Path, names: list[str], dataset: Any = None
) -> None:
    notes = folder / "notes"
    notes.mkdir()
    dataset = dataset or (cases.typed_partition if typed else cases.plain_partition)
    run_cluster(cases.of_a_client, folder, names, how, dataset=dataset, tmp_path=notes)
    for name in names:
        assert cases.read(folder, name) == KNOWN[name], name
