"""A process: it acts, waits, is paused, dies and is started again; what it asks and is told is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_ledger.errors import (
    Conflict,
    CorruptData,
    CursorUnderRevision,
    DataLoss,
    Fenced,
    InvalidInput,
    LedgerError,
    OutcomeUnknown,
    Unavailable,
)
from pyspark_ledger.log.log import Log
from pyspark_ledger.testing.disk import StorageFaults
from pyspark_ledger.testing.memory import Crash, Faults, MemoryMetadata
from pyspark_ledger.testing.recorder import MemoryRecorder
from pyspark_ledger.testing.schedule import ScheduleClock

if TYPE_CHECKING:
    from tests.simulation.play import Play

TELLING = (Conflict, CursorUnderRevision, Fenced, OutcomeUnknown, Unavailable)  # an honest answer in bad times
LOST_RESET = "LEDGER_CURSOR_RECREATED"  # the checkpoint has followed one: "start with a new checkpoint"
CALL_S = 0.003  # how long a call takes on average
LONGEST_PAUSE_S = 15.0  # more than a session lives


class Process:
    """Somebody who does one thing after the other. Subclasses say what in :meth:`step`, and in :meth:`begin` with what
    they start, also after a death.

    ``caught_up`` says, when nobody writes any more, whether there is nothing left to do."""

    thinks_s = 0.3  # between two steps, on average
    subscription = ""  # by which it reads
    writes = False  # as long as it goes on, nobody can be expected to have caught up

    def __init__(self, play: Play, name: str) -> None:
        self.play, self.stage, self.name = play, play.stage, name
        self.lives = self.steps = 0
        self.done_at = -1.0  # when its last step was done
        self.told = ""  # the last error
        self.stopped = False

    # -- what it does ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Opens what it needs. What it knew before its death is lost, unless it keeps it elsewhere."""

    def step(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        """In the end: gives back what it holds."""

    def gets_on(self, since: float) -> bool:
        """Whether it has done something since then, or waits for somebody who has."""
        return self.done_at >= since

    def caught_up(self) -> bool:
        return True

    # -- its lives ---------------------------------------------------------------------------------------------

    def live(self) -> None:
        while not self.stopped:
            self._start()
            try:
                self._act()
            except Crash:
                self._die()

    def _start(self) -> None:
        self.lives += 1
        life = f"{self.name}-{self.lives}"
        seed = self.stage.chance.randrange(2**32)
        trouble = self.play.trouble if self.play.troubled else 0.0
        self.dead = False
        self.clock = ScheduleClock(self.stage.schedule, seed)
        self.faults = Faults(
            seed, lost_before=trouble, applied_then_lost=trouble, delayed=trouble, stale_read=trouble,
            missing_read=trouble, expired=trouble / 4, unavailable=trouble / 4, outage_s=12.0,
        )  # fmt: skip
        self.disk_faults = StorageFaults(seed, full=trouble / 8, fails=trouble / 8, read_fails=trouble / 8)
        self.metadata = MemoryMetadata(self.stage.server, self.faults, self.clock, self._before_call)
        self.storage = self.stage.storage(self.disk_faults, uri=f"memory://{life}")
        self.storage.on_call = lambda _: self._before_call()
        self.play.mount(self.storage)
        self.recorder = MemoryRecorder(self.play.events, life, self.play.ticks)
        alive = self.metadata

        def chores() -> None:
            """The thread that every client has."""
            while not alive._closed and not self.stopped and self.metadata is alive and not self.dead:
                try:
                    alive.chores.run_due()
                except Crash:
                    return
                self.stage.schedule.wait(0.2)

        self.stage.schedule.start(f"{life}, chores", chores)

    def _act(self) -> None:
        begun = False
        while not self.stopped:
            self.stage.schedule.wait(min(10.0, self.stage.some_time(self.thinks_s * self.play.pace)))
            self._check_alive()
            try:
                if not begun:
                    self.begin()
                    begun = True
                self.step()
                self.steps += 1
                self.done_at = self.stage.schedule.now
            except TELLING as error:
                if isinstance(error, (Unavailable, OutcomeUnknown)) and not self.play.may_fail():
                    raise
                self.told = str(error)
                if error.code == LOST_RESET:
                    if not self.play.rollbacks:  # nobody deletes a subscription here
                        raise
                    self.lost()
                    begun = False
                else:
                    begun = begun and not self.starts_again_after(error)
            except CorruptData as error:
                if not self.play.is_damaged(str(error)):
                    raise
                self.told = str(error)
                begun = begun and not self.starts_again_after(error)
            except (DataLoss, InvalidInput) as error:
                if not self.play.may_have_lost(self, error):
                    raise
                self.told = str(error)
                self.lost()
                begun = False
        self.play.attempt_to_leave(self)

    def starts_again_after(self, error: LedgerError) -> bool:
        """Whether it opens everything anew after an error, as whoever is fenced must."""
        return isinstance(error, Fenced)

    def lost(self) -> None:
        """Something that it knew is no longer in the log. It begins anew."""

    def died(self) -> None:
        """What it held in memory is gone."""

    def _die(self) -> None:
        """Its session lives on for a while: the server cannot know."""
        self.dead = True
        self.died()
        left = self.metadata
        self.stage.later(left.session_timeout_s, left.close)

    def kill(self) -> None:
        self.dead = True

    def calm(self) -> None:
        """From now on nothing happens to it any more."""
        self.faults.stop()
        self.disk_faults.full = self.disk_faults.fails = self.disk_faults.read_fails = 0.0
        self.disk_faults.full_until_freed = False

    def _check_alive(self) -> None:
        if self.dead:
            raise Crash(f"{self.name} was killed")

    def _before_call(self) -> None:
        """Every call takes time, in which others act; and the process may be paused or killed there."""
        self._check_alive()
        self.stage.schedule.wait(self.stage.some_time(CALL_S))
        if self.play.troubled:
            if self.stage.happens(self.play.trouble / 40):
                self.dead = True
            elif self.stage.happens(self.play.trouble / 40):
                self._pause(self.stage.chance.uniform(0.0, LONGEST_PAUSE_S))
        self._check_alive()

    def _pause(self, seconds: float) -> None:
        if seconds > self.metadata.session_timeout_s:
            paused = self.metadata
            self.stage.later(paused.session_timeout_s, lambda: None if paused._closed else paused.expire())
        self.stage.schedule.wait(seconds)

    # -- for subclasses ----------------------------------------------------------------------------------------

    def log(self, topic: str, *, watch: bool = False) -> Log:
        limits, clock = self.stage.limits, self.clock
        return Log(self.metadata, self.storage, self.stage.topics[topic], limits=limits, clock=clock, watch=watch)


class Ticks(ScheduleClock):
    """The recorders' clock: it moves a little with every look, so that no two things happen at once."""

    looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return super().monotonic() + self.looks * 1e-9
