"""Random histories of consumers that share a subscription: they join, leave, die, hang and come back, acknowledge and
refuse; others reset the subscription and have records redelivered; answers are lost. Whatever happens:

- no record whose acknowledgement was written is delivered again within its revision (I7),
- no two living consumers have a record at a time,
- with keys, no record overtakes an older one of its key, and one consumer at a time has records of a key,
- everything is handled in the end (I1, I16).
"""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors import shares
from pyspark_ledger.cursors.backoff import Backoff
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.key_shared_consumer import KeySharedConsumer
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.receiving import Message
from pyspark_ledger.cursors.shared_consumer import SharedConsumer
from pyspark_ledger.errors import Conflict, CursorUnderRevision, OutcomeUnknown, Unavailable
from pyspark_ledger.log import scan
from pyspark_ledger.log.keys import SLOTS
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.records import Cursor
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults
from tests.support import examples, histories
from tests.support.worlds import World

KEYED = pa.schema([pa.field("k", pa.string()), pa.field("n", pa.int64())])
KEYS = 5
PROCESSES = 3
TROUBLES = (OutcomeUnknown, Unavailable, Conflict, CursorUnderRevision)


@dataclass
class Process:
    faults: Faults
    log: Log | None = None
    consumer: SharedConsumer | None = None
    hand: dict[int, tuple[bytes, Message]] = field(default_factory=dict)  # ordinal -> under which id, and what
    done: dict[int, tuple[bytes, Message]] = field(default_factory=dict)  # acknowledged, perhaps not written yet

    def die(self) -> None:
        if self.log is not None:
            self.log.metadata.close()
        self.log, self.consumer, self.hand, self.done = None, None, {}, {}

    def has(self, ordinal: int, cursor: Cursor) -> bool:
        """Whether it has a record in hand, and is one of those who share the subscription under this cursor."""
        id, message = self.hand.get(ordinal, (b"", None))
        return message is not None and _counts(id, message, cursor)


def _counts(id: bytes, message: Message, cursor: Cursor) -> bool:
    is_current = (message.revision, message.epoch) == (cursor.revision, cursor.epoch)
    return is_current and shares.member(cursor, id) is not None


def _is_done(cursor: Cursor, ordinal: int) -> bool:
    return ordinal < cursor.ordinal or ordinal in shares.acks(cursor)


