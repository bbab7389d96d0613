"""Which topic a Spark query writes to. A query never goes on in a topic that was made since under the same name, and
never makes its topic again: what it had written there is gone, and nobody would notice.

The query's first commit to a topic writes the topic's UUID into a node, before anything is appended, and also if the
batch is empty: a query that has run on a topic counts on it. The node stays when the topic is deleted.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from pyspark_ledger.base.clock import Clock
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.names import forget_command, spark_producer
from pyspark_ledger.errors import Conflict, LedgerError, NotFound, OutcomeUnknown
from pyspark_ledger.metadata.port import (
    Check,
    Create,
    Delete,
    Metadata,
    Op,
    Put,
    SinkKey,
    SinkTopicKey,
    TopicKey,
    TransactionLost,
    Versioned,
)
from pyspark_ledger.metadata.records import Sink, SinkTopic, Topic
from pyspark_ledger.metadata.transactions import PlainNode, Transactions

_KEPT = 1_000  # entries in memory: a driver that lives for months starts many queries


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a node held, when that was, and over which connection: a rollback of ZooKeeper may have undone it since."""

    uuid: str
    at: float
    connection: int


def job_key(producer: str) -> SinkKey:
    """For a batch job that has no query, and numbers its batches under a producer's name: no query's id has a space."""
    return SinkKey(f"producer {producer}")


