"""Seeds given by the user, checked before anything starts, and sent to the other ranks.

Each rank takes part in one exchange for each loader that it builds: with its input, or with its
error. So no rank waits for a failed one; all see the same list, and raise alike.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gigl_loader.batch.message import SeedColumns, columns_of
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.identity import check_held
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    EdgeType,
    NodeType,
    is_label_edge_type,
)
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.loader.deployment.job_ranks import DistributedRuntimeInfo
from gigl_loader.loader.deployment.process_role import open_loaders
from gigl_loader.runtime.glt_classes import NodeSamplerInput
from gigl_loader.runtime.memory.tensors import bytes_of
from gigl_loader.runtime.ranks.collectives import (
    COULD_NOT_BUILD,
    check_same_options,
    gather_from_ranks,
    report_failure_to_ranks,
)
from gigl_loader.sources.held_seeds import RemoteSamplerInput, told_parts
from gigl_loader.sources.sampling_checks import check_seeds
from gigl_loader.sources.seed_checks import SeedSummary, check_each_once, check_same_seeds

logger = logging.getLogger(__name__)

Seeds = Tensor | NDArray[Any] | Sequence[int]
"""Ids of nodes, or a mask over all nodes of the type."""
NodeInput = (
    Seeds
    | NodeType
    | tuple[NodeType, Seeds | None]
    | Mapping[int, Seeds]
    | tuple[NodeType, Mapping[int, Seeds]]
    | Mapping[int, RemoteSamplerInput]
)
"""A user's seeds: colocated the first three, by storage server the others."""


Positions = Tensor | NDArray[Any] | Sequence[int]
"""Positions among a loader's seeds, counted from 0."""


def read_positions(given: Any, num_seeds: int) -> Tensor:
    """Return ``given`` as ``[n]`` int64 positions among a loader's seeds.

    Raises:
        WrongTypeError: Not integers in one row.
        ConfigError: Wrong shape, dtype, device or range; names the first offender.
    """
    positions = _as_tensor(given, "index")
    if isinstance(positions, Tensor) and positions.dtype == torch.int32:
        positions = positions.long()
    if not isinstance(positions, Tensor) or positions.dtype != torch.int64 or positions.dim() != 1:
        what = (
            f"{list(positions.shape)} {positions.dtype}"
            if isinstance(positions, Tensor)
            else repr(given)
        )
        raise WrongTypeError(
            f"index must be positions among the loader's seeds, [n] integers, got {what}"
        )
    positions = positions.cpu()
    wrong = (positions < 0) | (positions >= num_seeds)
    if bool(wrong.any()):
        position = int(wrong.nonzero()[0])
        raise ConfigError(
            f"index[{position}] = {int(positions[position])} is no position: this loader has "
            f"{num_seeds} seeds, counted from 0"
        )
    return positions.contiguous()


def read_seeds(
    given: Any, num_nodes: int, name: str = "input_nodes"
) -> tuple[Tensor, Tensor | None]:
    """Return (seeds, ``input_id`` of each; None: its place) of ids or of a mask, as PyG has them.

    Args:
        given: Ids as a tensor, array or sequence of integers; or a bool mask ``[num_nodes]``.
        num_nodes: Nodes of the type.
        name: Its name in errors.

    Raises:
        WrongTypeError: None of these.
        ConfigError: Wrong shape, dtype, device, or range; names the first offender.
    """
    seeds = _as_tensor(given, name)
    if not isinstance(seeds, Tensor) or seeds.dtype != torch.bool:
        return check_seeds(seeds, num_nodes, name), None
    if seeds.shape != (num_nodes,):
        raise ConfigError(
            f"{name} is a mask of shape {tuple(seeds.shape)}; the type has {num_nodes} nodes, and "
            f"a mask needs shape [{num_nodes}]"
        )
    ids = check_seeds(seeds.nonzero().view(-1), num_nodes, name)
    return ids, ids


