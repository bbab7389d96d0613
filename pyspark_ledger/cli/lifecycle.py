"""``topics trim``, ``gc``, ``rewrite`` and ``terminate``: by hand what maintenance does by itself, and what only a
person decides."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import click

from pyspark_ledger.cli.arguments import place, size
from pyspark_ledger.cli.base import Command, Session
from pyspark_ledger.cli.output import duration
from pyspark_ledger.cli.output import size as shown_size

if TYPE_CHECKING:
    from pyspark_ledger.lifecycle.gc import Collected
    from pyspark_ledger.lifecycle.retention import Trimmed
    from pyspark_ledger.lifecycle.rewriting import Rewritten
    from pyspark_ledger.log.places import Place

_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only say what would be done.")
_SHOWN_FILES = 20


@click.command(cls=Command)
@click.argument("topic")
@click.option(
    "--before",
    callback=place,
    metavar="PLACE",
    help="Give up the ledgers that end before this place, whatever the policies say: a position as 3:17:0, "
    "or a publish time in ISO 8601. Needs --yes.",
)
@_DRY_RUN
@click.option("--yes", is_flag=True, help="Do it, with --before.")
@click.pass_obj  # fmt: skip
def trim(session: Session, topic: str, before: Place | None, dry_run: bool, yes: bool) -> None:
    """Give up the oldest ledgers of TOPIC, as its policies say.

    What a subscription has not passed, or the newest compaction needs, stays. The files go with gc, two to three days
    later."""
    with session.client() as client:
        if before is not None and not dry_run:
            planned = client.trim(topic, before=before, dry_run=True)
            if planned.ledgers:
                what = f"give up {planned.records:,} records of topic '{topic}' for good"
                session.require_yes(yes, what, [{"topic": topic, **_amounts(planned)}])
        done = client.trim(topic, before=before, dry_run=dry_run)
    holds = [{"by": hold.by, "records": hold.records, "bytes": hold.bytes} for hold in done.holds]
    facts = {"topic": topic, "dry_run": dry_run, **_amounts(done), "why": done.why, "holds": holds}
    lines = [_trim_sentence(topic, done, dry_run)]
    lines += [f"  {hold.by}: {hold.records:,} records, {shown_size(hold.bytes)}" for hold in done.holds]
    session.output.done("\n".join(lines), facts)


def _amounts(done: Trimmed) -> dict[str, object]:
    return {"begin": done.begin, "ledgers": done.ledgers, "records": done.records, "bytes": done.bytes}


def _trim_sentence(topic: str, done: Trimmed, dry_run: bool) -> str:
    if not done.ledgers:
        return f"{topic}: nothing {'would be' if dry_run else 'was'} given up: {done.why}"
    amount = f"{done.ledgers:,} ledgers, {done.records:,} records, {shown_size(done.bytes)}"
    if dry_run:
        return f"{topic}: {amount} would be given up, and it would begin at {done.begin}; no more, because {done.why}"
    return f"{topic}: {amount} given up, it begins at {done.begin}; no more, because {done.why}"


@click.command(cls=Command)
@click.argument("topic")
@_DRY_RUN
@click.option("--thorough", is_flag=True,
              help="Compare all files with all references, which takes longer the longer the log is: finds what tasks "
                   "wrote days after their time. By default every 30th run does.")  # fmt: skip
@click.pass_obj
def gc(session: Session, topic: str, dry_run: bool, thorough: bool) -> None:
    """Delete files of TOPIC that nothing names and nothing can name any more.

    It works once a day, however often it is run: a file goes two to three days after it was left behind."""
    with session.client() as client, session.output.progress() as progress:
        done = client.gc(topic, dry_run=dry_run, thorough=thorough or None, progress=progress)
    facts = {
        "topic": topic,
        "dry_run": dry_run,
        "gc_epoch": done.epoch,
        "gc_epoch_age_seconds": done.age_s,
        "is_due": done.is_due,
        "deleted": done.deleted,
        "files": list(done.files),
    }
    lines = [_gc_sentence(topic, done, dry_run)]
    if dry_run:
        lines += [f"  {path}" for path in done.files[:_SHOWN_FILES]]
        lines += [f"  and {done.deleted - _SHOWN_FILES:,} more"] if done.deleted > _SHOWN_FILES else []
    session.output.done("\n".join(lines), facts)


def _gc_sentence(topic: str, done: Collected, dry_run: bool) -> str:
    if not done.is_due:
        since = duration(max(0.0, done.age_s))
        return f"{topic}: nothing to do yet: gc epoch {done.epoch} began {since} ago, and lasts for a day at least"
    if dry_run:
        return f"{topic}: {done.deleted:,} files would be deleted"
    return f"{topic}: {done.deleted:,} files deleted, gc epoch {done.epoch} begins"


@click.command(cls=Command)
@click.argument("topic")
@click.option("--yes", is_flag=True, help="Do it.")
@click.pass_obj
def terminate(session: Session, topic: str, yes: bool) -> None:
    """End TOPIC for good: it takes no more records. It can be read as before."""
    with session.client() as client:
        head = session.namespace(client).log(topic).refresh(sync=True).head
        row = {"topic": topic, "records": head.records, "bytes": head.bytes, "end": head.end}
        if head.terminated_ms:
            session.output.done(f"{topic}: was terminated before, it ends at {head.end}", row)
            return
        session.require_yes(yes, f"end topic '{topic}' for good: nobody can write to it any more", [row])
        end = client.terminate(topic)
    session.output.done(f"{topic}: terminated, it ends at {end}", {**row, "end": end})


@click.command(cls=Command)
@click.argument("topic")
@click.option(
    "--below",
    callback=size,
    metavar="SIZE",
    help="Ledgers whose files are smaller on average, as in 8MB [the topic's policy, else 4MB].",
)
@click.option(
    "--everything",
    is_flag=True,
    help="Look at all ledgers, also those that were rewritten before, and those before a hundred that needed nothing.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="In this process, or as a Spark job.",
)
@click.option(
    "--read-rate", callback=size, metavar="SIZE", help="Bytes per second to read at most, as in 50MB (local)."
)
@_DRY_RUN
@click.pass_obj  # fmt: skip
def rewrite(
    session: Session,
    topic: str,
    below: int | None,
    everything: bool,
    engine: str,
    read_rate: int | None,
    dry_run: bool,
) -> None:
    """Join the small files of TOPIC's sealed ledgers. Nothing that a reader sees changes.

    The old files go with gc, one to two days later."""
    if engine == "spark" and not dry_run:
        from pyspark_ledger.datasource.compaction import spark_session
        from pyspark_ledger.datasource.rewriting import rewrite as as_a_job

        done = as_a_job(
            spark_session(), topic, below_bytes=below, everything=everything,
            options=dict(session.settings.given),
        )  # fmt: skip
    else:
        with session.client() as client, session.output.progress() as progress:
            done = client.rewrite(
                topic, below_bytes=below, everything=everything, dry_run=dry_run, progress=progress, read_rate=read_rate
            )
    facts = {"topic": topic, "dry_run": dry_run, **{each.name: getattr(done, each.name) for each in fields(done)}}
    lines = [_rewrite_sentence(topic, done, dry_run), *(f"  {why}" for why in done.skipped)]
    session.output.done("\n".join(lines), facts)


def _rewrite_sentence(topic: str, done: Rewritten, dry_run: bool) -> str:
    if not done.ledgers:
        return f"{topic}: no ledger has files that are small enough to be worth it"
    ledgers = f"{done.ledgers:,} ledgers, {done.entries:,} entries"
    if dry_run:
        return f"{topic}: {ledgers} would be rewritten: {done.files_before:,} files become {done.files_after:,} or more"
    sizes = f"{shown_size(done.bytes_before)} are {shown_size(done.bytes_after)} now"
    return f"{topic}: {ledgers} rewritten: {done.files_before:,} files became {done.files_after:,}, {sizes}"
