"""From seeds to one sample message. No processes, no channels."""

import os

# The answers to GiGL's names of `gigl.distributed.sampler`
__path__ += [os.path.join(os.path.dirname(os.path.dirname(__file__)), "compat", "answers")]
