"""Who writes: with batch ids, with record ids, with nothing at all; to a table; and what has a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import ADMIT_ALL, Admission, ByBatchId, ByTokens, StagedBatch
from pyspark_ledger.append.prepared import AppendResult
from pyspark_ledger.append.producer import Producer, Receipt
from pyspark_ledger.base.position import Position
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import Conflict, LedgerError
from pyspark_ledger.files import mask
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.testing.history import Row, Send
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.ids import NumberRuns, TokenRuns
from tests.simulation.process import Process
from tests.simulation.stage import LOG, OUT, TABLE

Tasks = Sequence[Sequence[dict[str, Any]]]  # the records of each task
GROUP = "spenders"


def append(log: Log, tasks: Tasks, admission: Admission = ADMIT_ALL, **batch: Any) -> AppendResult:
    """Stages and appends; a batch that gc overtook is staged again, as writers do."""
    while True:
        schema = log.schema(log.view().head.schema_id)
        for name in dict.fromkeys(name for rows in tasks for row in rows for name in row):
            if name not in schema.names:
                schema = schema.append(pa.field(name, pa.string()))
        epoch = log.view().head.gc_epoch
        batches = [pa.RecordBatch.from_pylist(list(rows), schema) for rows in tasks]
        entries = tuple(stage_entry(log.storage, log.topic.uuid, epoch, [each], "lz4", log.clock) for each in batches)
        staged = StagedBatch(log.clock.new_id(), entries, schema, merge_schema=True, admission=admission, **batch)
        try:
            return protocol.append(log, staged)
        except Conflict as conflict:
            if conflict.code != "LEDGER_STAGED_TOO_LONG_AGO":
                raise
            log.refresh(sync=True)


def positions(done: AppendResult) -> list[Position | None]:
    """Where each record is, in the order in which they were sent; None if it was left out."""
    found: list[Position | None] = []
    for number, entry in enumerate(done.entries):
        kept = mask.unpack(entry.mask, entry.records).to_pylist() if entry.mask else [True] * entry.records
        at = [Position(done.start.ledger, done.start.entry + number, index) for index in range(entry.records)]
        found += [place if stays else None for place, stays in zip(at, kept, strict=True)]
    return found


class Writer(Process):
    """Writes one to three records at a time, by one to three tasks, sometimes with a new column."""

    writes = True
    mints = True

    def begin(self) -> None:
        self.target = self.log(LOG)

    def new_rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [{"n": self.stage.number()} for _ in range(self.stage.chance.randint(1, 3))]
        if self.stage.happens(0.03):
            rows[-1][f"c{self.stage.chance.randint(1, 3)}"] = "x"
        return rows

    def in_tasks(self, rows: list[dict[str, Any]]) -> Tasks:
        return [rows] if self.stage.happens(0.7) else [[row] for row in rows]

    def step(self) -> None:
        rows = self.new_rows()
        with self.recorder.asking(Send(topic=LOG, rows=named(rows))) as call:
            done = append(self.target, self.in_tasks(rows), mints=self.mints)
            call.ok(rows=placed(named(rows), done))


class HurriedWriter(Writer):
    """Many of these fight for the head, and wait for their turn."""

    thinks_s = 0.03


class BatchWriter(Writer):
    """Numbers its batches as a Spark query does, and brings one again until it knows that it is in the log: also after
    its death, from a checkpoint."""

    batch = -1
    doubtful: list[dict[str, Any]] | None = None

    def step(self) -> None:
        if self.doubtful is None:
            self.batch += 1
            self.doubtful = self.new_rows()
        rows, name = self.doubtful, f"query {self.name}"
        admission = ByBatchId(BatchId(self.batch, name, f"run {self.lives}", b"digest %d" % self.batch))
        event = Send(topic=LOG, rows=named(rows), producer=name, sequence=self.batch, role=f"run {self.lives}")
        with self.recorder.asking(event) as call:
            done = append(self.target, self.in_tasks(rows), admission, producer=name, mints=self.mints)
            call.ok(rows=named(rows) if done.duplicate else placed(named(rows), done))
        self.doubtful = None


class RecordWriter(Process):
    """A Python producer whose records bring their own ids. What is in doubt when it dies is sent again."""

    writes = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.waiting: list[int] = []

    def begin(self) -> None:
        self.producer = Producer(self.log(LOG), name=f"producer {self.name}")
        self.receipts: dict[int, Receipt] = {}

    def step(self) -> None:
        if not self.waiting:
            self.waiting = [self.stage.number() for _ in range(self.stage.chance.randint(1, 4))]
        rows = named([{"n": number} for number in self.waiting])
        event = Send(topic=LOG, rows=rows, producer=f"producer {self.name}", sequence=self.waiting[-1])
        with self.recorder.asking(event) as call:
            for number in self.waiting:
                if number not in self.receipts:
                    self.receipts[number] = self.producer.send({"n": number}, sequence_id=number)
            self.producer.flush()
            sent = [self.receipts[number].result() for number in self.waiting]
            call.ok(rows=tuple(Row(row.value, each.position) for row, each in zip(rows, sent, strict=True)))
        self.waiting, self.receipts = [], {}

    def lost(self) -> None:
        self.waiting = []  # the producer that knew what became of them is gone

    def starts_again_after(self, error: LedgerError) -> bool:
        return False  # nobody else has its name


class HurriedRecordWriter(RecordWriter):
    thinks_s = 0.03


class TableWriter(Process):
    """Puts and deletes keys of its own. A key that was deleted is never used again, so that a deletion has a name."""

    writes = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.keys: list[str] = []
        self.columns = 1

    def begin(self) -> None:
        self.target = self.log(TABLE)

    def step(self) -> None:
        rows = [self.change() for _ in range(self.stage.chance.randint(1, 3))]
        with self.recorder.asking(Send(topic=TABLE, rows=table_rows(rows))) as call:
            call.ok(rows=placed(table_rows(rows), append(self.target, [rows])))

    def change(self) -> dict[str, Any]:
        if self.keys and self.stage.happens(0.3):
            return {"k": self.keys.pop(self.stage.chance.randrange(len(self.keys))), "n": None}
        if not self.keys or self.stage.happens(0.4):
            self.keys.append(f"{self.name}/{self.stage.number()}")
        row = {"k": self.stage.chance.choice(self.keys), "n": self.stage.number()}
        if self.stage.happens(0.05):
            row[f"c{self.stage.chance.randint(1, 3)}"] = "x"
        return row


class Spender(Process):
    """Reads records that have tokens, and writes something for each, once, whoever else does the same."""

    writes = True

    def begin(self) -> None:
        self.source, self.target = self.log(LOG), self.log(OUT)
        self.groups = Groups.in_namespace_of(self.target, GROUP)
        self.position: Position | None = None

    def step(self) -> None:
        if self.position is None or self.stage.happens(0.1):
            self.position = Position(0, 0, 0)  # as if it had forgotten what it has done
        reader = Reader(self.source, self.position, "latest")
        found: dict[str, int] = {}
        for record in reader:
            if record.token is not None and record.token_number is not None:
                found[record.token] = record.token_number
            if len(found) >= self.stage.chance.randint(1, 5):
                break
        if found:
            self.spend(found)
        self.position = reader.position

    def spend(self, tokens: dict[str, int]) -> None:
        """Given as text and as numbers, by turns: they are the same tokens."""
        rows = [{"n": self.stage.number()} for _ in tokens]
        asked = tuple(Row(str(row["n"]), token=token) for row, token in zip(rows, tokens, strict=True))
        with self.recorder.asking(Send(topic=OUT, rows=asked, group=GROUP)) as call:
            done = append(self.target, [rows], ByTokens(self.groups, [self.runs(tokens)]))
            at = [None] * len(rows) if done.duplicate else positions(done)
            call.ok(rows=tuple(Row(row.value, place, token=row.token) for row, place in zip(asked, at, strict=True)))

    def runs(self, tokens: dict[str, int]) -> pa.Table:
        if self.stage.happens(0.5):
            numbers = NumberRuns(self.source.topic.uuid, LOG)
            numbers.add(pa.array(tokens.values(), pa.int64()))
            return numbers.table()
        text = TokenRuns()
        text.add(pa.array(tokens, pa.string()))
        return text.table()


def named(rows: Sequence[dict[str, Any]]) -> tuple[Row, ...]:
    return tuple(Row(str(row["n"])) for row in rows)


def table_rows(rows: Sequence[dict[str, Any]]) -> tuple[Row, ...]:
    return tuple(table_row(row["k"], row["n"], None) for row in rows)


def table_row(key: str, number: int | None, position: Position | None) -> Row:
    return Row(f"without {key}" if number is None else str(number), position, key, deletes=number is None)


def placed(rows: tuple[Row, ...], done: AppendResult) -> tuple[Row, ...]:
    return tuple(Row(row.value, at, row.key, row.deletes) for row, at in zip(rows, positions(done), strict=True))
