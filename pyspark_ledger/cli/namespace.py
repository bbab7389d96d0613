"""``pyspark-ledger namespace``: what concerns all topics at once."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click

from pyspark_ledger.cli.base import Commands, Session
from pyspark_ledger.cli.output import Row

if TYPE_CHECKING:
    from pyspark_ledger.lifecycle.upgrade import Plan


@click.group(cls=Commands)
def namespace() -> None:
    """Look after the namespace as a whole."""


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
        work = Upgrade(metadata, say=session.output.note)
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
