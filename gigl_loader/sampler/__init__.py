"""From seeds to one message: kinds, options, roots, expansion, and the samplers made of them.

Face: `options`, `plan`, `kinds`, `bounds`, the samplers; parts of `rows`, `row_cache` and `gpu`.
Must not know: processes, sockets, epochs, who owns rows.
"""

import importlib
import os
from typing import Any

# The answers to GiGL's names of `gigl.distributed.sampler`
__path__ += [os.path.join(os.path.dirname(os.path.dirname(__file__)), "compat", "answers")]


_OF_GIGL = "ABLPNodeSamplerInput", "POSITIVE_LABEL_METADATA_KEY", "NEGATIVE_LABEL_METADATA_KEY"


def __getattr__(name: str) -> Any:
    if name in _OF_GIGL:  # names of that module that exist here
        return getattr(importlib.import_module("gigl_loader.sampler.labeled_anchors"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
