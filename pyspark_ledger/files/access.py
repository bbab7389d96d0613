"""How to get into an object store: the settings ``storage.…`` and what they mean to pyarrow.

Where files are is no secret, and is recorded in ZooKeeper; how to get there is said by each process itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pyarrow.fs

from pyspark_ledger.base.setting_names import is_secret
from pyspark_ledger.base.uris import shown
from pyspark_ledger.errors import InvalidInput

_PREFIX = "storage."
_DELAYED = "allow_delayed_open"  # an object is begun when the first bytes are sent, not before


def file_system(uri: str, settings: Mapping[str, str]) -> tuple[pa.fs.FileSystem, str]:
    """pyarrow's file system for a URI, and the path of the root in it. InvalidInput says what does not fit."""
    values = {name.removeprefix(_PREFIX): value for name, value in settings.items()}
    make = _MAKERS.get(urlsplit(uri).scheme)
    try:
        if not values:
            return pa.fs.FileSystem.from_uri(_saving_requests(uri))  # type: ignore[no-any-return]
        if make is None:
            raise InvalidInput(
                f"the storage {shown(uri)} takes none of the options {', '.join(sorted(settings))}: they are for "
                f"{', '.join(f'{scheme}://' for scheme in _MAKERS)}",
                "LEDGER_INVALID_OPTION",
            )
        return make(uri, values)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, ValueError) as error:
        raise InvalidInput(
            f"storage '{shown(uri)}' cannot be opened: {_without(values, uri, str(error))}. Use a folder or a URI that "
            "pyarrow.fs knows, as in s3://bucket/prefix?region=eu-west-1",
            "LEDGER_INVALID_STORAGE",
        ) from None


def _saving_requests(uri: str) -> str:
    """With what makes pyarrow write an S3 object that fits into one request with one, instead of three."""
    if urlsplit(uri).scheme != "s3" or f"{_DELAYED}=" in uri:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}{_DELAYED}=true"


def _without(values: Mapping[str, str], uri: str, message: str) -> str:
    """What a library says about settings or a URI, without the secrets among them."""
    for secret in (uri, *(value for name, value in values.items() if is_secret(name))):
        message = message.replace(secret, shown(uri) if secret == uri else "…")
    return message


def _yes(text: str) -> bool:
    return text.strip().lower() == "true"


# By what they are called in pyarrow: the setting, and how its text is read.
_Meaning = dict[str, tuple[str, Callable[[str], Any]]]
_S3: _Meaning = {
    "access_key": ("accessKey", str),
    "secret_key": ("secretKey", str),
    "session_token": ("sessionToken", str),
    "anonymous": ("anonymous", _yes),
    "role_arn": ("roleArn", str),
    "session_name": ("roleSession", str),
    "external_id": ("externalId", str),
    "region": ("region", str),
    "endpoint_override": ("endpoint", str),
    "scheme": ("scheme", str),
    "tls_ca_file_path": ("tls.ca", str),
    "background_writes": ("backgroundWrites", _yes),
    "force_virtual_addressing": ("virtualAddressing", _yes),
    "connect_timeout": ("connectTimeout", float),
    "request_timeout": ("requestTimeout", float),
}
_GCS: _Meaning = {
    "access_token": ("accessToken", str),
    "credential_token_expiration": ("accessTokenExpires", datetime.fromisoformat),
    "target_service_account": ("serviceAccount", str),
    "anonymous": ("anonymous", _yes),
    "endpoint_override": ("endpoint", str),
    "scheme": ("scheme", str),
    "project_id": ("project", str),
}
_AZURE: _Meaning = {
    "account_name": ("account", str),
    "account_key": ("secretKey", str),
    "sas_token": ("sasToken", str),
    "tenant_id": ("tenantId", str),
    "client_id": ("clientId", str),
    "client_secret": ("clientSecret", str),
}
_PROXY = ("proxy", "proxy.user", "proxy.password")
# Parameters of a URI that are no settings: whoever makes the namespace says them once.
_IN_URI: _Meaning = {
    **{name: ("", read) for name, (_, read) in _S3.items()},
    "allow_bucket_creation": ("", _yes),
    "allow_bucket_deletion": ("", _yes),
    _DELAYED: ("", _yes),
}


