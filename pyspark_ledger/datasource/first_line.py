"""An error of ours is the first thing that Spark shows: its code and its sentence, and no traceback before them.

A Python process of Spark sends an error to the JVM as text, with the traceback before the message, and ends. Spark can
leave the traceback out, for everybody (``spark.sql.execution.pyspark.udf.hideTraceback.enabled``), and does so by an
environment variable that it looks at when the error is there. So it is set for our own errors alone, in the process
that is about to end. Errors that are not ours keep their traceback: somebody has to find out where they come from.

Tasks import this module, so it imports hardly anything.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ContextDecorator
from types import TracebackType

from pyspark_ledger.errors import LedgerError

SOURCE_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"
COMMIT_PROCESS = "pyspark.sql.worker.python_streaming_sink_runner"
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"

logger = logging.getLogger(__name__)


class sentence_first(ContextDecorator):
    """Around whatever Spark calls. Where the error came from is logged, at level debug."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, LedgerError) and _is_process_of_spark():
            logger.debug("raised in process=%d", os.getpid(), exc_info=error)
            os.environ[_HIDE_TRACEBACK] = "1"
            raise error.with_traceback(None) from None  # no frames of ours, should Spark show them all the same


def runs_in(module: str) -> bool:
    """Whether this is the process that Spark has started for this module of its own, or for others to be forked from
    it."""
    return module in sys.modules or _main_module() == module


def _is_process_of_spark() -> bool:
    """And not the user's own, where nothing is hidden."""
    return _main_module().startswith("pyspark.")


def _main_module() -> str:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name if spec is not None else ""
