"""`DistABLPLoader`: anchors, their positives and negatives, the neighbourhoods of all of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader._glt import Dataset, NodeSamplerInput
from gigl_loader.collate.labels import add_labels
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.schema import DatasetSchema, EdgeType
from gigl_loader.errors import ConfigError
from gigl_loader.loader.args import LoaderOptions
from gigl_loader.loader.assemble import start_loader
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.loader.config import NumNeighbors, SamplerClass
from gigl_loader.loader.inputs import (
    NodeInput,
    TimeInput,
    add_times,
    add_times_by_server,
    check_time_given,
)
from gigl_loader.loader.keywords import LoaderKeywords, with_keywords
from gigl_loader.loader.link_input import (
    SupervisionEdgeType,
    check_anchor_type,
    excluded_types,
    link_inputs,
    supervision_types,
)
from gigl_loader.loader.neighbor import DistNeighborLoader, local_input
from gigl_loader.loader.runtime import DistributedContext
from gigl_loader.message import SampleMessage
from gigl_loader.options import SamplerOptions
from gigl_loader.remote.dataset import ABLPInputNodes, RemoteDistDataset

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
    - ``y_negative``: the same of given negatives, where there are any.

    Both are a dict of these by edge type where several supervision edge types were given.

    Args:
        dataset: Colocated: a ``DistDataset`` with label edges. Graph store: a
            ``RemoteDistDataset``.
        num_neighbors: As `DistNeighborLoader` takes it; label edge types are never named.
        input_nodes: Anchors. Colocated: as `DistNeighborLoader` takes them. Graph store:
            ``{server_rank: ABLPInputNodes}``, from ``RemoteDistDataset.fetch_ablp_input``.
        supervision_edge_type: Colocated: what is predicted, ``(anchor type, relation, label
            type)``, or a list of these. None: the default edge type of a labeled-homogeneous
            dataset. Graph store: None, for the input says it.
        batch_size: Anchors per batch.
        sampler_options: Another sampler, one with ``AnchorRoots``, or again the fanout.
        use_label_edge_index_output: Labels as one tensor instead of a dict by anchor.
        exclude_supervision: Leave edges of a batch out that are a copy of one of its positives, in
            either direction. True: over all message-passing edge types that connect the two node
            types; a list: over these types only.
        input_time: The time of each anchor, which its labels have too; see `DistNeighborLoader`.
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
        pin_memory_device: torch.device | None = None,
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
            found = local_input(data, input_nodes)
            check_anchor_type(self._supervision, found.input_type)
            sampler = link_sampler(
                data.schema, self._supervision, exclude_supervision,
                max_labels=data.max_labels_per_anchor_node,
            )  # fmt: skip
            return add_times(found, input_time), sampler

        def store(dataset: Any) -> tuple[list[NodeSamplerInput], SamplerClass]:
            if supervision_edge_type is not None:
                raise ConfigError(
                    f"supervision_edge_type={supervision_edge_type} belongs to colocated mode: "
                    "with a graph store, give it to fetch_ablp_input, whose result says what is "
                    "predicted"
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
    """Return the sampler class that workers are to run, and its keywords."""
    keywords = {
        "supervision": tuple(supervision),
        "exclude": excluded_types(schema.edge_types or (), supervision, exclude),
        # A server's workers get the labels with the anchors; colocated ones look them up in label
        # edges.
        "labels_in_input": labels_in_input,
        "max_labels": max_labels,
    }
    return _SAMPLER, keywords
