"""Builds the parts of a loader from the user's arguments; see `LoaderOptions`."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.errors import ConfigError, explained_limits
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.loader.deployment.job_ranks import (
    DistributedRuntimeInfo,
    join_worker_group,
    runtime_or_alone,
)
from gigl_loader.loader.deployment.process_role import remote_source
from gigl_loader.loader.options.glt_config import NO_PORT, graph_store_options
from gigl_loader.loader.options.loader_options import LoaderOptions
from gigl_loader.loader.options.pad_shape import make_padding
from gigl_loader.loader.options.start_log import (
    GAVE_BATCH_SIZE,
    local_seeds,
    log_slips,
    log_start,
    log_workers,
    remote_seeds,
)
from gigl_loader.loader.seeds.seed_input import (
    RankInput,
    error_sent_to_ranks,
    share_input,
    weighted_types,
)
from gigl_loader.runtime.glt_classes import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    NodeSamplerInput,
    SamplingConfig,
)
from gigl_loader.runtime.ranks.collectives import end_group
from gigl_loader.sampler.neighbor import NEIGHBOR_KIND
from gigl_loader.sampler.sampler_kinds import SamplerKind
from gigl_loader.sources.batch_source import BatchSource
from gigl_loader.sources.in_process.device_source import DeviceSource, PartitionedSource
from gigl_loader.sources.in_process.in_process_source import InProcessSource
from gigl_loader.sources.sampled_input import check_columns, check_seed_times
from gigl_loader.sources.workers.producer import DistSamplingProducer

logger = logging.getLogger(__name__)

LEAST_PREFETCH = 4
"""Batches that are requested ahead from each storage server, where workers have fewer each."""


def is_remote(dataset: Any) -> bool:
    """Return whether ``dataset`` is a handle on a graph store."""
    # By its methods: wrappers of a `RemoteDistDataset` count as one.
    return hasattr(dataset, "fetch_node_ids")


LocalInput = Callable[[DistDataset], tuple[NodeSamplerInput, SamplerKind]]
"""Returns the checked input of all processes of this machine, and the loader's own sampler."""
StoreInput = Callable[[Any], tuple[list[NodeSamplerInput], SamplerKind]]
"""Returns the same for a graph store: the input of each server, empty ones included."""


def start_loader(
    loader: BaseDistLoader,
    dataset: Any,
    options: LoaderOptions,
    *,
    local: LocalInput,
    store: StoreInput,
) -> None:
    """Build the parts of ``loader``, and initialise it with them, which starts its source.

    Args:
        loader: Not initialised yet.
        dataset: Ours or GLT's, or a ``RemoteDistDataset``.
        options: The user's options.
        local: Called if the dataset is on this machine; its errors are sent to the other ranks.
        store: Called if the dataset is on a graph store.

    Raises:
        ConfigError: A value cannot work; nothing was started.
        PeerError: Another rank was given an invalid value, or a worker was not started.
    """
    runtime = runtime_or_alone(
        options.context, options.local_process_rank, options.local_process_world_size
    )
    kind = type(loader).__name__
    try:
        if is_remote(dataset):
            inputs, sampler = store(dataset)
            # Ranks build their loaders in the same order, so a running number names the same
            # loader on all: servers tell producers apart by it.
            name = f"{kind} {next(_numbers[kind])}"
            arguments = remote_arguments(
                dataset, options, runtime, inputs, name, sampler, loader.shared_by
            )
            seeds = sum(map(len, inputs))
            log_start(kind, remote_seeds(inputs), seeds, seeds)
        else:
            arguments = colocated_arguments(dataset, options, runtime, local, kind)
    finally:
        # With a deprecated `context`, a group exists for the exchange while the loader is built,
        # and ends before workers start: GiGL's loaders leave none behind.
        if runtime.should_cleanup_distributed_context and dist.is_initialized():
            end_group()
    found = arguments["sampler_input"]
    seeds = sum(map(len, found if isinstance(found, list) else [found]))
    left_out = not getattr(loader, GAVE_BATCH_SIZE, True)
    log_slips(options, seeds=seeds, batch_size_left_out=left_out)
    BaseDistLoader.__init__(loader, **arguments, **options.for_base_loader())


_numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
"""Counts the loaders of this process on graph stores, by the name of their class."""


MakeSource = Callable[..., BatchSource]
"""Makes a source from dataset, input and config, without starting it."""


