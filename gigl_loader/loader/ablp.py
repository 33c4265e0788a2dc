"""`DistABLPLoader`: anchors, their positives and negatives, and their neighbourhoods.

Below the loader: its input, checked before anything starts; and the usual kinds of negatives, drawn
by a second loader or taken from the batch itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Unpack

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader._glt import Dataset, NodeSamplerInput
from gigl_loader.client.dataset import ABLPInputNodes, RemoteDistDataset
from gigl_loader.collate.pyg import add_labels
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DatasetSchema,
    EdgeType,
    NodeType,
    is_label_edge_type,
    message_passing_to_positive_label,
    plain_edge_type,
)
from gigl_loader.errors import ConfigError, UsageError, WrongTypeError
from gigl_loader.loader.args import LoaderOptions
from gigl_loader.loader.assemble import start_loader
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.loader.config import Device, NumNeighbors, SamplerClass
from gigl_loader.loader.keywords import LoaderKeywords, with_keywords
from gigl_loader.loader.node_loader import DistNeighborLoader, local_input
from gigl_loader.loader.runtime import DistributedContext
from gigl_loader.loader.seed_input import (
    NodeInput,
    TimeInput,
    add_times,
    add_times_by_server,
    check_seeds,
    check_servers,
    check_time_given,
)
from gigl_loader.message import NEGATIVE, POSITIVE, SampleMessage, label_column
from gigl_loader.options import SamplerOptions

SupervisionEdgeType = EdgeType | list[EdgeType] | None
A = TypeVar("A")
B = TypeVar("B")
_SAMPLER = "gigl_loader.sampler.anchors.anchor_sampler"


@with_keywords(like=DistNeighborLoader)
class DistABLPLoader(BaseDistLoader):
    """Yields batches for anchor-based link prediction.

    A batch holds the anchors, their positives and negatives, and the neighbourhood of all of them.
    Anchors come first among the nodes of their type, label nodes next. Label edges never appear in
    a batch. Its labels are local indices:

    - ``y_positive``: ``{local anchor index: local label nodes}``, an empty tensor for an anchor
      without labels; or, with ``use_label_edge_index_output=True``, ``[2, num_labels]`` int64 with
      anchors in row 0 and label nodes in row 1.
    - ``y_negative``: the same for negatives, if there are any.

    With several supervision edge types, both are dicts by edge type.

    Args:
        dataset: Colocated: a ``DistDataset`` with label edges. Graph store: a
            ``RemoteDistDataset``.
        num_neighbors: As `DistNeighborLoader` takes it; label edge types are never named.
        input_nodes: Anchors. Colocated: as `DistNeighborLoader` takes them. Graph store:
            ``{server_rank: ABLPInputNodes}``, from ``RemoteDistDataset.fetch_ablp_input``.
        supervision_edge_type: Colocated: the edge type to predict, ``(anchor type, relation, label
            type)``, or a list of these. None: the default edge type of a labeled-homogeneous
            dataset. Graph store: None, since the input names it.
        batch_size: Anchors per batch.
        sampler_options: Another sampler, one with ``AnchorRoots``, or again the fanout.
        use_label_edge_index_output: Labels as one tensor instead of a dict by anchor.
        exclude_supervision: Leave out the edges of a batch that copy one of its positives, in
            either direction. True: for all message-passing edge types between the two node types; a
            list: for these types only.
        input_time: The time of each anchor and its labels; see `DistNeighborLoader`.
        **keywords: Those of `gigl_loader.loader.keywords.LoaderKeywords`.

    Raises:
        ConfigError: A value cannot work; nothing was started.
        PeerError: A worker could not be started; none is left.
    """

    def __init__(
        self,
        dataset: Dataset | RemoteDistDataset,
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
        shuffle: bool = False,
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
        options = LoaderOptions.of(locals())
        check_time_given(input_time, options.expansion)
        if exclude_supervision and options.expansion.in_trees:
            raise ConfigError(
                "exclude_supervision looks for copies among merged nodes: it cannot be combined "
                "with disjoint or timed trees"
            )
        self._use_label_edge_index_output = use_label_edge_index_output

        def local(data: DistDataset) -> tuple[NodeSamplerInput, SamplerClass]:
            self._supervision = supervision_types(data.schema, supervision_edge_type)
            anchors = local_input(data, input_nodes)
            check_anchor_type(self._supervision, anchors.input_type)
            sampler = link_sampler(
                data.schema, self._supervision, exclude_supervision,
                max_labels=data.max_labels_per_anchor_node,
            )  # fmt: skip
            return add_times(anchors, input_time), sampler

        def store(dataset: Any) -> tuple[list[NodeSamplerInput], SamplerClass]:
            if supervision_edge_type is not None:
                raise ConfigError(
                    f"supervision_edge_type={supervision_edge_type} belongs to colocated mode: "
                    "with a graph store, give it to fetch_ablp_input"
                )
            servers = range(dataset.cluster_info.num_storage_nodes)
            self._supervision, inputs = link_inputs(input_nodes, dataset.fetch_num_nodes(), servers)
            sampler = link_sampler(
                dataset.fetch_schema(), self._supervision, exclude_supervision,
                labels_in_input=True,
            )  # fmt: skip
            return add_times_by_server(inputs, input_time), sampler

        start_loader(self, dataset, options, local=local, store=store)

    def _make_batch(self, msg: SampleMessage) -> Data | HeteroData:
        batch = super()._make_batch(msg)
        as_edge_index = self._use_label_edge_index_output
        add_labels(batch, msg, self._supervision, as_edge_index=as_edge_index)
        return batch


def link_sampler(
    schema: DatasetSchema,
    supervision: Sequence[EdgeType],
    exclude: bool | Sequence[EdgeType],
    *,
    labels_in_input: bool = False,
    max_labels: int | None = None,
) -> SamplerClass:
    """Return the class and the keywords of the workers' sampler."""
    keywords = {
        "supervision": tuple(supervision),
        "exclude": excluded_types(schema.edge_types or (), supervision, exclude),
        # A server's workers get the labels with the anchors; colocated ones look them up in label
        # edges.
        "labels_in_input": labels_in_input,
        "max_labels": max_labels,
    }
    return _SAMPLER, keywords


