"""Helpers for Spark jobs: lag, errors, threads, columns."""

from __future__ import annotations

from pyspark_ledger.datasource.failures import Failure, error
from pyspark_ledger.datasource.threads import activate

__all__ = ["Failure", "activate", "error"]
