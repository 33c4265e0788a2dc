"""Times of seeds as users give them, checked, beside the seeds in a sampler's input."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from gigl_loader._glt import NodeSamplerInput
from gigl_loader.errors import ConfigError
from gigl_loader.message import SEED_TIME
from gigl_loader.options import ExpansionOptions

Times = Tensor | NDArray[Any] | Sequence[float]
"""One number per seed."""
TimeInput = Times | Mapping[int, Times]
"""Times as the user gives them: colocated, or by storage server."""


def read_times(given: Any, num_seeds: int, name: str) -> Tensor:
    """Return ``[num_seeds]`` int64 or float64.

    Raises:
        ConfigError: Not one number for each seed, or a NaN.
    """
    try:
        found = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{name} cannot be read as times: {error}") from None
    if tuple(found.shape) != (num_seeds,) or found.dtype == torch.bool or found.is_complex():
        raise ConfigError(
            f"{name} must be one number for each of the {num_seeds} seeds, got "
            f"{list(found.shape)} {found.dtype}"
        )
    # As messages have them (`SEED_TIME`). int64 keeps nanoseconds since 1970 exact, float64 does
    # not.
    found = found.cpu().to(torch.float64 if found.is_floating_point() else torch.int64)
    if found.is_floating_point() and bool(found.isnan().any()):
        raise ConfigError(f"{name}[{int(found.isnan().nonzero()[0])}] is not a number")
    return found


def add_times(found: NodeSamplerInput, given: Any, name: str = "input_time") -> NodeSamplerInput:
    """Return ``found`` with the times of its seeds as a column; None: they have none of their own.

    Raises:
        ConfigError: Not one number for each seed; or by server, while the dataset is local.
    """
    if isinstance(given, Mapping):
        raise ConfigError(f"{name} is by server, as for a graph store, but the dataset is local")
    if given is not None:
        extra = dict(getattr(found, "extra", None) or {})
        found.extra = {**extra, SEED_TIME: read_times(given, found.node.numel(), name)}
    return found


def add_times_by_server(
    inputs: list[NodeSamplerInput], given: Any, name: str = "input_time"
) -> list[NodeSamplerInput]:
    """Return the input of each storage server with its times, which are by server as seeds are.

    Raises:
        ConfigError: A server has seeds and no times, or times and no seeds.
    """
    if given is None:
        return inputs
    if not isinstance(given, Mapping):
        raise ConfigError(f"with a graph store, {name} is {{server_rank: times}}, as its seeds are")
    unknown = [server for server in given if server not in range(len(inputs))]
    if unknown:
        raise ConfigError(f"{name} names servers {unknown}; there are {len(inputs)}")
    for server, found in enumerate(inputs):
        add_times(found, given.get(server, ()), f"{name}[{server}]")
    # One column of all servers' seeds, so of one type; no times, as of servers without seeds, are
    # of either. Not float64 for their sake: it would round times in nanoseconds.
    some = [found.extra[SEED_TIME] for found in inputs if found.node.numel()]
    is_float = any(times.is_floating_point() for times in some)
    for found in inputs:
        found.extra[SEED_TIME] = found.extra[SEED_TIME].to(
            torch.float64 if is_float else torch.int64
        )
    return inputs


def check_time_given(given: Any, expansion: ExpansionOptions, name: str = "input_time") -> None:
    """Raise `ConfigError` where seeds have times and nothing is sampled by time."""
    if given is not None and expansion.time_attr is None:
        raise ConfigError(f"{name} was given without time_attr, which says whose times it bounds")