class Sinks:
    """The queries that write into a namespace, as one process knows them. A node is read once, and again every day."""

    def __init__(self, metadata: Metadata, limits: Limits, clock: Clock) -> None:
        self._metadata, self._limits, self._clock = metadata, limits, clock
        self._transactions = Transactions(metadata, limits, clock)
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._claims: dict[tuple[str, str], bool] = {}

    def check(self, query: str, name: str, topic: Topic | None) -> None:
        """Raises if the query writes to another topic than the one that has this name now (None: none has it). A query
        that is not known (empty) is not checked."""
        now = topic.uuid if topic is not None else ""
        if not query or self.remembers(query, name, now):
            return
        found = self._look(query, name)
        if found is None:
            return
        if found.record.uuid != now:
            raise _another(query, name, found.record.uuid, now)
        if not self._keep_young(SinkTopicKey(query, name), found):
            self._seen.pop((query, name), None)

    def remembers(self, query: str, name: str, uuid: str) -> bool:
        """Whether this process has seen not long ago that the query writes to this topic."""
        seen = self._seen.get((query, name))
        return (
            seen is not None
            and seen.uuid == uuid
            and seen.connection == self._metadata.connections
            and self._clock.monotonic() - seen.at < self._limits.sink_look_ms / 1000
        )

    def remember(self, query: str, topic: Topic) -> None:
        """Before the query's records are appended to the topic: notes it, or sees that it is the one noted before."""
        if self.remembers(query, topic.name, topic.uuid):
            return
        for _ in range(self._limits.change_attempts):
            found = self._look(query, topic.name)
            if found is None:
                done = self._make(query, topic)
            elif found.record.uuid != topic.uuid:
                raise _another(query, topic.name, found.record.uuid, topic.uuid)
            else:
                done = self._keep_young(SinkTopicKey(query, topic.name), found)
            if done:
                self._note(query, topic.name, topic.uuid)
                return
        raise Conflict(f"query {query}: others change its node for topic '{topic.name}' all the time; try again")

    def uuid_of(self, query: str, name: str) -> str:
        """The topic that the query writes to under this name; empty if it has not."""
        found = self._look(query, name) if query else None
        return found.record.uuid if found is not None else ""

    def forget(self, query: str, name: str) -> bool:
        """The query may go on in whatever topic has the name next. False if there was nothing to forget."""
        key = SinkTopicKey(query, name)
        if self._look(query, name) is None:
            return False

        def look() -> bool | None:
            return True if self._look(query, name) is None else None

        self._transactions.carry_out([Delete(key)], look, f"forgetting the sink of query {query}")
        self._seen.pop((query, name), None)
        found = self._metadata.read(SinkKey(query))
        if found is not None and found.record.sequence is None:
            with contextlib.suppress(TransactionLost, OutcomeUnknown):  # it may write to other topics
                self._metadata.transact([Delete(SinkKey(query), found.version)])
        return True

    # -- batches that go to several topics at once ---------------------------------------------------------

    def claimed(self, key: SinkKey) -> Sink | None:
        """The last batch that was claimed by this query or batch job; None if it has claimed none."""
        found = self._metadata.read(key)
        return None if found is None or found.record.sequence is None else found.record

    def writes_claims(self, query: str, run: str) -> bool:
        """Whether the query's batches are claimed in its own node: then all of them are, whatever it writes to now. One
        synced look for each of its runs; within a run a sink does not change its kind."""
        if not query:
            return False
        if (query, run) not in self._claims:
            self._metadata.sync()
            if len(self._claims) >= _KEPT:
                self._claims.clear()
            self._claims[query, run] = self.claimed(SinkKey(query)) is not None
        return self._claims[query, run]

    def forget_claim(self, producer: str) -> bool:
        """Lets a batch job's name go: what it writes next is new. False if it has claimed nothing. The node stays, so
        that its versions go on: a late claim of somebody else is refused."""
        key = job_key(producer)

        def empty(sink: Sink) -> Sink | None:
            return None if sink.sequence is None else Sink()

        self._metadata.sync()
        if self.claimed(key) is None:
            return False
        node = PlainNode(self._metadata, key, lambda: NotFound(f"'{producer}' has claimed nothing"))
        with contextlib.suppress(NotFound):
            self._transactions.change(node, empty, f"forgetting what '{producer}' has written")
        return True

    def topics_of(self, query: str) -> list[str]:
        """The names of the topics that the query is known to write to."""
        return [key.topic for key in self._metadata.children(SinkKey(query)) if isinstance(key, SinkTopicKey)]

    def _look(self, query: str, name: str) -> Versioned[SinkTopic] | None:
        """The newest state: every answer may lead to a refusal."""
        self._metadata.sync()
        found = self._metadata.read(SinkTopicKey(query, name))
        if found is not None:
            self._note(query, name, found.record.uuid)
        return found

    def _note(self, query: str, name: str, uuid: str) -> None:
        if len(self._seen) >= _KEPT:
            self._seen.clear()
        self._seen[query, name] = _Seen(uuid, self._clock.monotonic(), self._metadata.connections)

    def _make(self, query: str, topic: Topic) -> bool:
        """False if somebody else was faster, and has made the node or deleted the topic."""
        name = self._metadata.read(TopicKey(topic.name))
        if name is None or name.record.uuid != topic.uuid:
            raise gone_meanwhile(topic.name, recreated=name is not None)
        what = f"noting that query {query} writes to topic '{topic.name}'"
        self._transactions.make(SinkKey(query), Sink(), what)
        key = SinkTopicKey(query, topic.name)
        ops: list[Op] = [Check(TopicKey(topic.name), name.version), Create(key, SinkTopic(topic.uuid))]

        def look() -> bool | None:
            found = self._look(query, topic.name)
            return None if found is None else found.record.uuid == topic.uuid

        return self._transactions.carry_out(ops, look, what)

    def _keep_young(self, key: SinkTopicKey, found: Versioned[SinkTopic]) -> bool:
        """Writes a node anew that is older than a day: who removes those that nobody uses goes by their time."""
        if self._metadata.now_ms() - found.modified_ms < self._limits.sink_look_ms:
            return True
        try:
            self._metadata.transact([Put(key, found.record, found.version)])
        except TransactionLost:
            return False
        except OutcomeUnknown:
            return True  # there is time enough to try again tomorrow
        return True


def _another(query: str, name: str, was: str, now: str) -> LedgerError:
    way_on = (
        "Start the query with a new checkpoint. Or let it go on where it is, without what it has written before: "
        f"'{forget_command(name, spark_producer(query))}'"
    )
    if not now:
        return NotFound(
            f"topic '{name}' ({was}), which query {query} writes to, was deleted, and the query does not make it "
            f"again. {way_on}",
            "LEDGER_TOPIC_DELETED",
        )
    return Conflict(
        f"topic '{name}' ({was}), which query {query} writes to, was deleted, and the topic of that name is another "
        f"one now ({now}). {way_on}",
        "LEDGER_TOPIC_RECREATED",
    )


def gone_meanwhile(name: str, *, recreated: bool) -> LedgerError:
    """For a batch that was planned for a topic which is not there any more."""
    if recreated:
        return Conflict(
            f"topic '{name}' was deleted and recreated while the batch was written: run it again",
            "LEDGER_TOPIC_RECREATED",
        )
    return NotFound(f"topic '{name}' was deleted while the batch was written", "LEDGER_TOPIC_DELETED")
