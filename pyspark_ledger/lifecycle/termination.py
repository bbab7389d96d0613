"""A topic that takes no more appends. What it has can be read as before."""

from __future__ import annotations

import logging
from dataclasses import replace

from pyspark_ledger.base.position import Position
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.records import Head

logger = logging.getLogger(__name__)


def terminate(log: Log) -> Position:
    """Returns where the topic ends for good. There is no way back."""

    def terminated(head: Head) -> Head | None:
        log.check_not_set_back(head)
        return None if head.terminated_ms else replace(head, terminated_ms=log.now_ms())

    view = log.change_head(terminated, "terminating it", lambda: [log.admins_guard()])
    logger.info("terminated topic=%s end=%s", log.topic.name, view.head.end)
    return view.head.end
