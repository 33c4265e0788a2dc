"""`DistABLPLoader`: anchors, their positives and negatives, and their neighbourhoods.

Below the loader: the usual kinds of negatives, drawn by a second loader or taken from the batch
itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Unpack

import torch
from torch import Tensor

from gigl_loader.batch.collate import Batch, add_labels
from gigl_loader.batch.message import SampleMessage
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import DatasetSchema, EdgeType
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.loader.build_parts import LoaderInSteps, start_loader
from gigl_loader.loader.deployment.job_ranks import DistributedContext
from gigl_loader.loader.foreign_attributes import LABELS
from gigl_loader.loader.node_loader import local_input
from gigl_loader.loader.options.glt_config import Device, NumNeighbors
from gigl_loader.loader.options.loader_options import LoaderKeywords, LoaderOptions
from gigl_loader.loader.options.signatures import with_keywords
from gigl_loader.loader.seeds.ablp_input import (
    check_anchor_type,
    excluded_types,
    link_inputs,
    sampler_of_labels,
    supervision_types,
)
from gigl_loader.loader.seeds.seed_input import NodeInput, TimeInput
from gigl_loader.runtime.glt_classes import Dataset, NodeSamplerInput
from gigl_loader.runtime.user_functions import check_overrides
from gigl_loader.sampler.anchors import ANCHOR_KIND
from gigl_loader.sampler.options import PPRSamplerOptions, SamplerOptions, Shuffle
from gigl_loader.sampler.sampler_kinds import SamplerKind
from gigl_loader.sources.remote_interface import ABLPInputNodes, RemoteDataset

SupervisionEdgeType = EdgeType | list[EdgeType] | None
A = TypeVar("A")
B = TypeVar("B")


@with_keywords()
class DistABLPLoader(LoaderInSteps):
    """Yields batches for anchor-based link prediction.

    A batch holds the anchors, their positives and negatives, and the neighbourhood of all of them.
    Anchors come first among the nodes of their type, label nodes next. Label edges never appear in
    a batch. Its labels are local indices:

    - ``y_positive``: ``{local anchor index: local label nodes}``, an empty tensor for an anchor
      without labels; or, with ``use_label_edge_index_output=True``, ``[2, num_labels]`` int64 with
      anchors in row 0 and label nodes in row 1.
    - ``y_negative``: the same for negatives, if there are any.

    With several supervision edge types, both are dicts by edge type.

    Data:
        dataset (Dataset | RemoteDataset): Colocated: a ``DistDataset`` with label edges. Graph
            store: a ``RemoteDistDataset``.
        num_neighbors: As `DistNeighborLoader` takes it; label edge types are never named.
        input_nodes: Anchors. Colocated: as `DistNeighborLoader` takes them. Graph store:
            ``{server_rank: ABLPInputNodes}``, from ``RemoteDistDataset.fetch_ablp_input``.
        supervision_edge_type (tuple[str, str, str] | list[tuple[str, str, str]] | None): Colocated:
            the edge type to predict, ``(anchor type, relation, label type)``, or a list of these.
            None: the default edge type of a labeled-homogeneous dataset. Graph store: None, since
            the input names it.
        use_label_edge_index_output (bool): Labels as one tensor instead of a dict by anchor.
        exclude_supervision (bool | Sequence[tuple[str, str, str]]): Leave out the edges of a batch
            that copy one of its positives, in either direction. True: for all message-passing edge
            types between the two node types; a list: for these types only.
        batch_size (int): Anchors per batch.
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
        sampler_options: Another sampler, one with ``AnchorRoots``, or again the fanout.
        subgraph_type (Literal['directional', 'bidirectional', 'induced']): ``"directional"``: the
            sampled edges; ``"bidirectional"``: these in both directions, each once; ``"induced"``:
            all edges between the sampled nodes.
        disjoint (bool | Literal['by_time']): True: every seed has its own tree, and ``batch``
            has the seed of each node. ``"by_time"``, with ``time_attr``: the seeds of one time
            share a tree, and ``batch`` has the first of them.
        time_attr (str | None): An attribute of nodes or edges: no node or edge later than its seed
            is sampled. Trees are then disjoint, since each has its own time.
        input_time: The time of each anchor and its labels; see `DistNeighborLoader`.
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

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        check_overrides(cls, DistABLPLoader, LABELS)

    def __init__(
        self,
        dataset: Dataset | RemoteDataset,
        num_neighbors: NumNeighbors,
        input_nodes: NodeInput | Mapping[int, ABLPInputNodes] | None = None,
        supervision_edge_type: SupervisionEdgeType = None,
        num_workers: int = 1,
        batch_size: int = 1,
        pin_memory_device: Device | None = None,
        worker_concurrency: int = 4,
        prefetch_size: int | None = None,
        channel_size: int | str = "4GB",
        process_start_gap_seconds: float | None = None,
        num_cpu_threads: int | None = None,
        shuffle: Shuffle = False,
        drop_last: bool = False,
        with_weight: bool = False,
        sampler_options: SamplerOptions | None = None,
        context: DistributedContext | None = None,
        local_process_rank: int | None = None,
        local_process_world_size: int | None = None,
        non_blocking_transfers: bool = True,
        use_label_edge_index_output: bool = False,
        *,
        exclude_supervision: bool | Sequence[EdgeType] = False,
        input_time: TimeInput | None = None,
        **keywords: Unpack[LoaderKeywords],
    ) -> None:
        options = LoaderOptions.among(locals(), num_neighbors=num_neighbors)
        limits = options.seed_limits(input_time)
        if exclude_supervision and options.expansion.in_trees:
            raise ConfigError(
                "exclude_supervision looks for copies among merged nodes: it cannot be combined "
                "with disjoint or timed trees"
            )
        ppr = isinstance(options.sampler_options, PPRSamplerOptions)
        if exclude_supervision and ppr and options.expansion.tokens is not None:
            raise ConfigError(
                "exclude_supervision with PPR leaves out the positives of a whole batch, and "
                "tokens of a seed do not depend on the others: leave one of the three out"
            )
        self._use_label_edge_index_output = use_label_edge_index_output

        def local(nodes: Any, data: DistDataset) -> tuple[NodeSamplerInput, SamplerKind]:
            self._supervision = supervision_types(data.schema, supervision_edge_type)
            anchors = local_input(data, nodes)
            check_anchor_type(self._supervision, anchors.input_type)
            sampler = ablp_sampler_kind(
                data.schema,
                self._supervision,
                exclude_supervision,
                max_labels=data.max_labels_per_anchor_node,
            )
            return limits.added_to(anchors), sampler

        def store(nodes: Any, dataset: Any) -> tuple[list[NodeSamplerInput], SamplerKind]:
            if supervision_edge_type is not None:
                raise ConfigError(
                    f"supervision_edge_type={supervision_edge_type} belongs to colocated mode: "
                    "with a graph store, give it to fetch_ablp_input"
                )
            servers = range(dataset.cluster_info.num_storage_nodes)
            self._supervision, inputs = link_inputs(nodes, dataset.fetch_num_nodes(), servers)
            sampler = ablp_sampler_kind(
                dataset.fetch_schema(), self._supervision, exclude_supervision, labels_in_input=True
            )
            return limits.added_to(inputs), sampler

        start_loader(self, dataset, options, input_nodes, local=local, store=store)

    def _sampler_of(self, sampler_input: Any) -> SamplerKind:
        sampler = sampler_of_labels(sampler_input)
        if sampler is None:
            raise ConfigError(
                f"a hook of {type(self).__name__} returned anchors without labels: return an "
                "ABLPNodeSamplerInput of gigl_loader.sampler, or what super() returned"
            )
        self._supervision = list(sampler.supervision)
        return sampler

    def _own_options(self) -> dict[str, Any]:
        return {"use_label_edge_index_output": self._use_label_edge_index_output}

    def _make_batch(self, msg: SampleMessage) -> Batch:
        batch = super()._make_batch(msg)
        as_edge_index = self._use_label_edge_index_output
        add_labels(batch, msg, self._supervision, as_edge_index=as_edge_index)
        return batch


