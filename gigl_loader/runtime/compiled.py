"""How kernels are compiled, and what those of several folders share.

Source:
    The mixing function is the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, event, types
from numba.extending import intrinsic

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

# The two multipliers of SplitMix64.
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

_OF_ALL = "the sampling kernels"
_PURPOSES = {
    "sampling_kernels": _OF_ALL,
    "compiled": _OF_ALL,  # what all kernels share
    "packing_kernels": "kernels that pack ids for other machines",
    "ppr_kernels": "kernels of personalised PageRank",
    "token_kernels": "kernels of tokens",
    "tree_kernels": "kernels of disjoint and temporal sampling",
    "weighted_kernels": "kernels of draws by weight and of LABOR",
    "kernels": "kernels of the row cache",
    "edge_kernels": "kernels that group edges",
    "id_index": "kernels that look up the ids of tables",
    "degree_order": "kernels that order nodes by degree",
    "methods": "kernels that partition tables",
}
"""Purpose of a module's kernels, by its name; for the log."""


class _SaysThatItCompiles(event.Listener):
    """Reports that kernels are compiled, once per process for each purpose: it takes time.

    A loader compiles what no other on this machine has; another kind of loader may need more.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()

    def on_start(self, event: event.Event) -> None:
        """Note that Numba compiles: it does not if its cache on disk has the kernel."""
        kernel = event.data["dispatcher"]
        package, _, module = kernel.py_func.__module__.rpartition(".")
        purpose = _PURPOSES.get(module, module)
        if not package.startswith("gigl_loader") or purpose in self._said:
            return
        self._said.add(purpose)
        # a warning, as these show without any logging set-up
        logger.warning(
            "compiling %s: a few seconds of one core; kept for later loaders in %s "
            "(NUMBA_CACHE_DIR says where)",
            purpose,
            kernel.stats.cache_path or "memory",
        )

    def on_end(self, event: event.Event) -> None:
        """Do nothing: the next output shows that it is over."""


event.register("numba:compile", _SaysThatItCompiles())


def jit(function: F, **options: Any) -> F:
    """Compile a kernel when it is first called; Numba keeps it in its cache on disk, if any."""
    try:
        return compile_kernel(function, cache=True, **options)
    except RuntimeError:  # neither the package nor the home directory can be written to
        logger.warning("no place for Numba's cache: compiling anew; set NUMBA_CACHE_DIR")
        return compile_kernel(function, cache=False, **options)


def compile_kernel(function: F, *, cache: bool, **options: Any) -> F:
    """Compile a kernel like all of ours; ``options`` are further ones of ``numba.njit``."""
    # Without the interpreter's lock, so that sampling threads run side by side. Without bounds
    # checks: the caller checks foreign data (`reader._rows_of`, `reader._check_drawn`).
    made: Callable[[F], F] = numba.njit(nogil=True, cache=cache, boundscheck=False, **options)
    return made(function)


@jit
def mix(value: Any) -> Any:
    """Return a well-mixed uint64 of a uint64."""
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))


@intrinsic
def at_address(context: Any, address: Any) -> Any:
    """Return an int64 address as a pointer."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), emit


@intrinsic
def prefetch(context: Any, pointer: Any) -> Any:
    """Prefetch the cache line at ``pointer``, without waiting for it."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        number = ir.IntType(32)
        returns = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], returns)
        to_read, keep, data = number(0), number(3), number(1)
        builder.call(prefetch, [values[0], to_read, keep, data])
        return context.get_dummy_value()

    return types.void(types.voidptr), emit
