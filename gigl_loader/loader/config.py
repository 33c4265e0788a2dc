"""What the user asked for, checked and in one form: fanouts, GLT's sampling config and options."""

from collections.abc import Mapping
from typing import Any

import torch
from torch_geometric.sampler import NumNeighbors as PyGNumNeighbors

from gigl_loader._glt import MpDistSamplingWorkerOptions, SamplingConfig, SamplingType
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    EdgeType,
    NodeType,
    is_label_edge_type,
    plain_edge_type,
)
from gigl_loader.errors import ConfigError
from gigl_loader.options import (
    CustomSamplerOptions,
    ExpansionOptions,
    FeatureStoreOptions,
    PPRSamplerOptions,
    SamplerOptions,
)

NumNeighbors = list[int] | dict[EdgeType, list[int]]
"""Neighbours per hop; PyG's ``NumNeighbors`` is taken, too."""
# Seconds; an upper limit, as workers wait for a share of the loader's own `timeout` where that is
# less.
RPC_TIMEOUT_S = 600.0
_MAX_RPC_THREADS = 16
# What GLT's options would cut a larger number to, without a word.
_MAX_CONCURRENCY = 32
# The most that `LocalReader` lets another partition ask for; there it would be an error of the
# protocol, in the middle of an epoch.
_MOST_NEIGHBORS = 2**31 - 1


def patch_fanout(num_neighbors: NumNeighbors, schema: DatasetSchema) -> NumNeighbors:
    """Return the fanout by message-passing edge type (a list for a homogeneous graph).

    Raises:
        ConfigError: Wrong keys, unequal hop counts, or a fanout below -1; names the offender.
    """
    if isinstance(num_neighbors, PyGNumNeighbors):
        num_neighbors = _values_of(num_neighbors, schema)
    if schema.edge_types is None:
        if isinstance(num_neighbors, Mapping):
            raise ConfigError(
                "num_neighbors is a dict, but the graph is homogeneous: pass a list, as [15, 10]"
            )
        _check_hops(num_neighbors, "num_neighbors")
        return list(num_neighbors)
    # Label edges are what is to be predicted: a message that passes along them gives it away.
    walked = [edge_type for edge_type in schema.edge_types if not is_label_edge_type(edge_type)]
    if not walked:
        raise ConfigError(
            f"the graph has label edge types only ({schema.edge_types}): nothing to sample over"
        )
    # The same list for each type; the copies are made below, where types get their plain form.
    if not isinstance(num_neighbors, Mapping):
        num_neighbors = dict.fromkeys(walked, num_neighbors)
    unknown = [name for name in num_neighbors if name not in walked]
    missing = [name for name in walked if name not in num_neighbors]
    if unknown or missing:
        raise ConfigError(
            "num_neighbors must name exactly the message-passing edge types"
            + "".join(_unknown_type(name, walked) for name in unknown)
            + (f"; it lacks {missing}" if missing else "")
            + "; a list in place of the dict is for all of them"
        )
    for name, hops in num_neighbors.items():
        _check_hops(hops, f"num_neighbors[{name}]")
    counts = {name: len(hops) for name, hops in num_neighbors.items()}
    if len(set(counts.values())) > 1:
        raise ConfigError(
            f"the number of hops must be the same across all edge types, num_neighbors has {counts}"
        )
    # Plain tuples: a user's NamedTuple would have to be imported where workers read the plan.
    return {plain_edge_type(name): list(hops) for name, hops in num_neighbors.items()}


def _unknown_type(name: Any, walked: list[EdgeType]) -> str:
    """Return what is to be said of a name that is no edge type to walk."""
    if not isinstance(name, tuple) or len(name) != 3:
        return f"; {name!r} is no edge type (source, relation, destination)"
    if is_label_edge_type(name):
        return f"; {name} has labels, which are never walked"
    ends = {name[0], name[2]}
    near = [one for one in walked if one[1] == name[1] or {one[0], one[2]} == ends]
    return f"; {name} is none of them" + (f", did you mean {near[0]}?" if near else "")


