"""Access to graphlearn-torch (GLT): no other module imports it or uses its private names.

GLT is optional. Its wheels are for Python up to 3.11 on x86-64; if it is not installed, the names
in `EXPORTS` are classes of our own with the same fields and meaning, from
`gigl_loader.runtime.glt_classes.classes`.

GLT 0.2.4 cannot be imported unchanged on most machines. This module imports it on any torch from
2.4 on, with or without CUDA, and leaves the process unchanged:

- GLT converts COO to CSR through ``torch_sparse``, which has no wheels for new torch releases and
  takes long to compile. If it is not installed, a stub with that one conversion replaces it during
  the import. GLT's ``utils.topo`` keeps its reference to it afterwards; ``torch_geometric``,
  imported before, never sees it.
- Default arguments of GLT read ``torch.device(0)`` while its modules run, an error on torch >= 2.5
  without a GPU. Meanwhile ``torch.device`` reads 0 as ``cuda:0``, without a device check.
- The native library ``py_graphlearn_torch`` only loads on CUDA builds of torch 2.4 to 2.6.
  Elsewhere a stub lets GLT's Python layer work: native functions raise `NativeLibraryError` when
  called, except for the graph handle that ``init_graph(graph_mode="CPU")`` builds and never uses.
- GLT sets ``TORCH_CPP_LOG_LEVEL`` in the environment. It is restored.

Names come through `EXPORTS`: ``from gigl_loader.runtime.glt_classes import DistLoader``. A test
checks that table, and one contract test compares the two sets of classes.
"""

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch
from torch import Tensor

from gigl_loader.errors import ConfigError, NativeLibraryError, UsageError
from gigl_loader.runtime.glt_classes.topology import row_major_order, row_offsets

_GLT = "graphlearn_torch"
_NATIVE = f"{_GLT}.py_graphlearn_torch"
_SUPPORTED = "graphlearn-torch==0.2.4"

_NAMES = {
    "channel.base": ("ChannelBase",),
    "data.dataset": ("Dataset",),
    "data.feature": ("Feature",),
    "data.graph": ("Graph", "Topology"),
    "distributed.dist_context": (
        "DistContext",
        "DistRole",
        "_set_client_context",
        "_set_server_context",
        "get_context",
        "init_worker_group",
    ),
    "distributed.dist_dataset": ("DistDataset",),
    "distributed.dist_loader": ("DistLoader",),
    "distributed.dist_options": (
        "CollocatedDistSamplingWorkerOptions",
        "MpDistSamplingWorkerOptions",
        "RemoteDistSamplingWorkerOptions",
    ),
    "partition.partition_book": ("RangePartitionBook",),
    "sampler.base": ("NodeSamplerInput", "SamplingConfig", "SamplingType"),
}

EXPORTS = {name: module for module, names in _NAMES.items() for name in names}
"""Every name of GLT that gigl_loader uses, and its module below ``graphlearn_torch``."""

available: bool
"""Whether the names are GLT's own; False: they are from `glt_classes.classes`."""

native_available: bool
"""Whether GLT's native library is loaded. gigl_loader's own code does not need it."""


def __getattr__(name: str) -> Any:
    if name not in EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; is it in EXPORTS?")
    # never a mixture: pickles and isinstance() of one set do not work with the other
    own = "gigl_loader.runtime.glt_classes.classes"
    value = _from_glt(name) if available else getattr(importlib.import_module(own), name)
    # stored, so that __getattr__ is not called again
    globals()[name] = value
    return value


def _from_glt(name: str) -> Any:
    module = EXPORTS[name]
    try:
        return getattr(importlib.import_module(f"{_GLT}.{module}"), name)
    # another version of GLT, with another module layout
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"graphlearn-torch {importlib.metadata.version('graphlearn-torch')} has no "
            f"{_GLT}.{module}.{name}, which gigl_loader uses; run: pip install '{_SUPPORTED}'"
        ) from error


# --- torch_sparse: one conversion -----------------------------------------------------------------


