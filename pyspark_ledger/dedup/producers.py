"""The producers' state (PIP-6): the last sequence id of each, and who owns the name.

It is derived from one source: the snapshot at the dedup cursor's position, and the commits after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pyspark_ledger.base.arrays import one_array
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.names import forget_command
from pyspark_ledger.base.position import Position
from pyspark_ledger.dedup.batch_ids import owner, runs_before
from pyspark_ledger.dedup.sequences import Encoded, Sequences
from pyspark_ledger.errors import Conflict
from pyspark_ledger.files.topicfiles import RowCodec, TopicFiles, check_columns
from pyspark_ledger.metadata.records import Commit, DedupSnapshot, ProducerState

_HIGHEST = pa.schema([("producer", pa.string()), ("sequence", pa.int64())])
_SEQUENCES = pa.schema([("name", pa.string()), ("sequence", pa.int64()), ("publish_ms", pa.int64())])
_EVICTED = pa.schema([("fingerprint", pa.uint64())])


@cache  # made when it is first needed: tasks import this module and never read a snapshot
def _rows() -> RowCodec[ProducerState]:
    return RowCodec(ProducerState)


class Producers:
    """Producer states up to a commit.

    Of producers whose records bring their own ids only the last id is kept. There may be a million of them, so they are
    kept in arrays, not as objects.
    """

    def __init__(self, next_commit: int, states: Iterable[ProducerState], limits: Limits) -> None:
        self.first_commit = self.next_commit = next_commit
        self._limits = limits
        self._owned: dict[str, ProducerState] = {}
        self._sequences = Sequences()
        self._evicted: set[int] = set()
        for state in states:
            self._put(state)

    def _put(self, state: ProducerState) -> None:
        if state.per_record:
            self._sequences.put([state.name], [state.sequence], [state.publish_ms])
        else:
            self._owned[state.name] = state

    def __len__(self) -> int:
        return len(self._owned) + len(self._sequences)

    @property
    def evicted(self) -> int:
        return len(self._evicted)

    def get(self, name: str) -> ProducerState | None:
        last = self._sequences.get(name)
        return self._owned.get(name) if last is None else _per_record(name, *last)

    def all(self) -> list[ProducerState]:
        per_record = (_per_record(*each) for each in self._sequences)
        return sorted((*self._owned.values(), *per_record), key=lambda state: state.name)

    def owned(self) -> list[ProducerState]:
        """The producers that belong to a query or a batch job."""
        return list(self._owned.values())

    def known_sequences(self, at_most: int, name: str = "") -> pa.Table | None:
        """(producer, sequence) of everybody whose records bring ids, or of one; None if there are too many."""
        if name:
            last = self._sequences.get(name)
            return _pairs([(name, *last)] if last else [])
        return _pairs(self._sequences) if len(self._sequences) <= at_most else None

    def look_up(self, names: pa.Array, topic: str) -> pa.Table:
        """(last, slot) of each producer whose records bring their own ids; null for one that is new. A slot is valid
        until the next commit is applied."""
        slots = self._sequences.slots(names.to_pylist())
        self._check_unknown(names, slots, topic)
        return pa.table({"last": self._sequences.last(slots), "slot": slots})

    def encode(self, names: pa.ChunkedArray, topic: str) -> tuple[Encoded, pa.Array]:
        """The producers of a batch as numbers, and the last id of each of these as in :meth:`look_up`."""
        encoded = self._sequences.encode(names)
        self._check_unknown(encoded.names, encoded.slots, topic)
        return encoded, self._sequences.last(encoded.slots)

    def _check_unknown(self, names: pa.Array, slots: pa.Array, topic: str) -> None:
        if not slots.null_count or not (self._owned or self._evicted):
            return
        unknown = names.filter(slots.is_null()).to_pylist()
        if taken := self._owned.keys() & unknown:
            raise _owned_by_batches(self._owned[min(taken)], topic)
        self.check_not_evicted(unknown, topic)

    def last_sequence(self, name: str, topic: str) -> int | None:
        return self.look_up(pa.array([name], pa.string()), topic)["last"][0].as_py()  # type: ignore[no-any-return]

    def check_not_evicted(self, names: Iterable[str], topic: str) -> None:
        """Refuses an evicted producer: whether its ids are old or new is no longer known."""
        if self._evicted:
            for name in names:
                if _fingerprint(name) in self._evicted and self.get(name) is None:
                    raise Conflict(
                        f"producer '{name}' of topic '{topic}' was silent for so long that the topic's policy evicted "
                        "it: whether its ids are old or new is no longer known. Use another producer name, or let it "
                        f"begin anew with '{forget_command(topic, name)}'",
                        "LEDGER_PRODUCER_EVICTED",
                    )

    def is_evicted(self, name: str) -> bool:
        return _fingerprint(name) in self._evicted

    # -- commits -------------------------------------------------------------------------------------------

    def apply(self, commit: Commit, files: TopicFiles, highest: pa.Table | None = None) -> None:
        """Adds a commit to the state. ``highest`` are the commit's highest ids with slots, if they are in memory."""
        assert commit.number == self.next_commit, "a snapshot never covers a commit it has not seen"
        self.next_commit += 1
        if commit.forget:
            self._forget(commit.producer)
        elif commit.sequence_column:
            self._raise(commit, files, highest)
        elif commit.producer and commit.sequence is not None:
            self._owned[commit.producer] = self._after(self._owned.get(commit.producer), commit)

    def _forget(self, name: str) -> None:
        self._owned.pop(name, None)
        self._sequences.remove(name)
        self._evicted.discard(_fingerprint(name))

    def _raise(self, commit: Commit, files: TopicFiles, highest: pa.Table | None) -> None:
        if highest is not None:
            producers, ids, slots = (one_array(highest[name]) for name in ("producer", "sequence", "slot"))
            self._sequences.raise_to(producers, ids, commit.publish_ms, slots)
            return
        if commit.highest_file is not None:
            names, last = files.fetch_as(commit.highest_file, _highest_ids)
        else:
            names, last = [list(column) for column in zip(*commit.highest, strict=True)] or [[], []]
        self._sequences.put(names, last, [commit.publish_ms] * len(names))

    def _after(self, old: ProducerState | None, commit: Commit) -> ProducerState:
        past = runs_before(old.run, old.past_runs, commit.run, self._limits.past_runs) if old else ()
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

    # -- snapshots -----------------------------------------------------------------------------------------

    def without_silent(self, since_ms: int) -> Producers:
        """A copy that keeps only fingerprints of the producers that have written nothing since ``since_ms``."""
        kept = Producers(self.next_commit, (), self._limits)
        gone = []
        for state in self.all():
            if state.publish_ms >= since_ms:
                kept._put(state)
            else:
                gone.append(state.name)
        kept._evicted = self._evicted | {_fingerprint(name) for name in gone}
        return kept

    def snapshot(self, files: TopicFiles, mark_delete: Position, epoch: int) -> DedupSnapshot:
        evicted_file = None
        if self._evicted:
            fingerprints = pa.array(sorted(self._evicted), pa.uint64())
            evicted_file = files.stage_table(pa.table([fingerprints], schema=_EVICTED), epoch)
        evicted = (len(self._evicted), evicted_file)
        if len(self) * 40 <= self._limits.inline_producers_bytes:  # else it cannot be small enough
            states = self.all()
            size = sum(len(s.name) + len(s.query) + 40 * (len(s.past_runs) + 2) + len(s.digest) for s in states)
            if size <= self._limits.inline_producers_bytes:
                return DedupSnapshot(self.next_commit, mark_delete, tuple(states), None, *evicted)
        return DedupSnapshot(self.next_commit, mark_delete, (), files.stage_table(self._table(), epoch), *evicted)

    def _table(self) -> pa.Table:
        rows = _rows()
        owned = pa.Table.from_pylist([rows.dump(state) for state in self._owned.values()], schema=rows.schema)
        return pa.concat_tables([owned, self._sequences.table()], promote_options="default")

    @classmethod
    def load(cls, snapshot: DedupSnapshot, files: TopicFiles, limits: Limits) -> Producers:
        self = cls(snapshot.next_commit, snapshot.producers, limits)
        if snapshot.producers_file is not None:
            files.fetch_as(snapshot.producers_file, self._load)
        if snapshot.evicted_file is not None:
            self._evicted = files.fetch_as(snapshot.evicted_file, _fingerprints)
        return self

    def _load(self, table: pa.Table) -> None:
        is_owned = pc.fill_null(pc.invert(table["per_record"]), False)
        owned, per_record = table.filter(is_owned), table.filter(pc.invert(is_owned))
        _rows().check(owned)
        for row in owned.to_pylist():
            self._put(_rows().load(row))
        check_columns(per_record, _SEQUENCES)
        self._sequences.put(*(per_record[name].to_pylist() for name in _SEQUENCES.names))


def _highest_ids(table: pa.Table) -> list[list[Any]]:
    check_columns(table, _HIGHEST)
    return [table[name].to_pylist() for name in _HIGHEST.names]


def _fingerprints(table: pa.Table) -> set[int]:
    check_columns(table, _EVICTED)
    return set(table["fingerprint"].to_pylist())


def _per_record(name: str, sequence: int, publish_ms: int) -> ProducerState:
    return ProducerState(name, sequence, "", "", (), b"", 0, publish_ms, per_record=True)


def _pairs(sequences: Iterable[tuple[str, int, int]]) -> pa.Table:
    rows = [{"producer": name, "sequence": last} for name, last, _ in sequences]
    return pa.Table.from_pylist(rows, schema=_HIGHEST)


def _fingerprint(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode())


def _owned_by_batches(state: ProducerState, topic: str) -> Conflict:
    return Conflict(
        f"producer '{state.name}' of topic '{topic}' belongs to {owner(state.query)}, which numbers whole batches: it "
        "cannot number records too. Choose another producer name, or forget this one with "
        f"'{forget_command(topic, state.name)}'",
        "LEDGER_PRODUCER_OWNED",
    )
