"""How a process shows ZooKeeper who it is, and makes sure whom it talks to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from pyspark_ledger.errors import InvalidInput

Verify = Literal["full", "ca", "none"]
VERIFY: tuple[Verify, ...] = ("full", "ca", "none")
KERBEROS = "GSSAPI"
MECHANISMS = ("DIGEST-MD5", KERBEROS)


@dataclass(frozen=True, slots=True)
class Tls:
    """An encrypted connection. ``verify``: that the server's certificate is of a CA that is trusted, and (``full``) for
    the host that was asked for."""

    ca: str | None = None  # a file; None: those that the machine trusts
    cert: str | None = None  # a file with the certificate to show
    key: str | None = None  # None: in the same file
    password: str | None = field(default=None, repr=False)  # of the key
    verify: Verify = "full"


@dataclass(frozen=True, slots=True)
class Sasl:
    """By Kerberos there is no password here: what is asked for comes from the process's tickets or keytab."""

    mechanism: str
    user: str = ""  # may be left out with Kerberos: whose ticket it is
    password: str = field(default="", repr=False)
    service: str = "zookeeper"

    @property
    def kerberos(self) -> bool:
        return self.mechanism == KERBEROS

    @property
    def who(self) -> str:
        return f"SASL user '{self.user}'" if self.user else "the user of the Kerberos ticket"


@dataclass(frozen=True, slots=True)
class Login:
    """All of it, each part with or without the others. ``user`` and ``password`` are for ZooKeeper's digest scheme."""

    user: str = ""
    password: str = field(default="", repr=False)
    tls: Tls | None = None
    sasl: Sasl | None = None

    @property
    def digest(self) -> str | None:
        """As ZooKeeper takes it."""
        return f"{self.user}:{self.password}" if self.user else None

    @property
    def owns(self) -> bool:
        """Whether what is made belongs to this login alone. A certificate only opens the door: often each process has
        another."""
        return bool(self.user) or self.sasl is not None

    @property
    def who(self) -> str:
        """For messages."""
        names = [f"user '{self.user}'"] if self.user else []
        names += [self.sasl.who] if self.sasl is not None else []
        names += [f"the certificate in {self.tls.cert}"] if self.tls is not None and self.tls.cert else []
        return " and ".join(names) or "nobody (no login is given)"

    @property
    def advice(self) -> str:
        """What to look at when it is refused."""
        options = ["zookeeper.sasl.user", "zookeeper.sasl.password"] if self.sasl is not None else []
        options += ["zookeeper.user", "zookeeper.password"] if self.user or not options else []
        return f"check the options {' and '.join(options)}"


def login_of(values: Mapping[str, str]) -> Login:
    """From settings by name; what is said twice or by half is refused."""
    user, password = values.get("zookeeper.user", ""), values.get("zookeeper.password", "")
    if user and not password:
        raise _invalid("'zookeeper.user' needs 'zookeeper.password'")
    if password and not user:
        raise _invalid("the password in 'zookeeper.password' is no user:password, and 'zookeeper.user' is not given")
    return Login(user, password, _tls(values), _sasl(values))


def _tls(values: Mapping[str, str]) -> Tls | None:
    below = {name.removeprefix("zookeeper.tls."): text for name, text in values.items() if _is_tls(name)}
    if values.get("zookeeper.tls", "true" if below else "false") == "false":
        return None  # also where another source says more about it
    for name in ("key", "password"):
        if name in below and "cert" not in below:
            raise _invalid(f"'zookeeper.tls.{name}' needs 'zookeeper.tls.cert', the certificate that it belongs to")
    return Tls(
        ca=below.get("ca"),
        cert=below.get("cert"),
        key=below.get("key"),
        password=below.get("password"),
        verify=cast(Verify, below.get("verify", "full")),
    )


def _is_tls(name: str) -> bool:
    return name.startswith("zookeeper.tls.")


def _sasl(values: Mapping[str, str]) -> Sasl | None:
    below = {name: text for name, text in values.items() if name.startswith("zookeeper.sasl.")}
    if not below:
        return None
    user, password = below.get("zookeeper.sasl.user", ""), below.get("zookeeper.sasl.password", "")
    mechanism = below.get("zookeeper.sasl.mechanism", MECHANISMS[0])
    if mechanism == KERBEROS and password:
        raise _invalid(
            "'zookeeper.sasl.password' is not for GSSAPI, which takes a ticket, or a keytab (KRB5_CLIENT_KTNAME)"
        )
    if mechanism != KERBEROS and not (user and password):
        raise _invalid("SASL needs both 'zookeeper.sasl.user' and 'zookeeper.sasl.password'")
    return Sasl(mechanism, user, password, below.get("zookeeper.sasl.service", "zookeeper"))


def _invalid(why: str) -> InvalidInput:
    return InvalidInput(f"how to log in to ZooKeeper: {why}", "LEDGER_INVALID_OPTION")
