"""Distributed mini-batch loading for graph neural networks.

Names are listed in ``__init__.pyi`` and imported when they are first used, so ``import
gigl_loader`` is cheap, and a sampling worker never loads ``torch_geometric`` or
``graphlearn_torch``.
"""

from gigl_loader.runtime.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
