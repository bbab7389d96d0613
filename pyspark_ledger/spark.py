"""Helpers for Spark jobs: lag, errors, threads, columns."""

from __future__ import annotations

from pyspark_ledger.datasource.narrowing import Narrow, read

__all__ = ["Narrow", "read"]