# --- its input ------------------------------------------------------------------------------------


def link_inputs(
    input_nodes: Any, num_nodes: dict[NodeType, int], servers: range
) -> tuple[list[EdgeType], list[NodeSamplerInput]]:
    """Return (supervision edge types, the input of each storage server, empty ones included).

    Args:
        input_nodes: ``{server_rank: ABLPInputNodes}``. Labels ride along as columns.
        num_nodes: Nodes by type.
        servers: Ranks of the storage servers.

    Raises:
        ConfigError: Another kind of input, servers that disagree on types, or ids out of range.
    """
    _check_kind(input_nodes)
    check_servers(input_nodes, servers)
    anchor_type, supervision = _types_of(input_nodes)
    check_anchor_type(supervision, anchor_type)
    if anchor_type not in num_nodes:
        raise ConfigError(f"anchor_node_type is {anchor_type!r}, the graph has {sorted(num_nodes)}")
    # A column exists on all servers or on none: the input is split over servers as one.
    negatives = [
        edge_type
        for edge_type in supervision
        if any(nodes.labels[edge_type][1] is not None for nodes in input_nodes.values())
    ]
    inputs = [
        _one_input(f"input_nodes[{server}]", input_nodes[server], num_nodes, negatives)
        if server in input_nodes
        # A server without anchors has no columns: concatenation uses those of the others.
        else NodeSamplerInput(torch.empty(0, dtype=torch.int64), anchor_type)
        for server in servers
    ]
    return supervision, inputs


def _one_input(
    where: str, nodes: ABLPInputNodes, num_nodes: dict[NodeType, int], negatives: list[EdgeType]
) -> NodeSamplerInput:
    """Return the anchors of one server, with a column of labels per sign and type."""
    anchor_type = nodes.anchor_node_type
    anchors = check_seeds(nodes.anchor_nodes, num_nodes[anchor_type], f"{where}.anchor_nodes")
    sampler_input = NodeSamplerInput(anchors, anchor_type)
    sampler_input.extra = {}
    nothing = torch.empty((len(anchors), 0), dtype=torch.int64)
    for edge_type, pair in nodes.labels.items():
        for position, sign in enumerate((POSITIVE, NEGATIVE)):
            if position == 1 and edge_type not in negatives:
                continue  # no server has any
            # An empty column, `[anchors, 0]`, where another server has negatives of the type.
            sampler_input.extra[label_column(sign, edge_type)] = check_labels(
                nothing if position == 1 and pair[position] is None else pair[position],
                len(anchors), num_nodes[edge_type[2]], f"{where}.labels[{edge_type}][{position}]",
            )  # fmt: skip
    return sampler_input


