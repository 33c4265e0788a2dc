from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.partition_tables import partition_tables
from gigl_loader.partitioning.stages import id_index
from gigl_loader.partitioning.stages.id_index import NO_NODE, Index
from gigl_loader.partitioning.tables.spec import EdgeTable, Method, NodeTable
from tests.support.draws import examples

TEXTS, INTEGERS = st.text(max_size=20), st.integers(-(2**63), 2**63 - 1)


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data(), st.sampled_from([TEXTS, INTEGERS]))
def test_it_finds_what_a_dict_finds(
    tmp_path: Path, data: st.DataObject, ids: st.SearchStrategy
) -> None:
    known = data.draw(st.lists(ids, unique=True, max_size=60))
    asked = data.draw(st.lists(st.none() | ids | st.sampled_from(known or [None]), max_size=60))
    kind = pa.string() if ids is TEXTS else pa.int64()
    numbers = {one: 3 * i for i, one in enumerate(known)}
    table = pa.table({"id": pa.array(known, kind), "node": pa.array(numbers.values(), pa.uint32())})
    pq.write_table(table, tmp_path / "0.parquet")
    index = Index(tmp_path / "index.bin", len(known), text=ids is TEXTS)
    assert index.build(tmp_path) == 0
    with ThreadPoolExecutor(2) as pool:
        found = index.find(pa.array([*asked[:1], *asked], kind).slice(len(asked[:1])), pool)
    assert found.tolist() == [numbers.get(one, NO_NODE) for one in asked]


def test_texts_of_any_length_are_told_apart(tmp_path: Path) -> None:
    known = list(dict.fromkeys(letter * count for letter in "ab\0" for count in range(40)))
    for name, ids in (("once", known), ("twice", [*known, "a", ""])):
        (tmp_path / name).mkdir()
        numbers = pa.array(range(len(ids)), pa.uint32())
        pq.write_table(pa.table({"id": ids, "node": numbers}), tmp_path / name / "0.parquet")
    once, twice = (Index(tmp_path / "bin", len(known) + more, text=True) for more in (0, 2))
    assert twice.build(tmp_path / "twice") == 2
    assert once.build(tmp_path / "once") == 0
    with ThreadPoolExecutor(1) as pool:
        assert once.find(pa.array(known), pool).tolist() == list(range(len(known)))


def _tables(*, nulls: bool = False) -> tuple[NodeTable, EdgeTable]:
    random = np.random.default_rng(1)
    ids = [f"n{i}" for i in random.permutation(50)]
    ends = [
        [[*ids, "nobody", None if nulls else "no one"][i] for i in random.integers(0, 52, 400)]
        for _ in range(2)
    ]
    edges = {
        "src": ends[0],
        "dst": ends[1],
        "w": random.random(400),
        "t": pa.array(random.integers(0, 9, 400), pa.timestamp("s")),
        "x": pa.array([[i, -i] for i in range(400)], pa.list_(pa.float32(), 2)),
    }
    table = EdgeTable(pa.table(edges), weight="w", time="t", features="x")
    return NodeTable(pa.table({"id": ids})), table


def _bytes(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*.bin")}


@pytest.mark.parametrize("method", ["random", "ldg"])
def test_a_join_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work_sizes, method: Method
) -> None:
    nodes, edges = _tables()
    reports = []
    for name in ("index", "join"):
        if name == "join":  # memory is too small for an index
            work_sizes(index_share=0.0)
            monkeypatch.setattr(id_index, "_find", None)
        reports.append(
            partition_tables(
                nodes,
                edges,
                3,
                tmp_path / name,
                method=method,
                threads=1,
                drop_dangling=True,
                progress=False,
            )
        )
    assert _bytes(tmp_path / "index") == _bytes(tmp_path / "join")
    assert reports[0].dangling == reports[1].dangling
    assert sum(reports[0].dangling.values()) > 0


def test_ids_that_are_not_told_apart_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, edges = _tables()
    given: dict[str, Any] = {"threads": 1, "drop_dangling": True, "progress": False}
    partition_tables(nodes, edges, 2, tmp_path / "a", **given)
    build = Index.build
    monkeypatch.setattr(Index, "build", lambda self, pairs: build(self, pairs) + 1)
    partition_tables(nodes, edges, 2, tmp_path / "b", **given)
    assert _bytes(tmp_path / "a") == _bytes(tmp_path / "b")


@pytest.mark.parametrize("fits", [True, False])
def test_nulls_and_duplicates_are_errors(tmp_path: Path, work_sizes, fits: bool) -> None:
    if not fits:
        work_sizes(index_share=0.0)
    nodes, edges = _tables(nulls=True)
    with pytest.raises(ConfigError, match="has nulls"):
        partition_tables(nodes, edges, 2, tmp_path / "a", drop_dangling=True, progress=False)
    twice = NodeTable(pa.table({"id": ["a", "b", "a"]}))
    with pytest.raises(ConfigError, match=r"1 id\(s\) more than once: 'a' in"):
        partition_tables(twice, edges, 2, tmp_path / "b", progress=False)
