import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from service import SECURITIES, Service

from gigl_loader.testing._waiting import wait_until
from gigl_loader.transport import Caller, Security


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


def _network(security: Security) -> Iterator[Network]:
    network = Network(security)
    yield network
    for opened in network.opened:
        opened.close()
    wait_until(
        lambda: not [t for t in threading.enumerate() if t.name.startswith("service")],
        "the threads of the listeners end",
    )


@pytest.fixture(params=SECURITIES)
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    yield from _network(SECURITIES[request.param]())


@pytest.fixture
def plain() -> Iterator[Network]:
    yield from _network(Security.local())


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TLS_DIR", "CLUSTER_TOKEN", "INSECURE"):
        monkeypatch.delenv(f"GIGL_LOADER_{name}", raising=False)
