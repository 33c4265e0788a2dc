import contextlib
import os
import pickle
import ssl
import threading
from pathlib import Path

import pytest

from gigl_loader.errors import ConfigError
from gigl_loader.runtime.transport import Mode, Security, certs
from gigl_loader.testing import wait_until
from tests.runtime.transport.service import TOKEN


def test_arguments_come_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = str(certs.make_folder(tmp_path, ["127.0.0.1"]))
    assert Security.resolve().mode is Mode.USER
    monkeypatch.setenv("GIGL_LOADER_CLUSTER_TOKEN", TOKEN)
    assert Security.resolve() == Security(Mode.TOKEN, TOKEN)
    assert Security.resolve(token="other").token == "other"
    assert Security.resolve(insecure=True) == Security(Mode.INSECURE)
    monkeypatch.setenv("GIGL_LOADER_TLS_DIR", folder)
    assert Security.resolve() == Security(Mode.CERTIFICATES, tls_dir=folder)
    with pytest.raises(ConfigError, match="drop one of"):
        Security.resolve(insecure=True)
    monkeypatch.setenv("GIGL_LOADER_INSECURE", "1")
    assert Security.resolve(tls_dir="").mode is Mode.INSECURE
    monkeypatch.setenv("GIGL_LOADER_INSECURE", "perhaps")
    with pytest.raises(ConfigError, match="must be 1 or 0"):
        Security.resolve()


def test_a_folder_without_its_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ca\.pem is missing"):
        Security.resolve(str(tmp_path))


def test_files_that_are_no_certificates_are_refused(tmp_path: Path) -> None:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).write_text("nothing")
    with pytest.raises(ConfigError, match="cannot use the certificates"):
        Security.resolve(str(tmp_path)).context(server=True)


def test_files_that_do_not_answer_stop_nobody_who_has_them(tmp_path: Path) -> None:
    """As on a file system of the network that stands: one thread waits for them, and no other."""
    folder = certs.make_folder(tmp_path, ["127.0.0.1"])
    security = Security.resolve(str(folder), "", False)
    former = security.context(server=True)
    os.mkfifo(tmp_path / "fifo")
    os.replace(tmp_path / "fifo", folder / "cert.pem")
    stands = threading.Thread(target=security.context, kwargs={"server": True}, daemon=True)
    stands.start()
    writer: list[int] = []

    def is_read() -> bool:
        with contextlib.suppress(OSError):  # nobody reads so far
            writer.append(os.open(folder / "cert.pem", os.O_WRONLY | os.O_NONBLOCK))
        return bool(writer)

    wait_until(is_read, "a thread reads the renewed file")
    asked = threading.Thread(target=lambda: found.append(security.context(server=True)))
    found: list[ssl.SSLContext] = []
    asked.start()
    asked.join(30)
    try:
        assert found == [former], "it has not waited"
        assert stands.is_alive()
        assert Security.resolve("", TOKEN, False).context(server=True) is not former
    finally:
        os.close(writer[0])
    stands.join(60)
    asked.join(60)


@pytest.mark.parametrize("weak", ["x", "hunter2", "a" * 64, TOKEN[:-1]])
def test_weak_tokens_are_refused_beyond_loopback(weak: str) -> None:
    security = Security.resolve("", weak, False)
    security.check_listener("127.0.0.1")
    with pytest.raises(ConfigError, match="gigl-loader token"):
        security.check_listener("10.0.0.1")


def test_tokens_that_the_command_makes_are_taken() -> None:
    tokens = {certs.token() for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        Security.resolve("", token, False).check_listener("10.0.0.1")


def test_workers_get_the_certificate_of_their_parent() -> None:
    security = Security.resolve("", TOKEN, False)
    given = pickle.loads(pickle.dumps(security.for_workers()))
    assert given.certificate() == security.certificate() != b""
    assert Security.local().for_workers() == Security.local()


def test_secrets_are_not_shown() -> None:
    shown = repr(Security.resolve("", TOKEN, False).for_workers())
    assert TOKEN not in shown
    assert "PRIVATE" not in shown


def test_proofs_differ_by_role_nonce_certificate_and_token() -> None:
    security = Security.resolve("", TOKEN, False)
    proofs = {
        security.proof(b"caller", b"n", b"c"),
        security.proof(b"listener", b"n", b"c"),
        security.proof(b"caller", b"m", b"c"),
        security.proof(b"caller", b"n", b"d"),
        Security.resolve("", "other", False).proof(b"caller", b"n", b"c"),
    }
    assert len(proofs) == 5
    for mode in (Mode.USER, Mode.INSECURE, Mode.CERTIFICATES):
        assert Security(mode, TOKEN).proof(b"caller", b"n", b"c") == b"", "only inside of TLS"


def test_a_token_that_ends_in_nul_is_another_one() -> None:
    """HMAC fills a short key with NUL."""
    proofs = {Security(Mode.TOKEN, token).proof(b"", b"", b"") for token in ("a", "a\0", "a\0\0")}
    assert len(proofs) == 3
