"""Several processes in one program, in an order that follows from a seed.

Each process is a thread, and only one of them runs at a time, until it waits: for its clock, or for the answer to a
call. Time is not real. Whoever's wait ends first goes on, so that a long wait of one is a pause in which the others
act.
The same seed gives the same history, on any machine.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable
from types import TracebackType

_LOOK_S = 0.005  # how often a process that waits for an event looks whether it has happened


class Ended(BaseException):
    """The schedule is over: whoever still waits stops here. No ``except Exception`` may catch it."""


class _Task:
    """A thread and its turn: it runs while it has that."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn = threading.Lock()  # whoever hands on releases it, and its owner takes it again
        self.turn.acquire()
        self.thread: threading.Thread | None = None


class Schedule:
    """Who goes on when. The thread that made it is one of those who take turns.

    >>> schedule, seen = Schedule(), []
    >>> def speak(name, seconds):
    ...     for _ in range(2):
    ...         schedule.wait(seconds)
    ...         seen.append((name, schedule.now))
    >>> schedule.start("quick", lambda: speak("quick", 1.0))
    >>> schedule.start("slow", lambda: speak("slow", 1.5))
    >>> schedule.wait(10.0)
    >>> seen
    [('quick', 1.0), ('slow', 1.5), ('quick', 2.0), ('slow', 3.0)]
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._later: list[tuple[float, int, _Task | Callable[[], None]]] = []
        self._count = 0  # of what was ever put off: of two with the same time the first one comes first
        self._owner = self._current = _Task("the one who watches")
        self._tasks: list[_Task] = []
        self._ended = False
        self._failure: BaseException | None = None

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Starts a process, which gets its first turn when the caller waits."""
        task = _Task(name)

        def live() -> None:
            task.turn.acquire()
            try:
                if not self._ended:
                    run()
            except Ended:
                pass
            except BaseException as error:  # told to the one who watches
                self._failure = self._failure or error
                self._put_off(0.0, self._owner)
            finally:
                self._tasks.remove(task)
                if not self._ended:
                    self._hand_on()

        task.thread = threading.Thread(target=live, name=name, daemon=True)
        self._tasks.append(task)
        self._put_off(0.0, task)
        task.thread.start()

    def at(self, seconds: float, do: Callable[[], None]) -> None:
        """Does something so many seconds from now, between two turns. It must not wait."""
        self._put_off(seconds, do)

    def wait(self, seconds: float = 0.0) -> None:
        """The running process waits, and others go on meanwhile."""
        if self._ended:
            raise Ended
        mine = self._current
        self._put_off(seconds, mine)
        if self._hand_on() is not mine:
            mine.turn.acquire()
        if mine is self._owner:
            if self._failure is not None:
                raise self._failure
        elif self._ended:
            raise Ended

    def end(self) -> None:
        """Whoever still waits stops. For the one who made the schedule."""
        self._ended = True
        for task in list(self._tasks):
            task.turn.release()
            if task.thread is not None:
                task.thread.join()

    def _put_off(self, seconds: float, what: _Task | Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._later, (self.now + max(0.0, seconds), self._count, what))

    def _hand_on(self) -> _Task:
        """Gives the turn to whom it belongs now."""
        while True:
            time, _, next_one = heapq.heappop(self._later)
            self.now = max(self.now, time)
            if isinstance(next_one, _Task):
                break
            next_one()
        before, self._current = self._current, next_one
        if next_one is not before:
            next_one.turn.release()
        return next_one


class TurnLock:
    """A lock among the processes of a schedule, which may be taken again by who has it: a real one would stop
    everybody."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._holder: _Task | None = None
        self._depth = 0

    def __enter__(self) -> None:
        while self._holder is not None and self._holder is not self._schedule._current:
            self._schedule.wait(0.001)
        self._holder, self._depth = self._schedule._current, self._depth + 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None


class ScheduleClock:
    """The clock of one process: time passes when it waits. ``skew_ms`` is how wrong its wall clock is."""

    def __init__(self, schedule: Schedule, seed: int, start_ms: int = 1_700_000_000_000) -> None:
        self._schedule, self._random, self._start_ms = schedule, random.Random(seed), start_ms
        self.skew_ms = 0

    def now_ms(self) -> int:
        return self._start_ms + int(self._schedule.now * 1000) + self.skew_ms

    def monotonic(self) -> float:
        return self._schedule.now

    def sleep(self, seconds: float) -> None:
        self._schedule.wait(seconds)

    def wait(self, event: threading.Event, seconds: float) -> None:
        end = self._schedule.now + seconds
        while not event.is_set() and self._schedule.now < end:
            self._schedule.wait(min(_LOOK_S, end - self._schedule.now))

    def new_id(self) -> bytes:
        return self._random.randbytes(16)

    def jitter(self, seconds: float) -> float:
        return self._random.uniform(0.0, seconds)
