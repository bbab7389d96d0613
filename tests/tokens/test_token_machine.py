"""Any history of sinks, callers, crashes and lost answers: a token goes once, and with its effect (I11).

Two sinks and a Python caller share a group; a third sink is a group of its own. Batches are any mixture of tokens, new
and old, of records and minted ones, with repetitions, as text or as numbers. The model: in each group a token is
there, or it has one effect. Records are given up too: then a token may be data loss by name, and never a "duplicate"
that nobody has processed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyspark_ledger.append import append as protocol
from pyspark_ledger.base.position import Position
from pyspark_ledger.base.token_prefix import TokenPrefix
from pyspark_ledger.errors import Conflict, DataLoss, OutcomeUnknown, Unavailable
from pyspark_ledger.lifecycle import gc, retention
from pyspark_ledger.log.places import earliest
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults
from pyspark_ledger.tokens.groups import Groups
from tests.support import examples
from tests.support.pipeline import Pipeline, batch_with_tokens
from tests.support.worlds import SMALL

TINY = replace(
    SMALL, gc_grace_ms=0, token_chunk=8, token_block=4, inline_bitmap_bytes=24, inline_bitmaps=1, node_bitmap_bytes=5
)
TROUBLES = (OutcomeUnknown, Unavailable)
OURS, THEIRS = "invoices", "shipments"
CALLER, MINTER = 3, 4


class TokenMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32), trouble=st.sampled_from([0.0, 0.05, 0.2]))
    def start(self, seed: int, trouble: float) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.pipeline = Pipeline(self.folder, TINY, SeededClock(seed))
        self.faults = [
            Faults(seed + i, lost_before=trouble, applied_then_lost=trouble, delayed=trouble, stale_read=trouble,
                   expired=trouble / 4)
            for i in range(5)
        ]  # fmt: skip
        self.tokens: list[str] = []  # of records: both groups may process each
        self.numbers: dict[str, int] = {}  # the same as numbers
        self.minted: list[str] = []  # for our group alone
        self.unheld = 0  # minted at most, and never handed out
        self.called: set[str] = set()  # the caller was told that it consumed these,
        self.lost_calls: set[str] = set()  # and was not told of these
        self.sinks = [self.sink(who) for who in range(3)]
        self.caller = self.pipeline.tokens(OURS, self.faults[CALLER])
        self.minter = self.pipeline.tokens(OURS, self.faults[MINTER])

    def sink(self, who: int):
        log = self.pipeline.log(self.pipeline.invoices, self.faults[who])
        return log, Groups.in_namespace_of(log, THEIRS if who == 2 else OURS)

    # -- what happens --------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 12), mints=st.booleans())
    def order(self, count: int, mints: bool) -> None:
        tokens = self.pipeline.order(*range(count), mints=mints)
        self.tokens += tokens if mints else []
        if mints:
            self.numbers |= zip(tokens, self.pipeline.numbers()[-count:], strict=True)

    @rule(count=st.integers(1, 6))
    def mint(self, count: int) -> None:
        try:
            self.minted += self.minter.mint(count)
        except (Crash, *TROUBLES):
            self.unheld += count  # nobody was told of them
            self.minter = self.pipeline.tokens(OURS, self.faults[MINTER])

    @rule(who=st.integers(0, 2), data=st.data())
    def write(self, who: int, data: st.DataObject) -> None:
        known = [*self.tokens, *self.minted]
        if not known:
            return
        if data.draw(st.booleans()):  # in order
            first = data.draw(st.integers(0, len(known) - 1))
            batch = known[first : first + data.draw(st.integers(1, 20))]
        else:
            batch = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=12))
        spelling = self.spelling(batch, data)
        rows = [(self.number(token) * 3 + who, spelling[token]) for token in batch]
        cut = data.draw(st.integers(0, len(rows)))
        log, groups = self.sinks[who]
        try:
            tasks = [part for part in (rows[:cut], rows[cut:]) if part]
            protocol.append(log, batch_with_tokens(log, tasks, groups, minted_by=self.pipeline.orders))
        except Crash:
            self.sinks[who] = self.sink(who)
        except (*TROUBLES, Conflict):  # not known, or gc was faster: somebody writes them again
            pass
        except DataLoss:
            assert any(map(self.is_gone, batch)), "no record of these was given up"

    @rule(data=st.data())
    def call(self, data: st.DataObject) -> None:
        known = [*self.tokens, *self.minted]
        if not known:
            return
        ids = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=6))
        try:
            took = self.caller.consume(list(map(self.spelling(ids, data).get, ids)))
        except (Crash, *TROUBLES):
            self.lost_calls |= set(ids)
            self.caller = self.pipeline.tokens(OURS, self.faults[CALLER])
            return
        except DataLoss:
            assert any(map(self.is_gone, ids)), "no record of these was given up"
            return
        mine = [token for token, told in zip(ids, took, strict=True) if told]
        assert len(mine) == len(set(mine))
        assert self.called.isdisjoint(mine), "I11: a token was consumed twice by the caller"
        self.called |= set(mine)

    @rule(who=st.integers(0, 4), step=st.integers(1, 4), applied=st.booleans())
    def crash_soon(self, who: int, step: int, applied: bool) -> None:
        self.faults[who].crash_at(step, applied=applied)

    @rule(who=st.integers(0, 2))
    def restart(self, who: int) -> None:
        self.sinks[who] = self.sink(who)

    @rule()
    def collect(self) -> None:
        gc.collect(self.pipeline.log())
        gc.collect(self.pipeline.log(self.pipeline.invoices))

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        """Token groups hold nothing."""
        if self.tokens:
            before = position_of(data.draw(st.sampled_from(self.tokens)))
            retention.trim(self.pipeline.log(), before=before)

    def spelling(self, tokens: list[str], data: st.DataObject) -> dict[str, str | int]:
        """As text or as numbers. Minted ones have none."""
        numbered = self.numbers.keys() >= set(tokens) and data.draw(st.booleans())
        return {token: self.numbers[token] if numbered else token for token in tokens}

    def is_gone(self, token: str) -> bool:
        return token in self.tokens and position_of(token) < earliest(self.pipeline.log().refresh(sync=True))

    def number(self, token: str) -> int:
        return self.tokens.index(token) if token in self.tokens else 1_000 + self.minted.index(token)

    # -- what always holds ---------------------------------------------------------------------------------------

    @invariant()
    def a_token_is_there_or_has_one_effect(self) -> None:
        if not hasattr(self, "pipeline"):
            return
        server, time = self.pipeline.world.server, -1
        while time != server.time:  # looking takes time, and what was delayed may come in between
            time = server.time
            written = Counter((n % 3 == 2, n // 3) for n in self.pipeline.invoiced())
            there_for = {group: self.there(group) for group in (OURS, THEIRS)}
        assert all(count == 1 for count in written.values()), "I11: two effects in one group"
        for theirs, group in ((False, OURS), (True, THEIRS)):
            for token, there in there_for[group].items():
                has_effect = (theirs, self.number(token)) in written or (not theirs and token in self.called)
                assert not (there and has_effect), "I11: an effect, and the token is still there"
                unknown = not theirs and token in self.lost_calls
                assert there or has_effect or unknown, "I11: the token is gone, and nothing came of it"
                assert not ((theirs, self.number(token)) in written and not theirs and token in self.called)

    def there(self, group: str) -> dict[str, bool]:
        """Of those that are gone, some by chance, and one by one: each may be data loss."""
        begin = earliest(self.pipeline.log().refresh(sync=True))
        left = [token for token in self.tokens if position_of(token) >= begin]
        known = left + (self.minted if group == OURS else [])
        found = dict(zip(known, self.pipeline.tokens(group).present(known), strict=True))
        for token in self.tokens[: len(self.tokens) - len(left)][:: max(1, len(self.tokens) // 4)]:
            with suppress(DataLoss):
                [found[token]] = self.pipeline.tokens(group).present([token])
        return found

    def teardown(self) -> None:
        if not hasattr(self, "pipeline"):
            return
        self.pipeline.world.server.deliver_delayed()
        for group in (OURS, THEIRS):
            for known in ([token for token in self.tokens if not self.is_gone(token)], self.minted):
                if known:
                    self.pipeline.tokens(group).consume(known)
        if self.tokens and self.is_gone(self.tokens[0]):
            shutil.rmtree(self.folder)
            return  # what was given up and not consumed counts as in flight for ever
        for stats in self.pipeline.tokens().stats():
            unheld = self.unheld if stats.group == OURS else 0
            assert max(stats.in_flight, stats.blocks) <= unheld, "no token is left when nothing is in flight"
            assert stats.nodes - stats.blocks <= 2, "nor what told of them: the last chunk is not full yet"
        shutil.rmtree(self.folder)


def position_of(token: str) -> Position:
    prefix, _, index = token.rpartition(":")
    found = TokenPrefix.parse(prefix)
    assert found is not None
    return Position(found.ledger, found.entry, int(index))


TestTokenMachine = TokenMachine.TestCase
TestTokenMachine.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
