"""``pyspark-ledger topics repair`` and ``namespace repair``: how topics go on after ZooKeeper was rolled back."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import click

from pyspark_ledger.cli.base import Command, Session
from pyspark_ledger.cli.report import report_option, reporting
from pyspark_ledger.describe.rows import Row
from pyspark_ledger.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark_ledger.lifecycle.namespace_repair import TopicRepair
    from pyspark_ledger.lifecycle.repair import Damage

_RESTORE = "Best is to stop ZooKeeper and to restore its newest state, if there is one."


@click.command(cls=Command)
@click.argument("topic")
@click.option("--bring-back", is_flag=True, help="Go on with what storage has of what was lost.")
@click.option("--accept-loss", is_flag=True, help="Go on with what is there; what was lost stays lost.")
@click.option("--yes", is_flag=True, help="Do it.")
@report_option
@click.pass_obj
def repair_topic(
    session: Session, topic: str, bring_back: bool, accept_loss: bool, yes: bool, report: str | None
) -> None:
    """After ZooKeeper was rolled back to an older state: what is known of TOPIC's loss, and how to go on.

    Until then nobody writes to it. Without --bring-back or --accept-loss it is only shown what there is, and what each
    would mean."""
    if bring_back and accept_loss:
        raise InvalidInput("give --bring-back or --accept-loss, not both", "LEDGER_INVALID_OPTION")
    with session.client() as client:
        damage = client.damage(topic)
        if damage is None:
            session.output.done(f"{topic}: needs no repair", {"topic": topic, "damage": None})
            return
        row = _shown(topic, damage)
        if not (bring_back or accept_loss):
            session.output.facts({**row, "choices": _choices(damage)})
            raise InvalidInput(
                f"topic '{topic}' waits for a decision; nothing was changed. {_RESTORE} Otherwise {_advice(damage)}",
                "LEDGER_SET_BACK",
            )
        what = "give up what it has lost" if accept_loss else "bring back what storage has of what was lost"
        session.require_yes(yes, f"let topic '{topic}' go on: {what}", [row])
        with reporting(session, report) as told:
            told.found(row)
            damage = client.accept_loss(topic) if accept_loss else client.bring_back(topic)
            told.done({"topic": topic, "outcome": "loss accepted" if accept_loss else "brought back"})
            told.lost(_lost(damage, accept_loss))
    records = damage.records + (damage.later.records if bring_back and damage.later is not None else 0)
    words = "brought back" if bring_back else "left"
    session.output.done(f"{topic}: repaired, {records:,} records are {words}; writers may go on", row)


def _shown(topic: str, damage: Damage) -> Row:
    row = {field.name: getattr(damage, field.name) for field in fields(damage)}
    return {"topic": topic, **row, "later": asdict(damage.later) if damage.later is not None else None}


def _choices(damage: Damage) -> list[Row]:
    later = damage.later
    if later is None:
        back = "not possible: storage has no commit that ZooKeeper does not have"
    elif later.why_not:
        back = f"not possible: {later.why_not}"
    else:
        back = (
            f"{later.records:,} records of commits {later.first_commit} to {later.last_commit} are there again. "
            "Subscriptions and token groups stay as ZooKeeper has them: some records are delivered again, and tokens "
            "that were consumed since are there again"
        )
    return [
        {"choice": "--bring-back", "means": back},
        {"choice": "--accept-loss", "means": f"it goes on with the {damage.records:,} records that are there"},
    ]


def _advice(damage: Damage) -> str:
    if damage.later is None or damage.later.why_not:
        return "only --accept-loss is possible: it goes on with what is there"
    return "--bring-back goes on with what storage has, --accept-loss with what is there"


def _lost(damage: Damage, accept_loss: bool) -> Row:
    """What nobody gets back."""
    if not accept_loss or damage.later is None:
        return {"lost_commits": damage.lost_commits} if accept_loss else {"after": damage.later and damage.later.saved}
    return {"lost_commits": damage.lost_commits, "storage_had": asdict(damage.later)}


# -- all topics -------------------------------------------------------------------------------------------------


@click.command(cls=Command)
@click.option("--bring-back", is_flag=True, help="Go on with what storage has, where that is possible.")
@click.option(
    "--accept-loss", is_flag=True, help="Go on with what is there; with --bring-back, only where that is not."
)
@click.option("--yes", is_flag=True, help="Do it.")
@report_option
@click.pass_obj
def repair_namespace(session: Session, bring_back: bool, accept_loss: bool, yes: bool, report: str | None) -> None:
    """After ZooKeeper was rolled back to an older state: repair all topics that need it.

    Without --bring-back or --accept-loss it is only shown which these are, and what storage has of them."""
    from pyspark_ledger.lifecycle import namespace_repair

    with closing(session.open_namespace()) as here:
        with session.output.progress() as progress:
            found = namespace_repair.inspect(here, progress=progress)
        if not found:
            session.output.done("no topic needs a repair", {"topics": []})
            return
        rows = [_row(each) for each in found]
        if not (bring_back or accept_loss):
            session.output.rows(rows, "nothing")
            raise InvalidInput(
                f"these topics wait for a decision; nothing was changed. {_RESTORE} Otherwise --bring-back goes on "
                "with what storage has, where that is possible, and --accept-loss with what is there",
                "LEDGER_SET_BACK",
            )
        session.require_yes(yes, f"repair {len(found)} topics", rows)
        with reporting(session, report) as told:
            told.found({"topics": rows})
            with session.output.progress() as progress:
                done = namespace_repair.run(
                    here, found, bring_back=bring_back, accept_loss=accept_loss, progress=progress
                )
            told.done({"topics": [_row(each) for each in done]})
            told.lost({"topics": [each.topic for each in done if each.outcome != "brought back"]})
    session.listing([_row(each) for each in done], "nothing")


def _row(each: TopicRepair) -> Row:
    row: dict[str, Any] = {"topic": each.topic}
    if each.damage is not None:
        later = each.damage.later
        row |= {
            "records": each.damage.records,
            "last_publish": each.damage.last_publish,
            "in_storage_records": later.records if later is not None else 0,
            "in_storage_last_publish": later.last_publish if later is not None else None,
            "can_be_brought_back": later is not None and not later.why_not,
        }
    if each.outcome:
        row["outcome"] = each.outcome
    if each.error:
        row["error"] = each.error
    return row
