"""Maintenance: what has to be done for topics that live for years, by one process that leads while others stand by.

It seals idle ledgers, gives up old ones, collects files, compacts, and looks after subscriptions: see ``actions``. All
of it may be done by several processes at once, or by hand, and be interrupted anywhere: that only one leads saves work,
and nothing relies on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_ledger.base.names import this_process
from pyspark_ledger.errors import LedgerError, OutcomeUnknown
from pyspark_ledger.lifecycle.actions import ACTIONS, Action, ActionStats
from pyspark_ledger.lifecycle.rates import Pace
from pyspark_ledger.lifecycle.rounds import Rounds, Stopped
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.ephemeral import Ephemeral
from pyspark_ledger.metadata.port import MaintainerKey
from pyspark_ledger.metadata.records import Holder

logger = logging.getLogger(__name__)

_SLICE_S = 0.2  # how long a wait may go on after it was asked to stop


class Leadership:
    """The node of who leads. One who lost its session takes it again, unless somebody else has."""

    def __init__(self, namespace: OpenNamespace) -> None:
        self._namespace, self._metadata = namespace, namespace.metadata
        self.leader: Holder | None = None  # as it was last seen
        self._begin()

    def _begin(self) -> None:
        space = self._namespace
        self._me = Holder(space.clock.new_id(), this_process(), space.clock.now_ms())
        self._node = Ephemeral(
            space.metadata, space.limits, space.clock, MaintainerKey(), self._me, "the maintainer's lead"
        )

    def look(self) -> bool:
        """Whether this process leads: it takes the lead if nobody has it."""
        found = self._metadata.read(MaintainerKey())
        leader = found.record if found is not None else self._take()
        if leader != self.leader:
            role = "" if leader.id == self._me.id else ": this one stands by"
            logger.info("maintainer=%s leads%s", leader.name, role)
        self.leader = leader
        return leader.id == self._me.id

    def _take(self) -> Holder:
        try:
            return self._node.take() or self._me
        except OutcomeUnknown:
            self._begin()  # what may have been made is removed in the background
            raise

    def release(self) -> None:
        self._node.release()


@dataclass(frozen=True, slots=True)
class Health:
    """How a maintainer is.

    Attributes:
        alive: it has made a step not long ago.
        ready: ZooKeeper answers, and it leads or stands by.
        leads: it does the work.
        leader: the name of who does; empty if that is not known.
        error: why it is not ready.
    """

    alive: bool
    ready: bool
    leads: bool
    leader: str
    error: str


class Maintenance:
    """Maintenance of one namespace by one process. Light actions and heavy ones have a thread each."""

    def __init__(
        self,
        namespace: OpenNamespace,
        *,
        actions: Sequence[Action] = ACTIONS,
        read_rate: float | None = None,
        write_rate: float | None = None,
    ) -> None:
        self._namespace, self._clock, self._limits = namespace, namespace.clock, namespace.limits
        self._leadership = Leadership(namespace)
        self._stop = threading.Event()
        self._leads = False
        self._error = "it has not started yet"
        self._lanes: list[_Lane] = []
        for heavy in (False, True):
            some = [action for action in actions if action.heavy == heavy]
            if some:
                self._lanes.append(_Lane(self, namespace, some, read_rate, write_rate))

    @property
    def stats(self) -> dict[str, ActionStats]:
        """By the action's name."""
        return {name: stats for lane in self._lanes for name, stats in lane.rounds.stats.items()}

    def now_ms(self) -> int:
        """The clock that the stats were taken by."""
        return self._clock.now_ms()

    @property
    def health(self) -> Health:
        leader = self._leadership.leader
        return Health(
            alive=all(self._clock.monotonic() - lane.beat < self._limits.stuck_s for lane in self._lanes),
            ready=not self._error,
            leads=self._leads,
            leader=leader.name if leader is not None else "",
            error=self._error,
        )

    def stop(self) -> None:
        """Asks it to end at the next step. From any thread, or from a signal's handler."""
        self._stop.set()

    def once(self) -> bool:
        """Does everything that there is to do for all topics, whoever leads. False if something failed."""
        well = [lane.rounds.run_all() for lane in self._lanes]
        return all(well)

    def step(self) -> float:
        """Takes the lead if nobody has it, and does what is due. Returns the seconds until there may be more."""
        if not self.look():
            return self._limits.standby_s
        for lane in self._lanes:
            lane.step()
        return min(self._limits.standby_s, *(lane.rounds.remaining for lane in self._lanes))

    def look(self) -> bool:
        """Whether it leads now."""
        try:
            self._leads = self._leadership.look()
            self._said("")
        except LedgerError as error:  # the work goes on if ZooKeeper is there again before the session has ended
            self._said(str(error))
        return self._leads

    def _said(self, error: str) -> None:
        if error and error != self._error:
            logger.warning("maintenance waits: %s", error)
        self._error = error

    def run(self) -> None:
        """Leads or stands by until :meth:`stop`."""
        threads = [threading.Thread(target=lane.run, name=f"ledger-maintain-{n}", daemon=True)
                   for n, lane in enumerate(self._lanes)]  # fmt: skip
        self.look()
        for thread in threads:
            thread.start()
        try:
            while not self._stop.wait(self._limits.standby_s):
                self.look()
        finally:
            self.stop()
            for thread in threads:
                thread.join()
            self.close()

    def close(self) -> None:
        """Lets the lead go, so that another need not wait for the end of this session."""
        self._leadership.release()

    def wait(self, seconds: float) -> None:
        """Raises Stopped if it was asked to stop."""
        while True:
            if self._stop.is_set():
                raise Stopped
            if seconds <= 0:
                return
            self._clock.sleep(min(seconds, _SLICE_S))
            seconds -= _SLICE_S

    @property
    def leads(self) -> bool:
        return self._leads


class _Lane:
    """Some of the actions, and the thread that does them."""

    def __init__(
        self,
        maintenance: Maintenance,
        namespace: OpenNamespace,
        actions: Sequence[Action],
        read_rate: float | None,
        write_rate: float | None,
    ) -> None:
        self._maintenance, self._clock, self._limits = maintenance, namespace.clock, namespace.limits
        self.rounds = Rounds(namespace, actions, Pace(namespace.clock, self._wait, read_rate, write_rate))
        self.beat = namespace.clock.monotonic()
        self._error = ""

    def _wait(self, seconds: float) -> None:
        """Between two steps, so each of them shows that there is life."""
        self.beat = self._clock.monotonic()
        self._maintenance.wait(seconds)
        self.beat = self._clock.monotonic()

    def step(self) -> None:
        """What is due; if not even that can be found out, the next step tries again."""
        self._wait(0.0)
        try:
            self.rounds.run_due()
            self._error = ""
        except Stopped:
            raise
        except Exception as error:
            what = str(error) if isinstance(error, LedgerError) else f"{type(error).__name__}: {error}"
            if what != self._error:
                unexpected = None if isinstance(error, LedgerError) else error
                logger.warning("a round of maintenance ended early: %s", what, exc_info=unexpected)
            self._error = what

    def run(self) -> None:
        try:
            while True:
                if self._maintenance.leads:
                    self.step()
                self._wait(self._limits.standby_s)
        except Stopped:
            return
