"""Deduplication by sequence id (PIP-6): who wrote what last, and what that says about the next batch.

There is one truth: the snapshot attached to the dedup cursor's mark-delete position, plus what the commits
after it add.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from pyspark_ledger.errors import Conflict, Fenced
from pyspark_ledger.files import TopicFiles
from pyspark_ledger.limits import Limits
from pyspark_ledger.position import Position
from pyspark_ledger.records import Commit, DedupSnapshot, ProducerState

_PRODUCERS = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("query", pa.string()),
        pa.field("run", pa.string()),
        pa.field("past_runs", pa.list_(pa.string())),
        pa.field("digest", pa.binary()),
        pa.field("records", pa.int64()),
        pa.field("publish_ms", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a writer says of the batch it brings."""

    producer: str
    sequence: int
    query: str = ""
    run: str = ""
    digest: bytes = b""  # empty: the offset log could not be read


class Verdict(Enum):
    NEW = "new"
    REPLAY = "replay"


def judge(state: ProducerState | None, claim: Claim, records: int | None, topic: str) -> Verdict:
    """Is this batch new, or the last one again? Anything else is an error that says what to do: dropping
    it silently would lose data, taking it would double it.

    ``records`` is None when the writer did not count because the digests agree.
    """
    if state is None:
        return Verdict.NEW
    if claim.query != state.query:
        raise Conflict(
            f"producer '{claim.producer}' of topic '{topic}' belongs to {_query(state.query)} (last sequence id "
            f"{state.sequence}), and {_query(claim.query)} now writes with it. If that is the same job with a new "
            f"checkpoint, its batch ids started again and cannot be told from old ones: choose another producerName, "
            f"or let the old one go with client.forget_producer('{topic}', '{claim.producer}')",
            "LEDGER_PRODUCER_OWNED",
        )
    if claim.run and claim.run in state.past_runs:
        raise Fenced(
            f"run {claim.run} of {_query(claim.query)} was replaced by run {state.run}, which has written sequence id "
            f"{state.sequence} to topic '{topic}': this one must stop; nothing was changed",
            "LEDGER_PRODUCER_FENCED",
        )
    if claim.sequence > state.sequence:
        return Verdict.NEW
    if claim.sequence < state.sequence:
        raise Conflict(
            f"producer '{claim.producer}' has written sequence id {state.sequence} to topic '{topic}' and now brings "
            f"{claim.sequence}: an older copy of the checkpoint was restored, or another job uses the name. Restore "
            f"the newest checkpoint, or start with a new checkpoint and another producerName",
            "LEDGER_SEQUENCE_BEHIND",
        )
    if claim.digest and state.digest:
        same = claim.digest == state.digest
    else:
        same = records is not None and records == state.records
    if same:
        return Verdict.REPLAY
    raise Conflict(
        f"producer '{claim.producer}' brings sequence id {claim.sequence} to topic '{topic}' a second time, with other "
        f"data ({'other offsets' if claim.digest and state.digest else f'{records} records'}, the log has "
        f"{state.records} records): an older copy of the checkpoint was restored, or the input of a finished batch "
        f"changed. Restore the newest checkpoint, or start with a new checkpoint and another producerName",
        "LEDGER_SEQUENCE_REUSED",
    )


def _query(query: str) -> str:
    return f"query {query}" if query else "a batch job"


class Producers:
    """Producer states up to a commit."""

    def __init__(self, next_commit: int, states: Iterable[ProducerState], limits: Limits) -> None:
        self.next_commit = next_commit
        self._states = {state.name: state for state in states}
        self._limits = limits

    def get(self, name: str) -> ProducerState | None:
        return self._states.get(name)

    def all(self) -> list[ProducerState]:
        return sorted(self._states.values(), key=lambda state: state.name)

    def apply(self, commit: Commit) -> None:
        assert commit.number == self.next_commit, "a snapshot never covers a commit it has not seen"
        self.next_commit += 1
        if commit.forget:
            self._states.pop(commit.producer, None)
        elif commit.producer and commit.sequence is not None:
            self._states[commit.producer] = self._after(self._states.get(commit.producer), commit)

    def _after(self, old: ProducerState | None, commit: Commit) -> ProducerState:
        past = old.past_runs if old else ()
        if old and old.run and old.run != commit.run:
            past = (*past, old.run)[-self._limits.past_runs :]
        assert commit.sequence is not None
        return ProducerState(
            commit.producer,
            commit.sequence,
            commit.query,
            commit.run,
            past,
            commit.digest,
            commit.records,
            commit.publish_ms,
        )

    def snapshot(self, files: TopicFiles, mark_delete: Position, epoch: int) -> DedupSnapshot:
        states = self.all()
        size = sum(len(s.name) + len(s.query) + 40 * (len(s.past_runs) + 2) + len(s.digest) for s in states)
        if size <= self._limits.inline_producers_bytes:
            return DedupSnapshot(self.next_commit, mark_delete, tuple(states))
        file = files.stage([asdict(state) for state in states], _PRODUCERS, epoch)
        return DedupSnapshot(self.next_commit, mark_delete, (), file)


def load(snapshot: DedupSnapshot, files: TopicFiles, limits: Limits) -> Producers:
    states: Iterable[ProducerState] = snapshot.producers
    if snapshot.producers_file is not None:
        states = map(_state_from_row, files.fetch(snapshot.producers_file))
    return Producers(snapshot.next_commit, states, limits)


def _state_from_row(row: dict[str, Any]) -> ProducerState:
    return replace(ProducerState(**row), past_runs=tuple(row["past_runs"]))
