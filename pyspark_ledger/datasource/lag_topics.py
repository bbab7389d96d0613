"""How far a query is behind now, by a look at its topics: also in seconds and bytes, and by whose subscription."""

from __future__ import annotations

from dataclasses import replace

from pyspark_ledger.base.position import Position
from pyspark_ledger.datasource.lag import QueryLag, TopicLag
from pyspark_ledger.errors import NotFound
from pyspark_ledger.log import scan, trimmed
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import CursorKey, PartKey


class TopicsAtHand:
    """Reads a topic's head, and for a query that is far behind one place of its index: however long the log is. What
    was found stays known for as long as the query stays where it is. For one thread at a time."""

    def __init__(self, namespace: OpenNamespace) -> None:
        self._namespace = namespace
        self._logs: dict[str, Log] = {}  # by UUID
        self._published: dict[tuple[str, int, str], tuple[int, int]] = {}  # the first record that is not read, and when
        self._subscriptions: dict[tuple[str, str], str] = {}

    def measured(self, lag: QueryLag) -> QueryLag:
        return replace(lag, topics=tuple(self._measured(lag.id, each) for each in lag.topics))

    def _measured(self, query: str, lag: TopicLag) -> TopicLag:
        if not lag.topic or not lag.position:
            return lag
        try:
            log = self._log(lag)
            view = log.refresh()
        except NotFound:
            self._logs.pop(lag.uuid, None)
            return lag
        head, read = view.head, lag.read
        if read is None:
            read = scan.records_before(log, view, Position.parse(lag.position))
        # What retention has given up is not there to be read.
        behind = max(0, head.records - max(read, trimmed.records_before_begin(head)))
        return replace(
            lag,
            read=read,
            records=behind,
            bytes=behind * head.bytes // max(1, head.records),
            seconds=self._age_s(log, view, (query, lag.source, lag.uuid), head.records - behind) if behind else 0.0,
            subscription=self._subscription(lag),
        )

    def _log(self, lag: TopicLag) -> Log:
        """Of this very topic: another that has its name now is not what the query reads."""
        if lag.uuid not in self._logs:
            log = self._namespace.log(lag.topic)
            if log.topic.uuid != lag.uuid:
                raise NotFound(f"topic '{lag.topic}' with the id {lag.uuid} was deleted", "LEDGER_TOPIC_DELETED")
            self._logs[lag.uuid] = log
        return self._logs[lag.uuid]

    def _age_s(self, log: Log, view: View, reader: tuple[str, int, str], record: int) -> float:
        """How long ago a record was published, by its number."""
        known = self._published.get(reader)
        if known is None or known[0] != record:
            known = self._published[reader] = record, log.commit_at_ordinal(view, record).publish_ms
        return max(0, log.clock.now_ms() - known[1]) / 1000

    def _subscription(self, lag: TopicLag) -> str:
        """The name, of which the offset has only how the cursor's id begins."""
        key = (lag.uuid, lag.cursor)
        if lag.cursor and key not in self._subscriptions:
            keys = self._namespace.metadata.children(PartKey(lag.uuid, "subscriptions"))
            cursors = self._namespace.metadata.read_many([key for key in keys if isinstance(key, CursorKey)])
            found = [each.record for each in cursors if each is not None]
            named = [each.name for each in found if each.id.hex().startswith(lag.cursor)]
            self._subscriptions[key] = named[0] if len(named) == 1 else ""
        return self._subscriptions.get(key, "")
