"""Times of seeds as users give them: types that hold them, one column for all servers, refusals."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gigl_loader import ConfigError
from gigl_loader.batch.message import SEED_START, SEED_TIME, SEED_WINDOW
from gigl_loader.loader.options.loader_options import LoaderOptions
from gigl_loader.loader.seeds.seed_input import (
    add_times,
    add_times_by_server,
    digest_of_seeds,
    read_times,
)
from gigl_loader.loader.seeds.seed_limits import SeedLimits

NOW_NS = 1_700_000_000_123_456_789
"""A time in nanoseconds; the next float64 is 256 of them away."""
TIME = ("input_time", SEED_TIME)


def _inputs(*sizes: int) -> list[Any]:
    return [SimpleNamespace(node=torch.arange(size), input_type="user") for size in sizes]


def _columns(inputs: list[Any]) -> list[list[Any]]:
    return [one.extra[SEED_TIME].tolist() for one in inputs]


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ([1, 2], torch.int64),
        (np.array([1, 2], np.int32), torch.int64),
        (torch.tensor([1.0, 2.0], dtype=torch.float32), torch.float64),
        (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), torch.float64),
    ],
)
def test_integers_and_floats_have_one_type_each(given: Any, dtype: torch.dtype) -> None:
    found = read_times(given, 2, "input_time")
    assert found.dtype == dtype
    assert found.tolist() == [1, 2]
    assert read_times([NOW_NS], 1, "input_time").tolist() == [NOW_NS]
    seconds = [1_700_000_001.0, 1_700_000_002.5]  # float32 has one of them for two minutes
    for floats in (seconds, tuple(seconds), np.array(seconds)):
        assert read_times(floats, 2, "input_time").tolist() == seconds


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1, 2, 3], r"one number for each of the 2 seeds, got \[3\]"),
        ([[1, 2]], r"got \[1, 2\]"),
        ([True, False], "torch.bool"),
        ([1j, 2j], "complex"),
        ([1.0, float("nan")], r"input_time\[1\] is not a number"),
        (["now", "then"], "cannot be read as times"),
    ],
)
def test_what_are_no_times(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_times(given, 2, "input_time")


def test_times_are_a_column_beside_those_that_are_there() -> None:
    (found,) = _inputs(2)
    label = torch.ones(2)
    found.extra = {"label": label}
    add_times(found, [4, 5], *TIME)
    assert found.extra["label"] is label
    assert _columns([found]) == [[4, 5]]
    with pytest.raises(ConfigError, match="but the dataset is local"):
        add_times(found, {0: [4, 5]}, *TIME)


def test_all_servers_have_times_of_one_type() -> None:
    inputs = _inputs(1, 0, 2)
    add_times_by_server(inputs, {0: [1], 2: torch.tensor([2.5, 3.0])}, *TIME)
    assert _columns(inputs) == [[1.0], [], [2.5, 3.0]]
    assert {one.extra[SEED_TIME].dtype for one in inputs} == {torch.float64}


@pytest.mark.parametrize("nothing", [{}, {1: []}, {1: torch.empty(0)}])
def test_a_server_without_seeds_does_not_round_the_times_of_others(nothing: dict) -> None:
    """An empty list is one of floats to numpy and torch alike."""
    inputs = _inputs(1, 0)
    add_times_by_server(inputs, {0: torch.tensor([NOW_NS]), **nothing}, *TIME)
    assert _columns(inputs) == [[NOW_NS], []]
    assert {one.extra[SEED_TIME].dtype for one in inputs} == {torch.int64}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1, 2], r"is \{server_rank: times\}"),
        ({0: [1], 2: [1]}, r"input_time names storage servers \[2\]; there are \[0, 1\]"),
        ({0: [1]}, r"input_time\[1\] must be one number for each of the 1 seeds"),
        ({0: [], 1: [1]}, r"input_time\[0\] must be one number"),
    ],
)
def test_times_that_are_not_by_server(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        add_times_by_server(_inputs(1, 1), given, *TIME)


def _limits(time: Any = None, **keywords: Any) -> SeedLimits:
    keywords.setdefault("time_attr", "t")
    return SeedLimits.of(LoaderOptions.of(num_neighbors=[2], **keywords), time)


def test_times_without_anything_that_is_timed() -> None:
    assert _limits(time_attr=None).given.named() == {}
    assert _limits([1]).given.named() == {SEED_TIME: ("input_time", [1])}
    for word in ("input_time", "input_start_time", "input_end_time"):
        time, keywords = ([1], {}) if word == "input_time" else (None, {word: [1]})
        with pytest.raises(ConfigError, match=f"{word} was given without time_attr"):
            _limits(time, time_attr=None, **keywords)
    with pytest.raises(ConfigError, match="time_window was given without time_attr"):
        _limits(time_window=[1], time_attr=None)


def test_windows_are_columns_beside_the_times() -> None:
    (found,) = _inputs(2)
    _limits(torch.tensor([4, 5]), time_window=[0, 2.5]).added_to(found)
    assert found.extra[SEED_TIME].tolist() == [4, 5]
    assert found.extra[SEED_WINDOW].tolist() == [0, 2.5]
    (found,) = _inputs(2)
    _limits(input_end_time=[4, 5], input_start_time=np.array([4, -3])).added_to(found)
    assert found.extra[SEED_TIME].tolist() == [4, 5]
    assert found.extra[SEED_START].tolist() == [4, -3]
    inputs = _limits({1: [7, 8]}, time_window={1: torch.tensor([1, 2])}).added_to(_inputs(0, 2))
    assert [one.extra[SEED_WINDOW].tolist() for one in inputs] == [[], [1, 2]]
    assert _limits([1], time_window=3).given.named().keys() == {SEED_TIME}


@pytest.mark.parametrize(
    ("time", "keywords", "words"),
    [
        ([1], {"input_end_time": [2]}, "input_time and input_end_time are both the latest"),
        ([1], {"input_start_time": [0], "time_window": 2}, "both say how early"),
        ([1], {"input_start_time": [0], "time_window": [2]}, "both say how early"),
        ([1], {"input_start_time": [2]}, "seed 0 has input_start_time 2 after its input_time 1"),
        (None, {"input_start_time": [2], "input_end_time": [1.5]}, "after its input_end_time 1.5"),
        ([1], {"time_window": [-1]}, r"time_window\[0\] is -1: an age must be >= 0"),
        ([1], {"time_window": [1, 2]}, "time_window must be one number for each of the 1 seeds"),
        ([1], {"time_window": [float("nan")]}, r"time_window\[0\] is not a number"),
        ([1], {"time_window": [1], "disjoint": "by_time"}, 'disjoint="by_time"'),
    ],
)
def test_limits_that_contradict_each_other(time: Any, keywords: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _limits(time, **keywords).added_to(_inputs(1)[0])


def test_a_window_of_another_server_is_named() -> None:
    with pytest.raises(ConfigError, match="seed 1 of server 1 has input_start_time 9 after"):
        _limits({1: [7, 8]}, input_start_time={1: [1, 9]}).added_to(_inputs(0, 2))


def test_windows_and_starts_are_another_input() -> None:
    """A state of a loader names what decides its batches."""
    digests = set()
    for keywords in ({}, {"time_window": [1]}, {"time_window": [2]}, {"input_start_time": [1]}):
        (found,) = _inputs(1)
        digests.add(digest_of_seeds([_limits([5], **keywords).added_to(found)]))
    assert len(digests) == 4
