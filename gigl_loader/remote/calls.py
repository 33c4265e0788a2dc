"""The calls of a storage server, made from the signatures of its methods.

`served` marks a method of `DistServer` that clients may call over the network, and `calls_of` makes
a `Call` of each: a request with a field for each parameter, and a response with the result. Both
are dataclasses of what `gigl_loader.transport` carries: plain values, dataclasses of them and numpy
arrays. Tensors and GLT's classes become messages of `gigl_loader.remote.values` and are rebuilt at
the other end; nothing is pickled, and nothing that arrives can name code, but for a sampler's
import path, which a server has to allow.

The transport decodes strictly into these dataclasses, so a broken peer, or one of another version,
is a `ProtocolError` that names the call and the field, and not a strange batch.
"""

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from typing import Any, TypeVar

from gigl_loader.remote import values

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__served__"


def served(method: F) -> F:
    """Let clients call this method over the network; its annotations say what travels."""
    setattr(method, _MARK, True)
    return method


@dataclass(frozen=True)
class Call:
    """One method that clients may call over the network."""

    name: str
    request: type[Any]
    """A field for each parameter. Fields have no defaults: whoever calls names every argument, or
    the defaults of the method would stand in two places."""
    response: type[Any]
    """The result, in the field ``value``."""

    def ask(self, arguments: dict[str, Any]) -> Any:
        """Return the request for ``arguments``.

        Raises:
            ConfigError: One of them cannot be sent.
        """
        return self.request(**{name: values.to_message(one) for name, one in arguments.items()})

    def arguments(self, request: Any) -> dict[str, Any]:
        """Return the arguments of a request that arrived.

        Raises:
            ProtocolError: A tensor is of no type that travels.
        """
        # not `dataclasses.asdict`, which copies arrays and turns nested dataclasses into dicts
        return {name: values.from_message(one) for name, one in vars(request).items()}

    def respond(self, result: Any) -> Any:
        """Return the response for what the method returned."""
        kind = typing.get_type_hints(self.response)["value"]
        # messages of values that do not tell their own kind: a book may be a bare tensor or None
        encode = kind.of if kind in values.BY_ANNOTATION else values.to_message
        return self.response(encode(result))

    def result(self, response: Any) -> Any:
        """Return what the method returned, of a response that arrived."""
        return values.from_message(response.value)


def calls_of(server: type[Any]) -> dict[str, Call]:
    """Return a `Call` for each method that is marked by `served`, by name."""
    methods = inspect.getmembers(server, lambda member: getattr(member, _MARK, False))
    return {name: _call(name, method) for name, method in methods}


def _call(name: str, method: Callable[..., Any]) -> Call:
    hints = typing.get_type_hints(method, include_extras=True)
    wire = {field: values.wire_type(hint) for field, hint in hints.items()}
    answer = wire.pop("return")
    title = "".join(word.capitalize() for word in name.split("_"))
    return Call(
        name,
        make_dataclass(f"{title}Request", wire.items(), frozen=True),
        make_dataclass(f"{title}Response", [("value", answer)], frozen=True),
    )
