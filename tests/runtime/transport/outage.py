"""What an outage of the network costs, beyond its length."""

import threading
import time

from gigl_loader.runtime.transport import Caller, Security
from gigl_loader.testing import wait_until
from tests.runtime.transport.relay import Relay
from tests.runtime.transport.service import Answer, Service, question

BYTES, BYTES_PER_S = 1 << 21, 4e6
"""Of the batch that is cut in its middle, and of the link that it comes over."""


def outage(security: Security, length_s: float, idle: bool, patience_s: float) -> float:
    """Return how long answers take around an outage, less the outage itself, in seconds."""
    service = Service(security, silence_s=patience_s)
    try:
        with (
            Relay(service.listener.address, 1e9 if idle else BYTES_PER_S) as relay,
            Caller(
                relay.address[0], relay.address[1], security, "outage", patience_s=patience_s
            ) as caller,
        ):
            caller.ask("double", question(0), Answer).wait(60)
            replies = [] if idle else [caller.ask("zeros", question(BYTES), Answer)]
            wait_until(lambda: relay.passed > (0 if idle else 100_000), "bytes passed")
            relay.cut.set()
            started = time.monotonic()
            healing = threading.Timer(length_s, relay.cut.clear)
            healing.start()
            replies.append(caller.ask("double", question(7), Answer))
            assert replies[-1].wait(60).rows.tolist() == [14, 16, 18]
            assert all(reply.done for reply in replies)
            healing.join()
            return time.monotonic() - started - length_s
    finally:
        service.listener.close()
