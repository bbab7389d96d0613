"""Producers, readers and consumers over the in-memory store, with lost answers, stale reads, ended sessions and deaths
anywhere, resets, seals and gc: whatever happens, the checker finds no anomaly in what they recorded."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.base.names import staged_file
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.cursors.consumer import Consumer, Message
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import LedgerError
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.metadata.records import Cursor
from pyspark_ledger.testing.checker import check
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.history import (
    Acknowledge,
    CursorSeen,
    Event,
    FinalFiles,
    FinalLog,
    Poll,
    Reset,
    Row,
    Send,
    load,
)
from pyspark_ledger.testing.memory import Crash, Faults
from pyspark_ledger.testing.recorder import Recorder
from tests.support import examples
from tests.support.worlds import EAGER, World, append, read

TOPIC, SUBSCRIPTION = "t", "s"


class Ticks(SeededClock):
    """The clock of the recorders: it moves with every look, so that no two things happen at once."""

    def monotonic(self) -> float:
        self.sleep(0.001)
        return super().monotonic()


class Process:
    """Records what it does. After its death another takes its place, under another name."""

    def __init__(self, play: Play, name: str) -> None:
        self.play, self.name = play, name
        self.faults = play.faults()
        self.lives = 0
        self.begin()

    def begin(self) -> None:
        self.lives += 1
        life = f"{self.name}-{self.lives}"
        self.recorder = Recorder(self.play.folder / f"history-{life}.jsonl", life, self.play.ticks)
        self.log = self.play.world.log(self.faults)

    def act(self) -> None:
        try:
            self.step()
        except LedgerError:
            pass
        except Crash:
            self.die()

    def die(self) -> None:
        self.log.metadata.close()  # its session ends
        self.recorder.close()
        self.begin()

    def step(self) -> None:
        raise NotImplementedError


class Producer(Process):
    """Sends one to three records at once; who numbers them sends again what is in doubt."""

    sequence = 0
    doubtful: tuple[int, ...] = ()

    def step(self) -> None:
        numbered = self.name == "numbered"
        numbers = self.doubtful or tuple(self.play.number() for _ in range(self.play.chance.randint(1, 3)))
        if not self.doubtful:
            self.sequence += 1
        rows = tuple(Row(str(number)) for number in numbers)
        batch = BatchId(self.sequence, "q", "run", b"d%d" % self.sequence) if numbered else None
        named = {"producer": "n", "sequence": self.sequence} if numbered else {}
        self.doubtful = numbers if numbered else ()
        with self.recorder.asking(Send(topic=TOPIC, rows=rows, **named)) as call:
            done = append(self.log, *numbers, batch_id=batch, producer="n" if numbered else "")
            start = done.start
            at = () if done.duplicate else [Position(start.ledger, start.entry, i) for i in range(len(rows))]
            call.ok(rows=tuple(Row(row.value, place) for row, place in zip(rows, at, strict=True)) if at else rows)
        self.doubtful = ()


class Follower(Process):
    """Reads on from where it stopped, a few records at a time."""

    position = EARLIEST

    def begin(self) -> None:
        super().begin()
        self.position = EARLIEST

    def step(self) -> None:
        with self.recorder.asking(Poll(topic=TOPIC, start=self.position)) as call:
            reader = Reader(self.log, self.position, "latest")
            records = islice(reader, self.play.chance.randint(1, 6))
            rows = [Row(str(record["n"]), record.position) for record in records]
            self.position = reader.position
            call.ok(rows=tuple(rows))


class Subscriber(Process):
    """Receives, acknowledges some of it in any order, has some redelivered, leaves and comes back."""

    def begin(self) -> None:
        super().begin()
        self.consumer: Consumer | None = None
        self.role = 0
        self.held: list[Message] = []

    def step(self) -> None:
        if self.consumer is None:
            self.role += 1
            self.held = []
            self.consumer = Consumer(self.log, SUBSCRIPTION)
        act = self.play.chance.choice([self.receive, self.receive, self.receive, self.acknowledge, self.leave])
        act(self.consumer)

    def common(self) -> dict[str, str]:
        return {"topic": TOPIC, "subscription": SUBSCRIPTION, "role": f"consumer {self.role}"}

    def receive(self, consumer: Consumer) -> None:
        with self.recorder.asking(Poll(**self.common())) as call:
            message = consumer.receive(timeout_s=0.0)
            if message is not None:
                self.held.append(message)
                row = Row(str(message["n"]), message.position)
                call.ok(rows=(row,), revision=message.revision, epoch=message.epoch)

    def acknowledge(self, consumer: Consumer) -> None:
        if self.held:
            message = self.held.pop(self.play.chance.randrange(len(self.held)))
            event = Acknowledge(positions=(message.position,), revision=message.revision, **self.common())
            with self.recorder.asking(event) as call:
                call.ok(moved=None if consumer.acknowledge(message) else False)

    def leave(self, consumer: Consumer) -> None:
        if self.play.chance.random() < 0.3:
            self.consumer = None
            consumer.close()


class Resetter(Process):
    def step(self) -> None:
        handle = CursorHandle(self.log, SUBSCRIPTION)
        to = self.play.chance.choice(["earliest", "latest"])
        with self.recorder.asking(Reset(topic=TOPIC, subscription=SUBSCRIPTION)) as call:
            done = handle.reset(to)
            call.ok(to=done.position, revision=done.revision)


class Cleaner(Process):
    def step(self) -> None:
        gc.collect(self.log)


class Looker(Process):
    """Looks at the cursor, with no faults of its own."""

    def step(self) -> None:
        with self.recorder.asking(CursorSeen(topic=TOPIC, subscription=SUBSCRIPTION)) as call:
            cursor = CursorNode(self.play.world.log(), SUBSCRIPTION).refresh(sync=True)
            call.ok(revision=cursor.revision, mark_delete=cursor.mark_delete)


class Play:
    """Everybody acts in turns that follow from a seed."""

    def __init__(self, folder: Path, seed: int, trouble: float) -> None:
        self.folder, self.chance, self.ticks = folder, random.Random(seed), Ticks(seed)
        self.trouble = trouble
        self.world = World(folder / "storage", EAGER, SeededClock(seed))
        CursorNode(self.world.log(), SUBSCRIPTION).ensure("earliest")
        self.numbers = 0
        kinds = [Producer, Follower, Follower, Subscriber, Subscriber, Resetter, Cleaner, Looker]
        names = ["plain", "reader-1", "reader-2", "consumer-1", "consumer-2", "resetter", "cleaner", "looker"]
        self.cast = [kind(self, name) for kind, name in zip(kinds, names, strict=True)]
        self.cast.append(Producer(self, "numbered"))

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def faults(self) -> Faults:
        rate, seed = self.trouble, self.chance.randrange(2**32)
        return Faults(
            seed, lost_before=rate, applied_then_lost=rate, delayed=rate, stale_read=rate, expired=rate / 4
        )  # fmt: skip

    def run(self, steps: int) -> None:
        weights = [2 if process.name == "resetter" else 6 for process in self.cast]
        for _ in range(steps):
            process = self.chance.choices(self.cast, weights)[0]
            if self.chance.random() < 0.1:
                process.faults.crash_at(self.chance.randint(1, 4), applied=self.chance.random() < 0.5)
            if self.chance.random() < 0.05:
                self.world.server.deliver_delayed()
            process.act()
            self.world.clock.sleep(self.chance.choice([0.0, 0.5, 3.0]))

    def history(self) -> list[Event]:
        for process in self.cast:
            process.recorder.close()
        self.world.server.deliver_delayed()
        recorder = Recorder(self.folder / "history-end.jsonl", "end", self.ticks)
        log = self.world.log()
        recorder.saw(FinalLog(topic=TOPIC, rows=tuple(Row(str(number), position) for number, position in read(log))))
        files = gc.references(log, log.refresh(sync=True))
        named = {staged_file(log.topic.uuid, file.epoch, file.uid) for file in files}
        recorder.saw(FinalFiles(topic=TOPIC, named=tuple(sorted(named)), present=tuple(sorted(self.world.files()))))
        recorder.close()
        return load(sorted(self.folder.glob("history-*.jsonl")))


def played(folder: Path, seed: int, trouble: float = 0.2) -> list[Event]:
    folder.mkdir()
    play = Play(folder, seed, trouble)
    play.run(120)
    return play.history()


@pytest.mark.parametrize("first", range(0, examples(8), 4))
def test_what_processes_record_has_no_anomaly(tmp_path, first):
    told: Counter[str] = Counter()
    for seed in range(first, first + 4):
        history = played(tmp_path / str(seed), seed, trouble=(0.0, 0.05, 0.1, 0.2)[seed % 4])
        report = check(history)
        assert report.anomalies == [], f"seed {seed}: {report}"
        assert report.not_checked == []
        told.update(event.told for event in history)
        told.update(type(event).__name__ for event in history)
    assert all(told[name] for name in ("ok", "refused", "unknown", "Send", "Poll", "Acknowledge", "Reset")), told


def test_an_append_that_takes_unknown_for_not_done_is_found_out(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "look_for", lambda log, prepared, **_: lambda: False)
    names = {name for seed in range(4) for name in check(played(tmp_path / str(seed), seed)).names}
    assert "duplicate" in names


def test_a_consumer_that_reads_on_after_a_reset_where_it_was_is_found_out(tmp_path, monkeypatch):
    adopt = Consumer._adopt

    def stay(self: Consumer, cursor: Cursor) -> None:
        before = getattr(self, "_position", cursor.mark_delete), getattr(self, "_ordinal", cursor.ordinal)
        adopt(self, cursor)
        self._position, self._ordinal = before

    monkeypatch.setattr(Consumer, "_adopt", stay)
    names = {name for seed in range(4) for name in check(played(tmp_path / str(seed), seed, 0.0)).names}
    assert names & {"poll skip", "non-monotonic poll"}, names
