"""Which sampler the workers run: the options of the user, and the roots that a loader needs."""

from collections.abc import Mapping
from typing import Any

from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    EdgeType,
    NodeType,
    is_label_edge_type,
)
from gigl_loader.errors import ConfigError
from gigl_loader.options import (
    CustomSamplerOptions,
    ExpansionOptions,
    FeatureStoreOptions,
    PPRSamplerOptions,
    SamplerOptions,
)

SamplerClass = tuple[str, dict[str, Any]]
"""Import path and keywords."""

_PPR = "gigl_loader.sampler.ppr.ppr_sampler"


def chosen_sampler(
    options: SamplerOptions | None,
    default: SamplerClass | None,
    schema: DatasetSchema,
    input_type: str | None,
    *,
    with_weight: bool = False,
    expansion: ExpansionOptions | None = None,
) -> SamplerOptions | None:
    """Return the options that workers are told: PPR as the sampler that does it.

    Args:
        options: Of the user.
        default: Sampler of the loader's own kind; None: around the seeds.
        schema: What the dataset holds.
        input_type: Node type of the seeds.
        with_weight: Whether draws by weight were asked for.
        expansion: How batches grow.

    Raises:
        ConfigError: PPR does not go with the graph or with what else was asked for.
    """
    if not isinstance(options, PPRSamplerOptions):
        return options
    # Here: its kernels take time to load, which other loaders need not spend.
    from gigl_loader.sampler.ppr import to_keywords

    _check_ppr(options, schema, with_weight)
    if expansion not in (None, ExpansionOptions()):
        raise ConfigError(
            f"{expansion} does not go with PPRSamplerOptions, which take the nodes of largest "
            "score and no trees, times or hops: leave one of them out"
        )
    # What the loader's own sampler would have started at: the PPR sampler starts there as well.
    path, roots = default or ("", {})
    # Pushes begin at seeds and at the nodes that labels or seed edges lead to: all their types.
    seed_types = {input_type or DEFAULT_HOMOGENEOUS_NODE_TYPE}
    supervised: list[EdgeType] = list(roots.get("supervision", ()))
    if "edge_type" in roots:
        supervised.append(roots["edge_type"])
    seed_types |= {edge_type[2] for edge_type in supervised}
    keywords = {
        **to_keywords(options), "seed_types": sorted(seed_types),
        "around": path.rpartition(".")[2], "roots": roots,
    }  # fmt: skip
    return CustomSamplerOptions(_PPR, keywords)


def check_feature_store(
    options: FeatureStoreOptions | None, schema: DatasetSchema, num_nodes: Mapping[NodeType, int]
) -> None:
    """Raise `ConfigError` where a feature store is named for types that need none."""
    if options is None:
        return
    own = schema.node_feature_info
    with_features = set(own) if isinstance(own, dict) else set(num_nodes) if own else set()
    wanted = set(num_nodes) if options.node_types is None else set(options.node_types)
    unknown = wanted - set(num_nodes)
    if unknown:
        raise ConfigError(
            f"FeatureStoreOptions.node_types names {sorted(unknown)}, the graph has "
            f"{sorted(num_nodes)}"
        )
    # Types that were named must have none of their own. Without names the store is for all types
    # that lack them, and wrong only where none does.
    doubled = wanted & with_features if options.node_types else wanted
    if doubled <= with_features and doubled:
        raise ConfigError(
            f"feature_store={options.class_path} is for node types {sorted(wanted)}, which have "
            "features in the dataset already: leave those out of one of the two"
        )


def _check_ppr(options: PPRSamplerOptions, schema: DatasetSchema, with_weight: bool) -> None:
    if with_weight:
        raise ConfigError(
            "with_weight=True does not go with PPRSamplerOptions: a push goes to all neighbours "
            "evenly; leave one of them out"
        )
    plain = schema.edge_types is None or schema.is_homogeneous_with_labeled_edge_type
    if plain and (options.typed_channel_ratios or options.include_sampled_edges):
        raise ConfigError(
            "typed_channel_ratios and include_sampled_edges of PPRSamplerOptions are for "
            "heterogeneous graphs: a homogeneous batch has one kind of edges"
        )
    walked = [name for name in schema.edge_types or () if not is_label_edge_type(name)]
    unknown = {name for edge_types, _ in options.channels for name in edge_types} - set(walked)
    if unknown:
        raise ConfigError(
            f"PPRSamplerOptions.typed_channel_ratios names {sorted(unknown)}; the edge types that "
            f"can be walked are {walked}"
        )
