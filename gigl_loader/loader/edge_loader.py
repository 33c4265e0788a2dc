"""`DistLinkNeighborLoader`: batches seeded by edges, with negatives drawn for them.

Below the loader: its seed edges, checked and split into the contents of a sampler's input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack, cast

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from gigl_loader._glt import Dataset, NodeSamplerInput
from gigl_loader.client.dataset import RemoteDistDataset
from gigl_loader.collate.pyg import TRIPLET_ATTRIBUTES, add_edge_labels
from gigl_loader.dataset.adjacency import edges_of
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DatasetSchema,
    EdgeType,
    NodeType,
    is_label_edge_type,
)
from gigl_loader.errors import ConfigError
from gigl_loader.loader.args import LoaderOptions
from gigl_loader.loader.assemble import start_loader
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.loader.config import Device, NumNeighbors, SamplerClass
from gigl_loader.loader.keywords import LoaderKeywords, with_keywords
from gigl_loader.loader.node_loader import DistNeighborLoader
from gigl_loader.loader.runtime import DistributedContext
from gigl_loader.loader.seed_input import (
    TimeInput,
    add_times,
    add_times_by_server,
    check_servers,
    check_time_given,
    read_times,
)
from gigl_loader.message import EDGE_LABEL, EDGE_TARGETS, IS_HETERO, SampleMessage
from gigl_loader.options import SamplerOptions
from gigl_loader.sampler.edges import BINARY
from gigl_loader.sampler.plan import STRICT_PAIRS_VERSION

EdgeInput = (
    Tensor | EdgeType | tuple[EdgeType, Tensor | None] | Mapping[int, Tensor]
    | tuple[EdgeType, Mapping[int, Tensor]]
)  # fmt: skip
"""Accepted values of ``edge_label_index`` in `DistLinkNeighborLoader`; None, too: all edges."""
_TIMES = "edge_label_time"
_SAMPLER = "gigl_loader.sampler.edges.edge_sampler"


@dataclass(frozen=True)
class SeedEdges:
    """Seed edges of one loader."""

    edge_type: EdgeType
    index: Tensor
    """``[2, num_edges]`` int64, global ids: sources, destinations."""
    label: Tensor | None
    """``[num_edges, ...]``."""

    def sampler_input(self) -> NodeSamplerInput:
        """Return them as seeds (sources) with columns (destinations, labels)."""
        # Rows of a transposed index are not contiguous, and seeds are read as one block.
        seeds = NodeSamplerInput(self.index[0].contiguous(), self.edge_type[0])
        seeds.extra = {EDGE_TARGETS: self.index[1].contiguous()}
        if self.label is not None:
            seeds.extra[EDGE_LABEL] = self.label.contiguous()
        return seeds

    def split(self, parts: int) -> "list[SeedEdges]":
        """Return contiguous blocks that concatenate to all."""
        labels = [None] * parts if self.label is None else self.label.tensor_split(parts)
        blocks = self.index.tensor_split(parts, dim=1)
        return [
            SeedEdges(self.edge_type, block, label)
            for block, label in zip(blocks, labels, strict=True)
        ]


@with_keywords(like=DistNeighborLoader)
class DistLinkNeighborLoader(BaseDistLoader):
    """Yields the neighbourhoods of edges, as PyG's ``LinkNeighborLoader`` does.

    A batch has ``edge_label_index`` (``[2, num]`` int64, local; seed edges first, then binary
    negatives), ``edge_label`` (0 for negatives) and ``input_id`` (``[num_edges]``, positions in
    ``edge_label_index`` as given). With triplets, ``src_index``, ``dst_pos_index`` and
    ``dst_neg_index`` (``[num_edges]``, or ``[num_edges, amount]``) replace the first two. On a
    `HeteroData` they are in the stores that PyG has them in. The ends of all edges come first among
    the nodes of their type, each once.

    Args:
        dataset: Colocated: a ``DistDataset``. Graph store: a ``RemoteDistDataset``.
        num_neighbors: As in `DistNeighborLoader`.
        edge_label_index: ``[2, num_edges]`` int64, sources and destinations by global id; on a
            heterogeneous graph ``(edge_type, index)``; None in place of the index: all edges of
            this partition (colocated only). Colocated, it is split over the processes of a machine
            that were given the same; with a graph store it is this process's own, cut over the
            servers, or given by server, ``{server_rank: index}``.
        edge_label: ``[num_edges, ...]``, labels of the seed edges. With binary negatives, labels
            that begin at 0 are made to begin at 1, as PyG does.
        neg_sampling: ``"binary"``, ``"triplet"``, or PyG's `NegativeSampling` with amount and
            weights; None: no negatives.
        neg_sampling_ratio: PyG's older way to say ``NegativeSampling("binary", ratio)``.
        batch_size: Seed edges per batch.
        sampler_options: Another sampler, one with ``EdgeRoots``, or again the fanout.
        strict: No negative is an edge of the graph: the owner of each is asked. A node may be a
            negative of itself, as in PyG.
        edge_label_time: The time of each seed edge, ``[num_edges]`` numbers (by server where the
            edges are): needed with ``time_attr``. Negatives are not later either.
        **keywords: Those of `gigl_loader.loader.keywords.LoaderKeywords`. Where trees are
            disjoint, each end of an edge has its own, and ``batch`` is the position of the edge.

    Raises:
        ConfigError: A value cannot work; nothing was started.
        PeerError: A worker could not be started; none is left.
    """

    def __init__(
        self,
        dataset: Dataset | RemoteDistDataset,
        num_neighbors: NumNeighbors,
        edge_label_index: EdgeInput | None = None,
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
        shuffle: bool = False,
        drop_last: bool = False,
        with_weight: bool = False,
        sampler_options: SamplerOptions | None = None,
        non_blocking_transfers: bool = True,
        *,
        strict: bool = False,
        edge_label_time: TimeInput | None = None,
        **keywords: Unpack[LoaderKeywords],
    ) -> None:
        options = LoaderOptions.of(locals())
        check_time_given(edge_label_time, options.expansion, _TIMES)
        # PyG's words: an edge has no time of its own that its ends could be compared with.
        if edge_label_time is None and options.expansion.time_attr is not None:
            raise ConfigError(
                "'edge_label_time' is not set: time_attr needs the time of each seed edge"
            )
        self._negatives = negative_sampling(neg_sampling, neg_sampling_ratio, edge_label)
        self._strict = strict

        def local(data: DistDataset) -> tuple[NodeSamplerInput, SamplerClass]:
            edges = edges_of_this_machine(data, edge_label_index, edge_label)
            seeds = shifted([edges], self._negatives)[0].sampler_input()
            sampler = self._sampler(edges.edge_type, data.view().num_nodes, strict)
            return add_times(seeds, edge_label_time, _TIMES), sampler

        def store(dataset: Any) -> tuple[list[NodeSamplerInput], SamplerClass]:
            num_nodes = dataset.fetch_num_nodes()
            servers = range(dataset.cluster_info.num_storage_nodes)
            by_server = edges_by_server(
                edge_label_index, edge_label, dataset.fetch_schema(), num_nodes, servers
            )
            sampler = self._sampler(by_server[0].edge_type, num_nodes, strict)
            inputs = [edges.sampler_input() for edges in shifted(by_server, self._negatives)]
            times = times_by_server(inputs, edge_label_time)
            return add_times_by_server(inputs, times, _TIMES), sampler

        start_loader(self, dataset, options, local=local, store=store)

    def _sampler(
        self, edge_type: EdgeType, num_nodes: Mapping[NodeType, int], strict: bool
    ) -> SamplerClass:
        """Return the class and the keywords of the workers' sampler."""
        self._seed_edge_type, negatives = edge_type, self._negatives
        # Plain values, as they are sent to workers, which run without torch and PyG.
        keywords: dict[str, Any] = {"edge_type": edge_type}
        if negatives is not None:
            keywords |= {"negatives": negatives.mode.value, "amount": negatives.amount}
            keywords |= {"strict": strict, **weights_of(negatives, edge_type, num_nodes)}
        elif strict:
            raise ConfigError("strict=True is about negatives: give neg_sampling as well")
        return _SAMPLER, keywords

    def _identity(self) -> dict[str, Any]:
        pairs = self._negatives is not None and self._negatives.mode.value == BINARY
        identity = super()._identity()
        if self._strict and pairs:
            identity["draw_version"] = max(identity["draw_version"], STRICT_PAIRS_VERSION)
        return identity

    def _own_attributes(self) -> tuple[str, ...]:
        is_triplet = self._negatives is not None and self._negatives.is_triplet()
        return TRIPLET_ATTRIBUTES if is_triplet else ()

    def _make_batch(self, msg: SampleMessage) -> Data | HeteroData:
        batch = super()._make_batch(msg)
        edge_type = self._seed_edge_type if int(msg[IS_HETERO]) else None
        kind = None if self._negatives is None else self._negatives.mode.value
        add_edge_labels(batch, msg, edge_type, kind=kind)
        return batch


