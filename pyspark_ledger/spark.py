"""Helpers for Spark jobs: lag, errors, threads, columns."""

from __future__ import annotations

from pyspark_ledger.datasource.lag import QueryLag, TopicLag, lag
from pyspark_ledger.datasource.lag_listener import LagListener
from pyspark_ledger.datasource.narrowing import Narrow, read

__all__ = ["LagListener", "Narrow", "QueryLag", "TopicLag", "lag", "read"]
