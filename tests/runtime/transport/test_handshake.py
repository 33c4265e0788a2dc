import contextlib
import logging
import shutil
import socket
import struct
import threading
import time
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from gigl_loader.errors import JoinRefusedError, PeerLostError, ProtocolError
from gigl_loader.runtime.transport import Caller, EndReason, Security, certs, stream
from gigl_loader.runtime.transport.codec import decode
from gigl_loader.runtime.transport.handshake import NONCE_BYTES, Admitted, Goodbye, Greeting, Hello
from gigl_loader.runtime.transport.stream import FrameKind, Steps, Stream, drive, pack, read_frame
from gigl_loader.testing import wait_until
from tests.runtime.transport.network import AT_ONCE_S, Network, refusals
from tests.runtime.transport.service import TOKEN, Answer, question
from tests.support.conditions import SetConstants


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("certs")
    made = {"good": certs.make_folder(root / "good", ["127.0.0.1", "node"])}
    made["foreign"] = certs.make_folder(root / "foreign", ["127.0.0.1"])
    shutil.copytree(made["good"], root / "expired")
    made["expired"] = certs.make_folder(root / "expired", ["127.0.0.1"], days=-0.5)
    shutil.copytree(made["good"], root / "self-signed")
    for name in ("cert.pem", "key.pem"):  # an authority of its own signs for itself
        source = {"cert.pem": "ca.pem", "key.pem": "ca-key.pem"}[name]
        shutil.copy(made["foreign"] / source, root / "self-signed" / name)
    made["self-signed"] = root / "self-signed"
    return made


def refusal(caller: Caller) -> JoinRefusedError:
    started = time.monotonic()
    with pytest.raises(JoinRefusedError) as caught:
        caller.connect(time.monotonic() + 60)
    assert time.monotonic() - started < AT_ONCE_S
    return caught.value


def test_certificates_of_one_authority_let_in(folders: dict[str, Path], plain: Network) -> None:
    security = Security.resolve(str(folders["good"]), "", False)
    service = plain.service(security=security)
    caller = plain.caller(service.listener.address, security=security)
    assert caller.ask("double", question(1), Answer).wait(60).number == 1


@pytest.mark.parametrize("bad", ["foreign", "expired", "self-signed"])
@pytest.mark.parametrize("side", ["caller", "listener"])
def test_other_certificates_are_refused_with_words_at_both_ends(
    folders: dict[str, Path], plain: Network, caplog: pytest.LogCaptureFixture, bad: str, side: str
) -> None:
    securities = {
        name: Security.resolve(str(folders[bad if name == side else "good"]), "", False)
        for name in ("caller", "listener")
    }
    service = plain.service(security=securities["listener"])
    with caplog.at_level(logging.WARNING):
        error = refusal(plain.caller(service.listener.address, security=securities["caller"]))
        wait_until(lambda: refusals(caplog), "the refusal is counted, and logged")
    assert error.end == EndReason.REFUSED_CERTIFICATE
    words = ("expired",) if bad == "expired" else ("issuer", "self-signed", "unknown ca")
    for text in (str(error), refusals(caplog)[-1]):
        assert "certificate" in text
        assert any(word in text for word in words), text
    assert service.listener.stats()["refused"] == {EndReason.REFUSED_CERTIFICATE.value: 1}
    assert service.peers == []


def token(text: str) -> Security:
    return Security.resolve("", text, False)


