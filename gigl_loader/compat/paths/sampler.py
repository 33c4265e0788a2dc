"""GiGL's ``gigl.distributed.sampler``; `gigl_loader.sampler` answers with these names, too."""

from gigl_loader.compat.advice import advise
from gigl_loader.sampler.labeled_anchors import (
    NEGATIVE_LABEL_METADATA_KEY,
    POSITIVE_LABEL_METADATA_KEY,
    ABLPNodeSamplerInput,
)

__all__ = ["NEGATIVE_LABEL_METADATA_KEY", "POSITIVE_LABEL_METADATA_KEY", "ABLPNodeSamplerInput"]

__getattr__ = advise("gigl_loader.sampler")
