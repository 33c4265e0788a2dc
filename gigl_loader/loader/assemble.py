"""The flat keywords of the loaders, once, as options; and the parts of a loader made of them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.distributed as dist

from gigl_loader._glt import (
    CollocatedDistSamplingWorkerOptions,
    NodeSamplerInput,
    SamplingConfig,
    init_worker_group,
)
from gigl_loader.dataset.held import check_held
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.schema import DatasetSchema, EdgeType, is_label_edge_type
from gigl_loader.errors import ConfigError, GiglLoaderError, PeerError, explained_limits
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.loader.config import NumNeighbors, check_workers, positive
from gigl_loader.loader.in_process import InProcessSource, check_in_process
from gigl_loader.loader.inputs import local_share
from gigl_loader.loader.runtime import DistributedContext, DistributedRuntimeInfo
from gigl_loader.loader.sampler_choice import SamplerClass, check_feature_store, chosen_sampler
from gigl_loader.loader.world import agree_on_seed, check_shard
from gigl_loader.options import (
    CacheOptions,
    CustomSamplerOptions,
    EpochOptions,
    ExpansionKeywords,
    ExpansionOptions,
    FeatureStoreOptions,
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
    SamplerOptions,
    parse_size,
)
from gigl_loader.ranks import check_same_options, end_group, gather_from_ranks
from gigl_loader.workers.producer import DistSamplingProducer
from gigl_loader.workers.sampled_input import check_seed_times, seed_or_drawn

DEFAULT_PREFETCH = 4
"""Batches under way per storage server."""

NO_PORT = 0
"""GLT's options name a port; without workers nobody listens."""

Weighted = dict[EdgeType, bool] | None


@dataclass(frozen=True, kw_only=True)
class LoaderArgs:
    """The keywords that all loaders take; their meaning is in `DistNeighborLoader`."""

    num_neighbors: NumNeighbors
    num_workers: int
    batch_size: int
    context: DistributedContext | None
    local_process_rank: int | None
    local_process_world_size: int | None
    pin_memory_device: torch.device | None
    worker_concurrency: int
    channel_size: int | str
    prefetch_size: int | None
    process_start_gap_seconds: float | None
    num_cpu_threads: int | None
    shuffle: bool
    drop_last: bool
    with_weight: bool
    sampler_options: SamplerOptions | None
    non_blocking_transfers: bool
    seed: int | None
    replace: bool
    in_order: bool
    timeout: float
    max_restarts: int
    reconnect_timeout: float
    worker_init_fn: Callable[[int], None] | None
    even_ranks: str | None
    with_edge: bool | None
    device_prefetch: int
    exchange: str
    shard: str
    feature_store: FeatureStoreOptions | None
    remote_cache: int | str | None
    lookahead: int | None
    weight_attr: str | None
    transform: Callable[[Any], Any] | None
    transform_sampler_output: Callable[[Any], Any] | None
    expansion: ExpansionOptions

    @classmethod
    def collect(cls, values: dict[str, Any]) -> "LoaderArgs":
        """Return the arguments among ``values``, the ``locals()`` of a constructor, checked.

        Raises:
            ConfigError: A value cannot work in either deployment.
        """
        given = {field.name: values[field.name] for field in fields(cls)}
        if isinstance(given["sampler_options"], PPRSamplerOptions):
            given["num_neighbors"] = [1]  # only its edge types count
        given["with_weight"] = given["with_weight"] or given["weight_attr"] is not None
        given["expansion"] = _expansion(type(values["self"]).__name__, given["expansion"])
        args = cls(**given)
        positive("batch_size", args.batch_size)
        if args.exchange not in ("workers", "collective"):
            raise ConfigError(f'exchange must be "workers" or "collective", got {args.exchange!r}')
        if args.in_process:
            check_no_workers(args)
        else:
            check_workers(args.num_workers, args.worker_concurrency)
        if args.with_weight and args.expansion.time_attr is not None:
            raise ConfigError("with_weight and time_attr cannot be combined: leave one of them out")
        positive("device_prefetch", args.device_prefetch)
        check_shard(args.shard, in_order=args.in_order)
        if args.shard == "world" and args.context is not None:
            raise ConfigError(
                'shard="world" needs the process group in every epoch, and context= ends its own: '
                "call torch.distributed.init_process_group() and leave context out"
            )
        parse_size(args.channel_size)
        if args.cache is not None and args.in_process:
            raise ConfigError(
                f"remote_cache={args.remote_cache!r} is filled by sampling workers, and this "
                "process samples itself: leave it out, or give the loader workers"
            )
        if args.pin_memory_device is not None:
            check_device(args.pin_memory_device)
        if args.prefetch_size is not None:
            positive("prefetch_size", args.prefetch_size)
        options = args.sampler_options
        if (
            isinstance(options, KHopNeighborSamplerOptions)
            and options.num_neighbors != args.num_neighbors
        ):
            raise ConfigError(
                f"num_neighbors={args.num_neighbors} and sampler_options.num_neighbors="
                f"{options.num_neighbors} differ: give one value to both"
            )
        return args

    @property
    def in_process(self) -> bool:
        """Whether the training process samples."""
        no_workers = self.num_workers == 0 and not isinstance(self.num_workers, bool)
        return no_workers or self.exchange == "collective"

    @property
    def cache(self) -> CacheOptions | None:
        """What is kept of other machines' rows."""
        return CacheOptions.of(self.remote_cache, self.lookahead)

    def epoch_options(self) -> EpochOptions:
        """Return seed, order and deadline; a missing seed is drawn now."""
        return EpochOptions(
            seed=seed_or_drawn(self.seed),
            replace=self.replace,
            in_order=self.in_order,
            timeout_s=self.timeout,
            feature_store=self.feature_store,
            weight_attr=self.weight_attr,
            expansion=self.expansion,
            max_restarts=self.max_restarts,
            reconnect_timeout_s=self.reconnect_timeout,
        )

    def device(self, local_rank: int) -> torch.device:
        """Return where batches go."""
        if self.pin_memory_device is not None:
            return torch.device(self.pin_memory_device)
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank % torch.cuda.device_count())
        return torch.device("cpu")


