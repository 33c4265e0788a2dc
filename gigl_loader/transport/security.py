"""Authentication: client certificates, a token inside TLS, or none on a closed network.

=============  ==========================================  =================================
mode           authentication of both ends                 encryption
=============  ==========================================  =================================
certificates   each verifies the other's against ca.pem    TLS 1.3
token          each proves the token to the other          TLS 1.3, ephemeral certificate
insecure       not at all                                  plain bytes
=============  ==========================================  =================================

Where nothing is set, both ends are processes of one user on one machine, as its kernel tells each
of them (`gigl_loader.transport.sockets`), and plain bytes travel between them.

The token is never sent. Both ends prove it by an HMAC over their role, both nonces and the hash of
the listener's certificate, so that a man in the middle cannot forward the proofs under another
certificate. An impostor of the listener gets a proof to guess tokens against: hence 128 bits.
"""

import dataclasses
import hashlib
import hmac
import logging
import os
import ssl
import threading
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from gigl_loader.errors import ConfigError
from gigl_loader.transport import certs
from gigl_loader.transport.sockets import is_loopback

TLS_DIR_VARIABLE = "GIGL_LOADER_TLS_DIR"
TOKEN_VARIABLE = "GIGL_LOADER_CLUSTER_TOKEN"
INSECURE_VARIABLE = "GIGL_LOADER_INSECURE"
MIN_TOKEN_BYTES = 22  # 128 bits in the 6 bits a character that token_urlsafe gives
_MIN_DISTINCT = 6  # "aaaa..." is long and known to every list of passwords


_Key = tuple[object, bool]  # where a certificate is from, and which side


class Mode(StrEnum):
    """How a connection is protected."""

    CERTIFICATES = "certificates"
    TOKEN = "token"
    INSECURE = "insecure"
    USER = "this user"
    """Nothing is set: processes of this user on this machine."""

    @property
    def encrypted(self) -> bool:
        """Whether TLS is spoken."""
        return self in (Mode.CERTIFICATES, Mode.TOKEN)


