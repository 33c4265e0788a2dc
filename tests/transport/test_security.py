import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from service import TOKEN

from gigl_loader.errors import ConfigError
from gigl_loader.transport import Mode, Security, certs


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


def test_a_file_server_that_is_away_holds_up_no_other_handshake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One thread looks whether the certificates changed; the others use those that are known."""
    security = Security.resolve(str(certs.make_folder(tmp_path, ["127.0.0.1"])))
    known, token = security.context(server=True), Security.resolve("", TOKEN)
    looks, back = threading.Event(), threading.Event()
    stat = Path.stat

    def slow(path: Path, **how: bool) -> os.stat_result:
        if path.parent == tmp_path:
            looks.set()
            assert back.wait(60)
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", slow)
    with ThreadPoolExecutor(3) as pool:
        try:
            held_up = pool.submit(security.context, server=True)
            assert looks.wait(60)
            assert pool.submit(security.context, server=True).result(20) is known
            pool.submit(token.context, server=True).result(20)
            assert not held_up.done()
        finally:
            back.set()
        assert held_up.result(60) is known