def check_device(device: Any) -> None:
    """Raise `ConfigError` where torch has no such device."""
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"pin_memory_device={device!r} is no torch device: {error}") from None
    found = torch.cuda.device_count()
    if wanted.type == "cuda" and (wanted.index or 0) >= found:
        raise ConfigError(
            f"pin_memory_device={device!r}, but torch finds {found} CUDA devices here: leave it "
            "out for this process's device, or give 'cpu'"
        )


def _expansion(loader: str, keywords: dict[str, Any]) -> ExpansionOptions:
    """Return the keywords that a loader took as ``**expansion``, checked."""
    known = ExpansionKeywords.__annotations__
    for name in keywords:
        if name not in known:  # what Python says of a keyword that is not in a signature
            raise TypeError(f"{loader}.__init__() got an unexpected keyword argument {name!r}")
    return ExpansionOptions(**keywords)


def check_no_workers(args: LoaderArgs) -> None:
    """Raise `ConfigError` where a keyword is for workers, and there are none."""
    if args.num_workers not in (0, 1):
        raise ConfigError(
            f'exchange="collective" samples in this process: num_workers={args.num_workers} '
            "processes have nothing to do; leave it out"
        )
    check_workers(1, args.worker_concurrency)
    if args.worker_init_fn is not None:
        raise ConfigError("worker_init_fn is for sampling processes, and this loader starts none")


def is_remote(dataset: Any) -> bool:
    """Return whether ``dataset`` is a handle on a graph store."""
    return hasattr(dataset, "fetch_node_ids")


def end_own_group(runtime: DistributedRuntimeInfo) -> None:
    """End the process group that `resolve_runtime` started for a deprecated context."""
    if runtime.should_cleanup_distributed_context and dist.is_initialized():
        end_group()


