"""graphlearn-torch's ``sampler``: inputs and configurations of loaders."""

from torch_geometric.sampler import NegativeSampling

from gigl_loader.runtime.glt_classes import NodeSamplerInput, SamplingConfig, SamplingType
from gigl_loader.sources.held_seeds import (
    RemoteNodePathSamplerInput,
    RemoteNodeSplitSamplerInput,
    RemoteSamplerInput,
)

__all__ = [
    "NegativeSampling",
    "NodeSamplerInput",
    "RemoteNodePathSamplerInput",
    "RemoteNodeSplitSamplerInput",
    "RemoteSamplerInput",
    "SamplingConfig",
    "SamplingType",
]
