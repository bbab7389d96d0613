"""Makes the golden files of the present format, by hand and once: ``python -m tests.golden.make`` from the root.

They are committed, and from then on never made again: tests read them with every later version. ``tests/support/
golden.py`` says what is in them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark_ledger.base.runs import Runs
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log import policies, topics
from pyspark_ledger.log.index import stage_leaf
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.metadata.port import (
    AnyKey,
    LedgerKey,
    Metadata,
    OutboxKey,
    PartKey,
    Put,
    RootKey,
    TokenGroupKey,
    TopicsKey,
)
from pyspark_ledger.metadata.records import Commit, Entry
from pyspark_ledger.outbox.outbox import Outbox
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.tokens.tokens import Tokens
from pyspark_ledger.zk_metadata import codec
from tests.support.golden import ENTITIES, OUTBOX, SAMPLES, meaning, node, plain
from tests.support.records import KEYS, a_uuid, bare, filled, record_of
from tests.support.worlds import IDS, SMALL, World, append, append_ids

# So small that a few commits need every kind of file: two levels of index, lists of entries, snapshots, bitmaps.
LIMITS = replace(
    SMALL,
    commits_per_ledger=2,
    index_fanout=2,
    inline_producers_bytes=100,
    token_chunk=4,
    inline_bitmap_bytes=24,
    inline_bitmaps=1,
    node_bitmap_bytes=8,
    entity_bytes=60,
    gc_grace_ms=0,
)


def make(folder: Path) -> None:
    folder.mkdir(parents=True)
    world = World(folder / "storage", LIMITS, SeededClock(1))
    numbered_batches(world)
    numbered_records(world)
    subscription(world)
    tokens(world)
    outbox(world)
    metadata = world.metadata()
    (folder / "node_samples.json").write_text(shown(list(node_samples()), 1) + "\n")
    (folder / "file_samples.json").write_text(shown(list(file_samples(world)), 1) + "\n")
    stored = [node(key, metadata.read(key).record) for key in keys_of(metadata)]
    (folder / "nodes.json").write_text(shown(stored, 1) + "\n")
    (folder / "meaning.json").write_text(shown(meaning(metadata, world.storage), 3) + "\n")


def shown(value: Any, depth: int) -> str:
    """JSON with one line for each item, and for each item of its items, down to a depth."""
    if depth == 0 or not isinstance(value, (list, dict)):
        return json.dumps(value)
    if isinstance(value, list):
        return "[\n" + ",\n".join(shown(item, depth - 1) for item in value) + "\n]"
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {shown(item, depth - 1)}" for name, item in value.items()) + "\n}"


def node_samples() -> Iterator[dict[str, Any]]:
    for kind in KEYS:
        record = record_of(kind)
        for value in (filled(record), filled(record, a_uuid), bare(record)):
            yield node(filled(kind), value)


def file_samples(world: World) -> Iterator[dict[str, Any]]:
    world.storage.make_folder(SAMPLES)
    files = TopicFiles(world.storage, SAMPLES, world.clock)
    commits = [filled(Commit), filled(Commit, a_uuid)]
    leaf = stage_leaf(files, commits, 0)
    yield {"kind": "index leaf", "file": plain(leaf.file), "records": plain(commits)}
    entries = [filled(Entry)]
    yield {"kind": "entry list", "file": plain(files.stage_entries(entries, 0)), "records": plain(entries)}


def keys_of(metadata: Metadata) -> Iterator[AnyKey]:
    """Every node that is not ephemeral, parents first."""
    for topic in metadata.children(TopicsKey()):
        yield topic
        yield from with_all_below(metadata, RootKey(metadata.read(topic).record.uuid))
    yield from with_all_below(metadata, OutboxKey(OUTBOX))


def with_all_below(metadata: Metadata, key: AnyKey) -> Iterator[AnyKey]:
    yield key
    if isinstance(key, (RootKey, PartKey, LedgerKey, TokenGroupKey, OutboxKey)):
        for child in metadata.children(key):
            yield from with_all_below(metadata, child)


def numbered_batches(world: World) -> None:
    """Producers that number their batches: one with several runs, one that was evicted. Some batches mint tokens."""
    log, query = world.log(), a_uuid(1)
    policies.change(log, policies.Changes(evict_producers_after=timedelta(hours=1)))
    append(log, 0, producer="evicted", batch_id=BatchId(7))
    world.clock.sleep(7200)
    for batch in range(6):
        run = a_uuid(100 + batch // 2)
        batch_id = BatchId(batch, query, run, bytes([batch]) * 8)
        append(log, *range(10 * batch, 10 * batch + 3), producer="job", batch_id=batch_id, mints=batch >= 2)
        world.clock.sleep(1)
    gc.collect(log)
    append(log, 90, producer="other", batch_id=BatchId(-1))
    append(log, 91)


def numbered_records(world: World) -> None:
    """Producers that number their records: duplicates are masked, long lists are in files; compacted twice."""
    topic = topics.create_topic(world.metadata(), "keyed", IDS, key="who", clock=world.clock, storage=world.storage)
    log = open_log(world, topic.name)
    append_ids(log, [[("a", 1), ("b", 1)], [("a", 2)]], "first")
    append_ids(log, [[("a", 2), ("a", 3)]], "one is a duplicate")
    compact(log)
    append_ids(log, [[("b", 2)], [("c", 1), ("b", 1)], [("d", 1)]], "more entries and producers than a commit holds")
    compact(log)
    append_ids(log, [[("e", 1)]], "not compacted")


def subscription(world: World) -> None:
    """One that was reset, moved on, and has acknowledged records out of order."""
    log = world.log()
    cursor = CursorNode(log, "sub")
    cursor.ensure("earliest")
    handle = CursorHandle(log, "sub")
    handle.skip(5)
    handle.reset("earliest", discard_planned=True)
    handle.mark_delete("1:0:0", {"batch": -3})
    found = log.metadata.read(cursor.key)
    ordinal = found.record.ordinal
    acks = Runs([(ordinal + 2, ordinal + 5), (ordinal + 7, ordinal + 8)]).pack(ordinal)
    log.metadata.transact([Put(cursor.key, replace(found.record, acks=acks), found.version)])


def tokens(world: World) -> None:
    """A group that has consumed a whole chunk and parts of two, and has tokens for messages from outside."""
    log = world.log()
    minted = [record.token for record in Reader(log, "earliest", "latest") if record.token]
    group = Tokens(log, "group")
    group.consume([*minted[:4], minted[5], minted[10]])
    group.consume(group.mint(3)[1:2])


def outbox(world: World) -> None:
    """One entity in its node, one in a file."""
    minted = [record.token for record in Reader(world.log(), "earliest", "latest") if record.token]
    billing = Outbox(OUTBOX, world.metadata(), world.storage, lambda name: open_log(world, name), LIMITS, world.clock)
    for entity, token, count in zip(ENTITIES, minted, (1, 50), strict=False):
        billing.process(f"order of {entity}", token, lambda _, n=count: ({"orders": list(range(n))}, []), entity=entity)


def open_log(world: World, name: str) -> Log:
    metadata = world.metadata()
    return Log(metadata, world.storage, topics.get_topic(metadata, name), limits=LIMITS, clock=world.clock)


if __name__ == "__main__":
    target = Path(__file__).parent / f"format{codec.FORMAT}"
    if target.exists():
        sys.exit(f"{target} is there: golden files are made once, and never changed")
    make(target)
