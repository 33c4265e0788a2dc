"""YAML files, which need an optional package."""

from collections.abc import Callable
from typing import IO, Any

from gigl_loader.errors import ConfigError, first_line, needed


def read_yaml(path: Any, open_file: Callable[[], IO[bytes]] | None = None) -> Any:
    """Return what a file says.

    Args:
        path: Its path or URL.
        open_file: Opens it; None: it is on this machine.

    Raises:
        ConfigError: It cannot be read, or is no YAML; the message names it.
    """
    with needed('YAML needs pyyaml: run pip install "gigl_loader[tables]"'):
        import yaml
    try:
        with open(path, "rb") if open_file is None else open_file() as file:
            return yaml.safe_load(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {first_line(error)}") from error
