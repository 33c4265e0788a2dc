"""What a loader is made of: the static methods of `BaseDistLoader` that subclasses call."""

import logging

import torch

from gigl_loader._glt import (
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    SamplingConfig,
    get_context,
    init_worker_group,
)
from gigl_loader.dataset.schema import DatasetSchema
from gigl_loader.device.pin import PinMemoryError, PinnedRange
from gigl_loader.loader import config
from gigl_loader.loader import runtime as runtime_module
from gigl_loader.loader.runtime import DistributedContext, DistributedRuntimeInfo
from gigl_loader.memory.channel import ShmChannel
from gigl_loader.remote.dataset import RemoteDistDataset
from gigl_loader.sizes import parse_size

logger = logging.getLogger(__name__)

# GiGL's default. torch's own is all cores, which workers need for sampling.
_DEFAULT_CPU_THREADS = 2


class LoaderParts:
    """Makes the arguments of `BaseDistLoader`: runtime, sampling config, channel, options."""

    @staticmethod
    def resolve_runtime(
        context: DistributedContext | None = None,
        local_process_rank: int | None = None,
        local_process_world_size: int | None = None,
    ) -> DistributedRuntimeInfo:
        """Find out where this process stands among the others.

        Args:
            context: Deprecated. Names the machines; the local figures are then required, and a gloo
                group is started on its address if none is up
                (``should_cleanup_distributed_context`` is then True).
            local_process_rank: With ``context``: this process on its machine.
            local_process_world_size: With ``context``: processes per machine.

        Raises:
            UsageError: No context, and ``torch.distributed`` is not up.
            ConfigError: Machines run different numbers of ranks; names the counts.
        """
        return runtime_module.resolve_runtime(context, local_process_rank, local_process_world_size)

    @staticmethod
    def create_sampling_config(
        num_neighbors: config.NumNeighbors,
        dataset_schema: DatasetSchema,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_weight: bool = False,
        with_edge: bool | None = None,
        seed: int | None = None,
    ) -> SamplingConfig:
        """Return a GLT ``SamplingConfig`` of type NODE; label edge types are never sampled.

        Args:
            num_neighbors: Neighbours per hop, -1 for all. A list holds for every message-passing
                edge type; a dict must name exactly those.
            dataset_schema: What the dataset holds.
            batch_size: Seeds per batch.
            shuffle: Shuffle the seeds every epoch.
            drop_last: Leave an incomplete last batch out.
            with_weight: Draw neighbours by edge weight.
            with_edge: Deliver edge ids; None: where there are edge features.
            seed: Decides every draw.

        Raises:
            ConfigError: Wrong keys, unequal hop counts, a fanout below -1: names the offender.
        """
        return config.sampling_config(
            num_neighbors, dataset_schema, batch_size=batch_size, shuffle=shuffle,
            drop_last=drop_last, with_weight=with_weight, with_edge=with_edge, seed=seed,
        )  # fmt: skip

    @staticmethod
    def create_colocated_channel(worker_options: MpDistSamplingWorkerOptions) -> ShmChannel:
        """Return a channel of ``channel_capacity`` messages and ``channel_size`` bytes."""
        return ShmChannel(
            worker_options.channel_capacity,
            parse_size(worker_options.channel_size, "channel_size"),
            # Slots are pinned once, when they are made, and used again: pinning takes longer than a
            # copy.
            register=_pin_if_possible if worker_options.pin_memory else None,
        )

    @staticmethod
    def initialize_colocated_sampling_worker(
        *,
        local_rank: int,
        local_world_size: int,
        node_rank: int,
        node_world_size: int,
        master_ip_address: str,
        device: torch.device,
        num_cpu_threads: int | None,
    ) -> int:
        """Join this process to GLT's worker group; return a port that all ranks agreed on.

        The port is free on the master. Sampling workers of different partitions find each other
        there. On a CPU device, torch operations of this process use ``num_cpu_threads`` threads
        (None: 2).
        """
        if torch.device(device).type == "cpu":
            torch.set_num_threads(num_cpu_threads or _DEFAULT_CPU_THREADS)
        runtime = DistributedRuntimeInfo(
            node_world_size=node_world_size,
            node_rank=node_rank,
            rank=node_rank * local_world_size + local_rank,
            world_size=node_world_size * local_world_size,
            local_rank=local_rank,
            local_world_size=local_world_size,
            master_ip_address=master_ip_address,
            should_cleanup_distributed_context=False,
        )
        context = get_context()
        # Joined again only where something changed: GLT's group is one of the process, and a second
        # loader must not take it from the first one.
        if context is None or not context.is_worker() or context.world_size != runtime.world_size:
            init_worker_group(runtime.world_size, runtime.rank, "gigl_loader_workers")
        return runtime_module.agree_on_port(runtime)

    @staticmethod
    def create_colocated_worker_options(
        *,
        dataset_num_partitions: int,
        num_workers: int,
        worker_concurrency: int,
        master_ip_address: str,
        master_port: int,
        channel_size: int | str,
        pin_memory: bool,
    ) -> MpDistSamplingWorkerOptions:
        """Return GLT's options for sampling subprocesses on CPU devices.

        Raises:
            ConfigError: A count is not positive, or ``worker_concurrency`` above 32.
        """
        parse_size(channel_size, "channel_size")
        return config.colocated_worker_options(
            dataset_num_partitions=dataset_num_partitions,
            num_workers=num_workers,
            worker_concurrency=worker_concurrency,
            master_ip_address=master_ip_address,
            master_port=master_port,
            channel_size=channel_size,
            pin_memory=pin_memory,
        )

    @staticmethod
    def create_graph_store_worker_options(
        *,
        dataset: RemoteDistDataset,
        compute_rank: int,
        worker_key: str,
        num_workers: int,
        worker_concurrency: int,
        channel_size: int | str,
        prefetch_size: int,
    ) -> RemoteDistSamplingWorkerOptions:
        """Return GLT's options for sampling on all storage servers.

        A sampling port per compute process, free on the storage master, is asked for.
        """
        # Here: colocated loaders do without it, see `BaseDistLoader._make_source`.
        from gigl_loader.remote.client import worker_options

        config.check_workers(num_workers, worker_concurrency)
        parse_size(channel_size, "channel_size")
        config.positive("prefetch_size", prefetch_size)
        return worker_options(
            dataset=dataset,
            compute_rank=compute_rank,
            worker_key=worker_key,
            num_workers=num_workers,
            worker_concurrency=worker_concurrency,
            channel_size=channel_size,
            prefetch_size=prefetch_size,
        )


def _pin_if_possible(address: int, nbytes: int) -> PinnedRange | None:
    """Pin a new slot; where the system refuses, copies from it are slower, and that is all."""
    try:
        return PinnedRange(address, nbytes)
    except PinMemoryError as error:
        logger.warning("batches stay unpinned, copies to the device will not overlap: %s", error)
        return None
