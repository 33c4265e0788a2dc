"""Options are checked where they are made."""

import dataclasses
import math
import pickle
from typing import Any

import pytest

from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.errors import ConfigError
from gigl_loader.sampler import options
from gigl_loader.sampler.options import (
    Channel,
    CustomSamplerOptions,
    ExpansionOptions,
    FeatureStoreOptions,
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
    SourceOptions,
)

BUYS, KNOWS = ("user", "buys", "item"), ("user", "knows", "user")


# --- caches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "size"), [("20%", 0.2), (" 100 % ", 1.0), ("2GB", 2 * 10**9), ("2GiB", 2**31), (5, 5)]
)
def test_a_cache_is_a_size_or_a_share(given: Any, size: float) -> None:
    found = CacheOptions.of(given)
    assert found is not None
    assert (found.size, found.lookahead) == (size, None)
    assert isinstance(found.size, float) is isinstance(size, float), "by it the two are told apart"


def test_none_is_no_cache() -> None:
    assert CacheOptions.of(None) is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (0.2, "a share such as"),
        (True, "a share such as"),
        ("0%", "above 0%"),
        ("101%", "above 0%"),
        ("nan%", "above 0%"),
        ("x%", "above 0%"),
    ],
)
def test_what_is_no_cache_is_refused(given: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        CacheOptions.of(given)


# --- samplers, growth, epochs ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "how", "text"),
    [
        (CustomSamplerOptions, {"class_path": "Mine"}, "package.module.ClassName"),
        (FeatureStoreOptions, {"class_path": "Mine"}, "package.module.ClassName"),
        (FeatureStoreOptions, {"class_path": "a.B", "cache_bytes": -1}, "cache_bytes must be"),
        (FeatureStoreOptions, {"class_path": "a.B", "cache_bytes": True}, "cache_bytes must be"),
        (
            FeatureStoreOptions,
            {"class_path": "a.B", "keywords": {"f": lambda: 0}},
            "keywords cannot be sent",
        ),
        (PPRSamplerOptions, {"alpha": 0}, "alpha must be in"),
        (PPRSamplerOptions, {"alpha": 1}, "alpha must be in"),
        (PPRSamplerOptions, {"eps": 0}, "eps must be > 0"),
        (PPRSamplerOptions, {"eps": math.nan}, "eps must be > 0"),
        (PPRSamplerOptions, {"max_ppr_nodes": 0}, "max_ppr_nodes must be"),
        (PPRSamplerOptions, {"max_ppr_nodes": True}, "max_ppr_nodes must be"),
        (PPRSamplerOptions, {"num_neighbors_per_hop": 2**31}, "num_neighbors_per_hop must be"),
        (PPRSamplerOptions, {"max_fetch_iterations": 0}, "max_fetch_iterations must be"),
        (PPRSamplerOptions, {"typed_channel_ratios": {"buys": 1.0}}, "must name an edge type"),
        (PPRSamplerOptions, {"typed_channel_ratios": {(): 1.0}}, "must name an edge type"),
        (PPRSamplerOptions, {"typed_channel_ratios": {BUYS: 0.0, KNOWS: 1.0}}, r"in \(0, 1\]"),
        (PPRSamplerOptions, {"typed_channel_ratios": {BUYS: True}}, r"in \(0, 1\]"),
        (PPRSamplerOptions, {"typed_channel_ratios": {BUYS: 0.5, KNOWS: 0.4}}, "sum to 1"),
        (ExpansionOptions, {"subgraph_type": "both"}, "subgraph_type must be one of"),
        (ExpansionOptions, {"sampling_method": "ladies"}, "sampling_method must be one of"),
        (ExpansionOptions, {"disjoint": "by_user"}, "disjoint must be"),
        (ExpansionOptions, {"disjoint": "by_time"}, "need time_attr"),
        (ExpansionOptions, {"time_window": 3.0}, "need time_attr"),
        (ExpansionOptions, {"temporal_strategy": "last"}, "need time_attr"),
        (ExpansionOptions, {"time_attr": 3}, "must name an attribute"),
        (ExpansionOptions, {"time_attr": "t", "time_window": -1}, "time_window must be"),
        (ExpansionOptions, {"time_attr": "t", "time_window": math.nan}, "time_window must be"),
        (ExpansionOptions, {"disjoint": True, "subgraph_type": "induced"}, "one graph of all"),
        (ExpansionOptions, {"time_attr": "t", "sampling_method": "labor"}, "trees do not"),
        (SourceOptions, {"seed": -1}, "seed must be"),
        (SourceOptions, {"seed": 2**63}, "seed must"),
        (SourceOptions, {"seed": True}, "seed must"),
        (SourceOptions, {"seed": 0, "timeout_s": 0}, "timeout must"),
        (SourceOptions, {"seed": 0, "timeout_s": math.inf}, "timeout must"),
        (SourceOptions, {"seed": 0, "timeout_s": None}, "timeout must"),
        (SourceOptions, {"seed": 0, "max_restarts": -1}, "max_restarts must"),
        (SourceOptions, {"seed": 0, "reconnect_timeout_s": math.inf}, "reconnect_timeout must"),
        (
            SourceOptions,
            {"seed": 0, "replace": True, "expansion": ExpansionOptions(sampling_method="labor")},
            "without replacement",
        ),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(kind: Any, how: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        kind(**how)


def test_options_reach_workers_as_they_are() -> None:
    for one in (
        SourceOptions(
            seed=2**63 - 1, expansion=ExpansionOptions(time_attr="t", disjoint="by_time")
        ),
        PPRSamplerOptions(typed_channel_ratios={BUYS: 0.1, (KNOWS, BUYS): 0.9}),
        FeatureStoreOptions("a.B", {"path": "x"}),
    ):
        assert pickle.loads(pickle.dumps(one)) == one
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.seed = 1  # type: ignore[misc,union-attr]  # wrong on purpose


def test_a_channel_is_an_edge_type_or_several() -> None:
    ratios: dict[Channel, float] = {BUYS: 0.25, (KNOWS, BUYS): 0.75}
    found = PPRSamplerOptions(typed_channel_ratios=ratios).channels
    assert found == [([BUYS], 0.25), ([KNOWS, BUYS], 0.75)]
    tenths: dict[Channel, float] = {("a", str(n), "a"): 0.1 for n in range(10)}
    assert len(PPRSamplerOptions(typed_channel_ratios=tenths).channels) == 10, "0.1 * 10 is not 1"


@pytest.mark.parametrize(
    ("how", "in_trees", "by_time"),
    [
        ({}, False, False),
        ({"disjoint": True}, True, False),
        ({"time_attr": "t"}, True, False),
        ({"time_attr": "t", "disjoint": "by_time"}, True, True),
    ],
)
def test_trees(how: Any, in_trees: bool, by_time: bool) -> None:
    found = ExpansionOptions(**how)
    assert (found.in_trees, found.by_time) == (in_trees, by_time)


def test_what_batches_depend_on_leaves_out_how_they_come() -> None:
    one = SourceOptions(seed=3)
    other = SourceOptions(
        seed=3,
        in_order=False,
        timeout_s=1.0,
        max_restarts=0,
        reconnect_timeout_s=0.0,
        cache=CacheOptions(size=1),
        asks_for_rows=True,
    )
    assert one.of_batches() == other.of_batches()
    for changed in ({"seed": 4}, {"replace": True}, {"expansion": ExpansionOptions(disjoint=True)}):
        assert dataclasses.replace(one, **changed).of_batches() != one.of_batches()


def test_samplers_are_told_apart_by_a_text() -> None:
    mine = CustomSamplerOptions("a.B", {"token": "secret"})
    assert options.sampler_text(mine) == "a.B", "and not by keywords, which may be secrets"
    fanouts = [options.sampler_text(KHopNeighborSamplerOptions([n])) for n in (1, 2)]
    assert fanouts[0] != fanouts[1]
    assert options.sampler_text(None) == "None"


@pytest.mark.parametrize(
    ("machine", "memory", "one_machine", "same_memory"),
    [(None, None, True, True), (None, "0", True, False), ("0", None, False, False)],
)
def test_what_is_one_machine(
    machine: Any, memory: Any, one_machine: bool, same_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        (options.SAME_MACHINE_VARIABLE, machine),
        (options.SAME_MEMORY_VARIABLE, memory),
    ):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert options.may_be_one_machine() is one_machine
    assert options.reads_same_memory() is same_memory


# --- this machine ---------------------------------------------------------------------------------