class _SparseTensor:
    """COO to CSR. Entries ascend by (row, column); equal ones keep their order.

    Args:
        row: ``[num_entries]`` int64.
        col: ``[num_entries]`` int64.
        value: ``[num_entries]``, any dtype, or None.
        sparse_sizes: Number of rows and of columns.

    Raises:
        ConfigError: An index is outside of ``sparse_sizes``.
    """

    def __init__(
        self, *, row: Tensor, col: Tensor, value: Tensor | None, sparse_sizes: tuple[int, int]
    ) -> None:
        num_rows, num_cols = sparse_sizes
        for name, index, size in (("row", row, num_rows), ("column", col, num_cols)):
            if index.numel() and (int(index.min()) < 0 or int(index.max()) >= size):
                raise ConfigError(
                    f"edge {name} indices must be in [0, {size}), "
                    f"got {int(index.min())} to {int(index.max())}"
                )
        # Sorted here, although torch.sparse_csr_tensor could convert: it adds up repeated edges,
        # and GLT keeps each.
        order = row_major_order(row, col, sparse_sizes)
        rowptr, col = row_offsets(row, num_rows), col[order]
        value = None if value is None else value[order]
        # the attributes that GLT reads of `SparseTensor.storage`
        self.storage = SimpleNamespace(rowptr=lambda: rowptr, col=lambda: col, value=lambda: value)


def _find_torch_sparse() -> ModuleType:
    """Return the real ``torch_sparse`` if it loads, else the stub."""
    try:
        return importlib.import_module("torch_sparse")
    # a library that lacks a symbol of this torch is an OSError, a refused one a RuntimeError
    except (ImportError, OSError, RuntimeError):  # absent, or built for another torch
        stand_in = ModuleType(
            "torch_sparse", "COO to CSR only: see gigl_loader.runtime.glt_classes."
        )
        vars(stand_in)["SparseTensor"] = _SparseTensor
        return stand_in


# --- torch.device(0) without a GPU ----------------------------------------------------------------

_torch_device = torch.device


class _DeviceMeta(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        # "cuda" by name checks nothing; a bare number checks for an accelerator
        return _torch_device("cuda", 0) if args == (0,) else _torch_device(*args, **kwargs)

    # isinstance() of a real device must still hold while GLT is imported
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _torch_device)


class _Device(metaclass=_DeviceMeta):
    """``torch.device`` during the import: 0 is ``cuda:0``, on any machine."""


# --- the native library ---------------------------------------------------------------------------


def _refuse(symbol: str, reason: str) -> NoReturn:
    raise NativeLibraryError(
        f"{_NATIVE}.{symbol} was used, but graphlearn-torch's native library does not load under "
        f"torch {torch.__version__}: {reason}. gigl_loader's own loaders do not need it: use those "
        "in place of graphlearn_torch's, or install a CUDA build of torch 2.4, 2.5 or 2.6"
    )


class _MissingSymbol(type):
    """The type of every native name: usable as a base class or annotation, an error in a call."""

    _reason: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        _refuse(cls.__name__, cls._reason)

    def __getattr__(cls, name: str) -> Any:
        # without this, hasattr(cls, "__x__") would raise our error instead of AttributeError
        if name.startswith("__"):  # inspect, copy and typing try these on any class
            raise AttributeError(name)
        _refuse(f"{cls.__name__}.{name}", cls._reason)


