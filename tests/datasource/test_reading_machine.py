"""Random histories of reading: a topic that grows, is sealed and gets columns; reads from anywhere to anywhere; a
subscription that two checkpoints follow in turns, that is reset while they do, and made again; crashes before a batch
is done. The model is a list of records and a few numbers. Whatever happens, what is delivered is what the model says
(I2), a logged batch reads the same for ever (I7), and nothing that was acknowledged comes again without a reset (I8).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.datasource.offsets import Offset
from pyspark_ledger.errors import Conflict
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.log import scan
from pyspark_ledger.log.seal import seal
from pyspark_ledger.testing.clock import SeededClock
from tests.support import examples
from tests.support.query import INITIAL, WorldQuery, document, fields, flat, version_1
from tests.support.worlds import World, append

LIMIT = 3  # rows of a batch
CHANGE = st.sampled_from(["grow", "grow", "grow", "seal", "get a column"])
SHARE = st.floats(0, 1)  # which of all places there are: 0 is the first, 1 the end


@dataclass
class Checkpoint:
    """What Spark would keep of one query, and what the model knows of it."""

    offset: dict | None = None
    ordinal: int = 0  # of the next record
    revision: int = 0
    logged: list[tuple[dict, dict, list[int]]] = field(default_factory=list)


@dataclass
class Running:
    checkpoint: Checkpoint
    query: WorldQuery
    columns: int  # of the topic when it was loaded
    mark: int  # what was acknowledged when it came,
    revision: int  # and under which revision


class ReadingMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(self.folder, clock=SeededClock(seed))
        self.records: list[tuple[int, int]] = []  # its value, and how many columns the topic had
        self.columns = 1
        self.logged: list[tuple[dict, dict, list[int]]] = []
        self.checkpoints = [Checkpoint(), Checkpoint()]
        self.running: Running | None = None
        self.make_subscription("earliest", 0)
        for count in (5, 1, 4):
            self.grow(count)

    def make_subscription(self, place: str | Position, mark: int) -> None:
        CursorNode(self.world.log(), "s").ensure(place)
        self.mark, self.revision, self.last_backward = mark, 0, 0

    def ordinal(self, share: float) -> int:
        return round(share * len(self.records))

    def position(self, ordinal: int) -> Position:
        log = self.world.log()
        return scan.position_at(log, log.view(), ordinal)

    def values(self, start: int, stop: int | None = None) -> list[int]:
        return [value for value, _ in self.records[start:stop]]

    # -- the topic -------------------------------------------------------------------------------------------------

    @rule(what=CHANGE, count=st.integers(1, 5))
    def change(self, what: str, count: int) -> None:
        if what == "grow":
            self.grow(count)
        elif what == "seal":
            self.seal_early()
        else:
            self.get_a_column()

    def grow(self, count: int) -> None:
        new = range(len(self.records), len(self.records) + count)
        append(self.world.log(), *new)
        self.records += [(number, self.columns) for number in new]

    def get_a_column(self) -> None:
        log, name = self.world.log(), f"c{self.columns}"
        wider = log.schema(log.view().head.schema_id).append(pa.field(name, pa.string()))
        rows = pa.RecordBatch.from_pylist([{"n": len(self.records), name: "x"}], schema=wider)
        entry = stage_entry(log.storage, log.topic.uuid, log.view().head.gc_epoch, [rows], "lz4", log.clock)
        protocol.append(log, StagedBatch(log.clock.new_id(), (entry,), wider, merge_schema=True))
        self.columns += 1
        self.records.append((len(self.records), self.columns))

    def seal_early(self) -> None:
        log = self.world.log()
        log.limits = replace(log.limits, commits_per_ledger=1)
        seal(log)

    # -- reads without a subscription --------------------------------------------------------------------------------

    @rule(begin=SHARE, end=st.none() | SHARE, spelling=st.sampled_from(["position", "version 1", "version 2"]))
    def read_from_anywhere(self, begin: float, end: float | None, spelling: str) -> None:
        start, stop = self.ordinal(begin), len(self.records) if end is None else self.ordinal(end)
        options = {"startingOffsets": self.spelled(start, spelling), "maxRowsPerTrigger": str(LIMIT)}
        if end is not None:
            options["endingOffsets"] = self.spelled(stop, spelling)
        query = WorldQuery(self.world, **options)
        assert flat(query.all()) == self.values(start, stop)
        assert fields(query.offset)["records"] == max(start, stop)
        self.logged += [batch for batch in query.batches if batch[0] != batch[1]]

    def spelled(self, ordinal: int, spelling: str) -> str:
        if spelling == "position":
            return str(self.position(ordinal))
        log = self.world.log()
        offset = document(Offset(log.topic.uuid, self.position(ordinal)).seen(log, log.view()))
        return json.dumps(offset if spelling == "version 2" else version_1(offset))

    @precondition(lambda self: self.logged)
    @rule(data=st.data(), old_start=st.booleans(), old_end=st.booleans())
    def replay(self, data: st.DataObject, old_start: bool, old_end: bool) -> None:
        """I7, also if one end of the batch was logged by the first version of this package."""
        start, end, rows = data.draw(st.sampled_from(self.logged))
        first = version_1(start) if old_start and start != INITIAL and start["v"] == 2 else start
        last = version_1(end) if old_end and end["v"] == 2 else end
        assert WorldQuery(self.world).read(first, last) == rows

    # -- the subscription --------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 1), old=st.booleans(), again=st.booleans(), done=st.booleans(), data=st.data(),
          acts=st.lists(st.sampled_from(["read"] * 6 + ["move", "change"]), min_size=1, max_size=6))  # fmt: skip
    def take_a_turn(self, who: int, old: bool, again: bool, done: bool, acts: list[str], data: st.DataObject) -> None:
        """One of two queries comes with its checkpoint, reads a few batches and leaves, perhaps before the last one is
        known to be done. Meanwhile others change the topic and move the subscription."""
        self.come(who, old, again)
        for act in acts:
            if act == "move":
                self.move(data.draw(SHARE), "position", data.draw(st.integers(-3, 6)))
            elif act == "change":
                self.change(data.draw(CHANGE), data.draw(st.integers(1, 5)))
            elif self.running is not None:
                self.read_a_batch(self.running)
        if self.running is not None:
            self.leave(done)

    def come(self, who: int, old: bool, again: bool) -> None:
        """Perhaps with a checkpoint of version 1. If the last batch is not known to be done, Spark repeats it."""
        checkpoint = self.checkpoints[who]
        if checkpoint.offset is not None and old and checkpoint.offset["v"] == 2:
            checkpoint.offset = version_1(checkpoint.offset)
        query = WorldQuery(self.world, offset=checkpoint.offset, subscription="s", maxRowsPerTrigger=str(LIMIT))
        self.running = Running(checkpoint, query, self.columns, self.mark, self.revision)
        if again and checkpoint.logged:
            start, end, rows = checkpoint.logged[-1]
            assert query.read(start, end) == rows

    def begin(self, running: Running) -> int:
        """Where the next batch begins; what the query has done is acknowledged before."""
        at = running.checkpoint
        if at.offset is None:
            return self.mark
        if at.revision == self.revision:
            self.mark = max(self.mark, at.ordinal)
            return max(at.ordinal, running.mark if running.revision == self.revision else 0)
        return max(self.mark, at.ordinal) if at.revision >= self.last_backward else self.mark

    def read_a_batch(self, running: Running) -> None:
        at, begin = running.checkpoint, self.begin(running)
        known = [columns <= running.columns for _, columns in self.records[begin:]]
        end = begin + min(LIMIT, known.index(False) if False in known else len(known))
        if begin == end < len(self.records):
            with pytest.raises(Conflict, match="LEDGER_SCHEMA_CHANGED"):
                running.query.batch()
            self.leave(done=False)  # and comes again with the new columns
            return
        assert running.query.batch() == self.values(begin, end)
        start, offset, rows = running.query.batches[-1]
        if begin == end and at.offset is not None:
            assert offset is start
            return
        assert fields(offset)["records"] == end
        at.offset, at.ordinal, at.revision = offset, end, self.revision
        at.logged.append((start, offset, rows))
        self.logged.append((start, offset, rows))

    def leave(self, done: bool) -> None:
        running, self.running = self.running, None
        at = running.checkpoint
        if done and at.offset is not None:
            running.query.reader.commit(at.offset)
            if at.revision == self.revision:
                self.mark = max(self.mark, at.ordinal)
        running.query.stop()

    @rule(share=SHARE, spelling=st.sampled_from(["position", "version 1", "version 2"]), skip=st.integers(-6, 6))
    def move(self, share: float, spelling: str, skip: int) -> None:
        if skip > 0:
            self.skip(skip)
        else:
            self.reset(share, spelling)

    def reset(self, share: float, spelling: str) -> None:
        ordinal = self.ordinal(share)
        CursorHandle(self.world.log(), "s").reset(self.spelled(ordinal, spelling))
        self.mark, self.revision = ordinal, self.revision + 1
        self.last_backward = self.revision

    def skip(self, count: int) -> None:
        CursorHandle(self.world.log(), "s").skip(count)
        self.mark, self.revision = min(self.mark + count, len(self.records)), self.revision + 1

    @rule(share=SHARE)
    def make_the_subscription_again(self, share: float) -> None:
        """Checkpoints of version 2 are refused; those of version 1 only if epochs tell, so they are left out here."""
        CursorHandle(self.world.log(), "s").delete()
        ordinal = self.ordinal(share)
        self.make_subscription(self.position(ordinal), ordinal)
        for number, checkpoint in enumerate(self.checkpoints):
            if checkpoint.offset is not None and checkpoint.offset["v"] == 2:
                query = WorldQuery(self.world, offset=checkpoint.offset, subscription="s")
                with pytest.raises(Conflict, match="LEDGER_CURSOR_RECREATED"):
                    query.plan()
                query.stop()
            self.checkpoints[number] = Checkpoint()

    @invariant()
    def the_mark_is_where_the_model_says_I8(self) -> None:
        if hasattr(self, "world"):
            cursor = CursorNode(self.world.log(), "s").refresh(sync=True)
            assert (cursor.ordinal, cursor.revision) == (self.mark, self.revision)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        query = WorldQuery(self.world)
        for start, end, rows in self.logged:
            assert query.read(start, end) == rows
        shutil.rmtree(self.folder)


TestReadingMachine = ReadingMachine.TestCase
TestReadingMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=25, deadline=None, phases=[Phase.generate, Phase.shrink]
)
