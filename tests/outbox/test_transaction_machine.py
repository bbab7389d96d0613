"""Any history of consume, transform, produce: what is made of a message is in all topics or in none, with its token and
its acknowledgement, and once, over crashes, lost answers, rivals and resets (I1, I11, I14)."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyspark_ledger.client import LedgerClient, client_of
from pyspark_ledger.cursors.consumer import Consumer, Message
from pyspark_ledger.errors import Conflict, CursorUnderRevision, Fenced, OutcomeUnknown, Unavailable
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.outbox.transaction import Transaction
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults, MemoryMetadata, MemoryServer
from tests.support import examples
from tests.support.worlds import SCHEMA, SMALL

TROUBLES = (OutcomeUnknown, Unavailable, CursorUnderRevision)
MESSAGES = 12


class TransactionMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32), trouble=st.sampled_from([0.0, 0.05, 0.2]))
    def start(self, seed: int, trouble: float) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.clock = SeededClock(seed)
        self.server = MemoryServer(self.clock)
        self.sane = self.client()
        for name in ("in", "out", "audit"):
            self.sane.create_topic(name, SCHEMA)
        with self.sane.producer("in", mint_tokens=True) as producer:
            for number in range(MESSAGES):
                producer.send({"n": number})
        self.seed, self.trouble, self.rivals = seed, trouble, 0
        self.process: LedgerClient | None = None
        self.consumer: Consumer | None = None
        self.open: Transaction | None = None
        self.held: list[Message] = []
        self.was_reset = False
        self.restart()

    def client(self, faults: Faults | None = None) -> LedgerClient:
        metadata = MemoryMetadata(self.server, faults, self.clock)
        return client_of(OpenNamespace(metadata, str(self.folder), limits=SMALL, clock=self.clock))

    # -- the process -------------------------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        if self.process is not None:
            self.process._namespace.metadata.expire()  # as the server does when it hears no more of a process
        rate, self.seed = self.trouble, self.seed + 1
        self.faults = Faults(
            self.seed, lost_before=rate, applied_then_lost=rate, delayed=rate, stale_read=rate, expired=rate / 8
        )
        self.process, self.consumer, self.open = self.client(self.faults), None, None

    @rule(count=st.integers(1, 2), rival=st.booleans())
    def work(self, count: int, rival: bool) -> None:
        """Receives, and writes what it makes of that. A transaction whose outcome it does not know comes first."""
        try:
            if self.open is None:
                if self.consumer is None:
                    self.consumer = self.process.consumer("in", "s")
                received = [self.consumer.receive(0.0) for _ in range(count)]
                self.held = [message for message in received if message is not None]
                if self.held:
                    self.open = self.made_of(self.consumer, self.held)
            if rival:
                self.rival()
            if self.open is not None:
                self.open.commit()
                self.open = None
        except Crash:
            self.restart()
        except Fenced:
            self.restart()
        except Conflict as conflict:
            self.open = None
            if conflict.code == "LEDGER_TOKEN_CONSUMED":
                self.skip(self.held)
        except TROUBLES:
            if self.open is not None and self.open._together is None:
                self.open = None  # it was never tried

    def made_of(self, consumer: Consumer, messages: list[Message]) -> Transaction:
        made = self.process.transaction()
        for message in messages:
            made.append("out", {"n": message["n"]})
            made.append("audit", {"n": message["n"]})
        made.acknowledge(consumer, messages)
        made.consume(self.process.tokens("in", "g"), [message.token for message in messages])
        return made

    def skip(self, messages: list[Message]) -> None:
        """Some of them were processed before a reset; those that were not come again."""
        try:
            tokens = self.process.tokens("in", "g")
            for message in messages:
                if tokens.present([message.token]) == [False] and self.consumer is not None:
                    self.consumer.acknowledge(message)
            if self.consumer is not None:
                self.consumer.redeliver_unacknowledged()
        except Crash:
            self.restart()
        except (*TROUBLES, Fenced):
            pass

    # -- everybody else ------------------------------------------------------------------------------------------------

    @rule()
    def rival(self) -> None:
        self.rivals += 1
        with self.sane.transaction() as made:
            made.append("out", {"n": -self.rivals})
            made.append("audit", {"n": -self.rivals})

    @rule()
    def reset(self) -> None:
        try:
            self.client().cursor("in", "s").reset("earliest")
        except Exception:
            return
        self.was_reset = True

    @rule(step=st.integers(1, 4), applied=st.booleans())
    def crash_soon(self, step: int, applied: bool) -> None:
        self.faults.crash_at(step, applied=applied)

    # -- what always holds ---------------------------------------------------------------------------------------------

    def numbers(self, topic: str) -> list[int]:
        return [record["n"] for record in self.client().reader(topic, end="latest")]

    @invariant()
    def all_of_it_or_nothing(self) -> None:
        if not hasattr(self, "server"):
            return
        time = -1
        while time != self.server.time:
            time = self.server.time
            client = self.client()
            out, audit = self.numbers("out"), self.numbers("audit")
            records = list(client.reader("in", end="latest"))
            present = client.tokens("in", "g").present([record.token for record in records])
            cursors = client.cursors("in")
        assert sorted(out) == sorted(audit)
        processed = [number for number in out if number >= 0]
        assert len(processed) == len(set(processed)), "once"
        consumed = {record["n"] for record, there in zip(records, present, strict=True) if not there}
        assert consumed == set(processed), "with its token"
        if cursors and not self.was_reset:
            assert MESSAGES - cursors[0].backlog_records == len(processed), "and its acknowledgement"

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        self.server.deliver_delayed()
        self.trouble = 0.0
        self.restart()
        for _ in range(2 * MESSAGES):
            self.clock.sleep(2)
            self.work(1, False)
        assert sorted(number for number in self.numbers("out") if number >= 0) == list(range(MESSAGES)), "it terminates"
        shutil.rmtree(self.folder)


TestTransactionMachine = TransactionMachine.TestCase
TestTransactionMachine.settings = settings(max_examples=examples(12), stateful_step_count=25, deadline=None)
