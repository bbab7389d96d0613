"""Any history of copies, crashes, lost answers and rivals: each message is processed once (I11).

Two processes run one outbox. Orders are delivered to either, as often as the network likes. What they dispatch is
delivered to a second outbox, as often, later, or in another order. The model: a message changes state at most once and
has at most one output, the two agree, and in the end, when faults stop, every message is through and no token is left.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyspark_ledger.errors import OutcomeUnknown, Unavailable
from pyspark_ledger.outbox.outbox import Outbox
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults, MemoryMetadata
from tests.support import examples
from tests.support.shop import Shop, bill

TROUBLES = (OutcomeUnknown, Unavailable, Crash)
ENTITIES = ("ann", "bob")


class OutboxMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32), trouble=st.sampled_from([0.0, 0.05, 0.2]), foreign=st.booleans())
    def start(self, seed: int, trouble: float, foreign: bool) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.shop = Shop(self.folder, foreign=foreign, clock=SeededClock(seed))
        self.faults = [
            Faults(seed + i, lost_before=trouble, applied_then_lost=trouble, delayed=trouble, stale_read=trouble,
                   expired=trouble / 4)
            for i in range(3)
        ]  # fmt: skip
        self.orders: list[tuple[str, str, bool]] = []  # token, entity, whether a parcel goes with it
        self.network: list[tuple[str, str]] = []  # what was dispatched: it may arrive any number of times
        self.dies_at_dispatch = False
        self.outboxes = [self.shop.billing(self.faults[i], self.dispatch) for i in range(2)]
        self.shipping = self.ship(self.faults[2])

    def ship(self, faults: Faults | None = None) -> Outbox:
        """The receiver, in its own namespace: it counts what it ships."""
        world = self.shop.elsewhere
        metadata = MemoryMetadata(world.server, faults, world.clock)
        return Outbox("shipping", metadata, world.storage, self.no_topics, world.limits, world.clock)

    @staticmethod
    def no_topics(topic: str):
        raise AssertionError(topic)

    def dispatch(self, payload: str, token: str) -> None:
        if self.dies_at_dispatch:
            self.dies_at_dispatch = False
            raise Crash
        self.network.append((payload, token))

    # -- what happens --------------------------------------------------------------------------------------------

    @rule(entity=st.sampled_from(ENTITIES), parcel=st.booleans())
    def order(self, entity: str, parcel: bool) -> None:
        self.orders.append((self.shop.order(), entity, parcel))

    @rule(who=st.integers(0, 1), data=st.data())
    def deliver(self, who: int, data: st.DataObject) -> None:
        if self.orders:
            self.process(who, data.draw(st.integers(0, len(self.orders) - 1)))

    @rule(data=st.data())
    def deliver_while_another_is_at_it(self, data: st.DataObject) -> None:
        """The second copy does all it does between the first one's look and its transaction."""
        if self.orders:
            rival = data.draw(st.integers(0, len(self.orders) - 1))
            self.process(0, data.draw(st.integers(0, len(self.orders) - 1)), lambda: self.process(1, rival))

    def process(self, who: int, number: int, meanwhile=None) -> None:
        token, entity, parcel = self.orders[number]

        def handler(state):
            nonlocal meanwhile
            hook, meanwhile = meanwhile, None
            if hook is not None:
                hook()
            return bill(str(number), parcel=parcel)(state)

        try:
            self.outboxes[who].process(str(number), token, handler, entity=entity)
        except Crash:
            self.outboxes[who] = self.shop.billing(self.faults[who], self.dispatch)
        except TROUBLES:
            pass

    @rule(data=st.data())
    def a_parcel_arrives(self, data: st.DataObject) -> None:
        if self.network:
            self.receive(self.shipping, *data.draw(st.sampled_from(self.network)))

    def receive(self, outbox: Outbox, payload: str, token: str) -> None:
        try:
            outbox.process(payload, token, lambda state: ([*(state or []), payload], []))
        except Crash:
            self.shipping = self.ship(self.faults[2])
        except TROUBLES:
            pass

    @rule(who=st.integers(0, 2), step=st.integers(1, 6), applied=st.booleans())
    def crash_soon(self, who: int, step: int, applied: bool) -> None:
        self.faults[who].crash_at(step, applied=applied)

    @rule()
    def die_at_the_next_dispatch(self) -> None:
        self.dies_at_dispatch = True

    @rule(who=st.integers(0, 1))
    def restart(self, who: int) -> None:
        self.outboxes[who] = self.shop.billing(self.faults[who], self.dispatch)

    # -- what always holds ---------------------------------------------------------------------------------------

    @invariant()
    def state_and_output_agree(self) -> None:
        if not hasattr(self, "shop"):
            return
        server, time = self.shop.world.server, -1
        while time != server.time:  # looking takes time, and what was delayed may come in between
            time = server.time
            changes = Counter(order for entity in ENTITIES for order in self.state(entity))
            invoices = Counter(self.shop.invoiced())
        assert all(count == 1 for count in changes.values()), "at most one state change"
        assert invoices == changes, "at most one output, and it agrees with the state"
        shipped = self.ship_state()
        assert len(shipped) == len(set(shipped)), "at most one parcel"

    def state(self, entity: str) -> list[str]:
        return (self.shop.billing().state(entity) or {"orders": []})["orders"]

    def ship_state(self) -> list[str]:
        return self.ship().state() or []

    def teardown(self) -> None:
        if not hasattr(self, "shop"):
            return
        for world in {self.shop.world, self.shop.elsewhere}:
            world.server.deliver_delayed()
        self.dies_at_dispatch = False
        self.outboxes = [self.shop.billing(None, self.dispatch)] * 2
        for number in range(len(self.orders)):
            self.process(0, number)
        for payload, token in list(self.network):
            self.receive(self.ship(), payload, token)
        numbers = [str(number) for number in range(len(self.orders))]
        assert sorted(order for entity in ENTITIES for order in self.state(entity)) == sorted(numbers), "it terminates"
        parcels = [f"parcel for {number}" for number in numbers if self.orders[int(number)][2]]
        assert sorted(self.ship_state()) == sorted(parcels)
        assert self.shop.tokens_in_flight() == 0
        assert self.shop.parcel_blocks() == [], "no token is left when nothing is in flight"
        assert all(self.shop.billing().pending(entity) == {} for entity in ENTITIES)
        shutil.rmtree(self.folder)


TestOutboxMachine = OutboxMachine.TestCase
TestOutboxMachine.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