class SharedMachine(RuleBasedStateMachine):
    kind: type[SharedConsumer] = SharedConsumer

    @initialize(
        seed=st.integers(0, 2**32), trouble=st.sampled_from([0.0, 0.05, 0.2]), prefetch=st.sampled_from([1, 4, 1000])
    )
    def start(self, seed: int, trouble: float, prefetch: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(self.folder, clock=SeededClock(seed), schema=KEYED, key="k")
        self.prefetch, self.records = prefetch, 0
        self.append(20)
        self.node = CursorNode(self.world.log(), "s")
        self.node.ensure("earliest")
        rates = {"lost_before": trouble, "applied_then_lost": trouble, "delayed": trouble, "stale_read": trouble}
        self.processes = [Process(Faults(seed + number, **rates)) for number in range(PROCESSES)]
        self.resets = Faults(seed + PROCESSES, **rates)
        self.resetter = CursorHandle(self.world.log(self.resets), "s")
        self.before = self.cursor()
        self.outside = (0, 0)  # a revision, and the records before this one were acknowledged from outside

    def cursor(self) -> Cursor:
        return self.node.refresh(sync=True)

    @rule(count=st.integers(1, 20))
    def append(self, count: int) -> None:
        with Producer(self.world.log()) as producer:
            for n in range(self.records, self.records + count):
                producer.send({"k": f"key {n % KEYS}" if n % 7 else None, "n": n})
        self.records += count

    # -- consumers -------------------------------------------------------------------------------------------------

    def attempt(self, who: int, act):
        """What a process does; None if it does not work now, or kills it."""
        process = self.processes[who]
        try:
            if process.log is None:
                process.log = self.world.log(process.faults, watch=True)
            if process.consumer is None:
                process.consumer = self.kind(process.log, "s", backoff=Backoff(1.0, 4.0), prefetch=self.prefetch)
            return act(process.consumer)
        except TROUBLES:
            return None
        except Crash:
            self.die(who)
            return None

    @rule(seed=st.integers(0, 2**32), steps=st.integers(5, 40))
    def work(self, seed: int, steps: int) -> None:
        """All of them, for a while."""
        chance = random.Random(seed)
        for _ in range(steps):
            who = chance.randrange(PROCESSES)
            act = chance.choice([self.receive, self.receive, self.acknowledge, self.acknowledge, self.refuse])
            act(who, chance.randrange(1, 5))

    def receive(self, who: int, count: int) -> None:
        for _ in range(count):
            before = self.cursor()
            message = self.attempt(who, lambda consumer: consumer.receive(0.0))
            if message is not None:
                self.check_delivery(self.processes[who], message, before)

    def check_delivery(self, process: Process, message: Message, before: Cursor) -> None:
        assert process.consumer is not None
        ordinal, after = message.ordinal, self.cursor()
        # Who reads from a server that is behind learns later what somebody has acknowledged from outside.
        if message.revision == before.revision and (message.revision, ordinal) >= self.outside:
            assert not _is_done(before, ordinal), "what was acknowledged is delivered again"
        id = process.consumer._follower.id
        if _counts(id, message, after):
            mine = shares.member(after, id)
            assert mine is not None
            assert ordinal in shares.claims(mine), "it is delivered and not claimed"
            for other in self.processes:
                assert other is process or not other.has(ordinal, after), "two have it at a time"
            if issubclass(self.kind, KeySharedConsumer) and message["k"] is not None:
                self.check_order(process, message, after)
        process.hand[ordinal] = id, message

    def check_order(self, process: Process, message: Message, cursor: Cursor) -> None:
        older = [n for n in range(cursor.ordinal, message.ordinal) if n % 7 and n % KEYS == message["n"] % KEYS]
        for ordinal in older:
            if not _is_done(cursor, ordinal):
                kept = process.hand.get(ordinal) or process.done.get(ordinal)
                assert _counts(*kept or (b"", message), cursor), f"it overtakes {ordinal} of its key"

    def acknowledge(self, who: int, count: int) -> None:
        process = self.processes[who]
        for number in range(count):
            if not process.hand:
                return
            ordinal = sorted(process.hand)[number * count % len(process.hand)]
            id, message = process.hand[ordinal]
            counts = self.attempt(who, lambda consumer, message=message: consumer.acknowledge(message))
            if counts is not None:
                process.hand.pop(ordinal, None)
                if counts:
                    process.done[ordinal] = id, message

    def refuse(self, who: int, which: int) -> None:
        process = self.processes[who]
        if process.hand:
            ordinal = sorted(process.hand)[which % len(process.hand)]
            _, message = process.hand[ordinal]
            if self.attempt(who, lambda consumer: consumer.negative_acknowledge(message) or True):
                process.hand.pop(ordinal, None)

    @rule(who=st.integers(0, PROCESSES - 1))
    def flush(self, who: int) -> None:
        process = self.processes[who]
        before = self.cursor()
        if self.attempt(who, lambda consumer: consumer.flush() or True) and not before.reviser:
            after = self.cursor()
            for ordinal, (id, message) in process.done.items():
                if _counts(id, message, after):
                    assert _is_done(after, ordinal), "an acknowledgement that was flushed is written"

    @rule(who=st.integers(0, PROCESSES - 1))
    def redeliver(self, who: int) -> None:
        self.attempt(who, lambda consumer: consumer.redeliver_unacknowledged())

    @rule(who=st.integers(0, PROCESSES - 1))
    def leave(self, who: int) -> None:
        if self.processes[who].consumer is not None:
            self.attempt(who, lambda consumer: consumer.close())
            self.processes[who].die()

    @rule(who=st.integers(0, PROCESSES - 1))
    def die(self, who: int) -> None:
        self.processes[who].die()

    @rule(who=st.integers(0, PROCESSES - 1))
    def hang(self, who: int) -> None:
        """Its session ends while it sleeps; the others' do not."""
        log = self.processes[who].log
        self.world.clock.sleep(11)
        if log is not None:
            log.metadata.expire()

    @rule(who=st.integers(0, PROCESSES - 1))
    def do_chores(self, who: int) -> None:
        log = self.processes[who].log
        if log is not None:
            try:
                log.metadata.chores.run_all()
            except Crash:
                self.die(who)

    # -- the world -------------------------------------------------------------------------------------------------

    @rule(act=st.sampled_from(["reset", "skip", "clear_backlog", "rewind", "redeliver"]), value=st.integers(0, 40))
    def revise(self, act: str, value: int) -> None:
        try:
            if act == "reset":
                log = self.world.log()
                self.resetter.reset(scan.position_at(log, log.view(), min(value, self.records)))
            elif act == "skip":
                self.resetter.skip(value % 5)
            else:
                getattr(self.resetter, act)()
        except TROUBLES:
            pass
        except Crash:
            self.resetter._log.metadata.close()
            self.resetter = CursorHandle(self.world.log(self.resets), "s")

    @rule(value=st.integers(0, 40))
    def acknowledge_from_outside(self, value: int) -> None:
        cursor, log = self.cursor(), self.world.log()
        if cursor.ordinal <= value <= self.records and not cursor.reviser:
            CursorHandle(log, "s").mark_delete(scan.position_at(log, log.view(), value))
            self.outside = cursor.revision, value

    @rule(who=st.integers(0, PROCESSES), step=st.integers(1, 4), applied=st.booleans())
    def crash_soon(self, who: int, step: int, applied: bool) -> None:
        faults = self.resets if who == PROCESSES else self.processes[who].faults
        faults.crash_at(step, applied=applied)

    @rule()
    def deliver_zombies(self) -> None:
        self.world.server.deliver_delayed()

    @rule(seconds=st.sampled_from([0.5, 1.5, 5.0]))
    def wait(self, seconds: float) -> None:
        self.world.clock.sleep(seconds)

    @invariant()
    def the_record_is_sound(self) -> None:
        if not hasattr(self, "node"):
            return
        before, now = self.before, self.cursor()
        assert (now.revision, now.epoch) >= (before.revision, before.epoch) or now.revision > before.revision
        if now.revision == before.revision:
            assert now.ordinal >= before.ordinal, "I8"
            assert all(_is_done(now, n) for n in shares.acks(before).numbers()), "an acknowledgement is lost"
        taken = [run for each in now.members for run in shares.claims(each)]
        assert sum(stop - start for start, stop in taken) == len(Runs(taken)), "two claim one record"
        if now.members and now.sharing == "key_shared":
            for part in (shares.slots, shares.dealt):
                slots = [run for each in now.members for run in part(each)]
                assert sum(stop - start for start, stop in slots) == len(Runs(slots)) == SLOTS
        self.before = now

    def teardown(self) -> None:
        """When the trouble is over, those who are left handle everything."""
        if hasattr(self, "node"):
            self.resetter._log.metadata.close()
            self.world.server.deliver_delayed()
            for process in self.processes:
                process.faults.stop()
            self.die(0)
            for _ in range(200):
                self.world.clock.sleep(1.1)
                for who in (1, 2):
                    self.receive(who, 20)
                    self.acknowledge(who, 100)
                    self.flush(who)
                if self.cursor().ordinal == self.records:
                    break
            assert self.cursor().ordinal == self.records, f"{self.cursor()} gets nowhere (I16)"
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)


