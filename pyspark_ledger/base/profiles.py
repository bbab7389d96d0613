"""Profiles: settings under a name, in a TOML file that only its owner can read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark_ledger.base.setting_names import FILES, NAMES, checked, is_secret, known_name
from pyspark_ledger.errors import InvalidInput

DEFAULT_FILE = "~/.config/pyspark-ledger/config.toml"

# What was read of each file and profile, and what the file was then.
_read: dict[tuple[str, str], tuple[tuple[int, ...], dict[str, str]]] = {}


def config_file() -> str:
    """Where this process has its profiles."""
    return os.path.abspath(os.path.expanduser(os.environ.get("LEDGER_CONFIG") or DEFAULT_FILE))


def read(file: str, profile: str) -> dict[str, str]:
    """The settings of a profile, as they are at this moment.

    :raises InvalidInput: there is no such file or profile, something in it is wrong, or others can read its secrets.
    """
    try:
        known = _read.get((file, profile))
        if known is not None and known[0] == _state(os.stat(file)):
            return known[1]
        status, content = _content(file)
    except OSError as error:
        raise _invalid(
            f"profile '{profile}' is asked for, and {file} cannot be read ({error.strerror}): make it, or name another "
            "file by LEDGER_CONFIG"
        ) from None
    profiles = parse(file, content)
    if profile not in profiles:
        raise _invalid(f"{file} has no profile '{profile}'; there are: {', '.join(profiles) or 'none'}")
    _check_private(file, status, profiles)
    values = settings_in(file, profile, profiles[profile])
    _read[file, profile] = _state(status), values
    return values


def _state(status: os.stat_result) -> tuple[int, ...]:
    """As long as it is the same, nobody has changed the file."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _content(file: str) -> tuple[os.stat_result, bytes]:
    """Of one and the same file, also if another is put in its place meanwhile. Nobody is waited for: it may be a
    pipe."""
    opened = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        with open(opened, "rb", closefd=False) as text:
            return status, text.read()
    finally:
        os.close(opened)


def parse(file: str, content: bytes) -> dict[str, dict[str, str]]:
    """The profiles by name, with their values by name, whatever those are. ``file`` is for errors."""
    import tomllib  # few processes have a profile

    try:
        profiles = tomllib.loads(content.decode())
        return {name: dict(_flat(file, name, values)) for name, values in profiles.items()}
    except UnicodeDecodeError:
        raise _invalid(f"{file} is no text in UTF-8") from None
    except ValueError as error:  # TOML's own, and numbers without end
        raise _invalid(f"{file} is no TOML: {error}. Names with a dot in them stand in quotes") from None
    except RecursionError:
        raise _invalid(f"{file} is nested too deeply") from None


def _flat(file: str, profile: str, values: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Tables within a profile are names with dots."""
    if not isinstance(values, dict):
        raise _invalid(f"'{profile}' in {file} stands outside of a profile: begin one with a line such as [prod]")
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, dict):
            yield from _flat(file, profile, value, f"{name}.")
        elif isinstance(value, bool):
            yield name, "true" if value else "false"
        elif isinstance(value, str | int):
            yield name, str(value)
        else:
            raise _invalid(f"'{name}' in profile '{profile}' of {file} must be text, in quotes")


def _check_private(file: str, status: os.stat_result, profiles: Mapping[str, Mapping[str, str]]) -> None:
    """A group may read the file only if it is root's: so a cluster's manager hands out secrets. Whom everybody can tell
    another address would show his password there, wherever he has it from."""
    if status.st_mode & stat.S_IWOTH:
        raise _invalid(f"everybody can write to {file}: chmod 600 {file}")
    secret = next((name for values in profiles.values() for name in values if is_secret(name)), None)
    others = stat.S_IMODE(status.st_mode) & (0o037 if status.st_uid == 0 else 0o077)
    if secret is not None and others:
        raise _invalid(f"{file} holds a secret ('{secret}') and is not only yours: chmod 600 {file}")


def settings_in(file: str, profile: str, values: Mapping[str, str]) -> dict[str, str]:
    """A profile names no other, and files relative to its own."""
    of = f"profile '{profile}' of {file}"
    for name in values:
        known_name(name, of, NAMES[1:])
    found = checked(values, lambda name: f"'{name}' in {of}")
    folder = os.path.dirname(file)
    return {
        name: os.path.join(folder, os.path.expanduser(text)) if name in FILES else text for name, text in found.items()
    }


def _invalid(why: str) -> InvalidInput:
    return InvalidInput(why, "LEDGER_INVALID_PROFILE")
