"""Plans the micro-batches of a stream, on the driver: puts together what its topics have, and what Spark keeps of it.

Spark knows one offset, a document with a part for each topic. A topic that has nothing new keeps its part as it was. So
does one that was taken out of the list: if it comes back, the query goes on there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.types import StructType

from pyspark_ledger.datasource import offsets
from pyspark_ledger.datasource.executor.reading import LedgerPartition
from pyspark_ledger.datasource.fairness import fair_shares
from pyspark_ledger.datasource.goodbye import on_sigterm
from pyspark_ledger.datasource.offsets import INITIAL
from pyspark_ledger.datasource.options import ReadOptions, TopicRange
from pyspark_ledger.datasource.planning import TopicRead, share_out
from pyspark_ledger.datasource.read_schema import check_asked_schema
from pyspark_ledger.datasource.topic_planner import Outlook, Share, TopicPlanner
from pyspark_ledger.errors import InvalidInput, NotFound

logger = logging.getLogger(__name__)

_TOPIC_IS_GONE = ("LEDGER_TOPIC_DELETED", "LEDGER_TOPIC_NOT_FOUND", "LEDGER_TOPIC_RECREATED")


class StreamPlanner:
    """One for each query, for as long as it runs."""

    def __init__(self, options: ReadOptions, schema: StructType, fail_on_new_columns: bool = False) -> None:
        self._options, self._schema = options, schema
        self.topics = [TopicPlanner(options, topic, schema, fail_on_new_columns) for topic in options.topics]
        self._left: dict[str, TopicPlanner] = {}  # topics of a batch from before they were taken out of the list
        self._turn = 0  # whose it is to get what the limits leave over, and a row whatever they say
        self._last_batch_at: float | None = None
        self._is_open = False
        self._has_planned = False  # else a batch that Spark asks for was planned before this process was there
        self._restore_signal: Callable[[], None] = lambda: None

    # -- what Spark asks -----------------------------------------------------------------------------------

    def fix_target(self) -> None:
        for topic in self._open():
            topic.fix_target()

    def initial_offset(self) -> dict[str, Any]:
        for topic in self._open():
            topic.begin()
        return INITIAL

    def latest_offset(self, start: dict[str, Any], *, everything: bool) -> dict[str, Any]:
        """Where the batch ends that begins at ``start``; ``start`` itself if there is nothing new."""
        self._has_planned = True
        topics, parts = self._open(), self._parts(start)
        outlooks = [topic.look(_named(parts, topic.name)) for topic in topics]
        planned = dict(parts)
        if everything or not self._waits_for_more(outlooks):
            planned |= self._plan(outlooks, everything=everything)
        for topic, outlook in zip(topics, outlooks, strict=True):
            if planned.get(topic.name) is parts.get(topic.name) and outlook.stays is not None:
                planned[topic.name] = topic.part(outlook, outlook.stays)
        if all(planned[name] is part for name, part in parts.items()) and len(planned) == len(parts):
            return start
        return self._document(planned, outlooks)

    def topic_end(self) -> dict[str, Any]:
        return offsets.document({topic.name: topic.end() for topic in self._open()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[LedgerPartition]:
        """Topic after topic: within one the order is kept."""
        listed = {topic.name: topic for topic in self._open()}
        before, after = self._parts(start), self._parts(end)
        self._tell_replay(before, after)
        reads = []
        for name, part in after.items():
            if name in listed:
                reads.append(listed[name].read(_named(before, name), (name, part)))
            elif before.get(name) != part:
                reads.append(self._read_left(name, _named(before, name), part))
        return share_out([read for read in reads if read is not None], self._options.min_partitions)

    def _tell_replay(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        for name, part in after.items():
            if not self._has_planned and before.get(name) != part:
                logger.warning(
                    "topic=%s: the batch that ends at %s was not finished when the query ended, and is read again",
                    name, part.get("pos"),
                )  # fmt: skip
        self._has_planned = True

    def commit(self, end: dict[str, Any]) -> None:
        topics, parts = self._open(), self._parts(end)
        for topic in topics:
            if (done := _named(parts, topic.name)) is not None:
                topic.commit(done)

    def stop(self) -> None:
        self._restore_signal()
        for topic in (*self.topics, *self._left.values()):
            topic.stop()
        self._is_open, self._left = False, {}

    # -- its topics ----------------------------------------------------------------------------------------

    def _open(self) -> list[TopicPlanner]:
        """Opened when they are first asked for. Nothing is followed before all of them were found to be right."""
        if not self._is_open:
            check_asked_schema([topic.log() for topic in self.topics], self._schema, self._options)
            if self._options.subscription:
                self._restore_signal()
                self._restore_signal = on_sigterm(self._leave)
            self._follow()
            self._is_open = True
        return self.topics

    def _follow(self) -> None:
        """Becomes the owner of all subscriptions, or of none."""
        try:
            for topic in self.topics:
                topic.follow()
        except BaseException:
            self.stop()
            raise

    def _leave(self) -> None:
        for topic in self.topics:
            topic.leave()

    def _read_left(self, name: str, before: tuple[str, Any] | None, part: Any) -> TopicRead | None:
        """A batch that Spark has logged is read as it was planned, also what it has of a topic that is no longer in the
        list. Nobody is attached to its subscription for that."""
        if name not in self._left:
            self._left[name] = TopicPlanner(self._options, TopicRange(name), self._schema, follows=False)
        try:
            return self._left[name].read(before, (name, part))
        except (NotFound, InvalidInput) as error:
            if error.code not in _TOPIC_IS_GONE:
                raise
        lost = f"the batch was planned with records of topic '{name}', which has left 'topics' and was deleted since"
        if self._options.fail_on_data_loss:
            raise NotFound(
                f"{lost}. To go on without these records, set failOnDataLoss=false, or start with a new checkpoint",
                "LEDGER_TOPIC_DELETED",
            )
        logger.warning("%s; going on without them, because failOnDataLoss is false", lost)
        return None

    # -- documents -----------------------------------------------------------------------------------------

    def _parts(self, document: dict[str, Any]) -> dict[str, Any]:
        """What a document says of each topic, by name. An error by name if it knows none of those that are read: then
        it is the checkpoint of another query."""
        if offsets.is_initial(document):
            return {}
        parts = offsets.parts(document)
        if "" in parts:  # of version 1, which had one topic, and no name
            topic = next((each for each in self.topics if each.log().topic.uuid == parts[""]["id"]), self.topics[0])
            return {topic.name: parts[""]}
        if not any(topic.name in parts for topic in self.topics):
            offsets.parse(*next(iter(parts.items())), self.topics[0].log().topic)
        return parts

    def _document(self, parts: dict[str, Any], outlooks: list[Outlook]) -> dict[str, Any]:
        for topic, outlook in zip(self.topics, outlooks, strict=True):
            if "records" not in parts[topic.name]:  # of version 1, and this topic has nothing new
                assert outlook.at is not None
                parts[topic.name] = topic.part(outlook, outlook.at)
        return offsets.document(parts)

    # -- limits --------------------------------------------------------------------------------------------

    def _plan(self, outlooks: list[Outlook], *, everything: bool) -> dict[str, Any]:
        """What the documents say of the topics that have records in the next batch."""
        count = len(self.topics)
        order = [number % count for number in range(self._turn, self._turn + count)]
        order = [number for number in order if outlooks[number].first is not None]
        shares = self._shares([outlooks[number] for number in order]) if not everything else [Share()] * len(order)
        planned: dict[str, Any] = {}
        for number, share in zip(order, shares, strict=True):
            topic, outlook = self.topics[number], outlooks[number]
            end = None if 0 in (share.rows, share.bytes) else topic.plan(outlook, replace(share, must=not planned))
            if end is not None:
                planned[topic.name] = topic.part(outlook, end)
                self._turn = number + 1
        if planned:
            self._last_batch_at = outlooks[0].log.clock.monotonic()
        return planned

    def _shares(self, outlooks: list[Outlook]) -> list[Share]:
        """What each topic may have of the limits."""
        rows, size = self._options.max_rows, self._options.max_bytes
        if len(outlooks) < 2:
            return [Share(rows, size)] * len(outlooks)
        none: list[int | None] = [None] * len(outlooks)
        by_rows = none if rows is None else fair_shares(rows, [outlook.rows for outlook in outlooks])
        by_size = none if size is None else fair_shares(size, [outlook.bytes for outlook in outlooks])
        return list(map(Share, by_rows, by_size))

    def _waits_for_more(self, outlooks: list[Outlook]) -> bool:
        """Whether the batch is to wait until it has minRowsPerTrigger rows."""
        options = self._options
        found = [pair for pair in zip(self.topics, outlooks, strict=True) if pair[1].first is not None]
        if options.min_rows is None or not found or any(outlook.change is not None for _, outlook in found):
            return False
        if all(topic.is_bounded(outlook) for topic, outlook in found):
            return False
        now = outlooks[0].log.clock.monotonic()
        if self._last_batch_at is None:
            self._last_batch_at = now
        waited = now - self._last_batch_at
        return waited < options.max_delay_s and sum(outlook.rows for _, outlook in found) < options.min_rows


def _named(parts: dict[str, Any], name: str) -> tuple[str, Any] | None:
    return (name, parts[name]) if name in parts else None