@explained_limits("building a loader")
def colocated_arguments(
    dataset: Any,
    options: LoaderOptions,
    runtime: DistributedRuntimeInfo,
    make_input: LocalInput,
    kind: str,
) -> dict[str, Any]:
    """Return the arguments of `BaseDistLoader` for a loader that samples on this machine.

    Args:
        dataset: Ours or GLT's.
        options: The user's options.
        runtime: This process's place in the job.
        make_input: Returns the input of this machine, and the loader's own sampler.
        kind: The loader's class, for the log.

    Raises:
        ConfigError: A value cannot work; nothing was started.
        PeerError: Another rank was given an invalid value.
    """
    with error_sent_to_ranks():
        data, whole, sampler, config = _check_colocated(dataset, options, make_input)
        given = options.with_chosen_sampler(sampler, data.schema, whole.input_type)
        source_options, device = given.source_options(), given.batch_device(runtime.local_rank)
        check_on_device(data, device, in_process=given.in_process)
        padding = make_padding(
            options,
            config.num_neighbors,
            data.schema,
            data.view().num_nodes,
            [whole],
            sampler,
            runtime.world_size,
        )
        groups = given.group_source(whole.input_type, data.schema, data.view().num_nodes)
        if groups is not None:
            groups.check_attribute(data)
    same = given.same_on_all_ranks(config, source_options)
    told = RankInput(
        seed=source_options.seed,
        weighted=weighted_types(data) if given.is_weighted else None,
        partition=(data.num_partitions, data.partition_idx),
        options={
            **same,
            "input_type": repr(whole.input_type),
            "seed_groups": "none" if groups is None else groups.told,
        },
    )
    # The one exchange after the checks: a rank that gave up takes part through
    # `error_sent_to_ranks`, so that each rank takes part once, with any outcome.
    sampler_input, seed = share_input(whole, runtime, told)
    if groups is not None:
        groups.add_to([sampler_input], data, given.groups_per_batch)
    own, given_seeds = sampler_input.node.numel(), whole.node.numel()
    log_start(kind, local_seeds(data, whole), own, given_seeds)
    # Before the producer exists, since its plan has the seed in every draw.
    source_options = replace(source_options, seed=seed)
    if device.type == "cpu" and given.num_cpu_threads is not None:
        torch.set_num_threads(given.num_cpu_threads)
    join_worker_group(runtime.rank, runtime.world_size)
    samples = _in_this_process if given.in_process else in_workers
    worker_options, producer = samples(given, runtime, device, data)
    return {
        "dataset": data,
        "sampler_input": sampler_input,
        "dataset_schema": data.schema,
        "sampling_config": config,
        "device": device,
        "runtime": runtime,
        "worker_options": worker_options,
        "sampler_options": given.sampler_options,
        "source_options": source_options,
        "padding": padding,
        "producer": producer(
            data,
            sampler_input,
            config,
            sampler_options=given.sampler_options,
            source_options=source_options,
        ),
    }


def in_workers(
    given: LoaderOptions, runtime: DistributedRuntimeInfo, device: torch.device, data: DistDataset
) -> tuple[MpDistSamplingWorkerOptions, MakeSource]:
    """Return the options of sampling processes, and a function that makes their producer."""
    options = BaseDistLoader.create_colocated_worker_options(
        dataset_num_partitions=data.num_partitions,
        num_workers=given.num_workers,
        worker_concurrency=given.worker_concurrency,
        master_ip_address=runtime.master_ip_address,
        # Workers find each other through the process group.
        master_port=NO_PORT,
        channel_size=given.channel_size,
        pin_memory=device.type == "cuda",
    )
    log_workers(given.num_workers, runtime.local_world_size)
    channel = BaseDistLoader.create_colocated_channel(options, device=device)
    return options, partial(
        DistSamplingProducer,
        worker_options=options,
        channel=channel,
        worker_init_fn=given.worker_init_fn,
    )


def _in_this_process(
    given: LoaderOptions, runtime: DistributedRuntimeInfo, device: torch.device, data: DistDataset
) -> tuple[CollocatedDistSamplingWorkerOptions, MakeSource]:
    """Return the replacement of worker options, and a maker of sources without workers."""
    options = CollocatedDistSamplingWorkerOptions(runtime.master_ip_address, NO_PORT)
    source: MakeSource = InProcessSource
    if data.placement is not None:
        source = DeviceSource if data.num_partitions == 1 else PartitionedSource
    return options, partial(source, concurrency=given.worker_concurrency, device=device)


def _check_colocated(
    dataset: Any, given: LoaderOptions, make_input: LocalInput
) -> tuple[DistDataset, NodeSamplerInput, SamplerKind, SamplingConfig]:
    """Return the checked dataset, input of the whole machine, its sampler, and config."""
    if given.prefetch_size is not None:
        raise ConfigError(
            f"prefetch_size={given.prefetch_size} belongs to graph-store mode; here "
            "worker_concurrency says how many batches are under way"
        )
    # Cheap checks of keywords come first; sorting edges by time, below, takes longest.
    data = DistDataset.wrap(dataset).weighted_by(given.weight_attr)
    if given.in_process:
        check_in_process(data, given.exchange)
    if given.cache is not None and data.num_partitions == 1:
        logger.warning(
            "remote_cache=%r keeps nothing: the dataset is one partition, all its rows are here",
            given.remote_cache,
        )
    check_columns(data.view(), with_weight=given.is_weighted)
    if given.expansion.time_attr is not None:
        data.view_by_time(given.expansion.time_attr)
    given.check_feature_store(data.schema, data.view().num_nodes)
    whole, sampler = make_input(data)
    # `make_plan` checks this too, but only in the producer, when this rank has already reported
    # success to the others.
    check_seed_times(data.view(), whole, given.expansion.time_attr)
    config = given.sampling_config(data.schema)
    check_columns(data.view(), with_edge=config.with_edge)
    return data, whole, sampler, config


