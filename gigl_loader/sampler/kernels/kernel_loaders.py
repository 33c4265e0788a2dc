"""The kernels of samplers, by names that plans and samplers have for them.

Each group compiles its own where Numba's cache has none, so that a loader waits for those alone
that it needs.
"""

from collections.abc import Callable

from gigl_loader.sampler.kernels import (
    packing_kernels,
    ppr_kernels,
    sampling_kernels,
    token_kernels,
    tree_kernels,
    weighted_kernels,
)

LOADERS: dict[str, Callable[[], None]] = {
    "uniform": sampling_kernels.load,
    "merged": sampling_kernels.load_merged,
    "owners": sampling_kernels.load_owners,
    "packed": packing_kernels.load,
    "trees": tree_kernels.load,
    "tokens": token_kernels.load,
    "times": tree_kernels.load_times,
    "weighted": weighted_kernels.load,
    "labor": weighted_kernels.load_labor,
    "ppr": ppr_kernels.load,
}
"""Each compiles kernels, or loads them from Numba's cache. Ways to draw have the names that users
know."""
