"""Functions that servers run for clients: their names, arguments and results, as they travel."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from torch import Tensor

from gigl_loader.errors import ConfigError

Values = tuple[dict[str, Any], dict[str, Tensor]]
"""Values by name, None in the place of each tensor; and the tensors."""
Result = tuple[str, dict[str, Any], dict[str, Tensor]]
"""The kind of a result, ``"one"``, ``"tuple"``, ``"list"`` or ``"dict"``, and its `Values`."""

_KINDS: dict[str, Any] = {"tuple": tuple, "list": list, "dict": dict}
_MAY_TRAVEL = "None, numbers, strings, bytes, tensors, and lists and dicts of the others"


def is_of_users_module(function: Any) -> bool:
    """Return whether a function is one of a module, and not of this package."""
    is_own = f"{function.__module__}.".startswith("gigl_loader.")
    return function.__qualname__.isidentifier() and not is_own


def path_of(function: Any) -> str:
    """Return the import path of a function of a module.

    Raises:
        ConfigError: Other processes cannot import it.
    """
    module, name = function.__module__, function.__qualname__
    if module == "__main__":
        raise ConfigError(
            f"storage servers cannot import {name} of the script that runs here: put it into a "
            "module that they find, too"
        )
    return f"{module}.{name}"


def arguments_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Values:
    """Return arguments as they travel; those by position are named by their number.

    Raises:
        ConfigError: One cannot travel.
    """
    return _parted({**{str(number): value for number, value in enumerate(args)}, **kwargs})


def call_with(function: Callable[..., Any], plain: dict[str, Any], tensors: Any) -> Any:
    """Call a function with arguments of `arguments_of`."""
    given = plain | tensors
    by_position = sorted((name for name in given if name.isdigit()), key=int)
    return function(
        *(given[name] for name in by_position),
        **{name: value for name, value in given.items() if not name.isdigit()},
    )


def to_result(value: Any) -> Result:
    """Return a function's result as it travels.

    Raises:
        ConfigError: It cannot travel.
    """
    for kind, of_kind in _KINDS.items():
        if type(value) is of_kind and (kind != "dict" or all(isinstance(k, str) for k in value)):
            by_name = value if kind == "dict" else {str(k): v for k, v in enumerate(value)}
            return kind, *_parted(by_name)
    return "one", *_parted({"0": value})


def from_result(result: Result) -> Any:
    """Undo `to_result`."""
    kind, plain, tensors = result
    values = plain | tensors
    if kind in _KINDS:
        return values if kind == "dict" else _KINDS[kind](values.values())
    return values["0"]


def _parted(values: Mapping[str, Any]) -> Values:
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    plain = {name: None if name in tensors else value for name, value in values.items()}
    try:
        # encoded now, on the side that can correct it
        msgspec.msgpack.encode(plain)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"{', '.join(values)}: what functions of storage servers take and return is "
            f"{_MAY_TRAVEL} ({error})"
        ) from error
    return plain, tensors
