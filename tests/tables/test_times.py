"""Times of neighbours beside the edges that lead to them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gigl_loader.dataset.mapped import ArraySpec, Part, array_path
from gigl_loader.dataset.schema import NEIGHBOR_TIME
from gigl_loader.errors import ConfigError
from gigl_loader.tables import _times
from gigl_loader.tables._job import Job
from gigl_loader.tables._times import check_time_attr, write_neighbor_times
from gigl_loader.tables.spec import EdgeTable, NodeTable, read_graph

BUYS = ("user", "buys", "item")
ENDS = {"user": np.array([4, 4, 10]), "item": np.array([2, 3, 5])}


def _graph(**columns: Any) -> Any:
    nodes = {"user": NodeTable("u"), "item": NodeTable("i")}
    return read_graph(nodes, {BUYS: EdgeTable("e", **columns)})


def _put(folder: Path, part: Part, k: int, name: str, values: Any) -> None:
    path = array_path(folder / f"part{k}", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    values.tofile(path)
    part.arrays[name] = ArraySpec(values.dtype.name, values.shape)


@pytest.mark.parametrize("by_degree", [False, True])
def test_each_edge_has_the_time_of_its_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_degree: bool
) -> None:
    monkeypatch.setattr(_times, "BATCH_ROWS", 7)
    random = np.random.default_rng(4)
    times = random.integers(-50, 50, 10)  # of users, by their number
    parts, starts, neighbors = [Part() for _ in range(3)], (0, 4, 4), []
    for k, part in enumerate(parts):
        end = int(ENDS["user"][k])
        positions = random.permutation(end - starts[k])
        stored = np.empty(end - starts[k], np.int64)
        stored[positions if by_degree else slice(None)] = times[starts[k] : end]
        _put(tmp_path, part, k, "node_attributes/user/joined/values", stored)
        if by_degree:
            _put(tmp_path, part, k, "lookup/user", positions.astype(np.int32))
        neighbors.append(random.integers(0, 10, 20 * (k != 1)).astype(np.int32))
        _put(tmp_path, part, k, "edges/user__buys__item/indices", neighbors[-1])
        part.ranges["edges/user__buys__item"] = {"first_row": 0, "first_edge": 20 * (k > 0)}
    job = Job(tmp_path / "scratch", {}, memory=10**9, threads=1, progress=False)
    write_neighbor_times(job, tmp_path, parts, _graph(), ENDS, "in", "joined")
    where = f"edge_attributes/user__buys__item/{NEIGHBOR_TIME}joined"
    for k, part in enumerate(parts):
        found = np.fromfile(array_path(tmp_path / f"part{k}", f"{where}/values"), np.int64)
        assert found.tolist() == times[neighbors[k]].tolist()
        assert part.arrays[f"{where}/values"].shape == neighbors[k].shape
        assert part.ranges[where] == {"first": 20 * (k > 0)}
    before = [sorted(part.arrays) for part in parts]
    write_neighbor_times(job, tmp_path, parts, _graph(), ENDS, "out", "joined")  # items have none
    assert [sorted(part.arrays) for part in parts] == before


def test_a_time_is_one_number_of_nodes_or_edges() -> None:
    def rows(**attributes: int) -> Any:
        return {"user": SimpleNamespace(attributes=attributes)}

    check_time_attr(_graph(), rows(joined=1), "joined")
    check_time_attr(_graph(time="t"), rows(), "time")
    with pytest.raises(ConfigError, match="'joined' of nodes 'user' has 3 numbers each"):
        check_time_attr(_graph(), rows(joined=3), "joined")
    with pytest.raises(ConfigError, match=r"no attribute of nodes \(there are \['age'\]\)"):
        check_time_attr(_graph(time="t"), rows(age=1), "joined")
    with pytest.raises(ConfigError, match='whose name would be "time"'):
        check_time_attr(_graph(), rows(), "time")