@explained_limits("building a loader")
def colocated_parts(
    dataset: Any,
    args: LoaderArgs,
    runtime: DistributedRuntimeInfo,
    make_input: Callable[[DistDataset], NodeSamplerInput],
    default_sampler: SamplerClass | None = None,
) -> dict[str, Any]:
    """Return the arguments of `BaseDistLoader` for sampling on this machine.

    Args:
        dataset: Ours or GLT's.
        args: The user's keywords.
        runtime: Where this process stands.
        make_input: Returns the checked input of all processes of this machine.
        default_sampler: Sampler class path and keywords; None: the neighbour sampler.

    Raises:
        ConfigError: A value cannot work; nothing was started.
        PeerError: Another rank was given a value that cannot work.
    """
    try:
        data, whole, config = _check_colocated(dataset, args, make_input)
        args = with_sampler(args, default_sampler, data.schema, whole.input_type)
    except GiglLoaderError as error:
        gather_inputs(runtime, None, error)  # the other ranks wait for this one's word
        raise
    weighted = weighted_types(data) if args.with_weight else None
    place = (data.num_partitions, data.partition_idx)
    sampler_input = share_input(whole, runtime, weighted, place, args.shard)
    epoch_options, device = args.epoch_options(), args.device(runtime.local_rank)
    if args.shard == "world":
        epoch_options = agree_on_seed(epoch_options, args.seed, runtime.world_size)
    parts = {
        "dataset": data,
        "sampler_input": sampler_input,
        "dataset_schema": data.schema,
        "sampling_config": config,
        "device": device,
        "runtime": runtime,
        "epoch_options": epoch_options,
        **common_parts(args),
    }
    if args.in_process:
        return {**parts, **_in_process_parts(args, parts, default_sampler)}
    port = BaseDistLoader.initialize_colocated_sampling_worker(
        local_rank=runtime.local_rank,
        local_world_size=runtime.local_world_size,
        node_rank=runtime.node_rank,
        node_world_size=runtime.node_world_size,
        master_ip_address=runtime.master_ip_address,
        device=device,
        num_cpu_threads=args.num_cpu_threads,
    )
    worker_options = BaseDistLoader.create_colocated_worker_options(
        dataset_num_partitions=data.num_partitions,
        num_workers=args.num_workers,
        worker_concurrency=args.worker_concurrency,
        master_ip_address=runtime.master_ip_address,
        master_port=port,
        channel_size=args.channel_size,
        pin_memory=device.type == "cuda",
    )
    producer = DistSamplingProducer(
        data, sampler_input, config, worker_options,
        BaseDistLoader.create_colocated_channel(worker_options), args.sampler_options,
        epoch_options=epoch_options, worker_init_fn=args.worker_init_fn,
        default_sampler=default_sampler, cache=args.cache,
    )  # fmt: skip
    return {**parts, "worker_options": worker_options, "producer": producer}


def _in_process_parts(
    args: LoaderArgs, parts: dict[str, Any], default_sampler: SamplerClass | None
) -> dict[str, Any]:
    """Return what takes the place of worker options and producer where no worker is started."""
    runtime: DistributedRuntimeInfo = parts["runtime"]
    if parts["device"].type == "cpu" and args.num_cpu_threads is not None:
        torch.set_num_threads(args.num_cpu_threads)
    init_worker_group(runtime.world_size, runtime.rank, "gigl_loader_workers")
    source = InProcessSource(
        parts["dataset"], parts["sampler_input"], parts["sampling_config"],
        parts["epoch_options"], args.sampler_options, default_sampler, args.worker_concurrency,
    )  # fmt: skip
    options = CollocatedDistSamplingWorkerOptions(runtime.master_ip_address, NO_PORT)
    return {"worker_options": options, "producer": source}


def _check_colocated(
    dataset: Any, args: LoaderArgs, make_input: Callable[[DistDataset], NodeSamplerInput]
) -> tuple[DistDataset, NodeSamplerInput, SamplingConfig]:
    """Return dataset, input of the whole machine, and config; all that can be checked here is."""
    if args.prefetch_size is not None:
        raise ConfigError(
            f"prefetch_size={args.prefetch_size} belongs to graph-store mode; here "
            "worker_concurrency says how many batches are under way"
        )
    data = DistDataset.wrap(dataset).weighted_by(args.weight_attr)
    if args.in_process:
        check_in_process(data, args.exchange)
    check_weights(data, args.with_weight)
    if args.expansion.time_attr is not None:
        data.view_by_time(args.expansion.time_attr)
    check_feature_store(args.feature_store, data.schema, data.view().num_nodes)
    whole = make_input(data)
    check_seed_times(data.view(), whole, args.expansion.time_attr)
    config = BaseDistLoader.create_sampling_config(
        args.num_neighbors, data.schema, args.batch_size, args.shuffle, args.drop_last,
        args.with_weight, args.with_edge, args.seed,
    )  # fmt: skip
    check_edge_ids(data, config.with_edge)
    return data, whole, config


