"""Checkpoints of a training job in a file or in object storage: whole, or not there.

A job that is killed while it saves leaves the checkpoint before: a file gets its name when it is
complete and on the disk, and so does an object. The format is that of ``torch.save``, a zip file.
Zip files may end with a comment: it has the checksum of all before it, as torch compares none.
"""

import os
import pickle
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import torch

from gigl_loader.errors import ConfigError, ResourceError, explained_limits, first_line
from gigl_loader.loader.epochs.checkpoint_values import check_values
from gigl_loader.runtime.digests import DIGEST_BYTES, digest_of_file
from gigl_loader.runtime.files_of_others import load_torch_file
from gigl_loader.runtime.object_storage.folder_cache import Cache
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder, checked_url, is_url
from gigl_loader.runtime.system import available_memory


def save_checkpoint(state: Mapping[str, object], where: str | os.PathLike[str]) -> None:
    """Write a checkpoint, in place of the one that is there.

    A reader finds the whole old one or the whole new one, also if this process is killed. Call it
    on one rank, or give each rank a name of its own.

    Args:
        state: Parts by name, such as ``{"model": model.state_dict(), "optimizer":
            optimizer.state_dict(), "loader": loader.state_dict()}``, of tensors and plain values:
            what runs code when it is loaded is refused.
        where: A file, or its URL (``s3://bucket/folder/name``, ``gs://``, ``az://``), to which it
            is uploaded from the cache of this machine.

    Raises:
        ConfigError: The URL or path cannot be written to, or a value could not be loaded: NumPy's,
            a path, a namespace, a module; the message has its place in ``state``.
        ObjectStorageError: Object storage failed.
        ResourceError: The disk is full.
    """
    check_values(state)
    if is_url(where):
        folder, name = _folder_and_name(os.fspath(where), create=True)
        with _draft(state, Cache().to_write(os.fspath(where)), where) as draft:
            folder.write(name, draft)
        return
    path = Path(where)
    with _draft(state, path, where) as draft:
        os.replace(draft, path)


def load_checkpoint(
    where: str | os.PathLike[str], *, map_location: torch.device | str | None = None
) -> dict[str, Any] | None:
    """Return what `save_checkpoint` wrote; None: there is nothing yet.

    Nothing of the file is run (``weights_only=True`` of ``torch.load``), and its checksum is
    compared. All ranks may load the same one. Files of ``torch.save``, which have no checksum, can
    be loaded, too.

    Args:
        where: A file, or its URL, which is read into memory.
        map_location: Device of the tensors; None: the one that each was saved from.

    Raises:
        ConfigError: It cannot be read, is damaged, has other objects, or needs another device.
        ObjectStorageError: Object storage failed.
    """
    content = _opened(where)
    if content is None:
        return None
    with content as file:
        _check(file, where)
        try:
            state: dict[str, Any] = load_torch_file(file, map_location)
        except pickle.UnpicklingError as error:
            # without the error's own text, which advises to run the code of the file
            raise ConfigError(
                f"{where} is no checkpoint, or has more than tensors and plain values, which could "
                "run code when it is loaded: save the state_dict() of each part"
            ) from error
        except Exception as error:  # torch raises any class for a file that is none of its own
            raise ConfigError(f"{where} cannot be loaded: {first_line(error)}") from error
        return state


def _opened(where: str | os.PathLike[str]) -> BinaryIO | None:
    """Return the file for reading; None: there is none."""
    if is_url(where):
        folder, name = _folder_and_name(os.fspath(where), create=False)
        data = folder.find(name, available_memory() // 2)
        return None if data is None else BytesIO(data)
    try:
        return Path(where).open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from error


_COMMENT = b"gigl_loader "
"""Start of the comment; the checksum follows, in hex."""


def _add_checksum(file: BinaryIO) -> None:
    """Put the checksum of a file of ``torch.save`` into its comment."""
    size = file.seek(0, os.SEEK_END)
    comment = _COMMENT + digest_of_file(file, size - 2).encode()
    # the last two bytes are the length of the comment, which torch leaves out
    file.seek(size - 2)
    file.write(struct.pack("<H", len(comment)) + comment)


def _check(file: BinaryIO, where: str | os.PathLike[str]) -> None:
    """Raise `ConfigError` if a file does not match the checksum in it."""
    size = file.seek(0, os.SEEK_END)
    end = max(0, size - len(_COMMENT) - 2 * DIGEST_BYTES)
    file.seek(end)
    comment = file.read()
    if not comment.startswith(_COMMENT):
        return
    if comment.removeprefix(_COMMENT).decode(errors="replace") != digest_of_file(file, end - 2):
        raise ConfigError(
            f"{where} is damaged: it does not match its checksum; load another one, or remove it "
            "to begin again"
        )


def _folder_and_name(url: str, *, create: bool) -> tuple[ObjectFolder, str]:
    checked_url(url)  # whole: a signature must not become a part of the name
    start, _, name = url.rpartition("/")
    if not name:
        raise ConfigError(f"{url} is a folder: give the URL of a file in it")
    return ObjectFolder(start, create=create), name


@contextmanager
def _draft(
    state: Mapping[str, object], path: Path, where: str | os.PathLike[str]
) -> Iterator[Path]:
    """Yield a file with the state beside ``path``, which is removed unless it is renamed.

    Raises:
        ConfigError: The folder cannot be written to.
        ResourceError: The disk is full.
    """
    # of this process: ranks that all save, by mistake, must not mix their bytes
    draft = path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}.new")
    try:
        with explained_limits(f"saving {where}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("w+b") as file:
                torch.save(dict(state), file)
                _add_checksum(file)
                file.flush()
                # its name is believed after a power failure, too
                os.fsync(file.fileno())
        yield draft
    except ResourceError:
        raise
    except OSError as error:
        raise ConfigError(f"{where} cannot be saved: {error.strerror}") from error
    finally:
        with suppress(OSError):  # renamed, or never there
            draft.unlink()
