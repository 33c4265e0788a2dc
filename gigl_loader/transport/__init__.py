"""Questions and answers between processes: the only folder that opens sockets.

It knows nothing of graphs. `Listener` answers by a table of `Method`; `Caller` asks. `Security`
says who may connect. `MemoryNetwork` is the same in one thread with a clock of its own.
"""

from gigl_loader.transport.addresses import (
    address_towards,
    free_port,
    is_loopback,
    refuse_loopback_name,
)
from gigl_loader.transport.caller import Caller
from gigl_loader.transport.codec import ArraySpec
from gigl_loader.transport.ends import End
from gigl_loader.transport.listener import Lent, Listener, Method, Peer
from gigl_loader.transport.memory_network import Clock, MemoryNetwork
from gigl_loader.transport.reply import Reply
from gigl_loader.transport.security import Mode, Security

__all__ = [
    "ArraySpec",
    "Caller",
    "Clock",
    "End",
    "Lent",
    "Listener",
    "MemoryNetwork",
    "Method",
    "Mode",
    "Peer",
    "Reply",
    "Security",
    "address_towards",
    "free_port",
    "is_loopback",
    "refuse_loopback_name",
]