def edges_of_this_machine(data: DistDataset, given: Any, label: Any) -> SeedEdges:
    """Return the seed edges of all processes of this machine; None: all edges of the partition."""
    given, label = unpacked(given, label)
    edge_type, index = edge_type_of(given, data.schema)
    if isinstance(index, Mapping):
        raise ConfigError(
            "edge_label_index is by server, as for a graph store, but the dataset is local: pass a "
            "tensor or (edge_type, tensor)"
        )
    if index is None:
        index = all_edges(data, edge_type)
    return read_edges(edge_type, index, label, data.view().num_nodes)


def edges_by_server(
    given: Any, label: Any, schema: DatasetSchema, num_nodes: Mapping[NodeType, int],
    servers: range,
) -> list[SeedEdges]:  # fmt: skip
    """Return the seed edges of each storage server, empty ones included."""
    given, label = unpacked(given, label)
    edge_type, index = edge_type_of(given, schema)
    if index is None:
        raise ConfigError(
            "with a graph store, edge_label_index must be given: a [2, num_edges] tensor, "
            "or {server_rank: tensor}"
        )
    if not isinstance(index, Mapping):
        return read_edges(edge_type, index, label, num_nodes).split(len(servers))
    check_servers(index, servers)
    if not (label is None or (isinstance(label, Mapping) and label.keys() == index.keys())):
        raise ConfigError("edge_label must be by server as edge_label_index is, or None")
    nothing = torch.empty(2, 0, dtype=torch.int64)
    labels: Mapping[int, Tensor] = {} if label is None else label
    first = next(iter(labels.values()), None)
    # A server without edges still has labels of the same type and columns, but none of them: all
    # servers' labels become one tensor.
    none_left = None if first is None else first[:0]
    return [
        read_edges(edge_type, index.get(server, nothing), labels.get(server, none_left), num_nodes)
        for server in servers
    ]


