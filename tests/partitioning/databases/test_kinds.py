"""Kinds of columns, their rows and statistics, against PyTorch Frame's own rules and by hand."""

import datetime
import decimal
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch_frame import TensorFrame, stype
from torch_frame.data.stats import StatType
from torch_frame.utils.infer_stype import infer_series_stype

from gigl_loader import ConfigError, DistDataset
from gigl_loader.partitioning.databases import kinds as kinds_module
from tests.partitioning.databases.folders import TWO, frame_of, stamps, two_tables

NAN, DAY = float("nan"), datetime.date(2020, 2, 29)

LIKE_PYTORCH_FRAME: dict[str, list[Any]] = {
    "booleans": [True, False, True],
    "floats": [1.5, 2.0, NAN],
    "whole floats": [1.0, 2.0] * 6,
    "whole floats with nulls, 6 rows each": [1.0, 2.0, 3.0] * 6 + [None],
    "whole floats with nulls, 4 rows each": [1.0, 2.0] * 4 + [None],
    "integers, 5 rows each": [3, 9] * 5,
    "integers, 4 rows each": [3, 9] * 4,
    "integers, one rare": [3, 9] * 50 + [5],
    "times": [datetime.datetime(2020, 1, 2), None, datetime.datetime(1969, 12, 31)],
    "text that is dates": ["2020-01-02", None, "2021-12-31"],
    "text of categories": ["red", "green"] * 5 + [None],
    "text, one rare": ["red", "green"] * 5 + ["blue"],
    "text of digits": ["12345", "23456", "34567"],
    "several categories by |": ["a|b", "b | a", "a", "b", "a|b", "c|b|a", "c|c"] * 3 + [None],
    "several categories by ,": ["a,b", "b, a", "a"] * 3 + [""],
    "sentences": ["one, two", "three", "four or five"],
}
"""Columns whose kind the page "Databases" says is PyTorch Frame's."""


def _opened(child: Any, tmp_path: Path, **options: Any) -> DistDataset:
    return DistDataset.from_database(
        two_tables(child), root=tmp_path / "root", keys=TWO, progress=False, **options
    )


def _embed(texts: list[str]) -> Any:
    return np.array([[len(text), text.count("e")] for text in texts], np.float64)


def _kinds(frame: TensorFrame) -> dict[str, str]:
    return {name: k.value for k, names in frame.col_names_dict.items() for name in names}


@pytest.mark.parametrize("name", LIKE_PYTORCH_FRAME)
def test_kinds_are_those_of_pytorch_frame(name: str, tmp_path: Path) -> None:
    values = LIKE_PYTORCH_FRAME[name]
    dtype = object if any(isinstance(v, str) for v in values) else None
    theirs = infer_series_stype(pd.Series(values, dtype=dtype))
    assert theirs is not None
    wanted = "embedding" if theirs == stype.text_embedded else theirs.value
    dataset = _opened({"x": pa.array(values, from_pandas=True)}, tmp_path, embed=_embed)
    assert _kinds(frame_of(dataset, "child")) == {"x": wanted}


OTHER_THAN_PYTORCH_FRAME: dict[str, tuple[Any, str | None]] = {
    "booleans with nulls": (pa.array([True, None, False]), "categorical"),
    "decimals": (pa.array([decimal.Decimal("1.50"), None]), "numerical"),
    "time of day": (pa.array([datetime.time(1), None]), "numerical"),
    "durations": (pa.array([datetime.timedelta(1), None]), "numerical"),
    "dates": (pa.array([DAY, None]), "timestamp"),
    "bytes": (pa.array([b"x", b"y"]), None),
    "structs": (pa.array([{"a": 1}, {"a": 2}]), None),
    "lists of one length": (pa.array([[1.0, 2.0], [3.0, 4.0]]), "embedding"),
    "lists of one length, one null": (pa.array([[1.0, 2.0], None]), "sequence_numerical"),
    "lists with NaN": (pa.array([[1.0, NAN], [3.0, 4.0]]), "sequence_numerical"),
    "lists of integers": (pa.array([[1, 2], [3, 4]]), "sequence_numerical"),
    "lists of text": (pa.array([["a"], ["a", "b"], None]), "multicategorical"),
    "nothing": (pa.array([None, None], pa.float64()), None),
    "nothing, of no type": (pa.nulls(2), None),
    "uint64": (pa.array([0, 2**64 - 1], pa.uint64()), "numerical"),
}