def remote_parts(
    dataset: Any,
    args: LoaderArgs,
    runtime: DistributedRuntimeInfo,
    inputs: list[NodeSamplerInput],
    name: str,
    default_sampler: SamplerClass | None = None,
) -> dict[str, Any]:
    """Return the arguments of `BaseDistLoader` for sampling on a graph store.

    Args:
        dataset: A ``RemoteDistDataset``.
        args: The user's keywords.
        runtime: Where this process stands.
        inputs: The checked input of each storage server, empty ones included.
        name: The loader's, the same on all ranks and no other loader's.
        default_sampler: Sampler class path and keywords; None: the neighbour sampler.

    Raises:
        ConfigError: A value cannot work; nothing was started.
    """
    from gigl_loader.remote.service import DistServer

    if args.in_process:
        raise ConfigError(
            f"num_workers={args.num_workers} and exchange={args.exchange!r} belong to colocated "
            "mode: from a graph store, the servers' workers sample"
        )
    if args.worker_init_fn is not None:
        raise ConfigError("worker_init_fn is for colocated loaders: these workers run on servers")
    schema = dataset.fetch_schema()
    config = BaseDistLoader.create_sampling_config(
        args.num_neighbors, schema, args.batch_size, args.shuffle, args.drop_last,
        args.with_weight, args.with_edge, args.seed,
    )  # fmt: skip
    args = with_sampler(args, default_sampler, schema, inputs[0].input_type)
    check_feature_store(args.feature_store, schema, dataset.fetch_num_nodes())
    worker_options = BaseDistLoader.create_graph_store_worker_options(
        dataset=dataset,
        compute_rank=runtime.rank,
        worker_key=f"{name} rank {runtime.rank}",
        num_workers=args.num_workers,
        worker_concurrency=args.worker_concurrency,
        channel_size=args.channel_size,
        prefetch_size=DEFAULT_PREFETCH if args.prefetch_size is None else args.prefetch_size,
    )
    parts = {
        "dataset": dataset,
        "sampler_input": inputs,
        "dataset_schema": schema,
        "worker_options": worker_options,
        "sampling_config": config,
        "device": args.device(runtime.local_rank),
        "runtime": runtime,
        "producer": DistServer.create_sampling_producer,
        "epoch_options": replace(args.epoch_options(), cache=args.cache),
        **common_parts(args),
    }
    if default_sampler is not None and not isinstance(args.sampler_options, CustomSamplerOptions):
        parts["sampler_options"] = CustomSamplerOptions(*default_sampler)
    return parts


def with_sampler(
    args: LoaderArgs, default: SamplerClass | None, schema: DatasetSchema, input_type: str | None
) -> LoaderArgs:
    """Return ``args`` with the sampler that workers are to run; see `chosen_sampler`."""
    options = chosen_sampler(
        args.sampler_options, default, schema, input_type, with_weight=args.with_weight,
        expansion=args.expansion,
    )  # fmt: skip
    return replace(args, sampler_options=options)


def common_parts(args: LoaderArgs) -> dict[str, Any]:
    """Return the arguments of `BaseDistLoader` that are the same in both deployments."""
    return {
        "sampler_options": args.sampler_options,
        "process_start_gap_seconds": args.process_start_gap_seconds,
        "non_blocking_transfers": args.non_blocking_transfers,
        "even_ranks": args.even_ranks,
        "device_prefetch": args.device_prefetch,
        "shard": args.shard,
        "transform": args.transform,
        "transform_sampler_output": args.transform_sampler_output,
    }


def share_input(
    sampler_input: Any,
    runtime: DistributedRuntimeInfo,
    weighted: Weighted = None,
    partition: tuple[int, int] = (1, 0),
    shard: str = "machine",
) -> Any:
    """Return this process's share of a machine's input; further columns are cut with the seeds.

    The processes of a machine that were given the same input share it. One that was given an input
    of its own, such as the nodes of a partition that no other process of the machine holds, keeps
    it whole: cutting it would lose the rest. With ``shard="world"`` all ranks have the same input,
    and each keeps it whole.

    Raises:
        ConfigError: Ranks do not have weights for the same edge types (``weighted``), or no rank
            has some partition (``partition``: how many there are, and this rank's).
        PeerError: Another rank gave up, or is gone.
    """
    extra = getattr(sampler_input, "extra", None) or {}
    given = digest([sampler_input.node, *extra.values()])
    others = gather_inputs(runtime, given, weighted=weighted, partition=partition, shard=shard)
    if shard == "world":
        return sampler_input
    same = [place for place, other in others.items() if other == given]
    rank, size = same.index(runtime.local_rank), len(same)
    share = NodeSamplerInput(local_share(sampler_input.node, rank, size), sampler_input.input_type)
    share.extra = {name: local_share(column, rank, size) for name, column in extra.items()}
    return share


