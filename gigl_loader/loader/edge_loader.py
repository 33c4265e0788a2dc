"""`DistLinkNeighborLoader`: batches seeded by edges, with negatives drawn for them.

Below the loader: its negatives, in the words of PyG.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack, cast

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from gigl_loader.batch.collate import TRIPLET_ATTRIBUTES, Batch, add_edge_labels
from gigl_loader.batch.message import SampleMessage, is_heterogeneous
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.loader.build_parts import LoaderInSteps, start_loader
from gigl_loader.loader.deployment.job_ranks import DistributedContext
from gigl_loader.loader.options.glt_config import Device, NumNeighbors
from gigl_loader.loader.options.loader_options import LoaderKeywords, LoaderOptions
from gigl_loader.loader.options.signatures import with_keywords
from gigl_loader.loader.seeds.edge_input import (
    TIMES,
    SeedEdges,
    by_server_as_edges,
    edges_by_server,
    edges_of_this_machine,
)
from gigl_loader.loader.seeds.seed_input import TimeInput
from gigl_loader.loader.seeds.seed_limits import SeedLimits
from gigl_loader.loader.seeds.split import Split, SplitInput
from gigl_loader.runtime.glt_classes import Dataset, NodeSamplerInput
from gigl_loader.sampler.edges import EDGE_KIND
from gigl_loader.sampler.options import SamplerOptions, Shuffle
from gigl_loader.sampler.sampler_kinds import SamplerKind
from gigl_loader.sources.remote_interface import RemoteDataset

EdgeInput = (
    Tensor
    | EdgeType
    | tuple[EdgeType, Tensor | None]
    | Mapping[int, Tensor]
    | tuple[EdgeType, Mapping[int, Tensor]]
)
"""Accepted values of ``edge_label_index`` in `DistLinkNeighborLoader`; None, too: all edges."""


@with_keywords()
class DistLinkNeighborLoader(LoaderInSteps):
    """Yields the neighbourhoods of edges, as PyG's ``LinkNeighborLoader`` does.

    A batch has ``edge_label_index`` (``[2, num]`` int64, local; seed edges first, then binary
    negatives), ``edge_label`` (0 for negatives) and ``input_id`` (``[num_edges]``, positions in
    ``edge_label_index`` as given). With triplets, ``src_index``, ``dst_pos_index`` and
    ``dst_neg_index`` (``[num_edges]``, or ``[num_edges, amount]``) replace the first two. On a
    `HeteroData` they are in the stores that PyG has them in. The ends of all edges come first among
    the nodes of their type, each once.

    Data:
        dataset (Dataset | RemoteDataset): Colocated: a ``DistDataset``. Graph store: a
            ``RemoteDistDataset``.
        num_neighbors: As in `DistNeighborLoader`.
        edge_label_index: ``[2, num_edges]`` int64, sources and destinations by global id; on a
            heterogeneous graph ``(edge_type, index)``; None in place of the index: all edges of
            this partition (colocated only). With an index, the graph need not have edges of that
            type. Colocated, it is split over the processes of a machine that were given the same;
            with a graph store it is this process's own, cut over the servers, or given by server,
            ``{server_rank: index}``.
        edge_label (Tensor | Mapping[int, Tensor] | None): ``[num_edges, ...]``, labels of the seed
            edges. With binary negatives, labels that begin at 0 are made to begin at 1, as PyG
            does.
        neg_sampling (NegativeSampling | Literal['binary', 'triplet'] | None): ``"binary"``,
            ``"triplet"``, or PyG's `NegativeSampling` with amount and weights; None: no negatives.
        neg_sampling_ratio (float | None): PyG's older way to say ``NegativeSampling("binary",
            ratio)``.
        strict (bool): No negative is an edge of the graph: the owner of each is asked. A node may
            be a negative of itself, as in PyG.
        batch_size (int): Seed edges per batch.
        shuffle (bool | Literal['groups']): Shuffle the seeds every epoch. ``"groups"``: shuffle
            their groups, and the seeds of every ``groups_per_batch`` groups with each other, so
            that the seeds of a batch have common neighbours.
        seed_groups: With ``shuffle="groups"``: the name of the node attribute with the groups, or
            the group of each node of the seeds' type, ``[num_nodes]`` integers; or one of these by
            node type. None: the seeds of one part are a group, or if partitioning wrote
            communities, those of one part and community. A seed edge is in the group of its source.
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
        sampler_options: Another sampler, one with ``EdgeRoots``, or again the fanout.
        subgraph_type (Literal['directional', 'bidirectional', 'induced']): ``"directional"``: the
            sampled edges; ``"bidirectional"``: these in both directions, each once; ``"induced"``:
            all edges between the sampled nodes.
        disjoint (bool | Literal['by_time']): True: every seed has its own tree, and ``batch``
            has the seed of each node. ``"by_time"``, with ``time_attr``: the seeds of one time
            share a tree, and ``batch`` has the first of them. Each end of an edge has a tree of its
            own, and ``batch`` is the position of the edge.
        time_attr (str | None): An attribute of nodes or edges: no node or edge later than its seed
            is sampled. Trees are then disjoint, since each has its own time.
        edge_label_time: The time of each seed edge, ``[num_edges]`` numbers (by server where the
            edges are): needed with ``time_attr``. Negatives are not later either.
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

    def __init__(
        self,
        dataset: Dataset | RemoteDataset,
        num_neighbors: NumNeighbors,
        edge_label_index: EdgeInput | Split | None = None,
        edge_label: Tensor | Mapping[int, Tensor] | None = None,
        neg_sampling: NegativeSampling | Literal["binary", "triplet"] | None = None,
        neg_sampling_ratio: float | None = None,
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
        strict: bool = False,
        edge_label_time: TimeInput | None = None,
        **keywords: Unpack[LoaderKeywords],
    ) -> None:
        given = SplitInput.of(
            edge_label_index,
            dataset,
            num_neighbors,
            sampler_options,
            keywords,
            edge_label_time,
            links=True,
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
        limits = SeedLimits.of(options, given.time, TIMES, given.row)
        # PyG's words: an edge has no time of its own that its ends could be compared with.
        if limits.given.time is None and options.expansion.time_attr is not None:
            raise ConfigError(
                "'edge_label_time' is not set: time_attr needs the time of each seed edge"
            )
        self._negatives = negative_sampling(neg_sampling, neg_sampling_ratio, edge_label)
        is_binary = self._negatives is not None and self._negatives.is_binary()
        self._has_strict_pairs = strict and is_binary

        def local(edges_given: Any, data: DistDataset) -> tuple[NodeSamplerInput, SamplerKind]:
            edges = edges_of_this_machine(data, edges_given, edge_label)
            seeds = shifted([edges], self._negatives)[0].sampler_input()
            is_new = edges.edge_type not in data.view().adjacency
            sampler = self._sampler(edges.edge_type, data.view().num_nodes, strict, is_new=is_new)
            return limits.added_to(seeds), sampler

        def store(edges_given: Any, dataset: Any) -> tuple[list[NodeSamplerInput], SamplerKind]:
            num_nodes, schema = dataset.fetch_num_nodes(), dataset.fetch_schema()
            servers = range(dataset.cluster_info.num_storage_nodes)
            by_server = edges_by_server(edges_given, edge_label, schema, num_nodes, servers)
            edge_type = by_server[0].edge_type
            is_new = schema.edge_types is not None and edge_type not in schema.edge_types
            sampler = self._sampler(edge_type, num_nodes, strict, is_new=is_new)
            inputs = [edges.sampler_input() for edges in shifted(by_server, self._negatives)]
            return by_server_as_edges(limits, inputs).added_to(inputs), sampler

        start_loader(self, dataset, options, given.seeds, local=local, store=store)

    def _sampler(
        self, edge_type: EdgeType, num_nodes: Mapping[NodeType, int], strict: bool, *, is_new: bool
    ) -> SamplerKind:
        """Return the sampler of the workers; ``is_new``: the graph has no edges of the type."""
        self._seed_edge_type, negatives = edge_type, self._negatives
        # Plain values, as they are sent to workers, which run without torch and PyG.
        keywords: dict[str, Any] = {"edge_type": edge_type}
        if negatives is not None:
            keywords |= {"negatives": negatives.mode.value, "amount": negatives.amount}
            keywords |= {"strict": strict, **weights_of(negatives, edge_type, num_nodes)}
        elif strict:
            raise ConfigError("strict=True is about negatives: give neg_sampling as well")
        if strict and is_new:
            raise ConfigError(
                f"strict=True asks the graph for its edges of type {edge_type}, and it has none: "
                "use strict=False, or put the known links into the graph"
            )
        return EDGE_KIND.with_keywords(keywords)

    def _own_attributes(self) -> tuple[str, ...]:
        is_triplet = self._negatives is not None and self._negatives.is_triplet()
        return TRIPLET_ATTRIBUTES if is_triplet else ()

    def _make_batch(self, msg: SampleMessage) -> Batch:
        batch = super()._make_batch(msg)
        edge_type = self._seed_edge_type if is_heterogeneous(msg) else None
        kind = None if self._negatives is None else self._negatives.mode.value
        add_edge_labels(batch, msg, edge_type, kind=kind)
        return batch


def negative_sampling(given: Any, ratio: float | None, label: Any) -> NegativeSampling | None:
    """Return PyG's `NegativeSampling` from the user's value.

    Raises:
        ConfigError: It is invalid, or means triplets with labels.
    """
    if given is not None and ratio is not None:
        raise ConfigError("neg_sampling and neg_sampling_ratio were both given: drop the ratio")
    if ratio is not None:
        # Not `ratio < 0`: a NaN is refused, too.
        if not ratio >= 0:
            raise ConfigError(f"neg_sampling_ratio must be >= 0, got {ratio!r}")
        # PyG refuses an amount of 0, and its loaders read a ratio of 0 as no negatives.
        given = NegativeSampling("binary", ratio) if ratio else None
    try:
        if hasattr(given, "mode") and not isinstance(given, NegativeSampling):  # GLT's, as fields
            mode = getattr(given.mode, "value", given.mode)
            given = NegativeSampling(mode, given.amount, given.weight)
        negatives: NegativeSampling | None = (
            given if given is None else NegativeSampling.cast(given)
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"neg_sampling must be 'binary', 'triplet' or PyG's NegativeSampling, got {given!r}: "
            f"{error}"
        ) from None
    if negatives is not None and negatives.is_triplet() and label is not None:
        raise ConfigError("triplets have no labels: leave edge_label out, or use 'binary'")
    return negatives


def shifted(parts: Sequence[SeedEdges], negatives: NegativeSampling | None) -> list[SeedEdges]:
    """Return edges whose labels leave 0 to negatives: one more each, if they use 0.

    Args:
        parts: All seed edges of a loader: their labels move together, or none does.
        negatives: The user's value.
    """
    # PyG's rule, from its `LinkLoader`: 0 is the label of negatives, so labels that use it move up.
    given = [part.label for part in parts if part.label is not None and part.label.numel()]
    least = min((labels.min().item() for labels in given), default=1)
    if least != 0 or negatives is None or not negatives.is_binary():
        return list(parts)
    return [part if part.label is None else replace(part, label=part.label + 1) for part in parts]


def weights_of(
    negatives: NegativeSampling, edge_type: EdgeType, num_nodes: Mapping[NodeType, int]
) -> dict[str, list[float]]:
    """Return the given weights, as keywords of the sampler.

    Raises:
        ConfigError: Not one weight for each node, a negative one, or nothing but zeros.
    """
    weights = {}
    for name, end in (("src_weight", edge_type[0]), ("dst_weight", edge_type[2])):
        weight = _weight_of(negatives, name)
        if weight is None:
            continue
        # float64: weights of many nodes are summed up, and small ones must not vanish in the sum.
        weight = torch.as_tensor(weight, dtype=torch.float64, device="cpu")
        if tuple(weight.shape) != (num_nodes[end],):
            raise ConfigError(
                f"neg_sampling.{name} must have one weight for each of the {num_nodes[end]} nodes "
                f"of type {end!r}, got {list(weight.shape)}"
            )
        if not bool(((weight >= 0) & weight.isfinite()).all()) or not bool((weight > 0).any()):
            raise ConfigError(f"neg_sampling.{name} must be finite, >= 0, and not zero throughout")
        # A list, as keywords of samplers travel to workers that run without torch.
        weights[name] = weight.tolist()
    return weights


def _weight_of(negatives: NegativeSampling, name: str) -> torch.Tensor | None:
    if hasattr(negatives, name):
        return cast("torch.Tensor | None", getattr(negatives, name))
    # older releases of PyG have one weight, for each end that negatives are drawn for
    drawn = name == "dst_weight" or negatives.is_binary()
    return cast("torch.Tensor | None", negatives.weight) if drawn else None
