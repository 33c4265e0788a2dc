"""Builds the parts of a loader from the user's arguments; see `LoaderOptions`."""

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from gigl_loader.batch.message import columns_of
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import DatasetSchema
from gigl_loader.errors import ConfigError, WrongTypeError, explained_limits
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.loader.deployment.job_ranks import (
    DistributedRuntimeInfo,
    join_worker_group,
    runtime_or_alone,
)
from gigl_loader.loader.deployment.process_role import remote_source
from gigl_loader.loader.options.glt_config import NO_PORT
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
    RemoteDistSamplingWorkerOptions,
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


def is_remote(dataset: Any) -> bool:
    """Return whether ``dataset`` is a handle on a graph store."""
    # By its methods: wrappers of a `RemoteDistDataset` count as one.
    return hasattr(dataset, "fetch_node_ids")


LocalInput = Callable[[Any, DistDataset], tuple[NodeSamplerInput, SamplerKind]]
"""Returns, from the user's seeds, the checked input of all processes of this machine, and the
loader's own sampler."""
StoreInput = Callable[[Any, Any], tuple[list[NodeSamplerInput], SamplerKind]]
"""Returns the same for a graph store: the input of each server, empty ones included."""
MakeSource = Callable[..., BatchSource]
"""Makes a source from dataset, input and config, without starting it."""
WorkerOptions: TypeAlias = MpDistSamplingWorkerOptions | CollocatedDistSamplingWorkerOptions


@dataclass
class Steps:
    """A loader that is being built: what its hooks are given, and what they made."""

    options: LoaderOptions
    runtime: DistributedRuntimeInfo
    local: LocalInput
    store: StoreInput
    kind: str
    """Name of the loader's class."""
    worker_key: str = ""
    """Of the producers of a graph store: no other loader's, and the same on ranks that share."""
    device: torch.device | None = None
    """Of the batches; None: as the options say."""
    made: dict[str, Any] | None = None
    """Arguments of `BaseDistLoader`; None: no hook of ours has been called."""
    has_told: bool = False
    """Whether this rank took part in the exchange of inputs, or sent its error there."""

    def change(self, **given: Any) -> None:
        """Take options and places that a subclass's hook changed."""
        of_job = {key: given.pop(key) for key in tuple(given) if hasattr(self.runtime, key)}
        self.runtime = replace(self.runtime, **of_job)
        if any(getattr(self.options, key) != value for key, value in given.items()):
            self.options = replace(self.options, **given)


class LoaderInSteps(BaseDistLoader):
    """A loader that makes its own arguments, in GiGL's steps, which a subclass may change.

    An override gets these keywords. It calls ``super()`` with them, changed or not, and may change
    what that returns; or it returns three parts of its own, made by the static methods of
    `BaseDistLoader`. Its input is then this process's alone: nothing is split over ranks.
    """

    _steps: Steps

    def _setup_for_colocated(
        self,
        input_nodes: Any,
        dataset: Any,
        local_rank: int,
        local_world_size: int,
        device: torch.device,
        master_ip_address: str,
        node_rank: int,
        node_world_size: int,
        num_workers: int,
        worker_concurrency: int,
        channel_size: int | str,
        num_cpu_threads: int | None,
    ) -> tuple[NodeSamplerInput, WorkerOptions, DatasetSchema]:
        """Return this process's input, the options of its workers, and the dataset's schema."""
        steps = self._steps
        steps.change(
            local_rank=local_rank,
            local_world_size=local_world_size,
            master_ip_address=master_ip_address,
            node_rank=node_rank,
            node_world_size=node_world_size,
            num_workers=num_workers,
            worker_concurrency=worker_concurrency,
            channel_size=channel_size,
            num_cpu_threads=num_cpu_threads,
        )
        steps.device = torch.device(device)
        steps.made = _colocated_arguments(steps, dataset, partial(steps.local, input_nodes))
        return _parts(steps)

    def _setup_for_graph_store(
        self,
        input_nodes: Any,
        dataset: Any,
        num_workers: int,
        worker_concurrency: int,
        prefetch_size: int,
        channel_size: int | str,
    ) -> tuple[list[NodeSamplerInput], RemoteDistSamplingWorkerOptions, DatasetSchema]:
        """Return the input of each storage server, the options there, and the dataset's schema."""
        self._steps.change(
            num_workers=num_workers,
            worker_concurrency=worker_concurrency,
            prefetch_size=prefetch_size,
            channel_size=channel_size,
        )
        inputs, sampler = self._steps.store(input_nodes, dataset)
        self._steps.made = remote_arguments(self._steps, dataset, inputs, sampler)
        return _parts(self._steps)

    def _sampler_of(self, sampler_input: Any) -> SamplerKind:
        """Return the loader's own sampler, of an input that a subclass's hook made."""
        return NEIGHBOR_KIND


