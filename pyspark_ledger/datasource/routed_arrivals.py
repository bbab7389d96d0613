"""What tasks have staged for topics that they did not know, or that do not exist, is brought to its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from pyspark_ledger.append.prepared import check_epochs
from pyspark_ledger.datasource.executor.routing import RoutedPlan
from pyspark_ledger.datasource.executor.staging import StagedPart
from pyspark_ledger.datasource.options import WriteOptions
from pyspark_ledger.datasource.routed_plan import staging_log, target_of
from pyspark_ledger.datasource.write_plan import known_log, make_topic, open_log
from pyspark_ledger.errors import InvalidInput, NotFound
from pyspark_ledger.files import dead_letters as letters
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import EntryReader, stage_rows
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.log import folders, topics
from pyspark_ledger.log.log import FRESH_S, Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.log.sinks import gone_meanwhile
from pyspark_ledger.metadata.records import Entry


class MayNotMake(NotFound):
    """Rows name a topic that does not exist, and that a write may not make."""


class Arrivals:
    """The topics that one batch goes to. ``query`` is empty for a batch job, ``batch`` None."""

    def __init__(
        self, namespace: OpenNamespace, options: WriteOptions, plan: RoutedPlan, query: str, batch: int | None
    ) -> None:
        self._namespace, self._options, self._plan, self._query, self._batch = namespace, options, plan, query, batch
        self._staging = staging_log(namespace)

    # -- topics --------------------------------------------------------------------------------------------

    def log(self, name: str, staged_for: set[str]) -> Log:
        """The topic of this name, which is made if it does not exist and may be. ``staged_for``: in whose folders its
        files are. Before anything is appended, the query's node notes which topic it is.

        :raises MayNotMake: it does not exist, and may not be made.
        """
        namespace, known = self._namespace, staged_for - {self._staging.topic.uuid}
        log = known_log(namespace, name, FRESH_S)
        if log is not None and log.storage.uri != self._plan.storage.uri:
            namespace.metadata.sync()
            log = known_log(namespace, name, 0)
        if log is None or (known and log.topic.uuid not in known):
            namespace.metadata.sync()
            log = None
        topic = topics.find_topic(namespace.metadata, name) if log is None else log.topic
        namespace.sinks.check(self._query, name, topic)
        if topic is None:
            if known:
                raise gone_meanwhile(name, recreated=False)
            self._check_may_make(name)
            make_topic(namespace, name, self._plan.staging.target, self._options)
        log = log or open_log(namespace, name)
        if known - {log.topic.uuid}:
            raise gone_meanwhile(name, recreated=True)
        if self._query:
            namespace.sinks.remember(self._query, log.topic)
        return log

    def _check_may_make(self, name: str) -> None:
        """That a row names a topic is no express wish to have it made again after it was deleted."""
        options = self._options
        if options.create_topic is False:
            raise MayNotMake(
                f"there is no topic '{name}' in this namespace, and option 'createTopic' is false",
                "LEDGER_TOPIC_NOT_FOUND",
            )
        if options.create_topic is None and topics.find_deleted(self._namespace.metadata, name) is not None:
            raise MayNotMake(
                f"topic '{name}' was deleted, and a write does not make it again unasked: make it with "
                f"'pyspark-ledger topics create {name}', or set the option createTopic=true",
                "LEDGER_TOPIC_DELETED",
            )

    def target(self, log: Log) -> pa.Schema:
        try:
            return target_of(log, self._options, self._plan.staging.target)
        except InvalidInput as wrong:
            raise InvalidInput(f"topic '{log.topic.name}': {wrong.message}", wrong.code) from None

    # -- files ---------------------------------------------------------------------------------------------

    def files(self, part: StagedPart) -> TopicFiles:
        """Where a part's summary is, if it is long."""
        return TopicFiles(self._staging.storage, part.uuid, self._staging.clock)

    def brought(self, log: Log, part: StagedPart, target: pa.Schema) -> Entry:
        """The part as an entry of this topic: as it is, or copied there."""
        if part.uuid == log.topic.uuid:
            return part.entry
        epoch = log.gc_epoch(FRESH_S)
        folders.prepare(log)
        rows = (schemas.conform(batch, target) for batch in self._rows(part))
        return stage_rows(log.storage, log.topic.uuid, epoch, target, rows, self._plan.compression, log.clock)

    def buried(self, parts: Sequence[StagedPart], refusal: MayNotMake) -> list[StagedPart]:
        """What was staged for a topic that may not be made, as dead letters."""
        dead = self._plan.dead_letters
        assert dead is not None
        namespace, storage = self._namespace, self._staging.storage
        now_ms, found = namespace.clock.now_ms(), []
        for part in parts:
            rows = (
                letters.letters(batch, refusal.message, part.topic, self._query, self._batch, now_ms)
                for batch in self._rows(part)
            )
            entry = stage_rows(
                storage, dead.uuid, dead.epoch, dead.target, rows, self._plan.compression, namespace.clock
            )
            found.append(StagedPart(dead.name, dead.uuid, entry))
        return found

    def _rows(self, part: StagedPart) -> Iterator[pa.RecordBatch]:
        head = self._staging.view().head
        check_epochs(self._staging, head, [part.entry.file])
        reader = EntryReader(self._staging.storage, part.uuid, part.entry.file)
        return (batch for _, batch in reader.batches(0, part.entry.records))
