"""Old public paths and GiGL's module paths: `gigl_loader` has this folder in its ``__path__``.

Each is a plain file. One without a docstring is GiGL's module of the same path below
``gigl.distributed``: names of ours that it has, and advice on the others. This package is what
`compat.install` puts in the place of another: it has these modules and the names of `gigl_loader`.
"""

from functools import partial

import gigl_loader
from gigl_loader.compat import answers

__all__ = list(vars(gigl_loader)["__all__"])  # which its stub does not show
__path__ = [*__path__, *answers.__path__]
__getattr__ = partial(getattr, gigl_loader)
__dir__ = partial(dir, gigl_loader)
