from pathlib import Path

import pytest

from gigl_loader.errors import ConfigError
from gigl_loader.runtime.transport import sockets
from gigl_loader.runtime.transport.sockets import free_ports
from tests.support.conditions import SetConstants


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


@pytest.mark.parametrize("port", [-1, 65_536, 99_999])
def test_a_port_that_is_none_is_no_other_one(port: int) -> None:
    """The system's resolver takes the lowest 16 bits of any number."""
    words = f"port {port} of 127.0.0.1 is not between 0 and 65535"
    with pytest.raises(ConfigError, match=words):
        sockets.listen("127.0.0.1", port)


def test_an_address_of_each_family_is_told_from_its_port() -> None:
    assert sockets.split_address("storage0:29600") == ("storage0", 29_600)
    assert sockets.split_address("[::1]:29600") == ("::1", 29_600)
    for text in ("storage0", "storage0:", "storage0:2960O", "storage0:99999", ":29600"):
        with pytest.raises(ConfigError, match=f"takes HOST:PORT, got '{text}'"):
            sockets.split_address(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_taken_port_is_not_free(host: str) -> None:
    with sockets.listen(host, 0) as taken:
        assert not sockets.is_free(host, taken.getsockname()[1])
    assert sockets.is_free(host, free_ports(1, host)[0])


def test_the_way_to_a_host() -> None:
    assert sockets.address_towards("127.0.0.1") == "127.0.0.1"
    assert sockets.address_towards("::1") == "::1"


def test_no_way_to_a_host_names_the_host() -> None:
    """The kernel refuses to send to all of a network, as it does where there is no route."""
    with pytest.raises(ConfigError, match=r"cannot reach '255\.255\.255\.255' from this machine"):
        sockets.address_towards("255.255.255.255")


def test_a_port_to_give_is_none_that_the_system_gives_meanwhile(
    tmp_path: Path, constants: SetConstants
) -> None:
    """Not to a socket that connects, nor where it gives all ports but the first thousand."""
    for told, least, below in (
        ("32768\t60999", 15_000, 32_768),
        ("16000 60999", 15_000, 16_000),
        ("5000 60999", 4000, 5000),
        ("1024 65535", 15_000, 32_768),
    ):
        (tmp_path / "range").write_text(f"{told}\n")
        constants(sockets, _AUTOMATIC=str(tmp_path / "range"))
        ports = free_ports(50, "127.0.0.1")
        assert len(set(ports)) == 50
        assert all(least <= port < below for port in ports), told


def test_where_they_are_taken_the_system_gives_ports(
    tmp_path: Path, constants: SetConstants
) -> None:
    with sockets.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "range").write_text(f"{port + 1} 60999")
        constants(sockets, _AUTOMATIC=str(tmp_path / "range"), _FIRST_PORT=port, _LEAST_PORTS=1)
        (other,) = free_ports(1, "127.0.0.1")
    assert other not in (0, port)
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        free_ports(1, "192.0.2.1")


def test_free_ports_are_free() -> None:
    port = sockets.free_port("127.0.0.1")
    with sockets.listen("127.0.0.1", port) as sock:
        assert sock.getsockname()[1] == port
        with pytest.raises(ConfigError, match="cannot listen"):
            sockets.listen("127.0.0.1", port)
