"""Distributed mini-batch loading for graph neural networks.

Names are listed in ``__init__.pyi`` and imported when they are first used, so ``import
gigl_loader`` is cheap, and a sampling worker never loads ``torch_geometric`` or
``graphlearn_torch``.
"""

import os

from gigl_loader.runtime.lazy_names import lazy_names

# Old public paths and GiGL's, such as `gigl_loader.utils`; and the answers to names of others.
__path__ += [os.path.join(__path__[0], "compat", folder) for folder in ("paths", "answers")]

__getattr__, __dir__, __all__ = lazy_names(__name__, advice="gigl_loader.compat.advice")
