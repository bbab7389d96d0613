"""How kazoo is told who we are, and what it is told by a server that does not let us in."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from ssl import SSLSocket
from typing import Any

from kazoo.exceptions import EXCEPTIONS, AuthFailedError, SessionClosedRequireSaslError
from kazoo.hosts import collect_hosts

from pyspark_ledger.base.login import Login, Sasl
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.zk_metadata import tls
from pyspark_ledger.zk_metadata.polling import PollingHandler


class LoginRequired(AuthFailedError, SessionClosedRequireSaslError):  # type: ignore[misc]
    """The server serves nobody who has not logged in as it wants. kazoo does not take that for a login that failed, and
    its thread would end with a traceback."""

    code = -124


EXCEPTIONS[LoginRequired.code] = LoginRequired


class LoginHandler(PollingHandler):
    """Makes connections as the login says at that moment, encrypted where it says so."""

    def __init__(self, login: Callable[[], Login]) -> None:
        super().__init__()
        self._login = login

    def create_connection(
        self, address: tuple[str, int], hostname: str = "", timeout: float | None = None, **_: Any
    ) -> Any:
        login = self._login()
        if login.tls is None:
            return super().create_connection(address, timeout=timeout)
        self.select = self._select_decrypted  # type: ignore[method-assign]  # who needs it not does not pay for it
        try:
            return tls.connect(login.tls, address, hostname or address[0], timeout)
        except InvalidInput as error:  # a file is being renewed, say; kazoo tries again after an OSError, and only then
            raise OSError(error.message) from None

    def _select_decrypted(
        self, readers: Sequence[Any], writers: Sequence[Any], others: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """What was decrypted and not read yet is ready too: the socket itself would say nothing of it."""
        decrypted = [each for each in readers if isinstance(each, SSLSocket) and each.pending()]
        if not decrypted:
            return super().select(readers, writers, others, timeout)
        ready, ready_to_write, _ = super().select(readers, writers, others, 0)
        return [each for each in readers if each in ready or each in decrypted], ready_to_write, []


def auth_data(login: Login) -> list[tuple[str, str]] | None:
    return [("digest", login.digest)] if login.digest else None


def sasl_options(login: Login) -> dict[str, str] | None:
    sasl = login.sasl
    if sasl is None:
        return None
    found = {"mechanism": sasl.mechanism, "service": sasl.service}
    if not sasl.kerberos:
        return {**found, "username": sasl.user, "password": sasl.password}
    return {**found, "principal": sasl.user} if sasl.user else found


def check_sasl(sasl: Sasl | None) -> None:
    """Whether there is what kazoo needs for it: it would end its thread."""
    if sasl is None:
        return
    extra, packages = ("gssapi", ("puresasl", "kerberos")) if sasl.kerberos else ("sasl", ("puresasl",))
    if any(importlib.util.find_spec(package) is None for package in packages):
        raise InvalidInput(
            f"'zookeeper.sasl.mechanism' {sasl.mechanism} needs the extra '{extra}': pip install "
            f"'pyspark-ledger[{extra}]'",
            "LEDGER_NOT_INSTALLED",
        )


_NOT_KNOWN_TO_THE_SERVERS = (
    "there is a ticket for them, so check that they are set up for Kerberos, with the principal that is named by "
    "'zookeeper.sasl.service' and the host as it stands in 'zookeeper'"
)


def _no_ticket(servers: str, sasl: Sasl) -> str:
    """What Kerberos has against the login, which kazoo keeps to itself; empty if it gives a ticket for all servers."""
    import kerberos

    for host, _ in collect_hosts(servers)[0]:
        service = f"{sasl.service}@{host}"
        try:
            _, context = kerberos.authGSSClientInit(service, **({"principal": sasl.user} if sasl.user else {}))
            kerberos.authGSSClientStep(context, "")
        except kerberos.GSSError as error:
            return f"no ticket for {service}: {_last_words(error)}; kinit, or a keytab in KRB5_CLIENT_KTNAME, gives one"
    return ""


def _last_words(error: Exception) -> str:
    """Of (("Unspecified GSS failure…", 851968), ("No Kerberos credentials available", 2529639053)), the last text."""
    detail: Any = error.args[-1] if error.args else error
    return str(detail[0] if isinstance(detail, tuple) and detail else detail)


def not_let_in(servers: str, login: Login) -> InvalidInput:
    """From a server that does not know us, before it looked at any request."""
    if login.sasl is not None and login.sasl.kerberos:
        why = f"does not accept {login.sasl.who}: {_no_ticket(servers, login.sasl) or _NOT_KNOWN_TO_THE_SERVERS}"
    elif login.sasl is not None:
        why = (
            f"does not accept SASL user '{login.sasl.user}': check the options zookeeper.sasl.user and "
            "zookeeper.sasl.password, and that the servers are set up for SASL"
        )
    else:
        why = (
            f"serves only who logs in in a way that it wants, and not {login.who}: set zookeeper.sasl.user and "
            "zookeeper.sasl.password, or zookeeper.user and zookeeper.password"
        )
    return InvalidInput(f"ZooKeeper at {servers} {why}", "LEDGER_ACCESS_DENIED")