def check_labels(labels: Any, num_anchors: int, num_nodes: int, where: str) -> Tensor:
    """Return ``labels`` if they are ``[num_anchors, most]`` int64 ids or -1.

    Raises:
        ConfigError: Wrong shape, dtype or range.
    """
    shape = list(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
    if not isinstance(labels, Tensor) or labels.dim() != 2 or labels.dtype != torch.int64:
        raise ConfigError(f"{where} must be [anchors, most labels] int64, got {shape}")
    if labels.size(0) != num_anchors:
        raise ConfigError(f"{where} has {labels.size(0)} rows for {num_anchors} anchors")
    wrong = (labels < -1) | (labels >= num_nodes)
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        raise ConfigError(
            f"{where}[{row}, {column}] = {int(labels[row, column])} is no node id: ids are in "
            f"[0, {num_nodes}), and -1 fills a row up"
        )
    return labels


def _check_kind(input_nodes: Any) -> None:
    if isinstance(input_nodes, Mapping) and input_nodes:
        wrong = [v for v in input_nodes.values() if not isinstance(v, ABLPInputNodes)]
        if not wrong:
            return
        given = f"{{server_rank: {type(wrong[0]).__name__}}}"
    else:
        given = f"{type(input_nodes).__name__}"
    raise ConfigError(
        "with a graph store, input_nodes is {server_rank: ABLPInputNodes}, as "
        f"RemoteDistDataset.fetch_ablp_input returns it, got {given}"
    )


def _types_of(input_nodes: Mapping[int, ABLPInputNodes]) -> tuple[NodeType, list[EdgeType]]:
    """Return (anchor type, supervision edge types), the same on all servers."""
    for server, nodes in input_nodes.items():
        _check_types(nodes.labels, f"input_nodes[{server}].labels")
    types_by_server = {
        server: (nodes.anchor_node_type, sorted(map(plain_edge_type, nodes.labels)))
        for server, nodes in input_nodes.items()
    }
    first = next(iter(types_by_server.values()))
    if any(types != first for types in types_by_server.values()):
        raise ConfigError(
            "input_nodes must have one anchor type and the same labels on all servers: "
            f"{types_by_server}"
        )
    return first


def _check_types(labels: Any, where: str) -> None:
    if not isinstance(labels, Mapping) or not labels:
        raise ConfigError(
            f"{where} must be {{supervision edge type: (positives, negatives or None)}}, got "
            f"{labels if isinstance(labels, Mapping) else type(labels).__name__}"
        )
    for edge_type, pair in labels.items():
        if is_label_edge_type(edge_type):
            raise ConfigError(
                f"{where} must be by supervision edge type, got the label edge type {edge_type}: "
                "name the edge type to predict, without the suffix"
            )
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ConfigError(
                f"{where}[{edge_type}] must be (positives, negatives or None), got "
                f"{type(pair).__name__}"
            )


def supervision_types(schema: DatasetSchema, given: Any) -> list[EdgeType]:
    """Return the supervision edge types, each with positives in the dataset.

    Args:
        schema: Types and widths of the dataset.
        given: One type, a list of them, or None: the default type of a labeled-homogeneous dataset.

    Raises:
        ConfigError: No type is named, or the named one has no label edges; lists those that have.
    """
    known = schema.edge_types or []
    labeled = labeled_types(known)
    if not labeled:
        raise ConfigError(
            "the dataset has no positive label edges: give them as supervision= of "
            "DistDataset.from_pyg or partition_graph, or as partitioned_positive_labels"
        )
    if given is None:
        if not schema.is_homogeneous_with_labeled_edge_type:
            raise ConfigError(
                f"the graph is heterogeneous: supervision_edge_type must be given, of {labeled}"
            )
        given = DEFAULT_HOMOGENEOUS_EDGE_TYPE
    # A list and not any sequence: an edge type itself is a tuple.
    chosen = given if isinstance(given, list) else [given]
    if not chosen:
        raise ConfigError(f"supervision_edge_type is an empty list: name one or more of {labeled}")
    for edge_type in chosen:
        _check_type(edge_type)
        if is_label_edge_type(edge_type):
            raise ConfigError(
                f"supervision_edge_type {edge_type} is a label edge type: name the one to predict, "
                f"without the suffix: {labeled}"
            )
        if tuple(edge_type) not in labeled:
            src, relation, dst = edge_type
            hint = ""
            if (dst, relation, src) in labeled and schema.edge_dir == "in":
                hint = (
                    ". Label edges among the edges (partitioned_edge_index) are stored as all "
                    f'edges are, so with edge_dir="in" they end at their anchors: if {src!r} are '
                    "the anchors, turn them, or give them as partitioned_positive_labels"
                )
            raise ConfigError(
                f"supervision_edge_type {edge_type} has no positive label edges in the dataset; "
                f"these have: {labeled}{hint}"
            )
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"supervision_edge_type names a type twice: {chosen}")
    return [plain_edge_type(edge_type) for edge_type in chosen]


