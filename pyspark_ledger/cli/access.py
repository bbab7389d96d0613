"""``pyspark-ledger access``: who may do what in the namespace."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from pyspark_ledger.cli.base import Commands, Session
from pyspark_ledger.describe.rows import Row, moment
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.metadata.roles import ROLES

if TYPE_CHECKING:
    from pyspark_ledger.lifecycle.access import Access, Changed
    from pyspark_ledger.metadata.records import Grant
    from pyspark_ledger.zk_metadata.access import Identity
    from pyspark_ledger.zk_metadata.access_tree import Mended

_PASSWORD = "LEDGER_NEW_PASSWORD"
_YES = click.option("--yes", is_flag=True, help="Do it.")
_ROLE = click.Choice(ROLES)


@click.group(cls=Commands)
def access() -> None:
    """Who may do what in the namespace: admins, writers and readers.

    An IDENTITY is digest:USER, sasl:USER, or x509:SUBJECT for the subject of a client's certificate. The password of a
    digest:USER is asked for; where nobody can be asked, it comes from LEDGER_NEW_PASSWORD or from standard input."""


@access.command("list")
@click.pass_obj
def list_access(session: Session) -> None:
    """Who has which role."""
    with _opened(session) as work:
        session.listing(_rows(work, work.grants()), "no roles: whoever may open the namespace may do everything")


@access.command()
@click.argument("role", type=_ROLE)
@click.argument("identity")
@_YES
@click.pass_obj
def grant(session: Session, role: str, identity: str, yes: bool) -> None:
    """Give ROLE to IDENTITY.

    With the first role you become an admin too, and whoever has no role is kept out from then on."""
    with _opened(session) as work:
        whom = _asked(identity)
        if not work.grants():
            what = "give this namespace roles: only who has one gets in from then on, you as an admin"
            session.require_yes(yes, what, [{"role": role, "identity": identity}])
        _tell(session, work, work.grant(role, whom), f"{identity} has the role {role}")


@access.command()
@click.argument("role", type=click.Choice(["all", *ROLES]))
@click.argument("identity")
@_YES
@click.pass_obj
def revoke(session: Session, role: str, identity: str, yes: bool) -> None:
    """Take ROLE away from IDENTITY, or all its roles."""
    from pyspark_ledger.lifecycle.access import parse_identity

    with _opened(session) as work:
        whom, which = parse_identity(identity), None if role == "all" else role
        found = work.found(which, whom)
        if found:
            session.require_yes(yes, f"take roles away from {identity}", _rows(work, found))
        _tell(session, work, work.revoke(which, whom), f"{identity} has no longer the role {role}")


@access.command()
@click.argument("identity")
@click.option("--to", metavar="IDENTITY", help="Who takes over. Default: the same user with a new password.")
@click.option("--finish", is_flag=True, help="The second step: the former identity loses its roles.")
@click.option("--yes", is_flag=True, help="With --finish: also if processes are still logged in as the former one.")
@click.pass_obj
def rotate(session: Session, identity: str, to: str | None, finish: bool, yes: bool) -> None:
    """Pass the roles of IDENTITY on, in two steps, while everything runs.

    First the new identity gets the roles of the former one, and both count. Put the new one into the profiles: running
    queries take it up. Then --finish takes the roles from the former one, after a look at who still uses it."""
    from pyspark_ledger.lifecycle.access import parse_identity

    if finish and to:
        raise InvalidInput("--finish needs no --to: it is known who takes over")
    with _opened(session) as work:
        old = parse_identity(identity)
        if finish:
            _check_unused(session, work, old, yes)
            _tell(session, work, work.finish(old), f"{identity}: the former identity has no role any more")
        else:
            said = "both count: put the new one into the profiles, then 'pyspark-ledger access rotate --finish'"
            _tell(session, work, work.rotate(old, _asked(to or identity)), f"{identity}: {said}")


def _check_unused(session: Session, work: Access, old: Identity, yes: bool) -> None:
    found = work.owners(work.leaving(old))
    if found and not yes:
        session.output.rows([{"node": each.node, "process": each.name} for each in found], "nobody")
        raise InvalidInput(
            f"{len(found)} nodes are of living processes that are logged in as the former identity only, and these "
            "will fail; nothing was changed: add --yes to do it all the same",
            "LEDGER_NOT_CONFIRMED",
        )


@access.command()
@click.option("--dry-run", is_flag=True, help="Only say how many are wrong.")
@click.pass_obj
def check(session: Session, dry_run: bool) -> None:
    """Look whether every node has the access list that it should have, and mend those that have not.

    Needed after another command was interrupted, or when an older version of pyspark-ledger was still running."""
    with _opened(session) as work:
        done = work.check(dry_run=dry_run)
    wrong = "wrong and left as they are" if dry_run else "mended"
    session.output.done(f"{done.nodes:,} nodes, {done.changed:,} {wrong}", {"dry_run": dry_run, **_facts(done)})
    _end(session, done)


@contextmanager
def _opened(session: Session) -> Iterator[Access]:
    from pyspark_ledger.lifecycle.access import Access

    with closing(session.metadata()) as metadata, session.output.progress() as progress:
        yield Access(metadata, progress=progress)


def _asked(text: str) -> Identity:
    """The identity, with the hash of a password that is asked for where it needs one."""
    from pyspark_ledger.lifecycle.access import needs_password, parse_identity, with_password

    found = parse_identity(text)
    return with_password(found, _password(text)) if needs_password(found) else found


def _password(who: str) -> str:
    given = os.environ.get(_PASSWORD)
    if given:
        return given
    if sys.stdin.isatty():
        return str(click.prompt(f"Password of {who}", hide_input=True, confirmation_prompt=True, err=True))
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise InvalidInput(f"nothing says the password of {who}: set {_PASSWORD}, or give it on standard input")
    return line


def _rows(work: Access, grants: Sequence[Grant]) -> list[Row]:
    from pyspark_ledger.zk_metadata.refusals import spelled

    mine = set(work.who())
    return [
        {
            "identity": spelled(each.scheme, each.id),
            "role": each.role,
            "since": moment(each.since_ms),
            "leaving": each.leaving,
            "you": (each.scheme, each.id) in mine,
        }
        for each in grants
    ]


def _facts(done: Mended) -> Row:
    return {"nodes": done.nodes, "changed": done.changed, "refused": list(done.refused)}


def _tell(session: Session, work: Access, changed: Changed, sentence: str) -> None:
    facts = {"roles": _rows(work, changed.grants), **_facts(changed.mended)}
    session.output.done(f"{sentence} ({changed.mended.changed:,} access lists changed)", facts)
    _end(session, changed.mended)


def _end(session: Session, done: Mended) -> None:
    if not done.is_right:
        shown = ", ".join(done.refused[:3]) + (", …" if len(done.refused) > 3 else "")
        session.output.note(
            f"{len(done.refused)} nodes belong to somebody else, who alone can change their access lists: {shown}. "
            "Log in as who made them, and run 'pyspark-ledger access check'"
        )
        raise click.exceptions.Exit(1)
