"""Encrypted connections to ZooKeeper, and why one cannot be made.

kazoo does not tell: a handshake that fails looks like a server that does not answer. So before that is said to
anybody, one handshake is made to find the reason.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from dataclasses import dataclass, replace

from pyspark_ledger.base.login import Tls
from pyspark_ledger.errors import InvalidInput

# What OpenSSL has against a certificate.
_NOT_YET, _EXPIRED = 9, 10
_UNKNOWN_CA = (2, 7, 18, 19, 20, 21)
_OTHER_HOST = (62, 64)


def context_of(tls: Tls) -> ssl.SSLContext:
    """Made anew for each connection, because files with certificates are renewed.

    :raises InvalidInput: a file is not there, or not what it must be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.verify == "full"
    context.verify_mode = ssl.CERT_NONE if tls.verify == "none" else ssl.CERT_REQUIRED
    if tls.ca is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(tls.ca)
        except (OSError, ValueError) as error:
            raise _bad_file("ca", tls.ca, error, "the certificates of CAs, in PEM") from None
    if tls.cert is not None:
        _load_own(context, tls, tls.cert)
    return context


def _load_own(context: ssl.SSLContext, tls: Tls, cert: str) -> None:
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(cert, tls.key, password=tls.password or "")
    except ssl.SSLError as error:
        raise _bad_file(
            "cert", cert, error, "a certificate in PEM, with its key there or in 'zookeeper.tls.key'; a key that is "
            "encrypted needs the right 'zookeeper.tls.password'"
        ) from None  # fmt: skip
    except (OSError, ValueError) as error:
        missing = "key" if tls.key is not None and _can_read(cert) else "cert"
        raise _bad_file(missing, tls.key or cert if missing == "key" else cert, error, "a PEM file") from None


def _can_read(file: str) -> bool:
    with contextlib.suppress(OSError, ValueError), open(file, "rb"):
        return True
    return False


def _bad_file(name: str, file: str, error: Exception, expected: str) -> InvalidInput:
    why = getattr(error, "reason" if isinstance(error, ssl.SSLError) else "strerror", None) or str(error)
    return InvalidInput(
        f"option 'zookeeper.tls.{name}' is '{file}': it must be a file with {expected} ({why})", "LEDGER_INVALID_OPTION"
    )


def connect(tls: Tls, address: tuple[str, int], host: str, timeout_s: float | None) -> ssl.SSLSocket:
    """``host`` is the name of the server as it was asked for, ``address`` what it stands for."""
    context = context_of(tls)
    plain = socket.create_connection(address, timeout_s)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one server cannot be talked to. Not ``sure``: most likely; it may also be about to start."""

    why: str
    sure: bool = True


def refusal(host: str, port: int, tls: Tls | None, timeout_s: float = 2.0) -> Refusal | None:
    """What one handshake with a server finds; None if nothing is wrong with it, or the server says nothing within that
    time, which is for each step."""
    try:
        if tls is None:
            return _looked_without(host, port, timeout_s)
        with connect(tls, (host, port), host, timeout_s) as secure:
            return _looked_after(secure, tls)
    except InvalidInput as error:  # of files
        return Refusal(error.message)
    except ssl.SSLCertVerificationError as error:
        return Refusal(f"the certificate of {host}:{port} {_what_is_wrong(error, host, port, tls, timeout_s)}")
    except ssl.SSLError as error:
        return _refused_by_server(error, host, port, tls)
    except ConnectionResetError:
        return _no_tls(host, port)
    except OSError:
        return None


def _looked_without(host: str, port: int, timeout_s: float) -> Refusal | None:
    """Whether a server that does not answer without TLS answers with it."""
    try:
        connect(Tls(verify="none"), (host, port), host, timeout_s).close()
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):  # a server with TLS may want a certificate even before it says more
            return None
    except OSError:
        return None
    return Refusal(
        f"{host}:{port} takes only encrypted connections: set 'zookeeper.tls.ca' to the certificate of its CA, or "
        "'zookeeper.tls' to true"
    )


def _looked_after(secure: ssl.SSLSocket, tls: Tls) -> Refusal | None:
    """In TLS 1.3 a server says only after the handshake that it wants another certificate."""
    with contextlib.suppress(TimeoutError):
        secure.recv(1)
    return None


def _what_is_wrong(error: ssl.SSLCertVerificationError, host: str, port: int, tls: Tls | None, timeout_s: float) -> str:
    if error.verify_code == _EXPIRED:
        return "has expired: it must be renewed"
    if error.verify_code == _NOT_YET:
        return "is not valid yet: compare the clocks of this machine and of the one that made it"
    if error.verify_code in _UNKNOWN_CA:
        trusted = f"in {tls.ca}, which 'zookeeper.tls.ca' names" if tls is not None and tls.ca else "trusted here"
        return (
            f"is of a CA that is not {trusted} ({error.verify_message}): 'zookeeper.tls.ca' must name the certificate "
            "of the CA that signed it"
        )
    if error.verify_code in _OTHER_HOST:
        names = _names(host, port, tls, timeout_s)
        return (
            f"is of another host{f' ({names})' if names else ''}: write the servers in 'zookeeper' as their "
            "certificates do, or renew the certificate with this name in it"
        )
    return f"is not accepted: {error.verify_message}"


def _names(host: str, port: int, tls: Tls | None, timeout_s: float) -> str:
    """For whom the certificate is; it was found to be of the right CA."""
    with contextlib.suppress(OSError):
        with connect(replace(tls or Tls(), verify="ca"), (host, port), host, timeout_s) as secure:
            found = (secure.getpeercert() or {}).get("subjectAltName", ())
            return ", ".join(str(name[1]) for name in found)
    return ""


def _refused_by_server(error: ssl.SSLError, host: str, port: int, tls: Tls | None) -> Refusal | None:
    reason = error.reason or ""
    if "ALERT" not in reason:
        return _no_tls(host, port)
    if not any(word in reason for word in ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE")):
        return Refusal(f"{host}:{port} does not agree to encrypt: {reason}")
    if tls is None or tls.cert is None:
        return Refusal(f"{host}:{port} wants a certificate from us: set 'zookeeper.tls.cert' ({reason})")
    return Refusal(
        f"{host}:{port} does not accept the certificate in {tls.cert} ({reason}): is it of a CA that the server "
        "trusts, and still valid?"
    )


def _no_tls(host: str, port: int) -> Refusal:
    return Refusal(
        f"{host}:{port} ends the connection instead of encrypting it: is that ZooKeeper's secureClientPort?", sure=False
    )