def times_by_server(inputs: list[NodeSamplerInput], given: TimeInput | None) -> Any:
    """Return the times of seed edges by server; one tensor of times is split like the edges."""
    if given is None or isinstance(given, Mapping):
        return given
    sizes = [seeds.node.numel() for seeds in inputs]
    return dict(enumerate(read_times(given, sum(sizes), _TIMES).split(sizes)))


def unpacked(given: Any, label: Any) -> tuple[Any, Any]:
    """Return (seed edges, labels) of GLT's ``EdgeSamplerInput``; anything else unchanged."""
    # By its attributes: the class is GLT's, which need not be installed.
    if not (hasattr(given, "row") and hasattr(given, "col")):
        return given, label
    index = torch.stack([given.row, given.col])
    edge_type = getattr(given, "input_type", None)
    # A separate label takes precedence over that of the input.
    label = getattr(given, "label", None) if label is None else label
    return (index if edge_type is None else (edge_type, index)), label


# --- seed edges -----------------------------------------------------------------------------------


def edge_type_of(edges: Any, schema: DatasetSchema) -> tuple[EdgeType, Any]:
    """Return (edge type, seed edges without it) of ``edge_label_index``.

    Raises:
        ConfigError: The type is missing, unknown, or a label edge type.
    """
    known = [
        edge_type for edge_type in schema.edge_types or () if not is_label_edge_type(edge_type)
    ]
    # Label edges alone do not make a graph heterogeneous: batches of it are `Data`.
    plain = schema.edge_types is None or schema.is_homogeneous_with_labeled_edge_type
    if _is_edge_type(edges):
        edge_type, edges = _in_full(edges, known), None
    elif isinstance(edges, tuple) and len(edges) == 2 and _is_edge_type(edges[0]):
        edge_type, edges = _in_full(edges[0], known), edges[1]
    elif plain:
        return DEFAULT_HOMOGENEOUS_EDGE_TYPE, edges
    else:
        raise ConfigError(
            "the graph is heterogeneous: pass edge_label_index=(edge_type, index), with one of "
            f"{known}"
        )
    if tuple(edge_type) not in (known or [DEFAULT_HOMOGENEOUS_EDGE_TYPE]):
        raise ConfigError(f"edge_label_index names edge type {edge_type}, the graph has {known}")
    # A plain tuple, whatever the user's class: it becomes part of keys, and is sent to workers.
    src, relation, dst = edge_type
    return (src, relation, dst), edges


