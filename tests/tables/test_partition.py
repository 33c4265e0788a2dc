import shutil
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_graphs import Tables, check, tables

from gigl_loader.dataset.local import DistDataset
from gigl_loader.tables.partition import partition_tables


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    tables(), st.integers(1, 3), st.sampled_from(["contiguous", "random", "ldg", "metis"]),
    st.sampled_from(["in", "out"]), st.integers(1, 3),
)  # fmt: skip
def test_partitions_unite_to_the_tables(
    tmp_path: Path, graph: Tables, count: int, method: str, edge_dir: str, files: int
) -> None:
    shutil.rmtree(tmp_path / "tables", ignore_errors=True)
    nodes, edges = graph.write(tmp_path / "tables", files)
    partition_tables(
        nodes, edges, count, tmp_path / "parts", method=method, edge_dir=edge_dir, seed=5,
        progress=False, overwrite=True, threads=1,
    )  # fmt: skip
    for memory in ("resident", "mapped"):
        loaded = [
            DistDataset.load(tmp_path / "parts", k, memory=memory, verify="now")
            for k in range(count)
        ]
        check(graph, loaded, edge_dir)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "tables"]