def ablp_sampler_kind(
    schema: DatasetSchema,
    supervision: Sequence[EdgeType],
    exclude: bool | Sequence[EdgeType],
    *,
    labels_in_input: bool = False,
    max_labels: int | None = None,
) -> SamplerKind:
    """Return the sampler of the workers."""
    keywords = {
        "supervision": tuple(supervision),
        "exclude": excluded_types(schema.edge_types or (), supervision, exclude),
        # A server's workers get the labels with the anchors; colocated ones look them up in label
        # edges.
        "labels_in_input": labels_in_input,
        "max_labels": max_labels,
    }
    return ANCHOR_KIND.with_keywords(keywords)


# --- negatives of the user ------------------------------------------------------------------------


def zip_with_negatives(links: Iterable[A], negatives: Iterable[B]) -> Iterator[tuple[A, B]]:
    """Yield each batch of ``links`` with one of ``negatives``, whose epochs start again as needed.

    Args:
        links: A `DistABLPLoader`; one pass over it.
        negatives: A `DistNeighborLoader` over the nodes to draw from, with ``shuffle=True``: every
            epoch has another order.

    Raises:
        UsageError: ``negatives`` has no batches.
    """
    drawn = iter(negatives)
    for batch in links:
        try:
            negative = next(drawn)
        except StopIteration:
            drawn = iter(negatives)
            try:
                negative = next(drawn)
            except StopIteration:
                raise UsageError(
                    "the loader of negatives has no batches: give it input_nodes, and a batch_size "
                    "that is not larger than their number where drop_last=True"
                ) from None
        yield batch, negative


