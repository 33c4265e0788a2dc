"""The other deployment: a storage cluster samples, compute processes train.

Names are listed in ``__init__.pyi`` and imported when they are first used.
"""

from gigl_loader.runtime.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
