"""``pyspark-ledger namespace``: what concerns all topics at once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyspark_ledger.cli.base import Commands, Session
from pyspark_ledger.cli.storage import move_storage, set_storage
from pyspark_ledger.describe.rows import Row, moment

if TYPE_CHECKING:
    from pyspark_ledger.lifecycle.backup_file import BackedUp
    from pyspark_ledger.lifecycle.namespace_gc import NamespaceRun
    from pyspark_ledger.lifecycle.upgrade import Plan
    from pyspark_ledger.log.namespace import OpenNamespace


@click.group(cls=Commands)
def namespace() -> None:
    """Look after the namespace as a whole."""


namespace.add_command(move_storage)
namespace.add_command(set_storage)


@namespace.command()
@click.option("--dry-run", is_flag=True, help="Show what would be done, and who must stop first. Changes nothing.")
@click.option("--yes", is_flag=True, help="Do it.")
@click.pass_obj
def upgrade(session: Session, dry_run: bool, yes: bool) -> None:
    """Bring a namespace of an older format over to the present one.

    Stop everything that uses it first, and back up ZooKeeper and the storage: there is no way back but the backup. If
    it is interrupted, run it again."""
    from pyspark_ledger.lifecycle.upgrade import Upgrade
    from pyspark_ledger.zk_metadata.codec import FORMAT

    with closing(session.metadata()) as metadata:
        work = Upgrade(metadata, say=session.output.note, address=session.address)
        plan = work.plan()
        if plan.is_done:
            session.output.done(f"the namespace is of format {FORMAT} already: nothing to do", _shown(plan))
        elif dry_run:
            session.output.facts(_shown(plan))
        else:
            session.require_yes(yes, f"bring the namespace over to format {FORMAT} for good", [_summary(plan)])
            done = work.run()
            session.output.done(f"the namespace is of format {FORMAT}: {_sentence(done)}", _shown(done))


def _shown(plan: Plan) -> Row:
    return {
        "storage": plan.storage,
        "format": plan.format,
        "begun_before": plan.is_begun,
        "must_stop_first": list(plan.in_use_by),
        "half_done_topics": list(plan.leftovers),
        "topics": [
            {
                "topic": topic.name,
                "records": topic.records,
                "commits_to_seal": topic.open_commits,
                "subscriptions": list(topic.subscriptions),
                "token_groups": list(topic.token_groups),
            }
            for topic in plan.topics
        ],
        "outboxes": [{"outbox": name, "entities": count} for name, count in plan.entities.items()],
    }


def _summary(plan: Plan) -> Row:
    return {
        "storage": plan.storage,
        "topics": len(plan.topics),
        "subscriptions": sum(len(topic.subscriptions) for topic in plan.topics),
        "token_groups": sum(len(topic.token_groups) for topic in plan.topics),
        "entities": sum(plan.entities.values()),
        "must_stop_first": list(plan.in_use_by),
    }


def _sentence(plan: Plan) -> str:
    counts = _summary(plan)
    words = [
        f"{counts[name]} {name.replace('_', ' ')}" for name in ("topics", "subscriptions", "token_groups", "entities")
    ]
    return f"{', '.join(words)} brought over" + (", the rest by an earlier run" if plan.is_begun else "")


# -- garbage ----------------------------------------------------------------------------------------------------


_UNKNOWN = (
    "unknown folders are of another namespace in the same root, or of a topic that an earlier version deleted. They "
    "are left alone; 'pyspark-ledger namespace gc --remove-folder UUID --yes' removes one"
)


@namespace.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option("--remove-folder", metavar="UUID", help="Delete this unknown folder instead, with all that is in it.")
@click.option("--yes", is_flag=True, help="Do it, with --remove-folder.")
@click.pass_obj
def gc(session: Session, dry_run: bool, remove_folder: str | None, yes: bool) -> None:
    """Run gc for all topics, and delete what is left of topics that were deleted.

    It also lists unknown folders: those in the storage root that look like a topic's, and are of none that this
    namespace knows. They are of another namespace in the same root, or of a topic that an earlier version deleted, and
    are never deleted unless named."""
    from pyspark_ledger.lifecycle import namespace_gc

    with session.client() as client:
        here = session.namespace(client)
        if remove_folder is not None:
            _remove_folder(session, here, remove_folder, yes and not dry_run)
            return
        with session.output.progress() as progress:
            done = namespace_gc.collect(here, dry_run=dry_run, progress=progress)
    session.output.facts(_collected(done, dry_run))
    if done.unknown:
        session.output.note(_UNKNOWN)
    if done.errors:
        raise click.exceptions.Exit(1)


def _collected(done: NamespaceRun, dry_run: bool) -> Row:
    """Of topics, only those of which something was deleted, or which failed."""
    return {
        "dry_run": dry_run,
        "topics": done.topics,
        "deleted_files": done.files,
        "errors": done.errors,
        "topics_with_garbage": [
            {"topic": run.topic, "deleted_files": run.deleted, "error": run.error} for run in done.collected
        ],
        "deleted_topics": [
            {
                "uuid": each.uuid,
                "deleted": moment(each.deleted_ms),
                "deleted_files": each.files,
                "over": each.is_over,
                "error": each.error,
            }
            for each in done.finished
        ],
        "unknown_folders": [{"uuid": uuid} for uuid in done.unknown],
    }


def _remove_folder(session: Session, namespace: OpenNamespace, uuid: str, yes: bool) -> None:
    from pyspark_ledger.lifecycle import namespace_gc

    found = namespace_gc.inspect_folder(namespace, uuid)
    row = {"folder": found.where, "files": found.files, "bytes": found.bytes}
    what = f"delete {found.where} for good, which may be of another namespace: {found.files:,} files"
    session.require_yes(yes, what, [row])
    namespace_gc.remove_folder(namespace, uuid)
    session.output.done(f"{found.where}: removed, {found.files:,} files", row)


# -- backup -----------------------------------------------------------------------------------------------------


@namespace.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--overwrite", is_flag=True, help="Replace the file if there is one.")
@click.pass_obj
def backup(session: Session, file: Path, overwrite: bool) -> None:
    """Write everything that ZooKeeper knows into one file.

    That are all topics with their subscriptions and token groups, and the entities of outboxes. The data files are not
    in it: copy the storage too. Maintenance does the same into the storage, every minute; this is for a copy that is
    kept elsewhere. It changes nothing, and others may go on meanwhile."""
    from pyspark_ledger.lifecycle import backup_file

    with closing(session.open_namespace()) as here, session.output.progress() as progress:
        done = backup_file.write(here, file, overwrite=overwrite, progress=progress)
    session.output.facts(_backed_up(done))
    session.output.note(f"{file} is written. It does not contain the data files: copy {done.storage} too, after this")
    if done.failed:
        raise click.exceptions.Exit(1)


def _backed_up(done: BackedUp) -> Row:
    shown: Row = {
        "file": str(done.file),
        "bytes": done.bytes,
        "storage": done.storage,
        "contains_data_files": False,
        "entities": done.entities,
        "topics": [
            {
                "topic": topic.name,
                "last_commit": topic.last_commit,
                "published": moment(topic.last_publish_ms) if topic.last_publish_ms else None,
                "records": topic.records,
                "subscriptions": topic.subscriptions,
                "token_groups": topic.groups,
                "set_back": topic.set_back,
            }
            for topic in done.topics
        ],
    }
    failed = [{"what": what, "error": str(error)} for what, error in done.failed.items()]
    return {**shown, "failed": failed} if failed else shown
