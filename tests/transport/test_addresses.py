import pytest

from gigl_loader.errors import ConfigError
from gigl_loader.transport import sockets


def test_loopback_is_told_from_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sockets.is_loopback("127.0.1.1")
    assert sockets.is_loopback("::1")
    assert sockets.is_loopback("localhost")
    assert not sockets.is_loopback("10.0.0.1")
    assert not sockets.is_loopback("0.0.0.0")
    sockets.refuse_loopback_name("10.0.0.1")


def test_a_name_that_means_this_machine_alone_is_refused(host_names: dict[str, str]) -> None:
    host_names["node0"] = "127.0.1.1"
    with pytest.raises(ConfigError, match=r"'node0' resolves to 127\.0\.1\.1 .*/etc/hosts"):
        sockets.refuse_loopback_name("node0")


def test_a_name_without_an_address_is_named() -> None:
    with pytest.raises(ConfigError, match=r"host 'no-such-host\.invalid' has no address"):
        sockets.resolve("no-such-host.invalid", 1)


def test_the_way_to_a_host() -> None:
    assert sockets.address_towards("127.0.0.1") == "127.0.0.1"
    assert sockets.address_towards("::1") == "::1"


def test_no_way_to_a_host_names_the_host() -> None:
    """The kernel refuses to send to all of a network, as it does where there is no route."""
    with pytest.raises(ConfigError, match=r"cannot reach '255\.255\.255\.255' from this machine"):
        sockets.address_towards("255.255.255.255")


def test_free_ports_are_free() -> None:
    port = sockets.free_port("127.0.0.1")
    with sockets.listen("127.0.0.1", port) as sock:
        assert sock.getsockname()[1] == port
        with pytest.raises(ConfigError, match="cannot listen"):
            sockets.listen("127.0.0.1", port)
