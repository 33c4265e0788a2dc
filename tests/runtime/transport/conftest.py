import threading
from collections.abc import Iterator

import pytest

from gigl_loader.runtime.transport import Security
from gigl_loader.testing import wait_until
from tests.runtime.transport.network import Network
from tests.runtime.transport.service import SECURITIES


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
