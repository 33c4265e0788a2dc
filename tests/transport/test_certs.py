import ssl
import stat
from pathlib import Path

import pytest

from gigl_loader.errors import ConfigError
from gigl_loader.transport import certs


def test_a_folder_holds_a_certificate_under_its_authority(tmp_path: Path) -> None:
    folder = certs.make_folder(tmp_path / "new" / "certs", ["node0", "10.1.2.3", "::1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(folder / "ca.pem")
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    shown = ssl._ssl._test_decode_cert(str(folder / "cert.pem"))  # type: ignore[attr-defined]
    assert shown["subjectAltName"] == (
        ("DNS", "node0"),
        ("IP Address", "10.1.2.3"),
        ("IP Address", "0:0:0:0:0:0:0:1"),
    )
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


def test_the_throw_away_certificate_is_made_once() -> None:
    assert certs.throwaway() is certs.throwaway()
    assert certs.first_certificate(certs.throwaway()).startswith("-----BEGIN CERTIFICATE")