class KeySharedMachine(SharedMachine):
    kind = KeySharedConsumer


SETTINGS = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
TestSharedMachine = SharedMachine.TestCase
TestSharedMachine.settings = SETTINGS
TestKeySharedMachine = KeySharedMachine.TestCase
TestKeySharedMachine.settings = SETTINGS


@pytest.mark.parametrize("seed", histories(15))
@pytest.mark.parametrize("kind", [SharedMachine, KeySharedMachine])
def test_long_histories_from_a_seed_I1_I7_I8_I16(kind, seed):
    """The same, with more work between troubles than a search for short examples does."""
    chance, machine = random.Random(seed), kind()
    machine.start(seed, chance.choice([0.0, 0.02, 0.1]), chance.choice([1, 4, 1000]))

    def one() -> int:
        return chance.randrange(PROCESSES)

    seldom = [
        lambda: machine.append(chance.randrange(1, 20)),
        lambda: machine.flush(one()),
        lambda: machine.redeliver(one()),
        lambda: machine.leave(one()),
        lambda: machine.die(one()),
        lambda: machine.hang(one()),
        lambda: machine.do_chores(one()),
        lambda: machine.revise(chance.choice(["reset", "skip", "rewind", "redeliver"]), chance.randrange(40)),
        lambda: machine.acknowledge_from_outside(chance.randrange(40)),
        lambda: machine.crash_soon(chance.randrange(PROCESSES + 1), chance.randrange(1, 5), chance.random() < 0.5),
        machine.deliver_zombies,
        lambda: machine.wait(chance.choice([0.5, 1.5, 5.0])),
    ]
    for _ in range(30):
        machine.work(chance.randrange(2**32), chance.randrange(30))
        chance.choice(seldom)()
        machine.the_record_is_sound()
    machine.teardown()
