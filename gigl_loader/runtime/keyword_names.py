"""Keywords that a function does not have: an error of ours with the name that was meant."""

import difflib
import inspect
from collections.abc import Callable, Iterable
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
                raise unknown_keyword(function.__qualname__, name, names)
        return function(*args, **given)

    return checked  # type: ignore[return-value]  # `wraps` keeps its signature


def with_known_fields(kind: L) -> L:
    """Refuse keywords that the constructor of a class does not have, see `with_known_names`."""
    constructed: Any = kind
    constructed.__init__ = with_known_names(constructed.__init__)
    return kind


def unknown_keyword(function: str, name: str, known: Iterable[str]) -> WrongTypeError:
    """Return the error for a keyword that ``function`` does not have, of those that it has."""
    names = [one for one in known if one not in ("self", "cls")]
    similar = difflib.get_close_matches(name, names, n=1)
    advice = f"did you mean {similar[0]!r}?" if similar else f"there are {', '.join(names)}"
    return WrongTypeError(f"{function}() got an unexpected keyword argument {name!r}; {advice}")
