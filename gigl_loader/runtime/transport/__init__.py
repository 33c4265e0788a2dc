"""Requests and responses between processes: the only folder that opens sockets.

It knows nothing of graphs. `Listener` serves a table of `Method`; `Caller` sends requests.
`Security` authenticates. `gigl_loader.testing.MemoryNetwork` is the same in one thread.
"""

from gigl_loader.runtime.transport.caller import Caller as Caller
from gigl_loader.runtime.transport.codec import IncomingArray as IncomingArray
from gigl_loader.runtime.transport.failures import EndReason as EndReason
from gigl_loader.runtime.transport.listener import Listener as Listener
from gigl_loader.runtime.transport.listener import Method as Method
from gigl_loader.runtime.transport.listener import Peer as Peer
from gigl_loader.runtime.transport.reply import Reply as Reply
from gigl_loader.runtime.transport.reply import into_array as into_array
from gigl_loader.runtime.transport.security import Mode as Mode
from gigl_loader.runtime.transport.security import Security as Security
from gigl_loader.runtime.transport.sockets import address_towards as address_towards
from gigl_loader.runtime.transport.sockets import free_port as free_port
from gigl_loader.runtime.transport.sockets import free_ports as free_ports
from gigl_loader.runtime.transport.sockets import is_loopback as is_loopback
from gigl_loader.runtime.transport.sockets import own_address as own_address
from gigl_loader.runtime.transport.sockets import refuse_loopback_name as refuse_loopback_name
from gigl_loader.runtime.transport.sockets import refuse_unspecified as refuse_unspecified
from gigl_loader.runtime.transport.sockets import split_address as split_address
from gigl_loader.runtime.transport.stream import SILENCE_S as SILENCE_S
