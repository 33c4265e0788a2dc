"""The input of `DistABLPLoader`, checked before anything starts: anchors, labels, and types."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gigl_loader.batch.message import label_column
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    NEGATIVE,
    POSITIVE,
    DatasetSchema,
    EdgeType,
    NodeType,
    is_label_edge_type,
    label_to_message_passing,
    message_passing_to_positive_label,
    plain_edge_type,
)
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.loader.seeds.seed_input import check_servers
from gigl_loader.runtime.glt_classes import NodeSamplerInput
from gigl_loader.sampler.anchors import ANCHOR_KIND
from gigl_loader.sampler.labeled_anchors import check_labels
from gigl_loader.sampler.neighbor import NEIGHBOR_KIND
from gigl_loader.sampler.options import SamplerOptions
from gigl_loader.sampler.sampler_kinds import SamplerKind
from gigl_loader.sources.remote_interface import ABLPInputNodes
from gigl_loader.sources.sampled_input import chosen_sampler
from gigl_loader.sources.sampling_checks import check_seeds


def sampler_of_labels(sampler_input: Any) -> SamplerKind | None:
    """Return the sampler of an input, or of several, with labels; None: there are none."""
    inputs = sampler_input if isinstance(sampler_input, list) else [sampler_input]
    types = dict.fromkeys(name for one in inputs for name in getattr(one, "supervision", ()))
    labels = {"supervision": tuple(types), "labels_in_input": True}
    return ANCHOR_KIND.with_keywords(labels) if types else None


def with_label_sampler(
    sampler_input: Any, sampler_options: SamplerOptions | None
) -> SamplerOptions | None:
    """Return the options of the workers' sampler: that of anchors, if the input has labels."""
    first = next(iter(sampler_input), None) if isinstance(sampler_input, list) else sampler_input
    default = sampler_of_labels(sampler_input) or NEIGHBOR_KIND
    return chosen_sampler(sampler_options, default, getattr(first, "input_type", None))


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
        else NodeSamplerInput(torch.empty(0, dtype=torch.int64, device="cpu"), anchor_type)
        for server in servers
    ]
    return supervision, inputs


def _one_input(
    where: str, nodes: ABLPInputNodes, num_nodes: dict[NodeType, int], negatives: list[EdgeType]
) -> NodeSamplerInput:
    """Return the anchors of one server, with a column of labels per sign and type."""
    anchor_type = nodes.anchor_node_type
    anchors = check_seeds(nodes.anchor_nodes, num_nodes[anchor_type], f"{where}.anchor_nodes")
    found = NodeSamplerInput(anchors, anchor_type)
    found.extra = {}
    nothing = torch.empty((len(anchors), 0), dtype=torch.int64, device="cpu")
    for edge_type, pair in nodes.labels.items():
        for position, sign in enumerate((POSITIVE, NEGATIVE)):
            if position == 1 and edge_type not in negatives:
                continue  # no server has any
            # An empty column, `[anchors, 0]`, where another server has negatives of the type.
            found.extra[label_column(sign, edge_type)] = check_labels(
                nothing if position == 1 and pair[position] is None else pair[position],
                len(anchors),
                num_nodes[edge_type[2]],
                f"{where}.labels[{edge_type}][{position}]",
            )
    return found


def _check_kind(input_nodes: Any) -> None:
    if isinstance(input_nodes, Mapping) and input_nodes:
        wrong = [v for v in input_nodes.values() if not isinstance(v, ABLPInputNodes)]
        if not wrong:
            return
        found = f"{{server_rank: {type(wrong[0]).__name__}}}"
    else:
        found = f"{type(input_nodes).__name__}"
    raise ConfigError(
        "with a graph store, input_nodes is {server_rank: ABLPInputNodes}, as "
        f"RemoteDistDataset.fetch_ablp_input returns it, got {found}"
    )


def _types_of(input_nodes: Mapping[int, ABLPInputNodes]) -> tuple[NodeType, list[EdgeType]]:
    """Return (anchor type, supervision edge types), the same on all servers."""
    for server, nodes in input_nodes.items():
        _check_types(nodes.labels, f"input_nodes[{server}].labels")
    found = {
        server: (nodes.anchor_node_type, sorted(map(plain_edge_type, nodes.labels)))
        for server, nodes in input_nodes.items()
    }
    first = next(iter(found.values()))
    if any(types != first for types in found.values()):
        raise ConfigError(
            f"input_nodes must have one anchor type and the same labels on all servers: {found}"
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
    plain = {name: label_to_message_passing(name) for name in known if is_label_edge_type(name)}
    return [of for name, of in plain.items() if message_passing_to_positive_label(of) == name]


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
