"""``pyspark-ledger namespace rebuild`` and ``restore``: a namespace whose ZooKeeper is lost is made again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspark_ledger.cli.base import Command, Session
from pyspark_ledger.cli.report import report_option, reporting
from pyspark_ledger.describe.rows import Row
from pyspark_ledger.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark_ledger.lifecycle.rebuild import Rebuild
    from pyspark_ledger.lifecycle.rebuild_plan import RebuildPlan, TopicPlan
    from pyspark_ledger.metadata.port import Metadata

_Make = Callable[..., "Rebuild"]


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--yes", is_flag=True, help="Do it."),
        click.option("--dry-run", is_flag=True, help="Only show what would be made, and what may be missing."),
        click.option("--storage", metavar="URI", help="The storage root that has the files [LEDGER_STORAGE]."),
    ):
        command = option(command)
    return report_option(command)


@click.command(cls=Command)
@click.option("--namespace", "asked", metavar="ID", help="Which namespace, if the root has several.")
@_options
@click.pass_obj
def rebuild(
    session: Session, asked: str | None, storage: str | None, dry_run: bool, yes: bool, report: str | None
) -> None:
    """Make a namespace from what storage has, in an empty ZooKeeper or chroot.

    For a ZooKeeper that is lost. What came after the last backup in storage, which maintenance writes every minute, is
    lost; it is shown what is there. Whoever still uses the old ZooKeeper can write no more. If it is interrupted, run
    it again."""
    from pyspark_ledger.lifecycle.rebuild import from_storage

    uri = _root(session, storage)
    _carry_out(session, lambda metadata, **how: from_storage(metadata, uri, asked, **how), dry_run, yes, report)


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_options
@click.pass_obj
def restore(session: Session, file: Path, storage: str | None, dry_run: bool, yes: bool, report: str | None) -> None:
    """Make a namespace from a FILE that 'namespace backup' wrote, in an empty ZooKeeper or chroot.

    The data files must be in the storage root: it may be a copy. If that has a later state than the file, 'namespace
    rebuild' brings back more. If it is interrupted, run it again."""
    from pyspark_ledger.lifecycle.rebuild import from_file

    uri = _root(session, storage)
    _carry_out(session, lambda metadata, **how: from_file(metadata, file, uri, **how), dry_run, yes, report)


def _root(session: Session, storage: str | None) -> str:
    uri = storage or session.settings.storage
    if not uri:
        raise InvalidInput(
            "nothing says where the files are: give --storage (or LEDGER_STORAGE), a folder or a URI such as "
            "s3://bucket/prefix",
            "LEDGER_STORAGE_NOT_SET",
        )
    return uri


def _carry_out(session: Session, make: _Make, dry_run: bool, yes: bool, report: str | None) -> None:
    address = session.address
    with closing(session.metadata()) as metadata:
        plan = _plan(metadata, make)
        if dry_run:
            session.output.facts(_shown(plan))
            return
        what = (
            f"make namespace {plan.namespace} again at {address}. Whoever uses another ZooKeeper for it can write no "
            "more then"
        )
        session.require_yes(yes, what, [_row(topic) for topic in plan.topics])
        with reporting(session, report) as told:
            told.found(_shown(plan))
            with session.output.progress() as progress:
                done = make(metadata, address=address, progress=progress).run()
            told.done(_shown(done))
            told.lost(_lost(done))
            session.output.facts({**_shown(done), "report": str(told.path)})
    if any(each.is_loss for each in done.left_out):
        raise click.exceptions.Exit(1)


def _plan(metadata: Metadata, make: _Make) -> RebuildPlan:
    return make(metadata).plan()


def _row(topic: TopicPlan) -> Row:
    return {
        "topic": topic.topic,
        "saved": topic.saved,
        "records": topic.records,
        "last_commit": topic.last_commit,
        "last_publish": topic.last_publish,
        "later_files": topic.later_files,
        "later_bytes": topic.later_bytes,
        "subscriptions": len(topic.subscriptions),
        "warnings": list(topic.warnings),
    }


def _shown(plan: RebuildPlan) -> Row:
    return {
        "namespace": plan.namespace,
        "storage": plan.storage.partition("?")[0],
        "made_from": plan.where,
        "saved": plan.saved,
        "entities": plan.entities,
        "warnings": list(plan.warnings),
        "topics": [_row(topic) for topic in plan.topics],
        "not_made": [{"topic": each.topic, "uuid": each.uuid, "why": each.why} for each in plan.left_out],
        "at_least_once": [
            {"topic": topic.topic, "token_groups": list(topic.token_groups), "consumed_since": topic.readers_saved}
            for topic in plan.topics
            if topic.token_groups
        ],
    }


def _lost(plan: RebuildPlan) -> Row:
    """What may be missing, by name."""
    return {
        "topics": [asdict(each) for each in plan.left_out if each.is_loss],
        "commits_after": {topic.topic: topic.saved for topic in plan.topics},
        "files_that_nothing_names": {topic.topic: topic.later_files for topic in plan.topics if topic.later_files},
        "missing_files": {topic.topic: topic.missing_files for topic in plan.topics if topic.missing_files},
        "subscriptions_moved_to_the_end": {topic.topic: list(topic.clamped) for topic in plan.topics if topic.clamped},
        "warnings": [*plan.warnings, *(text for topic in plan.topics for text in topic.warnings)],
    }
