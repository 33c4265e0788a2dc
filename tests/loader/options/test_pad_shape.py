"""How ``pad=`` becomes a shape, without a loader."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DatasetSchema,
    EdgeDir,
    FeatureInfo,
)
from gigl_loader.errors import ConfigError
from gigl_loader.loader.options.loader_options import LoaderOptions
from gigl_loader.loader.options.pad_shape import Padding, make_padding
from gigl_loader.sampler.anchors import ANCHOR_KIND
from gigl_loader.sampler.edges import EDGE_KIND
from gigl_loader.sampler.neighbor import NEIGHBOR_KIND
from gigl_loader.sampler.options import ExpansionOptions

BUYS, BOUGHT = ("user", "buys", "item"), ("item", "rev_buys", "user")


def _made(pad: Any = True, *, typed: bool = True, edge_dir: EdgeDir = "in", **how: Any) -> Padding:
    schema = DatasetSchema(
        is_homogeneous_with_labeled_edge_type=False,
        edge_types=[BUYS, BOUGHT] if typed else None,
        node_feature_info=None,
        edge_feature_info=None,
        edge_dir=edge_dir,
    )
    num_nodes = (
        {"user": 10**6, "item": 10**6} if typed else {"default_homogeneous_node_type": 10**6}
    )
    fanouts: Any = {BUYS: [2], BOUGHT: [3]} if typed else [2, 3]
    in_step = how.pop("in_step", False)
    given: dict[str, Any] = {
        "fanouts": fanouts,
        "schema": schema,
        "num_nodes": num_nodes,
        "num_edges": {},
        "inputs": [SimpleNamespace(input_type="user" if typed else None)],
        "sampler": NEIGHBOR_KIND,
        "world_size": 2,
    }
    options = LoaderOptions(
        num_neighbors=fanouts,
        batch_size=10,
        pad=pad,
        even_ranks="drop" if in_step else None,
        **how.pop("options", {}),
    )
    found = make_padding(options, **{**given, **how})
    assert found is not None
    return found


def test_the_bound_has_two_dead_nodes_of_each_type() -> None:
    found = _made()
    assert found.shape.nodes == {"user": 12, "item": 32}
    assert found.shape.edges == {BUYS: 0, BOUGHT: 30}
    assert not found.may_split
    plain = _made(typed=False)
    assert plain.shape.nodes == {None: 10 + 20 + 60 + 2}
    assert plain.shape.edges == {None: 20 + 60}


def test_edge_types_have_the_names_of_a_batch() -> None:
    found = _made(edge_dir="out")
    assert found.shape.edges == {BOUGHT: 20, BUYS: 0}
    assert found.shape.nodes == {"user": 12, "item": 22}


def test_seed_edges_and_their_negatives_are_roots() -> None:
    def nodes(**keywords: Any) -> Any:
        sampler = EDGE_KIND.with_keywords({"edge_type": BUYS, **keywords})
        return _made(sampler=sampler, fanouts={BUYS: [0], BOUGHT: [0]}).shape.nodes

    assert nodes() == {"user": 12, "item": 12}
    assert nodes(negatives="binary", amount=0.25) == {"user": 15, "item": 15}
    assert nodes(negatives="triplet", amount=3) == {"user": 12, "item": 42}


def test_labels_of_anchors_are_bounded_by_the_dataset_or_by_what_is_given() -> None:
    keywords = {"supervision": (BUYS,), "labels_in_input": False, "max_labels": 4}
    how: dict[str, Any] = {"fanouts": {BUYS: [0], BOUGHT: [0]}}
    found = _made(sampler=ANCHOR_KIND.with_keywords(keywords), **how)
    assert found.shape.nodes == {"user": 12, "item": 42}
    with pytest.raises(ConfigError, match="any number of labels"):
        _made(sampler=ANCHOR_KIND.with_keywords({**keywords, "max_labels": None}), **how)
    columns = {
        "positive:user__buys__item": torch.zeros(5, 3),
        "negative:user__buys__item": torch.zeros(5, 2),
    }
    given = [SimpleNamespace(input_type="user", extra=columns), SimpleNamespace(input_type="user")]
    sampler = ANCHOR_KIND.with_keywords({**keywords, "labels_in_input": True})
    found = _made(sampler=sampler, inputs=given, **how)
    assert found.shape.nodes == {"user": 12, "item": 52}


SIZES = {"nodes": 60, "edges": 80}


def test_ranks_in_step_cannot_split() -> None:
    assert _made(SIZES, typed=False).may_split
    with pytest.raises(ConfigError, match='same number of steps: add "larger": "bound"'):
        _made(SIZES, typed=False, in_step=True)
    found = _made({**SIZES, "larger": "bound"}, typed=False, in_step=True)
    assert found.larger == _made(typed=False).shape
    assert not found.may_split
    # Sizes that are enough for any batch split none.
    enough = _made({"nodes": 92, "edges": 80}, typed=False, in_step=True)
    assert enough.larger is None
    assert not enough.may_split
    assert _made({"nodes": 91, "edges": 80}, typed=False).may_split


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("pad", [True, {"nodes": 60, "edges": 80, "larger": "bound"}])
def test_a_batch_beyond_the_memory_is_refused_with_the_numbers(pad: Any, typed: bool) -> None:
    """10 seeds with 1e9 neighbours each, and nodes of a graph of 1e6 with as many."""
    if typed and pad is not True:
        pad = {**pad, "nodes": {"user": 60, "item": 60}, "edges": {BUYS: 80, BOUGHT: 80}}
    fanouts: Any = {BUYS: [10**9] * 2, BOUGHT: [10**9] * 2} if typed else [10**9, 10**9]
    with pytest.raises(ConfigError, match=r"edges, 1.* GB each, and this machine has .*B of mem"):
        _made(pad, typed=typed, fanouts=fanouts)


def test_the_graph_limits_huge_fan_outs() -> None:
    """Edges of a type that the graph has few of, and through them nodes."""
    edges = {BUYS: 7, BOUGHT: 50}
    fanouts = {BUYS: [10**9] * 2, BOUGHT: [10**9] * 2}

    def made(**options: Any) -> Padding:
        return _made(fanouts=fanouts, num_edges=edges, options=options)

    found = made().shape
    # 10 users of the seeds draw their items: all 50 edges, and again for each that comes again.
    assert found.edges == {BUYS: 7, BOUGHT: 50 + 9 * 50}
    assert found.nodes == {"user": 10 + 7 + 2, "item": 500 + 2}
    assert made(expansion=ExpansionOptions(disjoint=True)).shape.edges == {
        BUYS: 10 * 7,
        BOUGHT: 10 * 50,
    }
    with pytest.raises(ConfigError, match="and this machine has"):
        made(replace=True)
    with pytest.raises(ConfigError, match="pad has no bound"):
        _made(fanouts={BUYS: [-1], BOUGHT: [1]}, num_edges=edges)


def test_sizes_need_no_more_than_the_bound() -> None:
    """The tree of a single seed could be larger than all that the graph gives to a batch."""
    how: dict[str, Any] = {"typed": False, "fanouts": [20, 20]}
    how["num_edges"] = {DEFAULT_HOMOGENEOUS_EDGE_TYPE: 30}
    bound = _made(**how).shape
    assert bound.edges == {None: 30 + 9 * 20}
    assert not _made({"nodes": bound.nodes[None], "edges": 210}, **how).may_split
    with pytest.raises(ConfigError, match=r'"edges"\].* give at least 210'):
        _made({"nodes": bound.nodes[None], "edges": 209}, **how)


def test_rows_of_features_count() -> None:
    def made(dim: int) -> Padding:
        schema = DatasetSchema(
            is_homogeneous_with_labeled_edge_type=False,
            edge_types=None,
            node_feature_info=FeatureInfo(dim, torch.float32),
            edge_feature_info=None,
            edge_dir="in",
        )
        return _made(typed=False, schema=schema)

    assert made(1000).shape == made(1).shape
    with pytest.raises(ConfigError, match=r"92 nodes and 80 edges, 3.68e\+06 GB each, and"):
        made(10**13)
