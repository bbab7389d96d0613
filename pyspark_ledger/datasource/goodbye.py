"""The end of the process that plans a stream: Spark ends it with SIGTERM, without calling anything before."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

_GOODBYE_S = 3.0


def on_sigterm(goodbye: Callable[[], None]) -> Callable[[], None]:
    """Calls ``goodbye`` on SIGTERM, and then ends the process. Returns a function that undoes this."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None

    def leave(_signal: int, _frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it comes twice
        # Not in this thread: the signal may have come in the middle of a request, with its locks held.
        farewell = threading.Thread(target=goodbye, daemon=True)
        farewell.start()
        farewell.join(_GOODBYE_S)
        os._exit(0)

    previous = signal.signal(signal.SIGTERM, leave)
    return lambda: _restore(previous)


def _restore(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
