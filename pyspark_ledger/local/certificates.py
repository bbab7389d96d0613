"""A certificate authority of one's own, made on the fly, for servers on this machine. For development and tests."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.errors import InvalidInput

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_LOCAL = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: the authority's certificate, and with its key in one file a server's and a client's certificate."""

    ca: Path
    server: Path
    client: Path


def make_certificates(folder: Path, *, hosts: Sequence[str] = _LOCAL, days: float = 30) -> Certificates:
    """In a folder. ``hosts``: for whom the server's is; ``days``: how long it is valid, less than none if it expired.

    :raises InvalidInput: the package cryptography is not there.
    """
    try:
        authority = _Authority()
    except ImportError:
        raise InvalidInput(
            "certificates are made with the package cryptography: pip install cryptography", "LEDGER_NOT_INSTALLED"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    files = Certificates(folder / "ca.pem", folder / "server.pem", folder / "client.pem")
    _write(files.ca, authority.pem)
    _write(files.server, authority.issued("server", hosts, days))
    _write(files.client, authority.issued("client", (), 30))
    return files


def _write(file: Path, content: bytes) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(content)


class _Authority:
    def __init__(self) -> None:
        self._key = _new_key()
        self._certificate = self._signed(self._key, "ledger-ca", (), 30, ca=True)

    @property
    def pem(self) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding

        return self._certificate.public_bytes(Encoding.PEM)

    def issued(self, name: str, hosts: Sequence[str], days: float) -> bytes:
        """A key and its certificate."""
        from cryptography.hazmat.primitives import serialization as form

        key = _new_key()
        private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
        return private + self._signed(key, f"ledger-{name}", hosts, days).public_bytes(form.Encoding.PEM)

    def _signed(
        self, key: EllipticCurvePrivateKey, name: str, hosts: Sequence[str], days: float, *, ca: bool = False
    ) -> x509.Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        issuer = _named("ledger-ca")
        until = datetime.datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, datetime.UTC) + datetime.timedelta(days)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(int.from_bytes(SYSTEM_CLOCK.new_id()) >> 1 | 1)
            .not_valid_before(until - datetime.timedelta(days=60))
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
