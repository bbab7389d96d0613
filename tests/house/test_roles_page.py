"""docs/security.md says of each command and call who may use it, as tests/lifecycle/test_roles.py tries it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import click
import pytest

from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.outbox.outbox import Outbox
from pyspark_ledger.outbox.transaction import Transaction
from pyspark_ledger.tokens.tokens import Tokens
from tests.support import REPOSITORY
from tests.support.roles import CALLS, COMMANDS

PAGE = (REPOSITORY / "docs" / "security.md").read_text()
# Servers and options of this machine; a namespace that is not there yet; what serves for ever, and reads as others do.
OUTSIDE = {"up", "down", "status", "namespace rebuild", "namespace restore", "namespace repair", "exporter", "options"}
OUTSIDE |= {"completion", "doctor", "console"}  # the console's changes are calls of the table
OUTSIDE |= {"namespace set-storage"}  # needs a namespace that does not find its files
# No requests; what begins another call; what writes as accept_loss does, where storage has more than ZooKeeper.
NO_CALLS = {"zookeeper", "close", "bring_back", "cursor", "outbox", "producer", "tokens"}

# What a client hands out, and calls of it that make no request or are the call itself.
HANDLES: dict[str, tuple[type, set[str]]] = {
    "cursor": (CursorHandle, {"name"}),
    "tokens": (Tokens, {"group"}),
    "outbox": (Outbox, {"name"}),
    "transaction": (Transaction, {"append", "commit", "positions", "duplicate"}),
}

CELLS = {
    "admin": {"admin": "yes", "writer": "no", "reader": "no"},
    "admin writer": {"admin": "yes", "writer": "yes", "reader": "no"},
    "admin reader": {"admin": "yes", "writer": "no", "reader": "yes"},
    "admin writer reader": {"admin": "yes", "writer": "yes", "reader": "yes"},
    "admin writer+reader": {"admin": "yes", "writer": "if also reader", "reader": "if also writer"},
}


def told(header: str) -> dict[str, dict[str, str]]:
    """Name -> role -> cell, of the table whose first column has this header."""
    found: dict[str, dict[str, str]] = {}
    table = PAGE.partition(f"\n| {header} | admin | writer | reader |\n|---|---|---|---|\n")[2].partition("\n\n")[0]
    for line in table.splitlines():
        names, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"`([^`]+)`", names):
            assert name not in found, name
            found[name] = dict(zip(("admin", "writer", "reader"), cells, strict=True))
    return found


def tried(things: Mapping[str, tuple[tuple[str, ...], Any]]) -> dict[str, dict[str, str]]:
    return {name: CELLS[" ".join(allowed)] for name, (allowed, _) in things.items()}


def commands(group: click.Group, path: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        yield from commands(command, f"{path}{name} ") if isinstance(command, click.Group) else [f"{path}{name}"]


def test_the_page_says_of_every_command_who_may_give_it():
    assert told("command") == tried(COMMANDS)


def test_the_page_says_of_every_call_who_may_make_it():
    assert told("call") == tried(CALLS)


def test_no_command_and_no_call_is_left_out():
    assert set(commands(main)) - COMMANDS.keys() == OUTSIDE
    methods = {name for name in vars(LedgerClient) if not name.startswith("_")}
    assert methods - {re.split(r"\W", name)[0] for name in CALLS} == {*NO_CALLS} - {
        "cursor",
        "outbox",
        "producer",
        "tokens",
    }


@pytest.mark.parametrize("handle", HANDLES)
def test_no_call_of_what_a_client_hands_out_is_left_out(handle):
    kind, no_calls = HANDLES[handle]
    methods = {name for name in vars(kind) if not name.startswith("_")}
    assert methods - no_calls == {name.partition(".")[2] for name in CALLS if name.startswith(f"{handle}.")}
