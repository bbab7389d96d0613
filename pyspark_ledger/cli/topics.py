"""``pyspark-ledger topics``: create topics, look at them, change their policies, delete them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.base.names import check_topic_name
from pyspark_ledger.base.paging import by_halves, pages
from pyspark_ledger.cli.arguments import RATE, duration, duration_or_never, quota, size_or_never
from pyspark_ledger.cli.base import Commands, Session
from pyspark_ledger.cli.copying import copy
from pyspark_ledger.cli.exporting import export
from pyspark_ledger.cli.importing import import_
from pyspark_ledger.cli.lifecycle import gc, rewrite, terminate, trim
from pyspark_ledger.cli.reading import peek, read
from pyspark_ledger.cli.verifying import skip_damaged, verify
from pyspark_ledger.cli.writing import write
from pyspark_ledger.describe.policies import changes as policy_changes
from pyspark_ledger.describe.policies import policies
from pyspark_ledger.describe.rows import Row, compacted, summary
from pyspark_ledger.errors import Conflict
from pyspark_ledger.metadata.port import HeadKey, Metadata, PoliciesKey, TopicKey, TopicsKey
from pyspark_ledger.metadata.records import Policies

if TYPE_CHECKING:
    from pyspark_ledger.compaction.run import CompactionStats


@click.group(cls=Commands)
def topics() -> None:
    """Make topics, look at them, read and write them."""


# -- looking ----------------------------------------------------------------------------------------------------


@topics.command("list")
@click.option("--prefix", default="", help="Only topics whose names begin with this.")
@click.option("--limit", type=click.IntRange(1), help="Not more than so many, the first ones by name.")
@click.pass_obj
def list_topics(session: Session, prefix: str, limit: int | None) -> None:
    """All topics of the namespace."""
    with closing(session.metadata()) as metadata:
        metadata.sync()
        keys = [key for key in metadata.children(TopicsKey()) if isinstance(key, TopicKey)]
        wanted = [key for key in keys if key.name.startswith(prefix)][:limit]
        rows = [row for page in pages(wanted, DEFAULT_LIMITS.topics_at_once) for row in _summaries(metadata, page)]
    session.listing(rows, "no topics")


def _summaries(metadata: Metadata, keys: Sequence[TopicKey]) -> list[Row]:
    """In two rounds of requests."""

    def look(some: Sequence[TopicKey]) -> list[Row]:
        found = [topic.record for topic in metadata.read_many(some) if topic is not None]
        heads = metadata.read_many([HeadKey(topic.uuid) for topic in found])
        return [summary(topic, head.record) for topic, head in zip(found, heads, strict=True) if head is not None]

    return by_halves(keys, look, lambda key, error: [{"topic": key.name, "error": str(error)}])


@topics.command()
@click.argument("topic")
@click.option("--ledgers", type=click.IntRange(1, 1_000), default=5, show_default=True, help="How many to show.")
@click.pass_obj
def describe(session: Session, topic: str, ledgers: int) -> None:
    """TOPIC's schema, ledgers, sizes, rates, deduplication and compaction.

    Rates are those of the newest commits, at most a hundred: from the first one's publish time to the last one's."""
    from pyspark_ledger.describe.topics import description

    with session.client() as client:
        session.output.facts(description(session.namespace(client).log(topic), ledgers))


topics.add_command(trim)
topics.add_command(gc)
topics.add_command(rewrite)
topics.add_command(terminate)
topics.add_command(verify)
topics.add_command(skip_damaged)
topics.add_command(read)
topics.add_command(peek)
topics.add_command(write)
topics.add_command(export)
topics.add_command(import_)
topics.add_command(copy)


# -- making and deleting ----------------------------------------------------------------------------------------


@topics.command()
@click.argument("topic")
@click.option("--schema", required=True, help="As in SQL: 'order_id bigint, amount decimal(10,2), tags array<string>'.")
@click.option("--key", default="", help="The key column, for compaction; fixed for the topic's life.")
@click.option("--version-column", default="", help="The highest version of a key counts, not the last record.")
@click.option("--storage", help="Where the namespace keeps its files; needed once, for its first topic.")
@click.pass_obj
def create(session: Session, topic: str, schema: str, key: str, version_column: str, storage: str | None) -> None:
    """Make TOPIC."""
    from pyspark_ledger.describe import ddl

    columns = ddl.parse(schema)
    with session.client(storage) as client:
        made = client.create_topic(topic, columns, key=key, version_column=version_column)
    session.output.done(f"{made.name}: made, uuid {made.uuid}", {"topic": made.name, "uuid": made.uuid})


@topics.command()
@click.argument("topic")
@click.option("--yes", is_flag=True, help="Do it.")
@click.pass_obj
def delete(session: Session, topic: str, yes: bool) -> None:
    """Delete TOPIC with its records, subscriptions and files."""
    with session.client() as client:
        head = session.namespace(client).log(topic).view().head
        cursors = client.cursors(topic)
        row = {
            "topic": topic,
            "records": head.records,
            "bytes": head.bytes,
            "subscriptions": [cursor.name for cursor in cursors],
            "in_use_by": [name for cursor in cursors for name in cursor.followers],
        }
        session.require_yes(yes, f"delete topic '{topic}' and its files for good", [row])
        client.delete_topic(topic)
    session.output.done(f"{topic}: deleted, {head.records:,} records", row)


# -- policies ---------------------------------------------------------------------------------------------------


@topics.group()
def config() -> None:
    """What a topic's owner may set."""


