"""What Spark's own processes write to stderr. All of it comes out at the driver's JVM, which the tests share."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparksStderr:
    """What was written since this was made. pytest keeps stderr in a file, and the JVM has inherited that."""

    def __init__(self, spark: SparkSession) -> None:
        jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
        try:
            self._file = os.open(f"/proc/{jvm}/fd/2", os.O_RDONLY)
        except OSError as error:
            pytest.skip(f"Spark's stderr cannot be read here: {error}")
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            pytest.skip("Spark's stderr is no file: run pytest without -s")
        self._begin = os.fstat(self._file).st_size

    def lines(self) -> list[str]:
        """The package's, as text or JSON."""
        size = os.fstat(self._file).st_size - self._begin
        text = os.pread(self._file, size, self._begin).decode(errors="replace")
        return [line for line in text.splitlines() if "pyspark_ledger." in line and ("[" in line or "{" in line)]

    def close(self) -> None:
        os.close(self._file)
