"""From seeds to one message: kinds, options, roots, expansion, and the samplers made of them.

Face: `options`, `plan`, `kinds`, `bounds`, the samplers; parts of `rows`, `row_cache` and `gpu`.
Must not know: processes, sockets, epochs, who owns rows.
"""

import os

from gigl_loader.runtime.lazy_names import lazy_names

# The answers to GiGL's names of `gigl.distributed.sampler`; those that exist are in the stub.
__path__ += [os.path.join(os.path.dirname(os.path.dirname(__file__)), "compat", "answers")]

__getattr__, __dir__, __all__ = lazy_names(__name__, advice="gigl_loader.compat.advice")