@pytest.mark.parametrize("name", OTHER_THAN_PYTORCH_FRAME)
def test_types_say_more(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    column, kind = OTHER_THAN_PYTORCH_FRAME[name]
    dataset = _opened({"x": column}, tmp_path)
    assert _kinds(frame_of(dataset, "child")) == (
        {"x": kind} if kind else {"__const__": "numerical"}
    )
    assert ("child.x" in caplog.text) == (kind is None)


def test_a_table_without_a_feature_has_the_number_1(tmp_path: Path) -> None:
    dataset = _opened({"to": [0, 1]}, tmp_path)
    frame = frame_of(dataset, "child")
    assert frame.feat_dict[stype.numerical].tolist() == [[1.0], [1.0]]
    assert dataset.col_stats["child"]["__const__"][StatType.MEAN] == 1.0


def test_missing_values(tmp_path: Path) -> None:
    child = {
        "n": [1.5, None, math.inf, -1e300],
        "c": ["a", None, "a", "b"],
        "t": stamps([-0.5, None, 951_782_400, 0]),
        "s": pa.array([[1.0], None, [], [2.0, None]]),
        "m": pa.array([["a", "b"], None, [], ["b"]]),
    }
    frame = frame_of(_opened(child, tmp_path, kinds={"child": {"c": "categorical"}}), "child")
    values = frame.feat_dict
    numbers = values[stype.numerical].flatten().tolist()
    assert str(numbers) == "[1.5, nan, inf, -inf]"
    assert values[stype.categorical].tolist() == [[0], [-1], [0], [1]]
    assert values[stype.timestamp].squeeze(1).tolist() == [
        [1969, 11, 30, 2, 23, 59, 59],
        [-1] * 7,
        [2000, 1, 28, 1, 0, 0, 0],
        [1970, 0, 0, 3, 0, 0, 0],
    ]
    sequences = [values[stype.sequence_numerical][i, 0].tolist() for i in range(4)]
    assert str(sequences) == "[[1.0], [], [], [2.0, nan]]"
    several = [sorted(values[stype.multicategorical][i, 0].tolist()) for i in range(4)]
    assert several == [[0, 1], [-1], [], [0]]  # b is the most frequent


def test_categories_not_seen_before_the_time_are_missing(tmp_path: Path) -> None:
    child = {
        "at": stamps([1, 2, 3, 4, 5, 6]),
        "c": ["b", "a", "a", "c", "c", "c"],
        "m": [["x"], ["y"], ["y"], ["x", "z"], ["z"], ["z"]],
        "k": [2.0, 2.0, 1.0, 7.0, 7.0, None],
    }
    keys = {**TWO, "child": {**TWO["child"], "time_col": "at"}}
    dataset = DistDataset.from_database(
        two_tables(child), root=tmp_path / "root", keys=keys, stats_upto=4, progress=False,
        kinds={"child": {"c": stype.categorical, "k": "categorical"}},
    )  # fmt: skip
    frame = frame_of(dataset, "child")
    assert frame.feat_dict[stype.categorical].tolist() == [
        [1, 0], [0, 0], [0, 1], [-1, -1], [-1, -1], [-1, -1]
    ]  # fmt: skip
    several = [frame.feat_dict[stype.multicategorical][i, 0].tolist() for i in range(6)]
    assert several == [[1], [0], [0], [1], [], []]
    stats = dataset.col_stats["child"]
    assert stats["c"][StatType.COUNT] == (["a", "b"], [2, 1])
    assert stats["k"][StatType.COUNT] == ([2.0, 1.0], [2, 1])
    assert stats["m"][StatType.MULTI_COUNT] == (["y", "x"], [2, 1])


def test_no_row_before_the_time(tmp_path: Path) -> None:
    child = {"at": stamps([5, 6]), "c": ["a", "b"], "n": [1.5, 2.5], "m": [["x"], ["y"]]}
    keys = {**TWO, "child": {**TWO["child"], "time_col": "at"}}
    dataset = DistDataset.from_database(
        two_tables(child), root=tmp_path / "root", keys=keys, stats_upto=5, progress=False,
        kinds={"child": {"c": "categorical"}},
    )  # fmt: skip
    stats = dataset.col_stats["child"]
    assert stats["c"][StatType.COUNT] == ([], [])
    assert math.isnan(stats["n"][StatType.MEAN])
    assert all(map(math.isnan, stats["n"][StatType.QUANTILES]))
    assert stats["at"][StatType.YEAR_RANGE] == [-1, -1]
    assert stats["at"][StatType.NEWEST_TIME].tolist() == [-1] * 7
    assert frame_of(dataset, "child").feat_dict[stype.categorical].tolist() == [[-1], [-1]]


def test_each_text_is_embedded_once(tmp_path: Path) -> None:
    texts = [f"text {i % 7} é" if i % 5 else None for i in range(9_000)]
    asked: list[str] = []

    def embed(some: list[str]) -> Any:
        asked.extend(some)
        return torch.from_numpy(_embed(some))

    child = {"text": texts, "v": pa.array([[float(i), 0.0, 1.0] for i in range(9_000)])}
    kinds = {"child": {"text": "text_embedded"}}
    dataset = _opened(child, tmp_path, embed=embed, kinds=kinds)
    assert Counter(asked) == dict.fromkeys({t for t in texts if t is not None}, 1)
    frame = frame_of(dataset, "child")
    # texts come after other embeddings, as PyTorch Frame merges them
    assert frame.col_names_dict == {stype.embedding: ["v", "text"]}
    wanted = np.array([[0, 0] if t is None else _embed([t])[0] for t in texts])
    assert frame.feat_dict[stype.embedding][:, 1].values.numpy().tolist() == wanted.tolist()
    assert dataset.col_stats["child"]["text"] == {StatType.EMB_DIM: 2}
    assert dataset.col_stats["child"]["v"] == {StatType.EMB_DIM: 3}


def test_a_column_of_texts_without_one_and_names_with_braces(tmp_path: Path) -> None:
    child = {"text": pa.nulls(3, pa.string()), "{}": ["a", "b", "a"], "m{0}": [["x"], [], None]}
    kinds = {"child": {"text": "text_embedded", "{}": "categorical"}}
    frame = frame_of(_opened(child, tmp_path, embed=_embed, kinds=kinds), "child")
    assert frame.feat_dict[stype.embedding].values.tolist() == [[0.0]] * 3
    assert frame.feat_dict[stype.categorical].tolist() == [[0], [1], [0]]
    several = [frame.feat_dict[stype.multicategorical][i, 0].tolist() for i in range(3)]
    assert several == [[0], [], [-1]]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda t: np.zeros(len(t)),
        lambda t: np.zeros((1, 2)),
        lambda t: [[0.0] * (i + 1) for i in range(len(t))],
        lambda t: torch.zeros(len(t), 2, requires_grad=True),
        lambda t: np.full((len(t), 2), np.nan),
        lambda t: np.full((len(t), 2), 1e300),
    ],
)
def test_a_wrong_embedder_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"embed= must return an array \[2, d\] for 2 texts of column"
    ):
        _opened({"text": ["one", "two"]}, tmp_path, embed=wrong)


