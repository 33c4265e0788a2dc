"""`DistNeighborLoader`: k-hop neighbourhoods of given nodes, in both deployments."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from gigl_loader.batch.message import SeedColumns
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE, NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.loader.build_parts import LoaderInSteps, start_loader
from gigl_loader.loader.deployment.job_ranks import DistributedContext
from gigl_loader.loader.options.glt_config import Device, NumNeighbors
from gigl_loader.loader.options.loader_options import AllKeywords, LoaderKeywords, LoaderOptions
from gigl_loader.loader.options.signatures import with_keywords
from gigl_loader.loader.seeds.seed_input import (
    NodeInput,
    TimeInput,
    check_servers,
    read_seeds,
    typed_by_server,
    typed_seeds,
)
from gigl_loader.loader.seeds.seed_limits import SeedLimits
from gigl_loader.loader.seeds.split import Split, SplitInput
from gigl_loader.runtime.glt_classes import Dataset, NodeSamplerInput
from gigl_loader.sampler.neighbor import NEIGHBOR_KIND, SUBGRAPH_KIND
from gigl_loader.sampler.options import SamplerOptions, Shuffle
from gigl_loader.sampler.sampler_kinds import SamplerKind
from gigl_loader.sources.held_seeds import HeldSeeds, RemoteSamplerInput
from gigl_loader.sources.remote_interface import RemoteDataset


@with_keywords()
class DistNeighborLoader(LoaderInSteps):
    """Yields the sampled k-hop neighbourhoods of batches of seeds as PyG `Data` or `HeteroData`.

    The same fanout, the same seeds and the same ``seed`` give the same batches on any number of
    workers, partitions and machines, colocated or from a graph store.

    Data:
        dataset (Dataset | RemoteDataset): A ``DistDataset`` (ours or GLT's): colocated mode,
            sampling subprocesses of this process. A ``RemoteDistDataset``: graph-store mode.
        num_neighbors: Neighbours per hop, -1 for all: a list, or on a heterogeneous graph a dict by
            edge type.
        input_nodes: Seeds: global ids as an int64 tensor, an array or a list, or a bool mask over
            all nodes of the type; with a mask ``input_id`` is the node id, as in PyG. Colocated:
            seeds, ``(node_type, seeds)``, or None or a node type for all nodes that this partition
            owns. Graph store: ``{server_rank: seeds}`` or ``(node_type, {server_rank: seeds})``.
            Colocated, the processes of a machine with the same seeds split them contiguously; a
            process with its own seeds, such as those of its own partition, keeps them all.
        batch_size (int): Seeds per batch.
        shuffle (bool | Literal['groups']): Shuffle the seeds every epoch. ``"groups"``: shuffle
            their groups, and the seeds of every ``groups_per_batch`` groups with each other, so
            that the seeds of a batch have common neighbours.
        seed_groups: With ``shuffle="groups"``: the name of the node attribute with the groups, or
            the group of each node of the seeds' type, ``[num_nodes]`` integers; or one of these by
            node type. None: the seeds of one part are a group, or if partitioning wrote
            communities, those of one part and community.
        groups_per_batch (int): With ``shuffle="groups"``: groups that are mixed at a time.
        drop_last (bool): Leave out an incomplete last batch.
        seed (int | None): Decides shuffle and draws. None: a seed is drawn once, and logged.
        with_edge (bool | None): Whether batches have edge ids. None: if there are edge features.
        feature_store (FeatureStoreOptions | None): Your own PyG ``FeatureStore``, for features that
            the dataset lacks.
        transform (Callable[[Any], Any] | None): Called in this process with each batch; the loader
            yields its result instead.
        transform_sampler_output (Callable[[Any], Any] | None): Called in this process with PyG's
            ``SamplerOutput`` of each batch; returns it changed. It cannot add nodes or edges that
            were not sampled.
        pad (bool | dict[str, Any]): Give all batches the same shapes, by dead nodes and edges that
            no real node hears of: ``pad_node_mask`` and ``pad_edge_mask`` are False there, and all
            else is 0. True: by what batch size, fan-outs and the graph bound; without replacement
            an edge comes once in a batch, or in each disjoint tree, and again for a seed that comes
            again. ``{"nodes": sizes, "edges": sizes}``, with sizes by type of a heterogeneous graph
            and two dead nodes of each type included: a batch that does not fit is split by its
            seeds into smaller ones, and with ``"larger": "bound"`` it gets the bound's shape
            instead. `gigl_loader.padding_sizes` measures sizes. See the page "Batches of one
            shape".

    Draws:
        replace (bool): Draw neighbours with replacement.
        weight_attr (str | None): Name of the edge attribute to draw by, in place of
            ``edge_weight``; implies ``with_weight``.
        with_weight (bool): Draw neighbours by edge weight.
        sampling_method (Literal['uniform', 'labor']): Method of the draws. ``"labor"``: seeds of a
            batch share neighbours (layer-neighbour sampling); each still has a uniform draw.
        sampler_options: Another sampler, or again the fanout.
        subgraph_type (Literal['directional', 'bidirectional', 'induced']): ``"directional"``: the
            sampled edges; ``"bidirectional"``: these in both directions, each once; ``"induced"``:
            all edges between the sampled nodes.
        disjoint (bool | Literal['by_time']): True: every seed has its own tree, and ``batch``
            has the seed of each node. ``"by_time"``, with ``time_attr``: the seeds of one time
            share a tree, and ``batch`` has the first of them.
        time_attr (str | None): An attribute of nodes or edges: no node or edge later than its seed
            is sampled. Trees are then disjoint, since each has its own time.
        input_time: The time of each seed, ``[num_seeds]`` numbers; with a graph store by server.
            None: the seeds' own ``time_attr``.
        temporal_strategy (Literal['uniform', 'last']): ``"last"``: the latest neighbours instead of
            any.
        time_window: Greatest age of a neighbour at the time of its seed, in units of the attribute:
            one number for all seeds, or one for each as in ``input_time``. None: any age.
        input_start_time: The earliest time of a neighbour, itself included, for each seed as in
            ``input_time``; in place of ``time_window``.
        input_end_time: cuGraph's name for the times of seeds: the latest time of a neighbour,
            itself included.
        with_hop (bool): Whether each node has its ``hop``, ``[num_nodes]`` int64: the hop in which
            it was found first, 0 for seeds. Dead nodes of ``pad=`` have 0.
        tokens (TokenOptions | None): Give each seed a sequence of nodes, ``batch.tokens``, as graph
            transformers read it; see the page "Sequences for transformers". None: there is none.
        adaptive_fanout (bool): Whether the places that a hop leaves free in a seed's tree, for lack
            of neighbours, go to its next hop, evenly over the nodes expanded there, and what is
            still free to the hop after. Needs a tree for each seed, and fan-outs >= 0.

    Ranks:
        shard (Literal['machine', 'world', 'none']): How seeds are split over ranks. ``"machine"``:
            ranks of a machine with the same seeds, in the same order, share them; a rank with other
            seeds keeps its own. Seeds that two ranks would both use are an error. ``"world"``: all
            ranks pass the seeds of the whole job, whose batches are numbered over all ranks; rank
            ``r`` of ``W`` takes ``r``, ``r + W``... A state then counts the batches of the job, and
            any number of ranks can continue from it. ``"none"``: each rank uses all its seeds, even
            those of other ranks. All other options that decide batches (``batch_size``, fanouts,
            ``seed``...) are the same on all ranks.
        even_ranks (Literal['drop', 'wrap'] | None): ``"drop"`` or ``"wrap"``: all ranks take the
            same number of steps.

    Processes:
        num_workers (int): Sampling processes of this loader. 0: this process samples each batch
            when the loop requests it.
        worker_concurrency (int): Batches that a worker, or with ``exchange="collective"`` this
            process, samples at a time.
        exchange (Literal['workers', 'collective']): Colocated, with several partitions: how ranks
            exchange neighbours and rows. ``"workers"``: sampling processes request them over
            connections. ``"collective"``: without sampling processes and ports, threads of this
            process sample ahead, in step with the other ranks. They exchange by ``all_to_all``,
            rows from device to device if the process group has a backend for that. ``timeout`` then
            also limits the time that a rank computes between batches.
        in_order (bool): Yield batches in order. False trades order for latency.
        worker_init_fn (Callable[[int], None] | None): Called with the worker's number in each
            worker before it samples.

    Buffers:
        channel_size (int | str): Limit on the shared memory of sampled batches: bytes, or a string
            as ``"4GB"`` (10^9) or ``"4GiB"`` (2^30).
        remote_cache (int | str | None): With workers: a cache for rows of other machines, or with a
            graph store for all rows; its memory as bytes (``"2GB"``, with its index) or as a share
            of these rows (``"20%"``). Batches are drawn ahead, until they need 5 times as many rows
            as fit, and the cache keeps the rows that are needed soonest. The ranks of a machine
            share it. Colocated, the loaders of a process over the same dataset share it, too; with
            a graph store each loader has its own. A colocated loader that lost a worker draws no
            batches ahead for the rest of the epoch. None: no cache.

    Device:
        device (device | str | int | None): Device of the batches, as ``torch.device`` takes it.
            None: this process's CUDA device, or the CPU.
        pin_memory_device (device | str | int | None): GiGL's name for ``device``.
        device_prefetch (int): Batches copied ahead to a CUDA device.

    Faults:
        timeout (float): Seconds without progress before a wait is an error.
        max_restarts (int): Workers to replace in an epoch when they die, or make no progress for
            ``timeout``; the batches stay the same. 0: the first loss is an error.
        reconnect_timeout (float): Graph store: longest absence of a storage server in seconds,
            whether it is started again or out of reach; the batches stay the same. 0: its loss is
            an error at once.

    Accepted from GiGL:
        prefetch_size (int | None): Graph store only: batches to request ahead from each server.
            None: as many as ``worker_concurrency``, at least 4.
        process_start_gap_seconds (float | None): None: a local rank starts its workers when the
            local rank before it is ready, so that memory peaks do not add up. A number: local rank
            ``i`` starts them ``i`` times this many seconds later.
        num_cpu_threads (int | None): Threads of torch operations of this process, on a CPU device.
            None: torch's own number.
        non_blocking_transfers (bool): Copy to a CUDA device on a side stream, ahead of use.
        context (DistributedContext | None): Deprecated; see `BaseDistLoader.resolve_runtime`.
        local_process_rank (int | None): Deprecated, with ``context``.
        local_process_world_size (int | None): Deprecated, with ``context``.

    Raises:
        ConfigError: A value cannot work; nothing was started.
        PeerError: A worker could not be started; none is left.
    """

    _sampler: ClassVar[SamplerKind] = NEIGHBOR_KIND
    """Sampler of the workers, unless the user names another."""

    def __init__(
        self,
        dataset: Dataset | RemoteDataset,
        num_neighbors: NumNeighbors,
        input_nodes: NodeInput | Split | None = None,
        num_workers: int = 1,
        batch_size: int = 1,
        context: DistributedContext | None = None,
        local_process_rank: int | None = None,
        local_process_world_size: int | None = None,
        pin_memory_device: Device | None = None,
        worker_concurrency: int = 4,
        channel_size: int | str = "4GB",
        prefetch_size: int | None = None,
        process_start_gap_seconds: float | None = None,
        num_cpu_threads: int | None = None,
        shuffle: Shuffle = False,
        drop_last: bool = False,
        with_weight: bool = False,
        sampler_options: SamplerOptions | None = None,
        non_blocking_transfers: bool = True,
        *,
        input_time: TimeInput | None = None,
        **keywords: Unpack[LoaderKeywords],
    ) -> None:
        given = SplitInput.of(
            input_nodes, dataset, num_neighbors, sampler_options, keywords, input_time
        )
        options = LoaderOptions.of(
            num_neighbors=given.num_neighbors,
            num_workers=num_workers,
            batch_size=batch_size,
            context=context,
            local_process_rank=local_process_rank,
            local_process_world_size=local_process_world_size,
            pin_memory_device=pin_memory_device,
            worker_concurrency=worker_concurrency,
            channel_size=channel_size,
            prefetch_size=prefetch_size,
            process_start_gap_seconds=process_start_gap_seconds,
            num_cpu_threads=num_cpu_threads,
            shuffle=shuffle,
            drop_last=drop_last,
            with_weight=with_weight,
            sampler_options=sampler_options,
            non_blocking_transfers=non_blocking_transfers,
            **keywords,
        )
        limits = SeedLimits.of(options, given.time, row=given.row)
        sampler = self._sampler
        start_loader(
            self,
            dataset,
            options,
            given.seeds,
            local=lambda nodes, data: (limits.added_to(local_input(data, nodes)), sampler),
            store=lambda nodes, store: (limits.added_to(remote_input(store, nodes)), sampler),
        )

    def _sampler_of(self, sampler_input: Any) -> SamplerKind:
        return self._sampler


def local_input(data: DistDataset, input_nodes: Any) -> NodeSamplerInput:
    """Return the checked seeds of all processes of this machine; see `DistNeighborLoader`."""
    num_nodes = data.view().num_nodes
    node_type, given = typed_seeds(input_nodes, data.schema, num_nodes)
    # All that this partition owns: these are the ids in `node_ids`, not all nodes of the graph.
    if given is None:
        if not isinstance(input_nodes, str):  # a node type's name means all of its nodes
            _check_all_are_meant(data, node_type)
        ids = data.node_ids
        given = ids[node_type] if isinstance(ids, dict) else ids
    return with_input_id(*read_seeds(given, num_nodes[node_type]), node_type)


def _check_all_are_meant(data: DistDataset, node_type: NodeType) -> None:
    """Raise `ConfigError` if None may be the ids of a split that is not there."""
    missing, there = data.missed_splits()
    if missing:
        every = "dataset.node_ids"
        if data.is_typed:  # errors write no default type
            is_default = node_type == DEFAULT_HOMOGENEOUS_NODE_TYPE
            every = "gigl_loader.DEFAULT_HOMOGENEOUS_NODE_TYPE" if is_default else repr(node_type)
        raise ConfigError(
            f"input_nodes is None, which would be all nodes, and the dataset has no "
            f"{' and no '.join(missing)} split, whose ids were read as None (it has "
            f"{' and '.join(there)}): give the seeds that you mean; for all nodes, "
            f"input_nodes={every}"
        )


def with_input_id(seeds: Tensor, input_id: Tensor | None, node_type: NodeType) -> NodeSamplerInput:
    """Return a sampler's input, with ``input_id`` as a column if it is not the seed's position."""
    sampler_input = NodeSamplerInput(seeds, node_type)
    sampler_input.extra = SeedColumns(input_id=input_id).named()
    return sampler_input


def remote_input(dataset: Any, input_nodes: Any) -> list[NodeSamplerInput]:
    """Return the checked seeds of each storage server; see `DistNeighborLoader`."""
    if (held := _held_input(dataset, input_nodes)) is not None:
        return held
    node_type, by_server = typed_by_server(
        input_nodes, dataset.fetch_schema(), dataset.fetch_num_nodes()
    )
    servers = range(dataset.cluster_info.num_storage_nodes)
    check_servers(by_server, servers)
    nothing = torch.empty(0, dtype=torch.int64, device="cpu")
    # A mask's input ids are node ids, given ids' are positions. Servers' seeds are one input with
    # one column, so if one server has a mask all of them need the column.
    masked = any(input_id is not None for _, input_id in by_server.values())
    inputs = []
    for server in servers:
        seeds, input_id = by_server.get(server, (nothing, None))
        if masked and input_id is None:  # one column, of all servers' seeds
            input_id = seeds
        inputs.append(with_input_id(seeds, input_id, node_type))
    return inputs


def _held_input(dataset: Any, input_nodes: Any) -> list[NodeSamplerInput] | None:
    """Return the input of each storage server, which reads it itself; None: ids were given."""
    if not isinstance(input_nodes, Mapping) or not any(
        isinstance(seeds, RemoteSamplerInput) for seeds in input_nodes.values()
    ):
        return None
    servers = range(dataset.cluster_info.num_storage_nodes)
    check_servers(input_nodes, servers)
    types = {getattr(seeds, "input_type", None) for seeds in input_nodes.values()}
    if len(types) > 1 or not all(isinstance(s, RemoteSamplerInput) for s in input_nodes.values()):
        raise ConfigError(
            "input_nodes has seeds that servers read and others, or several types: give all "
            f"servers' in one form, of one type; got {input_nodes}"
        )
    schema, num_nodes = dataset.fetch_schema(), dataset.fetch_num_nodes()
    input_type = types.pop()
    node_type, _ = typed_by_server(
        {} if input_type is None else (input_type, {}), schema, num_nodes
    )
    held = dataset.fetch_held_seeds(input_nodes, node_type)
    return [held.get(server, HeldSeeds([], node_type)) for server in servers]


@with_keywords(subgraph_type="induced")
class DistSubGraphLoader(DistNeighborLoader):
    """Yields all edges between the nodes of a k-hop neighbourhood, whoever owns them.

    A batch holds each node once; ``mapping`` (``[batch_size]`` int64, local) tells where its seeds
    are. GLT's order of arguments. Where GLT sorts the nodes, here the seeds come first.

    Data:
        dataset (Dataset | RemoteDataset): As in `DistNeighborLoader`.
        num_neighbors: Neighbours per hop; None: the subgraph of the seeds alone.
        input_nodes: As in `DistNeighborLoader`.
        batch_size (int): Seeds per batch.
        shuffle (bool | Literal['groups']): Shuffle the seeds every epoch. ``"groups"``: shuffle
            their groups, and the seeds of every ``groups_per_batch`` groups with each other, so
            that the seeds of a batch have common neighbours.
        seed_groups: With ``shuffle="groups"``: the name of the node attribute with the groups, or
            the group of each node of the seeds' type, ``[num_nodes]`` integers; or one of these by
            node type. None: the seeds of one part are a group, or if partitioning wrote
            communities, those of one part and community.
        groups_per_batch (int): With ``shuffle="groups"``: groups that are mixed at a time.
        drop_last (bool): Leave out an incomplete last batch.
        seed (int | None): Decides shuffle and draws. None: a seed is drawn once, and logged.
        with_edge (bool | None): Whether batches have edge ids. None: if there are edge features.
        feature_store (FeatureStoreOptions | None): Your own PyG ``FeatureStore``, for features that
            the dataset lacks.
        transform (Callable[[Any], Any] | None): Called in this process with each batch; the loader
            yields its result instead.
        transform_sampler_output (Callable[[Any], Any] | None): Called in this process with PyG's
            ``SamplerOutput`` of each batch; returns it changed. It cannot add nodes or edges that
            were not sampled.
        pad (bool | dict[str, Any]): Give all batches the same shapes, by dead nodes and edges that
            no real node hears of: ``pad_node_mask`` and ``pad_edge_mask`` are False there, and all
            else is 0. True: by what batch size, fan-outs and the graph bound; without replacement
            an edge comes once in a batch, or in each disjoint tree, and again for a seed that comes
            again. ``{"nodes": sizes, "edges": sizes}``, with sizes by type of a heterogeneous graph
            and two dead nodes of each type included: a batch that does not fit is split by its
            seeds into smaller ones, and with ``"larger": "bound"`` it gets the bound's shape
            instead. `gigl_loader.padding_sizes` measures sizes. See the page "Batches of one
            shape".

    Draws:
        replace (bool): Draw neighbours with replacement.
        weight_attr (str | None): Name of the edge attribute to draw by, in place of
            ``edge_weight``; implies ``with_weight``.
        with_weight (bool): Draw neighbours by edge weight.
        sampling_method (Literal['uniform', 'labor']): Method of the draws. ``"labor"``: seeds of a
            batch share neighbours (layer-neighbour sampling); each still has a uniform draw.
        sampler_options: Another sampler, or again the fanout.
        subgraph_type (Literal['directional', 'bidirectional', 'induced']): ``"directional"``: the
            sampled edges; ``"bidirectional"``: these in both directions, each once; ``"induced"``:
            all edges between the sampled nodes.
        disjoint (bool | Literal['by_time']): True: every seed has its own tree, and ``batch``
            has the seed of each node. ``"by_time"``, with ``time_attr``: the seeds of one time
            share a tree, and ``batch`` has the first of them.
        time_attr (str | None): An attribute of nodes or edges: no node or edge later than its seed
            is sampled. Trees are then disjoint, since each has its own time.
        input_time: The time of each seed, ``[num_seeds]`` numbers; with a graph store by server.
            None: the seeds' own ``time_attr``.
        temporal_strategy (Literal['uniform', 'last']): ``"last"``: the latest neighbours instead of
            any.
        time_window: Greatest age of a neighbour at the time of its seed, in units of the attribute:
            one number for all seeds, or one for each as in ``input_time``. None: any age.
        input_start_time: The earliest time of a neighbour, itself included, for each seed as in
            ``input_time``; in place of ``time_window``.
        input_end_time: cuGraph's name for the times of seeds: the latest time of a neighbour,
            itself included.
        with_hop (bool): Whether each node has its ``hop``, ``[num_nodes]`` int64: the hop in which
            it was found first, 0 for seeds. Dead nodes of ``pad=`` have 0.
        tokens (TokenOptions | None): Give each seed a sequence of nodes, ``batch.tokens``, as graph
            transformers read it; see the page "Sequences for transformers". None: there is none.
        adaptive_fanout (bool): Whether the places that a hop leaves free in a seed's tree, for lack
            of neighbours, go to its next hop, evenly over the nodes expanded there, and what is
            still free to the hop after. Needs a tree for each seed, and fan-outs >= 0.

    Ranks:
        shard (Literal['machine', 'world', 'none']): How seeds are split over ranks. ``"machine"``:
            ranks of a machine with the same seeds, in the same order, share them; a rank with other
            seeds keeps its own. Seeds that two ranks would both use are an error. ``"world"``: all
            ranks pass the seeds of the whole job, whose batches are numbered over all ranks; rank
            ``r`` of ``W`` takes ``r``, ``r + W``... A state then counts the batches of the job, and
            any number of ranks can continue from it. ``"none"``: each rank uses all its seeds, even
            those of other ranks. All other options that decide batches (``batch_size``, fanouts,
            ``seed``...) are the same on all ranks.
        even_ranks (Literal['drop', 'wrap'] | None): ``"drop"`` or ``"wrap"``: all ranks take the
            same number of steps.

    Processes:
        num_workers (int): Sampling processes of this loader. 0: this process samples each batch
            when the loop requests it.
        worker_concurrency (int): Batches that a worker, or with ``exchange="collective"`` this
            process, samples at a time.
        exchange (Literal['workers', 'collective']): Colocated, with several partitions: how ranks
            exchange neighbours and rows. ``"workers"``: sampling processes request them over
            connections. ``"collective"``: without sampling processes and ports, threads of this
            process sample ahead, in step with the other ranks. They exchange by ``all_to_all``,
            rows from device to device if the process group has a backend for that. ``timeout`` then
            also limits the time that a rank computes between batches.
        in_order (bool): Yield batches in order. False trades order for latency.
        worker_init_fn (Callable[[int], None] | None): Called with the worker's number in each
            worker before it samples.

    Buffers:
        channel_size (int | str): Limit on the shared memory of sampled batches: bytes, or a string
            as ``"4GB"`` (10^9) or ``"4GiB"`` (2^30).
        remote_cache (int | str | None): With workers: a cache for rows of other machines, or with a
            graph store for all rows; its memory as bytes (``"2GB"``, with its index) or as a share
            of these rows (``"20%"``). Batches are drawn ahead, until they need 5 times as many rows
            as fit, and the cache keeps the rows that are needed soonest. The ranks of a machine
            share it. Colocated, the loaders of a process over the same dataset share it, too; with
            a graph store each loader has its own. A colocated loader that lost a worker draws no
            batches ahead for the rest of the epoch. None: no cache.

    Device:
        device (device | str | int | None): Device of the batches, as ``torch.device`` takes it.
            None: this process's CUDA device, or the CPU.
        pin_memory_device (device | str | int | None): GiGL's name for ``device``.
        device_prefetch (int): Batches copied ahead to a CUDA device.

    Faults:
        timeout (float): Seconds without progress before a wait is an error.
        max_restarts (int): Workers to replace in an epoch when they die, or make no progress for
            ``timeout``; the batches stay the same. 0: the first loss is an error.
        reconnect_timeout (float): Graph store: longest absence of a storage server in seconds,
            whether it is started again or out of reach; the batches stay the same. 0: its loss is
            an error at once.

    Accepted from GiGL:
        prefetch_size (int | None): Graph store only: batches to request ahead from each server.
            None: as many as ``worker_concurrency``, at least 4.
        process_start_gap_seconds (float | None): None: a local rank starts its workers when the
            local rank before it is ready, so that memory peaks do not add up. A number: local rank
            ``i`` starts them ``i`` times this many seconds later.
        num_cpu_threads (int | None): Threads of torch operations of this process, on a CPU device.
            None: torch's own number.
        non_blocking_transfers (bool): Copy to a CUDA device on a side stream, ahead of use.
        context (DistributedContext | None): Deprecated; see `BaseDistLoader.resolve_runtime`.
        local_process_rank (int | None): Deprecated, with ``context``.
        local_process_world_size (int | None): Deprecated, with ``context``.

    Raises:
        ConfigError: A value cannot work; nothing was started.
        PeerError: A worker could not be started; none is left.
    """

    _sampler: ClassVar[SamplerKind] = SUBGRAPH_KIND

    def __init__(
        self,
        dataset: Dataset | RemoteDataset,
        input_nodes: NodeInput | Split | None = None,
        num_neighbors: NumNeighbors | None = None,
        *,
        input_time: TimeInput | None = None,
        **keywords: Unpack[AllKeywords],
    ) -> None:
        fanout = [0] if num_neighbors is None else num_neighbors
        keywords.setdefault("subgraph_type", "induced")
        super().__init__(dataset, fanout, input_nodes, input_time=input_time, **keywords)

    def _own_attributes(self) -> tuple[str, ...]:
        return ("mapping",)
