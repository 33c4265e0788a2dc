"""A switch whose frames arrive later: what `tc netem` does where the kernel has it.

Runs in the switch's namespace::

    python _delay.py MILLISECONDS PORT...
"""

import ctypes
import selectors
import socket
import struct
import sys
import time
from collections import deque

_ALL = 3
"""ETH_P_ALL."""
_SOL_PACKET, _VNET_HDR, _VNET_BYTES, _RCVBUFFORCE = 263, 15, 10, 33
"""Frames then have a header with what is left to do: checksums, and cuts into packets."""
_MOST = 1 << 17
_OUTGOING = 4
"""PACKET_OUTGOING: frames that this process has sent."""


def main(delay_s: float, ports: list[str]) -> None:
    """Carry frames between ports, each ``delay_s`` after it came."""
    choose, known, waiting = selectors.DefaultSelector(), dict[bytes, int](), deque[tuple]()
    sockets = []
    for number, port in enumerate(ports):
        one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
        one.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
        one.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 1 << 26)
        one.bind((port, _ALL))
        sockets.append(one)
        choose.register(one, selectors.EVENT_READ, number)
    _wake_in_time()
    print("ready", flush=True)
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in choose.select(left):
            frame, address = sockets[key.data].recvfrom(_MOST)
            if address[2] != _OUTGOING:
                waiting.append((time.monotonic() + delay_s, key.data, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, came_by, frame = waiting.popleft()
            to, sender = frame[_VNET_BYTES:][:6], frame[_VNET_BYTES + 6 :][:6]
            known[sender] = came_by
            for number, one in enumerate(sockets):
                if number != came_by and known.get(to, number) == number:
                    one.send(frame)


def _wake_in_time() -> None:
    """Ask the kernel to wake this process within 50 us of the time, if it may run first."""
    libc = ctypes.CDLL(None)
    libc.prctl(29, 50_000, 0, 0, 0)  # PR_SET_TIMERSLACK
    libc.sched_setscheduler(0, 1, struct.pack("i", 1))  # SCHED_FIFO


if __name__ == "__main__":
    main(float(sys.argv[1]) / 1e3, sys.argv[2:])
