"""Random histories of everything that names files, and of gc: whatever happens, nothing that is named, still can be, or
would be named after a restore of a young backup, is deleted (I12); and in the end nothing is left that nothing names.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.base import names
from pyspark_ledger.base.position import Position
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.errors import Conflict, DataLoss
from pyspark_ledger.lifecycle import gc, retention, rewriting
from pyspark_ledger.lifecycle.rewrite_copy import LedgerCopy, copy
from pyspark_ledger.lifecycle.rewrite_plan import plan
from pyspark_ledger.lifecycle.verify import verify
from pyspark_ledger.log import generations, places, scan, trimmed
from pyspark_ledger.metadata.records import Entry
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults
from tests.support import examples
from tests.support.lifecycle import crash_after_deleting, named
from tests.support.rollback import Snapshot, restore, snapshot
from tests.support.worlds import SCHEMA, SMALL, World, append, stage

GRACE_S = 100.0
LIMITS = replace(SMALL, gc_grace_ms=int(GRACE_S * 1000), commits_per_ledger=2, index_fanout=2)
PASSED = st.sampled_from([0.0, 0.4, 0.7, 1.0, 1.0, 1.0, 1.0])  # of the grace, before gc runs


class GcMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(self.folder, LIMITS, SeededClock(seed), key="n")
        self.clock = self.world.clock
        self.number = 0
        self.written: list[int] = []
        self.late = False  # whether a task has staged a file of an epoch that was judged
        self.slow: list[tuple[float, Entry, int]] = []  # staged when, and not committed yet
        self.backups: list[tuple[float, Snapshot]] = []
        self.replaced: dict[int, float] = {}  # generation -> when
        self.copied: list[tuple[float, list[LedgerCopy]]] = []  # by a rewriting that was not published yet
        self.planned: list[tuple[float, set[str]]] = []  # files of batches that are being read

    # -- what names files

    @rule(times=st.integers(1, 3))
    def write(self, times: int) -> None:
        for _ in range(times):
            self.number += 1
            append(self.world.log(), self.number)
            self.written.append(self.number)

    @rule()
    def write_a_long_list(self) -> None:
        log = self.world.log()
        entries = tuple(stage(log, self.number + n) for n in (1, 2, 3))
        protocol.append(log, StagedBatch(log.clock.new_id(), entries, SCHEMA))
        self.written += [self.number + n for n in (1, 2, 3)]
        self.number += 3

    @rule()
    def begin_a_slow_batch(self) -> None:
        log = self.world.log()
        self.number += 1
        self.slow.append((self.clock.monotonic(), stage(log, self.number), self.number))

    @rule()
    def end_a_slow_batch(self) -> None:
        if self.slow:
            began, entry, number = self.slow.pop()
            log = self.world.log()
            try:
                protocol.append(log, StagedBatch(log.clock.new_id(), (entry,), SCHEMA))
                self.written.append(number)
            except Conflict as conflict:
                is_too_old = self.clock.monotonic() - began >= GRACE_S
                if conflict.code != "LEDGER_STAGED_TOO_LONG_AGO" or not is_too_old:
                    raise

    @rule(back=st.integers(0, 4))
    def a_task_is_late(self, back: int) -> None:
        log = self.world.log()
        stage(log, 666, epoch=max(0, log.view().head.gc_epoch - back))
        self.late = self.late or back > 1

    @rule()
    def compact(self) -> None:
        self.write(1)
        log = self.world.log()
        before = log.view().head.generation
        if compact(log) is not None and before is not None:
            self.replaced[before.number] = self.clock.monotonic()

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        log = self.world.log()
        retention.trim(log, before=Position(round(log.view().head.ledger * share), 0, 0))

    @rule(everything=st.booleans())
    def rewrite(self, everything: bool) -> None:
        rewriting.rewrite(self.world.log(), everything=everything)

    @rule(step=st.integers(1, 5), applied=st.booleans())
    def rewrite_and_crash(self, step: int, applied: bool) -> None:
        faults = Faults()
        faults.crash_at(step, applied=applied)
        log = self.world.log(faults)
        with suppress(Crash):
            rewriting.rewrite(log)
        log.metadata.expire()  # type: ignore[attr-defined]

    @rule()
    def begin_a_slow_rewriting(self) -> None:
        log = self.world.log()
        work = plan(log, log.view(), 1 << 20, everything=False)
        copied = [copy(log.files, each, log.view().head.gc_epoch, log.clock) for each in work]
        self.copied.append((self.clock.monotonic(), copied))

    @rule()
    def end_a_slow_rewriting(self) -> None:
        if self.copied:
            began, copied = self.copied.pop()
            try:
                rewriting.publish(self.world.log(), copied)
            except Conflict as conflict:
                is_too_old = self.clock.monotonic() - began >= GRACE_S
                if conflict.code != "LEDGER_STAGED_TOO_LONG_AGO" or not is_too_old:
                    raise

    @rule()
    def plan_a_read(self) -> None:
        log = self.world.log()
        view = log.view()
        pieces = scan.slices(log, view, places.earliest(view), view.head.end)
        files = {names.staged_file(log.topic.uuid, piece.file.epoch, piece.file.uid) for piece in pieces}
        self.planned.append((self.clock.monotonic(), files))

    # -- gc and time

    @rule(share=PASSED, thorough=st.sampled_from([False, False, True]))
    def collect(self, share: float, thorough: bool) -> None:
        self.clock.sleep(GRACE_S * share)
        gc.collect(self.world.log(), thorough=thorough)
        self.check()
        assert verify(self.world.log()).is_sound

    @rule(share=PASSED, deleted=st.sampled_from([0, 1, 2, 10**6]), applied=st.booleans())
    def collect_and_crash(self, share: float, deleted: int, applied: bool) -> None:
        self.clock.sleep(GRACE_S * share)
        faults = Faults()
        faults.crash_at(1, applied=applied)
        with suppress(Crash), crash_after_deleting(self.world, deleted):
            gc.collect(self.world.log(faults))
        self.check()

    @rule()
    def back_up(self) -> None:
        self.backups.append((self.clock.monotonic(), snapshot(self.world.server)))

    # -- what must be true whenever gc has run: nobody else deletes a file

    def check(self) -> None:
        log, now = self.world.log(), self.clock.monotonic()
        for number, when in self.replaced.items():
            if now - when < GRACE_S:
                generations.numbered(log, log.view(), number)  # raises if it cannot be read any more
        self.planned = [read for read in self.planned if now - read[0] < GRACE_S]
        assert all(files <= self.world.files() for _, files in self.planned), "a planned batch cannot be read"
        self.backups = [backup for backup in self.backups if now - backup[0] < GRACE_S]
        state = snapshot(self.world.server)
        for backup in (*(backup for _, backup in self.backups), state):
            self.check_as_if_restored(backup)

    def check_as_if_restored(self, backup: Snapshot) -> None:
        """Also if a batch that is under way is committed then."""
        restore(self.world.server, backup)
        assert_nothing_is_missing(self.world)
        for _, entry, _ in self.slow:
            log = self.world.log()
            with suppress(Conflict, DataLoss):
                protocol.append(log, StagedBatch(b"what if".ljust(16), (entry,), SCHEMA))
            assert_nothing_is_missing(self.world)
            restore(self.world.server, backup)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for _ in range(5):
                self.clock.sleep(GRACE_S)
                gc.collect(self.world.log())
            self.clock.sleep(GRACE_S)
            gc.collect(self.world.log(), thorough=self.late)  # which finds what tasks have staged late
            assert self.world.files() == named(self.world), "a file that nothing names is left"
            assert verify(self.world.log(), deep=True).findings == ()
            gone = trimmed.records_before_begin(self.world.log().view().head)
            assert self.world.read() == self.written[gone:], "I1, I2"
            shutil.rmtree(self.folder, ignore_errors=True)


def assert_nothing_is_missing(world: World) -> None:
    missing = named(world) - world.files()
    assert not missing, "I12"


TestGcMachine = GcMachine.TestCase
TestGcMachine.settings = settings(max_examples=examples(15), stateful_step_count=40, deadline=None)