def test_text_without_an_embedder_is_left_out_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = _opened({"t": ["one", "two"], "u": ["x", "yy"], "n": [0.5, 1]}, tmp_path)
    assert caplog.text.count("embed= is not given") == 1
    assert "child.t, child.u" in caplog.text
    assert _kinds(frame_of(dataset, "child")) == {"n": "numerical"}


def test_a_column_is_left_out_if_asked(tmp_path: Path) -> None:
    dataset = _opened({"a": [0.5, 1], "b": [1.5, 2]}, tmp_path, kinds={"child": {"a": None}})
    assert _kinds(frame_of(dataset, "child")) == {"b": "numerical"}


@pytest.mark.parametrize("sorted_on_disk", [False, True])
def test_quantiles_by_numpy(
    sorted_on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sorted_on_disk:
        monkeypatch.setattr(kinds_module, "_MANY_VALUES", 10)
    values = np.random.default_rng(3).normal(size=1_234)
    values[5] = np.inf
    dataset = _opened({"x": values}, tmp_path)
    finite = values[np.isfinite(values)]
    stats = dataset.col_stats["child"]["x"]
    wanted = np.quantile(finite, [0, 0.25, 0.5, 0.75, 1]).tolist()
    assert stats[StatType.QUANTILES] == pytest.approx(wanted, rel=1e-12)
    assert stats[StatType.MEAN] == pytest.approx(finite.mean())
    assert stats[StatType.STD] == pytest.approx(finite.std())


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_are_seconds_rounded_down_whatever_the_unit(unit: str, tmp_path: Path) -> None:
    seconds = (
        [-1.5, -1, 0, 0.999, 86_399.5, 1.5e9] if unit != "s" else [-2, -1, 0, 0, 86_399, 1.5e9]
    )
    keys = {**TWO, "child": {**TWO["child"], "time_col": "at"}}
    dataset = DistDataset.from_database(
        two_tables({"at": stamps(seconds, unit)}), root=tmp_path / "r", keys=keys, progress=False
    )
    times = dataset.view().node_attributes["child", "time"].values
    assert times.dtype == torch.int64
    assert times.tolist() == [math.floor(s) for s in seconds]


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([DAY, datetime.date(1969, 12, 31)]), [1_582_934_400, -86_400]),
        (pa.array([7, -3]), [7, -3]),
        (pa.array([7.9, -2.5]), [7, -3]),
        (pa.array(["2020-02-29", "1970-01-01 00:00:01"]), [1_582_934_400, 1]),
        (pa.array([0, 3_600_000_000], pa.timestamp("us", "Europe/Berlin")), [0, 3_600]),
    ],
)
def test_times_of_other_types(column: Any, wanted: list[int], tmp_path: Path) -> None:
    keys = {**TWO, "child": {**TWO["child"], "time_col": "at"}}
    dataset = DistDataset.from_database(
        two_tables({"at": column}), root=tmp_path / "root", keys=keys, progress=False
    )
    assert dataset.view().node_attributes["child", "time"].values.tolist() == wanted
