"""Old public path of `compat.glt.sampler`."""

from gigl_loader.compat.glt.sampler import (
    NegativeSampling,
    NodeSamplerInput,
    RemoteNodePathSamplerInput,
    RemoteNodeSplitSamplerInput,
    RemoteSamplerInput,
    SamplingConfig,
    SamplingType,
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
