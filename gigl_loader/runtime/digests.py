"""One rule for checksums: of files, manifests, graphs and objects in storage."""

import hashlib
import mmap
from typing import BinaryIO

DIGEST_BYTES = 16
"""Bytes of a BLAKE2b digest: enough against chance, not against somebody who may choose both."""

_READ_BYTES = 4 * 1024 * 1024


def digest_of(data: bytes | memoryview | mmap.mmap) -> str:
    """Return the digest of some bytes, in hex."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def digest_of_file(file: BinaryIO, nbytes: int) -> str:
    """Return the digest of the first bytes of a file, in hex."""
    digest, left = hashlib.blake2b(digest_size=DIGEST_BYTES), nbytes
    file.seek(0)
    while left > 0 and (data := file.read(min(left, _READ_BYTES))):
        digest.update(data)
        left -= len(data)
    return digest.hexdigest()
