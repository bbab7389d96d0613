"""URIs of storage, which are recorded in ZooKeeper and shown: so they must not have keys in them."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pyspark_ledger.errors import InvalidInput

# Of a parameter: what pyarrow calls keys, and what stands in links that stores sign. A value may be an address with a
# user and a password in it.
_KEY_NAME = re.compile(r"secret|passw|token|key|credential|signature|^sig$", re.IGNORECASE)
_USER_AND_PASSWORD = re.compile(r"(^|/)[^/@]*:[^/@]*@")

_BETTER = (
    "give them as the options storage.accessKey and storage.secretKey (docs/security.md has those of other stores), in "
    "a profile, or by the environment or the role of the machine"
)


def check_no_keys(uri: str) -> None:
    """InvalidInput if a URI that somebody gives has keys in it: it would be written into ZooKeeper."""
    if has_keys(uri):
        raise InvalidInput(
            f"the URI of the storage, {shown(uri)}, has keys or a password in it, and it is recorded in ZooKeeper and "
            f"shown in messages: {_BETTER}. If they were used elsewhere, take them for known and make new ones",
            "LEDGER_KEYS_IN_URI",
        )


def has_keys(uri: str) -> bool:
    parts = _split(uri)
    if parts is None:
        return False  # whoever wants to open it says why not
    return bool(_keys_before_host(parts)) or any(_is_key(*each) for each in parse_qsl(parts.query))


def shown(uri: str) -> str:
    """A URI for messages, without the keys that it may have."""
    if "@" not in uri and "?" not in uri:
        return uri
    parts = _split(uri)
    if parts is None:
        return "(a URI that cannot be read)"
    if not has_keys(uri):
        return uri
    host = parts.netloc
    if _keys_before_host(parts):
        before, _, host = parts.netloc.rpartition("@")
        host = f"{before.partition(':')[0]}:…@{host}" if parts.scheme.startswith("abfs") else f"…@{host}"
    query = parse_qsl(parts.query, keep_blank_values=True)
    safe = parts.query
    if any(_is_key(*each) for each in query):
        safe = urlencode(
            [(name, "…" if _is_key(name, value) else value) for name, value in query], safe="…:/", errors="replace"
        )
    return str(urlunsplit(parts._replace(netloc=host, query=safe)))


def _is_key(name: str, value: str) -> bool:
    return bool(_KEY_NAME.search(name) or _USER_AND_PASSWORD.search(value))


def _split(uri: str) -> Any:
    """None: nobody can tell what is in it."""
    try:
        return urlsplit(uri)
    except ValueError:
        return None


def _keys_before_host(parts: Any) -> str:
    """Azure has the container there, and perhaps a key behind a colon; others have nothing there but keys."""
    before, at, _ = parts.netloc.rpartition("@")
    return "" if not at else before.partition(":")[2] if parts.scheme.startswith("abfs") else before or "@"
