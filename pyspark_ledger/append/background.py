"""How much a producer does by itself."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from pyspark_ledger.base.given import is_number
from pyspark_ledger.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Background:
    """How a producer stores by itself what it has taken, and how long and how much it lets wait.

    Attributes:
        linger_ms: how long the first record waits for others.
        delivery_timeout_s: when a record that cannot be stored is given up.
        max_waiting_records: how many records may wait at once.
        max_waiting_bytes: how many bytes they may have.
        send_timeout_s: how long a send waits for room; None: until there is some.
    """

    linger_ms: float = 5.0
    delivery_timeout_s: float = 120.0
    max_waiting_records: int = 100_000
    max_waiting_bytes: int = 64 << 20
    send_timeout_s: float | None = None

    def __post_init__(self) -> None:
        lowest = {"linger_ms": 0, "delivery_timeout_s": 0, "max_waiting_records": 1, "max_waiting_bytes": 1}
        if self.send_timeout_s is not None:
            lowest["send_timeout_s"] = 0
        for name, least in lowest.items():
            value = getattr(self, name)
            if not is_number(value) or not value >= least:
                raise InvalidInput(f"{name} is {value!r}, and must be a number that is at least {least}")
        for name, way_on in (("linger_ms", "no background"), ("send_timeout_s", "no end")):
            value = getattr(self, name)
            if value is not None and value > threading.TIMEOUT_MAX:  # no thread can wait for so long
                raise InvalidInput(f"{name} is {value!r}, which is too long: None means {way_on}")
