"""The first exchange on a connection, from both sides, as steps of a `Stream`.

::

    caller                                   listener
    KNOCK (plain) or TLS ClientHello  -->
                                      <--    [TLS]  GREETING(nonce)
    HELLO(name, nonce, proof)         -->
                                      <--    ADMITTED(proof, incarnation)  or  BYE(end, words)

The listener greets before the caller says who it is. In TLS 1.3 a client learns only at its first
read that its certificate was refused; and where both sides must belong to one user, neither names
itself to another user's process. A plain caller knocks, so that a TLS listener can send it the
reason in plain bytes; any other program on the port responds to a knock with bytes that the error
can show.
"""

import contextlib
import errno
import hmac
import os
import ssl
from dataclasses import dataclass

from gigl_loader.errors import JoinRefusedError, ProtocolError, ResourceError
from gigl_loader.runtime.decoding import MOST_OF_NAME, Name
from gigl_loader.runtime.transport.codec import decode
from gigl_loader.runtime.transport.failures import EndReason, one_line
from gigl_loader.runtime.transport.security import TOKEN_VARIABLE, Mode, Security, what_is_not_set
from gigl_loader.runtime.transport.sockets import is_over, user_of_peer
from gigl_loader.runtime.transport.stream import (
    KNOCK_FRAME,
    MAGIC,
    Frame,
    FrameKind,
    OtherVersionError,
    Steps,
    Stream,
    pack,
    read_frame,
)

NONCE_BYTES = 32
# Limit of a frame before the other side is known: a HELLO has about 300 bytes, a goodbye at most
# 2,100.
_MAX_BYTES = 4096
_TLS_RECORDS = (b"\x14", b"\x15", b"\x16", b"\x17")  # first bytes of TLS
_SAME_TOKEN = f"set {TOKEN_VARIABLE} to one value on all machines"


@dataclass(frozen=True)
class Greeting:
    """First message of a listener."""

    nonce: bytes


@dataclass(frozen=True)
class Hello:
    """First message of a caller: who it is, and its proof of the token."""

    name: str
    session: Name
    lane: str
    nonce: bytes
    proof: bytes


@dataclass(frozen=True)
class Admitted:
    """The listener admits the caller."""

    proof: bytes
    max_ask_bytes: int
    incarnation: int
    """Identity of the listener's process: a random number."""


@dataclass(frozen=True)
class Goodbye:
    """Why a connection ends, or was refused."""

    end: EndReason
    words: str


def farewell(end: EndReason, words: str) -> bytes:
    """Return a complete BYE frame."""
    return bytes(pack(FrameKind.BYE, Goodbye(end, words[:2000]))[0])


def join(stream: Stream, security: Security, name: str, session: str, lane: str) -> Steps:
    """Do the caller's side; the generator returns the listener's `Admitted`.

    Raises:
        JoinRefusedError: One side refused the other; ``end`` tells why.
        EOFError, OSError: The connection broke.
    """
    try:
        return (yield from _join(stream, security, name, session, lane))
    except JoinRefusedError as error:  # the listener's words; only this side knows what it lacks
        if error.end not in (EndReason.REFUSED_MODE, EndReason.REFUSED_TOKEN):
            raise
        raise JoinRefusedError(f"{error}{what_is_not_set(security)}", error.end) from error
    except (ssl.SSLError, ProtocolError) as error:
        refused = refusal(stream, error, "the listener", security)
        if isinstance(error, OtherVersionError):
            stream.end(farewell(EndReason.REFUSED_VERSION, str(error)))
        raise refused from error


def _join(stream: Stream, security: Security, name: str, session: str, lane: str) -> Steps:
    if security.mode.encrypted:
        yield from stream.start_tls(security.context(server=False), server=False)
    else:
        stream.push([memoryview(KNOCK_FRAME)])
    greeting = decode((yield from _expect(stream, FrameKind.GREETING)).body, [], Greeting)
    # After the greeting, which shows that a process has accepted the connection, and before this
    # side names itself.
    _check_user(stream, security, "the listener")
    nonce, certificate = os.urandom(NONCE_BYTES), stream.peer_certificate()
    # both nonces in one order, so that neither side can make the other repeat an old proof
    nonces = nonce + greeting.nonce
    proof = security.proof(b"caller", nonces, certificate)
    stream.push(pack(FrameKind.HELLO, Hello(name[:MOST_OF_NAME], session, lane, nonce, proof)))
    admitted = decode((yield from _expect(stream, FrameKind.ADMITTED)).body, [], Admitted)
    # in constant time: the length of a comparison would tell how much of the guess was right
    if not hmac.compare_digest(admitted.proof, security.proof(b"listener", nonces, certificate)):
        words = f"it does not know the cluster token of this side: {_SAME_TOKEN}"
        stream.end(farewell(EndReason.REFUSED_TOKEN, words))
        raise JoinRefusedError(words, EndReason.REFUSED_TOKEN)
    return admitted