@dataclass(frozen=True)
class Security:
    """Authentication of connections. Use `resolve` or `local`; may be pickled to own workers."""

    mode: Mode = Mode.USER
    token: str = field(default="", repr=False)
    """Proved in the handshake by both ends, in the token mode."""
    tls_dir: str = ""
    """Folder with ca.pem, cert.pem and key.pem."""
    throwaway: bytes = field(default=b"", repr=False)
    """Certificate and key (PEM) of listeners in the token mode; empty: this process's own."""

    @classmethod
    def resolve(
        cls, tls_dir: str | None = None, token: str | None = None, insecure: bool | None = None
    ) -> "Security":
        """Return the settings of the arguments, and where they are None, of the environment.

        Raises:
            ConfigError: Certificates and insecure at once, or the folder lacks a file.
        """
        tls_dir = os.environ.get(TLS_DIR_VARIABLE, "") if tls_dir is None else str(tls_dir)
        token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        if insecure is None:
            insecure = _flag(os.environ.get(INSECURE_VARIABLE, ""))
        if tls_dir and insecure:
            raise ConfigError(
                f"certificates ({tls_dir}) and --insecure are both set: drop one of "
                f"--tls/{TLS_DIR_VARIABLE} and --insecure/{INSECURE_VARIABLE}"
            )
        if tls_dir:
            _files(tls_dir)
            return cls(Mode.CERTIFICATES, tls_dir=tls_dir)
        if insecure:
            # over a plain connection a token proves nothing about bytes after the handshake
            return cls(Mode.INSECURE)
        return cls(Mode.TOKEN, token) if token else cls()

    @classmethod
    def local(cls) -> "Security":
        """Return plain sockets between processes of this user on this machine."""
        return cls(Mode.USER)

    def or_token(self) -> "Security":
        """Return this, or a fresh token where no authentication is set: it needs no files."""
        return self if self.mode is not Mode.USER else Security(Mode.TOKEN, certs.token())

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which `resolve` finds the same in another process."""
        named = {
            TLS_DIR_VARIABLE: self.tls_dir, TOKEN_VARIABLE: self.token,
            INSECURE_VARIABLE: "1" if self.mode is Mode.INSECURE else "",
        }  # fmt: skip
        return {name: value for name, value in named.items() if value}

    def for_workers(self) -> "Security":
        """Return the settings of child processes, so that none makes a certificate."""
        if self.mode is not Mode.TOKEN:
            return self
        return dataclasses.replace(self, throwaway=self._own_certificate())

    def check_listener(self, host: str, *, loopback: bool | None = None) -> None:
        """Refuse a listener that strangers could reach, or whose certificates cannot be used.

        Args:
            host: Where it listens.
            loopback: Whether only this machine is to reach it; None: by the address.

        Raises:
            ConfigError: It is open to other machines with nothing set, or with a weak token.
        """
        if self.mode.encrypted:
            self.context(server=True)
        loopback = is_loopback(host) if loopback is None else loopback
        if loopback or self.mode is Mode.CERTIFICATES:
            return
        if self.mode is Mode.USER:
            raise ConfigError(
                f"a listener at {host} can be reached from other machines, and no "
                f"authentication is set: give certificates (--tls DIR or {TLS_DIR_VARIABLE}; "
                f"`gigl-loader certs` makes them), or a token ({TOKEN_VARIABLE}; `gigl-loader "
                f"token` makes one), or, on a closed network, --insecure or {INSECURE_VARIABLE}=1"
            )
        weak = len(self.token) < MIN_TOKEN_BYTES or len(set(self.token)) < _MIN_DISTINCT
        if self.mode is Mode.TOKEN and weak:
            raise ConfigError(
                f"the cluster token has {len(self.token)} characters and can be guessed; a "
                f"listener at {host} needs 128 bits: set {TOKEN_VARIABLE} to the output of "
                "`gigl-loader token`"
            )
        if self.mode is Mode.INSECURE:
            _log.warning(
                "this process listens on %s without encryption: anybody on the network can read "
                "the data",
                host,
            )

    def proof(self, role: bytes, nonces: bytes, certificate: bytes) -> bytes:
        """Return the proof of the token in one handshake; empty where none is required."""
        if self.mode is not Mode.TOKEN:
            return b""
        bound = role + nonces + hashlib.sha256(certificate).digest()
        return hmac.digest(self.token.encode(), bound, hashlib.sha256)

    # --- TLS ----------------------------------------------------------------------------------

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Return the TLS settings of one side; certificates on disk are read when they change.

        Raises:
            ConfigError: The certificates cannot be read.
        """
        key = (self.tls_dir or (self._own_certificate() if server else b""), server)
        with _lock:
            turn = _turns.setdefault(key, threading.Lock())
        known = _contexts.get(key)
        # One thread looks at the files; the others use the last known state, since a network file
        # system may hang, and with it the thread that looks.
        if known is None:
            turn.acquire()
        elif not turn.acquire(blocking=False):
            return known[1]
        try:
            return self._looked_at(key, server)
        finally:
            turn.release()

    def _looked_at(self, key: _Key, server: bool) -> ssl.SSLContext:
        stamps, known = self._stamps(), _contexts.get(key)
        if known is not None and known[0] == stamps:
            return known[1]
        try:
            fresh = self._folder_context(server) if self.tls_dir else self._own_context(server)
        except ConfigError as error:
            if known is None:
                raise
            _log.warning("renewed certificates are not used, the former ones are: %s", error)
            fresh = known[1]
        # with the new stamps also where the former one goes on: the files are read again once
        # they change, not at each connection
        _contexts[key] = stamps, fresh
        return fresh

    def _stamps(self) -> tuple[int, ...]:
        """Return when the files changed last."""
        try:
            # of the links' targets: Kubernetes renews a secret by changing a link
            return tuple(file.stat().st_mtime_ns for file in _files(self.tls_dir))
        except (OSError, ConfigError):
            return ()

    def certificate(self) -> bytes:
        """Return this listener's certificate (DER) that proofs are bound to."""
        if self.mode is not Mode.TOKEN:
            return b""
        return ssl.PEM_cert_to_DER_cert(certs.first_certificate(self._own_certificate()))

    def _folder_context(self, server: bool) -> ssl.SSLContext:
        authority, certificate, key = _files(self.tls_dir)
        context = _bare_context(server)
        try:
            context.load_verify_locations(authority)
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"cannot use the certificates in {self.tls_dir}: {error}; cert.pem must belong to "
                "key.pem, and all three be PEM files (`gigl-loader certs` makes such a folder)"
            ) from error
        # names are not checked: addresses of workers are unknown when certificates are made, and
        # the authority is the cluster's own
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _own_context(self, server: bool) -> ssl.SSLContext:
        context = _bare_context(server)
        if server:
            with certs.in_memory(self._own_certificate()) as path:
                context.load_cert_chain(path)
        return context

    def _own_certificate(self) -> bytes:
        return self.throwaway or certs.throwaway()


_log = logging.getLogger(__name__)
_lock = threading.Lock()  # guards _turns
_turns: dict[_Key, threading.Lock] = {}
_contexts: dict[_Key, tuple[tuple[int, ...], ssl.SSLContext]] = {}
"""With when the files had changed last."""


def what_is_not_set(security: Security) -> str:
    """Return a hint for where one side has nothing to prove and the other asks for it; or ""."""
    if security.mode is not Mode.USER:
        return ""
    return f"; neither {TOKEN_VARIABLE} nor {TLS_DIR_VARIABLE} is set in this process"


def _bare_context(server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    # in this order: ssl refuses to drop verification while host names are checked. The token mode
    # stays so, since both ends prove the token; certificates turn verification on again
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if server:
        context.num_tickets = 0  # sessions are not resumed, and a ticket would wait to be sent
    return context


def _files(folder: str) -> list[Path]:
    """Return ca.pem, cert.pem and key.pem; raises ConfigError where one cannot be read."""
    files = [Path(folder, name) for name in ("ca.pem", "cert.pem", "key.pem")]
    for file in files:
        if not os.access(file, os.R_OK):
            raise ConfigError(
                f"{file} is missing or cannot be read: the folder of certificates holds ca.pem, "
                "cert.pem and key.pem (`gigl-loader certs` makes one for trying)"
            )
    return files


def _flag(text: str) -> bool:
    if text.lower() in ("", "0", "false", "no"):
        return False
    if text.lower() in ("1", "true", "yes"):
        return True
    raise ConfigError(f"{INSECURE_VARIABLE} must be 1 or 0, got {text!r}")
