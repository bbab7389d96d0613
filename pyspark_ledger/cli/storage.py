"""``pyspark-ledger namespace move-storage`` and ``set-storage``: where a namespace keeps its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from pyspark_ledger.base.uris import shown
from pyspark_ledger.cli.base import Command, Session
from pyspark_ledger.cli.report import report_option, reporting
from pyspark_ledger.describe.rows import Row
from pyspark_ledger.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark_ledger.lifecycle.move_storage import Moved
    from pyspark_ledger.lifecycle.moving import Mover


@contextmanager
def _mover(session: Session) -> Iterator[Mover]:
    from pyspark_ledger.lifecycle.moving import Mover

    with closing(session.metadata()) as metadata:
        yield Mover(metadata, address=session.address)


@contextmanager
def _shown(session: Session, mover: Mover) -> Iterator[None]:
    """Progress on the terminal, while nothing else is said."""
    with session.output.progress() as mover.progress:
        yield


@click.command("move-storage", cls=Command)
@click.option("--to", metavar="URI", help="The new root: a folder, or a URI such as s3://bucket/prefix.")
@click.option("--trust-existing", is_flag=True, help="Do not read files that an earlier run has copied.")
@click.option("--abandon", is_flag=True, help="Give up a move that was begun: the files stay where they are.")
@click.option("--delete-old", is_flag=True, help="Delete what a finished move has left in the former root.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--yes", is_flag=True, help="Do it.")
@report_option
@click.pass_obj
def move_storage(
    session: Session,
    to: str | None,
    trust_existing: bool,
    abandon: bool,
    delete_old: bool,
    dry_run: bool,
    yes: bool,
    report: str | None,
) -> None:
    """Move all files of the namespace to another folder or object store.

    Everything may run meanwhile. Writing is refused only for the last part, and processes that have topics open must
    open them again afterwards. If it is interrupted, run it again. The former files stay until --delete-old."""
    if (to is not None) + abandon + delete_old != 1:
        raise InvalidInput("give one of --to URI, --abandon and --delete-old", "LEDGER_INVALID_OPTION")
    yes = yes and not dry_run
    if to is not None:
        _move(session, to, trust_existing, dry_run, yes, report)
    elif abandon:
        _abandon(session, yes, report)
    else:
        _delete_old(session, dry_run, yes, report)


def _move(session: Session, to: str, trust_existing: bool, dry_run: bool, yes: bool, report: str | None) -> None:
    from pyspark_ledger.lifecycle import move_storage as work

    with _mover(session) as mover:
        with _shown(session, mover):
            plan = work.plan(mover, to)
        if dry_run:
            session.output.facts(asdict(plan))
            return
        what = f"move the files of this namespace from {plan.storage} to {plan.to}: {plan.files:,} files"
        session.require_yes(yes or plan.is_done, what, [asdict(plan)])
        with reporting(session, report) as told:
            told.found(asdict(plan))
            with _shown(session, mover):
                done = work.move(mover, to, trust_existing=trust_existing, files=plan.files)
            told.done({name: value for name, value in asdict(done).items() if not name.startswith("missing")})
            told.lost({"missing_files": done.missing_files, "missing": list(done.missing)})
            said = f"the namespace keeps its files in {plan.to} already" if plan.is_done else _moved(done)
            session.output.done(said, {**asdict(done), "report": str(told.path)})
    if done.missing_files:
        raise click.exceptions.Exit(1)


def _moved(done: Moved) -> str:
    said = (
        f"the namespace keeps its files in {done.storage}: {done.files:,} files, {done.copied:,} of them copied now. "
        f"What is left in {done.former} goes with 'pyspark-ledger namespace move-storage --delete-old --yes'"
    )
    if done.missing_files:
        said += (
            f". {done.missing_files:,} files that ZooKeeper names were missing before, and still are: see the report"
        )
    return said


def _abandon(session: Session, yes: bool, report: str | None) -> None:
    from pyspark_ledger.lifecycle import move_storage as work

    with _mover(session) as mover:
        record = mover.namespace()
        to = record.moving.to if record.moving is not None else ""
        row: Row = {"storage": shown(record.storage), "moving_to": to}
        session.require_yes(yes, f"give up moving the files of this namespace to {to or 'another place'}", [row])
        with reporting(session, report) as told:
            told.found(row)
            with _shown(session, mover):
                done = work.abandon(mover)
            told.done({"storage": done.storage})
            session.output.done(
                f"the namespace keeps its files in {done.storage}, and can be written again; what was copied to {to} "
                "is still there",
                {**row, "report": str(told.path)},
            )


def _delete_old(session: Session, dry_run: bool, yes: bool, report: str | None) -> None:
    from pyspark_ledger.lifecycle import move_storage as work

    with _mover(session) as mover:
        with _shown(session, mover):
            found = work.leftovers(mover)
        row: Row = {**asdict(found), "folders": len(found.folders), "kept": list(found.kept)}
        if dry_run:
            session.output.facts(row)
            return
        what = f"delete what this namespace has left in {found.storage} for good: {found.files:,} files"
        session.require_yes(yes, what, [row])
        with reporting(session, report) as told:
            told.found(row)
            with _shown(session, mover):
                done = work.delete_old(mover)
            told.done({"deleted_files": done.files, "folders": list(done.folders)})
            session.output.done(f"{done.storage}: deleted, {done.files:,} files", {**row, "report": str(told.path)})


@click.command("set-storage", cls=Command)
@click.argument("uri")
@click.option("--dry-run", is_flag=True, help="Only say whether it can be done.")
@click.option("--yes", is_flag=True, help="Do it.")
@report_option
@click.pass_obj
def set_storage(session: Session, uri: str, dry_run: bool, yes: bool, report: str | None) -> None:
    """Tell the namespace that its files are somewhere else, without copying anything.

    For a folder that somebody has moved, or that has another path now: its marker file must be there. Also for a
    namespace that was made with a wrong path, as long as it has no records."""
    from pyspark_ledger.lifecycle import set_storage as work

    with _mover(session) as mover:
        with _shown(session, mover):
            found = work.inspect(mover, uri)
        if dry_run:
            session.output.facts(asdict(found))
            return
        what = f"change the storage of this namespace from {found.storage} to {found.to}: {found.why}"
        session.require_yes(yes, what, [asdict(found)])
        with reporting(session, report) as told:
            told.found(asdict(found))
            with _shown(session, mover):
                done = work.set_storage(mover, uri)
            told.done({"storage": done.to})
            session.output.done(
                f"the namespace keeps its files in {done.to}: processes that use it must open their topics again",
                {**asdict(done), "report": str(told.path)},
            )
