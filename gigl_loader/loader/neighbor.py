"""`DistNeighborLoader`: k-hop neighbourhoods of given nodes, in both deployments."""

from collections.abc import Callable
from itertools import count
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from gigl_loader._glt import Dataset, NodeSamplerInput
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.schema import NodeType
from gigl_loader.loader.assemble import (
    LoaderArgs,
    colocated_parts,
    end_own_group,
    is_remote,
    remote_parts,
)
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.loader.config import NumNeighbors
from gigl_loader.loader.inputs import (
    NodeInput,
    check_servers,
    read_seeds,
    typed_by_server,
    typed_seeds,
)
from gigl_loader.loader.runtime import DistributedContext, runtime_or_alone
from gigl_loader.loader.sampler_choice import SamplerClass
from gigl_loader.loader.time_input import (
    TimeInput,
    add_times,
    add_times_by_server,
    check_time_given,
)
from gigl_loader.message import INPUT_ID
from gigl_loader.options import (
    DEFAULT_MAX_RESTARTS,
    DEFAULT_RECONNECT_S,
    DEFAULT_TIMEOUT_S,
    ExpansionKeywords,
    FeatureStoreOptions,
    SamplerOptions,
)
from gigl_loader.remote.dataset import RemoteDistDataset


class DistNeighborLoader(BaseDistLoader):
    """Yields the sampled k-hop neighbourhoods of batches of seeds as PyG `Data` or `HeteroData`.

    The same fanout, the same seeds and the same ``seed`` give the same batches on any number of
    workers, partitions and machines, colocated or from a graph store.

    Args:
        dataset: A ``DistDataset`` (ours or GLT's): colocated mode, sampling subprocesses of this
            process. A ``RemoteDistDataset``: graph-store mode.
        num_neighbors: Neighbours per hop, -1 for all: a list, or on a heterogeneous graph a dict by
            edge type.
        input_nodes: Seeds: global ids as an int64 tensor, an array or a list, or a bool mask over
            all nodes of the type, of which ``input_id`` is then the node id, as in PyG. Colocated:
            seeds, ``(node_type, seeds)``, or None or a node type for all nodes that this partition
            owns. Graph store: ``{server_rank: seeds}`` or ``(node_type, {server_rank: seeds})``.
            Colocated seeds are split contiguously over the processes of the machine that were given
            the same ones; a process with seeds of its own, such as those of a partition that only
            it holds, keeps them all.
        num_workers: Sampling processes of this loader. 0: this process samples, when a batch is
            asked for.
        batch_size: Seeds per batch.
        context: Deprecated; see `BaseDistLoader.resolve_runtime`.
        local_process_rank: Deprecated, with ``context``.
        local_process_world_size: Deprecated, with ``context``.
        pin_memory_device: Where batches go. None: this process's CUDA device, or the CPU.
        worker_concurrency: Batches that a worker has under way; with ``exchange="collective"``,
            this process.
        channel_size: Most shared memory of the batches under way: bytes, or a text as ``"4GB"``.
        prefetch_size: Graph store only: batches under way per server (default 4).
        process_start_gap_seconds: None: a local rank starts its workers when the local rank before
            it is ready, so that memory peaks do not add up. A number: local rank ``i`` starts them
            ``i`` times this many seconds later.
        num_cpu_threads: Threads of torch operations of this process, on a CPU device (default 2).
        shuffle: Shuffle the seeds every epoch.
        drop_last: Leave an incomplete last batch out.
        with_weight: Draw neighbours by edge weight.
        sampler_options: Another sampler, or again the fanout.
        non_blocking_transfers: Copy to a CUDA device on a side stream, ahead of use.
        seed: Decides shuffle and draws. None: drawn once, and logged.
        replace: Draw neighbours with replacement.
        in_order: Yield batches in order. False trades order for latency.
        timeout: Seconds without progress before a wait is an error.
        max_restarts: Workers that are replaced in an epoch when they die, or make no progress for
            ``timeout``; the batches stay the same. 0: the first one lost is an error.
        reconnect_timeout: Graph store: seconds that a storage server may be away, killed and
            started again or out of reach; the batches stay the same. 0: that is an error at once.
        worker_init_fn: Called with the worker's number in each worker before it samples.
        even_ranks: ``"drop"`` or ``"wrap"``: all ranks take the same number of steps.
        with_edge: Deliver edge ids. None: where there are edge features.
        device_prefetch: Batches copied ahead to a CUDA device.
        exchange: Colocated, with several partitions: how they are asked. ``"workers"``: by sampling
            processes, over connections. ``"collective"``: this process samples ahead in threads,
            in step with the other ranks, which exchange by ``all_to_all`` of a gloo group; no
            process, no port. ``timeout`` is then also how long a rank may compute between batches.
        shard: How batches are split over ranks. ``"machine"``: by seeds, as ``input_nodes`` says.
            ``"world"``: all ranks are given the seeds of the whole job, whose batches are numbered
            over all ranks; rank ``r`` of ``W`` takes ``r``, ``r + W``... A state then counts what
            the job has taken, and goes on with any number of ranks.
        feature_store: A PyG ``FeatureStore`` of one's own, for features that the dataset has not.
        remote_cache: With workers: memory for rows of other machines, of all with a graph store, as
            bytes (``"2GB"``, with what it takes to find them) or as a share of these rows
            (``"20%"``). Batches are drawn ahead, so that those rows are kept that are needed again
            soonest. The ranks of a machine, and loaders over the same dataset, share it; with a
            graph store each loader has its own. Where a colocated worker is lost, its loader draws
            none ahead for the rest of the epoch. None: nothing is kept.
        lookahead: Batches to draw ahead. None: those that ask for 5 times what the cache holds,
            after which more would change nothing.
        weight_attr: Name of the edge attribute to draw by, in place of ``edge_weight``; implies
            ``with_weight``.
        transform: Called in this process with each batch; what it returns is yielded in its place.
        transform_sampler_output: Called in this process with PyG's ``SamplerOutput`` of each batch,
            before it becomes one; returns it changed. Nothing that was not sampled can be added.
        input_time: The time of each seed, ``[num_seeds]`` numbers; with a graph store by server.
            None: the seeds' own ``time_attr``.
        **expansion: ``subgraph_type``, ``disjoint``, ``time_attr``, ``temporal_strategy``,
            ``time_window`` and ``sampler``: see `gigl_loader.options.ExpansionOptions`, and the
            guide's page on time and subgraphs.

    Raises:
        ConfigError: A value cannot work; nothing was started.
        PeerError: A worker could not be started; none is left.
    """

    _counter = count()
    _sampler_class: ClassVar[SamplerClass | None] = None
    """What workers run in place of the plain k-hop sampler."""

    def __init__(
        self,
        dataset: Dataset | RemoteDistDataset,
        num_neighbors: NumNeighbors,
        input_nodes: NodeInput | None = None,
        num_workers: int = 1,
        batch_size: int = 1,
        context: DistributedContext | None = None,
        local_process_rank: int | None = None,
        local_process_world_size: int | None = None,
        pin_memory_device: torch.device | None = None,
        worker_concurrency: int = 4,
        channel_size: int | str = "4GB",
        prefetch_size: int | None = None,
        process_start_gap_seconds: float | None = None,
        num_cpu_threads: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        with_weight: bool = False,
        sampler_options: SamplerOptions | None = None,
        non_blocking_transfers: bool = True,
        *,
        seed: int | None = None,
        replace: bool = False,
        in_order: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
        max_restarts: int = DEFAULT_MAX_RESTARTS,
        reconnect_timeout: float = DEFAULT_RECONNECT_S,
        worker_init_fn: Callable[[int], None] | None = None,
        even_ranks: str | None = None,
        with_edge: bool | None = None,
        device_prefetch: int = 2,
        exchange: str = "workers",
        shard: str = "machine",
        feature_store: FeatureStoreOptions | None = None,
        remote_cache: int | str | None = None,
        lookahead: int | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        input_time: TimeInput | None = None,
        **expansion: Unpack[ExpansionKeywords],
    ) -> None:
        self._shutdowned = True  # until there is something to shut down
        args = LoaderArgs.collect(locals())
        check_time_given(input_time, args.expansion)
        runtime = runtime_or_alone(context, local_process_rank, local_process_world_size)
        try:
            if is_remote(dataset):
                name = f"{type(self).__name__} {next(self._counter)}"
                inputs = add_times_by_server(remote_input(dataset, input_nodes), input_time)
                parts = remote_parts(dataset, args, runtime, inputs, name, self._sampler_class)
            else:
                parts = colocated_parts(
                    dataset, args, runtime,
                    lambda data: add_times(local_input(data, input_nodes), input_time),
                    self._sampler_class,
                )  # fmt: skip
        finally:
            end_own_group(runtime)
        super().__init__(**parts)


