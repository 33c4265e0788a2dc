"""Files of others: where they are, and those of ``torch.save``."""

import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from gigl_loader.errors import ConfigError
from gigl_loader.runtime.sizes import size_in_words

_MOST_BYTES = 2**28
"""Of a file that is read whole: a manifest of 240 TiB has as many, as 64 MiB are 70 bytes there."""


def check_bytes(nbytes: int, where: object, most: int | None = None) -> None:
    """Raise `ConfigError` if a file that is read whole has more bytes than one may have."""
    if nbytes > (most := _MOST_BYTES if most is None else most):
        raise ConfigError(
            f"{where} has {size_in_words(nbytes)} or more, where at most {size_in_words(most)} are "
            "read at once: it is damaged, or of something else"
        )


def load_torch_file(file: Path | BinaryIO, map_location: Any = None, *, mmap: bool = False) -> Any:
    """Return the content of a file; nothing in it is run, and it is not larger than the file.

    Raises:
        ValueError: It says more bytes than the file has: it is compressed, which torch does not do.
        Exception: Whatever ``torch.load`` raises.
    """
    import torch  # takes seconds, and other formats do without

    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            announced = sum(info.file_size for info in archive.infolist())
        nbytes = file.stat().st_size if isinstance(file, Path) else file.seek(0, os.SEEK_END)
        if announced > nbytes:
            raise ValueError(f"it has {nbytes:,} bytes and says {announced:,}: it is compressed")
    if not isinstance(file, Path):
        file.seek(0)
    return torch.load(file, map_location, weights_only=True, mmap=mmap or None)


def inside(folder: Path, name: str | Path) -> Path:
    """Return the path of a file below ``folder``, which may be a link itself.

    Args:
        folder: The folder.
        name: The file's name there; or its path, which begins with ``folder``.

    Raises:
        ConfigError: The name, or a link below ``folder``, leads to another folder.
    """
    path = name if isinstance(name, Path) else folder / name
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ConfigError(
            f"{path} leads out of {folder}, from which alone files are read: remove it, or put a "
            "copy of the file in its place"
        )
    return path
