"""A durable, totally ordered, exactly-once log for Spark, with no brokers.

Spark finds the data source by this package's name: ``format("ledger")``. It imports every ``pyspark_*`` package to
look, in every session, so this module loads nothing until a name is asked for.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_ledger.base.position import Position as Position
    from pyspark_ledger.client import LedgerClient as LedgerClient
    from pyspark_ledger.datasource import LedgerDataSource as DefaultSource
    from pyspark_ledger.datasource import register as register
    from pyspark_ledger.errors import LedgerError as LedgerError
    from pyspark_ledger.local.zookeeper import LocalZooKeeper as LocalZooKeeper

__version__ = "0.1.0"

# Silent unless the application configures logging: without this Python prints warnings to stderr.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_HOMES = {
    "DefaultSource": ("pyspark_ledger.datasource", "LedgerDataSource"),
    "LedgerClient": ("pyspark_ledger.client", "LedgerClient"),
    "LedgerError": ("pyspark_ledger.errors", "LedgerError"),
    "LocalZooKeeper": ("pyspark_ledger.local.zookeeper", "LocalZooKeeper"),
    "Position": ("pyspark_ledger.base.position", "Position"),
    "register": ("pyspark_ledger.datasource", "register"),
}

__all__ = ["DefaultSource", "LedgerClient", "LedgerError", "LocalZooKeeper", "Position", "register"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