def local_input(data: DistDataset, input_nodes: Any) -> NodeSamplerInput:
    """Return the checked seeds of all processes of this machine; see `DistNeighborLoader`."""
    num_nodes = data.view().num_nodes
    node_type, given = typed_seeds(input_nodes, data.schema, num_nodes)
    if given is None:
        ids = data.node_ids
        given = ids[node_type] if isinstance(ids, dict) else ids
    return with_input_id(*read_seeds(given, num_nodes[node_type]), node_type)


def with_input_id(seeds: Tensor, input_id: Tensor | None, node_type: NodeType) -> NodeSamplerInput:
    """Return a sampler's input; ``input_id`` rides along where it is not the place of the seed."""
    found = NodeSamplerInput(seeds, node_type)
    found.extra = {} if input_id is None else {INPUT_ID: input_id}
    return found


def remote_input(dataset: Any, input_nodes: Any) -> list[NodeSamplerInput]:
    """Return the checked seeds of each storage server; see `DistNeighborLoader`."""
    node_type, by_server = typed_by_server(
        input_nodes, dataset.fetch_schema(), dataset.fetch_num_nodes()
    )
    servers = range(dataset.cluster_info.num_storage_nodes)
    check_servers(by_server, servers)
    nothing = torch.empty(0, dtype=torch.int64)
    masked = any(input_id is not None for _, input_id in by_server.values())
    inputs = []
    for server in servers:
        seeds, input_id = by_server.get(server, (nothing, None))
        if masked and input_id is None:  # one column, of all servers' seeds
            input_id = seeds
        inputs.append(with_input_id(seeds, input_id, node_type))
    return inputs
