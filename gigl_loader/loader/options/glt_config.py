"""The user's sampling options, checked and in one form: fanouts, GLT's config and options."""

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch_geometric.sampler import NumNeighbors as PyGNumNeighbors

from gigl_loader.batch.leases import ShmChannel
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import DatasetSchema, EdgeType, is_label_edge_type
from gigl_loader.errors import ConfigError
from gigl_loader.loader.seeds.ablp_input import with_label_sampler
from gigl_loader.runtime.glt_classes import (
    Dataset,
    MpDistSamplingWorkerOptions,
    NodeSamplerInput,
    RemoteDistSamplingWorkerOptions,
    SamplingConfig,
    SamplingType,
)
from gigl_loader.runtime.memory.pinned import PinMemoryError, PinnedRange
from gigl_loader.runtime.plain_values import check_count
from gigl_loader.runtime.sizes import parse_size
from gigl_loader.sampler.options import PPRSamplerOptions, SamplerOptions
from gigl_loader.sources.remote_interface import RemoteDataset, server_worker_options
from gigl_loader.sources.sampling_checks import check_workers, checked_fanout
from gigl_loader.sources.workers.producer import DistSamplingProducer

logger = logging.getLogger(__name__)

NumNeighbors: TypeAlias = Sequence[int] | Mapping[EdgeType, Sequence[int]] | PyGNumNeighbors
"""Neighbours per hop, for all edge types or by type."""
Device = torch.device | str | int
"""A device, as ``torch.device`` takes it."""
# Seconds; an upper limit, as workers wait for a share of the loader's own `timeout` if that is
# less.
RPC_TIMEOUT_S = 600.0
_MAX_RPC_THREADS = 16
SPLIT, BOUND = "split", "bound"
"""Treatments of a batch that is larger than the sizes that `pad` gives."""
_SIZES, LARGER = ("nodes", "edges"), "larger"
PPR_IS_UNWEIGHTED = (
    "with_weight=True cannot be combined with PPRSamplerOptions: a push goes to all neighbours "
    "evenly; leave one of them out"
)
NO_PORT = 0
"""GLT's options name a port; nothing of ours listens on it."""


def patch_fanout(num_neighbors: NumNeighbors, schema: DatasetSchema) -> NumNeighbors:
    """Return the fanout by message-passing edge type (a list for a homogeneous graph).

    Raises:
        ConfigError: Wrong keys, unequal hop counts, or a fanout below -1; names the offender.
    """
    if isinstance(num_neighbors, PyGNumNeighbors):
        num_neighbors = _values_of(num_neighbors, schema)
    return checked_fanout(num_neighbors, schema)


def _values_of(given: PyGNumNeighbors, schema: DatasetSchema) -> Any:
    """Return the values of PyG's ``NumNeighbors`` for the walked edge types."""
    walked = [name for name in schema.edge_types or () if not is_label_edge_type(name)]
    try:
        return given._get_values(walked or None)  # get_values() keeps the first graph's answer
    except ValueError as error:
        raise ConfigError(f"num_neighbors={given}: {error}; the graph has {walked}") from error


def check_attribute_names(schema: DatasetSchema, own: Collection[str], loader: str) -> None:
    """Check that no attribute of the dataset has the name of one that the loader sets.

    Args:
        schema: Types and widths of the dataset.
        own: Names that not all loaders set; a dataset carries none of those that all set.
        loader: Name of the loader's class.

    Raises:
        ConfigError: One has, and batches would have either without any sign which.
    """
    named = [*schema.node_attributes.values(), *schema.edge_attributes.values()]
    taken = sorted({name for names in named for name in names if name in own})
    if taken:
        raise ConfigError(
            f"this {loader} sets {taken} in its batches, and the dataset has attributes of that "
            "name: rename them before the dataset is made"
        )


def checked_function(name: str, value: Any) -> Any:
    """Return ``value`` if it can be called, or is None."""
    if value is not None and not callable(value):
        raise ConfigError(f"{name} must be a function, got {value!r}")
    return value


