"""Recording a history: one file for each process.

recorder = Recorder("history-producer-1.jsonl", "producer-1")
with recorder.asking(Send(topic="orders", rows=(Row("order-17"),))) as call:
    position = producer.send({"id": "order-17"}).position
    call.ok(rows=(Row("order-17", position),))
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.errors import Fenced, LedgerError, OutcomeUnknown
from pyspark_ledger.testing.history import Event, Told, to_line


def told_by(error: BaseException) -> Told:
    """What an error tells. All of ours but OutcomeUnknown say that nothing was changed: the checker holds them to it.
    Any other error says nothing."""
    match error:
        case Fenced():
            return "fenced"
        case OutcomeUnknown():
            return "unknown"
        case LedgerError():
            return "refused"
    return "unknown"


class Call:
    """One event under way."""

    def __init__(self, event: Event) -> None:
        self.event = event

    def ok(self, **answer: Any) -> None:
        """It was done. ``answer`` sets fields of the event, as in ``rows=…``."""
        self.event = replace(self.event, told="ok", **answer)

    def refused(self, why: str = "", **answer: Any) -> None:
        """It was not done."""
        self.event = replace(self.event, told="refused", error=why, **answer)


class Recorder:
    """Writes the events of one process, for one thread, each before it is asked and again when it was answered: a
    process that dies in between leaves a question without an answer. A file that is there already is gone on with;
    then the process needs another name.

    The clock must be one that all processes share: Python's monotonic one is, on one machine.
    """

    def __init__(self, file: str | Path, process: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._file = Path(file).open("a")  # noqa: SIM115
        self._process, self._clock = process, clock
        self._number = 0

    @contextmanager
    def asking(self, event: Event) -> Iterator[Call]:
        """Around a call. Without ``ok`` or ``refused`` it stays unknown; what an error says is recorded."""
        self._number += 1
        asked = replace(event, process=self._process, number=self._number, asked_at=self._clock.monotonic())
        self._write(asked)
        call = Call(asked)
        try:
            yield call
        except Exception as error:  # what ends the process, such as KeyboardInterrupt, leaves it without an answer
            call.event = replace(call.event, told=told_by(error), error=str(error))
            raise
        finally:
            if call.event is not asked:
                self._write(replace(call.event, told_at=self._clock.monotonic()))

    def saw(self, event: Event) -> None:
        """Something that was read at the end, such as a FinalLog. What changes meanwhile is asked for by ``asking``."""
        with self.asking(event) as call:
            call.ok()

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Event) -> None:
        self._file.write(to_line(event) + "\n")
        self._file.flush()  # a killed process loses nothing that it wrote to the operating system


class MemoryRecorder(Recorder):
    """The same, for processes that are simulated in one program: into a history that they share."""

    def __init__(self, history: dict[tuple[str, int], Event], process: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._history = history
        self._process, self._clock = process, clock
        self._number = 0

    def close(self) -> None: ...

    def _write(self, event: Event) -> None:
        self._history[event.process, event.number] = event
