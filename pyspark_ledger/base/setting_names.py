"""The names of the settings that say where a namespace is and who we are, and which values they take."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping

from pyspark_ledger.base.login import MECHANISMS, VERIFY
from pyspark_ledger.errors import InvalidInput

ZOOKEEPER = (
    "zookeeper", "zookeeper.user", "zookeeper.password", "zookeeper.tls", "zookeeper.tls.ca", "zookeeper.tls.cert",
    "zookeeper.tls.key", "zookeeper.tls.password", "zookeeper.tls.verify", "zookeeper.sasl.mechanism",
    "zookeeper.sasl.user", "zookeeper.sasl.password", "zookeeper.sasl.service",
)  # fmt: skip
STORAGE = (
    "storage", "storage.accessKey", "storage.secretKey", "storage.sessionToken", "storage.anonymous",
    "storage.roleArn", "storage.roleSession", "storage.externalId", "storage.region", "storage.endpoint",
    "storage.scheme", "storage.tls.ca", "storage.proxy", "storage.proxy.user", "storage.proxy.password",
    "storage.backgroundWrites", "storage.virtualAddressing", "storage.connectTimeout", "storage.requestTimeout",
    "storage.accessToken", "storage.accessTokenExpires", "storage.serviceAccount", "storage.project",
    "storage.account", "storage.sasToken", "storage.tenantId", "storage.clientId", "storage.clientSecret",
)  # fmt: skip
NAMES = ("profile", *ZOOKEEPER, *STORAGE)
_KNOWN = {name.lower(): name for name in NAMES}
_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)  # what Spark hides where it shows options
_CHOICES = {
    "zookeeper.tls": ("true", "false"),
    "zookeeper.tls.verify": VERIFY,
    "zookeeper.sasl.mechanism": MECHANISMS,
    "storage.anonymous": ("true", "false"),
    "storage.backgroundWrites": ("true", "false"),
    "storage.virtualAddressing": ("true", "false"),
    "storage.scheme": ("http", "https"),
}
# Files, which a profile may name relative to its own folder.
FILES = frozenset({"zookeeper.tls.ca", "zookeeper.tls.cert", "zookeeper.tls.key", "storage.tls.ca"})


def is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


def variable(name: str) -> str:
    """The environment variable for a setting: ``LEDGER_ZOOKEEPER_TLS_CA`` for ``zookeeper.tls.ca``."""
    return "LEDGER_" + re.sub("([A-Z])", r"_\1", name).replace(".", "_").upper()


VARIABLES = {name: variable(name) for name in NAMES}


def known_name(name: str, where: str, also: tuple[str, ...] = NAMES) -> str:
    """The name as it is written here; an error names the nearest."""
    found = _KNOWN.get(name.lower())
    if found is None or found not in also:
        near = difflib.get_close_matches(name.lower(), [each.lower() for each in also], 1)
        hint = f"use '{_KNOWN[near[0]]}'" if near else f"there are {', '.join(also)}"
        raise InvalidInput(f"{where}: there is no '{name}'; {hint}", "LEDGER_UNKNOWN_OPTION")
    return found


def checked(values: Mapping[str, str | None], where: Callable[[str], str]) -> dict[str, str]:
    """The values of one source, under their proper names, with ``user:password`` as its two parts. ``where``: how the
    source calls a setting, for errors."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if value is not None:
            proper = known_name(name, where(name))
            found[proper] = _value(proper, value, where(proper))
    user, password = found.get("zookeeper.user"), found.get("zookeeper.password", "")
    if user is not None and ":" in user:
        raise InvalidInput(f"{where('zookeeper.user')} has a colon: a user's name has none", "LEDGER_INVALID_OPTION")
    before, colon, after = password.partition(":")
    if colon and user is not None:
        raise InvalidInput(
            f"{where('zookeeper.password')} has a colon, so it is user:password, and {where('zookeeper.user')} is "
            "given too: give the user once (a password with a colon in it only as user:password)",
            "LEDGER_INVALID_OPTION",
        )
    if colon:
        found |= {"zookeeper.user": before, "zookeeper.password": after}
    return found


def _value(name: str, value: str, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{where} is no text but a {type(value).__name__}", "LEDGER_INVALID_OPTION")
    if not value.strip():
        raise InvalidInput(f"{where} is '{value}': it must not be empty", "LEDGER_INVALID_OPTION")
    choices = _CHOICES.get(name)
    if choices is None:
        return value if is_secret(name) else value.strip()
    chosen = next((each for each in choices if each.lower() == value.strip().lower()), None)
    if chosen is None:
        raise InvalidInput(f"{where} is '{value}': it must be one of {', '.join(choices)}", "LEDGER_INVALID_OPTION")
    return chosen