def admit(stream: Stream, security: Security, max_ask_bytes: int, incarnation: int) -> Steps:
    """Do the listener's side; the generator returns the caller's `Hello`.

    Raises:
        JoinRefusedError: One side refused the other; the caller has not been told yet.
        EOFError, OSError: The connection broke.
    """
    try:
        return (yield from _admit(stream, security, max_ask_bytes, incarnation))
    except (ssl.SSLError, ProtocolError) as error:
        raise refusal(stream, error, "the caller", security) from error


def _admit(stream: Stream, security: Security, max_ask_bytes: int, incarnation: int) -> Steps:
    mine = os.urandom(NONCE_BYTES)
    if security.mode.encrypted:
        yield from stream.start_tls(security.context(server=True), server=True)
    else:
        yield from _expect(stream, FrameKind.KNOCK)
        # before the greeting, after which the caller checks this side: one of the two gives the
        # reason
        _check_user(stream, security, "the caller")
    stream.push(pack(FrameKind.GREETING, Greeting(mine)))
    hello = decode((yield from _expect(stream, FrameKind.HELLO)).body, [], Hello)
    certificate, nonces = security.certificate(), hello.nonce + mine
    # a proof includes the role: else a caller's proof could be sent back to it as the listener's
    wanted = security.proof(b"caller", nonces, certificate)
    # a nonce of another length would move the border between the two nonces
    if not hmac.compare_digest(hello.proof, wanted) or len(hello.nonce) != NONCE_BYTES:
        words = f"the caller did not prove the cluster token: {_SAME_TOKEN}"
        raise JoinRefusedError(words, EndReason.REFUSED_TOKEN)
    proof = security.proof(b"listener", nonces, certificate)
    stream.push(pack(FrameKind.ADMITTED, Admitted(proof, max_ask_bytes, incarnation)))
    return hello


def _check_user(stream: Stream, security: Security, who: str) -> None:
    """Refuse another user's process if no authentication is set."""
    own_user = os.geteuid()
    if security.mode is not Mode.USER:
        return
    try:
        user = user_of_peer(stream.sock)
    except ResourceError as error:
        words = f"whose process {who} is cannot be found out now: {error.strerror}"
        raise JoinRefusedError(words, EndReason.REFUSED_BUSY) from error
    if user == own_user:
        return
    if user is None and is_over(stream.sock):  # an outage, not a reason to refuse
        raise ConnectionResetError(errno.ECONNRESET, f"{who} ended the connection as it began")
    whose = "on another machine, or gone" if user is None else f"a process of user {user}"
    raise JoinRefusedError(
        f"{who} is {whose}, and without authentication only processes of user {own_user} on this "
        f"machine are admitted: give both the same certificates, {TOKEN_VARIABLE} or --insecure",
        EndReason.REFUSED_USER,
    )


def _expect(stream: Stream, kind: FrameKind) -> Steps:
    frame: Frame = yield from read_frame(stream, 0, max_header_bytes=_MAX_BYTES)
    if frame.kind is FrameKind.BYE:
        goodbye = decode(frame.body, [], Goodbye)
        raise JoinRefusedError(one_line(goodbye.words), goodbye.end)
    if frame.kind is not kind:
        raise ProtocolError(f"{frame.kind.name} came where {kind.name} was due")
    return frame


def refusal(stream: Stream, error: Exception, who: str, security: Security) -> JoinRefusedError:
    """Explain a failed handshake by the first bytes received and the error that they caused."""
    if isinstance(error, OtherVersionError):
        return JoinRefusedError(str(error), EndReason.REFUSED_VERSION)
    # the exception alone misleads: OpenSSL calls any plain byte a "wrong version number"
    opening, encrypted = stream.first_bytes, security.mode.encrypted
    ours, is_tls = opening.startswith(MAGIC), opening[:1] in _TLS_RECORDS
    if opening and (ours if encrypted else is_tls):
        which = (
            "does not speak TLS and this side does" if encrypted else "speaks TLS, not this side"
        )
        hint = what_is_not_set(security)
        text = f"{who} {which}: give both the same certificates, the same token or --insecure{hint}"
        return JoinRefusedError(text, EndReason.REFUSED_MODE)
    if not isinstance(error, ssl.SSLError) or (opening and not is_tls):
        with contextlib.suppress(OSError):  # further bytes that have arrived
            opening += stream.sock.recv(40)
        text = f"{who} is another service, or a faulty one: it sent {opening[:40]!r} ({error})"
        return JoinRefusedError(text, EndReason.REFUSED_SERVICE)
    reason = getattr(error, "verify_message", "") or error.reason or str(error)
    reason = str(reason).replace("_", " ").lower()
    if "alert" in reason:
        text = f"{who} refused this side's certificate: {reason}"
    else:
        text = f"the certificate of {who} is not accepted here: {reason}"
    return JoinRefusedError(text, EndReason.REFUSED_CERTIFICATE)
