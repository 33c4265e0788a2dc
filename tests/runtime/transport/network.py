"""A listener and its callers, as the fixtures of conftest.py make them."""

import socket
from dataclasses import dataclass, field
from typing import Any

import pytest

from gigl_loader.runtime.transport import Caller, Security
from gigl_loader.runtime.transport.handshake import join
from gigl_loader.runtime.transport.stream import Stream, drive
from tests.runtime.transport.service import Service

PATIENCE_S = 100.0
"""Of callers and services that are not to be given up: longer than any machine stands still."""
AT_ONCE_S = 25.0
"""Well below the time after which silence would tell, and what a busy machine may take."""


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what listeners logged of callers that they refused; others may log meanwhile."""
    return [text for text in caplog.messages if " refused " in text]


def enter(address: tuple[str, int], security: Security, lane: str, source: str = "") -> Stream:
    """Do a caller's handshake, and nothing else; return the connection."""
    stream = Stream(socket.create_connection(address, source_address=(source, 0)))
    try:
        drive(join(stream, security, "tester", "s", lane), stream, lambda: AT_ONCE_S)
    except BaseException:
        stream.close()
        raise
    return stream


@dataclass
class Network:
    """Builds services and callers, and closes them at the end."""

    security: Security
    opened: list[Any] = field(default_factory=list)

    def service(self, **options: Any) -> Service:
        options = {"silence_s": PATIENCE_S, **options}
        service = Service(options.pop("security", self.security), **options)
        self.opened.append(service.listener)
        return service

    def caller(self, address: tuple[str, int], **options: Any) -> Caller:
        options = {"patience_s": PATIENCE_S, **options}
        security = options.pop("security", self.security)
        caller = Caller(*address, security, options.pop("name", "tester"), **options)
        self.opened.insert(0, caller)  # callers close first
        return caller

    def enter(self, address: tuple[str, int]) -> Stream:
        """Return a connection that was let in, and nothing else of a caller."""
        stream = enter(address, self.security, "lane")
        self.opened.insert(0, stream)
        return stream
