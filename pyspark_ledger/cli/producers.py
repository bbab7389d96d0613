"""``pyspark-ledger producers``: who has written with sequence ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pyspark_ledger.base.names import query_of
from pyspark_ledger.cli.base import Commands, Session
from pyspark_ledger.describe.producers import producer_row
from pyspark_ledger.describe.rows import Row

if TYPE_CHECKING:
    from pyspark_ledger.client import LedgerClient


@click.group(cls=Commands)
def producers() -> None:
    """See who has written with sequence ids, and forget names."""


@producers.command("list")
@click.argument("topic")
@click.pass_obj
def list_producers(session: Session, topic: str) -> None:
    """The producers of TOPIC: the last sequence id of each, and the query that a name belongs to."""
    with session.client() as client:
        _, states = session.namespace(client).log(topic).producers()
    session.listing([producer_row(state) for state in states.all()], "no producers")
    if states.evicted:
        session.output.note(f"{states.evicted:,} more were evicted, as the topic's policy says")


@producers.command()
@click.argument("topic")
@click.argument("producer")
@click.option("--yes", is_flag=True, help="Do it.")
@click.pass_obj
def forget(session: Session, topic: str, producer: str, yes: bool) -> None:
    """Forget PRODUCER, so that another query may use its name. What it wrote stays.

    spark-<query id> also stands for the query itself: if its topic was deleted, it may go on in the next one of that
    name."""
    with session.client() as client:
        known = _known(session, client, topic, producer)
        if known is not None:
            what = f"forget what '{producer}' has written: its sequence ids are taken for new ones afterwards"
            session.require_yes(yes, what, [known])
        client.forget_producer(topic, producer)
    session.output.done(f"{producer}: forgotten", {"producer": producer, "forgotten": True})


def _known(session: Session, client: LedgerClient, topic: str, producer: str) -> Row | None:
    """What is there to forget; None if there is nothing."""
    namespace = session.namespace(client)
    uuid = namespace.sinks.uuid_of(query_of(producer), topic)
    if not uuid or topic in client.topics():
        _, states = namespace.log(topic).producers()
        state = states.get(producer)
        if state is not None:
            return producer_row(state)
        if states.is_evicted(producer):
            return {"producer": producer, "evicted": True}
    return {"producer": producer, "query": query_of(producer), "topic": uuid} if uuid else None
