"""A listener and its callers, as the fixtures of conftest.py make them."""

from dataclasses import dataclass, field
from typing import Any

from service import Service

from gigl_loader.transport import Caller, Security

AT_ONCE_S = 6.0
"""Well below the ten seconds after which silence would tell, and what a busy machine may take."""


@dataclass
class Network:
    """Builds services and callers, and closes them at the end."""

    security: Security
    opened: list[Any] = field(default_factory=list)

    def service(self, **options: Any) -> Service:
        service = Service(options.pop("security", self.security), **options)
        self.opened.append(service.listener)
        return service

    def caller(self, address: tuple[str, int], **options: Any) -> Caller:
        security = options.pop("security", self.security)
        caller = Caller(*address, security, options.pop("name", "tester"), **options)
        self.opened.insert(0, caller)  # callers close first
        return caller
