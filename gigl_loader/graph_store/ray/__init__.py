"""The storage cluster on Ray: Ray places and restarts servers; batches do not go through it.

Face: its public names. Must not know: batches.

Names are listed in ``__init__.pyi`` and imported when they are first used, and nothing of this
package needs Ray to be imported.
"""

from gigl_loader.runtime.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
