"""``pyspark-ledger deadletters``: what could not be stored or handled, and how it is brought back."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from pyspark_ledger.cli.base import Commands, Session
from pyspark_ledger.describe.rows import Row

if TYPE_CHECKING:
    from pyspark_ledger.cli.replaying import Outcome
    from pyspark_ledger.log.reader import Record

_SHOWN_LEFT = 20


@click.group(cls=Commands)
def deadletters() -> None:
    """See what could not be stored or handled, and bring it back."""


@deadletters.command("list")
@click.argument("topic")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="So many at most.")
@click.option("--reason", metavar="TEXT", help="Only letters whose reason has this in it.")
@click.option("--all", "everything", is_flag=True, help="Also those that were brought back.")
@click.pass_obj
def list_letters(session: Session, topic: str, limit: int, reason: str | None, everything: bool) -> None:
    """The dead letters in TOPIC, oldest first: the reason, where each came from, and the record as JSON."""
    from pyspark_ledger.cli.replaying import letters, open_letters

    with session.client() as client:
        log = open_letters(session.namespace(client), topic)
        found = (
            _row(letter, is_done, everything)
            for letter, is_done in letters(client, log)
            if (everything or not is_done) and (reason is None or reason in letter["reason"])
        )
        rows = list(islice(found, limit + 1))
    session.listing(rows[:limit] if not session.for_people else _without_empty(rows[:limit]), "no dead letters")
    if len(rows) > limit:
        session.output.note(f"there are more than {limit:,}: --limit shows more of them")


def _row(letter: Record, is_done: bool, tell: bool) -> dict[str, Any]:
    names = ("failed_at", "reason", "topic", "subscription", "position", "deliveries", "query", "batch", "record")
    replayed = {"replayed": is_done} if tell else {}
    return {"letter": letter.position, **replayed, **{name: letter[name] for name in names}}


def _without_empty(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A table is wide enough without columns in which nothing is."""
    used = {name for row in rows for name, value in row.items() if value is not None}
    return [{name: value for name, value in row.items() if name in used} for row in rows]


@deadletters.command("replay")
@click.argument("topic")
@click.option("--to", metavar="TOPIC", help="Append all of them here. Default: the topic that each letter names.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--yes", is_flag=True, help="Do it.")
@click.pass_obj
def replay_letters(session: Session, topic: str, to: str | None, dry_run: bool, yes: bool) -> None:
    """Append the records of the dead letters in TOPIC to the topics that they came from, each once.

    The command may be killed and run again. Letters stay where they are; subscription 'replay' of TOPIC knows which of
    them were brought back. One that names no topic, or whose record does not fit, is left, and the exit status is 1."""
    from pyspark_ledger.cli.replaying import Targets, open_letters, rehearse, replay

    with session.client() as client:
        namespace = session.namespace(client)
        log, targets = open_letters(namespace, topic), Targets(namespace, topic, to)
        if dry_run or not yes:
            outcome = rehearse(client, log, targets)
            if not dry_run and outcome.total:
                affected: list[Row] = [{"topic": name, "letters": n} for name, n in outcome.replayed.items()]
                session.require_yes(yes, f"append {outcome.total:,} records to these topics", affected)
        else:
            outcome = replay(client, log, targets)
    _tell(session, topic, outcome, dry_run)


def _tell(session: Session, topic: str, outcome: Outcome, dry_run: bool) -> None:
    by_topic = ", ".join(f"{name} {count:,}" for name, count in outcome.replayed.items())
    lines = [f"{topic}: {outcome.total:,} letters {'would be replayed' if dry_run else 'replayed'}"]
    lines[0] += (f" ({by_topic})" if by_topic else "") + f", {len(outcome.left):,} left"
    lines += [f"  {row['letter']}: {row['why']}" for row in outcome.left[:_SHOWN_LEFT]]
    if len(outcome.left) > _SHOWN_LEFT:
        lines.append(f"  and {len(outcome.left) - _SHOWN_LEFT:,} more")
    facts = {"topic": topic, "dry_run": dry_run, "replayed": outcome.replayed, "left": outcome.left}
    session.output.done("\n".join(lines), facts)
    if outcome.left:
        raise click.exceptions.Exit(1)
