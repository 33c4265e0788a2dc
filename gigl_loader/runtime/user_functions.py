"""The functions and methods of users that this package calls: what they return is looked at.

A function without `return` returns None, and None must never pass for one of our own values, such
as the end of an epoch.
"""

import functools
import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from gigl_loader.errors import ConfigError, WrongTypeError

T = TypeVar("T")


def returned(value: T | None, role: str, function: Any, wanted: str) -> T:
    """Return the result of a user's function.

    Args:
        value: The result.
        role: The keyword or the kind of function, for the message.
        function: The function, which the message names.
        wanted: What it has to return.

    Raises:
        ConfigError: The result is None.
    """
    if value is None:
        raise ConfigError(
            f"{role} {name_of(function)} returned None, but must return {wanted}: "
            "add `return` at its end"
        )
    return value


def name_of(function: Any) -> str:
    """Return the name of a function and the place of its definition, for messages."""
    function = inspect.unwrap(function)  # the loader's timer around it is not the user's
    while isinstance(function, functools.partial):
        function = function.func
    plain = getattr(function, "__func__", function)
    # An object that is called, such as a transform of PyG's: its class says most.
    if not hasattr(plain, "__qualname__"):
        plain = getattr(type(function), "forward", None) or type(function).__call__
        name = type(function).__qualname__
    else:
        name = plain.__qualname__
    code = getattr(plain, "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}, line {code.co_firstlineno})"


def check_overrides(kind: type, base: type, steps: Mapping[str, str]) -> None:
    """Check that a subclass overrides nothing in vain.

    Args:
        kind: The subclass; its other bases count, too.
        base: The class here.
        steps: Methods that nothing calls, and what to do instead.

    Raises:
        WrongTypeError: It has such a method.
    """
    for name, instead in steps.items():
        owner = next((parent for parent in kind.__mro__ if name in vars(parent)), None)
        # A base of another library that comes after ours is not asked, and hides nothing.
        if owner is None or kind.__mro__.index(owner) >= kind.__mro__.index(base):
            continue
        whose = "" if owner is kind else f", of its base {owner.__qualname__},"
        raise WrongTypeError(
            f"{kind.__qualname__}.{name}{whose} would have no effect: nothing here calls it. "
            f"Instead: {instead}"
        )
