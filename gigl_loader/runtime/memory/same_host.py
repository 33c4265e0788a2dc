"""Memory of other processes of this machine, mapped instead of sent: batches and partitions.

A process that offers memory sends its place, a `Region`, over the connection or rendezvous that it
has with the other one. The other process opens it through ``/proc``. One check tells whether both
are on one machine and may read each other: each process keeps a secret in its own memory, its
`SameHostProof`. A process that can read the secret there can also map the memory beside it. A
process of the same number on another machine, or in another container, has another secret.

A region names the inode of its memory besides the descriptor, so that a descriptor that was closed
and reused is not mistaken for the old one.

Where any of this fails (containers that do not see each other's processes, other users), the same
data is requested over the network. Nothing that is read here is unpickled.
"""

import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from gigl_loader.errors import ProtocolError
from gigl_loader.runtime.decoding import analysed
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.memory.segments import SharedPart
from gigl_loader.runtime.transport.codec import decode

_log = logging.getLogger(__name__)
T = TypeVar("T")

_MARK_NAME = "gigl_loader.mark"
_SECRET_BYTES = 32


@dataclass(frozen=True)
class Region:
    """Memory of a process of this machine, as another process can find it."""

    pid: int
    fd: int
    nbytes: int
    inode: int
    """Tells it from earlier or later memory with the same descriptor."""

    @classmethod
    def of(cls, fd: int, nbytes: int) -> "Region":
        """Return the region where other processes find ``fd`` of this process."""
        return cls(os.getpid(), fd, nbytes, os.fstat(fd).st_ino)

    def open(self) -> int:
        """Return a descriptor of this process; the owner's mark `SameHostProof.is_seen`.

        Raises:
            OSError: It is not there any more, or this process has no right to it.
        """
        fd = segments.open_fd_of(self.pid, self.fd)
        # checked once it is open: from here on it is this memory, whatever the owner does. Touching
        # pages beyond the end would be SIGBUS
        status = os.fstat(fd)
        if status.st_ino != self.inode or status.st_size < self.nbytes:
            os.close(fd)
            raise OSError(f"process {self.pid} has other memory under descriptor {self.fd} now")
        return fd


@dataclass(frozen=True)
class SameHostProof:
    """A process's secret and its place; no secret from the job's own processes.

    Reading it in place takes the right to read all of that process's memory.
    """

    region: Region
    secret: bytes

    def is_seen(self) -> bool:
        """Return whether this process can map the memory of the one that keeps the mark."""
        region = self.region
        return segments.peek(region.pid, region.fd, region.nbytes, _MARK_NAME) == self.secret


@dataclass(frozen=True)
class Offer:
    """A value of a process of this machine whose arrays may be mapped; for `read_offer`."""

    mark: SameHostProof
    description: Region


@dataclass(frozen=True)
class Description:
    """The parts of an offer, as written into its memory."""

    regions: tuple[Region, ...]
    parts: tuple[SharedPart, ...]
    """Places of the arrays, in the order of their numbers; their indices refer to ``regions``."""
    body: bytes
    """The value, as the transport's codec writes it."""


class OwnHostProof:
    """This process's mark; see the module."""

    def __init__(self) -> None:
        secret = secrets.token_bytes(_SECRET_BYTES)
        self._fd = segments.create_memfd(len(secret), _MARK_NAME)
        os.pwrite(self._fd, secret, 0)
        self.mark = SameHostProof(Region.of(self._fd, len(secret)), secret)
        self._release = weakref.finalize(self, os.close, self._fd)

    def close(self) -> None:
        """Release the memory: new processes do not see this one any more. Idempotent."""
        self._release()


class Mappings:
    """Regions that this process has mapped, kept for later batches in the same regions.

    Args:
        most_idle: Mappings to keep beyond those in use. A worker has two or three slots, and each
            mapping that is recreated costs page faults for a whole batch.
    """

    def __init__(self, most_idle: int = 16) -> None:
        self._most_idle = most_idle
        self._lock = threading.RLock()  # a batch may be dropped while this thread holds the lock
        self._idle: dict[Region, int] = {}  # the address; longest idle first
        self._closed = False

    def lease(self, region: Region, on_drop: Callable[[], None]) -> Any:
        """Return an object with the buffer protocol over a region.

        Args:
            region: The memory; its owner does not write it until ``on_drop``.
            on_drop: Called in the thread that drops the object's last user.

        Raises:
            OSError: It is not there any more, or cannot be mapped.
        """
        with self._lock:
            address = self._idle.pop(region, None)
        # outside the lock: mapping enters all pages of a batch, and other threads map theirs
        # meanwhile. No other thread maps the same region: its owner lends it once at a time
        if address is None:
            fd = region.open()
            try:
                address = segments.map_fd(fd, region.nbytes)
            finally:
                os.close(fd)
        buffer = segments.buffer_at(address, region.nbytes)
        weakref.finalize(buffer, self._drop, region, address, on_drop).atexit = False
        return buffer

    def _drop(self, region: Region, address: int, on_drop: Callable[[], None]) -> None:
        with self._lock:
            self._idle[region] = address
            self._trim()
        # last: the owner may lend the region again at once, and then finds it among the idle ones
        on_drop()

    def _trim(self) -> None:
        while len(self._idle) > (0 if self._closed else self._most_idle):
            region = next(iter(self._idle))
            segments.unmap(self._idle.pop(region), region.nbytes)

    def close(self) -> None:
        """Release mappings that no tensor uses; the rest go with their tensors. Idempotent."""
        with self._lock:
            self._closed = True
            self._trim()


def read_offers(offers: Mapping[int, Sequence[Offer]], kind: type[T]) -> dict[int, T]:
    """Map values that other processes of this machine offer.

    Args:
        offers: By number, such as a partition's, all offers of the same value.
        kind: Type of the values; their arrays become numpy's.

    Returns:
        Those that this process could map, by number.
    """
    values = {}
    for number, some in offers.items():
        for offer in some:
            try:
                values[number] = read_offer(offer, kind)
                break
            except (OSError, ProtocolError) as error:
                pid = offer.description.pid
                _log.info("%s %d of process %d: %s", kind.__name__, number, pid, error)
    return values


def read_offer(offer: Offer, kind: type[T]) -> T:
    """Map one value; it stays mapped when the process that offers it ends.

    Raises:
        OSError: Its memory cannot be seen from here, or is no longer offered.
        ProtocolError: It is not of that type.
    """
    if not offer.mark.is_seen():
        raise OSError("its memory cannot be seen from here")
    description = _read_description(offer.description)
    fds: list[int] = []
    try:
        for region in description.regions:
            fds.append(region.open())
        # the description was written elsewhere: an index, type or offset may be wrong
        mapped = segments.PartMapper(fds)
        arrays = [mapped.array(part) for part in description.parts]
    except (TypeError, ValueError, IndexError) as error:
        raise ProtocolError(f"an offer describes arrays that are not there: {error}") from error
    finally:
        segments.close_fds(fds)
    return decode(msgspec.Raw(description.body), arrays, kind)


def _read_description(region: Region) -> Description:
    fd = region.open()
    try:
        data = os.pread(fd, region.nbytes, 0)
    finally:
        os.close(fd)
    try:
        return msgspec.msgpack.decode(data, type=analysed(Description))
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"an offer has no description: {error}") from error
