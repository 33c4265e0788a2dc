"""Authentication: client certificates, a token inside TLS, or none on a closed network.

=============  ==========================================  =================================
mode           authentication of both ends                 encryption
=============  ==========================================  =================================
certificates   each verifies the other's against ca.pem    TLS 1.3
token          each proves the token to the other          TLS 1.3, ephemeral certificate
insecure       not at all                                  plain bytes
=============  ==========================================  =================================

If nothing is set, both ends must be processes of one user on one machine, which the kernel
confirms to each (`gigl_loader.runtime.transport.sockets`), and plain bytes travel between them.

The token is never sent. Both ends prove it by an HMAC over their role, both nonces and the hash of
the listener's certificate, so that a man in the middle cannot forward the proofs under another
certificate. An impostor of the listener gets a proof to try tokens against, hence 128 bits.
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
from gigl_loader.runtime.transport import certs
from gigl_loader.runtime.transport.sockets import is_loopback

TLS_DIR_VARIABLE = "GIGL_LOADER_TLS_DIR"
TOKEN_VARIABLE = "GIGL_LOADER_CLUSTER_TOKEN"
INSECURE_VARIABLE = "GIGL_LOADER_INSECURE"
MIN_TOKEN_BYTES = 22  # 128 bits, at token_urlsafe's 6 bits a character
_MIN_DISTINCT = 6  # different characters: "aaaa..." is long, but in every list of passwords


_Key = tuple[object, bool]  # source of the certificate; whether for the server's side


class Mode(StrEnum):
    """How a connection is protected."""

    CERTIFICATES = "certificates"
    TOKEN = "token"
    INSECURE = "insecure"
    USER = "this user"
    """Nothing is set: only processes of this user on this machine are admitted."""

    @property
    def encrypted(self) -> bool:
        """Whether TLS is spoken."""
        return self in (Mode.CERTIFICATES, Mode.TOKEN)


@dataclass(frozen=True)
class Security:
    """Authentication of connections. Use `resolve` or `local`; may be pickled to own workers."""

    mode: Mode = Mode.USER
    token: str = field(default="", repr=False)
    """Secret that both ends prove in the handshake, in the token mode."""
    tls_dir: str = ""
    """Folder with ca.pem, cert.pem and key.pem."""
    throwaway: bytes = field(default=b"", repr=False)
    """Certificate and key (PEM) of listeners in the token mode; empty: this process makes one."""

    @classmethod
    def resolve(
        cls, tls_dir: str | None = None, token: str | None = None, insecure: bool | None = None
    ) -> "Security":
        """Return the settings given by the arguments; the environment stands in for each None.

        Raises:
            ConfigError: Certificates and ``insecure`` are both set, or the folder lacks a file.
        """
        tls_dir = os.environ.get(TLS_DIR_VARIABLE, "") if tls_dir is None else str(tls_dir)
        token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        if insecure is None:
            insecure = _parse_flag(os.environ.get(INSECURE_VARIABLE, ""))
        if tls_dir and insecure:
            raise ConfigError(
                f"certificates ({tls_dir}) and --insecure are both set: drop one of "
                f"--tls/{TLS_DIR_VARIABLE} and --insecure/{INSECURE_VARIABLE}"
            )
        if tls_dir:
            _files(tls_dir)
            return cls(Mode.CERTIFICATES, tls_dir=tls_dir)
        if insecure:
            # on a plain connection a token proves nothing about the bytes after the handshake
            return cls(Mode.INSECURE)
        return cls(Mode.TOKEN, token) if token else cls()

    @classmethod
    def local(cls) -> "Security":
        """Return plain sockets between processes of this user on this machine."""
        return cls(Mode.USER)

    def or_token(self) -> "Security":
        """Return these settings, or a fresh token, which needs no files, if nothing is set."""
        return self if self.mode is not Mode.USER else Security(Mode.TOKEN, certs.token())

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables from which `resolve` makes the same settings elsewhere."""
        named = {
            TLS_DIR_VARIABLE: self.tls_dir,
            TOKEN_VARIABLE: self.token,
            INSECURE_VARIABLE: "1" if self.mode is Mode.INSECURE else "",
        }
        return {name: value for name, value in named.items() if value}

    def for_workers(self) -> "Security":
        """Return the settings for child processes, with a certificate, so that none makes one."""
        if self.mode is not Mode.TOKEN:
            return self
        return dataclasses.replace(self, throwaway=self._own_certificate())

    def check_listener(self, host: str, *, loopback: bool | None = None) -> None:
        """Refuse a listener that strangers could use, or whose certificates cannot be read.

        Args:
            host: Address or name that it listens on.
            loopback: Whether only this machine can reach it; None: decided by the address.

        Raises:
            ConfigError: Other machines can reach it, and nothing or a weak token is set.
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
        # a digest, as HMAC fills a short key with NUL: a token that ends in one would be equal
        return hmac.digest(hashlib.sha256(self.token.encode()).digest(), bound, hashlib.sha256)

    # --- TLS ----------------------------------------------------------------------------------

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Return the TLS settings of one side; certificates on disk are read again if they change.

        Raises:
            ConfigError: The certificates cannot be read.
        """
        key = (self.tls_dir or (self._own_certificate() if server else b""), server)
        with _lock:
            turn = _turns.setdefault(key, threading.Lock())
        known = _contexts.get(key)
        # One thread looks at the files while others use the last known state: a network file
        # system may hang, and the thread that looks with it.
        if known is None:
            turn.acquire()
        elif not turn.acquire(blocking=False):
            return known[1]
        try:
            return self._current_context(key, server)
        finally:
            turn.release()

    def _current_context(self, key: _Key, server: bool) -> ssl.SSLContext:
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
        # The new stamps are kept even if the former context stays: the files are read again once
        # they change, not at each connection.
        _contexts[key] = stamps, fresh
        return fresh

    def _stamps(self) -> tuple[int, ...]:
        """Return when the files changed last."""
        try:
            # times of the links' targets: Kubernetes renews a secret by changing a link
            return tuple(file.stat().st_mtime_ns for file in _files(self.tls_dir))
        except (OSError, ConfigError):
            return ()

    def certificate(self) -> bytes:
        """Return this listener's certificate (DER), to which proofs are bound."""
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
        # Host names are not checked: workers' addresses are unknown when certificates are made, and
        # the authority is the cluster's own.
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
"""TLS settings by key, each with the times at which its files had last changed."""


