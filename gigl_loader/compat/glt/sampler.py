"""graphlearn-torch's ``sampler``: inputs and configurations of loaders."""

from torch_geometric.sampler import NegativeSampling as NegativeSampling

from gigl_loader.runtime.glt_classes import NodeSamplerInput as NodeSamplerInput
from gigl_loader.runtime.glt_classes import SamplingConfig as SamplingConfig
from gigl_loader.runtime.glt_classes import SamplingType as SamplingType
from gigl_loader.sources.held_seeds import RemoteNodePathSamplerInput as RemoteNodePathSamplerInput
from gigl_loader.sources.held_seeds import (
    RemoteNodeSplitSamplerInput as RemoteNodeSplitSamplerInput,
)
from gigl_loader.sources.held_seeds import RemoteSamplerInput as RemoteSamplerInput
