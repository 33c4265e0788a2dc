"""A lock in shared memory that outlives its holder: glibc's robust mutex of POSIX threads.

Processes that share memory share the lock. If a process ends while it holds the lock, the kernel
releases it and tells the next holder, since the guarded data may be half changed then.
"""

import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gigl_loader.errors import PeerTimeoutError
from gigl_loader.runtime.memory.segments import Array

_SHARED, _ROBUST = 1, 1  # PTHREAD_PROCESS_SHARED, PTHREAD_MUTEX_ROBUST
_libc = ctypes.CDLL(None)
_clocklock: Callable[..., int] | None = getattr(_libc, "pthread_mutex_clocklock", None)
"""Waits by a chosen clock; only glibc 2.30 and later have it."""
_SHORTEST_NAP_S, _LONGEST_NAP_S = 0.0005, 0.02


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Mutex:
    """A lock; see the module.

    Args:
        memory: ``[NBYTES]`` uint8, aligned to 8, shared.
    """

    NBYTES = 64
    """Bytes kept for a ``pthread_mutex_t``, which takes 40 to 48 on current machines."""

    def __init__(self, memory: Array) -> None:
        self.memory = memory
        self._mutex = ctypes.c_void_p(memory.ctypes.data)

    def make(self) -> None:
        """Make a free lock in the memory; called once, by one process.

        Raises:
            OSError: The system has no such lock.
        """
        # larger than a pthread_mutexattr_t on any system; glibc's needs no destruction
        attributes = ctypes.create_string_buffer(64)
        _check(_libc.pthread_mutexattr_init(attributes))
        _check(_libc.pthread_mutexattr_setpshared(attributes, _SHARED))
        _check(_libc.pthread_mutexattr_setrobust(attributes, _ROBUST))
        _check(_libc.pthread_mutex_init(self._mutex, attributes))

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[bool]:
        """Hold the lock within the block.

        Yields:
            Whether the last holder ended while it held the lock.

        Raises:
            PeerTimeoutError: The lock is not free after ``timeout_s`` seconds: its holder is
                stopped.
        """
        code = _lock(self._mutex, timeout_s)
        if code == errno.ETIMEDOUT:
            raise PeerTimeoutError(
                f"a process of this machine has held a lock for {timeout_s:.0f} s: it is stopped; "
                "look at the sampling workers, and start the job again"
            )
        # a dead owner is no failure: the lock is held now. Any other code means that it is not held
        if code != errno.EOWNERDEAD:
            _check(code)
        try:
            yield code == errno.EOWNERDEAD
        finally:
            # before the unlock: a mutex that is unlocked while it is inconsistent can never be
            # locked again. The block has repaired the guarded data by now
            if code == errno.EOWNERDEAD:
                _libc.pthread_mutex_consistent(self._mutex)
            _libc.pthread_mutex_unlock(self._mutex)


def _lock(mutex: ctypes.c_void_p, timeout_s: float) -> int:
    """Take the lock; return the code, ETIMEDOUT if it stays held for ``timeout_s`` seconds.

    It does not use the wall clock, as `pthread_mutex_timedlock` does: that may be set meanwhile.
    """
    until = time.monotonic() + timeout_s
    if _clocklock is not None:
        limit = _Timespec(int(until), int(until % 1 * 1e9))
        # ctypes releases the GIL during the wait: other threads of this process go on
        return _clocklock(mutex, time.CLOCK_MONOTONIC, ctypes.byref(limit))
    nap = _SHORTEST_NAP_S
    while True:
        code: int = _libc.pthread_mutex_trylock(mutex)
        if code != errno.EBUSY:
            return code
        if time.monotonic() >= until:
            return errno.ETIMEDOUT
        time.sleep(nap)
        nap = min(2 * nap, _LONGEST_NAP_S)


def _check(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))
