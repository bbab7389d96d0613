"""What the package logs in Spark's own Python processes, on their stderr: the driver's log, or the executors'.

Nobody configures logging there, and Spark does not hand on Python's log lines, so without this they are lost. In the
user's own program the user's configuration decides, and nothing here touches it. The driver's environment does not
reach executors: what was asked for travels with the work that they are given.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark_ledger.errors import Fenced, InvalidInput

logger = logging.getLogger(__name__)

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,  # as Spark calls it
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
FORMATS = ("text", "json")

_PACKAGE = "pyspark_ledger"
# Every attempt to connect is a warning to kazoo. When ZooKeeper went away and came back is said by the package itself.
_CHATTY = "pyspark_ledger.zk_metadata.session.kazoo"

# What the lines call a process, by the module that Spark runs in it.
_PROCESSES = {
    "pyspark.worker": "task",
    "pyspark.sql.streaming.python_streaming_source_runner": "stream",
    "pyspark.sql.worker.python_streaming_sink_runner": "sink",
    "pyspark.sql.worker.create_data_source": "planner",
    "pyspark.sql.worker.plan_data_source_read": "planner",
    "pyspark.sql.worker.write_into_data_source": "planner",
    "pyspark.sql.worker.commit_data_source_write": "commit",
}


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Which lines are shown, and how."""

    level: str = "warning"
    format: str = "text"

    @classmethod
    def given(cls, level: str | None, format: str | None) -> LogSettings:
        """As the options say; else as the environment of this process, the driver's, says."""
        return cls(
            level or _from_environment("LEDGER_LOG_LEVEL", tuple(LEVELS), cls().level),
            format or _from_environment("LEDGER_LOG_FORMAT", FORMATS, cls().format),
        )

    def apply(self) -> None:
        """Called wherever Spark hands over to the package. Spark's processes serve one query after the other, so the
        last one decides. A line is written once: Spark's own capture of log lines (``python_worker_logs``), if it is
        on, gets it beside this, and so does not get what is on stderr as well."""
        if not _is_sparks_process():
            return
        package, level = logging.getLogger(_PACKAGE), LEVELS[self.level]
        package.setLevel(level)
        logging.getLogger(_CHATTY).setLevel(level if level <= logging.DEBUG else max(level, logging.ERROR))
        handler = next((each for each in package.handlers if isinstance(each, _Stderr)), None)
        if handler is None and not _is_configured():
            handler = _Stderr()
            package.addHandler(handler)
        if handler is not None:
            handler.setFormatter(_JsonLines() if self.format == "json" else _TextLines())


@contextlib.contextmanager
def fencing_told() -> Iterator[None]:
    """Around what may find out that another has taken this one's place: the error ends the query, and may be shown far
    from here. Not where it is raised: a refusal counts only when it was looked at twice."""
    try:
        yield
    except Fenced as fenced:
        logger.warning("fenced: %s", fenced)
        raise


def _from_environment(name: str, allowed: tuple[str, ...], default: str) -> str:
    value = os.environ.get(name, "").strip()
    if value and value.lower() not in allowed:
        raise InvalidInput(
            f"the environment variable {name} is '{value}': it must be one of {', '.join(allowed)}",
            "LEDGER_INVALID_OPTION",
        )
    return value.lower() or default


def _is_sparks_process() -> bool:
    """Whether Spark has started this process for itself."""
    return any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ)


def _is_configured() -> bool:
    """Whether somebody has configured logging for everything in this process, and so for the package too."""
    return any(type(each.formatter).__name__ != "JSONFormatterWithMarker" for each in logging.getLogger().handlers)


def _process() -> str:
    """What this process does for Spark."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    module = spec.name if spec is not None else ""
    if module not in _PROCESSES:  # a daemon, which is told what its children do
        module = next((word for word in sys.argv[1:] if word in _PROCESSES), module)
    return _PROCESSES.get(module, "python")


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    def __init__(self) -> None:
        # Not sys.stderr: while Spark captures, that is another one, which would make a second line of each.
        super().__init__(sys.__stderr__)


class _TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(f"%(asctime)s %(levelname)s %(name)s [{_process()} %(process)d] %(message)s")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": _process(),
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