def _as_tensor(given: Any, name: str) -> Any:
    """Return arrays and sequences of integers or bools as tensors, all else unchanged."""
    # A string is a sequence as well, and numpy would read its letters.
    if isinstance(given, str | bytes) or not isinstance(given, np.ndarray | Sequence):
        return given
    try:
        array = np.asarray(given)
    except ValueError as error:  # rows of several lengths
        raise ConfigError(f"{name} cannot be read as node ids: {error}") from error
    if array.size == 0 and not isinstance(given, np.ndarray):
        # An empty list is float64 to numpy; an empty array has a chosen type.
        return torch.empty(0, dtype=torch.int64, device="cpu")
    if array.dtype.kind == "b":
        # Copied: the user's array may change later, or be read-only, which torch warns about.
        return torch.from_numpy(array.copy())
    if array.dtype.kind not in "iu":
        raise ConfigError(f"{name} must hold integer node ids, got values of type {array.dtype}")
    # The conversion below would turn it into a negative number.
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise ConfigError(f"{name} has {int(array.max())}, which is no node id")
    return torch.from_numpy(array.astype(np.int64))


def typed_seeds(
    input_nodes: Any, schema: DatasetSchema, num_nodes: dict[NodeType, int]
) -> tuple[NodeType, Any]:
    """Return (node type, seeds as they were given) of colocated ``input_nodes``.

    The type is always given; the seeds are None if all nodes of the type are meant.

    Raises:
        ConfigError: The type is missing or unknown, or the input is a graph store's.
    """
    inner = input_nodes[1] if isinstance(input_nodes, tuple) and len(input_nodes) == 2 else None
    if isinstance(input_nodes, Mapping) or isinstance(inner, Mapping):
        raise ConfigError(
            "input_nodes is by server, as for a graph store, but the dataset is local: pass a "
            "tensor or (node_type, tensor)"
        )
    if isinstance(input_nodes, str):
        input_nodes = (input_nodes, None)
    form = "(node_type, ids), for example (node_type, dataset.node_ids[node_type])"
    return _type_of(input_nodes, schema, num_nodes, form)


def _type_of(
    input_nodes: Any, schema: DatasetSchema, num_nodes: Mapping[NodeType, int], form: str
) -> tuple[NodeType, Any]:
    """Return (node type, the rest) of ``input_nodes``; ``form`` is how to name a type."""
    plain = schema.edge_types is None or schema.is_homogeneous_with_labeled_edge_type
    if not _is_typed(input_nodes):
        if not plain:
            raise ConfigError(
                f"the graph is heterogeneous: pass input_nodes={form}, with one of "
                f"{sorted(num_nodes)}"
            )
        return DEFAULT_HOMOGENEOUS_NODE_TYPE, input_nodes
    node_type, given = input_nodes
    if not isinstance(node_type, str) or node_type not in num_nodes:
        raise ConfigError(
            f"input_nodes names node type {node_type!r}, the graph has "
            + ("one type: pass the seeds alone" if plain else f"{sorted(num_nodes)}")
        )
    return node_type, given


def _is_typed(input_nodes: Any) -> bool:
    """Return whether it is ``(node_type, seeds)``; a tuple of ids is an ordinary sequence."""
    pair = isinstance(input_nodes, tuple) and len(input_nodes) == 2
    # `(3, 5)` are two seeds.
    return pair and not isinstance(input_nodes[0], int | np.integer)


def typed_by_server(
    input_nodes: Any, schema: DatasetSchema, num_nodes: dict[NodeType, int]
) -> tuple[NodeType, dict[int, tuple[Tensor, Tensor | None]]]:
    """Return (node type, what `read_seeds` returns by storage server) of ``input_nodes``.

    Raises:
        ConfigError: The type is missing or unknown, or the input is a colocated loader's.
    """
    form = "(node_type, {server_rank: ids})"
    node_type, by_server = _type_of(input_nodes, schema, num_nodes, form)
    if not isinstance(by_server, Mapping):
        raise ConfigError(
            "with a graph store, input_nodes is {server_rank: ids}, as "
            f"RemoteDistDataset.fetch_node_ids returns it, got {type(by_server).__name__}"
        )
    return node_type, {
        server: read_seeds(ids, num_nodes[node_type], f"input_nodes[{server}]")
        for server, ids in by_server.items()
    }


