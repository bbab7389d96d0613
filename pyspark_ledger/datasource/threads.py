"""Writes from other threads than the first one.

To find the sink of a write Spark asks the session that is *active* in the JVM's thread, and every Python thread has a
thread of its own there, in which none is active (docs/errors.md, Threads).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_ledger.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def activate(spark: SparkSession) -> None:
    """Makes a session the active one of the calling thread, so that the thread can write with ``format("ledger")``.

    Once in each thread is enough. A session of Spark Connect needs none of it, and the thread in which Spark calls a
    function of ``foreachBatch`` keeps the session that it has.

    >>> with ThreadPoolExecutor(initializer=activate, initargs=(spark,)) as pool:
    ...     pool.map(write, frames)
    """
    session = getattr(spark, "_jsparkSession", None)
    if type(spark).__module__.startswith("pyspark.sql.connect"):  # whose server does this itself
        return
    if session is None:
        raise InvalidInput(
            f"activate(): {spark!r} is no session. SparkSession.getActiveSession() is None in a new thread: hand the "
            "session over from the thread that made it"
        )
    if spark.sparkContext._jsc is None:
        raise InvalidInput("activate(): the session was stopped: hand over one that runs")
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    of_a_query = spark.sparkContext.getLocalProperty("sql.streaming.queryId") is not None
    if of_a_query and sessions.getActiveSession().isDefined():
        return  # a copy of ours with the settings of that query, which it needs for the rest of the batch
    sessions.setActiveSession(session)
