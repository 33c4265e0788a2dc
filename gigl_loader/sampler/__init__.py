"""From seeds to one message: kinds, options, roots, expansion, and the samplers made of them.

Face: `options`, `plan`, `kinds`, `bounds`, the samplers; parts of `rows`, `row_cache` and `gpu`.
Must not know: processes, sockets, epochs, who owns rows.
"""

import os

# The answers to GiGL's names of `gigl.distributed.sampler`
__path__ += [os.path.join(os.path.dirname(os.path.dirname(__file__)), "compat", "answers")]
