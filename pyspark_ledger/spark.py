"""Helpers for Spark jobs: lag, errors, threads, columns."""

from __future__ import annotations

from pyspark_ledger.datasource.lag import QueryLag, TopicLag, lag
from pyspark_ledger.datasource.lag_listener import LagListener

__all__ = ["LagListener", "QueryLag", "TopicLag", "lag"]
