"""Who reads: readers of the log, Spark's queries with their checkpoints, readers of what is compacted."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pyspark_ledger.base.position import Position
from pyspark_ledger.compaction.plan import state_slices
from pyspark_ledger.datasource import LedgerDataSource
from pyspark_ledger.errors import DataLoss, LedgerError
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.testing.history import Acknowledge, CompactedRead, Poll, Row
from tests.simulation.process import LOST_RESET, Process
from tests.simulation.stage import LOG, TABLE
from tests.simulation.writers import table_row


class Follower(Process):
    """Reads on from where it stopped, a few records at a time."""

    readings = 1  # each begins anew: what it comes after may have been given up

    def begin(self) -> None:
        self.source = self.log(LOG, watch=self.stage.happens(0.5))
        self.position: Position | None = None
        self.readings += 1

    def step(self) -> None:
        with self.recorder.asking(Poll(topic=LOG, reader=f"{self.name}, {self.readings}", start=self.position)) as call:
            reader = Reader(self.source, self.position or "earliest", "latest")
            records = islice(reader, self.stage.chance.randint(1, 20))
            rows = [Row(str(record["n"]), record.position) for record in records]
            self.position = reader.position
            call.ok(rows=tuple(rows))

    def caught_up(self) -> bool:
        return self.position is not None and self.play.is_end(LOG, self.position)


class StateReader(Process):
    """Reads the last record of every key."""

    def begin(self) -> None:
        self.source = self.log(TABLE)

    def step(self) -> None:
        with self.recorder.asking(CompactedRead(topic=TABLE)) as call:
            reader = Reader(self.source, "earliest", "latest", None, state_slices)
            state = {record["k"]: record["n"] for record in reader}
            end = reader._end
            assert end is not None
            alive = tuple((key, str(number)) for key, number in state.items() if number is not None)
            call.ok(end=end, state=alive)


@dataclass
class Checkpoint:
    """What Spark keeps of a query: where each batch ends, and which batches are done."""

    offsets: list[dict[str, Any]] = field(default_factory=list)
    planned_at: list[float] = field(default_factory=list)  # not Spark's: when each of them was
    done: int = 0


class Query(Process):
    """What Spark does with a stream reader. It begins again from its checkpoint after any error; a batch that was
    planned and is not known to be done is read again."""

    topic, compacted = LOG, False
    reader: Any = None
    runs = 0  # being fenced ends a run, and the next one is another role

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.forget()

    def forget(self) -> None:
        """Starts with a new checkpoint."""
        self.checkpoint = Checkpoint()
        self.queries = getattr(self, "queries", 0) + 1
        self.starts = self.stage.chance.choice(["earliest", "latest", "anywhere"])

    def options(self) -> dict[str, str]:
        options = {"topic": self.topic, "maxRowsPerTrigger": str(self.stage.chance.randint(3, 40)), "columns": "k,n"}
        if self.topic == LOG:
            del options["columns"]
            options |= {"onSchemaChange": self.stage.chance.choice(["fail", "ignore"])}
        if self.subscription:
            options |= {"subscription": self.subscription, "subscriptionType": "failover"}
        else:
            anywhere = self.starts == "anywhere"
            options["startingOffsets"] = str(self.play.anywhere(self.topic)) if anywhere else self.starts
        if self.compacted:
            options["readCompacted"] = "true"
        return options

    def begin(self) -> None:
        self.leave()  # an error has ended the run before
        self.runs += 1
        address = f"127.0.0.1:2181/{self.name}-{self.lives}"
        session = OpenNamespace(self.metadata, self.storage.uri, limits=self.stage.limits, clock=self.clock)
        session._storage = self.storage
        self.play.sessions[address] = session
        source = LedgerDataSource({**self.options(), "zookeeper": address, "includeMetadata": "true"})
        self.reader = source.streamReader(source.schema())
        offsets = self.checkpoint.offsets
        self.initial = self.reader.initialOffset()
        if len(offsets) > self.checkpoint.done:
            self.read_batch()

    def step(self) -> None:
        offsets = self.checkpoint.offsets
        start = offsets[-1] if offsets else self.initial
        end = self.acknowledging(start, lambda: self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))
        if end != start:
            offsets.append(end)
            self.checkpoint.planned_at.append(self.play.ticks.monotonic())
            self.read_batch()

    def acknowledging(self, done: dict[str, Any], call: Any) -> Any:
        """What Spark hands in as a start is done, and so acknowledged."""
        if not self.subscription or done == self.initial:
            return call()
        said = fields(done)
        event = Acknowledge(
            topic=self.topic, subscription=self.subscription, revision=said["rev"],
            upto=Position.parse(said["pos"]), role=f"run {self.runs}",
        )  # fmt: skip
        refusal: LedgerError | None = None
        with self.recorder.asking(event) as asked:
            try:
                answer = call()
                asked.ok()
            except LedgerError as error:  # of what was asked for; the acknowledgement may have been written before
                refusal = error
                if error.code == LOST_RESET:
                    asked.refused(str(error))
        if refusal is not None:
            raise refusal
        return answer

    def read_batch(self) -> None:
        number = self.checkpoint.done
        offsets = self.checkpoint.offsets
        start, end = (offsets[number - 1] if number else self.initial), offsets[number]
        said = fields(end)
        event = Poll(
            topic=self.topic, reader=f"{self.name}, checkpoint {self.queries}", subscription=self.subscription,
            revision=said["rev"], epoch=said["epoch"], batch=number, compacted=self.compacted,
            start=self.begins(start, said), end=Position.parse(said["pos"]), role=f"run {self.runs}",
        )  # fmt: skip
        with self.recorder.asking(event) as call:
            rows = [
                self.row(record)
                for part in self.reader.partitions(start, end)
                for batch in self.reader.read(part)
                for record in batch.to_pylist()
            ]
            if not self.is_of_the_past(number):
                call.ok(rows=tuple(rows))
        self.checkpoint.done += 1

    def is_of_the_past(self, batch: int) -> bool:
        """Whether a rollback came between the plan of a batch and this reading of it. It reads what was planned, and
        that is right; but its revision and epoch are numbers of the history that has ended, which mean something else
        by now. So of a subscription's batch nothing is claimed then."""
        planned_at = self.checkpoint.planned_at[batch]
        return bool(self.subscription) and any(planned_at < rollback.at for rollback in self.play.rollbacks)

    def begins(self, start: dict[str, Any], end: dict[str, Any]) -> Position | None:
        if "from" in end:
            return Position.parse(end["from"])
        return None if start == self.initial else Position.parse(fields(start)["pos"])

    def row(self, record: dict[str, Any]) -> Row:
        at = record["_metadata"]
        position = Position(at["ledgerId"], at["entryId"], at["index"])
        if self.topic == TABLE:
            return table_row(record["k"], record["n"], position)
        return Row(str(record["n"]), position)

    def starts_again_after(self, error: LedgerError) -> bool:
        self.leave()
        return True

    def leave(self) -> None:
        if self.reader is not None:
            stopping, self.reader = self.reader, None
            stopping.stop()

    def died(self) -> None:
        self.reader = None

    def lost(self) -> None:
        self.leave()
        self.forget()

    def caught_up(self) -> bool:
        offsets = self.checkpoint.offsets
        if not offsets:
            return self.play.is_end(self.topic, "earliest")
        if self.checkpoint.done < len(offsets):
            return False
        return self.play.is_end(self.topic, Position.parse(fields(offsets[-1])["pos"]))


