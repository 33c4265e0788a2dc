"""Loaders as GiGL writes them, on `BaseDistLoader`: the same calls, in the same order, our text.

They stand in for GiGL's own files where these are not at hand; see `test_gigls_loaders`.
"""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from gigl_loader import DEFAULT_HOMOGENEOUS_NODE_TYPE, BaseDistLoader, RemoteDistDataset
from gigl_loader.compat.paths.sampler_options import resolve_sampler_options
from gigl_loader.compat.paths.types.graph import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    reverse_edge_type,
    select_label_edge_types,
)
from gigl_loader.compat.paths.utils import get_free_ports_from_master_node
from gigl_loader.compat.paths.utils.ablp import (
    label_edge_index_to_dict,
    remap_labels_to_local_edge_indices,
)
from gigl_loader.compat.paths.utils.neighborloader import (
    DatasetSchema,
    SamplingClusterSetup,
    extract_edge_type_metadata,
    extract_metadata,
    labeled_to_homogeneous,
    materialize_quantized_edge_features,
    materialize_quantized_node_features,
    set_missing_features,
    shard_nodes_by_process,
    strip_label_edges,
)
from gigl_loader.compat.paths.utils.sampling_errors import raise_if_sampling_error
from gigl_loader.sampler import (
    NEGATIVE_LABEL_METADATA_KEY,
    POSITIVE_LABEL_METADATA_KEY,
    ABLPNodeSamplerInput,
)
from tests.support.glt import NodeSamplerInput


