"""GLT's classes, as tests use them: the one place that knows where the package has them.

Whether they are GLT's own or ours is the package's choice; tests of a feature hold for both.
"""

from gigl_loader.runtime.glt_classes import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    Graph,
    NodeSamplerInput,
    RangePartitionBook,
    RemoteDistSamplingWorkerOptions,
    SamplingConfig,
    Topology,
    available,
    get_context,
    init_worker_group,
    native_available,
)

__all__ = [
    "CollocatedDistSamplingWorkerOptions",
    "DistDataset",
    "Graph",
    "NodeSamplerInput",
    "RangePartitionBook",
    "RemoteDistSamplingWorkerOptions",
    "SamplingConfig",
    "Topology",
    "available",
    "get_context",
    "init_worker_group",
    "native_available",
]
