"""A ZooKeeper that does not answer for a while (which no expiry cleans up after), and one that is behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark_ledger.errors import Unavailable
from pyspark_ledger.metadata.port import Create, Key, Op, R, Versioned
from pyspark_ledger.testing.memory import Faults, MemoryMetadata, ReadFault, TransactFault


class Flaky(MemoryMetadata):
    down = False
    down_after: Callable[[Sequence[Op]], bool] | None = None  # a transaction after which nothing is answered any more

    def read(self, key: Key[R], on_change: Callable[[], None] | None = None) -> Versioned[R] | None:
        self._check()
        return super().read(key, on_change)

    def sync(self) -> None:
        self._check()
        super().sync()

    def transact(self, ops: Sequence[Op]) -> None:
        self._check()
        try:
            super().transact(ops)
        finally:
            if self.down_after is not None and self.down_after(ops):
                self.down, self.down_after = True, None

    def _check(self) -> None:
        if self.down:
            raise Unavailable("ZooKeeper does not answer (the session lives)")


def creates(kind: type) -> Callable[[Sequence[Op]], bool]:
    """Transactions that make a node of this kind."""
    return lambda ops: any(isinstance(op, Create) and isinstance(op.key, kind) for op in ops)


class Behind(Faults):
    """A session whose server is some transactions behind, until it syncs."""

    def __init__(self, transactions: int) -> None:
        super().__init__(max_lag=transactions)
        self.next_read("stale")

    def lag(self) -> int:
        return self._max_lag


class StaysBehind(Behind):
    """As Behind, and it catches up only when the session syncs or changes something, however much is read before."""

    def __init__(self, transactions: int) -> None:
        super().__init__(transactions)
        self._stays = True

    def of_read(self) -> ReadFault | None:
        return "stale" if self._stays else super().of_read()

    def of_sync(self) -> bool:
        self._stays = False
        return super().of_sync()

    def of_transact(self) -> TransactFault | None:
        self._stays = False
        return super().of_transact()
