"""``pyspark-ledger cursors``: look at subscriptions and move them, also while a query follows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyspark_ledger.cli.arguments import place
from pyspark_ledger.cli.base import Commands, Session
from pyspark_ledger.describe.cursors import subscription_facts, subscription_row, subscription_rows
from pyspark_ledger.metadata.port import CursorKey

if TYPE_CHECKING:
    from pyspark_ledger.cursors.handle import CursorHandle, ResetResult
    from pyspark_ledger.log.places import Place

F = TypeVar("F", bound=Callable[..., Any])
_PLACES = "earliest, latest, a position as 3:17:0, or a publish time in ISO 8601."
_YES = click.option("--yes", is_flag=True, help="Do it.")


def _one_subscription(command: F) -> F:
    return click.argument("topic")(click.argument("subscription")(command))


@click.group(cls=Commands)
def cursors() -> None:
    """Look at subscriptions and move them, also while a query follows them."""


# -- looking ----------------------------------------------------------------------------------------------------


@cursors.command("list")
@click.argument("topic", required=False)
@click.pass_obj
def list_cursors(session: Session, topic: str | None) -> None:
    """The subscriptions of TOPIC, or of all topics: how far behind each one is, and who follows it.

    What is held back are records that the topic's retention would give up, if the subscription had passed them."""
    with session.client() as client:
        rows = [
            row
            for name in ([topic] if topic else client.topics())
            for row in subscription_rows(session.namespace(client).log(name))
        ]
    session.listing(rows, "no subscriptions")


@cursors.command()
@_one_subscription
@click.pass_obj
def describe(session: Session, topic: str, subscription: str) -> None:
    """Everything about one SUBSCRIPTION of TOPIC."""
    with session.client() as client:
        session.output.facts(subscription_facts(topic, client.cursor(topic, subscription).stats()))


# -- making and deleting ----------------------------------------------------------------------------------------


@cursors.command()
@_one_subscription
@click.option("--from", "start", default="earliest", show_default=True, callback=place, metavar="PLACE", help=_PLACES)
@click.pass_obj
def create(session: Session, topic: str, subscription: str, start: Place) -> None:
    """Make a SUBSCRIPTION to TOPIC, unless it is there."""
    with session.client() as client:
        session.namespace(client).metadata.sync()
        uuid = client.topic(topic).uuid
        there = session.namespace(client).metadata.read(CursorKey(uuid, subscription)) is not None
        stats = client.create_cursor(topic, subscription, start).stats()
    did = "was there already" if there else "made"
    session.output.done(
        f"{subscription}: {did}, at {stats.mark_delete}", {**subscription_row(topic, stats), "made": not there}
    )


@cursors.command()
@_one_subscription
@_YES
@click.pass_obj
def delete(session: Session, topic: str, subscription: str, yes: bool) -> None:
    """Delete a SUBSCRIPTION that nobody follows."""
    with session.client() as client:
        cursor = client.cursor(topic, subscription)
        row = subscription_row(topic, cursor.stats())
        session.require_yes(yes, f"delete subscription '{subscription}', its position and its acknowledgements", [row])
        cursor.delete()
    session.output.done(f"{subscription}: deleted, it was at {row['position']}", row)


# -- moving -----------------------------------------------------------------------------------------------------


@cursors.command()
@_one_subscription
@click.option("--to", required=True, callback=place, metavar="PLACE", help=_PLACES)
@click.option("--discard-planned", is_flag=True,
              help="Void batches that a query has planned and not finished: the way past a record that makes it fail "
                   "for ever. Not exactly-once for a query with state.")  # fmt: skip
@_YES
@click.pass_obj
def reset(session: Session, topic: str, subscription: str, to: Place, discard_planned: bool, yes: bool) -> None:
    """Move a SUBSCRIPTION. Whoever follows it continues from there."""
    with session.client() as client:
        cursor = client.cursor(topic, subscription)
        if not yes:
            _would_move(session, cursor, to)
        _tell(session, topic, cursor, cursor.reset(to, discard_planned=discard_planned))


def _would_move(session: Session, cursor: CursorHandle, to: Place) -> None:
    preview, stats = cursor.preview(to), cursor.stats()
    row = {
        "subscription": cursor.name,
        "position": preview.current,
        "to": preview.position,
        "exact": preview.exact,
        "skipped_records": preview.skipped_records,
        "repeated_records": preview.repeated_records,
        "dropped_acks": stats.individual_acks,
        "owner": ", ".join(stats.followers),
    }
    session.require_yes(False, f"move subscription '{cursor.name}'", [row])


@cursors.command()
@_one_subscription
@click.argument("records", type=click.IntRange(1))
@_YES
@click.pass_obj
def skip(session: Session, topic: str, subscription: str, records: int, yes: bool) -> None:
    """Acknowledge the next RECORDS that are not acknowledged: nobody gets them."""
    with session.client() as client:
        cursor = client.cursor(topic, subscription)
        row = subscription_row(topic, cursor.stats())
        skipped = min(records, row["backlog_records"])
        session.require_yes(yes, f"skip {skipped:,} records for subscription '{subscription}'", [row])
        _tell(session, topic, cursor, cursor.skip(records))


@cursors.command("clear-backlog")
@_one_subscription
@_YES
@click.pass_obj
def clear_backlog(session: Session, topic: str, subscription: str, yes: bool) -> None:
    """Acknowledge everything that is in TOPIC now: nobody gets it."""
    with session.client() as client:
        cursor = client.cursor(topic, subscription)
        row = subscription_row(topic, cursor.stats())
        session.require_yes(yes, f"skip {row['backlog_records']:,} records for subscription '{subscription}'", [row])
        _tell(session, topic, cursor, cursor.clear_backlog())


@cursors.command()
@_one_subscription
@click.pass_obj
def rewind(session: Session, topic: str, subscription: str) -> None:
    """Whoever follows the SUBSCRIPTION reads everything again that is not acknowledged."""
    with session.client() as client:
        cursor = client.cursor(topic, subscription)
        _tell(session, topic, cursor, cursor.rewind())


@cursors.command()
@_one_subscription
@click.pass_obj
def redeliver(session: Session, topic: str, subscription: str) -> None:
    """As rewind, with a new epoch: records that are delivered again have a greater epoch than the first time."""
    with session.client() as client:
        cursor = client.cursor(topic, subscription)
        _tell(session, topic, cursor, cursor.redeliver())


def _tell(session: Session, topic: str, cursor: CursorHandle, moved: ResetResult) -> None:
    stats = cursor.stats()
    session.output.done(
        f"{cursor.name}: at {moved.position}, revision {moved.revision}, backlog {stats.backlog_records:,} records",
        {**subscription_row(topic, stats), "position": moved.position, "revision": moved.revision},
    )
