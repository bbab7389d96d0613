"""Writing from Python: records are gathered, and stored many in one commit with one entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa

from pyspark_ledger.append.background import Background
from pyspark_ledger.append.delivery import Delivery
from pyspark_ledger.append.prepared import AppendResult
from pyspark_ledger.append.receipt import Receipt, Sent
from pyspark_ledger.append.record_check import RecordCheck
from pyspark_ledger.append.sender import Sender
from pyspark_ledger.append.waiting import known_duplicate
from pyspark_ledger.dedup.sequences import checked_id, checked_ids
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log.log import Log

__all__ = ["Background", "Producer", "Receipt", "Sent"]

_LOOK_S = 1.0  # how often a record that does not fit makes it look for new columns, at most


class Producer:
    """Writes records to a topic, many in one commit. Made by ``client.producer(topic, name)``; any number of threads
    and event loops may share one. Use it with ``with``: the end of the block flushes, unless an exception ended it.

    :meth:`send` takes a record and returns at once, with a future. A background thread stores what was taken:
    ``linger_ms`` after the first record, or as soon as 10,000 records or about 16 MB are together; what comes while a
    commit is under way goes into the next one. Records are numbered and stored in the order in which they were taken.

    >>> with client.producer("orders", name="web") as producer:
    ...     first = producer.send({"order_id": 4, "amount": 12.0})
    ...     second = producer.send({"order_id": 5, "amount": 3.5})
    >>> second.result().sequence_id
    1

    **When storing fails.** What may pass (ZooKeeper or the storage does not answer, an answer was lost) is tried again
    in the background, and the futures wait; :meth:`flush` tries at once, and raises if that fails, and the records are
    still waiting: flush again, or :meth:`discard` them. Nothing is stored twice: the producer knows its commit by an
    id, and finds out what became of it. A record that is not in the log after ``delivery_timeout_s`` is given up, and
    its future says the truth: OutcomeUnknown if it may be in the log, Unavailable if it is not. What will never pass
    (a terminated topic, a producer with the same name) ends the waiting at once: all futures get that error. Then, and
    when records with sequence ids were given up, the producer takes nothing more until :meth:`discard`: else later
    records would be in the log without those before them, and ``last_sequence_id`` would not tell.

    With ``linger_ms=None`` there is no background: records are stored by :meth:`flush`, by :meth:`close`, when somebody
    asks a future for its result, and before a record is taken when 10,000 of them or about 16 MB are waiting. Whatever
    fails, the records stay until a flush has stored them, or :meth:`discard`.

    **Sequence ids.** A producer with a name, or whose records bring their own sequence ids, is deduplicated: what was
    sent may be sent again, by this process or by its successor with the same name, and adds nothing twice. Sequence ids
    say what happened to a record (PIP-6): up to ``last_sequence_id`` it is in the log; from there to the last one sent
    it may be, and the next flush finds out. After a crash, a producer with the same name continues where the last one
    stopped:

    >>> client.producer("orders", name="web").last_sequence_id
    1
    """

    def __init__(
        self,
        log: Log,
        *,
        name: str | None = None,
        initial_sequence_id: int | None = None,
        compression: str = "lz4",
        mint_tokens: bool = False,
        background: Background | None = None,
        merge_schema: bool = False,  # columns of a batch that the topic does not have are added to it
    ) -> None:
        if name is not None and not (isinstance(name, str) and name.strip()):
            raise InvalidInput(
                f"the producer's name is {name!r}, and must be a text that is not empty", "LEDGER_INVALID_NAME"
            )
        if background is not None:  # one try is not to take longer than all of them together may
            deadline_s = min(log.limits.append_deadline_s, background.delivery_timeout_s)
            log.limits = replace(log.limits, append_deadline_s=deadline_s)
        self._log = log
        self._name = name or f"producer-{log.clock.new_id().hex()}"
        self._sender = Sender(log, self._name, compression, mint_tokens, merge_schema)
        self._delivery = Delivery(self._sender, log.clock, background, log.topic.name, self._name)
        self._numbered = name is not None or initial_sequence_id is not None
        self._looked_at = float("-inf")  # when the topic's columns were last read because a record did not fit
        self._explicit: bool | None = None  # whether the application brings ids: decided by the first record
        if self._numbered:
            self._delivery.persisted = self._sender.recover()
        self._pushed = self._start_at(checked_id(initial_sequence_id))  # the last id that was sent

    def _start_at(self, initial: int | None) -> int | None:
        persisted = self.last_sequence_id
        if initial is None:
            return persisted
        if persisted is not None and initial <= persisted:
            raise InvalidInput(
                f"initial_sequence_id is {initial}, but producer '{self.name}' has written {persisted} to topic "
                f"'{self._log.topic.name}' already: leave it out to go on after that, or give sequence_id with each "
                "record to have old ones recognised",
                "LEDGER_SEQUENCE_BEHIND",
            )
        return initial - 1

    @property
    def name(self) -> str:
        """The producer's name: as given, or a unique one."""
        return self._name

    @property
    def last_sequence_id(self) -> int | None:
        """The highest sequence id of this producer that is known to be in the log; None if there is none, or if it
        does not number records."""
        return self._delivery.persisted

    # -- sending -------------------------------------------------------------------------------------------

    def send(self, record: Mapping[str, Any], sequence_id: int | None = None) -> Receipt:
        """Takes one record, to be stored with others, and returns a :class:`Receipt`: a future.

        ``record`` is a mapping of columns to values; a column that is left out is null. ``sequence_id`` is the
        record's number in its source, such as an offset in a file: ids must rise, gaps are fine, and either all records
        of a producer bring one or none. A record whose id is in the log already is recognised as a duplicate.

        If so much is waiting that there is no room (``max_waiting_records``, ``max_waiting_bytes``), it waits until
        there is some, at most ``send_timeout_s``: then Unavailable (LEDGER_PRODUCER_FULL).

        If it raises, this record was not taken, whatever became of those before it: correct it, or send it again. A
        record that was taken fits the topic. Raises InvalidInput if the record does not fit, if the id is not above the
        last one (LEDGER_SEQUENCE_BEHIND), or if the producer is closed; what stopped the producer, if something did;
        and without ``linger_ms`` what :meth:`flush` raises, if it is time for one."""
        delivery = self._delivery
        delivery.check_usable()
        taken, size = self._fitting(record)
        sequence_id = checked_id(sequence_id)
        if self._explicit is not (sequence_id is not None):
            self._check_mode(sequence_id)
        receipt = self._take(taken, size, sequence_id)
        if receipt is None:
            patience = delivery.patience()
            while receipt is None:
                delivery.make_room(size, patience)
                receipt = self._take(taken, size, sequence_id)
        return receipt

    def _fitting(self, record: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """A copy of the record, and its size. What is known of the columns may be old, if others have added some: so a
        refusal counts after a second look, which is not made for every bad record."""
        try:
            return (self._delivery.check or self._checked_by(newest=False)).take(record)
        except InvalidInput as refusal:
            now = self._log.clock.monotonic()
            if refusal.code != "LEDGER_SCHEMA_MISMATCH" or now - self._looked_at < _LOOK_S:
                raise
            self._looked_at = now
        return self._checked_by(newest=True).take(record)

    def _take(self, record: dict[str, Any], size: int, sequence_id: int | None) -> Receipt | None:
        """None: there is no room."""
        delivery = self._delivery
        with delivery.lock:
            delivery.check_usable()
            if sequence_id is not None and self._pushed is not None and sequence_id <= self._pushed:
                return self._sent_before(sequence_id)
            if not delivery.has_room(size):
                return None
            if self._numbered and sequence_id is None:
                sequence_id = self._next_id
            receipt = delivery.add(record, size, sequence_id)
            self._pushed = sequence_id
            return receipt

    def _checked_by(self, *, newest: bool) -> RecordCheck:
        with self._delivery.hold:
            if newest:
                self._log.refresh(sync=True)
            self._delivery.check = self._sender.record_check(self._delivery.check)
            return self._delivery.check

    def _sent_before(self, sequence_id: int) -> Receipt:
        persisted = self.last_sequence_id
        if persisted is not None and sequence_id <= persisted:
            return known_duplicate(sequence_id)
        # Sent and not confirmed yet: both callers get the same receipt.
        for receipt in chain.from_iterable(part.receipts for part in self._delivery.waiting):
            if receipt.sequence_id == sequence_id:
                return receipt
        raise InvalidInput(
            f"sequence id {sequence_id} comes after {self._pushed}: the ids of a producer must rise, a lower one would "
            "be taken for a duplicate",
            "LEDGER_SEQUENCE_BEHIND",
        )

    @property
    def _next_id(self) -> int:
        return 0 if self._pushed is None else self._pushed + 1

    def send_batch(
        self, batch: pa.RecordBatch | pa.Table, sequence_ids: pa.Array | pa.ChunkedArray | None = None
    ) -> AppendResult:
        """Appends an Arrow batch or table at once, in one commit, after the records that are waiting. Returns where it
        is: an :class:`~pyspark_ledger.append.prepared.AppendResult`.

        ``sequence_ids`` are those of its rows, as for :meth:`send`: integers that rise, one for each row. Rows whose
        ids are in the log already are left out (``dropped`` counts them).

        >>> with client.producer("orders") as producer:
        ...     done = producer.send_batch(pa.table({"order_id": [4, 5], "amount": [1.0, 2.0]}))
        >>> str(done.start), done.records
        ('0:1:0', 2)

        If it raises OutcomeUnknown, the data is waiting, and the next flush finds out what became of it; after any
        other error it was not taken, and may be sent again. Raises InvalidInput if the data has no rows, does not fit
        the topic's schema, or only some of what this producer writes brings sequence ids; and what :meth:`flush`
        raises."""
        delivery = self._delivery
        delivery.check_usable()
        if not isinstance(batch, pa.RecordBatch | pa.Table):
            raise InvalidInput(f"a batch is an Arrow RecordBatch or Table, not {type(batch).__name__}: {batch!r:.100}")
        if not batch.num_rows:
            raise InvalidInput("there is no row in the batch")
        ids = None if sequence_ids is None else checked_ids(sequence_ids, batch.num_rows)
        self._check_mode(None if ids is None else ids[0].as_py())
        part = delivery.new_part(self._log.clock.monotonic())
        with delivery.hold:
            part.arrow = self._sender.conform(batch)
        part.bytes, part.arrow_ids = batch.nbytes, ids
        before: int | None = None

        def take() -> None:
            nonlocal before
            if self._numbered:
                before = self._pushed
                if ids is None:
                    part.last_id = self._next_id + batch.num_rows - 1
                else:
                    last: int = ids[-1].as_py()
                    part.last_id = last if before is None else max(before, last)
                self._pushed = part.last_id

        def take_back() -> None:
            if self._pushed == part.last_id:  # else records that were sent since have numbers after these: a gap stays
                self._pushed = before

        return delivery.store_at_once(part, take, take_back)

    def flush(self) -> AppendResult | None:
        """Returns when everything sent so far is in the log. The result says where the last of it is; None if nothing
        was waiting.

        If it raises Unavailable because ZooKeeper or the storage does not answer, or OutcomeUnknown because the records
        may or may not be in the log, the records are still waiting: flush again, which finds out, or :meth:`discard`
        them. Raises Fenced (LEDGER_PRODUCER_FENCED) if another producer writes with this name. With ``linger_ms`` an
        error that does not pass has ended the waiting; and records that were given up since the last flush, because
        they could not be stored within ``delivery_timeout_s``, are an error too."""
        return self._delivery.flush()

    def discard(self) -> None:
        """Forgets the records that are waiting, and lets a producer go on that takes nothing more because something
        stopped it.

        Records of a flush with an unknown outcome may be in the log all the same: their ids are not used for other
        records. A producer that was fenced goes on after the ids of the other one."""
        delivery = self._delivery
        delivery.check_not_forked()
        with delivery.hold:
            persisted = self._sender.recover() if self._numbered else None
            with delivery.lock:
                delivery.discard()
                doubtful, delivery.doubtful = delivery.doubtful, None
                delivery.persisted = self._pushed = persisted
                if not self._explicit and doubtful is not None:
                    self._pushed = doubtful if persisted is None else max(persisted, doubtful)

    def close(self, timeout: float | None = None) -> None:
        """Flushes, and refuses further records. Raises what :meth:`flush` raises, and then the producer stays open.
        Closing twice is fine.

        With a ``timeout`` it tries again for so many seconds. If records are left after that, the error says how many,
        and whether some of them may be in the log: OutcomeUnknown if so, else Unavailable."""
        self._delivery.close(timeout)

    def _check_mode(self, sequence_id: int | None) -> None:
        explicit = sequence_id is not None
        if self._explicit is None:
            self._decide_mode(explicit)
        if explicit != self._explicit:
            raise InvalidInput(
                "either all records of a producer bring a sequence id or none: the first one "
                f"{'did' if self._explicit else 'did not'}",
                "LEDGER_MIXED_SEQUENCE_IDS",
            )

    def _decide_mode(self, explicit: bool) -> None:
        delivery = self._delivery
        with delivery.hold:
            if self._explicit is not None:  # another thread was faster
                return
            if explicit and not self._numbered:
                delivery.persisted = self._pushed = self._sender.recover()
                self._numbered = True
            delivery.explicit = self._explicit = explicit

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.close()
        else:
            self._delivery.abandon()
