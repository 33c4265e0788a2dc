"""Fanouts and options in one form, whatever the user gave; no process is started."""

from typing import Any, NamedTuple

import pytest
import torch
from torch_geometric.sampler import NumNeighbors

from gigl_loader import ConfigError
from gigl_loader.dataset.schema import DatasetSchema, FeatureInfo, message_passing_to_positive_label
from gigl_loader.loader.options.glt_config import (
    checked_function,
    create_colocated_worker_options,
    create_sampling_config,
    patch_fanout,
)
from gigl_loader.sources.sampling_checks import check_workers

BUYS, KNOWS = ("u", "buys", "i"), ("u", "knows", "u")
LABELED = message_passing_to_positive_label(BUYS)


def _schema(edge_types: list | None, **more: Any) -> DatasetSchema:
    known = {"node_feature_info": None, "edge_feature_info": None, "edge_dir": "in", **more}
    return DatasetSchema(
        is_homogeneous_with_labeled_edge_type=False, edge_types=edge_types, **known
    )


PLAIN, TYPED = _schema(None), _schema([BUYS, KNOWS, LABELED])


class _Named(NamedTuple):
    src: str
    relation: str
    dst: str


def test_a_list_holds_for_every_type_that_is_walked() -> None:
    assert patch_fanout([5, -1], PLAIN) == [5, -1]
    fanout: Any = (3,)
    assert patch_fanout(fanout, TYPED) == {BUYS: [3], KNOWS: [3]}  # never for label edges
    assert patch_fanout([], PLAIN) == []


def test_types_become_plain_tuples() -> None:
    found = patch_fanout({_Named(*BUYS): [1], _Named(*KNOWS): [2]}, TYPED)
    assert found == {BUYS: [1], KNOWS: [2]}
    assert {type(name) for name in found} == {tuple}


def test_pygs_class_answers_for_each_graph_anew() -> None:
    given = NumNeighbors({KNOWS: [4]}, default=[2])
    assert patch_fanout(given, TYPED) == {BUYS: [2], KNOWS: [4]}
    assert patch_fanout(given, _schema([KNOWS])) == {KNOWS: [4]}
    with pytest.raises(ConfigError, match="Missing number of neighbors"):
        patch_fanout(NumNeighbors({KNOWS: [4]}), TYPED)


@pytest.mark.parametrize(
    ("fanout", "schema", "words"),
    [
        ({BUYS: [1]}, PLAIN, "the graph is homogeneous: pass a list"),
        ({BUYS: [1]}, TYPED, r"edge types; it lacks \[\('u', 'knows', 'u'\)\]; a list"),
        (
            {BUYS: [1], KNOWS: [1], LABELED: [1]},
            TYPED,
            r"_gigl_positive.* has labels, which are never walked; a list",
        ),
        ({BUYS: [1], KNOWS: [1, 1]}, TYPED, "the same across all edge types"),
        ([1], _schema([LABELED]), "label edge types only"),
        (3, PLAIN, "must be a list with a fanout per hop, got 3"),
        ([1, -2], PLAIN, r"num_neighbors\[1\] must be a number of neighbours, or -1 for all"),
        ([True], PLAIN, r"num_neighbors\[0\] must be a number"),
        ([1.0], PLAIN, r"num_neighbors\[0\] must be a number"),
        ({BUYS: [1], KNOWS: ["x"]}, TYPED, r"num_neighbors\[.*knows.*\]\[0\] must be"),
        ([2**31], PLAIN, "at most 2147483647, got 2147483648: -1 takes all"),
    ],
)
def test_fanouts_that_cannot_work(fanout: Any, schema: DatasetSchema, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        patch_fanout(fanout, schema)


@pytest.mark.parametrize(
    ("more", "given", "expected"),
    [
        ({}, None, False),
        ({"edge_feature_info": FeatureInfo(3, torch.float32)}, None, True),
        ({"edge_feature_info": FeatureInfo(3, torch.float32)}, False, False),
        ({}, True, True),
    ],
)
def test_edge_ids_come_where_edges_have_values(more: dict, given: Any, expected: bool) -> None:
    found = create_sampling_config(
        [2],
        _schema(None, **more),
        batch_size=3,
        shuffle=True,
        drop_last=False,
        with_weight=False,
        with_edge=given,
        seed=7,
    )
    assert found.with_edge is expected
    assert (found.batch_size, found.shuffle, found.seed, found.edge_dir) == (3, True, 7, "in")
    assert found.num_neighbors == [2]


def test_workers_sample_on_the_cpu() -> None:
    how: dict[str, Any] = {
        "worker_concurrency": 2,
        "master_ip_address": "10.0.0.1",
        "master_port": 4000,
        "channel_size": "1MB",
        "pin_memory": False,
    }
    found = create_colocated_worker_options(dataset_num_partitions=3, num_workers=2, **how)
    assert found.worker_devices == [torch.device("cpu")] * 2
    assert found.num_rpc_threads == 3
    many = create_colocated_worker_options(dataset_num_partitions=99, num_workers=1, **how)
    assert many.num_rpc_threads == 16


@pytest.mark.parametrize(
    ("workers", "concurrency", "words"),
    [
        (0, 1, "must be > 0 here, got 0"),
        (False, 1, "integer >= 0, got False"),
        (-1, 1, "integer >= 0, got -1"),
        (1.0, 1, "integer >= 0, got 1.0"),
        (1, 0, r"worker_concurrency must be an integer in \[1, 32\], got 0"),
        (1, 33, r"in \[1, 32\], got 33"),
    ],
)
def test_what_glt_would_clamp_is_refused(workers: Any, concurrency: int, words: str) -> None:
    check_workers(1, 32)
    with pytest.raises(ConfigError, match=words):
        check_workers(workers, concurrency)


def test_a_function_that_is_none_is_refused() -> None:
    assert checked_function("transform", None) is None
    assert checked_function("transform", len) is len
    with pytest.raises(ConfigError, match=r"name must be .*, got 3"):
        checked_function("name", 3)
