"""``pyspark-ledger producers``: who has written with sequence ids."""

from __future__ import annotations

import click

from pyspark_ledger.cli.base import Commands, Session
from pyspark_ledger.cli.output import Row
from pyspark_ledger.metadata.records import ProducerState


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
    session.listing([_row(state) for state in states.all()], "no producers")
    if states.evicted:
        session.output.note(f"{states.evicted:,} more were evicted, as the topic's policy says")


def _row(state: ProducerState) -> Row:
    return {
        "producer": state.name,
        "sequence_id": state.sequence,
        "last_publish": state.publish_time,
        "numbers": "records" if state.per_record else "batches",
        "query": state.query,
        "run": state.run,
        "fenced_runs": len(state.past_runs),
    }


@producers.command()
@click.argument("topic")
@click.argument("producer")
@click.option("--yes", is_flag=True, help="Do it.")
@click.pass_obj
def forget(session: Session, topic: str, producer: str, yes: bool) -> None:
    """Forget PRODUCER, so that another query may use its name. What it wrote stays."""
    with session.client() as client:
        _, states = session.namespace(client).log(topic).producers()
        state = states.get(producer)
        if state is not None or states.is_evicted(producer):
            what = f"forget what '{producer}' has written: its sequence ids are taken for new ones afterwards"
            session.require_yes(yes, what, [_row(state) if state else {"producer": producer, "evicted": True}])
        client.forget_producer(topic, producer)
    session.output.done(f"{producer}: forgotten", {"producer": producer, "forgotten": True})
