import os
import ssl
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gigl_loader.errors import ConfigError
from gigl_loader.runtime.transport import certs


def _read(certificate: Path, *what: str) -> list[str]:
    """Return the lines in which openssl tells ``what`` of a certificate."""
    command = ["openssl", "x509", "-noout", "-in", str(certificate), *what]
    return subprocess.check_output(command, text=True, timeout=60).splitlines()


def test_a_folder_holds_a_certificate_under_its_authority(tmp_path: Path) -> None:
    folder = certs.make_folder(tmp_path / "new" / "certs", ["node0", "10.1.2.3", "::1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(folder / "ca.pem")
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    names = _read(folder / "cert.pem", "-ext", "subjectAltName")
    assert names[-1].strip() == "DNS:node0, IP Address:10.1.2.3, IP Address:0:0:0:0:0:0:0:1"
    for secret in ("key.pem", "ca-key.pem"):
        assert stat.S_IMODE((folder / secret).stat().st_mode) == 0o600


def test_a_second_run_keeps_the_authority_and_renews_the_certificate(tmp_path: Path) -> None:
    certs.make_folder(tmp_path, ["node0"])
    first = {name: (tmp_path / name).read_bytes() for name in ("ca.pem", "cert.pem", "key.pem")}
    certs.make_folder(tmp_path, ["node1"])
    second = {name: (tmp_path / name).read_bytes() for name in first}
    assert second["ca.pem"] == first["ca.pem"]
    assert second["cert.pem"] != first["cert.pem"]
    assert second["key.pem"] != first["key.pem"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write certificates"):
        certs.make_folder(tmp_path / "file", [])


def test_the_ephemeral_certificate_is_made_once() -> None:
    assert certs.throwaway() is certs.throwaway()
    assert certs.first_certificate(certs.throwaway()).startswith("-----BEGIN CERTIFICATE")


def test_a_certificate_in_memory_is_gone_after_its_use() -> None:
    """An open descriptor for each would in the end be one too many."""
    before = os.listdir("/proc/self/fd")
    with certs.in_memory(b"a certificate") as path:
        assert Path(path).read_bytes() == b"a certificate"
    with pytest.raises(ssl.SSLError), certs.in_memory(b"no certificate") as path:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
    assert os.listdir("/proc/self/fd") == before


def test_a_path_and_a_host_cannot_change_what_is_made(tmp_path: Path) -> None:
    """Paths with signs that OpenSSL's configuration gives a meaning, and hosts with its commas."""
    folder = certs.make_folder(tmp_path / "a $b #c", ["node0"])
    assert sorted(path.name for path in folder.iterdir()) == [
        "ca-key.pem",
        "ca.pem",
        "cert.pem",
        "key.pem",
    ]
    for host in ("node0, DNS:other", "node0\nkeyUsage = critical", ""):
        with pytest.raises(ConfigError, match="neither a host name nor an address"):
            certs.make_folder(tmp_path / "refused", [host])
    assert not (tmp_path / "refused").exists()


def test_dates_allow_for_clocks_that_differ(tmp_path: Path) -> None:
    certs.make_folder(tmp_path, ["node0"], days=10)
    for name, days in (("cert.pem", 10), ("ca.pem", 100)):
        dates = dict(line.split("=") for line in _read(tmp_path / name, "-dates"))
        begins, ends = (
            (ssl.cert_time_to_seconds(dates[key]) - time.time()) / 86400
            for key in ("notBefore", "notAfter")
        )
        assert -2.1 < begins < -1.9
        assert days - 0.1 < ends < days + 0.1


def test_strict_clients_accept_the_chain(tmp_path: Path) -> None:
    """As clients of Python 3.13 verify it: key usages and identifiers have to be there."""
    certs.make_folder(tmp_path, ["node0"])
    strict = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname"]
    done = subprocess.run(
        [*strict, "node0", "-CAfile", tmp_path / "ca.pem", tmp_path / "cert.pem"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("make", [certs.throwaway.__wrapped__, lambda: certs.make_folder(".", [])])
def test_without_openssl_the_error_says_what_to_install(
    make: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="install the package openssl"):
        make()
    assert list(tmp_path.iterdir()) == []


def test_a_failure_of_openssl_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "openssl"
    command.write_text("#!/bin/sh\necho no random numbers >&2\nexit 3\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ConfigError, match=r"openssl req failed \(3\): no random numbers"):
        certs.throwaway.__wrapped__()
