"""A folder as a graph has the rows, edges, times and statistics of RelBench's own graph."""

import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from relbench import load_dataset
from relbench.modeling.graph import make_pkey_fkey_graph
from torch_frame import stype
from torch_frame.data.stats import StatType

from gigl_loader import DistDataset
from tests.partitioning.databases.folders import (
    KEYS,
    VAL,
    described,
    edges_of,
    frame_of,
    shop,
    write_folder,
)

KINDS = {
    "customers": {"age": "numerical", "joined": "timestamp"},
    "articles": {"price": "numerical"},
    "orders": {
        "at": "timestamp",
        "amount": "numerical",
        "channel": "categorical",
        "paid": "categorical",
        "count": "categorical",
    },
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[DistDataset, Any, Any]:
    """Return our dataset, RelBench's graph and its statistics, with those of all rows."""
    folder = tmp_path_factory.mktemp("relbench")
    tables = shop()
    tables["articles"] = tables["articles"].drop_columns(["vector"])  # numpy arrays there
    source = write_folder(folder / "shop", tables)
    ours = DistDataset.from_database(source, root=folder / "root", stats_upto="all", progress=False)
    database = load_dataset(str(source)).get_db()
    orders = database.table_dict["orders"].df
    # object, which pandas 3 does not make of text and booleans with nulls by itself
    orders["channel"] = pd.Series(orders["channel"].tolist(), dtype=object)
    kinds = {t: {c: stype(k) for c, k in of.items()} for t, of in KINDS.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # read-only arrays of pandas 3, in PyTorch Frame
        graph, stats = make_pkey_fkey_graph(database, kinds)
    return ours, graph, stats


def test_types_are_those_of_relbench(both: Any) -> None:
    ours, graph, _ = both
    assert list(ours.view().num_nodes) == graph.node_types == list(KEYS)
    assert set(ours.view().adjacency) == set(graph.edge_types)


@pytest.mark.parametrize("table", KEYS)
def test_rows_are_those_of_relbench(both: Any, table: str) -> None:
    ours, graph, _ = both
    frame, theirs = frame_of(ours, table), graph[table].tf
    assert frame.num_rows == theirs.num_rows == ours.view().num_nodes[table]
    assert frame.col_names_dict == theirs.col_names_dict
    assert list(frame.feat_dict) == list(theirs.feat_dict)
    for kind, values in theirs.feat_dict.items():
        torch.testing.assert_close(
            frame.feat_dict[kind], values, rtol=0, atol=0, equal_nan=True, msg=str(kind)
        )


def test_edges_are_those_of_relbench(both: Any) -> None:
    ours, graph, _ = both
    for edge_type in graph.edge_types:
        pairs = sorted(map(tuple, graph[edge_type].edge_index.T.tolist()))
        assert edges_of(ours, edge_type) == pairs
        assert pairs, edge_type


def test_times_are_those_of_relbench(both: Any) -> None:
    ours, graph, _ = both
    times = ours.view().node_attributes["orders", "time"].values
    assert torch.equal(times, graph["orders"].time)
    assert ("customers", "time") not in ours.view().node_attributes  # joined is no time column


def test_statistics_are_those_of_relbench(both: Any) -> None:
    ours, _, stats = both
    for table, columns in stats.items():
        assert set(ours.col_stats[table]) == set(columns)
        for column, theirs in columns.items():
            found = ours.col_stats[table][column]
            assert set(found) == set(theirs)
            for name, value in theirs.items():
                if name == StatType.COUNT:
                    assert found[name] == (list(map(_plain, value[0])), value[1]), column
                elif isinstance(value, torch.Tensor):
                    assert torch.equal(found[name], value), (column, name)
                else:
                    assert found[name] == pytest.approx(value), (column, name)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def test_statistics_and_categories_come_from_rows_before_the_validation_time(
    tmp_path: Path,
) -> None:
    tables = shop()
    source = write_folder(tmp_path / "shop", tables)
    ours = DistDataset.from_database(source, root=tmp_path / "root", progress=False)
    frame = tables["orders"].to_pandas()
    early = frame[frame["at"] < pd.Timestamp(VAL, unit="s")]
    stats = ours.col_stats["orders"]
    assert stats["amount"][StatType.MEAN] == pytest.approx(early["amount"].mean())
    assert stats["amount"][StatType.STD] == pytest.approx(early["amount"].std(ddof=0))
    quantiles = early["amount"].quantile([0, 0.25, 0.5, 0.75, 1]).tolist()
    assert stats["amount"][StatType.QUANTILES] == pytest.approx(quantiles)
    counts = early["channel"].value_counts()
    assert stats["channel"][StatType.COUNT] == (counts.index.tolist(), counts.tolist())
    times = early["at"].sort_values()
    middle = times.iloc[len(times) // 2]
    assert stats["at"][StatType.MEDIAN_TIME].tolist() == [
        middle.year,
        middle.month - 1,
        middle.day - 1,
        middle.weekday(),
        middle.hour,
        middle.minute,
        middle.second,
    ]
    assert described(tmp_path / "root")["val_timestamp"] == VAL
    # customers have no time: all of them count
    age = tables["customers"]["age"].to_pandas()
    assert ours.col_stats["customers"]["age"][StatType.MEAN] == pytest.approx(age.mean())
