"""gloo's interface on machines whose own name stands for a loopback address."""

import os
import socket
from types import SimpleNamespace

import pytest

from gigl_loader.commands import diagnose
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.ranks import gloo_interface
from gigl_loader.runtime.ranks.gloo_interface import VARIABLE, interface_needed, interface_towards
from gigl_loader.runtime.transport import sockets

ROUTES = {"10.9.0.1": "10.9.0.7", "gpu0": "127.0.0.1", "192.0.2.1": "10.9.0.7"}
"""Destination to the address that packets to it leave from."""


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine whose name is 127.0.1.1, and whose ``eth7`` leads to the others."""
    names = {"node1": "127.0.1.1"}
    monkeypatch.delenv(VARIABLE, raising=False)

    def address_towards(host: str) -> str:
        if host not in ROUTES:
            raise ConfigError(f"cannot reach {host!r} from this machine")
        return ROUTES[host]

    machine = SimpleNamespace(
        own_name=lambda: ("node1", names["node1"]),
        address_towards=address_towards,
        interface_of={"10.9.0.7": "eth7"}.get,
    )
    monkeypatch.setattr(gloo_interface, "sockets", machine)
    return SimpleNamespace(names=names)


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("10.9.0.1", "eth7"),
        ("gpu0", "eth7"),  # rank 0 knows its own name as a loopback address: the default route
        ("no-such-host.invalid", "eth7"),  # the same
        ("127.0.0.1", None),  # all on one machine
        ("localhost", None),
        ("", None),
    ],
)
def test_the_interface_that_leads_to_the_master(debian, master, expected) -> None:
    assert interface_needed(master) == expected


def test_nothing_is_named_where_the_hosts_name_serves(debian) -> None:
    debian.names["node1"] = "10.9.0.7"
    assert interface_needed("10.9.0.1") is None


def test_what_the_user_named_stays(debian, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "ib0")
    with interface_towards("10.9.0.1"):
        assert os.environ[VARIABLE] == "ib0"
    assert os.environ[VARIABLE] == "ib0"


def test_it_is_set_while_the_group_is_made(debian, caplog) -> None:
    caplog.set_level("INFO")
    with interface_towards("10.9.0.1"):
        assert os.environ[VARIABLE] == "eth7"
    assert VARIABLE not in os.environ
    assert "loopback address" in caplog.text
    assert f"{VARIABLE}=eth7" in caplog.text


def test_diagnose_names_it(debian, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.9.0.1")
    (found,) = [one for one in diagnose.network() if one.name == "gloo"]
    assert found.bad
    assert f"export {VARIABLE}=eth7" in found.text
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert not [one for one in diagnose.network() if one.name == "gloo" and one.bad]


def test_interfaces_of_this_machine() -> None:
    loopback = sockets.interface_of("127.0.0.1")
    assert loopback in {name for _, name in socket.if_nameindex()}
    assert sockets.interface_of("192.0.2.200") is None
