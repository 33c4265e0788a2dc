"""Checks of what is sampled and by how many workers, by loaders and by storage servers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gigl_loader.dataset.partition.checks import check_edge_dir
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    EdgeType,
    NodeType,
    is_label_edge_type,
    plain_edge_type,
)
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.runtime.glt_classes import SamplingConfig
from gigl_loader.runtime.plain_values import check_count
from gigl_loader.sampler.options import check_seed

# GLT's options silently reduce a larger number to this.
_MAX_CONCURRENCY = 32
# The most that `LocalReader` accepts from another partition; a larger number would be a protocol
# error in the middle of an epoch.
_MOST_NEIGHBORS = 2**31 - 1


def check_sampling(
    sampler_input: Any,
    config: SamplingConfig,
    schema: DatasetSchema,
    num_nodes: Mapping[NodeType, int],
) -> None:
    """Check seeds and options that come from another process, as a loader checks its user's.

    Raises:
        ConfigError: Names the first offender.
    """
    check_count(config.batch_size, "batch_size")
    check_edge_dir(config.edge_dir)
    if config.seed is not None:
        check_seed(config.seed)
    checked_fanout(config.num_neighbors, schema)
    node_type = sampler_input.input_type or DEFAULT_HOMOGENEOUS_NODE_TYPE
    if node_type not in num_nodes:
        raise ConfigError(f"the seeds are of type {node_type!r}, the graph has {sorted(num_nodes)}")
    check_seeds(sampler_input.node, num_nodes[node_type], "seeds")


def checked_fanout(num_neighbors: Any, schema: DatasetSchema) -> Any:
    """Return the fanout by message-passing edge type (a list for a homogeneous graph).

    Raises:
        ConfigError: Wrong keys, unequal hop counts, or a fanout below -1; names the offender.
    """
    if schema.edge_types is None:
        if isinstance(num_neighbors, Mapping):
            raise ConfigError(
                "num_neighbors is a dict, but the graph is homogeneous: pass a list, as [15, 10]"
            )
        _check_hops(num_neighbors, "num_neighbors")
        return list(num_neighbors)
    # Label edges are to be predicted: messages along them would give the answer away.
    walked = [edge_type for edge_type in schema.edge_types if not is_label_edge_type(edge_type)]
    if schema.edge_types and not walked:
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
    # Plain tuples: workers would have to import a user's NamedTuple to read the plan.
    return {plain_edge_type(name): list(hops) for name, hops in num_neighbors.items()}


def _unknown_type(name: Any, walked: list[EdgeType]) -> str:
    """Return the error message for a name that is no walked edge type."""
    if not isinstance(name, tuple) or len(name) != 3:
        return f"; {name!r} is no edge type (source, relation, destination)"
    if is_label_edge_type(name):
        return f"; {name} has labels, which are never walked"
    ends = {name[0], name[2]}
    near = [one for one in walked if one[1] == name[1] or {one[0], one[2]} == ends]
    return f"; {name} is none of them" + (f", did you mean {near[0]}?" if near else "")


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


def check_seeds(seeds: Any, num_nodes: int, name: str = "input_nodes") -> Tensor:
    """Return ``seeds`` if they are ``[n]`` int64 ids on the CPU, each in ``[0, num_nodes)``.

    Raises:
        WrongTypeError: Not a tensor.
        ConfigError: Wrong shape, dtype, device, or range; names the first offender.
    """
    if not isinstance(seeds, Tensor):
        raise WrongTypeError(
            f"{name} must be node ids, as a tensor, an array or a list, or a mask, got "
            f"{type(seeds).__name__}"
        )
    if seeds.dtype == torch.bool:
        raise ConfigError(f"{name} is a boolean mask: pass ids, {name}.nonzero().view(-1)")
    if seeds.dtype != torch.int64 or seeds.dim() != 1:
        raise ConfigError(
            f"{name} must be [n] int64, got {list(seeds.shape)} {seeds.dtype}: use .long().view(-1)"
        )
    if seeds.device.type != "cpu":
        raise ConfigError(f"{name} must be on the CPU, where sampling is, got {seeds.device}")
    wrong = (seeds < 0) | (seeds >= num_nodes)
    if bool(wrong.any()):
        position = int(wrong.nonzero()[0])
        raise ConfigError(
            f"{name}[{position}] = {int(seeds[position])} is no node id: ids are in "
            f"[0, {num_nodes})"
        )
    return seeds.contiguous()


def check_workers(num_workers: int, worker_concurrency: int) -> None:
    """Raise where GLT would silently clamp."""
    # 0 is a valid value, but only for loaders that build no such options: hence another message.
    if num_workers == 0 and not isinstance(num_workers, bool):
        raise ConfigError("num_workers must be > 0 here, got 0: these options are for workers")
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise ConfigError(
            f"num_workers must be an integer >= 0, got {num_workers!r}: 0 samples in this process"
        )
    check_count(worker_concurrency, "worker_concurrency", most=_MAX_CONCURRENCY)
