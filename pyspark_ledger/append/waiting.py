"""The records that a producer has taken and not stored yet, in parts of one commit each."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from pyspark_ledger.append.append import UnderWay
from pyspark_ledger.append.prepared import AppendResult
from pyspark_ledger.append.receipt import Receipt, Sent
from pyspark_ledger.base.position import Position
from pyspark_ledger.files.mask import unpack


class Owner(Protocol):
    """The producer of a part, as its receipts see it."""

    def wanted(self, part: Part) -> None:
        """Somebody begins to wait for a part."""
        ...

    @property
    def needs_a_flush(self) -> bool:
        """Whether nothing is stored until somebody asks for it."""
        ...


@dataclass(slots=True, eq=False)
class Part:
    """Records that are stored by one commit, in the order in which they were sent."""

    owner: Owner | None
    since: float = 0.0  # when the first record was taken,
    deadline: float = float("inf")  # and when it is given up
    explicit: bool = False  # whether its records bring their own ids
    records: list[dict[str, Any]] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    bytes: int = 0
    arrow: list[pa.RecordBatch] = field(default_factory=list)  # instead of records
    arrow_ids: pa.Array | None = None  # the ids that they bring
    last_id: int | None = None
    is_tried: bool = False  # somebody is storing it at this moment
    under_way: UnderWay | None = None  # it was sent, and nobody knows what became of it
    outcome: AppendResult | Exception | None = None  # None: not known yet
    lock: threading.Lock = field(default_factory=threading.Lock)  # orders the outcome and those who begin to watch
    watched: list[Receipt] = field(default_factory=list)
    _kept: list[bool] | None = None  # which records were added, if not all

    @property
    def takes_records(self) -> bool:
        return not self.arrow and self.under_way is None and not self.is_tried

    @property
    def count(self) -> int:
        return len(self.records) or sum(batch.num_rows for batch in self.arrow)

    @property
    def needs_a_flush(self) -> bool:
        owner = self.owner
        return self.outcome is None and owner is not None and owner.needs_a_flush

    def wanted(self) -> None:
        owner = self.owner
        if self.outcome is None and owner is not None:
            owner.wanted(self)

    def ids(self) -> pa.Array | None:
        """The sequence ids of its records; None if they have none."""
        if self.last_id is None:
            return None
        if self.arrow_ids is not None:
            return self.arrow_ids
        if self.explicit:
            return pa.array([receipt.sequence_id for receipt in self.receipts], pa.int64())
        return pa.arange(self.last_id + 1 - self.count, self.last_id + 1)

    # -- when it is known what became of it ------------------------------------------------------------------

    def finish(self, outcome: AppendResult | Exception) -> list[Receipt]:
        """Returns the receipts that somebody waits for: they have to be told."""
        if isinstance(outcome, AppendResult) and outcome.dropped:
            entry = next(iter(outcome.entries), None)
            self._kept = unpack(entry.mask, entry.records).to_pylist() if entry else [False] * len(self.receipts)
        with self.lock:
            self.outcome = outcome
            watched, self.watched = self.watched, []
        # Receipts may live for long, and all of them know their part.
        self.owner, self.records, self.arrow, self.receipts, self.under_way = None, [], [], [], None
        self.arrow_ids = None
        return watched

    @property
    def error(self) -> Exception | None:
        return self.outcome if isinstance(self.outcome, Exception) else None

    def where(self, index: int, sequence_id: int | None) -> Sent | None:
        """Where a record is, if the part is in the log."""
        if not isinstance(self.outcome, AppendResult):
            return None
        if self._kept is not None and not self._kept[index]:
            return Sent(sequence_id, None, duplicate=True)
        start = self.outcome.start
        return Sent(sequence_id, Position(start.ledger, start.entry, index), duplicate=self.outcome.duplicate)


def known_duplicate(sequence_id: int) -> Receipt:
    """For a record that the log is known to have."""
    part = Part(None)
    receipt = Receipt(part, 0, sequence_id)
    part.receipts.append(receipt)
    part.finish(AppendResult(Position(0, 0, 0), 0, True, 0, dropped=1))
    return receipt


class Waiting:
    """Parts in their order, and how much they hold."""

    def __init__(self, most_records: int, most_bytes: int) -> None:
        self.most_records, self.most_bytes = most_records, most_bytes
        self.records = self.bytes = 0
        self._parts: deque[Part] = deque()

    @property
    def first(self) -> Part | None:
        return self._parts[0] if self._parts else None

    @property
    def last(self) -> Part | None:
        return self._parts[-1] if self._parts else None

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def has_room(self, size: int) -> bool:
        """A record that is larger than everything that may wait is taken if nothing waits: else it never would be."""
        return self.records < self.most_records and (self.bytes + size <= self.most_bytes or not self.records)

    def open(self, part: Part) -> None:
        self._parts.append(part)
        self.records += part.count
        self.bytes += part.bytes

    def add(self, part: Part, record: dict[str, Any], size: int, sequence_id: int | None) -> Receipt:
        """To its last part."""
        receipt = Receipt(part, len(part.records), sequence_id)
        part.records.append(record)
        part.receipts.append(receipt)
        part.bytes += size
        part.last_id = sequence_id
        self.records += 1
        self.bytes += size
        return receipt

    def remove(self, part: Part) -> None:
        self._parts.remove(part)
        self.records -= part.count
        self.bytes -= part.bytes
