"""GLT's classes, as tests use them: the one place that knows where the package has them.

Whether they are GLT's own or ours is the package's choice; tests of a feature hold for both.
"""

from gigl_loader._glt import (
    NodeSamplerInput,
    RangePartitionBook,
    RemoteDistSamplingWorkerOptions,
    SamplingConfig,
)

__all__ = [
    "NodeSamplerInput",
    "RangePartitionBook",
    "RemoteDistSamplingWorkerOptions",
    "SamplingConfig",
]
