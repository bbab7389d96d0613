"""Says how far the queries of a session are behind: in the log, and to Prometheus."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Deadline
from pyspark_ledger.base.settings import Settings
from pyspark_ledger.client import LedgerClient, client_of, namespace_of, open_namespace, settings_of
from pyspark_ledger.datasource.lag import QueryLag, from_progress
from pyspark_ledger.datasource.lag_topics import TopicsAtHand
from pyspark_ledger.errors import InvalidInput, LedgerError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from pyspark_ledger.metrics.families import Sample

logger = logging.getLogger(__name__)

_TIMEOUT_S = 5.0  # of one request to ZooKeeper
_TRY_AGAIN_S = 30.0  # after that much time, when the topics could not be looked at


class LagListener(StreamingQueryListener):
    """Add it with ``spark.streams.addListener(LagListener())``: every few seconds, a log line for each topic that a
    query of the session reads.

    Spark's events are only noted. A thread of its own looks at the topics, also while a batch takes long or a query is
    stuck: so nothing is held up when ZooKeeper does not answer, and then it says what is known from the offsets.
    """

    def __init__(
        self,
        zookeeper: str | LedgerClient | None = None,
        *,
        profile: str | None = None,
        user: str | None = None,
        password: str | None = None,
        options: Mapping[str, str] | None = None,
        every_s: float = 10.0,
        port: int | None = None,
        host: str = "127.0.0.1",
        registry: CollectorRegistry | None = None,
    ) -> None:
        """Starts nothing but, if asked for, the server for Prometheus.

        :param zookeeper: where the topics are, as in the option ``zookeeper``, or a client; default: the environment's
            LEDGER_ZOOKEEPER, else 127.0.0.1:2181.
        :param profile: of the file with profiles, as in the option ``profile``.
        :param user: for ZooKeeper's digest scheme.
        :param password: of that user; or ``user:password``.
        :param options: more of the kind, by the names of Spark's options.
        :param every_s: how often the topics are looked at.
        :param port: serves metrics to Prometheus there; 0: any that is free.
        :param host: and at this address; 0.0.0.0 shows them to everybody.
        :param registry: or adds them to a registry that is served already.
        :raises InvalidInput: metrics are asked for and prometheus-client is not installed, or the port is taken; or an
            argument is not what it must be.
        """
        _check(zookeeper, every_s, port, registry)
        address = zookeeper if isinstance(zookeeper, str) else None
        settings = settings_of(options, address, profile=profile, user=user, password=password)
        self._topics = _Topics(zookeeper if isinstance(zookeeper, LedgerClient) else settings.here())
        self._every_s = every_s
        self._progress: dict[str, QueryLag] = {}  # of each run, what Spark has said last
        self._ended: list[QueryLag] = []  # said once more, and then forgotten
        self._lags: dict[str, QueryLag] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        wanted = port is not None or registry is not None
        self._export = _export(self._samples, port, host, registry) if wanted else None

    @property
    def lags(self) -> tuple[QueryLag, ...]:
        """Of each query that is running and has finished a batch, what was found last."""
        return tuple(self._lags.values())

    @property
    def url(self) -> str:
        """Where the metrics are served; empty if they are not."""
        return self._export.url if self._export is not None else ""

    def close(self) -> None:
        """Ends the thread and the server. Remove the listener from the session before."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_TIMEOUT_S)
        export, self._export = self._export, None  # once, however often this is called
        if export is not None:
            export.close()
        self._topics.close()

    # -- what Spark says: on the thread that tells all listeners, so nothing here waits or fails ----------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        try:
            lag = from_progress(event.progress)
        except Exception:
            logger.exception("the progress of a query could not be read")
            return
        if lag.topics:
            self._note(str(event.progress["runId"]), lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._changed:
            self._lags.pop(str(event.runId), None)
            last = self._progress.pop(str(event.runId), None)
            if last is not None:
                self._ended.append(last)
                self._changed.notify()

    def _note(self, run: str, lag: QueryLag) -> None:
        with self._changed:
            is_new = run not in self._progress
            self._progress[run] = lag
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="ledger-lag", daemon=True)
                self._thread.start()
            if is_new:
                self._lags[run] = lag
                self._changed.notify()

    # -- the thread that looks --------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                running, ended = dict(self._progress), self._ended
                self._ended = []
            for run, lag in running.items():
                measured = self._say(lag)
                with self._changed:
                    if run in self._progress:
                        self._lags[run] = measured
            for lag in ended:
                self._say(lag)
            with self._changed:
                if not self._closed and not self._ended and running.keys() == self._progress.keys():
                    self._changed.wait(self._every_s if running else None)
                if self._closed:
                    return

    def _say(self, lag: QueryLag) -> QueryLag:
        lag = self._topics.measured(lag)
        for each in lag.topics:
            logger.info(
                "lag query=%s batch=%d source=%d topic=%s subscription=%s records=%s bytes=%s seconds=%s",
                lag.name, lag.batch, each.source, each.topic, each.subscription,
                each.records, each.bytes, each.seconds,
            )  # fmt: skip
        return lag

    def _samples(self) -> Iterator[Sample]:
        for lag in self.lags:
            for each in lag.topics:
                labels = (lag.name, str(each.source), each.topic, each.subscription)
                for name, value in (("records", each.records), ("bytes", each.bytes), ("seconds", each.seconds)):
                    if value is not None:
                        yield f"ledger_query_lag_{name}", labels, value


