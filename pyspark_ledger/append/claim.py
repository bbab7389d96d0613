"""The claim of a batch that goes to several topics: one node for each query, and not one in each topic.

A claim in each topic would not do: a replay may route its rows elsewhere, by changed code or a changed lookup table, to
topics that know nothing of the batch; and a topic that was deleted and made again knows nothing either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark_ledger.append.several import Beside
from pyspark_ledger.base.clock import Clock
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.dedup.batch_ids import BatchId, is_replay, runs_before
from pyspark_ledger.errors import Conflict, OutcomeUnknown
from pyspark_ledger.metadata.port import Create, Metadata, Op, Put, SinkKey, Versioned
from pyspark_ledger.metadata.records import ProducerState, Sink


class BatchClaim(Beside):
    """Claims a batch for the query, or the batch job, that ``key`` stands for.

    ``rows`` is how many it has; ``skipped``: tasks took it for a replay and wrote nothing. ``earlier`` finds what the
    query has written last before it had a claim, to a single topic."""

    def __init__(
        self,
        metadata: Metadata,
        limits: Limits,
        clock: Clock,
        key: SinkKey,
        producer: str,
        id: BatchId,
        rows: int,
        *,
        skipped: bool = False,
        earlier: Callable[[], ProducerState | None] = lambda: None,
    ) -> None:
        self._metadata, self._limits, self._key, self._producer = metadata, limits, key, producer
        self._id, self._rows, self._skipped, self._earlier = id, rows, skipped, earlier
        self._transaction = clock.new_id()
        self._found: Versioned[Sink] | None = metadata.read(key)

    def begin(self) -> bool:
        state = self._state()
        if is_replay(state, self._id, self._rows, ""):
            return False
        if self._skipped:
            raise Conflict(
                f"what '{self._producer}' has written was forgotten while its batch {self._id.sequence} was replayed: "
                "run the batch again",
                "LEDGER_RETRY",
            )
        return True

    def _state(self) -> ProducerState | None:
        sink = self._found.record if self._found is not None else Sink()
        return self._earlier() if sink.sequence is None else state_of(sink, self._producer)

    def ops(self) -> Sequence[Op]:
        before, id = self._state(), self._id
        past = () if before is None else runs_before(before.run, before.past_runs, id.run, self._limits.past_runs)
        after = Sink(id.sequence, id.query, id.run, past, id.digest, self._rows, self._transaction)
        return [Create(self._key, after) if self._found is None else Put(self._key, after, self._found.version)]

    def refresh(self) -> None:
        self._metadata.sync()
        self._found = self._metadata.read(self._key)

    def look(self) -> bool | None:
        """The node is in no topic, so it can tell whatever became of those."""
        self._metadata.sync()
        now = self._metadata.read(self._key)
        if now is not None and now.record.transaction == self._transaction:
            return True
        if (None if now is None else now.version) == (None if self._found is None else self._found.version):
            return None
        if now is None or (self._found is not None and now.version < self._found.version):
            raise OutcomeUnknown("what is known of the query was removed meanwhile")
        return False


def state_of(sink: Sink, producer: str) -> ProducerState:
    """A claim in the form in which a topic remembers its producers."""
    assert sink.sequence is not None
    return ProducerState(producer, sink.sequence, sink.query, sink.run, sink.past_runs, sink.digest, sink.records, 0)