def check_servers(by_server: Mapping[int, Any], servers: range, name: str = "the input") -> None:
    """Raise `ConfigError` if an input of that name is for an unknown storage server."""
    unknown = [server for server in by_server if server not in servers]
    if unknown:
        raise ConfigError(f"{name} names storage servers {unknown}; there are {list(servers)}")


def local_share(seeds: Tensor, local_rank: int, local_world_size: int) -> Tensor:
    """Return the block of ``seeds`` of one process of a machine; the blocks concatenate to all.

    Source:
        ``torch.tensor_split``: the first ``len(seeds) % local_world_size`` blocks are one longer.
    """
    return seeds.tensor_split(local_world_size)[local_rank].contiguous()


def digest_of_seeds(inputs: Sequence[NodeSamplerInput]) -> str:
    """Return a digest of seeds and their columns, but not of how they are divided."""
    digest = hashlib.blake2b(digest_size=8)
    for sampler_input in inputs:
        columns = columns_of(sampler_input)
        digest.update(told_parts(sampler_input))
        # By name: the order in which columns were added does not matter.
        for column in (sampler_input.node, *(columns[name] for name in sorted(columns))):
            digest.update(bytes_of(column.cpu().contiguous()))
        # Equal numbers may be the earliest times, or the greatest ages.
        given = SeedColumns.of(columns)
        early = SeedColumns(start=given.start, window=given.window)
        digest.update("".join(early.named()).encode())
    return digest.hexdigest()


Times = Tensor | NDArray[Any] | Sequence[float]
"""One number per seed."""
TimeInput = Times | Mapping[int, Times]
"""Times as the user gives them: colocated, or by storage server."""


