from gigl_loader.compat.advice import advise
from gigl_loader.sampler.labeled_anchors import (
    NEGATIVE_LABEL_METADATA_KEY as NEGATIVE_LABEL_METADATA_KEY,
)
from gigl_loader.sampler.labeled_anchors import (
    POSITIVE_LABEL_METADATA_KEY as POSITIVE_LABEL_METADATA_KEY,
)
from gigl_loader.sampler.labeled_anchors import ABLPNodeSamplerInput as ABLPNodeSamplerInput

__getattr__ = advise("gigl_loader.sampler")
