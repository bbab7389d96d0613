"""What a reader gets of a namespace, in the words of ``old_namespace.py``, with today's code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.compaction.plan import state_slices
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.log.generations import kept, newest
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.rows import read_slice
from pyspark_ledger.log.slices import Slice
from pyspark_ledger.log.sources import ReadSource
from pyspark_ledger.metadata.port import CursorKey, PartKey, TokenChunkKey, TokenGroupKey


def described(client: LedgerClient, topic: str, outside: dict[str, list[str]]) -> dict[str, Any]:
    """``outside``: the tokens for messages from outside, of each group."""
    log = namespace_of(client).log(topic)
    view = log.refresh(sync=True)
    return {
        "uuid": log.topic.uuid,
        "key": log.topic.key,
        "version_column": log.topic.version_column,
        "columns": {field.name: str(field.type) for field in log.schema(view.head.schema_id)},
        "policies": asdict(log.policies().record),
        "gc_epoch": view.head.gc_epoch,
        "commits": [asdict(commit) for commit in log.commits_from(view, EARLIEST)],
        "records": list(records(client, topic)),
        "producers": [asdict(state) for state in client.producers(topic)],
        "evicted_producers": client.evicted_producers(topic),
        "generations": [
            {"number": g.number, "horizon": str(g.horizon), "records": g.records, "keeps": str(g.tombstones_from)}
            for g in kept(log.files, view.head)
        ],
        "table": list(rows(log, state_slices(log, view, EARLIEST, view.head.end))) if log.topic.key else [],
        "compacted": list(rows(log, through(log))) if log.topic.key else [],
        "cursors": {key.name: cursor(log, key) for key in parts(log, "subscriptions") if isinstance(key, CursorKey)},
        "tokens": {key.group: tokens(client, topic, key, outside) for key in parts(log, "tokens")},
    }


def parts(log: Log, part: Any) -> list[Any]:
    return log.metadata.children(PartKey(log.topic.uuid, part))


def records(client: LedgerClient, topic: str) -> Iterator[dict[str, Any]]:
    for record in client.reader(topic, end="latest"):
        yield {
            "position": str(record.position),
            "value": dict(record.value),
            "producer": record.producer,
            "sequence_id": record.sequence_id,
            "token": record.token,
            "published_ms": round(record.publish_time.timestamp() * 1000),
        }


def through(log: Log) -> Iterator[Slice]:
    view = log.view()
    return ReadSource(log, view, newest(log, view)).slices(EARLIEST, view.head.end)


def rows(log: Log, pieces: Iterable[Slice]) -> Iterator[dict[str, Any]]:
    schema = log.schema(log.view().head.schema_id)
    for piece in pieces:
        for read in read_slice(log.storage, log.topic.uuid, piece, schema, with_ids=True):
            columns = [column.to_pylist() for column in (*read.positions(), *read.ids())]
            for value, *place, producer, sequence in zip(read.batch.to_pylist(), *columns, strict=True):
                position = str(Position(*place))
                yield {"position": position, "value": value, "producer": producer, "sequence_id": sequence}


def cursor(log: Log, key: CursorKey) -> dict[str, Any]:
    found = CursorNode(log, key.name).refresh(sync=True)
    past = [{"revision": past.revision, "finished": str(past.finished)} for past in found.past_revisions]
    return {
        **asdict(found),
        "mark_delete": str(found.mark_delete),
        "properties": dict(found.properties),
        "acks": list(Runs.unpack(found.acks, found.ordinal)),
        "pasts": past,
        "rewound": found.last_backward_revision,
    }


def tokens(client: LedgerClient, topic: str, key: TokenGroupKey, outside: dict[str, list[str]]) -> dict[str, Any]:
    group = client.tokens(topic, key.group)
    minted = [record.token for record in client.reader(topic, end="latest") if record.token is not None]
    handed_out = outside.get(key.group, [])
    [stats] = [stats for stats in group.stats() if stats.group == key.group]
    return {
        "present": [token for token, is_there in zip(minted, group.present(minted), strict=True) if is_there],
        "outside": dict(zip(handed_out, group.present(handed_out), strict=True)),
        "stats": asdict(stats),
        "kept": kept_where(client, key),
    }


def kept_where(client: LedgerClient, key: TokenGroupKey) -> dict[str, list[int]]:
    """Where what is consumed of each chunk is kept."""
    metadata = namespace_of(client).metadata
    group = metadata.read(key).record
    below = [each for each in metadata.children(key) if isinstance(each, TokenChunkKey)]
    in_files = [each.chunk for each in below if metadata.read(each).record.file is not None]
    return {
        "whole": [chunk for start, stop in Runs.unpack(group.whole, 0) for chunk in range(start, stop)],
        "inline": [chunk for chunk, _ in group.partials],
        "node": [each.chunk for each in below if each.chunk not in in_files],
        "file": in_files,
    }
