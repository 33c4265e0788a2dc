"""The other deployment: a storage cluster samples, compute processes train.

Face: its public names, listed in ``__init__.pyi`` and imported when they are first used;
`client.remote_source` for loaders; `status`.
Must not know: loaders. `serve`, `status` and `stop_job` are its programs.
"""

import os

from gigl_loader.runtime.lazy_names import lazy_names

_COMPAT = os.path.join(os.path.dirname(os.path.dirname(__file__)), "compat")
# GiGL's module paths, such as `gigl_loader.graph_store.compute`, and the answers to other names
__path__ += [os.path.join(_COMPAT, "paths", "graph_store"), os.path.join(_COMPAT, "answers")]

__getattr__, __dir__, __all__ = lazy_names(__name__, advice="gigl_loader.compat.advice")
