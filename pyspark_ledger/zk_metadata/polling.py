"""How kazoo waits for its sockets.

It does so five times for each request, and each time makes a new epoll object, which costs more than the waiting. So
here the same is done with poll, which knows of nothing but the sockets that it is given.
"""

from __future__ import annotations

import math
import select
from collections.abc import Sequence
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler


class PollingHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's own handler, with another way to wait, and quick callbacks on the thread that is awake already."""

    def dispatch_callback(self, callback: Any) -> None:
        """kazoo calls watches on a thread of their own, because they may block. Ours only leave a note for somebody
        else, which costs less than to wake a thread."""
        if getattr(callback.func, "is_quick", False):
            callback.func(*callback.args)
        else:
            super().dispatch_callback(callback)

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], others: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """As ``select.select``, also for sockets with large numbers. One that was closed or has failed is ready."""
        wanted: dict[int, int] = {}
        for each in readers:
            wanted[each.fileno()] = select.POLLIN
        for each in writers:
            wanted[each.fileno()] = wanted.get(each.fileno(), 0) | select.POLLOUT
        poll = select.poll()
        for number, events in wanted.items():
            poll.register(number, events)
        found = dict(poll.poll(None if timeout is None else math.ceil(timeout * 1000)))
        ready_to_read = [each for each in readers if found.get(each.fileno(), 0) & ~select.POLLOUT]
        ready_to_write = [each for each in writers if found.get(each.fileno(), 0) & ~select.POLLIN]
        return ready_to_read, ready_to_write, []
