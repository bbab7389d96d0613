"""A durable, totally ordered, exactly-once log for Spark, with no brokers.

Spark finds the data source by this package's name: ``spark.readStream.format("ledger")``. From Python, begin with
:class:`LedgerClient`; for a ZooKeeper to try things out, with :class:`LocalZooKeeper`.
"""

# Spark imports every ``pyspark_*`` package in every session, to look for data sources: so this module loads nothing
# until a name is asked for.

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_ledger.base.position import Position as Position
    from pyspark_ledger.client import LedgerClient as LedgerClient
    from pyspark_ledger.datasource import register as register
    from pyspark_ledger.datasource.threads import activate as activate
    from pyspark_ledger.errors import Conflict as Conflict
    from pyspark_ledger.errors import CorruptData as CorruptData
    from pyspark_ledger.errors import CursorUnderRevision as CursorUnderRevision
    from pyspark_ledger.errors import DataLoss as DataLoss
    from pyspark_ledger.errors import Fenced as Fenced
    from pyspark_ledger.errors import InvalidInput as InvalidInput
    from pyspark_ledger.errors import LedgerError as LedgerError
    from pyspark_ledger.errors import NotAllowed as NotAllowed
    from pyspark_ledger.errors import NotFound as NotFound
    from pyspark_ledger.errors import OutcomeUnknown as OutcomeUnknown
    from pyspark_ledger.errors import Unavailable as Unavailable
    from pyspark_ledger.local.zookeeper import LocalZooKeeper as LocalZooKeeper
    from pyspark_ledger.outbox.outbox import Dispatch as Dispatch
    from pyspark_ledger.outbox.outbox import Send as Send

__version__ = "0.2.0.dev0"

# Silent unless the application configures logging: without this Python prints warnings to stderr.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_ERRORS = (
    "Conflict", "CorruptData", "CursorUnderRevision", "DataLoss", "Fenced", "InvalidInput", "LedgerError", "NotAllowed",
    "NotFound", "OutcomeUnknown", "Unavailable",
)  # fmt: skip
_HOMES = {
    "Dispatch": "pyspark_ledger.outbox.outbox",
    "LedgerClient": "pyspark_ledger.client",
    "LocalZooKeeper": "pyspark_ledger.local.zookeeper",
    "Position": "pyspark_ledger.base.position",
    "Send": "pyspark_ledger.outbox.outbox",
    "activate": "pyspark_ledger.datasource.threads",
    "register": "pyspark_ledger.datasource",
    **dict.fromkeys(_ERRORS, "pyspark_ledger.errors"),
}

__all__ = [
    "Conflict",
    "CorruptData",
    "CursorUnderRevision",
    "DataLoss",
    "Dispatch",
    "Fenced",
    "InvalidInput",
    "LedgerClient",
    "LedgerError",
    "LocalZooKeeper",
    "NotAllowed",
    "NotFound",
    "OutcomeUnknown",
    "Position",
    "Send",
    "Unavailable",
    "activate",
    "register",
]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":  # where Spark looks
        return import_module("pyspark_ledger.datasource").LedgerDataSource
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
