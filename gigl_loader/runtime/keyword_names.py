"""Keywords that a function does not have: an error of ours with the name that was meant."""

import difflib
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from gigl_loader.errors import WrongTypeError

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound=type)


def with_known_names(function: F) -> F:
    """Refuse keywords that a function does not have, with the most similar name that it has."""
    names = inspect.signature(function).parameters

    @wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        for name in given:
            if name not in names:
                similar = difflib.get_close_matches(name, names, n=1)
                advice = f"did you mean {similar[0]!r}?" if similar else f"there are {_list(names)}"
                raise WrongTypeError(
                    f"{function.__qualname__}() got an unexpected keyword argument {name!r}; "
                    f"{advice}"
                )
        return function(*args, **given)

    return checked  # type: ignore[return-value]  # `wraps` keeps its signature


def with_known_fields(kind: L) -> L:
    """Refuse keywords that the constructor of a class does not have, see `with_known_names`."""
    constructed: Any = kind
    constructed.__init__ = with_known_names(constructed.__init__)
    return kind


def _list(names: Any) -> str:
    return ", ".join(name for name in names if name not in ("self", "cls"))
