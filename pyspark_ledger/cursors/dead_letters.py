"""Dead letters of a consumer: a record that was delivered too often goes to another topic, with the reason.

One transaction appends the letter and acknowledges the record. So a record is never lost, and never two letters,
whatever happens in between: a second try finds it acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa

from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.append.prepared import STAGED_TOO_LONG_AGO
from pyspark_ledger.append.several import Part, Together
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors.acknowledging import OUTDATED, Acknowledging
from pyspark_ledger.cursors.membership import Removed
from pyspark_ledger.cursors.receiving import DONE_ALREADY, Grave, Message, Receiver
from pyspark_ledger.errors import (
    Conflict,
    CursorUnderRevision,
    LedgerError,
    NotFound,
    OutcomeUnknown,
)
from pyspark_ledger.files import dead_letters as letters
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.log import folders, topics
from pyspark_ledger.log.log import FRESH_S, Log
from pyspark_ledger.log.namespace import OpenNamespace

logger = logging.getLogger(__name__)

_PASSING = (Conflict.default_code, STAGED_TOO_LONG_AGO, OUTDATED)


class DeadLetters(Grave):
    """The topic for the letters of one consumer. It is made if it is not there, also later, if somebody deletes it."""

    def __init__(self, namespace: OpenNamespace, topic: str, max_redeliveries: int) -> None:
        self._namespace, self._topic, self._max_redeliveries = namespace, topic, max_redeliveries
        self._kept: Log | None = None
        self._log()  # what is wrong with it is told at once

    @property
    def max_redeliveries(self) -> int:
        return self._max_redeliveries

    def bury(self, consumer: Receiver, messages: Sequence[Message]) -> bool:
        try:
            return self._bury(consumer, messages)
        except LedgerError as error:
            self._kept = None  # a topic that was deleted is made again
            if not _may_pass(error):
                raise
            logger.warning("%s: %d dead letters, not yet stored: %s", consumer._node.what, len(messages), error)
            return False

    def _bury(self, consumer: Receiver, messages: Sequence[Message]) -> bool:
        """What an earlier try, or anybody else, has acknowledged by now is only taken note of."""
        cursor = consumer._node.refresh(sync=True)
        consumer._follower.check_may_change(cursor)
        consumer._check_revision(cursor)
        if (cursor.revision, cursor.epoch) != (consumer._revision, consumer._epoch):
            return False  # what was read before is not delivered any more
        judge = consumer._judge(cursor)
        consumer._note_acknowledged(Runs.of(each.ordinal for each in messages if judge(each.ordinal) == DONE_ALREADY))
        left = [each for each in messages if judge(each.ordinal) != DONE_ALREADY]
        if left:
            self._store(consumer, left)
        return True

    def _store(self, consumer: Receiver, messages: Sequence[Message]) -> None:
        log, here = self._log(), self._namespace
        folders.prepare(log)
        entry = stage_entry(
            log.storage, log.topic.uuid, log.gc_epoch(FRESH_S), [self._letters(consumer, messages)], "lz4", log.clock
        )
        part = Part(log, StagedBatch(log.clock.new_id(), (entry,), letters.SCHEMA))
        beside = [Acknowledging(consumer, messages)]
        Together(here.metadata, here.limits, here.clock, [part], beside, what="storing dead letters").append()
        logger.warning("%s: %d records were delivered too often, and are in topic '%s' now", consumer._node.what,
                       len(messages), self._topic)  # fmt: skip

    def _letters(self, consumer: Receiver, messages: Sequence[Message]) -> pa.RecordBatch:
        topic, subscription = consumer._log.topic.name, consumer._node.name
        rows = letters.as_json((each.value for each in messages), consumer._schema)
        found = []
        for message, row in zip(messages, rows, strict=True):
            deliveries = consumer._deliveries(message.ordinal)
            how_often = "once" if deliveries == 1 else f"{deliveries} times"
            reason = f"delivered {how_often} to subscription '{subscription}', and not acknowledged"
            where = {"topic": topic, "subscription": subscription, "position": str(message.position)}
            found.append({"reason": reason, "record": row, "deliveries": deliveries, **where})
        return letters.made_of(found, self._namespace.clock.now_ms())

    def _log(self) -> Log:
        if self._kept is None:
            here = self._namespace
            here.metadata.sync()
            if topics.find_topic(here.metadata, self._topic) is None:
                here.ensure_topic(self._topic, letters.SCHEMA)
            log = here.log(self._topic)
            letters.check_schema(log.schema(log.view().head.schema_id), self._topic)
            self._kept = log
        return self._kept


def _may_pass(error: LedgerError) -> bool:
    """Whether trying again helps, without anybody doing anything about it."""
    if isinstance(error, Conflict):
        return error.code in _PASSING
    return isinstance(error, OutcomeUnknown | CursorUnderRevision | NotFound | Removed)
