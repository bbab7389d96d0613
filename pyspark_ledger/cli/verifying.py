"""``topics verify``: whether a topic is whole; ``topics skip-damaged``: to go on without what is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from pyspark_ledger.cli.base import Command, Session
from pyspark_ledger.cli.output import size
from pyspark_ledger.cli.report import report_option, reporting
from pyspark_ledger.errors import LedgerError, Unavailable

if TYPE_CHECKING:
    from pyspark_ledger.client import LedgerClient
    from pyspark_ledger.lifecycle.findings import Finding, Verified


def _share(_context: click.Context, _option: click.Parameter, given: str | None) -> float | None:
    if given is None:
        return None
    number, percent = given.removesuffix("%"), given.endswith("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise click.BadParameter(f"'{given}' is no share: write 1% or 0.01")
    return share


@click.command(cls=Command)
@click.argument("topic", required=False)
@click.option("--all", "everything", is_flag=True, help="All topics, one after the other, and all outboxes.")
@click.option(
    "--sample",
    metavar="SHARE",
    callback=_share,
    help="A quick look: read the records of this share of files, as in 1%, chosen anew every time. Of the others only "
    "the length is checked.",
)
@click.option("--deep", is_flag=True, help="Also compare compacted generations with what the log gives.")
@click.pass_obj
def verify(session: Session, topic: str | None, everything: bool, sample: float | None, deep: bool) -> None:
    """Look whether all of TOPIC is there, is what was written, and adds up. Changes nothing.

    Exit status 1 if something is lost, damaged or contradicts itself; files that nothing names are only mentioned."""
    if (topic is None) is not everything:
        raise click.UsageError("name one topic, or give --all")
    if deep and sample is not None:
        raise click.UsageError("--deep reads everything, and --sample only a part: give one of them")
    with session.client() as client:
        names = [topic] if topic is not None else client.topics()
        done = [_verify_one(session, client, name, sample, deep) for name in names]
        is_sound = all(done)
        if everything:
            is_sound = _verify_outboxes(session, client) and is_sound
    if not is_sound:
        raise click.exceptions.Exit(1)


def _verify_one(session: Session, client: LedgerClient, topic: str, sample: float | None, deep: bool) -> bool:
    with session.output.progress() as progress:
        try:
            done = client.verify(topic, sample=sample, deep=deep, progress=progress)
        except Unavailable:
            raise
        except LedgerError as error:
            session.output.done(f"{topic}: {error}", {"topic": topic, "error": str(error)})
            return False
    facts = {field.name: getattr(done, field.name) for field in fields(done)}
    rows = [_row(found) for found in done.findings]
    session.output.done(_sentence(done), {**facts, "is_sound": done.is_sound, "findings": rows})
    return done.is_sound


def _verify_outboxes(session: Session, client: LedgerClient) -> bool:
    from pyspark_ledger.lifecycle.verify_outboxes import verify_outboxes

    found = verify_outboxes(session.namespace(client))
    lines = [f"outboxes: {len(found) or 'nothing'} {'findings' if found else 'is wrong'}", *_lines(found)]
    session.output.done("\n".join(lines), {"outboxes": [_row(each) for each in found]})
    return not found


def _row(found: Finding) -> dict[str, Any]:
    return {field.name: getattr(found, field.name) for field in fields(found)}


def _sentence(done: Verified) -> str:
    looked = f"{done.ledgers:,} ledgers, {done.records:,} records, {done.files:,} files ({size(done.bytes_read)} read)"
    harm = [found for found in done.findings if found.is_harm]
    if not harm:
        result = "nothing is lost or damaged"
    else:
        kinds = dict.fromkeys(found.kind for found in harm)
        result = ", ".join(f"{sum(found.kind == kind for found in harm):,} {kind}" for kind in kinds)
    more = [f"  and {done.more_findings:,} more"] if done.more_findings else []
    return "\n".join([f"{done.topic}: {looked}: {result}", *_lines(done.findings), *more])


def _lines(findings: Sequence[Finding]) -> list[str]:
    return [f"  {found.kind}: {_concerned(found)}{found.what}; {found.advice}" for found in findings]


def _concerned(found: Finding) -> str:
    return f"{found.records:,} records from {found.first} up to {found.end}: " if found.first is not None else ""


@click.command("skip-damaged", cls=Command)
@click.argument("topic")
@click.argument("entry", metavar="LEDGER:ENTRY")
@click.option("--reason", default="", help="For those who are told that it is lost.")
@click.option("--undo", is_flag=True, help="Take it back, after its file was restored from a copy.")
@click.option("--yes", is_flag=True, help="Do it.")
@report_option
@click.pass_obj
def skip_damaged(
    session: Session, topic: str, entry: str, reason: str, undo: bool, yes: bool, report: str | None
) -> None:
    """Give up an entry of TOPIC whose file is damaged or missing, as in 3:17, if there is no copy of the file.

    Readers that meet it are told exactly what is missing; those with failOnDataLoss=false, and compaction, go around
    it. Positions and totals stay as they are. An entry that is whole is refused."""
    with session.client() as client:
        planned = client.skip_damaged(topic, entry, undo=undo, dry_run=True)
        row = {"topic": topic, **{field.name: getattr(planned, field.name) for field in fields(planned)}}
        amount = f"{planned.records:,} records from {planned.first} up to {planned.end}"
        if not undo:
            session.require_yes(yes, f"give up {amount} of topic '{topic}'", [row])
        with reporting(session, report) as written:
            written.found(row)
            client.skip_damaged(topic, entry, reason=reason, undo=undo)
            (written.done if undo else written.lost)({"records": planned.records, "reason": reason})
    done = "can be read again" if undo else "given up"
    session.output.done(f"{topic}: {amount} {done}", {**row, "reason": reason, "undo": undo})
