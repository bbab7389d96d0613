"""Makes a namespace that has some of everything, and prints as JSON what a reader gets of it.

A script for the *old* code (see ``old_code.py``): the modules that it imports are those of the wheel, and it would not
run with today's. Arguments: a ZooKeeper address and a storage root. When it ends, nothing is open: no ephemeral node is
left.

    topics       name -> what described() says of it: records, producers, cursors, tokens and so on
    outboxes     name -> entity -> state and what is pending
    checkpoints  name -> the options of a query, its batches with their offsets and rows, how many are committed
    unnamed      a file that no commit names
"""

# ruff: noqa: I001 (half of these modules are no more, and ruff would sort those with what is not ours)
from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pyarrow as pa

from pyspark_ledger import compaction, names
from pyspark_ledger.append import Batch, append
from pyspark_ledger.client import LedgerClient, shared_client
from pyspark_ledger.clock import SystemClock
from pyspark_ledger.cursor import CursorNode
from pyspark_ledger.datasource.options import ReadOptions
from pyspark_ledger.datasource.planning import topic_schema
from pyspark_ledger.datasource.stream_reader import LedgerStreamReader
from pyspark_ledger.dedup import Claim
from pyspark_ledger.entryfile import stage_entry
from pyspark_ledger.limits import Limits
from pyspark_ledger.log import Log
from pyspark_ledger.outbox import Dispatch, Outbox, Send
from pyspark_ledger.port import CursorKey, DedupKey, RootKey, TokenChunkKey, TokenGroupKey
from pyspark_ledger.position import EARLIEST
from pyspark_ledger.reader import read_slice
from pyspark_ledger.record_ids import IdColumns, Ranges, RecordIds
from pyspark_ledger.records import Entry
from pyspark_ledger.runs import Runs
from pyspark_ledger.scan import Slice

# Small where it decides what goes to a node or a file of its own, so that some of everything does. Not the fan-out of
# the index: gc takes an index file with fewer rows than that for one that was replaced, so whoever goes on with this
# namespace under the usual limits would lose files.
LIMITS = Limits(
    inline_entries=2,
    inline_producers_bytes=100,
    token_chunk=128,
    inline_bitmaps=1,
    node_bitmap_bytes=20,
    entity_bytes=200,
)
EVENTS = pa.schema([("id", pa.int64()), ("name", pa.string())])
WIDER = pa.schema([*EVENTS, ("extra", pa.string())])
ACCOUNTS = pa.schema([("who", pa.string()), ("balance", pa.int64()), ("note", pa.string())])
SENSORS = pa.schema([("who", pa.string()), ("seq", pa.int64()), ("note", pa.string())])
ORDERS = pa.schema([("order_id", pa.int64())])
QUERY = "11111111-2222-3333-4444-555555555555"
RUNS = ("aaaaaaaa-0000-0000-0000-000000000001", "aaaaaaaa-0000-0000-0000-000000000002")
Outside = dict[tuple[str, str], list[str]]  # (topic, group) -> tokens for messages from outside


class SlowClock(SystemClock):
    """Some hours behind, until it catches up: then whoever has written before has been silent for that long."""

    hours = 2

    def now_ms(self) -> int:
        return super().now_ms() - self.hours * 3_600_000


# -- a plain topic ---------------------------------------------------------------------------------------------------


def events(client: LedgerClient, clock: SlowClock) -> None:
    """Every kind of producer, four commits in each ledger, and gc in between."""
    client.create_topic("events", EVENTS)
    client.set_policies("events", deduplication=True, snapshot_commits=4, evict_producers_after=timedelta(hours=1))
    send(client, "events", "silent", [{"id": 1, "name": "evicted with the first ledger"}])
    clock.hours = 0
    for first in (10, 20, 30):
        send(client, "events", "app", [{"id": first + n, "name": f"app {n}"} for n in range(3)])
    job(client.log("events"), 0, RUNS[0], [[{"id": 40, "name": "job"}, {"id": 41, "name": "job"}]])
    wider = [[{"id": 50 + n, "name": "wider", "extra": f"task {n}"}] for n in range(3)]
    job(client.log("events"), 1, RUNS[1], wider)
    client.gc("events")
    masked(client)
    send(client, "events", None, [{"id": 70, "name": "nobody", "extra": None}])
    send(client, "events", "forgotten", [{"id": 80, "name": "let go"}])
    client.forget_producer("events", "forgotten")
    client.gc("events")
    for n in range(3):
        send(client, "events", "app", [{"id": 90 + n, "name": "last", "extra": "open"}, {"id": 95 + n}])


def send(
    client: LedgerClient, topic: str, producer: str | None, records: Iterable[Mapping[str, Any]], **options: Any
) -> None:
    """One commit."""
    with client.producer(topic, producer, **options) as sending:
        for record in records:
            sending.send(record)


