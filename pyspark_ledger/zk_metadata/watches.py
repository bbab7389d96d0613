"""What happens when a node has changed, on kazoo's thread: nothing here may block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kazoo.protocol.serialization import GetData
from kazoo.protocol.states import EventType, WatchedEvent

from pyspark_ledger.errors import LedgerError
from pyspark_ledger.metadata.port import Ahead, Versioned
from pyspark_ledger.zk_metadata.multiread import Node


class Watch:
    """Calls its callback once. Watches with equal callbacks are equal, so that polling a node sets only one. If
    somebody wants what is there now, that is asked for at once, and the callback is for when it cannot be."""

    __slots__ = ("_ahead", "_callback", "_fired")
    is_quick = True  # it leaves a note, and needs no thread of its own for that

    def __init__(self, callback: Callable[[], None], ahead: ReadAhead | None = None) -> None:
        self._callback, self._ahead = callback, ahead
        self._fired = False

    def __call__(self, event: WatchedEvent) -> None:
        # kazoo also calls this when the connection is lost, and then forgets the watch: so a change that would go
        # unnoticed is covered too.
        if not self._fired:
            self._fired = True
            if self._ahead is None or not self._ahead.ask(event, self._callback):
                self._callback()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Watch) or self._fired or other._fired:  # one that fired will not call again
            return False
        return other._callback == self._callback

    def __hash__(self) -> int:
        return hash(self._callback)


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Reads a node again as soon as it has changed, by the thread that has heard of it: so whoever waits for what is
    there is woken once, and not first to ask for it."""

    client: Any
    path: str
    ahead: Ahead[Any]
    decode: Callable[[Node], Versioned[Any] | None]

    def ask(self, event: WatchedEvent, on_change: Callable[[], None]) -> bool:
        """False if it is not asked for. After the connection was lost it must not be: a new session may be served by a
        server that is behind."""
        if event.type != EventType.CHANGED or not self.ahead.is_wanted:
            return False
        self.client._call(GetData(self.path, Watch(on_change, self)), _Arriving(self, on_change))
        return True


@dataclass(frozen=True, slots=True)
class _Arriving:
    """What kazoo gives the answer to."""

    asked: ReadAhead
    on_change: Callable[[], None]

    def set(self, node: Node) -> None:
        try:
            record = self.asked.decode(node)
        except LedgerError:  # whoever is hinted at it reads it, and is told
            record = None
        if record is None:
            self.on_change()
        else:
            self.asked.ahead.take(record)

    def set_exception(self, _: Exception) -> None:
        self.on_change()