def _check(
    zookeeper: str | LedgerClient | None, every_s: float, port: int | None, registry: CollectorRegistry | None
) -> None:
    """Else the thread would find out, and end or never rest."""
    if not isinstance(zookeeper, str | LedgerClient | None):
        raise InvalidInput(f"LagListener: zookeeper is {zookeeper!r}: give an address as text, or a LedgerClient")
    if not isinstance(every_s, int | float) or not 0 < every_s <= threading.TIMEOUT_MAX:
        raise InvalidInput(f"LagListener: every_s is {every_s!r}: it must be a number of seconds above 0")
    if not isinstance(port, int | None):
        raise InvalidInput(f"LagListener: port is {port!r}: it must be a number")
    if registry is not None and not hasattr(registry, "register"):
        raise InvalidInput(f"LagListener: registry is {registry!r}: give a CollectorRegistry of prometheus-client")


class _Topics:
    """The topics, as long as they can be looked at. That they cannot is said once."""

    def __init__(self, given: Settings | LedgerClient) -> None:
        self._given = given
        self._client: LedgerClient | None = given if isinstance(given, LedgerClient) else None
        self._at_hand: TopicsAtHand | None = None
        self._next_try: Deadline | None = None
        self._told = False

    def measured(self, lag: QueryLag) -> QueryLag:
        """Or what the offsets say alone."""
        if self._next_try is not None and not self._next_try.passed:
            return lag
        try:
            found = self._opened().measured(lag)
        except Exception as error:  # whatever it is, the query is not to suffer from it
            self._failed(error)
            return lag
        if self._told:
            logger.warning("the topics can be looked at again, to say how far queries are behind")
        self._told, self._next_try = False, None
        return found

    def _opened(self) -> TopicsAtHand:
        if self._client is None:
            settings = self._given if isinstance(self._given, Settings) else None
            self._client = client_of(open_namespace(settings, timeout_s=_TIMEOUT_S))
        if self._at_hand is None:
            self._at_hand = TopicsAtHand(namespace_of(self._client))
        return self._at_hand

    def _failed(self, error: Exception) -> None:
        self._at_hand, self._next_try = None, Deadline(SYSTEM_CLOCK, _TRY_AGAIN_S)
        if not self._told:
            logger.warning(
                "how far queries are behind is said from their offsets alone, in records: %s", error,
                exc_info=not isinstance(error, LedgerError),
            )  # fmt: skip
        self._told = True

    def close(self) -> None:
        if self._client is not None and not isinstance(self._given, LedgerClient):
            with contextlib.suppress(LedgerError):
                self._client.close()


class _Export:
    def __init__(self, url: str, close: Callable[[], None]) -> None:
        self.url, self.close = url, close


def _export(
    samples: Callable[[], Iterator[Sample]], port: int | None, host: str, registry: CollectorRegistry | None
) -> _Export:
    try:
        from pyspark_ledger.metrics.queries import export
    except ImportError:
        raise InvalidInput(
            "metrics of queries need the extra 'metrics': pip install 'pyspark-ledger[metrics]', or leave out port and "
            "registry",
            "LEDGER_NOT_INSTALLED",
        ) from None
    return _Export(*export(samples, port, host, registry))
