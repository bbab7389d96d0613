"""How long the metadata store takes to answer, as one of its clients sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Histogram

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.metadata.chores import Chores
from pyspark_ledger.metadata.port import Ahead, AnyKey, Key, Metadata, Op, R, Versioned

T = TypeVar("T")
_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class TimedMetadata(Metadata):
    """A metadata store whose calls are timed, those that fail too."""

    def __init__(self, metadata: Metadata, registry: CollectorRegistry, clock: Clock = SYSTEM_CLOCK) -> None:
        self._metadata, self._clock = metadata, clock
        self._times = Histogram(
            "ledger_zookeeper_request_duration_seconds",
            "How long the exporter's own requests to ZooKeeper take, by operation.",
            ["operation"],
            buckets=_BUCKETS_S,
            registry=registry,
        )

    @property
    def session_timeout_s(self) -> float:
        return self._metadata.session_timeout_s

    @property
    def chores(self) -> Chores:
        return self._metadata.chores

    @property
    def is_connected(self) -> bool:
        return self._metadata.is_connected

    @property
    def connections(self) -> int:
        return self._metadata.connections

    @property
    def logins(self) -> int:
        return self._metadata.logins

    def now_ms(self, *, exact: bool = False) -> int:
        return self._metadata.now_ms(exact=exact)

    def read(
        self, key: Key[R], on_change: Callable[[], None] | None = None, ahead: Ahead[R] | None = None
    ) -> Versioned[R] | None:
        return self._timed("read", lambda: self._metadata.read(key, on_change, ahead))

    def read_many(self, keys: Sequence[Key[R]]) -> list[Versioned[R] | None]:
        return self._timed("read_many", lambda: self._metadata.read_many(keys))

    def children(self, key: AnyKey) -> list[AnyKey]:
        return self._timed("children", lambda: self._metadata.children(key))

    def children_many(self, keys: Sequence[AnyKey]) -> list[list[AnyKey]]:
        return self._timed("children_many", lambda: self._metadata.children_many(keys))

    def transact(self, ops: Sequence[Op]) -> None:
        self._timed("transact", lambda: self._metadata.transact(ops))

    def sync(self) -> None:
        self._timed("sync", self._metadata.sync)

    def close(self) -> None:
        self._metadata.close()

    def _timed(self, operation: str, call: Callable[[], T]) -> T:
        started = self._clock.monotonic()
        try:
            return call()
        finally:
            self._times.labels(operation).observe(self._clock.monotonic() - started)
