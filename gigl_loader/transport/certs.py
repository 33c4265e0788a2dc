"""Certificates made here: a folder for trying, and the throw-away one of the token mode.

The only module that needs ``cryptography``, and only when a certificate is made.
"""

import contextlib
import datetime
import functools
import ipaddress
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigl_loader.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_END = b"-----END CERTIFICATE-----\n"


def token() -> str:
    """Return a fresh cluster token of 128 bits, 22 characters that need no quoting."""
    return secrets.token_urlsafe(16)


def make_folder(folder: str | Path, hosts: Sequence[str], days: float = 365) -> Path:
    """Write ``ca.pem``, ``cert.pem`` and ``key.pem``, and the authority's key as ``ca-key.pem``.

    For trying: one certificate for all hosts. Keep ``ca-key.pem`` off the machines, or delete it. A
    folder that has an authority already gets a new certificate under it.

    Args:
        folder: Where to; made if it does not exist.
        hosts: Names and addresses that the certificate is for.
        days: How long it is valid.

    Raises:
        ConfigError: The folder cannot be written.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        authority = _authority(path, days)
        certificate, key = _issue("gigl-loader node", days, authority, hosts)
        # a process that reads between these two finds a pair that does not match, keeps the former
        # one, and reads again at the next connection (`Security.context`)
        _write(path / "cert.pem", _pem(certificate), 0o644)
        _write(path / "key.pem", _pem(key), 0o600)
    except OSError as error:
        raise ConfigError(f"cannot write certificates to {path}: {error}") from error
    return path


def _authority(path: Path, days: float) -> "tuple[x509.Certificate, EllipticCurvePrivateKey]":
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if (path / "ca-key.pem").exists():
        key: Any = load_pem_private_key((path / "ca-key.pem").read_bytes(), None)
        return x509.load_pem_x509_certificate((path / "ca.pem").read_bytes()), key
    authority = _issue("gigl-loader authority", max(days, 1) * 10, None)
    _write(path / "ca-key.pem", _pem(authority[1]), 0o600)
    _write(path / "ca.pem", _pem(authority[0]), 0o644)
    return authority


@functools.cache
def throwaway() -> bytes:
    """Return this process's certificate and key for the token mode, in one PEM text."""
    # ten years: no date is checked, the token's proof is bound to it, and it ends with the process
    certificate, key = _issue("gigl-loader throw-away", 3650, None)
    return _pem(certificate) + _pem(key)


def first_certificate(pem: bytes) -> str:
    """Return the text of the first certificate in ``pem``."""
    return (pem[: pem.index(_END)] + _END).decode()


@contextlib.contextmanager
def in_memory(pem: bytes) -> Iterator[str]:
    """Give a path to ``pem`` without a file on disk: ``ssl`` reads keys from paths only."""
    descriptor = os.memfd_create("gigl_loader certificate")
    try:
        os.write(descriptor, pem)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _issue(
    name: str,
    days: float,
    issuer: "tuple[x509.Certificate, EllipticCurvePrivateKey] | None",
    hosts: Sequence[str] = (),
) -> "tuple[x509.Certificate, EllipticCurvePrivateKey]":
    """Return a certificate and its key, signed by ``issuer`` or, where that is None, by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())  # made and proved in a fraction of RSA's time
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))  # clocks of machines differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(_usage(signs_others=issuer is None), critical=True)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    signer = issuer[1] if issuer else key
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(identifier, critical=False)
    return builder.sign(signer, hashes.SHA256()), key


def _usage(signs_others: bool) -> "x509.KeyUsage":
    """Return what the key is for: clients of Python 3.13 and newer refuse an authority without."""
    from cryptography import x509

    never = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_others, crl_sign=signs_others,
        encipher_only=False, decipher_only=False, **dict.fromkeys(never, False),
    )  # fmt: skip


def _general_name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(thing: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as to

    if hasattr(thing, "private_bytes"):
        format_ = to.PrivateFormat.PKCS8
        return bytes(thing.private_bytes(to.Encoding.PEM, format_, to.NoEncryption()))
    return bytes(thing.public_bytes(to.Encoding.PEM))


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write ``data`` in one step, so that a running process never reads half a file."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(data)
    fresh.replace(path)