class SubscribedQuery(Query):
    """One of two with checkpoints of their own, which take turns."""

    subscription = "followed"

    def gets_on(self, since: float) -> bool:
        return any(each.done_at >= since for each in self.play.cast if isinstance(each, SubscribedQuery))

    def step(self) -> None:
        super().step()
        if self.stage.happens(0.05) and not self.play.ending:
            self.leave()
            self.stage.schedule.wait(min(10.0, self.stage.some_time(5.0)))
            self._check_alive()
            self.begin()

    def caught_up(self) -> bool:
        return any(Query.caught_up(each) for each in self.play.cast if isinstance(each, SubscribedQuery))


class CompactedQuery(Query):
    """Follows the state of the table."""

    topic, compacted = TABLE, True

    def forget(self) -> None:
        super().forget()
        self.starts = "earliest"

    def step(self) -> None:
        try:
            super().step()
        except DataLoss as loss:
            # It was away for longer than deletions are kept, and its pin had gone with its session.
            if loss.code != "LEDGER_DELETIONS_DROPPED" or not self.play.trouble:
                raise
            self.leave()
            self.forget()
            self.begin()


def fields(offset: dict[str, Any]) -> dict[str, Any]:
    """What an offset says of its one topic."""
    ((_, found),) = offset["topics"].items()
    return dict(found)