def labels_of_anchors(
    dataset: Any,
    node_ids: Tensor,
    positive_label_edge_type: Any,
    negative_label_edge_type: Any,
    max_labels_per_anchor_node: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return ``[num_anchors, most]`` positives and negatives, filled up with -1."""

    def of(label_type: Any) -> Tensor:
        topology = dataset.graph[label_type].topo
        rows = [
            topology.indices[topology.indptr[node] : topology.indptr[node + 1]]
            for node in node_ids.tolist()
        ]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)

    negatives = None if negative_label_edge_type is None else of(negative_label_edge_type)
    return of(positive_label_edge_type), negatives


class DistNeighborLoader(BaseDistLoader):
    """Neighbours of nodes; see the module."""

    def __init__(
        self,
        dataset: Any,
        num_neighbors: Any,
        input_nodes: Any,
        *,
        pin_memory_device: torch.device,
        batch_size: int,
        num_workers: int = 1,
        worker_concurrency: int = 4,
        channel_size: str = "64MB",
        process_start_gap_seconds: float = 0.0,
        sampler_options: Any = None,
    ) -> None:
        is_remote = isinstance(dataset, RemoteDistDataset)
        self._setup = (
            SamplingClusterSetup.GRAPH_STORE if is_remote else SamplingClusterSetup.COLOCATED
        )
        sampler_options = resolve_sampler_options(num_neighbors, sampler_options)
        runtime = BaseDistLoader.resolve_runtime(None, None, None)
        self.to_device = pin_memory_device
        workers: dict[str, Any] = {
            "num_workers": num_workers,
            "worker_concurrency": worker_concurrency,
            "channel_size": channel_size,
        }
        if is_remote:
            key = f"{type(self).__name__}_compute_rank_{runtime.rank}"
            sampler_input, schema = self._input_of_servers(dataset, input_nodes)
            options: Any = BaseDistLoader.create_graph_store_worker_options(
                dataset=dataset, worker_key=key, prefetch_size=4, **workers
            )
        else:
            sampler_input, schema = self._input_here(dataset, input_nodes, runtime)
            BaseDistLoader.initialize_colocated_sampling_worker(
                local_rank=runtime.local_rank,
                local_world_size=runtime.local_world_size,
                node_rank=runtime.node_rank,
                node_world_size=runtime.node_world_size,
                master_ip_address=runtime.master_ip_address,
                device=pin_memory_device,
                num_cpu_threads=None,
            )
            ports = get_free_ports_from_master_node(num_ports=runtime.local_world_size)
            options = BaseDistLoader.create_colocated_worker_options(
                dataset_num_partitions=dataset.num_partitions,
                master_ip_address=runtime.master_ip_address,
                master_port=ports[runtime.local_rank],
                pin_memory=pin_memory_device.type == "cuda",
                **workers,
            )
        config = BaseDistLoader.create_sampling_config(
            num_neighbors=num_neighbors,
            dataset_schema=schema,
            batch_size=batch_size,
            shuffle=False,
            drop_last=False,
            with_weight=False,
        )
        producer = None
        if not is_remote:
            producer = BaseDistLoader.create_mp_producer(
                dataset=dataset,
                sampler_input=sampler_input,
                sampling_config=config,
                worker_options=options,
                sampler_options=sampler_options,
                channel_name="channel",
            )
        super().__init__(
            dataset=dataset,
            sampler_input=sampler_input,
            dataset_schema=schema,
            worker_options=options,
            sampling_config=config,
            device=pin_memory_device,
            runtime=runtime,
            producer=producer,
            sampler_options=sampler_options,
            backend_key=None if producer else "backend",
            process_start_gap_seconds=process_start_gap_seconds,
            non_blocking_transfers=True,
        )

    def _input_here(self, dataset: Any, input_nodes: Any, runtime: Any) -> Any:
        is_typed = isinstance(dataset.node_ids, dict)
        labeled = is_typed and list(dataset.node_ids) == [DEFAULT_HOMOGENEOUS_NODE_TYPE]
        node_type = DEFAULT_HOMOGENEOUS_NODE_TYPE if labeled else None
        if isinstance(input_nodes, tuple):
            node_type, input_nodes = input_nodes
        seeds = shard_nodes_by_process(input_nodes, runtime.local_rank, runtime.local_world_size)
        schema = DatasetSchema(
            is_homogeneous_with_labeled_edge_type=labeled,
            edge_types=list(dataset.graph) if isinstance(dataset.graph, dict) else None,
            node_feature_info=dataset.node_feature_info,
            edge_feature_info=dataset.edge_feature_info,
            node_quantization_metadata=dataset.node_quantization_metadata,
            edge_quantization_metadata=dataset.edge_quantization_metadata,
            edge_dir=dataset.edge_dir,
        )
        return self._of_seeds(dataset, seeds, node_type), schema

    def _of_seeds(self, dataset: Any, seeds: Tensor, node_type: str | None) -> Any:
        return NodeSamplerInput(seeds, node_type)

    def _input_of_servers(self, dataset: Any, input_nodes: Any) -> Any:
        edge_types = dataset.fetch_edge_types()
        labeled = edge_types is not None and DEFAULT_HOMOGENEOUS_EDGE_TYPE in edge_types
        node_type = DEFAULT_HOMOGENEOUS_NODE_TYPE if labeled else None
        if isinstance(input_nodes, tuple):
            node_type, input_nodes = input_nodes
        schema = DatasetSchema(
            is_homogeneous_with_labeled_edge_type=labeled,
            edge_types=edge_types,
            node_feature_info=dataset.fetch_node_feature_info(),
            edge_feature_info=dataset.fetch_edge_feature_info(),
            node_quantization_metadata=dataset.fetch_node_quantization_metadata(),
            edge_quantization_metadata=dataset.fetch_edge_quantization_metadata(),
            edge_dir=dataset.fetch_edge_dir(),
        )
        nothing = torch.empty(0, dtype=torch.int64)
        by_server = [
            NodeSamplerInput(input_nodes.get(server, nothing), node_type)
            for server in range(dataset.cluster_info.num_storage_nodes)
        ]
        return by_server, schema

    def _finish(self, data: Any, metadata: dict[str, Tensor]) -> Any:
        return data, metadata

    def _collate_fn(self, msg: Any) -> Any:
        raise_if_sampling_error(msg)
        metadata, stripped = extract_metadata(msg, self.to_device)
        data: Any = super()._collate_fn(stripped)
        data = set_missing_features(
            data=data,
            node_feature_info=self._node_feature_info,
            edge_feature_info=self._edge_feature_info,
            device=self.to_device,
        )
        if isinstance(data, HeteroData):
            data = strip_label_edges(data)
        if self._is_homogeneous_with_labeled_edge_type:
            data = labeled_to_homogeneous(DEFAULT_HOMOGENEOUS_EDGE_TYPE, data)
        data, metadata = self._finish(data, metadata)
        data, metadata = self._apply_ppr_outputs(data, metadata)
        data, metadata = materialize_quantized_node_features(
            data=data,
            metadata=metadata,
            node_quantization_metadata=self._node_quantization_metadata,
        )
        data, metadata = materialize_quantized_edge_features(
            data=data,
            metadata=metadata,
            edge_quantization_metadata=self._edge_quantization_metadata,
            edge_dir=self.edge_dir,
        )
        for name, value in metadata.items():
            data[name] = value
        return data


class DistABLPLoader(DistNeighborLoader):
    """Anchors with labels; see the module."""

    def __init__(
        self,
        dataset: Any,
        num_neighbors: Any,
        input_nodes: Any,
        supervision_edge_type: Any = None,
        *,
        use_label_edge_index_output: bool = False,
        **keywords: Any,
    ) -> None:
        edge_type = supervision_edge_type or DEFAULT_HOMOGENEOUS_EDGE_TYPE
        self._supervised = reverse_edge_type(edge_type) if dataset.edge_dir == "in" else edge_type
        self._as_edge_index = use_label_edge_index_output
        super().__init__(dataset, num_neighbors, input_nodes, **keywords)

    def _of_seeds(self, dataset: Any, seeds: Tensor, node_type: str | None) -> Any:
        positive, negative = select_label_edge_types(self._supervised, dataset.graph.keys())
        positives, negatives = labels_of_anchors(dataset, seeds, positive, negative)
        return ABLPNodeSamplerInput(
            node=seeds,
            input_type=node_type,
            positive_label_by_edge_types={positive: positives},
            negative_label_by_edge_types=(
                {} if negatives is None or negative is None else {negative: negatives}
            ),
        )

    def _finish(self, data: Any, metadata: dict[str, Tensor]) -> Any:
        prefixes = [POSITIVE_LABEL_METADATA_KEY, NEGATIVE_LABEL_METADATA_KEY]
        matched, metadata = extract_edge_type_metadata(metadata=metadata, prefixes=prefixes)
        if self.edge_dir == "in":
            matched = {
                prefix: {reverse_edge_type(name): labels for name, labels in found.items()}
                for prefix, found in matched.items()
            }
        types = {name[2] for found in matched.values() for name in found}
        is_typed = isinstance(data, HeteroData)
        links = remap_labels_to_local_edge_indices(
            {name: data[name].node if is_typed else data.node for name in types},
            *(matched[prefix] for prefix in prefixes),
        )
        for name, by_type in zip(("y_positive", "y_negative"), links, strict=True):
            for edge_type, found in by_type.items():
                anchors = int((data[edge_type[0]] if is_typed else data).batch_size)
                data[name] = (
                    found if self._as_edge_index else label_edge_index_to_dict(found, anchors)
                )
        return data, metadata
