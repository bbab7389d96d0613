"""Sequence ids of whole batches: whether a numbered batch is new, or a replay of the producer's last one."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.base.names import forget_command
from pyspark_ledger.errors import Conflict, Fenced
from pyspark_ledger.metadata.records import ProducerState


@dataclass(frozen=True, slots=True)
class BatchId:
    """What distinguishes a producer's batch from its others. For the Spark sink, the sequence id is the batch id."""

    sequence: int
    query: str = ""
    run: str = ""
    digest: bytes = b""  # of the offsets that Spark logged for the batch; empty: they could not be read


def is_replay(state: ProducerState | None, batch: BatchId, records: int | None, topic: str) -> bool:
    """True if this is the producer's last batch again, False if it is new. Anything else is an error that says what to
    do: dropping the batch silently could lose data, appending it could duplicate data.

    ``records`` is None when the writer did not count because the digests agree. ``topic`` is empty for a sink over
    several topics, whose batches are numbered for all of them together.
    """
    if state is None:
        return False
    _check_owner(state, batch, topic)
    if batch.sequence > state.sequence:
        return False
    if batch.sequence < state.sequence:
        raise Conflict(
            f"producer '{state.name}' has written sequence id {state.sequence} to {_place(topic)} and now brings "
            f"{batch.sequence}: an older copy of the checkpoint was restored, or another job uses the name. Restore "
            f"the newest checkpoint, or start with a new checkpoint and another producerName",
            "LEDGER_SEQUENCE_BEHIND",
        )
    has_digests = bool(batch.digest and state.digest)
    if batch.digest == state.digest if has_digests else records == state.records:
        return True
    if batch.query and not has_digests and records == 0:
        # A batch that was in the log before a reset discarded it reads nothing now. Whatever the reason, to add no rows
        # loses and doubles nothing, and a query that is refused for it would be stuck for ever.
        return True
    raise Conflict(
        f"producer '{state.name}' brings sequence id {batch.sequence} to {_place(topic)} a second time, with other "
        f"data ({'other offsets' if has_digests else f'{records} records'}, the log has "
        f"{state.records} records): an older copy of the checkpoint was restored, or the input of a finished batch "
        f"changed. Restore the newest checkpoint, or start with a new checkpoint and another producerName",
        "LEDGER_SEQUENCE_REUSED",
    )


def _check_owner(state: ProducerState, batch: BatchId, topic: str) -> None:
    """A producer's name belongs to one query, and in it to the last run."""
    if state.per_record:
        raise Conflict(
            f"producer '{state.name}' of {_place(topic)} numbers single records (the last is {state.sequence}), "
            f"and {owner(batch.query)} would number whole batches with it: choose another producerName, or forget it "
            f"with {_forget(topic, state.name)}",
            "LEDGER_PRODUCER_OWNED",
        )
    if batch.query != state.query:
        raise Conflict(
            f"producer '{state.name}' of {_place(topic)} belongs to {owner(state.query)} (last sequence id "
            f"{state.sequence}), and {owner(batch.query)} now writes with it. If that is the same job with a new "
            f"checkpoint (the old one was lost, or a full refresh replaced it), its batch ids started again and cannot "
            f"be told from old ones: choose another producerName, or forget the old one with "
            f"{_forget(topic, state.name)}. Then what it reads again is written again; with "
            f"sequenceColumn or tokens it is not",
            "LEDGER_PRODUCER_OWNED",
        )
    if batch.run and batch.run in state.past_runs:
        raise Fenced(
            f"run {batch.run} of {owner(batch.query)} was replaced by run {state.run}, which has written sequence id "
            f"{state.sequence} to {_place(topic)}: this one must stop; nothing was changed",
            "LEDGER_PRODUCER_FENCED",
        )


def runs_before(last: str, before: tuple[str, ...], run: str, at_most: int) -> tuple[str, ...]:
    """The runs that are fenced once this ``run`` has written: ``last`` is the one that has written before it."""
    return (*before, last)[-at_most:] if last and last != run else before


def _place(topic: str) -> str:
    return f"topic '{topic}'" if topic else "its topics"


def _forget(topic: str, producer: str) -> str:
    return f"'{forget_command(topic or 'TOPIC', producer)}'" + ("" if topic else ", with any of its topics")


def owner(query: str) -> str:
    """Who owns a producer's name, for messages to people."""
    return f"query {query}" if query else "a batch job"
