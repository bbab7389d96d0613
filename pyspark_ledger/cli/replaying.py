"""Dead letters are read, judged and brought back: what ``deadletters list`` and ``deadletters replay`` do.

A subscription of the letters' topic knows which of them were brought back: one transaction appends the records of a
page and acknowledges their letters. So a command that is killed, and run again, brings each of them back once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark_ledger.append.prepared import check_not_terminated
from pyspark_ledger.append.record_check import RecordCheck
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.describe.jsonlines import Decoder
from pyspark_ledger.describe.rows import Row
from pyspark_ledger.errors import InvalidInput, LedgerError, NotFound
from pyspark_ledger.files import dead_letters

if TYPE_CHECKING:
    from pyspark_ledger.client import LedgerClient
    from pyspark_ledger.cursors.receiving import Message
    from pyspark_ledger.log.log import Log
    from pyspark_ledger.log.namespace import OpenNamespace
    from pyspark_ledger.log.reader import Record

SUBSCRIPTION = "replay"
_PAGE = 500  # letters that are brought back together


def open_letters(namespace: OpenNamespace, topic: str) -> Log:
    log = namespace.log(topic)
    dead_letters.check_schema(log.schema(log.view().head.schema_id), topic)
    return log


def letters(client: LedgerClient, log: Log) -> Iterator[tuple[Record, bool]]:
    """All letters, oldest first, and whether each was brought back."""
    done = _replayed(log)
    for record in client.reader(log.topic.name, end="latest"):
        yield record, record.ordinal is not None and record.ordinal in done


def _replayed(log: Log) -> Runs:
    node = CursorNode(log, SUBSCRIPTION)
    try:
        cursor = node.refresh(sync=True)
    except NotFound as missing:
        if missing.code != "LEDGER_CURSOR_NOT_FOUND":
            raise
        return Runs()
    return node.acks(cursor) | ((0, cursor.ordinal),)


class Targets:
    """The topics that letters go to: the one that each names, or one for all."""

    def __init__(self, namespace: OpenNamespace, source: str, to: str | None) -> None:
        self._namespace, self._source, self._to = namespace, source, to
        self._known: dict[str, tuple[Decoder, RecordCheck] | LedgerError] = {}
        if to is not None:
            self._fitting(to)

    def take(self, letter: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The topic that a letter goes to, and its record. Raises InvalidInput or NotFound if it cannot go there."""
        name = self._to if self._to is not None else letter["topic"]
        if not name:
            raise InvalidInput("it names no topic: say with --to where it goes")
        decoder, check = self._fitting(name)
        return name, check.take(decoder.line(letter["record"]))[0]

    def _fitting(self, name: str) -> tuple[Decoder, RecordCheck]:
        if name not in self._known:
            try:
                self._known[name] = self._opened(name)
            except (InvalidInput, NotFound) as error:
                self._known[name] = error
        found = self._known[name]
        if isinstance(found, LedgerError):
            raise found
        return found

    def _opened(self, name: str) -> tuple[Decoder, RecordCheck]:
        if name == self._source:
            raise InvalidInput(f"'{name}' is the topic of these letters: they cannot go there")
        log = self._namespace.log(name)
        head = log.view().head
        check_not_terminated(head)
        schema = log.schema(head.schema_id)
        return Decoder(schema), RecordCheck(schema, name)


@dataclass
class Outcome:
    """What became of letters, or would."""

    replayed: dict[str, int] = field(default_factory=dict)  # topic -> how many
    left: list[Row] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.replayed.values())

    def count(self, topic: str, letters: int = 1) -> None:
        self.replayed[topic] = self.replayed.get(topic, 0) + letters

    def leave(self, letter: Record, why: LedgerError) -> None:
        self.left.append({"letter": letter.position, "topic": letter["topic"], "why": str(why)})


def rehearse(client: LedgerClient, log: Log, targets: Targets) -> Outcome:
    """What a replay would do now."""
    outcome = Outcome()
    for letter, is_done in letters(client, log):
        if not is_done:
            try:
                outcome.count(targets.take(letter.value)[0])
            except (InvalidInput, NotFound) as why:
                outcome.leave(letter, why)
    return outcome


def replay(client: LedgerClient, log: Log, targets: Targets) -> Outcome:
    outcome = Outcome()
    try:
        with client.consumer(log.topic.name, SUBSCRIPTION) as consumer:
            while page := list(islice(iter(lambda: consumer.receive(0.0), None), _PAGE)):
                found_topics = iter(_by_topic(page, targets, outcome).items())
                while some := list(islice(found_topics, log.limits.topics_together)):
                    with client.transaction() as t:
                        for topic, found in some:
                            t.append(topic, [record for record, _ in found])
                            t.acknowledge(consumer, [letter for _, letter in found])
                    for topic, found in some:
                        outcome.count(topic, len(found))
    except LedgerError as error:
        told = f"{outcome.total:,} letters were replayed before, and the same command again goes on with the others"
        raise LedgerError(f"{error.message}. {told}", error.code) from error
    return outcome


def _by_topic(
    page: list[Message], targets: Targets, outcome: Outcome
) -> dict[str, list[tuple[dict[str, Any], Message]]]:
    """Those that cannot be brought back stay as they are: a later replay looks at them again."""
    found: dict[str, list[tuple[dict[str, Any], Message]]] = {}
    for letter in page:
        try:
            topic, record = targets.take(letter.value)
            found.setdefault(topic, []).append((record, letter))
        except (InvalidInput, NotFound) as why:
            outcome.leave(letter, why)
    return found
