"""Helpers for Spark jobs: lag, errors, threads, columns."""

from __future__ import annotations

from pyspark_ledger.datasource.failures import Failure, error
from pyspark_ledger.datasource.lag import QueryLag, TopicLag, lag
from pyspark_ledger.datasource.lag_listener import LagListener
from pyspark_ledger.datasource.narrowing import Narrow, read
from pyspark_ledger.datasource.threads import activate

__all__ = ["Failure", "LagListener", "Narrow", "QueryLag", "TopicLag", "activate", "error", "lag", "read"]
