"""Checks of numbers and flags that users and clients give."""

from typing import Any

from gigl_loader.errors import ConfigError, WrongTypeError


def check_count(value: Any, where: str, least: int = 1, most: int | None = None) -> None:
    """Raise `ConfigError` unless ``value`` is an integer from ``least`` to ``most``."""
    # for isinstance(), True is an int
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or value < least or (most is not None and value > most):
        limit = f"in [{least}, {most}]"
        if most is None:
            limit = "> 0" if least == 1 else f">= {least}"
        raise ConfigError(f"{where} must be an integer {limit}, got {value!r}")


def check_flag(value: Any, where: str) -> None:
    """Raise `WrongTypeError` unless ``value`` is a bool: the text "False" counts as true."""
    if not isinstance(value, bool):
        raise WrongTypeError(f"{where} must be True or False, got {value!r}")