def _values_of(given: PyGNumNeighbors, schema: DatasetSchema) -> Any:
    """Return what PyG's ``NumNeighbors`` says of the edge types that are walked."""
    walked = [name for name in schema.edge_types or () if not is_label_edge_type(name)]
    try:
        return given._get_values(walked or None)  # get_values() keeps the first graph's answer
    except ValueError as error:
        raise ConfigError(f"num_neighbors={given}: {error}; the graph has {walked}") from error


def checked_function(name: str, value: Any) -> Any:
    """Return ``value`` if it can be called, or is None."""
    if value is not None and not callable(value):
        raise ConfigError(f"{name} must be a function, got {value!r}")
    return value


def _check_hops(hops: Any, name: str) -> None:
    if not isinstance(hops, (list, tuple)):
        raise ConfigError(f"{name} must be a list with a fanout per hop, got {hops!r}")
    for hop, fanout in enumerate(hops):
        # A bool is an int, and `[True, True]` would sample one neighbour per hop.
        if isinstance(fanout, bool) or not isinstance(fanout, int) or fanout < -1:
            raise ConfigError(
                f"{name}[{hop}] must be a number of neighbours, or -1 for all, got {fanout!r}"
            )
        if fanout > _MOST_NEIGHBORS:
            raise ConfigError(
                f"{name}[{hop}] must be at most {_MOST_NEIGHBORS}, got {fanout}: -1 takes all"
            )


def sampling_config(
    num_neighbors: NumNeighbors,
    schema: DatasetSchema,
    *,
    batch_size: int,
    shuffle: bool,
    drop_last: bool,
    with_weight: bool,
    with_edge: bool | None,
    seed: int | None,
) -> SamplingConfig:
    """Return GLT's config of type NODE: see ``BaseDistLoader.create_sampling_config``."""
    positive("batch_size", batch_size)
    return SamplingConfig(
        sampling_type=SamplingType.NODE,
        num_neighbors=patch_fanout(num_neighbors, schema),
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        with_edge=_has_edge_values(schema) if with_edge is None else with_edge,
        collect_features=True,
        with_neg=False,
        with_weight=with_weight,
        edge_dir=schema.edge_dir,
        seed=seed,
    )


def _has_edge_values(schema: DatasetSchema) -> bool:
    """Return whether edges have features, weights, or other attributes that batches carry."""
    return bool(schema.edge_feature_info or schema.edge_attributes)


def colocated_worker_options(
    *,
    dataset_num_partitions: int,
    num_workers: int,
    worker_concurrency: int,
    master_ip_address: str,
    master_port: int,
    channel_size: int | str,
    pin_memory: bool,
) -> MpDistSamplingWorkerOptions:
    """Return GLT's options: see ``BaseDistLoader.create_colocated_worker_options``."""
    check_workers(num_workers, worker_concurrency)
    return MpDistSamplingWorkerOptions(
        num_workers=num_workers,
        # GLT would choose devices by itself, and workers that sample on the CPU need no CUDA
        # context.
        worker_devices=[torch.device("cpu")] * num_workers,
        worker_concurrency=worker_concurrency,
        master_addr=master_ip_address,
        master_port=master_port,
        num_rpc_threads=min(dataset_num_partitions, _MAX_RPC_THREADS),
        rpc_timeout=RPC_TIMEOUT_S,
        channel_size=channel_size,
        pin_memory=pin_memory,
    )


def check_workers(num_workers: int, worker_concurrency: int) -> None:
    """Raise where GLT would clamp in silence."""
    # 0 is a good value, but of loaders that build no such options: hence words of its own.
    if num_workers == 0 and not isinstance(num_workers, bool):
        raise ConfigError("num_workers must be > 0 here, got 0: these options are for workers")
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise ConfigError(
            f"num_workers must be an integer >= 0, got {num_workers!r}: 0 samples in this process"
        )
    positive("worker_concurrency", worker_concurrency)
    if worker_concurrency > _MAX_CONCURRENCY:
        raise ConfigError(
            f"worker_concurrency must be at most {_MAX_CONCURRENCY}, got {worker_concurrency}"
        )


def flag(name: str, value: Any) -> None:
    """Raise `ConfigError` unless ``value`` is a bool: the text "False" counts as true."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}")


def positive(name: str, value: Any) -> None:
    """Raise `ConfigError` unless ``value`` is an int above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be an integer > 0, got {value!r}")


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