def remote_arguments(
    dataset: Any,
    options: LoaderOptions,
    runtime: DistributedRuntimeInfo,
    inputs: list[NodeSamplerInput],
    name: str,
    default_sampler: SamplerKind = NEIGHBOR_KIND,
    shared_by: str | None = None,
) -> dict[str, Any]:
    """Return the arguments of `BaseDistLoader` for a loader that samples on a graph store.

    Args:
        dataset: A ``RemoteDistDataset``.
        options: The user's options.
        runtime: This process's place in the job.
        inputs: The checked input of each storage server, empty ones included.
        name: The loader's name: the same on all ranks, and no other loader's.
        default_sampler: The loader's own sampler.
        shared_by: See `BaseDistLoader.shared_by`.

    Raises:
        ConfigError: A value cannot work; nothing was started.
        UsageError: This process has not joined, or its process group is another one now.
    """
    if options.in_process:
        raise ConfigError(
            f"num_workers={options.num_workers} and exchange={options.exchange!r} belong to "
            "colocated mode: from a graph store, the servers' workers sample"
        )
    # A function of this process: the servers lack its module, and should not run code that clients
    # send.
    if options.worker_init_fn is not None:
        raise ConfigError("worker_init_fn is for colocated loaders: these workers run on servers")
    schema = dataset.fetch_schema()
    config = options.sampling_config(schema)
    given = options.with_chosen_sampler(default_sampler, schema, inputs[0].input_type)
    num_nodes = dataset.fetch_num_nodes()
    given.check_feature_store(schema, num_nodes)
    prefetch = given.prefetch_size
    if prefetch is None:
        prefetch = max(LEAST_PREFETCH, given.worker_concurrency)
    remote_source().check_joined(runtime.rank, runtime.world_size)
    groups = given.group_source(inputs[0].input_type, schema, num_nodes)
    if groups is not None:
        groups.add_to(inputs, dataset, given.groups_per_batch)
    worker_options = graph_store_options(
        dataset=dataset,
        worker_key=f"{name} {f'rank {runtime.rank}' if shared_by is None else shared_by}",
        num_workers=given.num_workers,
        worker_concurrency=given.worker_concurrency,
        channel_size=given.channel_size,
        prefetch_size=prefetch,
    )
    return {
        "dataset": dataset,
        "sampler_input": inputs,
        "dataset_schema": schema,
        "sampling_config": config,
        "runtime": runtime,
        "device": given.batch_device(runtime.local_rank),
        "source_options": given.source_options(),
        "worker_options": worker_options,
        "producer": remote_source().create_producer,
        "sampler_options": given.sampler_options,
        "padding": make_padding(
            options,
            config.num_neighbors,
            schema,
            num_nodes,
            inputs,
            default_sampler,
            runtime.world_size,
        ),
    }


def check_in_process(data: DistDataset, exchange: str) -> None:
    """Raise `ConfigError` unless this process has the whole graph."""
    if exchange != "collective" and data.num_partitions > 1:
        raise ConfigError(
            f"num_workers=0 samples in this process, which holds partition {data.partition_idx} of "
            f'{data.num_partitions}: add exchange="collective", by which the ranks ask each other, '
            "or give the loader workers"
        )


def check_on_device(data: DistDataset, device: torch.device, *, in_process: bool) -> None:
    """Check that a loader can sample where its dataset was placed.

    Raises:
        ConfigError: It cannot; the message says what to change.
    """
    placement = data.placement
    if placement is None:
        return
    if not in_process:
        raise ConfigError(
            f"the dataset was moved to {placement.device}, where this process samples: add "
            "num_workers=0, or take it back with dataset.to('cpu') and sample with workers"
        )
    if placement.device != device:
        raise ConfigError(
            f"the dataset was moved to {placement.device}, and batches go to {device}: move it "
            "there, or name its device in device="
        )
    if data.num_partitions > 1 and placement.cache is not None:
        raise ConfigError(
            f"partition {data.partition_idx} of {data.num_partitions} was moved to "
            f"{placement.device} with a cache: that is for a graph in one partition; "
            "leave cache= out of dataset.to()"
        )