def _is_edge_type(value: Any) -> bool:
    named = isinstance(value, tuple) and len(value) in (2, 3)
    return named and all(isinstance(part, str) for part in value)


def _in_full(named: tuple[str, ...], known: list[EdgeType]) -> tuple[str, ...]:
    """Return an edge type named by its ends alone, as PyG allows if only one has these ends."""
    if len(named) == 3:
        return named
    matches = [edge_type for edge_type in known if (edge_type[0], edge_type[2]) == named]
    # PyG's own default relation, which is then refused like any other unknown one.
    return matches[0] if len(matches) == 1 else (named[0], "to", named[1])


def read_edges(
    edge_type: EdgeType, index: Any, label: Any, num_nodes: Mapping[NodeType, int]
) -> SeedEdges:
    """Return checked seed edges.

    Raises:
        ConfigError: Wrong shape, dtype, device or range; names the first offender.
    """
    known = isinstance(index, (Tensor, np.ndarray, list))
    edges = _as_tensor(index, "edge_label_index") if known else None
    if edges is None or edges.dtype != torch.int64 or edges.dim() != 2 or edges.size(0) != 2:
        what = type(index).__name__ if edges is None else f"{list(edges.shape)} {edges.dtype}"
        raise ConfigError(
            f"edge_label_index must be [2, num_edges] int64, sources in row 0, got {what}"
        )
    if edges.device.type != "cpu":
        raise ConfigError(
            f"edge_label_index must be on the CPU, where sampling is, got {edges.device}"
        )
    # Row by row: the two ends may be of types with different numbers of nodes.
    for row, end in enumerate((edge_type[0], edge_type[2])):
        wrong = (edges[row] < 0) | (edges[row] >= num_nodes[end])
        if bool(wrong.any()):
            position = int(wrong.nonzero()[0])
            source, _, target = edge_type
            text = (
                f"edge_label_index[{row}, {position}] = {int(edges[row, position])} is no node id: "
                f"ids of {end!r} are in [0, {num_nodes[end]})"
            )
            turned = torch.tensor([[num_nodes[target]], [num_nodes[source]]])
            if bool(((edges >= 0) & (edges < turned)).all()):
                text += f"; are its rows swapped? {source!r} is row 0 and {target!r} row 1"
            raise ConfigError(text)
    # Labels go with the seeds, whichever device a split of the graph left them on.
    labels = None if label is None else _as_tensor(label, "edge_label").cpu()
    if labels is not None and (labels.dim() == 0 or labels.size(0) != edges.size(1)):
        raise ConfigError(
            f"edge_label must have one row for each of the {edges.size(1)} edges of "
            f"edge_label_index, got {list(labels.shape)}"
        )
    return SeedEdges(edge_type, edges, labels)


def _as_tensor(given: Any, name: str) -> Tensor:
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{name} cannot be read as a tensor: {error}") from None


def all_edges(data: DistDataset, edge_type: EdgeType) -> Tensor:
    """Return ``[2, num_edges]`` int64: the edges of a type in this partition.

    They are in the order of their edge ids, as in PyG, if the dataset keeps these.
    """
    adjacency = data.view().adjacency[edge_type]
    edges = edges_of(adjacency, data.schema.edge_dir)
    # In memory they are grouped by node, and by the partition's share.
    return edges if adjacency.edge_ids is None else edges[:, adjacency.edge_ids.argsort()]


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
        weight = torch.as_tensor(weight, dtype=torch.float64)
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
