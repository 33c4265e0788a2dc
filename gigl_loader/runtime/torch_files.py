"""Files of ``torch.save`` that others wrote."""

import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO


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