def create_sampling_config(
    num_neighbors: NumNeighbors,
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
        dataset_schema: Types and widths of the dataset.
        batch_size: Seeds per batch.
        shuffle: Shuffle the seeds every epoch.
        drop_last: Leave out an incomplete last batch.
        with_weight: Draw neighbours by edge weight.
        with_edge: Whether batches have edge ids; None: if there are edge features.
        seed: Decides every draw.

    Raises:
        ConfigError: Wrong keys, unequal hop counts, a fanout below -1: names the offender.
    """
    check_count(batch_size, "batch_size")
    return SamplingConfig(
        sampling_type=SamplingType.NODE,
        num_neighbors=patch_fanout(num_neighbors, dataset_schema),
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        with_edge=_has_edge_values(dataset_schema) if with_edge is None else with_edge,
        collect_features=True,
        with_neg=False,
        with_weight=with_weight,
        edge_dir=dataset_schema.edge_dir,
        seed=seed,
    )


def _has_edge_values(schema: DatasetSchema) -> bool:
    """Return whether edges have features, weights, or other attributes that batches carry."""
    return bool(schema.edge_feature_info or schema.edge_attributes)


def validate_for_weighted_sampling(
    with_weight: bool,
    dataset: Dataset | RemoteDataset,
    sampler_options: SamplerOptions | None = None,
) -> None:
    """Check that a dataset can be sampled by weight, as GiGL's method does.

    Args:
        with_weight: Whether it is to be.
        dataset: A ``DistDataset`` or a ``RemoteDistDataset``.
        sampler_options: The sampler.

    Raises:
        ConfigError: No edge type has weights, or the sampler takes none.
    """
    if not with_weight:
        return
    if isinstance(sampler_options, PPRSamplerOptions):
        raise ConfigError(PPR_IS_UNWEIGHTED)
    if isinstance(dataset, Dataset):
        has_weights = DistDataset.wrap(dataset).has_edge_weights
    else:
        has_weights = dataset.fetch_edge_weights_registered()
    if not has_weights:
        raise ConfigError(
            "with_weight=True, but no edge type of the dataset has weights: give the graph an "
            "edge_weight attribute, or sample without weights"
        )


def create_mp_producer(
    dataset: Dataset,
    sampler_input: NodeSamplerInput,
    sampling_config: SamplingConfig,
    worker_options: MpDistSamplingWorkerOptions,
    sampler_options: SamplerOptions | None = None,
    channel_name: str | None = None,
) -> DistSamplingProducer:
    """Return a producer, not yet started, with a channel of its own.

    Args:
        dataset: The dataset.
        sampler_input: Seeds; an ``ABLPNodeSamplerInput``: anchors, whose labels are sampled, too.
        sampling_config: From `create_sampling_config`.
        worker_options: From `create_colocated_worker_options`.
        sampler_options: The sampler of the workers.
        channel_name: Name of the channel in its ``repr`` and its errors.
    """
    channel = create_colocated_channel(worker_options, channel_name)
    chosen = with_label_sampler(sampler_input, sampler_options)
    return DistSamplingProducer(
        dataset, sampler_input, sampling_config, worker_options, channel, chosen
    )


def create_colocated_channel(
    worker_options: MpDistSamplingWorkerOptions,
    channel_name: str | None = None,
    *,
    device: torch.device | None = None,
) -> ShmChannel:
    """Return a channel of ``channel_capacity`` messages and ``channel_size`` bytes.

    Args:
        worker_options: With ``pin_memory``, slots are pinned.
        channel_name: Its name in its ``repr`` and its errors.
        device: The CUDA device that batches go to, which pins the slots; None: the current one.
    """
    return ShmChannel(
        worker_options.channel_capacity,
        parse_size(worker_options.channel_size, "channel_size"),
        # Slots are pinned once, when they are made, and reused: pinning takes longer than a copy.
        register=partial(pin_if_possible, device=device) if worker_options.pin_memory else None,
        name=channel_name,
    )


def pin_if_possible(
    address: int, nbytes: int, device: torch.device | None = None
) -> PinnedRange | None:
    """Pin a new slot for a device; if the system refuses, copies from it are only slower."""
    try:
        # Not through the current device: without `set_device` that is GPU 0 in all ranks, and each
        # would open a context there.
        return PinnedRange(address, nbytes, device)
    except PinMemoryError as error:
        logger.warning("batches stay unpinned, copies to the device will not overlap: %s", error)
        return None


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

    Args:
        dataset_num_partitions: Number of partitions.
        num_workers: Number of subprocesses.
        worker_concurrency: Batches that each overlaps.
        master_ip_address: Address towards which workers listen for those of other machines.
        master_port: For a producer of graphlearn-torch's, whose workers meet there. A
            `DistSamplingProducer` needs none: its workers choose ports, and tell them the others.
        channel_size: Bytes of the channel, also as ``"4GB"``.
        pin_memory: Whether its memory is pinned.

    Raises:
        ConfigError: A count is not positive, ``worker_concurrency`` above 32, or ``master_port``
            is no port.
    """
    parse_size(channel_size, "channel_size")
    if not (isinstance(master_port, int) and 0 <= master_port < 1 << 16):
        raise ConfigError(f"master_port must be a port, 0 to 65535, got {master_port!r}")
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


def create_graph_store_worker_options(
    *,
    dataset: RemoteDataset,
    compute_rank: int | None = None,
    worker_key: str,
    num_workers: int,
    worker_concurrency: int,
    channel_size: int | str,
    prefetch_size: int,
) -> RemoteDistSamplingWorkerOptions:
    """Return GLT's options for sampling on all storage servers.

    A sampling port per compute process, free on the storage master, is asked for; without a
    ``compute_rank``, which later versions of GiGL do not give, none is, and no server is asked.
    """
    parse_size(channel_size, "channel_size")
    info = dataset.cluster_info
    options = server_worker_options(
        server_rank=list(range(info.num_storage_nodes)),
        num_workers=num_workers,
        worker_concurrency=worker_concurrency,
        master_addr=info.storage_cluster_master_ip,
        master_port=NO_PORT,
        rpc_timeout=RPC_TIMEOUT_S,
        buffer_size=channel_size,
        prefetch_size=prefetch_size,
        worker_key=worker_key,
    )
    if compute_rank is None:
        return options
    # The group's figure, as `init_compute_process` takes it: without a group, asking for ports says
    # what is missing.
    in_group = dist.is_initialized()
    world_size = dist.get_world_size() if in_group else info.compute_cluster_world_size
    if not 0 <= compute_rank < world_size:
        raise ConfigError(f"compute_rank must be in [0, {world_size}), got {compute_rank}")
    options.master_port = dataset.fetch_free_ports_on_storage_cluster(world_size)[compute_rank]
    return options


def check_pad(pad: Any) -> None:
    """Raise `ConfigError` if ``pad`` is invalid for any graph."""
    if isinstance(pad, bool):
        return
    if not isinstance(pad, Mapping) or not set(_SIZES) <= set(pad) <= {*_SIZES, LARGER}:
        raise ConfigError(
            'pad must be True, False or {"nodes": sizes, "edges": sizes}, and may have '
            f'"larger": "split" or "bound"; got {pad!r}'
        )
    if pad.get(LARGER, SPLIT) not in (SPLIT, BOUND):
        raise ConfigError(f'pad["larger"] must be "split" or "bound", got {pad[LARGER]!r}')
    for name in _SIZES:
        sizes = pad[name]
        for size in sizes.values() if isinstance(sizes, Mapping) else (sizes,):
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise ConfigError(
                    f'pad["{name}"] must be an integer >= 0, or one for each type, got {sizes!r}'
                )
