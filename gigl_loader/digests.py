"""One rule for checksums: of files, manifests, graphs and objects in storage."""

import hashlib
import mmap

DIGEST_BYTES = 16
"""Bytes of a BLAKE2b digest: enough against chance, not against somebody who may choose both."""


def digest_of(data: bytes | memoryview | mmap.mmap) -> str:
    """Return the digest of some bytes, in hex."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()
