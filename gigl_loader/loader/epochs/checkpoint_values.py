"""What a checkpoint may hold: values that are loaded without running code of the file."""

import argparse
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from io import BytesIO

import numpy as np
import torch

from gigl_loader.errors import ConfigError, WrongTypeError

_PLAIN = {type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.nn.Parameter}
_CONTAINERS = {dict, OrderedDict, list, tuple, set}


def check_values(state: Mapping[str, object]) -> None:
    """Check that `load_checkpoint` accepts all values of a checkpoint.

    Raises:
        ConfigError: One it would refuse; the message has its place in ``state``.
        WrongTypeError: ``state`` is no mapping.
    """
    if not isinstance(state, Mapping):
        raise WrongTypeError(
            f"state must be a dict of parts by name, got {_name(state)}: save "
            '{"model": model.state_dict()}'
        )
    seen: set[int] = set()  # a container may be in itself
    left: list[tuple[str, object]] = [("state", dict(state))]
    while left:
        place, value = left.pop()
        kind = type(value)
        if kind in _CONTAINERS:
            if id(value) not in seen:
                seen.add(id(value))
                left.extend(reversed([*_inner(place, value)]))
        elif kind not in _PLAIN:
            _check_object(place, value)


def _inner(place: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the values in a container, with their places."""
    match value:
        case dict():
            for key, element in value.items():
                yield f"a key of {place}", key
                yield f"{place}[{key!r}]", element
            # state_dict() of a module has the versions of its layers there
            for name, attribute in getattr(value, "__dict__", {}).items():
                yield f"{place}.{name}", attribute
        case set():
            for element in value:
                yield f"an element of {place}", element
        case list() | tuple():
            for index, element in enumerate(value):
                yield f"{place}[{index}]", element


def _check_object(place: str, value: object) -> None:
    """Check a value that is neither plain nor a container, by loading it.

    torch accepts more than its pages list, by version, and what a job has registered.
    """
    file = BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:  # any class: pickle calls methods of the value
        # without torch's own text, which advises to run the code of the file
        raise ConfigError(
            f"{place} is of type {_name(value)}, which load_checkpoint refuses: it runs no code of "
            f"the file. {_advice(value)}"
        ) from error


def _advice(value: object) -> str:
    match value:
        case np.generic():
            return "Save its item()"
        case np.ndarray():
            return "Save torch.from_numpy() of it"
        case argparse.Namespace():
            return "Save vars() of it"
        case os.PathLike():
            return "Save str() of it"
    if hasattr(value, "state_dict"):
        return "Save its state_dict()"
    return "Save tensors and plain values"


def _name(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