def labeled_types(known: Sequence[EdgeType]) -> list[EdgeType]:
    """Return the supervision edge types that have positives among the edge types ``known``."""
    labeled = []
    for edge_type in known:
        if is_label_edge_type(edge_type):
            src, relation, dst = edge_type
            # GiGL's suffix; the comparison below excludes negatives, and relations with similar
            # names.
            plain = (src, relation.rpartition("_gigl_")[0], dst)
            if message_passing_to_positive_label(plain) == edge_type:
                labeled.append(plain)
    return labeled


def check_anchor_type(supervision: Sequence[EdgeType], anchor_type: NodeType) -> None:
    """Raise `ConfigError` unless the anchors are the sources of all supervision edge types."""
    for edge_type in supervision:
        if edge_type[0] != anchor_type:
            hint = ""
            if edge_type[2] == anchor_type:
                hint = " (anchors are sources: name the type from the anchors to the label nodes)"
            raise ConfigError(
                f"input_nodes are of type {anchor_type!r}, but supervision_edge_type {edge_type} "
                f"starts at {edge_type[0]!r}{hint}"
            )


def excluded_types(
    known: Sequence[EdgeType], supervision: Sequence[EdgeType], exclude: Any
) -> tuple[EdgeType, ...]:
    """Return the message-passing edge types from which copies of the positives are removed.

    Args:
        known: All edge types of the dataset.
        supervision: The edge types to predict.
        exclude: True: all that connect the two node types of a supervision edge type, in either
            direction; or the types.

    Raises:
        ConfigError: A type is not walked, or connects other node types.
        WrongTypeError: ``exclude`` is neither.
    """
    # Unordered: a copy of a positive may be stored in the other direction, under another relation.
    ends = {frozenset((src, dst)) for src, _, dst in supervision}
    could = [
        edge_type
        for edge_type in known
        if not is_label_edge_type(edge_type) and frozenset((edge_type[0], edge_type[2])) in ends
    ]
    if isinstance(exclude, bool):
        return tuple(could) if exclude else ()
    if not isinstance(exclude, Sequence) or isinstance(exclude, str):
        raise WrongTypeError(
            f"exclude_supervision must be True, False or a list of edge types, got {exclude!r}"
        )
    for edge_type in exclude:
        if edge_type not in could:
            raise ConfigError(
                f"exclude_supervision names {edge_type}, which cannot hold copies of "
                f"{supervision}; these can: {could}"
            )
    return tuple(plain_edge_type(edge_type) for edge_type in exclude)


def _check_type(edge_type: Any) -> None:
    parts = edge_type if isinstance(edge_type, tuple) else ()
    if len(parts) != 3 or not all(isinstance(part, str) for part in parts):
        raise WrongTypeError(
            "supervision_edge_type must be (anchor type, relation, label type) or a list of these, "
            f"got {edge_type!r}"
        )


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
        return torch.empty((2, 0), dtype=torch.int64)
    targets = torch.cat(rows)
    # By their keys, as a user may have left anchors out of the dict.
    anchors = torch.tensor(list(labels), device=targets.device)
    counts = torch.tensor([row.numel() for row in rows], device=targets.device)
    return torch.stack([torch.repeat_interleave(anchors, counts), targets])
