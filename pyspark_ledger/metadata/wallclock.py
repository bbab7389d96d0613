"""The time of day that may be written where others rely on it."""

from __future__ import annotations

from pyspark_ledger.base.clock import Clock
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.metadata.port import Metadata


def believable_ms(metadata: Metadata, clock: Clock, limits: Limits) -> int:
    """This machine's time, unless it is far from the store's: then the nearest that is not. One wrong clock would
    otherwise set the publish times of everybody who writes after it. It costs no request: the store is asked once in a
    while."""
    theirs, slack = metadata.now_ms(), limits.clock_slack_ms
    return min(max(clock.now_ms(), theirs - slack), theirs + slack)
