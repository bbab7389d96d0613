"""Plans the micro-batches of a stream, on the driver: where each begins, how far it goes, what its tasks read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.types import StructType

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.compaction.pins import Pinned
from pyspark_ledger.compaction.plan import check_compactable
from pyspark_ledger.datasource import offsets
from pyspark_ledger.datasource.executor.reading import LedgerPartition
from pyspark_ledger.datasource.offsets import INITIAL, Offset
from pyspark_ledger.datasource.options import ReadOptions
from pyspark_ledger.datasource.planning import check_asked_schema, open_log, share_out
from pyspark_ledger.datasource.schema_change import SchemaWatch
from pyspark_ledger.datasource.subscription import BatchStart, Subscription
from pyspark_ledger.errors import DataLoss
from pyspark_ledger.log import generations, places, scan, trimmed
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.lost import LostEntry
from pyspark_ledger.log.reader import POLL_S
from pyspark_ledger.log.slices import Slice
from pyspark_ledger.log.sources import ReadSource
from pyspark_ledger.metadata.records import Generation

logger = logging.getLogger(__name__)


class StreamPlanner:
    """One for each query, for as long as it runs."""

    def __init__(self, options: ReadOptions, schema: StructType, fail_on_new_columns: bool = False) -> None:
        self._options, self._schema, self._fail_on_new_columns = options, schema, fail_on_new_columns
        self._opened: Log | None = None
        self._subscription: Subscription | None = None
        self._pin: Pinned | None = None
        self._schema_watch: SchemaWatch | None = None
        self._start: Position | None = None
        self._stop: Position | None = None  # endingOffsets
        self._target: Position | None = None  # the end that Trigger.AvailableNow fixed
        self._last_batch_at: float | None = None
        self._recognised = False  # whether what the checkpoint has seen was looked for in the topic
        self._told = ""  # what it went on without
        self._has_planned = False  # else a batch that Spark asks for was planned before this process was there
        self._reported: tuple[bytes, dict[str, Any]] | None = None  # the head's last change, and the topic's end then

    # -- what Spark asks -----------------------------------------------------------------------------------

    def fix_target(self) -> None:
        """Trigger.AvailableNow: the query ends where the topic ends now."""
        self._target = self._newest(self.log()).head.end

    def initial_offset(self) -> dict[str, Any]:
        self.log()
        if self._subscription is None:
            self._begin()
        return INITIAL

    def latest_offset(self, start: dict[str, Any], *, everything: bool) -> dict[str, Any]:
        """Where the batch ends that begins at ``start``; ``start`` itself if there is nothing new."""
        self._has_planned = True
        log, view = self._current()
        at = None if offsets.is_initial(start) else offsets.parse(start, log.topic)
        view = self._recognise(log, view, at)
        first = self._next_start(at)
        if first is None:
            return start
        if first.position > view.head.end:
            view = self._newest(log)  # the server that answered first may be behind
        if at is not None and self._is_lost(log, view, first.position):
            lost = Offset(log.topic.uuid, view.head.end, None, at.revision, at.epoch, reset=at.reset)
            return self._json(log, view, lost)
        end = min(p for p in (view.head.end, self._ending(log, view), self._target) if p is not None)
        first = self._past_what_is_gone(log, view, at, first, end)
        begin = first.position
        # Spark makes batch 0 of any first answer, even of an empty one: this fixes where the query begins.
        begun = Offset(log.topic.uuid, begin, begin, first.revision, first.epoch, reset=first.reset)
        nothing_new = start if at is not None else self._json(log, view, begun)
        if begin >= end:
            return nothing_new
        change = self._schema_change(log, view, begin, end)
        if change is not None:
            end = change
        elif not everything and self._waits_for_more(log, view, begin, end):
            return nothing_new
        planned = self._plan(log, view, at, first, end, everything=everything)
        if planned is None and change is not None:
            assert self._schema_watch is not None
            raise self._schema_watch.changed(change)
        return nothing_new if planned is None else self._json(log, view, planned)

    def _plan(
        self, log: Log, view: View, at: Offset | None, first: BatchStart, end: Position, *, everything: bool
    ) -> Offset | None:
        """A batch that goes up to ``end``, or as far as the limits allow; None if there is no record."""
        begin = first.position
        if begin >= end:
            return None
        generation, base = self._compacted(view, end, at, first)
        limits = (None, None) if everything else (self._options.max_rows, self._options.max_bytes)
        source = ReadSource(log, view, generation, base, around_lost=True)
        position, rows = source.advance(begin, end, *limits)
        self._check_lost(source.lost(begin, position if rows else end), log)
        if rows == 0:
            return None  # a ledger was sealed: only the position's number has changed
        self._last_batch_at = log.clock.monotonic()
        planned = Offset(log.topic.uuid, position, first.start, first.revision, first.epoch, reset=first.reset)
        if self._options.read_compacted:
            planned = replace(planned, generation=generation.number if generation else 0, base=base)
        logger.info(
            "planned topic=%s start=%s end=%s records=%d subscription=%s revision=%d epoch=%d generation=%d",
            log.topic.name, begin, position, rows, self._options.subscription, first.revision, first.epoch,
            planned.generation or 0,
        )  # fmt: skip
        return planned

    def topic_end(self) -> dict[str, Any]:
        log, view = self._current()
        if self._reported is None or self._reported[0] != view.head.last_change:
            end = Offset(log.topic.uuid, view.head.end).seen(log, view)
            self._reported = view.head.last_change, end.to_json()
        return self._reported[1]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[LedgerPartition]:
        """A batch that Spark has logged reads exactly its interval, whatever happens later: for the grace, also if
        retention gave up what is in it."""
        log, view = self._current()
        first = None if offsets.is_initial(start) else offsets.parse(start, log.topic)
        last = offsets.parse(end, log.topic)
        view = self._recognise(log, view, first, last)
        self._tell_replay(log, last)
        if last.position > view.head.end:
            view = self._newest(log)
            if self._is_lost(log, view, last.position):
                last = Offset(last.uuid, view.head.end, last.start, last.revision, last.epoch)
        begin = _begin_of(first, last)
        if begin >= last.position or (self._subscription is not None and self._subscription.is_void(last)):
            return []
        pieces = self._pieces(log, view, begin, last)
        return share_out(log, pieces, self._options.min_partitions, last.revision, last.epoch)

    def _tell_replay(self, log: Log, last: Offset) -> None:
        if not self._has_planned:
            logger.warning(
                "topic=%s: the batch that ends at %s was not finished when the query ended, and is read again",
                log.topic.name, last.position,
            )  # fmt: skip
        self._has_planned = True

    def _pieces(self, log: Log, view: View, begin: Position, last: Offset) -> list[Slice]:
        """What a batch that was planned consists of, wholly from the generation that its offset names."""
        generation = generations.numbered(log, view, last.generation) if last.generation else None
        source = ReadSource(log, view, generation, last.base or EARLIEST, planned=True, around_lost=True)
        self._check_lost(source.lost(begin, last.position), log)
        gone = source.gone_from(begin, last.position)
        if gone is None:
            return list(source.slices(begin, last.position))
        there = Position(trimmed.first_ledger(view.head, planned=True), 0, 0)
        self._go_on_without(trimmed.loss(view.head, gone), f"reading what is left of the batch, from {there} on")
        return [*source.slices(begin, gone), *source.slices(there, last.position)]

    def commit(self, end: dict[str, Any]) -> None:
        """Without a subscription there is nothing to do: only Spark's checkpoint moves."""
        log = self.log()
        if self._subscription is not None:
            done = offsets.parse(end, log.topic)
            self._recognise(log, self._current()[1], done)
            self._subscription.done(done)

    def stop(self) -> None:
        if self._subscription is not None:
            self._subscription.leave()
        if self._pin is not None:
            self._pin.release()
        self._opened = self._subscription = self._pin = self._schema_watch = None
        self._recognised = False  # whoever goes on with this reader finds another subscription, perhaps

    # -- the topic -----------------------------------------------------------------------------------------

    def log(self) -> Log:
        """Opened when it is first asked for, with the checks that need it."""
        if self._opened is None:
            log = open_log(self._options, watch=True)
            check_asked_schema(log, self._schema, self._options)
            self._ending(log, log.view())
            if self._options.read_compacted:
                check_compactable(log)
            if self._options.subscription:
                self._subscription = Subscription(log, self._options)
            self._opened = log
        return self._opened

    def _current(self) -> tuple[Log, View]:
        """From memory, because Spark asks every few milliseconds. A watch says when to read again; polling covers a
        lost watch."""
        log = self.log()
        try:
            return log, log.view(POLL_S)
        except DataLoss as loss:
            self._go_on_without(loss, "going on with what is there now")
            return log, log.view()

    def _newest(self, log: Log) -> View:
        try:
            return log.refresh(sync=True)
        except DataLoss as loss:
            self._go_on_without(loss, "going on with what is there now")
            return log.refresh(sync=True)

    # -- a topic that is not what it was -------------------------------------------------------------------

    def _recognise(self, log: Log, view: View, *known: Offset | None) -> View:
        """When a query starts, and before it acknowledges anything: what its checkpoint has seen must be in the topic,
        and its subscription must be the same one. The offsets that come later are its own."""
        found = [offset for offset in known if offset is not None]
        if found and not self._recognised:
            view = self._newest(log)
            for offset in found:
                view = self._check_has_commit(log, view, offset)
            if self._subscription is not None:  # only now: a rollback is the better answer
                for offset in found:
                    self._subscription.check_cursor(offset)
        self._recognised = True
        return view

    def _check_has_commit(self, log: Log, view: View, offset: Offset) -> View:
        if offset.commit is None:
            return view
        try:
            log.check_has_commit(view, offset.commit.number, offset.commit.id)
        except DataLoss as loss:
            begin = min(offset.position, view.head.end)
            self._go_on_without(loss, f"going on from {begin}: what was written before it since then is not read")
            return self._newest(log)
        return view

    def _is_lost(self, log: Log, view: View, position: Position) -> bool:
        """True if the position is past the end and the user wants to go on without what was lost."""
        try:
            log.check_not_past_end(view, position)
        except DataLoss as loss:
            self._go_on_without(loss, "going on from the end")
            return True
        return False

    def _past_what_is_gone(
        self, log: Log, view: View, at: Offset | None, first: BatchStart, end: Position
    ) -> BatchStart:
        """Where the next batch begins if retention gave up records that would be in it."""
        if view.head.trim is None:
            return first
        generation = generations.newest(log, view, end) if self._options.read_compacted else None
        gone = ReadSource(log, view, generation).gone_from(first.position, end)
        if gone is None:
            return first
        begin = places.earliest(view)
        loss = trimmed.loss(view.head, gone, at.records if at is not None and at.position == gone else None)
        instead = "start with a new checkpoint" if at is not None else "begin at earliest"
        self._go_on_without(loss, f"going on from {begin}", instead)
        if self._subscription is not None:
            self._subscription.go_on_from_begin(view.head)
        return replace(first, position=begin, start=begin)

    def _check_lost(self, met: Iterable[LostEntry], log: Log) -> None:
        """Of damaged entries that somebody has given up by name, and that a batch meets."""
        for each in met:
            self._go_on_without(each.loss(log.topic.name), "going around them")

    def _go_on_without(self, loss: DataLoss, how: str, instead: str = "start with a new checkpoint") -> None:
        """Says what was lost: with failOnDataLoss=false in the log, once; otherwise the query fails."""
        if self._options.fail_on_data_loss:
            self._recognised = False  # whoever calls again all the same is told again
            raise DataLoss(
                f"{loss.message}. For this query to go on all the same, set failOnDataLoss=false ({how}), or {instead}",
                loss.code,
            ) from None
        if str(loss) != self._told:  # Spark asks every few milliseconds
            logger.warning("%s; %s, because failOnDataLoss is false", loss, how)
        self._told = str(loss)

    # -- where a batch begins and ends ---------------------------------------------------------------------

    def _next_start(self, at: Offset | None) -> BatchStart | None:
        """Where the next batch begins: where the last one ended, unless a subscription was moved meanwhile."""
        if self._subscription is not None:
            return self._subscription.next_start(at, last_chance=self._target is not None)
        if at is None:
            begin = self._begin()
            return BatchStart(begin, begin)
        return BatchStart(at.position, None, at.revision, at.epoch)

    def _begin(self) -> Position:
        """Where the options say that the query begins. Resolved once: "latest" must not move while the query waits."""
        if self._start is None:
            log = self.log()
            self._start = places.resolve(
                log, self._newest(log), self._options.start, compacted=self._options.read_compacted
            )
        return self._start

    def _ending(self, log: Log, view: View) -> Position | None:
        """Where the options say that the query ends. None for a time that the topic has not reached yet."""
        end = self._options.end
        if self._stop is None and end is not None and (end.publish_ms or 0) <= view.head.last_publish_ms:
            self._stop = places.resolve(log, view, end)
        return self._stop

    def _waits_for_more(self, log: Log, view: View, begin: Position, end: Position) -> bool:
        options = self._options
        if options.min_rows is None or self._target is not None or (self._stop is not None and end == self._stop):
            return False
        now = log.clock.monotonic()
        if self._last_batch_at is None:
            self._last_batch_at = now
        waited = now - self._last_batch_at
        return waited < options.max_delay_s and scan.count(log, view, begin, end) < options.min_rows

    def _schema_change(self, log: Log, view: View, begin: Position, end: Position) -> Position | None:
        """Where in [begin, end) records begin to have columns that the query does not know, if it is to fail then."""
        if not self._fail_on_new_columns:
            return None
        if self._schema_watch is None:
            self._schema_watch = SchemaWatch(log, self._schema.names)
        change = self._schema_watch.first_change(view, begin)
        return change if change is not None and change < end else None

    def _json(self, log: Log, view: View, offset: Offset) -> dict[str, Any]:
        follows = self._subscription
        ids = (follows.cursor_id, offset.reset) if follows is not None else (b"", b"")
        return replace(offset, cursor=ids[0], reset=ids[1]).seen(log, view).to_json()

    # -- compacted reads -----------------------------------------------------------------------------------

    def _compacted(
        self, view: View, end: Position, at: Offset | None, first: BatchStart
    ) -> tuple[Generation | None, Position]:
        """Which generation the next batch reads, and from which position on its tombstones are delivered (the base)."""
        if not self._options.read_compacted:
            return None, EARLIEST
        generation = generations.newest(self.log(), view, end)
        base = _base(generation, at, first)
        self._hold(generation, max(first.position, base))
        return generation, base

    def _hold(self, generation: Generation | None, seen: Position) -> None:
        """Pins the tombstones that this reader may still need. DataLoss if some of them were dropped before."""
        if generation is not None and generation.tombstones_from > seen:
            raise DataLoss(
                f"the query has read up to {seen}, and generation {generation.number} of the compacted topic has "
                f"dropped deletions before {generation.tombstones_from}, which it would miss: start with a new "
                "checkpoint",
                "LEDGER_DELETIONS_DROPPED",
            )
        if self._pin is None:
            self._pin = Pinned(self.log())
        self._pin.move(generation.number if generation else 0, seen)


def _begin_of(first: Offset | None, last: Offset) -> Position:
    """Where the batch between two offsets begins. Under one revision a query only goes forward: from where it was, or
    from what others had acknowledged when it came back."""
    if first is None or first.revision != last.revision:
        assert last.start is not None, f"the offset {last} does not say where its batch begins"
        return last.start
    return max(first.position, last.start or EARLIEST)


def _base(generation: Generation | None, at: Offset | None, first: BatchStart) -> Position:
    """From where on a reader needs tombstones."""
    if at is not None and at.base is not None and first.start is None:
        return at.base  # it goes on
    if generation is None:
        return first.position
    if at is None:  # it begins, and never saw what was deleted before this state
        return max(first.position, generation.horizon)
    if first.start is not None:  # it was moved: it has read before, and was past all deletions that are dropped by now
        return max(first.position, generation.tombstones_from)
    return first.position  # it has read the log up to here