def in_batch_negative_mask(
    y_positive: Tensor | Mapping[int, Tensor],
    candidates: Tensor,
    num_anchors: int | None = None,
    *,
    same_type: bool = False,
) -> Tensor:
    """Return the candidates that may serve each anchor as negatives: all but its positives.

    ::

        scores = anchors @ items[candidates].T      # [num_anchors, num_candidates]
        mask = in_batch_negative_mask(batch.y_positive, candidates)

    Args:
        y_positive: Of one supervision edge type, in either form.
        candidates: ``[num_candidates]`` int64, local indices of label nodes; repeats allowed.
        num_anchors: The batch size; needed for the form ``[2, num_labels]``.
        same_type: Anchors and candidates are of one type: no anchor is a negative of itself.
            Anchors are then distinct.

    Returns:
        ``[num_anchors, num_candidates]`` bool, on the device of ``candidates``.

    Raises:
        ConfigError: ``num_anchors`` is missing.
    """
    links = _as_links(y_positive)
    if num_anchors is None:
        if isinstance(y_positive, Tensor):
            raise ConfigError("with labels as a tensor, num_anchors=batch.batch_size is needed")
        num_anchors = len(y_positive)
    # Candidates may repeat: each is checked once, and its column is repeated.
    distinct, column = torch.unique(candidates, return_inverse=True)
    allowed = torch.ones((num_anchors, distinct.numel()), dtype=torch.bool, device=distinct.device)
    if same_type:
        # Anchors are the first nodes of their type, so anchor i is node i, among candidates too.
        nodes = torch.arange(num_anchors, device=distinct.device)
        links = torch.cat([links.to(distinct.device), torch.stack([nodes, nodes])], dim=1)
    if distinct.numel():
        anchors, labels = links.to(distinct.device)
        # Clamped: there is no position beyond the last candidate, and such a label is then found
        # to be none. By look-up: comparing all labels with all candidates would not fit the memory
        # of a large batch.
        positions = torch.searchsorted(distinct, labels.contiguous()).clamp(
            max=distinct.numel() - 1
        )
        # a label that is no candidate meets another candidate there, and does not count
        known = distinct[positions] == labels
        allowed[anchors[known], positions[known]] = False
    return allowed[:, column]


def _as_links(labels: Tensor | Mapping[int, Tensor]) -> Tensor:
    """Return the labels of one supervision edge type as ``[2, num_labels]`` int64."""
    if isinstance(labels, Tensor):
        return labels
    rows = list(labels.values())
    if not rows:
        return torch.empty((2, 0), dtype=torch.int64, device="cpu")
    targets = torch.cat(rows)
    # By their keys, as a user may have left anchors out of the dict.
    anchors = torch.tensor(list(labels), device=targets.device)
    counts = torch.tensor([row.numel() for row in rows], device=targets.device)
    return torch.stack([torch.repeat_interleave(anchors, counts), targets])
