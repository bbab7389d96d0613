"""``pyspark-ledger tokens``: what may still be processed."""

from __future__ import annotations

from dataclasses import asdict

import click

from pyspark_ledger.cli.base import Commands, Session


@click.group(cls=Commands)
def tokens() -> None:
    """See which tokens are in flight."""


@tokens.command()
@click.argument("topic")
@click.pass_obj
def stats(session: Session, topic: str) -> None:
    """The tokens of TOPIC by group: in flight, consumed, and what they take in ZooKeeper."""
    with session.client() as client:
        rows = [asdict(group) for group in client.tokens(topic).stats()]
    session.listing(rows, "no group has consumed tokens of this topic, or minted some")
