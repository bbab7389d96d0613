"""Copies a topic's records to another namespace, or under another name, each of them once.

The copy writes as a producer that is named after the source, and a record's sequence id is its number in the source: so
whoever begins again after a kill goes on where the last one came to, and what that one had sent counts once (I5). Every
entry keeps the columns that it has: what is a tombstone in the source is one in the copy, and nothing else is.

Positions, publish times and producers are the copy's own; subscriptions and tokens stay behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.compaction.fold import tombstones
from pyspark_ledger.errors import Conflict, DataLoss, InvalidInput, LedgerError
from pyspark_ledger.log import scan, trimmed
from pyspark_ledger.log.generations import newest
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.log.rows import CompactedRows, SliceReader, SliceRows
from pyspark_ledger.log.slices import Slice, joined
from pyspark_ledger.log.sources import ReadSource
from pyspark_ledger.metadata.port import PoliciesKey
from pyspark_ledger.metadata.records import Policies
from pyspark_ledger.metadata.transactions import PlainNode

Progress = Callable[[str, int, int], None]  # phase, records done, of how many
Numbered = tuple[pa.RecordBatch, pa.Array]  # records, and their numbers in the source

_COMMIT_ROWS = 50_000
_COMMIT_BYTES = 16 << 20


class TopicCopy:
    """One topic and its copy. ``around_lost``: damaged entries that were given up by name are left out; otherwise they
    stop the copy."""

    def __init__(self, source: Log, target: OpenNamespace, name: str, *, around_lost: bool = False) -> None:
        self._source, self._around_lost = source, around_lost
        self._prefix = f"copy-{source.topic.uuid}-from-"
        begin = trimmed.records_before_begin(source.refresh(sync=True).head)
        self.log = self._make_or_find(target, name)
        # Where the log began when the copy was begun is in the name, for whoever goes on with it.
        self._producer = Producer(self.log, name=self._before(self.log) or f"{self._prefix}{begin}", merge_schema=True)

    # -- the copy as a topic --------------------------------------------------------------------------------

    def _make_or_find(self, target: OpenNamespace, name: str) -> Log:
        topic, view = self._source.topic, self._source.view()
        try:
            target.create_topic(name, self._source.schema(view.head.schema_id), topic.key, topic.version_column)
        except Conflict as conflict:
            if conflict.code != "LEDGER_TOPIC_EXISTS":
                raise
        log = target.log(name)
        self._check_ours(log)
        log.refresh(sync=True)
        if not log.view().head.records:
            self._set_policies(log, self._source.policies().record)
        if not log.deduplicates():  # or the copy could not be gone on with
            self._set_policies(log, replace(log.policies().record, deduplication=True))
        return log

    def _before(self, log: Log) -> str | None:
        """The producer of those who have copied before."""
        _, producers = log.producers()
        return next((state.name for state in producers.all() if state.name.startswith(self._prefix)), None)

    def _check_ours(self, log: Log) -> None:
        ours, theirs = self._source.topic, log.topic
        if ours.uuid == theirs.uuid:
            raise InvalidInput(f"topic '{ours.name}' cannot be copied to itself: give the copy another name with --as")
        if (ours.key, ours.version_column) != (theirs.key, theirs.version_column):
            raise Conflict(
                f"topic '{theirs.name}' is there already with the key '{theirs.key}' and the version column "
                f"'{theirs.version_column}', and '{ours.name}' has '{ours.key}' and '{ours.version_column}': give the "
                "copy another name with --as",
                "LEDGER_TOPIC_EXISTS",
            )
        if log.refresh(sync=True).head.records and self._before(log) is None:
            raise Conflict(
                f"topic '{theirs.name}' is there already with {log.view().head.records:,} records, which are no copy "
                f"of '{ours.name}' ({ours.uuid}): give the copy another name with --as",
                "LEDGER_TOPIC_EXISTS",
            )

    def _set_policies(self, log: Log, wanted: Policies) -> None:
        def edit(policies: Policies) -> Policies | None:
            return None if policies == wanted else wanted

        node = PlainNode(log.metadata, PoliciesKey(log.topic.uuid), log.gone)
        log.transactions.change(node, edit, f"topic '{log.topic.name}': the policies of what it is a copy of")
        log.refresh(sync=True)

    def finish(self) -> None:
        """When no more is to be copied for now: deduplication is as it is for the source."""
        wanted = self._source.policies().record.deduplication
        now = self.log.policies().record
        if now.deduplication != wanted:
            self._set_policies(self.log, replace(now, deduplication=wanted))

    # -- the records ----------------------------------------------------------------------------------------

    @property
    def last(self) -> int | None:
        """The number of the last record that is in the copy."""
        return self._producer.last_sequence_id

    def catch_up(self, view: View, progress: Progress = lambda *_: None) -> int:
        """Copies what is not in the copy yet, up to the end of the view. Returns how many records that were."""
        copied = 0
        for records, numbers in self._commits(view):
            done = self._producer.send_batch(records, numbers)
            copied += done.records
            progress("copying", numbers[-1].as_py() + 1, view.head.records)
        return copied

    def _commits(self, view: View) -> Iterator[tuple[pa.Table, pa.Array]]:
        """Records with the same columns, as many as make a good commit."""
        waiting: list[Numbered] = []
        rows = size = 0
        for batch, numbers in self._batches(view):
            is_other = bool(waiting) and waiting[0][0].schema != batch.schema
            if is_other or rows >= _COMMIT_ROWS or size >= _COMMIT_BYTES:
                yield _together(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append((batch, numbers))
            rows += batch.num_rows
            size += batch.nbytes
        if waiting:
            yield _together(waiting)

    def _batches(self, view: View) -> Iterator[Numbered]:
        last, schema = self.last, self._source.schema(view.head.schema_id)
        for piece in self._pieces(view, last):
            opened = SliceReader(self._source.storage, self._source.topic.uuid, piece)
            has = set(opened.columns)
            for rows in opened.rows(pa.schema([field for field in schema if field.name in has]), with_ids=True):
                yield from self._new(rows, last)

    def _pieces(self, view: View, last: int | None) -> Iterator[Slice]:
        log, begin = self._source, trimmed.begin(view.head)
        generation, gone = newest(log, view), trimmed.records_before_begin(view.head)
        if last is not None and last + 1 < gone and gone != int(self._producer.name.removeprefix(self._prefix)):
            raise DataLoss(
                f"topic '{log.topic.name}': {gone - last - 1:,} records after those that are in the copy are gone, "
                "because the topic's retention gave them up. Make another copy, with --as; a subscription of the topic "
                "holds its records back meanwhile ('pyspark-ledger cursors create')",
                "LEDGER_TRIMMED",
            )
        if generation is not None and (last is None or last + 1 < gone):
            # What the log has given up, and the generation still has. None of it is a deletion: a copy begins empty.
            source = ReadSource(log, view, generation, max(begin, generation.horizon))
            yield from source.slices(EARLIEST, min(begin, generation.horizon))
        start = begin if last is None else max(begin, self._position_of(view, last + 1))
        yield from joined(scan.slices(log, view, start, view.head.end, around_lost=self._around_lost))

    def _position_of(self, view: View, number: int) -> Position:
        if number > view.head.records:
            raise LedgerError(
                f"the copy has record {number - 1:,} of topic '{self._source.topic.name}', which has only "
                f"{view.head.records:,}: ZooKeeper was rolled back to an older state. Make another copy, with --as",
                "LEDGER_SET_BACK",
            )
        return scan.position_at(self._source, view, number)

    def _new(self, rows: SliceRows, last: int | None) -> Iterator[Numbered]:
        batch, numbers = rows.batch, rows.ordinals()
        if numbers.null_count:
            raise InvalidInput(
                f"topic '{self._source.topic.name}' has compacted records whose numbers were not noted when they "
                "were compacted, and whose originals are gone: so a copy could not be gone on with. Export them with "
                f"'pyspark-ledger topics export {self._source.topic.name} state.parquet --compacted', and import that"
            )
        if last is not None:
            is_new = pc.greater(numbers, last)
            batch, numbers = batch.filter(is_new), numbers.filter(is_new)
        if isinstance(rows, CompactedRows) and batch.num_rows:
            yield from _without_deletions(batch, numbers, self._source.topic.key, self._source.topic.version_column)
        elif batch.num_rows:
            yield batch, numbers


def _together(parts: list[Numbered]) -> tuple[pa.Table, pa.Array]:
    return pa.Table.from_batches([batch for batch, _ in parts]), pa.concat_arrays([numbers for _, numbers in parts])


def _without_deletions(batch: pa.RecordBatch, numbers: pa.Array, key: str, version: str) -> Iterator[Numbered]:
    """Compacted records have all columns, and one that was a key alone must not become a deletion: it goes into an
    entry that has no other columns."""
    empty = tombstones(batch, key, version)
    if not empty.true_count:
        yield batch, numbers
        return
    alone = [name for name in batch.schema.names if name in (key, version)]
    changes = pc.indices_nonzero(pc.not_equal(empty[1:], empty[:-1])).to_pylist()
    bounds = [0, *(at + 1 for at in changes), batch.num_rows]
    for start, stop in pairwise(bounds):
        part = batch.slice(start, stop - start)
        yield (part.select(alone) if empty[start].as_py() else part), numbers.slice(start, stop - start)
