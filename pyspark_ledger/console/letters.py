"""Which topics are for dead letters, and how many wait there."""

from __future__ import annotations

import contextlib
from typing import Any

from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.console.reader import NamespaceReader
from pyspark_ledger.console.state import TopicState
from pyspark_ledger.errors import InvalidInput, LedgerError
from pyspark_ledger.files import dead_letters
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace

_LOOK_S = 0.5


class Letters:
    def __init__(self, namespace: OpenNamespace, reader: NamespaceReader) -> None:
        self._namespace, self._reader = namespace, reader
        self._known: dict[tuple[str, int], bool] = {}  # by the topic's UUID and its schema

    def are_in(self, log: Log, schema_id: int) -> bool:
        """Whether a topic is for dead letters: its columns say so."""
        key = log.topic.uuid, schema_id
        if key not in self._known:
            try:
                dead_letters.check_schema(log.schema(schema_id), log.topic.name)
                self._known[key] = True
            except InvalidInput:
                self._known[key] = False
        return self._known[key]

    def topics(self) -> list[dict[str, Any]]:
        """The topics for dead letters. Where there are thousands of topics it takes some looks until all are known."""
        deadline, rows = Deadline(self._namespace.clock, _LOOK_S), []
        for topic in self._reader.snapshot().topics.values():
            known = self._known.get((topic.seen.uuid, topic.head.schema_id))
            if known is None and not deadline.passed:
                with contextlib.suppress(LedgerError):  # it is told when the topic's own page is asked for
                    known = self.are_in(self._namespace.log_of(topic.seen.topic), topic.head.schema_id)
            if known:
                rows.append({"topic": topic.name, "waiting": self.waiting(topic)})
        return rows

    def waiting(self, topic: TopicState) -> int:
        """Those that 'deadletters replay' has not brought back."""
        replay = next((each.behind for each in topic.subscriptions if each.name == "replay"), None)
        return topic.kept[0] if replay is None else replay