def job(log: Log, sequence: int, run: str, tasks: list[list[dict[str, Any]]]) -> None:
    """A batch of a streaming query, one entry for each task; its columns are added to the topic (mergeSchema)."""
    schema = WIDER if "extra" in tasks[0][0] else EVENTS
    entries = tuple(stage(log, pa.RecordBatch.from_pylist(rows, schema)) for rows in tasks)
    claim = Claim("job", sequence, QUERY, run, bytes([sequence]) * 16)
    append(log, Batch(log.clock.new_id(), entries, schema, merge_schema=True, claim=claim))


def stage(log: Log, rows: pa.RecordBatch) -> Entry:
    return stage_entry(log.storage, log.topic.uuid, log.view().head.gc_epoch, [rows], "lz4", log.clock)


def masked(client: LedgerClient) -> None:
    """Two processes with one producer's name: the second brings two ids that the first has written meanwhile, and
    their rows are masked."""
    with client.producer("events", "retrier") as first, client.producer("events", "retrier") as second:
        for sequence in (5, 6, 8):
            first.send({"id": 60 + sequence, "name": "first"}, sequence)
        first.flush()
        for sequence in (6, 8, 9):
            second.send({"id": 60 + sequence, "name": "second"}, sequence)


# -- topics with keys ------------------------------------------------------------------------------------------------


def accounts(client: LedgerClient) -> None:
    """Compacted four times, of which three are kept; then deletions and changes that are not compacted."""
    client.create_topic("accounts", ACCOUNTS, key="who")
    client.set_policies("accounts", snapshot_commits=2)
    for number in range(4):
        changed = [{"who": f"new {number}", "balance": number}, {"who": "ann", "balance": 10 * number, "note": "again"}]
        deleted = [{"who": f"new {number - 1}"}] if number else []
        send(client, "accounts", "bank", [*changed, *deleted])
        client.compact("accounts")
        if number == 2:
            client.gc("accounts")
            client.create_cursor("accounts", "follower", "latest")
    send(client, "accounts", "bank", [{"who": "ann"}, {"who": "zoe", "balance": 7}, {"note": "no key: stays"}])


def sensors(client: LedgerClient) -> None:
    """Versions, and records that bring their producer and their sequence id: more of both than a commit's node has."""
    client.create_topic("sensors", SENSORS, key="who", version_column="seq")
    log = client.log("sensors")
    with_ids(log, [[("a", 1, "x"), ("b", 1, "x")], [("a", 2, "y")]])
    with_ids(log, [[("a", 2, "a duplicate"), ("a", 3, None)], [("b", 2, "z")], [("c", 5, "x"), ("d", 1, "x")]])
    client.compact("sensors")
    with_ids(log, [[("c", 6, None), ("e", 1, "x")]])


def with_ids(log: Log, tasks: list[list[tuple[str, int, str | None]]]) -> None:
    columns = IdColumns("seq", "who")
    entries, ranges = [], []
    for task in tasks:
        rows = pa.RecordBatch.from_pylist([dict(zip(SENSORS.names, row, strict=True)) for row in task], SENSORS)
        found = Ranges(columns)
        entries.append(stage(log, found.add(rows)))
        ranges.append(found.table())
    ids = RecordIds(columns, entries, ranges, log)
    append(log, Batch(log.clock.new_id(), tuple(entries), SENSORS, ids=ids))


# -- subscriptions ---------------------------------------------------------------------------------------------------


def subscriptions(client: LedgerClient) -> None:
    """One that nobody has used, one with gaps and properties, one that was moved again and again."""
    positions = [record.position for record in client.reader("events", end="latest")]
    client.create_cursor("events", "untouched", "earliest")
    client.create_cursor("events", "gaps").mark_delete(positions[5], {"batch": 7, "lag": -3})
    with client.consumer("events", "gaps") as consumer:
        received = [consumer.receive(30.0) for _ in range(8)]
        for place in (6, 2, 3):
            consumer.acknowledge(received[place])
    moved = client.create_cursor("events", "moved")
    moved.skip(4)
    moved.reset("earliest", discard_planned=True)
    moved.redeliver()
    moved.reset(positions[8])


# -- tokens ----------------------------------------------------------------------------------------------------------


