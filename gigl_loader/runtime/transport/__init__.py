"""Requests and responses between processes: the only folder that opens sockets.

It knows nothing of graphs. `Listener` serves a table of `Method`; `Caller` sends requests.
`Security` authenticates. `gigl_loader.testing.MemoryNetwork` is the same in one thread.
"""

from gigl_loader.runtime.transport.caller import Caller
from gigl_loader.runtime.transport.codec import IncomingArray
from gigl_loader.runtime.transport.failures import EndReason
from gigl_loader.runtime.transport.listener import Listener, Method, Peer
from gigl_loader.runtime.transport.reply import Reply, into_array
from gigl_loader.runtime.transport.security import Mode, Security
from gigl_loader.runtime.transport.sockets import (
    address_towards,
    free_port,
    free_ports,
    is_loopback,
    own_address,
    refuse_loopback_name,
    refuse_unspecified,
    split_address,
)
from gigl_loader.runtime.transport.stream import SILENCE_S

__all__ = [
    "SILENCE_S",
    "Caller",
    "EndReason",
    "IncomingArray",
    "Listener",
    "Method",
    "Mode",
    "Peer",
    "Reply",
    "Security",
    "address_towards",
    "free_port",
    "free_ports",
    "into_array",
    "is_loopback",
    "own_address",
    "refuse_loopback_name",
    "refuse_unspecified",
    "split_address",
]