def read_tensor(given: Any, name: str, what: str = "a tensor") -> Tensor:
    """Return ``given`` as a tensor; raise `ConfigError` if it cannot be read as ``what``."""
    try:
        return torch.as_tensor(given, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{name} cannot be read as {what}: {error}") from None


def read_times(given: Any, num_seeds: int, name: str) -> Tensor:
    """Return ``[num_seeds]`` int64 or float64.

    Raises:
        ConfigError: Not one number for each seed, or a NaN.
    """
    try:
        # torch would make float32 of Python's floats, whose steps are two minutes in our days
        times = torch.as_tensor(
            given if hasattr(given, "shape") else np.asarray(given), device="cpu"
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{name} cannot be read as times: {error}") from None
    if tuple(times.shape) != (num_seeds,) or times.dtype == torch.bool or times.is_complex():
        raise ConfigError(
            f"{name} must be one number for each of the {num_seeds} seeds, got "
            f"{list(times.shape)} {times.dtype}"
        )
    # As in messages (`SEED_TIME`). int64 keeps nanoseconds since 1970 exact, float64 does not.
    times = times.cpu().to(torch.float64 if times.is_floating_point() else torch.int64)
    if times.is_floating_point() and bool(times.isnan().any()):
        raise ConfigError(f"{name}[{int(times.isnan().nonzero()[0])}] is not a number")
    return times


def is_by_seed(window: Any) -> bool:
    """Return whether a ``time_window`` has one number for each seed, not one for all of them."""
    return isinstance(window, Tensor | np.ndarray | list | tuple | Mapping)


def add_times(sampler_input: NodeSamplerInput, given: Any, name: str, column: str) -> None:
    """Give ``sampler_input`` the times of its seeds as a column.

    Raises:
        ConfigError: Not one number for each seed; or by server, while the dataset is local.
    """
    if isinstance(given, Mapping):
        raise ConfigError(f"{name} is by server, as for a graph store, but the dataset is local")
    times = read_times(given, sampler_input.node.numel(), name)
    sampler_input.extra = {**columns_of(sampler_input), column: times}


def add_times_by_server(inputs: list[NodeSamplerInput], given: Any, name: str, column: str) -> None:
    """Give the input of each storage server its times, which are by server as seeds are.

    Raises:
        ConfigError: A server has seeds and no times, or times and no seeds.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"with a graph store, {name} is {{server_rank: times}}, as its seeds are")
    check_servers(given, range(len(inputs)), name)
    for server, sampler_input in enumerate(inputs):
        add_times(sampler_input, given.get(server, ()), f"{name}[{server}]", column)
    # One column for all servers' seeds, so one type; missing times of servers without seeds fit
    # both. They must not force float64, which would round times in nanoseconds.
    columns = [sampler_input.extra[column] for sampler_input in inputs]
    is_float = any(times.numel() and times.is_floating_point() for times in columns)
    for sampler_input, times in zip(inputs, columns, strict=True):
        sampler_input.extra[column] = times.to(torch.float64 if is_float else torch.int64)


Weighted = dict[EdgeType, bool] | None


@contextmanager
def error_sent_to_ranks() -> Iterator[None]:
    """Send the other ranks an error of the block in place of an input, for which they wait."""
    try:
        with report_failure_to_ranks(COULD_NOT_BUILD):
            yield
    except Exception:
        next(_exchanges)  # as the others, in `share_input`
        raise


@dataclass(frozen=True, kw_only=True)
class RankInput:
    """One rank's message about its input, sent to the others before any of them starts anything."""

    weighted: Weighted = None
    """From `weighted_types`; None if weights are not requested."""
    partition: tuple[int, int] | None = None
    """The number of partitions, and the one that it has."""
    options: dict[str, str] = field(default_factory=lambda: {"shard": "machine"})
    """Strings that have to be the same on all ranks, by name; among them ``shard``."""
    seeds: SeedSummary = field(default_factory=SeedSummary)
    seed: int = 0
    """Decides the draws: the user's, or drawn by this rank."""


def share_input(
    sampler_input: Any, runtime: DistributedRuntimeInfo, told: RankInput
) -> tuple[Any, int]:
    """Return this process's share of a machine's input, and the seed of all ranks.

    Further columns are split with the seeds.

    The processes of a machine with the same input share it. One with its own input, such as the
    nodes of a partition that no other process of the machine holds, keeps it whole: a split would
    lose the rest. With another ``shard`` than ``"machine"`` each keeps its input whole.

    Args:
        sampler_input: The input of this process.
        runtime: This process's place in the job.
        told: This rank's message to the others, without the seeds.

    Raises:
        ConfigError: The arguments of the ranks do not fit together; the same on all of them.
        PeerError: Another rank gave up, or is gone.
    """
    extra = columns_of(sampler_input)
    number, shard = next(_exchanges), told.options["shard"]
    if runtime.world_size == 1 or shard == "none":
        seeds = SeedSummary()
    elif shard == "world":
        seeds = SeedSummary(digest=digest([sampler_input.node, *extra.values()]))
    else:
        seeds = SeedSummary.of(
            sampler_input.node,
            extra,
            runtime.world_size,
            digest=digest([sampler_input.node, *extra.values()]),
            opened=_opened(),
        )
    ranks = tell_ranks_of_input(runtime, replace(told, seeds=seeds))
    # The user's is the same on all of them. If each has drawn one, the first one's serves all: then
    # a rank can continue from the state of another.
    seed, everyone = ranks[0].seed, [rank_input.seeds for rank_input in ranks]
    if seed != told.seed:
        logger.info("no rank was given a seed: using rank 0's, seed=%d", seed)
    if shard != "machine":
        return sampler_input, seed
    # Ranks of a machine are neighbours in rank order; `from_addresses` sees to that.
    groups = [
        (rank // runtime.local_world_size, rank_seeds.digest)
        for rank, rank_seeds in enumerate(everyone)
    ]
    check_each_once(everyone, groups)
    # Ranks ascend, so all processes with this input number themselves in the same order: their
    # blocks neither overlap nor leave a gap.
    same = [rank for rank, group in enumerate(groups) if group == groups[runtime.rank]]
    rank, size = same.index(runtime.rank), len(same)
    share = NodeSamplerInput(local_share(sampler_input.node, rank, size), sampler_input.input_type)
    share.extra = {name: local_share(column, rank, size) for name, column in extra.items()}
    share.shared_as = (number, seeds.digest)
    return share, seed


_exchanges = count()
"""Numbers this process's loaders as on all other ranks: each takes part in each exchange."""


def _opened() -> dict[int, bytes]:
    """Return the digests of the inputs that the open loaders of this process share with ranks."""
    # None by servers: those of a graph store are compared there.
    inputs: list[Any] = [getattr(loader, "input_data", None) for loader in list(open_loaders)]
    return dict(
        sampler_input.shared_as
        for sampler_input in inputs
        if getattr(sampler_input, "shared_as", (0, b""))[1]
    )


def tell_ranks_of_input(runtime: DistributedRuntimeInfo, told: RankInput) -> list[RankInput]:
    """Send the other ranks this one's input; return that of all of them, by rank.

    Raises:
        ConfigError: Ranks do not have weights for the same edge types, or no rank has some
            partition, or options or (``shard="world"``) inputs differ.
        PeerError: Another rank gave up, or is gone.
    """
    everyone = gather_from_ranks(told, runtime.world_size, RankInput)
    # All ranks look at the same list, so they raise alike and none is left waiting.
    _check_all_held([rank_input.partition for rank_input in everyone])
    _check_same_weights([rank_input.weighted for rank_input in everyone])
    check_same_options([rank_input.options for rank_input in everyone], "a loader")
    if told.options["shard"] == "world":
        check_same_seeds([rank_input.seeds for rank_input in everyone])
    return everyone


def _check_all_held(everyone: list[tuple[int, int] | None]) -> None:
    """Check that ranks have partitions of one graph, and all of them."""
    counts = {rank: theirs[0] for rank, theirs in enumerate(everyone) if theirs is not None}
    if not counts:
        return
    if len(set(counts.values())) > 1:
        raise ConfigError(
            f"the ranks loaded graphs of different numbers of partitions: {counts} by rank; load "
            "the same directory on all of them"
        )
    held = [theirs[1] for theirs in everyone if theirs is not None]
    check_held(next(iter(counts.values())), held, who="process")


def digest(tensors: list[torch.Tensor]) -> bytes:
    """Return a fingerprint of the values of ``tensors``."""
    hasher = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        # Without the shape, the same values in other columns would look the same.
        hasher.update(str(tuple(tensor.shape)).encode())
        hasher.update(bytes_of(tensor.contiguous()))
    return hasher.digest()


def weighted_types(data: DistDataset) -> dict[EdgeType, bool]:
    """Return by walked edge type, of those with edges here, whether it has weights."""
    return {
        name: adjacency.weights is not None
        # A partition without an edge of some type has no weights for it either, and is left out.
        for name, adjacency in data.view().adjacency.items()
        if adjacency.indices.numel() and not is_label_edge_type(name)
    }


def _check_same_weights(by_rank: list[Weighted]) -> None:
    """Raise `ConfigError` if partitions differ: a type would be drawn in two ways."""
    for edge_type in sorted({name for types in by_rank for name in types or ()}):
        has = {
            rank: types[edge_type]
            for rank, types in enumerate(by_rank)
            if types and edge_type in types
        }
        if len(set(has.values())) > 1:
            raise ConfigError(
                f"with_weight=True, but edge type {edge_type} has weights on ranks "
                f"{[rank for rank, weighted in has.items() if weighted]} and none on ranks "
                f"{[rank for rank, weighted in has.items() if not weighted]}: give all partitions "
                "weights, or none"
            )
