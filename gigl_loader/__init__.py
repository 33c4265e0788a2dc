"""Distributed mini-batch loading for graph neural networks.

Names are imported when they are first used, so ``import gigl_loader`` is cheap, and a sampling
worker never loads ``torch_geometric`` or ``graphlearn_torch``.
"""

from typing import TYPE_CHECKING

from gigl_loader._lazy import lazy_names

if TYPE_CHECKING:
    from gigl_loader.dataset.links import (
        LinkSplit,
        LinkSplits,
        split_links,
        split_partitions,
        split_supervision_type,
    )
    from gigl_loader.dataset.local import DistDataset
    from gigl_loader.dataset.lookup import DistFeature
    from gigl_loader.dataset.partition_graph import partition_graph
    from gigl_loader.dataset.partition_output import (
        FeaturePartitionData,
        GraphPartitionData,
        PartitionOutput,
    )
    from gigl_loader.dataset.schema import (
        DEFAULT_HOMOGENEOUS_EDGE_TYPE,
        DEFAULT_HOMOGENEOUS_NODE_TYPE,
        DatasetSchema,
        FeatureInfo,
        is_label_edge_type,
        message_passing_to_negative_label,
        message_passing_to_positive_label,
    )
    from gigl_loader.device.prefetch import DevicePrefetcher
    from gigl_loader.errors import (
        ConfigError,
        GiglLoaderError,
        JoinRefusedError,
        NativeLibraryError,
        PeerError,
        PeerLostError,
        PeerTimeoutError,
        ProtocolError,
        RemoteError,
        ResourceError,
        SamplingError,
        ServerDiedError,
        UsageError,
        WorkerDiedError,
        WrongTypeError,
    )
    from gigl_loader.inference.full import full_graph
    from gigl_loader.inference.layerwise import NodeEmbeddings, full_graph_inference
    from gigl_loader.loader.base import BaseDistLoader, replay
    from gigl_loader.loader.link import DistABLPLoader
    from gigl_loader.loader.link_neighbor import DistLinkNeighborLoader
    from gigl_loader.loader.negatives import in_batch_negative_mask, zip_with_negatives
    from gigl_loader.loader.neighbor import DistNeighborLoader, DistSubGraphLoader
    from gigl_loader.loader.profile import profile_workers
    from gigl_loader.loader.runtime import DistributedContext, DistributedRuntimeInfo
    from gigl_loader.memory.segments import SharedMemoryError
    from gigl_loader.options import (
        CustomSamplerOptions,
        FeatureStoreOptions,
        KHopNeighborSamplerOptions,
        PPRSamplerOptions,
        SamplerOptions,
    )
    from gigl_loader.remote.dataset import ABLPInputNodes, RemoteDistDataset
    from gigl_loader.remote.info import GraphStoreInfo
    from gigl_loader.scripts import on_all_ranks, shared_folder, sum_over_ranks
    from gigl_loader.tables.partition_tables import partition_tables
    from gigl_loader.tables.spec import EdgeTable, NodeTable
    from gigl_loader.workers.producer import DistSamplingProducer

__all__ = [  # noqa: RUF022 - as sorted() sorts
    "ABLPInputNodes",
    "BaseDistLoader",
    "ConfigError",
    "CustomSamplerOptions",
    "DEFAULT_HOMOGENEOUS_EDGE_TYPE",
    "DEFAULT_HOMOGENEOUS_NODE_TYPE",
    "DatasetSchema",
    "DevicePrefetcher",
    "DistABLPLoader",
    "DistDataset",
    "DistFeature",
    "DistLinkNeighborLoader",
    "DistNeighborLoader",
    "DistSamplingProducer",
    "DistSubGraphLoader",
    "DistributedContext",
    "DistributedRuntimeInfo",
    "EdgeTable",
    "FeatureInfo",
    "FeaturePartitionData",
    "FeatureStoreOptions",
    "GiglLoaderError",
    "GraphPartitionData",
    "GraphStoreInfo",
    "JoinRefusedError",
    "KHopNeighborSamplerOptions",
    "LinkSplit",
    "LinkSplits",
    "NativeLibraryError",
    "NodeEmbeddings",
    "NodeTable",
    "PPRSamplerOptions",
    "PartitionOutput",
    "PeerError",
    "PeerLostError",
    "PeerTimeoutError",
    "ProtocolError",
    "RemoteDistDataset",
    "RemoteError",
    "ResourceError",
    "SamplerOptions",
    "SamplingError",
    "ServerDiedError",
    "SharedMemoryError",
    "UsageError",
    "WorkerDiedError",
    "WrongTypeError",
    "full_graph",
    "full_graph_inference",
    "in_batch_negative_mask",
    "is_label_edge_type",
    "message_passing_to_negative_label",
    "message_passing_to_positive_label",
    "on_all_ranks",
    "partition_graph",
    "partition_tables",
    "profile_workers",
    "replay",
    "shared_folder",
    "split_links",
    "split_partitions",
    "split_supervision_type",
    "sum_over_ranks",
    "zip_with_negatives",
]

_NAMES = {
    "memory.segments": ("SharedMemoryError",),
    "dataset.links": (
        "LinkSplit",
        "LinkSplits",
        "split_links",
        "split_partitions",
        "split_supervision_type",
    ),
    "dataset.local": ("DistDataset",),
    "dataset.lookup": ("DistFeature",),
    "dataset.partition_graph": ("partition_graph",),
    "dataset.partition_output": ("FeaturePartitionData", "GraphPartitionData", "PartitionOutput"),
    "remote.dataset": ("ABLPInputNodes", "RemoteDistDataset"),
    "remote.info": ("GraphStoreInfo",),
    "dataset.schema": (
        "DEFAULT_HOMOGENEOUS_EDGE_TYPE",
        "DEFAULT_HOMOGENEOUS_NODE_TYPE",
        "DatasetSchema",
        "FeatureInfo",
        "is_label_edge_type",
        "message_passing_to_negative_label",
        "message_passing_to_positive_label",
    ),
    "device.prefetch": ("DevicePrefetcher",),
    "errors": (
        "ConfigError",
        "GiglLoaderError",
        "JoinRefusedError",
        "NativeLibraryError",
        "PeerError",
        "PeerLostError",
        "PeerTimeoutError",
        "ProtocolError",
        "RemoteError",
        "ResourceError",
        "SamplingError",
        "ServerDiedError",
        "UsageError",
        "WorkerDiedError",
        "WrongTypeError",
    ),
    "inference.full": ("full_graph",),
    "inference.layerwise": ("NodeEmbeddings", "full_graph_inference"),
    "loader.base": ("BaseDistLoader", "replay"),
    "loader.link": ("DistABLPLoader",),
    "loader.link_neighbor": ("DistLinkNeighborLoader",),
    "loader.negatives": ("in_batch_negative_mask", "zip_with_negatives"),
    "loader.neighbor": ("DistNeighborLoader", "DistSubGraphLoader"),
    "loader.profile": ("profile_workers",),
    "loader.runtime": ("DistributedContext", "DistributedRuntimeInfo"),
    "options": (
        "CustomSamplerOptions",
        "FeatureStoreOptions",
        "KHopNeighborSamplerOptions",
        "PPRSamplerOptions",
        "SamplerOptions",
    ),
    "workers.producer": ("DistSamplingProducer",),
    "scripts": ("on_all_ranks", "shared_folder", "sum_over_ranks"),
    "tables.partition_tables": ("partition_tables",),
    "tables.spec": ("EdgeTable", "NodeTable"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker that saw it would let every name pass
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
