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
from typing import NamedTuple

from gigl_loader import _memory
from gigl_loader._memory import Array
from gigl_loader.dataset.view import PartitionView

_log = logging.getLogger(__name__)

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
        from gigl_loader import _tensors  # workers only read, and do without torch

        data, fds, self._tensors = _tensors.describe(view)
        described = secrets.token_bytes(_SALT_BYTES) + pickle.dumps((fds, data))
        self._fd = _memory.create_memfd(len(described), "gigl_loader.partition")
        os.pwrite(self._fd, described, 0)
        proof = _proof(token, described)
        self.place = ShownPlace(os.getpid(), self._fd, len(described), proof)

    def close(self) -> None:
        """Show it no more; who has mapped it keeps it. Idempotent."""
        fd, self._fd = self._fd, -1
        self._tensors = []
        if fd >= 0:
            os.close(fd)


def read_partitions(places: dict[int, ShownPlace], token: bytes) -> dict[int, PartitionView[Array]]:
    """Map the partitions that other processes of this machine show.

    Args:
        places: By partition.
        token: The job's secret.

    Returns:
        Those that this process could map, by partition.
    """
    found = {}
    for partition, place in places.items():
        try:
            found[partition] = _read(place, token)
        except (OSError, ValueError) as error:  # ValueError: less memory there than described
            _log.info(
                "partition %d, of process %d, is asked for over TCP although it is on this "
                "machine: %s", partition, place.pid, error,
            )  # fmt: skip
    return found


def _read(place: ShownPlace, token: bytes) -> PartitionView[Array]:
    described = _memory.peek(place.pid, place.fd, place.nbytes)
    if described is None or not hmac.compare_digest(_proof(token, described), place.proof):
        raise OSError("its memory cannot be seen from here")
    theirs, data = pickle.loads(described[_SALT_BYTES:])
    fds: list[int] = []
    try:
        fds.extend(_memory.open_fd_of(place.pid, fd) for fd in theirs)
        view: PartitionView[Array] = _memory.loads(data, fds)
        return view
    finally:
        _memory.close_fds(fds)


def _proof(token: bytes, described: bytes) -> str:
    return hmac.digest(token, described, hashlib.sha256).hex()