@config.command("get")
@click.argument("topic")
@click.pass_obj
def get_config(session: Session, topic: str) -> None:
    """TOPIC's policies."""
    with closing(session.metadata()) as metadata:
        metadata.sync()
        session.output.facts(policies(_policies(metadata, topic)))


def _policies(metadata: Metadata, name: str) -> Policies:
    found = metadata.read(TopicKey(check_topic_name(name)))
    policies = metadata.read(PoliciesKey(found.record.uuid)) if found else None
    if policies is None:
        from pyspark_ledger.log.topics import get_topic

        get_topic(metadata, name)  # says what there is instead
        raise Conflict(f"topic '{name}' is being deleted")
    return policies.record


_DURATION = "DURATION|never"
_SIZE = "SIZE|never"


@config.command("set")
@click.argument("topic")
@click.option("--deduplication", type=click.Choice(["true", "false", "default"]), help="Check sequence ids.")
@click.option("--snapshot-commits", type=int, help="Commits between two snapshots of the dedup state; 0: the default.")
@click.option(
    "--evict-producers-after",
    callback=duration_or_never,
    metavar=_DURATION,
    help="Forget producers that are silent for longer, as in 30d.",
)
@click.option(
    "--retention-age",
    callback=duration_or_never,
    metavar=_DURATION,
    help="Give up sealed ledgers whose last record is older, as in 7d.",
)
@click.option(
    "--retention-bytes",
    callback=size_or_never,
    metavar=_SIZE,
    help="Give up sealed ledgers if so much was written after them, as in 500GB.",
)
@click.option(
    "--backlog-quota",
    callback=quota,
    metavar="SIZE|DURATION|SIZE,DURATION|never",
    help="How much, or how long, a subscription may hold back: 100GB, 7d or 100GB,7d.",
)
@click.option(
    "--backlog-action",
    type=click.Choice(["hold", "evict"]),
    help="What then: only an alarm, or the subscription loses what retention would give up.",
)
@click.option(
    "--expire-subscriptions-after",
    callback=duration_or_never,
    metavar=_DURATION,
    help="Delete subscriptions that nobody uses for longer, as in 30d.",
)
@click.option(
    "--compact-after",
    callback=size_or_never,
    metavar=_SIZE,
    help="Maintenance compacts the topic when so much was written since, as in 1GB.",
)
@click.option(
    "--rewrite-below",
    callback=size_or_never,
    metavar=_SIZE,
    help="Maintenance rewrites ledgers whose files are smaller on average, as in 8MB.",
)
@click.pass_obj
def set_config(session: Session, /, topic: str, **given: Any) -> None:
    """Change TOPIC's policies: those that are given.

    A DURATION is 30s, 10m, 1h or 7d. A SIZE is a number of bytes, or 64MB, 500GB, 1TB: of 1024, as in Spark."""
    changes = policy_changes({name: value for name, value in given.items() if value is not None})
    if not changes:
        raise click.UsageError("nothing to set: see 'pyspark-ledger topics config set --help'")
    with session.client() as client:
        session.output.facts(policies(client.set_policies(topic, **changes)))


# -- compaction -------------------------------------------------------------------------------------------------


@topics.command()
@click.argument("topic")
@click.option("--engine", type=click.Choice(["local", "spark"]), default="local", show_default=True,
              help="In this process, or as a Spark job.")  # fmt: skip
@click.option("--read-rate", type=RATE, help="Records per second to read at most (local).")
@click.option("--write-rate", type=RATE, help="Records per second to write at most (local).")
@click.option(
    "--every", callback=duration, metavar="DURATION", help="Do it again and again, as in 10m, until interrupted."
)
@click.pass_obj
def compact(
    session: Session,
    topic: str,
    engine: str,
    read_rate: float | None,
    write_rate: float | None,
    every: float | None,
) -> None:
    """Write the last record of every key of TOPIC to a compacted ledger, for readers with readCompacted."""
    while True:
        before = SYSTEM_CLOCK.monotonic()
        try:
            stats = _compact(session, topic, engine, read_rate, write_rate)
            session.output.done(_sentence(topic, stats), {"topic": topic, **(compacted(stats) or {"generation": None})})
        # Somebody else compacts it right now, or gc has yet to delete older generations: the next time may be better.
        except Conflict as conflict:
            if every is None:
                raise
            session.output.note(str(conflict))
        if every is None:
            return
        SYSTEM_CLOCK.sleep(max(0.0, every - (SYSTEM_CLOCK.monotonic() - before)))


def _compact(
    session: Session, topic: str, engine: str, read_rate: float | None, write_rate: float | None
) -> CompactionStats | None:
    if engine == "spark":
        from pyspark_ledger.datasource.compaction import compact, spark_session

        return compact(spark_session(), topic, options=dict(session.settings.given))
    with session.client() as client, session.output.progress() as progress:
        return client.compact(topic, progress, read_rate=read_rate, write_rate=write_rate)


def _sentence(topic: str, stats: CompactionStats | None) -> str:
    if stats is None or not stats.generation:
        return f"{topic}: nothing to compact"
    share = f"{stats.records:,} of {stats.records_before:,} records"
    return f"{topic}: generation {stats.generation}, {share}, {stats.bytes:,} bytes, horizon {stats.horizon}"
