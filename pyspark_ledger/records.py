"""What ZooKeeper keeps, as plain immutable values.

``zk_metadata`` turns them into protobuf and back; everything else works on these. No record grows with
the number of commits.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass

from pyspark_ledger.position import Position


@dataclass(frozen=True, slots=True)
class FileRef:
    """An immutable file below the topic's folder, with what is needed to tell that it is the one we wrote.

    The last ``tail_length`` bytes hash to ``tail_hash``. For an entry file the tail holds the checksums of
    everything before it; other files are hashed whole.
    """

    epoch: int  # the gc epoch that was read before the file was staged
    uid: bytes
    length: int
    tail_length: int
    tail_hash: int


@dataclass(frozen=True, slots=True)
class Entry:
    """The records that one task, or one producer flush, added."""

    file: FileRef
    records: int

    @property
    def bytes(self) -> int:
        return self.file.length


@dataclass(frozen=True, slots=True)
class Commit:
    """What one multi made visible, all or nothing."""

    number: int  # counts from 0 over the life of the topic
    id: bytes  # unique: tells an unknown outcome from a lost race
    ledger: int
    first_entry: int
    entry_count: int
    records: int
    bytes: int
    records_before: int  # running totals of the topic before this commit
    bytes_before: int
    publish_ms: int
    schema_id: int
    entries: tuple[Entry, ...] = ()  # inline, or else in
    entries_file: FileRef | None = None
    producer: str = ""
    query: str = ""
    run: str = ""
    sequence: int | None = None
    digest: builtins.bytes = b""  # of Spark's offset log entry: tells a replay from another batch of that id
    forget: bool = False  # this commit only removes the producer's state


@dataclass(frozen=True, slots=True)
class Head:
    """The topic's one small node, whose version serialises appends."""

    uuid: str
    name: str
    schema_id: int
    ledger: int  # the one open ledger
    ledger_first_commit: int
    ledger_opened_ms: int
    ledger_bytes: int
    next_commit: int
    next_entry: int
    last_publish_ms: int
    records: int
    bytes: int
    gc_epoch: int
    gc_floor: int  # files of older epochs have all been looked at
    gc_marks: tuple[int, ...]  # first commit number of each epoch from gc_floor to gc_epoch
    index: tuple[FileRef, ...] = ()  # the right edge of the tree over sealed ledgers, lowest level first
    gc_kept: tuple[FileRef, ...] = ()  # what could be superseded, as it was when gc last raised the epoch
    gc_kept_before: tuple[FileRef, ...] = ()  # and the time before

    @property
    def end(self) -> Position:
        return Position(self.ledger, self.next_entry, 0)


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The last thing a producer did: enough to tell new, replayed, outdated and foreign apart."""

    name: str
    sequence: int
    query: str
    run: str
    past_runs: tuple[str, ...]  # newest last, at most 16: a writer of one of these is fenced
    digest: bytes
    records: int  # of the commit that brought the sequence
    publish_ms: int


@dataclass(frozen=True, slots=True)
class DedupSnapshot:
    """The dedup cursor: producer states attached to the position up to which they are true."""

    next_commit: int  # every commit below this one has been seen, no other
    mark_delete: Position
    producers: tuple[ProducerState, ...] = ()  # inline, or when large in
    producers_file: FileRef | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    """What a topic's name stands for."""

    name: str
    uuid: str
    key: str
    version_column: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class Schema:
    """One immutable version of a topic's schema, as an Arrow IPC schema message."""

    id: int
    arrow: bytes


@dataclass(frozen=True, slots=True)
class Namespace:
    """Made once: where the files are."""

    storage: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class Marker:
    """A node that only holds others."""


Record = Commit | Head | DedupSnapshot | Topic | Schema | Namespace | Marker
