"""Partitions of other ranks on this machine: read where they lie, not asked for over TCP.

Each rank shows its partition: a description in anonymous memory, beside the descriptors of the
partition's tensors. A process of the same machine and user opens both through ``/proc``, checks by
HMAC that they are what that rank meant to show, and maps the tensors. What is mapped stays,
however the rank that showed it ends. Where this fails (containers that do not see each other's
processes, other users), partitions are asked for over TCP.
"""

import hashlib
import hmac
import logging
import os
import pickle
import secrets
import weakref
from typing import Any, NamedTuple

from gigl_loader.dataset.view import PartitionView
from gigl_loader.memory import segments
from gigl_loader.memory.segments import Array

_log = logging.getLogger(__name__)

_NAME = "gigl_loader.partition"
_SALT_BYTES = 32


class ShownPlace(NamedTuple):
    """Where the description of a partition lies; everybody may know it."""

    pid: int
    fd: int
    nbytes: int
    proof: str
    """HMAC-SHA256 of the description under the job's token, in hex."""


class ShownPartition:
    """This process's partition, for others of the machine to map while this object is open.

    Args:
        view: The partition.
        token: The job's secret.
    """

    def __init__(self, view: PartitionView, token: bytes) -> None:
        from gigl_loader.memory.tensors import describe  # workers only read, and do without torch

        data, fds, tensors = describe(view)
        parts = [(fd, _inode(fd)) for fd in fds]
        described = secrets.token_bytes(_SALT_BYTES) + pickle.dumps((parts, data))
        fd = segments.create_memfd(len(described), _NAME)
        os.pwrite(fd, described, 0)
        self.place = ShownPlace(os.getpid(), fd, len(described), _proof(token, described))
        self._release = weakref.finalize(self, _release, fd, tensors)

    def close(self) -> None:
        """Show it no more; who has mapped it keeps it. Idempotent."""
        self._release()


def _release(fd: int, tensors: list[Any]) -> None:
    os.close(fd)
    tensors.clear()  # their descriptors were shown, too


def read_partitions(
    places: dict[int, list[ShownPlace]], token: bytes
) -> dict[int, PartitionView[Array]]:
    """Map the partitions that other processes of this machine show.

    Args:
        places: By partition, those that show it.
        token: The job's secret.

    Returns:
        Those that this process could map, by partition.
    """
    found = {}
    for partition, shown in places.items():
        for place in shown:
            try:
                found[partition] = _read(place, token)
                break
            except OSError as error:
                _log.info("partition %d of process %d: %s", partition, place.pid, error)
    return found


def _read(place: ShownPlace, token: bytes) -> PartitionView[Array]:
    described = segments.peek(place.pid, place.fd, place.nbytes, _NAME)
    if described is None or not hmac.compare_digest(_proof(token, described), place.proof):
        raise OSError("its memory cannot be seen from here")
    parts, data = pickle.loads(described[_SALT_BYTES:])
    fds: list[int] = []
    try:
        for fd, inode in parts:
            fds.append(segments.open_fd_of(place.pid, fd))
            if _inode(fds[-1]) != inode:
                raise OSError("it is not shown any more")
        view: PartitionView[Array] = segments.loads(data, fds)
        return view
    finally:
        segments.close_fds(fds)


def _inode(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _proof(token: bytes, described: bytes) -> str:
    return hmac.digest(token, described, hashlib.sha256).hex()