def orders(client: LedgerClient, outside: Outside) -> None:
    """Chunks of tokens that are consumed entirely, in a regular way (short), at random (long), a little, not at all;
    and blocks for messages from outside, of which one is used up."""
    client.create_topic("orders", ORDERS)
    for first in range(0, 600, 100):
        send(client, "orders", "shop", ({"order_id": n} for n in range(first, first + 100)), mint_tokens=True)
    minted, size = tokens_of(client, "orders"), LIMITS.token_chunk
    audit = client.tokens("orders", "audit")
    audit.consume(minted[:size])
    audit.consume(minted[size : 2 * size : 2])
    audit.consume(random.Random(1).sample(minted[2 * size : 3 * size], size // 2))
    audit.consume(minted[3 * size : 3 * size + 5])
    blocks = [audit.mint(6), audit.mint(3), audit.mint(2)]
    audit.consume([blocks[0][1], blocks[0][4]])
    audit.consume(blocks[1])
    outside["orders", "audit"] = [token for block in blocks for token in block]


def tokens_of(client: LedgerClient, topic: str) -> list[str]:
    return [record.token for record in client.reader(topic, end="latest") if record.token is not None]


class Undelivered(Exception):
    """The world outside is not there."""


def billing(client: LedgerClient, outside: Outside) -> Outbox:
    """A small entity, and a large one with something that it could not dispatch yet."""
    client.create_topic("invoices", ORDERS)
    client.create_topic("parcels", ORDERS)

    def dispatch(payload: Any, token: str | None) -> None:
        assert token is not None
        outside.setdefault(("parcels", "shipping"), []).append(token)
        if payload == "undelivered":
            raise Undelivered

    minted, shipping = tokens_of(client, "orders"), client.tokens("parcels", "shipping")
    outbox = client.outbox("billing", dispatch=dispatch, dispatch_tokens=shipping)
    invoice = Send("invoices", {"order_id": 1})
    outbox.process("order 1", minted[0], lambda _: ({"orders": [1]}, [invoice, Dispatch("delivered")]), entity="ann")
    outbox.process("order 2", minted[2], lambda _: ({"orders": list(range(100))}, [invoice, invoice]), entity="bob")
    with suppress(Undelivered):
        outbox.process("order 3", minted[4], lambda state: (state, [Dispatch("undelivered")]), entity="bob")
    return outbox


# -- queries ---------------------------------------------------------------------------------------------------------


class Query:
    """A streaming query without Spark: what Spark would have called, and what its checkpoint would have."""

    def __init__(self, **options: str) -> None:
        self.options = options
        self.batches: list[dict[str, Any]] = []
        self.committed = 0  # so many of them

    def run(self, batches: int, *, dies: bool = False) -> None:
        """From start to stop. One that dies has logged its last batch, and not committed it."""
        options = ReadOptions.parse(self.options)
        reader = LedgerStreamReader(options, topic_schema(options))
        start = self.batches[-1]["end"] if self.batches else reader.initialOffset()
        for number in range(batches):
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            parts = reader.partitions(start, end)
            rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
            self.batches.append({"start": start, "end": end, "rows": rows})
            start = end
            if not dies or number < batches - 1:
                reader.commit(end)
                self.committed = len(self.batches)
        reader.stop()

    def shown(self) -> dict[str, Any]:
        options = {name: value for name, value in self.options.items() if name not in ("zookeeper", "storage")}
        return {"options": options, "batches": self.batches, "committed": self.committed}


def queries(client: LedgerClient, zookeeper: str, storage: str) -> dict[str, Query]:
    where = {"zookeeper": zookeeper, "storage": storage}
    following = Query(**where, topic="events", subscription="query", maxRowsPerTrigger="4")
    following.run(2)
    client.cursor("events", "query").reset(next(iter(client.reader("events", end="latest"))).position)
    following.run(2, dies=True)
    table = Query(**where, topic="accounts", readCompacted="true", maxRowsPerTrigger="2")
    table.run(3)
    shared_client(zookeeper, storage, None).close()  # the one that readers of a process share
    return {"following": following, "compacted": table}


# -- what a reader gets of all this ------------------------------------------------------------------------------------


def described(client: LedgerClient, topic: str, outside: Outside) -> dict[str, Any]:
    log = client.log(topic)
    view = log.refresh(sync=True)
    keys = client.metadata.children(RootKey(log.topic.uuid))
    dedup = client.metadata.read(DedupKey(log.topic.uuid))
    return {
        "uuid": log.topic.uuid,
        "key": log.topic.key,
        "version_column": log.topic.version_column,
        "columns": {field.name: str(field.type) for field in log.schema(view.head.schema_id)},
        "policies": asdict(view.head.policies),
        "end": str(view.head.end),
        "gc_epoch": view.head.gc_epoch,
        "index_files": len(view.head.index),
        "commits": [asdict(commit) for commit in log.commits_from(view, EARLIEST)],
        "records": list(records(client, topic)),
        "producers": [asdict(state) for state in client.producers(topic)],
        "producers_in_a_file": dedup is not None and dedup.record.producers_file is not None,
        "evicted_producers": client.evicted_producers(topic),
        "generations": [
            {"number": g.number, "horizon": str(g.horizon), "records": g.records, "keeps": str(g.tombstones_from)}
            for g in view.head.generations
        ],
        "table": list(rows(log, compaction.table(log, view, EARLIEST, view.head.end))) if log.topic.key else [],
        "compacted": list(rows(log, through(log))) if log.topic.key else [],
        "cursors": {key.name: cursor(log, key) for key in keys if isinstance(key, CursorKey)},
        "tokens": {key.group: tokens(client, topic, key, outside) for key in keys if isinstance(key, TokenGroupKey)},
    }


def records(client: LedgerClient, topic: str) -> Iterator[dict[str, Any]]:
    for record in client.reader(topic, end="latest"):
        yield {
            "position": str(record.position),
            "value": record.value,
            "producer": record.producer,
            "sequence_id": record.sequence_id,
            "token": record.token,
            "published_ms": round(record.publish_time.timestamp() * 1000),
        }


def through(log: Log) -> Iterator[Slice]:
    """What a stream with readCompacted reads: the newest generation with all tombstones that it keeps, then the log."""
    view = log.view()
    return compaction.read_through(log, view, compaction.newest(view), EARLIEST, view.head.end, EARLIEST)


def rows(log: Log, pieces: Iterable[Slice]) -> Iterator[dict[str, Any]]:
    schema = log.schema(log.view().head.schema_id)
    for piece in pieces:
        for read in read_slice(log.storage, log.topic.uuid, piece, schema, with_ids=True):
            columns = [column.to_pylist() for column in (*read.places()[:3], *read.ids())]
            for value, *place, producer, sequence in zip(read.batch.to_pylist(), *columns, strict=True):
                position = ":".join(str(number) for number in place)
                yield {"position": position, "value": value, "producer": producer, "sequence_id": sequence}


def cursor(log: Log, key: CursorKey) -> dict[str, Any]:
    found = CursorNode(log, key.name).refresh(sync=True)
    past = [{"revision": past.revision, "finished": str(past.finished)} for past in found.pasts]
    return {
        **asdict(found),
        "mark_delete": str(found.mark_delete),
        "properties": dict(found.properties),
        "acks": list(Runs.unpack(found.acks, found.ordinal)),
        "pasts": past,
    }


def tokens(client: LedgerClient, topic: str, key: TokenGroupKey, outside: Outside) -> dict[str, Any]:
    group = client.tokens(topic, key.group)
    minted, handed_out = tokens_of(client, topic), outside.get((topic, key.group), [])
    [stats] = [stats for stats in group.stats() if stats.group == key.group]
    return {
        "present": [token for token, is_there in zip(minted, group.present(minted), strict=True) if is_there],
        "outside": dict(zip(handed_out, group.present(handed_out), strict=True)),
        "stats": asdict(stats),
        "kept": kept(client, key),
    }


def kept(client: LedgerClient, key: TokenGroupKey) -> dict[str, list[int]]:
    """Where what is consumed of each chunk is kept."""
    group = client.metadata.read(key).record
    below = [each for each in client.metadata.children(key) if isinstance(each, TokenChunkKey)]
    in_files = [each.chunk for each in below if client.metadata.read(each).record.file is not None]
    return {
        "whole": [chunk for start, stop in Runs.unpack(group.whole, 0) for chunk in range(start, stop)],
        "inline": [chunk for chunk, _ in group.partials],
        "node": [each.chunk for each in below if each.chunk not in in_files],
        "file": in_files,
    }


def entities(outbox: Outbox, *names: str) -> dict[str, Any]:
    return {
        name: {
            "state": outbox.state(name),
            "pending": {id: asdict(pending) for id, pending in outbox.pending(name).items()},
            "in_a_file": outbox.entities.load(name).found.record.file is not None,
        }
        for name in names
    }


def unnamed(client: LedgerClient) -> str:
    """What a writer leaves behind that dies before its commit: for some later gc."""
    log = client.log("events")
    file = stage(log, pa.RecordBatch.from_pylist([{"id": -1, "name": "never committed"}], EVENTS)).file
    return names.staged_file(log.topic.uuid, file.epoch, file.uid)


def main(zookeeper: str, storage: str) -> None:
    clock, outside = SlowClock(), {}
    with LedgerClient(zookeeper, storage, limits=LIMITS, clock=clock) as client:
        events(client, clock)
        accounts(client)
        sensors(client)
        subscriptions(client)
        orders(client, outside)
        outbox = billing(client, outside)
        made = queries(client, zookeeper, storage)
        found = {
            "unnamed": unnamed(client),
            "topics": {name: described(client, name, outside) for name in client.topics()},
            "outboxes": {outbox.name: entities(outbox, "ann", "bob")},
            "checkpoints": {name: query.shown() for name, query in made.items()},
        }
    json.dump(found, sys.stdout, default=bytes.hex)


if __name__ == "__main__":
    main(*sys.argv[1:])
