"""Functions that servers run for clients: their names, arguments and results, as they travel."""

from typing import Any

import msgspec
from torch import Tensor

from gigl_loader.errors import ConfigError, ProtocolError

PackedValue = tuple[bytes, tuple[Tensor, ...]]
"""A value in MessagePack, with a number in the place of each tensor; and the tensors."""

_TENSOR = 1
"""MessagePack's application type for the number of a tensor."""
_MAY_TRAVEL = "None, numbers, strings, bytes, tensors, and lists and dicts of these"


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


def packed(value: Any) -> PackedValue:
    """Return arguments, or a result, as they travel.

    Raises:
        ConfigError: Something in it cannot travel.
    """
    tensors: list[Tensor] = []

    def beside(item: object) -> msgspec.msgpack.Ext:
        if not isinstance(item, Tensor):
            raise TypeError(f"a {type(item).__name__} cannot travel")
        tensors.append(item)
        return msgspec.msgpack.Ext(_TENSOR, str(len(tensors) - 1).encode())

    try:
        # encoded now, on the side that can correct it
        return msgspec.msgpack.encode(value, enc_hook=beside), tuple(tensors)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"what functions of storage servers take and return is {_MAY_TRAVEL} ({error})"
        ) from error


def unpacked(data: bytes, tensors: tuple[Tensor, ...]) -> Any:
    """Undo `packed`; tuples are lists.

    Raises:
        ProtocolError: The bytes are those of nothing that travels so.
    """

    def named(_: int, number: memoryview) -> Tensor:
        return tensors[int(bytes(number))]

    try:
        return msgspec.msgpack.decode(data, ext_hook=named)
    except (ValueError, LookupError, RecursionError) as error:
        raise ProtocolError(f"no values of a function came: {error}") from error
