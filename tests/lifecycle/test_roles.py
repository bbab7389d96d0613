"""Everything that can be done with a namespace, tried as each login: who may not do a thing is told so, and has changed
nothing. docs/security.md has the same tables."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.client import open_namespace
from pyspark_ledger.errors import LedgerError, NotAllowed
from tests.support.roles import BOTH, CALLS, COMMANDS, LOGINS, World, made
from tests.support.zookeeper import dump

# These work on all topics, and say at their end that some are damaged: they are there to be repaired.
DONE_ALL_THE_SAME = {
    "namespace gc": "LEDGER_SET_BACK",
    "maintain": "LEDGER_SET_BACK",
    "namespace move-storage": "the namespace keeps its files in",
}
HAS = {"admin": {"admin"}, "writer": {"writer"}, "reader": {"reader"}, "pipeline": {"writer", "reader"}}


def may(login: str, allowed: tuple[str, ...]) -> bool:
    return any(set(needed.split("+")) <= HAS.get(login, set()) for needed in allowed)


@pytest.fixture(scope="module")
def world(zookeeper, tmp_path_factory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patched:
        # Nothing has to wait for a day: who may collect files does so at once.
        patched.setitem(open_namespace.__kwdefaults__, "limits", replace(DEFAULT_LIMITS, gc_grace_ms=0))
        patched.delenv("LEDGER_STORAGE", raising=False)
        yield made(f"{zookeeper}/roles-{tmp_path_factory.getbasetemp().name}", tmp_path_factory.mktemp("roles"))


def unchanged(world: World) -> dict[str, tuple[bytes, int]]:
    found = dump(world.namespace, LOGINS["admin"])
    return {path: (data, version) for path, (data, version, _) in found.items() if path != "/clock"}


def tried_call(world: World, login: str, name: str) -> str:
    """Empty if it was done; the code of the refusal, or what went wrong."""
    try:
        with world.client(login) as client:
            CALLS[name][1](client, f"t-{login}")
    except NotAllowed as refusal:
        return refusal.code
    except LedgerError as error:
        return f"went wrong: {error}"
    return ""


def tried_command(world: World, login: str, name: str) -> str:
    arguments = COMMANDS[name][1].format(**world.names(login))
    done = world.command(login, *shlex.split(name), *shlex.split(arguments))
    for code in ("LEDGER_NOT_ALLOWED", "LEDGER_ACCESS_DENIED"):
        if code in done.output and done.exit_code:
            return code
    if DONE_ALL_THE_SAME.get(name, "\0") in done.output:
        return ""
    return f"went wrong: {done.output} {done.exception}" if done.exit_code else ""


@pytest.mark.parametrize("login", [*sorted(LOGINS, key=lambda login: (login == "admin", login))])
def test_who_may_not_do_a_thing_is_told_so_and_changes_nothing_I20(world, login):
    things = [(tried_call, name, allowed) for name, (allowed, _) in CALLS.items()]
    things += [(tried_command, name, allowed) for name, (allowed, _) in COMMANDS.items()]
    code = "LEDGER_NOT_ALLOWED" if login in HAS else "LEDGER_ACCESS_DENIED"
    before = unchanged(world)
    wholly = [thing for thing in things if not may(login, thing[2]) and thing[2] != BOTH]
    refused = {name: tried(world, login, name) for tried, name, _ in wholly}
    assert {name: outcome for name, outcome in refused.items() if outcome != code} == {}
    assert unchanged(world) == before
    in_part = [thing for thing in things if not may(login, thing[2]) and thing[2] == BOTH]
    refused = {name: tried(world, login, name) for tried, name, _ in in_part}
    assert {name: outcome for name, outcome in refused.items() if outcome != code} == {}
    done = {name: tried(world, login, name) for tried, name, allowed in things if may(login, allowed)}
    assert {name: outcome for name, outcome in done.items() if outcome} == {}
