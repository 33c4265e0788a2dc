"""Which sampler workers are told to run, and what does not go together."""

from typing import Any

import pytest
import torch

from gigl_loader import ConfigError, CustomSamplerOptions, PPRSamplerOptions
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    FeatureInfo,
    message_passing_to_positive_label,
)
from gigl_loader.loader.options.loader_options import LoaderOptions
from gigl_loader.sampler.anchors import ANCHOR_KIND
from gigl_loader.sampler.edges import EDGE_KIND
from gigl_loader.sampler.neighbor import NEIGHBOR_KIND, SUBGRAPH_KIND
from gigl_loader.sampler.options import FeatureStoreOptions, KHopNeighborSamplerOptions
from gigl_loader.sampler.sampler_kinds import SamplerKind

BUYS, KNOWS = ("user", "buys", "item"), ("user", "knows", "user")
LABELED = message_passing_to_positive_label(BUYS)
TYPED = DatasetSchema(False, [BUYS, KNOWS, LABELED], None, None, "in")
PLAIN = DatasetSchema(False, None, None, None, "in")
INFO = FeatureInfo(2, torch.float32)


def _options(sampler: Any, **how: Any) -> LoaderOptions:
    return LoaderOptions.of(num_neighbors=[2], sampler_options=sampler, **how)


def test_a_class_of_ones_own_comes_before_the_loaders() -> None:
    own, loaders = CustomSamplerOptions("a.B", {}), SamplerKind("x.y", {"z": 1})
    assert _options(own).with_chosen_sampler(loaders, PLAIN, None).sampler_options is own
    for fanout in (None, KHopNeighborSamplerOptions([2])):
        given = _options(fanout, with_weight=True)
        found = given.with_chosen_sampler(loaders, PLAIN, None)
        assert found.sampler_options == CustomSamplerOptions("x.y", {"z": 1})
        assert given.with_chosen_sampler(NEIGHBOR_KIND, PLAIN, None) is given, (
            "the plain k-hop sampler"
        )


def _keywords(
    default: SamplerKind, schema: DatasetSchema, input_type: str | None
) -> dict[str, Any]:
    given = _options(PPRSamplerOptions(alpha=0.3))
    found = given.with_chosen_sampler(default, schema, input_type).sampler_options
    assert isinstance(found, CustomSamplerOptions)
    assert found.class_path == "gigl_loader.sampler.ppr.ppr_sampler.ppr_sampler"
    assert found.keywords["options"]["alpha"] == 0.3
    return found.keywords


def test_pushes_start_where_the_loaders_own_sampler_would() -> None:
    found = _keywords(NEIGHBOR_KIND, PLAIN, None)
    assert found["seed_types"] == [DEFAULT_HOMOGENEOUS_NODE_TYPE]
    assert (found["around"], found["roots"]) == ("", {})
    roots = {"supervision": (BUYS, KNOWS), "exclude": ()}
    found = _keywords(ANCHOR_KIND.with_keywords(roots), TYPED, "user")
    assert found["seed_types"] == ["item", "user"]  # label nodes are roots as well
    assert (found["around"], found["roots"]) == ("anchor_sampler", roots)
    found = _keywords(EDGE_KIND.with_keywords({"edge_type": KNOWS}), TYPED, "user")
    assert (found["seed_types"], found["around"]) == (["user"], "edge_sampler")
    assert _keywords(SUBGRAPH_KIND, PLAIN, None)["around"] == "subgraph_sampler"


@pytest.mark.parametrize(
    ("options", "schema", "how", "words"),
    [
        ({}, PLAIN, {"with_weight": True}, "with_weight=True cannot be combined with"),
        ({}, PLAIN, {"disjoint": True}, "no trees, times or hops"),
        ({"include_sampled_edges": True}, PLAIN, {}, "for heterogeneous graphs"),
        ({"typed_channel_ratios": {LABELED: 1.0}}, TYPED, {}, r"can be walked are \[.*buys.*knows"),
        ({"typed_channel_ratios": {("a", "b", "c"): 1.0}}, TYPED, {}, r"names \[\('a', 'b', 'c'\)"),
    ],
)
def test_what_does_not_go_with_ppr(
    options: dict, schema: DatasetSchema, how: dict, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        _options(PPRSamplerOptions(**options), **how).with_chosen_sampler(
            NEIGHBOR_KIND, schema, None
        )
    assert _options(PPRSamplerOptions()).with_chosen_sampler(NEIGHBOR_KIND, schema, None)


def _check(node_types: Any, own: Any) -> None:
    schema = DatasetSchema(False, TYPED.edge_types, own, None, "in")
    options = FeatureStoreOptions("a.B", node_types=node_types)
    _options(None, feature_store=options).check_feature_store(schema, {"user": 3, "item": 4})


def test_a_feature_store_is_for_types_that_have_no_features() -> None:
    _options(None).check_feature_store(PLAIN, {})
    _check(None, None)
    _check(None, {"user": INFO})  # for items, then
    _check(["item"], {"user": INFO})
    for node_types, own in (
        (None, {"user": INFO, "item": INFO}),
        (["user"], {"user": INFO}),
        (["user", "item"], {"user": INFO}),
        (None, INFO),
    ):
        with pytest.raises(ConfigError, match="have features in the dataset already"):
            _check(node_types, own)
    with pytest.raises(ConfigError, match=r"names \['shop'\], the graph has \['item', 'user'\]"):
        _check(["shop"], None)