class _CsrGraph:
    """The functions of a native CPU graph that GLT's Python layer calls, from the tensors."""

    _reason = ""

    def init_cpu_from_csr(
        self, indptr: Tensor, indices: Tensor, edge_ids: Tensor, edge_weights: Tensor
    ) -> None:
        self._indptr, self._indices = indptr, indices

    def init_cuda_from_csr(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("Graph.init_cuda_from_csr", self._reason)

    def get_row_count(self) -> int:
        return self._indptr.numel() - 1

    def get_col_count(self) -> int:
        return int(torch.unique(self._indices).numel())  # columns in use, like the native one

    def get_edge_count(self) -> int:
        return self._indices.numel()


class _NativeStandIn(ModuleType):
    """The replacement of ``py_graphlearn_torch`` if that does not load."""

    def __init__(self, reason: str) -> None:
        super().__init__(_NATIVE, "A stub: see gigl_loader.runtime.glt_classes.")
        self._gigl_loader_reason = reason
        # never raised; GLT names it in `except` clauses
        self.QueueTimeoutError = type("QueueTimeoutError", (Exception,), {"__module__": _NATIVE})
        self.Graph = type("Graph", (_CsrGraph,), {"_reason": reason, "__module__": _NATIVE})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        body = {"_reason": self._gigl_loader_reason, "__module__": _NATIVE}
        symbol = _MissingSymbol(name, (), body)
        # one class per name, so that two uses of it give the same class
        setattr(self, name, symbol)
        return symbol


def _load_native(search_path: list[str]) -> ModuleType:
    """Return GLT's native library, or the stub with the reason why it did not load."""
    # by the path, not by importing graphlearn_torch, whose __init__ already needs the library
    spec = importlib.machinery.PathFinder.find_spec(_NATIVE, search_path)
    if spec is None or spec.loader is None:
        return _NativeStandIn(
            f"there is none for Python {sys.version_info[0]}.{sys.version_info[1]}"
        )
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        return _NativeStandIn(str(error).replace("\n", " "))
    return module


# --- the import -----------------------------------------------------------------------------------


@contextmanager
def _restoring(mapping: MutableMapping[str, Any], key: str) -> Iterator[None]:
    """Restore ``mapping[key]`` to its present value, or remove it again."""
    # None may be the value that was there
    was_there, before = key in mapping, mapping.get(key)
    try:
        yield
    finally:
        if was_there:
            mapping[key] = before
        else:
            mapping.pop(key, None)


def _find_glt() -> list[str] | None:
    """Return the location of ``graphlearn_torch``; None: not installed."""
    spec = importlib.util.find_spec(_GLT)
    return list(spec.submodule_search_locations or ()) if spec else None


def _import_glt(search_path: list[str]) -> None:
    """Import ``graphlearn_torch`` with the stubs that this machine needs."""
    # GLT's own imports come first, so that no other module meets the stubs.
    importlib.import_module("torch.distributed.rpc")
    importlib.import_module("torch_geometric.data")
    torch_sparse = _find_torch_sparse()
    # Loaded once in a process: an extension module registers its types when it is executed, and a
    # second time is an error.
    native = sys.modules.get(_NATIVE) or _load_native(search_path)
    sys.modules[_NATIVE] = native
    try:
        with (
            _restoring(os.environ, "TORCH_CPP_LOG_LEVEL"),
            _restoring(sys.modules, "torch_sparse"),
            _restoring(vars(torch), "device"),
            warnings.catch_warnings(),
        ):
            # by a decorator of GLT's, from torch 2.14 on: nobody who imports it can change that
            for category in (FutureWarning, DeprecationWarning):
                warnings.filterwarnings("ignore", r"`torch\.jit\.", category)
            sys.modules["torch_sparse"] = torch_sparse
            vars(torch)["device"] = _Device
            package = importlib.import_module(_GLT)
    except BaseException:
        # or the user's next `import graphlearn_torch` meets the stub
        sys.modules.pop(_NATIVE, None)
        raise
    # The import system binds a submodule to its package when it loads it; this one was inserted by
    # hand.
    vars(package)["py_graphlearn_torch"] = native


def _try_glt() -> bool:
    """Import GLT if it is installed. A failed import gives a warning, not an error."""
    if sys.modules.get(_GLT) is not None:  # the caller imported it, so it works here
        return True
    search_path = _find_glt()
    if not search_path:
        return False
    try:
        _import_glt(search_path)
    # any error of GLT's own modules at import time: gigl_loader does not depend on it
    except Exception as error:
        warnings.warn(
            f"graphlearn-torch is installed and cannot be imported ({error}); gigl_loader uses "
            f"its own classes. GLT's own loaders and partitioners need: pip install "
            f"'{_SUPPORTED}'",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


available = _try_glt()
native_reason: str | None
"""The reason why the native library is not loaded; None if it is."""
if available:
    native_reason = getattr(sys.modules[_NATIVE], "_gigl_loader_reason", None)
else:
    native_reason = "graphlearn-torch is not installed"
native_available = native_reason is None
