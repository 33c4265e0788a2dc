"""Manifests of partition directories: JSON under a checksum of its own.

The first entry is the checksum of all bytes after it, so that a changed byte is refused wherever
it is. What the first two formats wrote has none, and says so by its version.
"""

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gigl_loader.dataset.identity import digest_of
from gigl_loader.errors import ConfigError

ROOT_FILE = "gigl_loader.json"
"""The manifest of a directory, in both formats."""
FORMAT_VERSION = 3
_HEAD = re.compile(rb'\{\n "checksum": "([0-9a-f]{32})",\n')

T = TypeVar("T")
_log = logging.getLogger(__name__)


def write_manifest(path: Path, content: Mapping[str, Any]) -> str:
    """Write a manifest, which is there whole or not at all; return its digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = json.dumps({"format_version": FORMAT_VERSION, **content}, indent=1).encode()
    body = body.removeprefix(b"{\n") + b"\n"
    data = b'{\n "checksum": "' + digest_of(body).encode() + b'",\n' + body
    # whoever reads meanwhile, or after a kill, sees the whole old file or the whole new one
    draft = path.with_name(path.name + ".tmp")
    draft.write_bytes(data)
    os.replace(draft, path)
    return digest_of(data)


def read_manifest(path: Path, unchecked: int) -> tuple[dict[str, Any], str]:
    """Return what a manifest says, and the digest of the file.

    Args:
        path: The file.
        unchecked: The older version that is read, too: it had no checksum.

    Raises:
        ConfigError: It is missing, damaged, has changed, or is of another version.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} is missing: the partition directory is incomplete; copy it again"
        ) from error
    head = _HEAD.match(data)
    if head is not None and digest_of(data[head.end() :]) != head[1].decode():
        raise ConfigError(
            f"{path} has changed since it was written: it does not match its checksum; copy the "
            "file again, or partition the graph again"
        )
    try:
        content: dict[str, Any] = json.loads(data)
        version = content["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, error) from error
    # before anything else is read: another version may have other keys
    if version not in (FORMAT_VERSION, unchecked):
        raise ConfigError(
            f"{path} has format version {version}, this gigl_loader reads {unchecked} and "
            f"{FORMAT_VERSION}: partition the graph again"
        )
    # without its checksum, a file of this version would be taken for one that never had any
    if (version == FORMAT_VERSION) != (head is not None):
        raise ConfigError(f"{path} is damaged: its first lines are not a checksum; copy it again")
    if version == unchecked:
        _log.warning(
            "%s is of format version %d, which has no checksums: a damaged file is not noticed, "
            "and partitions of two runs are not told apart; partition the graph again",
            *(path, version),
        )
    return content, digest_of(data)


def typed(content: Any, kind: type[T], path: Path) -> T:
    """Return what a manifest says as a dataclass.

    Raises:
        ConfigError: Something is missing, or is of another type.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"{path} is damaged: {type(error).__name__}: {error}")