def _parts(steps: Steps) -> tuple[Any, Any, Any]:
    """Return what GiGL's hooks return of a loader's arguments."""
    made = steps.made or {}
    return made["sampler_input"], made["worker_options"], made["dataset_schema"]


def start_loader(
    loader: LoaderInSteps,
    dataset: Any,
    options: LoaderOptions,
    input_nodes: Any,
    *,
    local: LocalInput,
    store: StoreInput,
) -> None:
    """Build the parts of ``loader``, and initialise it with them, which starts its source.

    Args:
        loader: Not initialised yet.
        dataset: Ours or GLT's, or a ``RemoteDistDataset``.
        options: The user's options.
        input_nodes: The user's seeds.
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
    steps = loader._steps = Steps(options, runtime, local, store, kind)
    try:
        if is_remote(dataset):
            # Ranks build their loaders in the same order, so a running number names the same
            # loader on all: servers tell producers apart by it.
            whose = loader.shared_by or f"rank {runtime.rank}"
            steps.worker_key = f"{kind} {next(_numbers[kind])} {whose}"
            arguments = _set_up_on_servers(loader, dataset, steps, input_nodes)
            seeds = sum(map(len, arguments["sampler_input"]))
            log_start(kind, remote_seeds(arguments["sampler_input"]), seeds, seeds)
        else:
            arguments = _set_up_here(loader, dataset, steps, input_nodes)
            seeds = len(arguments["sampler_input"])
    finally:
        # With a deprecated `context`, a group exists for the exchange while the loader is built,
        # and ends before workers start: GiGL's loaders leave none behind.
        if runtime.should_cleanup_distributed_context and dist.is_initialized():
            end_group()
    left_out = not getattr(loader, GAVE_BATCH_SIZE, True)
    log_slips(steps.options, seeds=seeds, batch_size_left_out=left_out)
    del loader._steps
    BaseDistLoader.__init__(loader, **arguments, **steps.options.for_base_loader())


_numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
"""Counts the loaders of this process on graph stores, by the name of their class."""


@explained_limits("building a loader")
def _set_up_here(
    loader: LoaderInSteps, dataset: Any, steps: Steps, input_nodes: Any
) -> dict[str, Any]:
    """Return the arguments of `BaseDistLoader` for a loader that samples on this machine."""
    options, runtime = steps.options, steps.runtime
    try:
        loader.to_device = steps.device = options.batch_device(runtime.local_rank)
        found = loader._setup_for_colocated(
            input_nodes=input_nodes,
            dataset=dataset,
            local_rank=runtime.local_rank,
            local_world_size=runtime.local_world_size,
            device=steps.device,
            master_ip_address=runtime.master_ip_address,
            node_rank=runtime.node_rank,
            node_world_size=runtime.node_world_size,
            num_workers=options.num_workers,
            worker_concurrency=options.worker_concurrency,
            channel_size=options.channel_size,
            num_cpu_threads=options.num_cpu_threads,
        )

        def make_own(*own: Any) -> dict[str, Any]:
            return _colocated_arguments(steps, dataset, lambda _: own, is_share=True)

        made = _with_parts(loader, "_setup_for_colocated", found, make_own)
        data = made["dataset"]
        make = source_maker(made["worker_options"], steps.options, made["device"], data)
        made["producer"] = make(
            data,
            made["sampler_input"],
            made["sampling_config"],
            sampler_options=made["sampler_options"],
            source_options=made["source_options"],
        )
    except Exception:
        # the others wait for this rank's input; of later errors they hear in any exchange
        with contextlib.nullcontext() if steps.has_told else error_sent_to_ranks():
            raise
    return made


def _set_up_on_servers(
    loader: LoaderInSteps, dataset: Any, steps: Steps, input_nodes: Any
) -> dict[str, Any]:
    """Return the arguments of `BaseDistLoader` for a loader on a graph store."""
    options = steps.options
    loader.to_device = options.batch_device(steps.runtime.local_rank)
    found = loader._setup_for_graph_store(
        input_nodes=input_nodes,
        dataset=dataset,
        num_workers=options.num_workers,
        worker_concurrency=options.worker_concurrency,
        prefetch_size=options.batches_ahead,
        channel_size=options.channel_size,
    )
    make_own = partial(remote_arguments, steps, dataset)
    return _with_parts(loader, "_setup_for_graph_store", found, make_own)


def _with_parts(
    loader: LoaderInSteps, hook: str, found: Any, make_own: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """Return the arguments, with the parts that a hook returned.

    Args:
        loader: The loader, not initialised yet.
        hook: Name of the hook.
        found: What it returned.
        make_own: Returns the arguments for an input that the hook made without ours, which is this
            process's alone, and its sampler.
    """
    # GiGL's later hook returns the key of a backend, too
    if not isinstance(found, tuple) or len(found) not in (3, 4):
        raise WrongTypeError(
            f"{type(loader).__name__}.{hook} has to return (sampler_input, worker_options, "
            f"dataset_schema), as super().{hook}(...) does; got {type(found).__name__}"
        )
    steps = loader._steps
    sampler_input, worker_options, schema = found[:3]
    made = steps.made or make_own(sampler_input, loader._sampler_of(sampler_input))
    for old, new in zip(_listed(made["sampler_input"]), _listed(sampler_input), strict=True):
        lost = set(columns_of(old)) - set(columns_of(new))
        if lost and len(new):
            raise ConfigError(
                f"the input that a hook of {steps.kind} returned lacks the columns {sorted(lost)} "
                "of its seeds: copy the attribute `extra`, cut as the seeds are"
            )
    if schema is not made["dataset_schema"]:
        made["sampling_config"] = steps.options.sampling_config(schema)
    made.update(sampler_input=sampler_input, worker_options=worker_options, dataset_schema=schema)
    return made


def _listed(sampler_input: Any) -> list[Any]:
    return sampler_input if isinstance(sampler_input, list) else [sampler_input]


def _colocated_arguments(
    steps: Steps,
    dataset: Any,
    make_input: Callable[[DistDataset], tuple[NodeSamplerInput, SamplerKind]],
    *,
    is_share: bool = False,
) -> dict[str, Any]:
    """Return the arguments of `BaseDistLoader`, but the producer.

    Args:
        steps: What is known of the loader.
        dataset: Ours or GLT's.
        make_input: Returns the input of this machine, and the loader's own sampler.
        is_share: That is the input of this process alone, which other ranks may have, too.

    Raises:
        ConfigError: A value cannot work; nothing was started.
        PeerError: Another rank was given an invalid value.
    """
    steps.has_told = True
    options, runtime = steps.options, steps.runtime
    with error_sent_to_ranks():
        data, whole, sampler, config = _check_colocated(dataset, options, make_input)
        given = options.with_chosen_sampler(sampler, data.schema, whole.input_type)
        source_options = given.source_options()
        device = steps.device or given.batch_device(runtime.local_rank)
        check_on_device(data, device, in_process=given.in_process)
        padding = make_padding(
            options,
            config.num_neighbors,
            data.schema,
            data.view().num_nodes,
            data.view().total_edges(),
            [whole],
            sampler,
            runtime.world_size,
        )
        groups = given.group_source(whole.input_type, data.schema, data.view().num_nodes)
        if groups is not None:
            groups.check_attribute(data)
    same = given.same_on_all_ranks(config, source_options)
    if is_share:
        same |= {"shard": "none"}
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
    log_start(steps.kind, local_seeds(data, whole), own, given_seeds)
    # Before the producer exists, since its plan has the seed in every draw.
    source_options = replace(source_options, seed=seed)
    if device.type == "cpu" and given.num_cpu_threads is not None:
        torch.set_num_threads(given.num_cpu_threads)
    join_worker_group(runtime.rank, runtime.world_size)
    return {
        "dataset": data,
        "sampler_input": sampler_input,
        "dataset_schema": data.schema,
        "sampling_config": config,
        "device": device,
        "runtime": runtime,
        "worker_options": worker_options_of(given, runtime, device, data),
        "sampler_options": given.sampler_options,
        "source_options": source_options,
        "padding": padding,
    }


def worker_options_of(
    given: LoaderOptions, runtime: DistributedRuntimeInfo, device: torch.device, data: DistDataset
) -> WorkerOptions:
    """Return the options of sampling processes, or their replacement without any."""
    if given.in_process:
        return CollocatedDistSamplingWorkerOptions(runtime.master_ip_address, NO_PORT)
    log_workers(given.num_workers, runtime.local_world_size)
    return BaseDistLoader.create_colocated_worker_options(
        dataset_num_partitions=data.num_partitions,
        num_workers=given.num_workers,
        worker_concurrency=given.worker_concurrency,
        master_ip_address=runtime.master_ip_address,
        # Workers find each other through the process group.
        master_port=NO_PORT,
        channel_size=given.channel_size,
        pin_memory=device.type == "cuda",
    )


def source_maker(
    worker_options: WorkerOptions, given: LoaderOptions, device: torch.device, data: DistDataset
) -> MakeSource:
    """Return a function that makes the producer, or the source without workers."""
    if isinstance(worker_options, MpDistSamplingWorkerOptions):
        return partial(
            DistSamplingProducer,
            worker_options=worker_options,
            channel=BaseDistLoader.create_colocated_channel(worker_options, device=device),
            worker_init_fn=given.worker_init_fn,
        )
    source: MakeSource = InProcessSource
    if data.placement is not None:
        source = DeviceSource if data.num_partitions == 1 else PartitionedSource
    return partial(source, concurrency=given.worker_concurrency, device=device)


def _check_colocated(
    dataset: Any,
    given: LoaderOptions,
    make_input: Callable[[DistDataset], tuple[NodeSamplerInput, SamplerKind]],
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
    check_seed_times(data.view(), whole, given.expansion.time_attr, given.expansion.tokens)
    config = given.sampling_config(data.schema)
    check_columns(data.view(), with_edge=config.with_edge)
    return data, whole, sampler, config


def remote_arguments(
    steps: Steps,
    dataset: Any,
    inputs: list[NodeSamplerInput],
    default_sampler: SamplerKind = NEIGHBOR_KIND,
) -> dict[str, Any]:
    """Return the arguments of `BaseDistLoader` for a loader that samples on a graph store.

    Args:
        steps: What is known of the loader.
        dataset: A ``RemoteDistDataset``.
        inputs: The checked input of each storage server, empty ones included.
        default_sampler: The loader's own sampler.

    Raises:
        ConfigError: A value cannot work; nothing was started.
        UsageError: This process has not joined, or its process group is another one now.
    """
    options, runtime = steps.options, steps.runtime
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
    remote_source().check_joined(runtime.rank, runtime.world_size)
    groups = given.group_source(inputs[0].input_type, schema, num_nodes)
    if groups is not None:
        groups.add_to(inputs, dataset, given.groups_per_batch)
    worker_options = BaseDistLoader.create_graph_store_worker_options(
        dataset=dataset,
        worker_key=steps.worker_key,
        num_workers=given.num_workers,
        worker_concurrency=given.worker_concurrency,
        channel_size=given.channel_size,
        prefetch_size=given.batches_ahead,
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
        "sampler_options": given.sampler_options,
        "padding": make_padding(
            options,
            config.num_neighbors,
            schema,
            num_nodes,
            {} if options.pad is False else dataset.fetch_num_edges(),
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
