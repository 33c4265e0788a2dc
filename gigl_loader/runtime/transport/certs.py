"""Makes certificates: a folder for trials, and the self-signed certificate of the token mode.

The command ``openssl`` makes them, so that no package is needed: Python's ``ssl`` can read
certificates but not make them.
"""

import contextlib
import datetime
import functools
import ipaddress
import os
import re
import secrets
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from gigl_loader.errors import ConfigError
from gigl_loader.runtime.anonymous_files import new_memfd

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----\n"
_CURVE = ("-pkeyopt", "ec_paramgen_curve:P-256")  # keys and signatures are far cheaper than RSA's
_TIMEOUT = 60.0
"""Seconds for one call of ``openssl``, which takes some milliseconds."""
_HOST = re.compile(r"[\w.*-]+", re.ASCII)
_BACKDATED = datetime.timedelta(days=2)  # clocks of machines differ
# Clients of Python 3.13 and newer refuse an authority without a key usage.
_AUTHORITY_USE = "digitalSignature, keyCertSign, cRLSign"
_SETTINGS = """\
[req]
prompt = no
distinguished_name = name
[name]
CN = {name}
[extensions]
basicConstraints = critical, CA:{signs}
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
keyUsage = critical, {use}
{hosts}
[ca]
default_ca = issuer
[issuer]
database = issued
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = extensions
[any]
commonName = supplied
"""
"""OpenSSL's configuration for one certificate."""


def token() -> str:
    """Return a fresh cluster token of 128 bits, 22 characters that need no quoting."""
    return secrets.token_urlsafe(16)


def make_folder(folder: str | Path, hosts: Sequence[str], days: float = 365) -> Path:
    """Write ``ca.pem``, ``cert.pem`` and ``key.pem``, and the authority's key as ``ca-key.pem``.

    For trials: all hosts share one certificate. Keep ``ca-key.pem`` off the machines, or delete it.
    In a folder that has an authority already, that authority signs the new certificate.

    Args:
        folder: Where to write; created if it does not exist.
        hosts: Names and addresses that the certificate is for.
        days: How many days it is valid.

    Raises:
        ConfigError: The folder cannot be written, a host is no name or address, or the command
            ``openssl`` is missing.
    """
    path = Path(folder)
    names = [_alternative_name(host) for host in hosts]
    try:
        path.mkdir(parents=True, exist_ok=True)
        # on the same disk as the result; keys pass through it, and only this user may read it
        with tempfile.TemporaryDirectory(prefix=".openssl-", dir=path) as scratch:
            work = Path(scratch)
            if not (path / "ca-key.pem").exists():
                authority, key = _issue(work, "gigl-loader authority", max(days, 1) * 10, None)
                _write(path / "ca-key.pem", key, 0o600)
                _write(path / "ca.pem", authority, 0o644)
            certificate, key = _issue(work, "gigl-loader node", days, path, names)
            # A process that reads between these two writes finds a pair that does not match. It
            # keeps the former pair and reads again at the next connection (`Security.context`).
            _write(path / "cert.pem", certificate, 0o644)
            _write(path / "key.pem", key, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot write certificates to {path}: {error}") from error
    return path


@functools.cache
def throwaway() -> bytes:
    """Return a self-signed certificate and its key for the token mode, as one PEM string.

    Raises:
        ConfigError: The command ``openssl`` is missing or fails.
    """
    settings = _settings("gigl-loader ephemeral", "digitalSignature", signs=False)
    # Ten years, as no date is checked: the token's proof is bound to the certificate, which ends
    # with the process. Without -keyout the key comes through the pipe too and touches no disk.
    return _openssl(
        "req",
        "-x509",
        "-newkey",
        "ec",
        *_CURVE,
        "-nodes",
        "-sha256",
        "-days",
        "3650",
        "-extensions",
        "extensions",
        "-config",
        "/dev/stdin",
        given=settings.encode(),
    )


def first_certificate(pem: bytes) -> str:
    """Return the first certificate in ``pem``, still in PEM."""
    begin = pem.index(_BEGIN)
    return (pem[begin : pem.index(_END, begin)] + _END).decode()


@contextlib.contextmanager
def in_memory(pem: bytes) -> Iterator[str]:
    """Yield a path to ``pem`` without a file on disk: ``ssl`` reads keys from paths only."""
    descriptor = new_memfd("gigl_loader certificate")
    try:
        os.write(descriptor, pem)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _issue(
    work: Path, name: str, days: float, issuer: Path | None, hosts: Sequence[str] = ()
) -> tuple[bytes, bytes]:
    """Return a certificate and its key as PEM strings.

    Args:
        work: Folder for the files that ``openssl`` reads and writes.
        name: The certificate's common name.
        days: How many days it is valid.
        issuer: Folder of the signing authority; None: the certificate is an authority's own.
        hosts: Result of `_alternative_name`.
    """
    signs = issuer is None
    use = _AUTHORITY_USE if signs else "digitalSignature"
    (work / "settings").write_text(_settings(name, use, signs=signs, hosts=hosts))
    (work / "issued").write_text("")  # the command's list of signed certificates
    key = _openssl("genpkey", "-algorithm", "EC", *_CURVE)
    (work / "key").write_bytes(key)
    request = _openssl("req", "-new", "-config", "settings", "-key", "key", folder=work)
    (work / "request").write_bytes(request)
    if issuer is None:
        signer = ["-selfsign", "-keyfile", "key"]
    else:
        ca_folder = issuer.absolute()
        signer = ["-cert", str(ca_folder / "ca.pem"), "-keyfile", str(ca_folder / "ca-key.pem")]
    now = datetime.datetime.now(datetime.UTC)
    certificate = _openssl(
        "ca",
        "-batch",
        "-notext",
        "-config",
        "settings",
        "-in",
        "request",
        *signer,
        "-startdate",
        _stamp(now - _BACKDATED),
        "-enddate",
        _stamp(now + datetime.timedelta(days=days)),
        folder=work,
    )
    return certificate, key


def _settings(name: str, use: str, *, signs: bool, hosts: Sequence[str] = ()) -> str:
    names = f"subjectAltName = {', '.join(hosts)}" if hosts else ""
    return _SETTINGS.format(name=name, use=use, signs=str(signs).upper(), hosts=names)


def _openssl(*arguments: str, given: bytes = b"", folder: Path | None = None) -> bytes:
    """Run OpenSSL's command in ``folder`` with ``given`` as its input; return its output.

    Raises:
        ConfigError: The command is missing, fails, or takes a minute.
    """
    try:
        done = subprocess.run(
            ["openssl", *arguments],
            input=given,
            cwd=folder,
            capture_output=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except (FileNotFoundError, PermissionError) as error:
        raise ConfigError(
            "certificates are made by the command openssl, which is not on the PATH: install the "
            "package openssl of your system (apt-get install openssl, conda install openssl), or "
            "set GIGL_LOADER_TLS_DIR to a folder with certificates that were made elsewhere"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"openssl {arguments[0]} has not ended after {_TIMEOUT:g} s") from error
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        raise ConfigError(f"openssl {arguments[0]} failed ({done.returncode}): {reason}")
    return done.stdout


def _alternative_name(host: str) -> str:
    """Return ``host`` as OpenSSL writes it in a certificate's list of names."""
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        if not _HOST.fullmatch(host):
            raise ConfigError(f"{host!r} is neither a host name nor an address") from None
        return f"DNS:{host}"


def _stamp(moment: datetime.datetime) -> str:
    return moment.strftime("%Y%m%d%H%M%SZ")


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write ``data`` in one step, so that a running process never reads half a file."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(data)
    fresh.replace(path)
