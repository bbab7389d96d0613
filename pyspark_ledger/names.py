"""The only module that knows file names, and what topics, subscriptions and processes are called."""

from __future__ import annotations

import os
import re
import socket

from pyspark_ledger.errors import InvalidInput

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_STAGED = re.compile(r"([0-9a-f]{8,16})/([0-9a-f]{32})\.arrow")


def check_topic_name(name: str) -> str:
    return _checked(name, "topic", "LEDGER_INVALID_TOPIC_NAME")


def check_subscription_name(name: str) -> str:
    return _checked(name, "subscription", "LEDGER_INVALID_SUBSCRIPTION_NAME")


def _checked(name: str, thing: str, code: str) -> str:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidInput(
            f"'{name}' cannot be a {thing}'s name: use 1 to 200 letters, digits, '_', '-' and '.', starting with a "
            f"letter, a digit or '_' (a {thing} has a name, not a path)",
            code,
        )
    return name


def this_process() -> str:
    """Who we are, for people."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def topic_folder(uuid: str) -> str:
    return uuid


def staged_file(uuid: str, epoch: int, uid: bytes) -> str:
    """One folder per gc epoch, so that gc lists only what is new since it last looked."""
    return f"{uuid}/{epoch:08x}/{uid.hex()}.arrow"


def parse_staged_file(uuid: str, path: str) -> tuple[int, bytes] | None:
    """The epoch and id in a path made by :func:`staged_file`, or None for a file that is not ours."""
    prefix = f"{uuid}/"
    match = _STAGED.fullmatch(path[len(prefix) :]) if path.startswith(prefix) else None
    return (int(match[1], 16), bytes.fromhex(match[2])) if match else None