def gather_inputs(
    runtime: DistributedRuntimeInfo,
    given: bytes | None,
    error: Exception | None = None,
    weighted: Weighted = None,
    partition: tuple[int, int] | None = None,
    shard: str = "machine",
) -> dict[int, bytes]:
    """Tell the other ranks this one's input, or why it has none; return those of this machine.

    Args:
        runtime: Where this process stands.
        given: A fingerprint of the input.
        error: Why this rank gives up; the others then do so too, instead of waiting for it.
        weighted: From `weighted_types`; None: weights are not asked for.
        partition: How many partitions there are, and which one this rank has.
        shard: How seeds are split over ranks.

    Raises:
        ConfigError: Ranks do not have weights for the same edge types, or no rank has some
            partition.
        PeerError: Another rank gave up, or is gone.
    """
    told = (given or b"", None if error is None else str(error), weighted, partition, shard)
    everyone = gather_from_ranks(told, runtime.world_size, _Told)
    for rank, (_, why, *_) in enumerate(everyone):
        if error is None and why is not None:
            raise PeerError(f"rank {rank} could not build its loader: {why}")
    if partition is not None:
        _check_all_held(partition, [theirs for _, _, _, theirs, _ in everyone])
    _check_same_weights([types for _, _, types, _, _ in everyone])
    if error is None:
        check_same_options([{"shard": one} for *_, one in everyone], "a loader")
        if shard == "world":
            same = [{"input": one[0].hex()} for one in everyone]
            check_same_options(same, _SAME_INPUT)
    first = runtime.node_rank * runtime.local_world_size
    return {place: everyone[first + place][0] for place in range(runtime.local_world_size)}


def _check_all_held(own: tuple[int, int], everyone: list[tuple[int, int] | None]) -> None:
    """Check that ranks have partitions of one graph, and all of them."""
    counts = {rank: theirs[0] for rank, theirs in enumerate(everyone) if theirs is not None}
    if len(set(counts.values())) > 1:
        raise ConfigError(
            f"the ranks loaded graphs of different numbers of partitions: {counts} by rank; load "
            "the same directory on all of them"
        )
    check_held(own[0], [theirs[1] for theirs in everyone if theirs is not None], who="process")


def digest(tensors: list[torch.Tensor]) -> bytes:
    """Return a fingerprint of the values of ``tensors``."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        found.update(str(tuple(tensor.shape)).encode())
        found.update(tensor.contiguous().numpy().data)
    return found.digest()


_Told = tuple[bytes, str | None, Weighted, tuple[int, int] | None, str]
"""Fingerprint of a rank's input, why it gives up, which of its edge types have weights, how many
partitions there are and which it has, and how it shards."""

_SAME_INPUT = (
    'shard="world" splits batches over all ranks, so give each of them the seeds of the whole job '
    "(the default is those of one partition): it"
)


def weighted_types(data: DistDataset) -> dict[EdgeType, bool]:
    """Return by walked edge type, of those with edges here, whether it has weights."""
    return {
        name: adjacency.weights is not None
        for name, adjacency in data.view().adjacency.items()
        if adjacency.indices.numel() and not is_label_edge_type(name)
    }


def _check_same_weights(by_rank: list[Weighted]) -> None:
    """Raise `ConfigError` where partitions differ: a type would be drawn in two ways."""
    for edge_type in sorted({name for types in by_rank for name in types or ()}):
        has = {rank: types[edge_type] for rank, types in enumerate(by_rank)
               if types and edge_type in types}  # fmt: skip
        if len(set(has.values())) > 1:
            raise ConfigError(
                f"with_weight=True, but edge type {edge_type} has weights on ranks "
                f"{[rank for rank, there in has.items() if there]} and none on ranks "
                f"{[rank for rank, there in has.items() if not there]}: give all partitions "
                "weights, or none"
            )


def check_weights(data: DistDataset, with_weight: bool) -> None:
    """Raise `ConfigError` where weighted sampling was asked for and no edge type has weights.

    An edge type without weights, beside one with them, is drawn from uniformly.
    """
    if not with_weight:
        return
    walked = {t: a for t, a in data.view().adjacency.items() if not is_label_edge_type(t)}
    if all(adjacency.weights is None for adjacency in walked.values()):
        raise ConfigError(
            f"with_weight=True, but edge types {list(walked)} have no weights: give the graph an "
            "edge_weight attribute, or sample without weights"
        )


def check_edge_ids(data: DistDataset, with_edge: bool) -> None:
    """Raise `ConfigError` where edge ids were asked for and the dataset keeps none."""
    missing = [
        name
        for name, adjacency in data.view().adjacency.items()
        if not adjacency.has_edge_ids and not is_label_edge_type(name)
    ]
    if with_edge and missing:
        raise ConfigError(f"with_edge=True, but edge types {missing} keep no edge ids")