def _s3(uri: str, values: Mapping[str, str]) -> tuple[pa.fs.FileSystem, str]:
    _check_known("s3", values, _S3, _PROXY)
    if "roleArn" in values and ("accessKey" in values or "anonymous" in values):
        raise _invalid(
            "storage.roleArn is assumed with what the machine or the environment of each process has (AWS_…): leave "
            "storage.accessKey and storage.anonymous out"
        )
    if ("accessKey" in values) != ("secretKey" in values):
        raise _invalid("storage.accessKey and storage.secretKey belong together, and only one of them is given")
    if "sessionToken" in values and "accessKey" not in values:
        raise _invalid("storage.sessionToken belongs to storage.accessKey and storage.secretKey: give these too")
    parts = urlsplit(uri)
    said = {name: value for name, value in parse_qsl(parts.query) if name in _IN_URI}
    given: dict[str, Any] = {_DELAYED: True}
    given |= {name: _IN_URI[name][1](value) for name, value in said.items()} | _arguments(_S3, values)
    if "proxy" in values:
        given["proxy_options"] = _proxy(values)
    bucket = parts.netloc.rpartition("@")[2]
    if not given.get("region") and not given.get("endpoint_override") and "proxy" not in values:
        given["region"] = pa.fs.resolve_s3_region(bucket)  # as pyarrow does for a URI
    return pa.fs.S3FileSystem(**given), f"{bucket}{parts.path}"


def _proxy(values: Mapping[str, str]) -> dict[str, Any]:
    parts = urlsplit(values["proxy"])
    if parts.username is not None or parts.password is not None:
        raise _invalid("storage.proxy has a user in it: give storage.proxy.user and storage.proxy.password, as others "
                       "would see it there")  # fmt: skip
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
        raise _invalid(f"storage.proxy is '{values['proxy']}': an address was expected, as in http://proxy:3128")
    options: dict[str, Any] = {"scheme": parts.scheme, "host": parts.hostname, "port": parts.port}
    if "proxy.user" in values:
        options |= {"username": values["proxy.user"], "password": values.get("proxy.password", "")}
    return options


def _gcs(uri: str, values: Mapping[str, str]) -> tuple[pa.fs.FileSystem, str]:
    _check_known("gs", values, _GCS)
    if ("accessToken" in values) != ("accessTokenExpires" in values):
        raise _invalid("storage.accessToken and storage.accessTokenExpires (a time in ISO 8601) belong together")
    parts = urlsplit(uri)
    said = {name: value for name, value in parse_qsl(parts.query) if name in _GCS}
    given = {name: _GCS[name][1](value) for name, value in said.items()} | _arguments(_GCS, values)
    return pa.fs.GcsFileSystem(**given), f"{parts.netloc.rpartition('@')[2]}{parts.path}"


def _azure(uri: str, values: Mapping[str, str]) -> tuple[pa.fs.FileSystem, str]:
    """``abfss://container@account.dfs.core.windows.net/path``, as Hadoop spells it."""
    _check_known("abfss", values, _AZURE, ("endpoint", "scheme"))
    parts = urlsplit(uri)
    container, at, host = parts.netloc.rpartition("@")
    given = _arguments(_AZURE, values)
    given.setdefault("account_name", host.partition(".")[0])
    for kind in ("blob", "dfs"):
        if "endpoint" in values:
            given[f"{kind}_storage_authority"] = values["endpoint"]
        if "scheme" in values:
            given[f"{kind}_storage_scheme"] = values["scheme"]
    root = f"{container.partition(':')[0]}{parts.path}" if at else f"{host}{parts.path}"
    return pa.fs.AzureFileSystem(**given), root


_MAKERS: dict[str, Callable[[str, Mapping[str, str]], tuple[pa.fs.FileSystem, str]]] = {
    "s3": _s3, "gs": _gcs, "gcs": _gcs, "abfs": _azure, "abfss": _azure,
}  # fmt: skip


def _check_known(scheme: str, values: Mapping[str, str], known: _Meaning, also: tuple[str, ...] = ()) -> None:
    names = {name for name, _ in known.values()} | set(also)
    foreign = sorted(values.keys() - names)
    if foreign:
        raise _invalid(
            f"a storage of {scheme}:// does not take {', '.join(_PREFIX + name for name in foreign)}; it takes "
            f"{', '.join(_PREFIX + name for name in sorted(names))}"
        )


def _arguments(known: _Meaning, values: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for argument, (name, read) in known.items():
        if name in values:
            try:
                found[argument] = read(values[name])
            except ValueError:
                what = "…" if is_secret(name) else values[name]
                raise _invalid(f"{_PREFIX}{name} is '{what}', which is not understood") from None
    return found


def _invalid(why: str) -> InvalidInput:
    return InvalidInput(why, "LEDGER_INVALID_OPTION")