def what_is_not_set(security: Security) -> str:
    """Return a hint if this side has nothing to prove and the other asks for a proof; or ""."""
    if security.mode is not Mode.USER:
        return ""
    return f"; neither {TOKEN_VARIABLE} nor {TLS_DIR_VARIABLE} is set in this process"


def _bare_context(server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    # In this order, as ssl refuses to drop verification while host names are checked. The token
    # mode leaves it off, since both ends prove the token; certificates turn it on again.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if server:
        context.num_tickets = 0  # no session is resumed, and a ticket would wait to be sent
    return context


def _files(folder: str) -> list[Path]:
    """Return ca.pem, cert.pem and key.pem; raises ConfigError where one cannot be read."""
    files = [Path(folder, name) for name in ("ca.pem", "cert.pem", "key.pem")]
    for file in files:
        if not os.access(file, os.R_OK):
            raise ConfigError(
                f"{file} is missing or cannot be read: the folder of certificates holds ca.pem, "
                "cert.pem and key.pem (`gigl-loader certs` makes one to begin with)"
            )
    return files


def _parse_flag(text: str) -> bool:
    if text.lower() in ("", "0", "false", "no"):
        return False
    if text.lower() in ("1", "true", "yes"):
        return True
    raise ConfigError(f"{INSECURE_VARIABLE} must be 1 or 0, got {text!r}")