CASES = {
    "wrong token, TLS": (
        token(TOKEN),
        token(TOKEN[::-1]),
        EndReason.REFUSED_TOKEN,
        "the caller did not prove the cluster token",
    ),
    "plain to TLS": (token(TOKEN), Security.local(), EndReason.REFUSED_MODE, "TLS"),
    "TLS to plain": (Security.local(), token(TOKEN), EndReason.REFUSED_MODE, "TLS"),
    "nothing set, TLS": (
        token(TOKEN),
        Security.local(),
        EndReason.REFUSED_MODE,
        "neither GIGL_LOADER_CLUSTER_TOKEN nor GIGL_LOADER_TLS_DIR is set in this process",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_settings_that_differ_are_refused_with_words_at_both_ends(
    plain: Network, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    listening, calling, end, words = CASES[case]
    service = plain.service(security=listening)
    with caplog.at_level(logging.WARNING):
        error = refusal(plain.caller(service.listener.address, security=calling))
        assert error.end == end
        assert words in str(error), "who said so: the other side would have refused it as well"
        wait_until(lambda: refusals(caplog), "the refusal is counted, and logged")
    assert "refused 1 connection" in refusals(caplog)[-1]
    assert service.listener.stats()["refused"] == {end.value: 1}
    assert service.peers == []


def test_another_version_is_named(plain: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    service = plain.service()
    with socket.create_connection(service.listener.address) as sock:
        sock.sendall(stream.KNOCK_FRAME.replace(stream.KNOCK_FRAME[:5], b"GLt\0\x07"))
        data = b""
        while piece := sock.recv(1000):
            data += piece
    assert b"speaks version 7" in data
    assert service.listener.stats()["refused"] == {EndReason.REFUSED_VERSION.value: 1}


def test_a_listener_of_another_version_is_named() -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"GLt\0\x07\x02" + bytes(18))
                while piece := connection.recv(1000):
                    heard.append(piece)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        host, port = server.getsockname()
        with Caller(host, port, Security.local(), "x") as caller:
            error = refusal(caller)
        thread.join(10)
    assert error.end == EndReason.REFUSED_VERSION
    assert "speaks version 7" in str(error)
    assert b"speaks version 7" in b"".join(heard)  # the listener is told, too


def test_whoever_does_not_know_the_token_cannot_play_the_listener() -> None:
    """A listener that takes any proof has to prove the token itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening = token("a guess").context(server=True)

        def serve() -> None:
            connection, _ = server.accept()
            with listening.wrap_socket(connection, server_side=True) as tls:
                tls.sendall(pack(FrameKind.GREETING, Greeting(bytes(32)))[0])
                tls.sendall(pack(FrameKind.ADMITTED, Admitted(bytes(32), 1000, 1))[0])
                with contextlib.suppress(OSError):
                    while tls.recv(1000):
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        host, port = server.getsockname()
        with Caller(host, port, token(TOKEN), "x") as caller:
            assert refusal(caller).end == EndReason.REFUSED_TOKEN
        thread.join(10)


def _prove(stream: Stream, security: Security, nonce: bytes) -> Steps:
    """Do a caller's handshake with a nonce of its choice; return what the listener says to it."""
    yield from stream.start_tls(security.context(server=False), server=False)
    greeting = decode((yield from read_frame(stream, 0)).body, [], Greeting)
    proof = security.proof(b"caller", nonce + greeting.nonce, stream.peer_certificate())
    stream.push(pack(FrameKind.HELLO, Hello("x", "s", "lane", nonce, proof)))
    return (yield from read_frame(stream, 0))


@pytest.mark.parametrize("length", [0, 31, NONCE_BYTES, 33, 64])
def test_a_nonce_of_another_length_is_refused(plain: Network, length: int) -> None:
    """It would move the border between the two nonces, so that one proof stood for two pairs."""
    service = plain.service(security=token(TOKEN))
    caller = Stream(socket.create_connection(service.listener.address))
    with contextlib.closing(caller):
        said = drive(_prove(caller, token(TOKEN), bytes(length)), caller, lambda: AT_ONCE_S)
        if length == NONCE_BYTES:
            assert said.kind is FrameKind.ADMITTED, "the rest of it is as a caller's"
            return
    assert decode(said.body, [], Goodbye).end is EndReason.REFUSED_TOKEN
    assert service.peers == []


# what ends a line, moves the cursor, hides text, or turns its direction
FORGED = "bye\n2026-01-01 ERROR root: forged\r\x1b[2J\x00\u2028\u202e" + "x" * 4000
SHOWN = "bye\\n2026-01-01 ERROR root: forged\\r\\x1b[2J\\x00\\u2028\\u202exxx"


def test_words_of_a_stranger_are_one_line_of_the_log(
    plain: Network, caplog: pytest.LogCaptureFixture
) -> None:
    service = plain.service()
    with (
        caplog.at_level(logging.WARNING),
        socket.create_connection(service.listener.address) as sock,
    ):
        sock.sendall(pack(FrameKind.BYE, Goodbye(EndReason.CLOSED, FORGED[:3000]))[0])
        wait_until(lambda: refusals(caplog), "the refusal is in the log")
    (told,) = refusals(caplog)
    assert SHOWN in told
    assert told.isprintable()
    assert len(told) < 1000


def test_words_of_a_listener_are_one_line_of_an_error(plain: Network) -> None:
    """In a goodbye, where it refuses or ends, and in a name that this side does not know."""
    service = plain.service()
    caller = plain.caller(service.listener.address)
    unanswered = caller.ask("never", question(1), Answer)
    wait_until(lambda: service.never, "it is asked")
    service.listener.close(EndReason.SHUTDOWN, FORGED)
    with pytest.raises(PeerLostError) as caught:
        unanswered.wait(60)
    assert SHOWN in str(caught.value)
    assert str(caught.value).isprintable()
    with pytest.raises(ProtocolError) as wrong:
        decode(msgspec.Raw(msgspec.msgpack.encode({"end": "a\nb\x1b", "words": ""})), [], Goodbye)
    assert str(wrong.value).isprintable()


def test_a_caller_is_called_what_it_says_in_one_line(plain: Network) -> None:
    service = plain.service()
    plain.caller(service.listener.address, name=FORGED).connect(time.monotonic() + 60)
    wait_until(lambda: service.peers, "it is known")
    assert service.peers[0].name.startswith(SHOWN)
    assert service.peers[0].name.isprintable()


def test_a_long_session_is_not_let_in(plain: Network) -> None:
    """Sessions of those that left are remembered: 10,000 of 4,000 characters were 40 MB."""
    service = plain.service()
    caller = plain.caller(service.listener.address, session="x" * 256)
    with pytest.raises((JoinRefusedError, PeerLostError)):
        caller.connect(time.monotonic() + 60)
    plain.caller(service.listener.address, session="x" * 255).connect(time.monotonic() + 60)
    wait_until(lambda: service.peers, "the other one is known")
    assert [len(peer.session) for peer in service.peers] == [255]


def test_nobody_in_the_middle_can_pass_the_proofs_on(plain: Network) -> None:
    """Both ends speak TLS to him, with his certificate towards the caller: proofs do not match."""
    own = token(TOKEN)
    other = Security(own.mode, TOKEN, throwaway=certs.throwaway.__wrapped__())
    service = plain.service(security=own)
    listening = other.context(server=True)
    calling = other.context(server=False)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def relay() -> None:
            near, _ = server.accept()
            with (
                listening.wrap_socket(near, server_side=True) as near_tls,
                calling.wrap_socket(socket.create_connection(service.listener.address)) as far_tls,
            ):
                for source, target in [(far_tls, near_tls), (near_tls, far_tls)] * 2:
                    data = source.recv(4096)
                    if not data:
                        return
                    target.sendall(data)

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        assert (
            refusal(plain.caller(server.getsockname(), security=own)).end == EndReason.REFUSED_TOKEN
        )
        thread.join(10)
    assert service.peers == []


def test_renewed_certificates_are_read_without_a_restart(
    folders: dict[str, Path], plain: Network, tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["foreign"], tmp_path / "renewed")
    security = Security.resolve(str(folder), "", False)
    good = Security.resolve(str(folders["good"]), "", False)
    service = plain.service(security=security)
    former = plain.caller(service.listener.address, security=security)
    former.connect(time.monotonic() + 10)
    assert refusal(plain.caller(service.listener.address, security=good)).end
    for name in ("ca.pem", "cert.pem", "key.pem"):
        shutil.copy(folders["good"] / name, folder / name)
    renewed = plain.caller(service.listener.address, security=good)
    assert renewed.ask("double", question(1), Answer).wait(60).number == 1
    assert former.ask("double", question(2), Answer).wait(60).number == 2


def test_half_a_renewal_keeps_the_former_certificates(
    folders: dict[str, Path], plain: Network, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(folders["good"], tmp_path / "half")
    good = Security.resolve(str(folders["good"]), "", False)
    service = plain.service(security=Security.resolve(str(folder), "", False))
    shutil.copy(folders["foreign"] / "cert.pem", folder / "cert.pem")  # the key is not there yet
    caller = plain.caller(service.listener.address, security=good)
    assert caller.ask("double", question(1), Answer).wait(60).number == 1
    assert "renewed certificates are not used" in caplog.text


def test_a_frame_that_announces_16_gib_costs_nothing(plain: Network) -> None:
    service = plain.service()
    head = struct.Struct("<4sBBxxIIQ")
    with socket.create_connection(service.listener.address) as sock:
        sock.sendall(head.pack(b"GLt\0", stream.VERSION, 1, 100, 1, 16 << 30))
        data = b""
        while piece := sock.recv(1000):
            data += piece
    assert b"17179869184" in data
    assert service.listener.stats()["refused"] == {EndReason.REFUSED_SERVICE.value: 1}


def test_16_gib_from_one_who_is_let_in_cost_nothing(network: Network) -> None:
    """The token is no leave to take memory."""
    service = network.service()
    connection = network.enter(service.listener.address)
    head = struct.pack(
        "<4sBBxxIIQ", b"GLt\0", stream.VERSION, stream.FrameKind.ASK, 100, 1, 16 << 30
    )
    tracemalloc.start()
    try:
        connection.push([memoryview(head)])
        wait_until(lambda: service.ends, "the listener has read it")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20, "numpy's memory is counted, too"
    finally:
        tracemalloc.stop()
    assert [end for _, end in service.ends] == [EndReason.PROTOCOL]
    other = network.caller(service.listener.address)
    assert other.ask("double", question(2), Answer).wait(60).number == 2


def test_a_large_answer_is_refused_before_memory_is_taken(
    plain: Network, constants: SetConstants
) -> None:
    constants("gigl_loader.runtime.transport.caller", MAX_ANSWER_BYTES=1000)
    service = plain.service()
    caller = plain.caller(service.listener.address)
    with pytest.raises(ProtocolError, match="at most"):
        caller.ask("zeros", question(2000), Answer).wait(60)
