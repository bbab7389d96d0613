"""What all processes of a run agree on: where everything is, the topics, what their records look like."""

from __future__ import annotations

import json
import random
import re
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient, client_of
from pyspark_ledger.errors import LedgerError, Unavailable
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.history import Row
from pyspark_ledger.testing.recorder import Recorder
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata

SESSION_S = 4.0  # of the Python processes; Spark's have the default
SPARK_SESSION_S = 10.0
# Small, so that ledgers are sealed and given up, gc deletes and deadlines pass while a run lasts.
LIMITS = Limits(
    commits_per_ledger=20,
    retention_ledger_ms=2_000,
    gc_grace_ms=20_000,
    gc_quiet_graces=1,
    gc_thorough_epochs=3,
    append_deadline_s=20.0,
    change_deadline_s=20.0,
    seal_every_s=1.0,
    trim_every_s=1.0,
    compact_every_s=3.0,
    rewrite_every_s=2.0,
    gc_every_s=2.0,
    sinks_every_s=5.0,
    condemned_every_s=5.0,
    standby_s=0.3,
    failing_s=4.0,
)
RETENTION = timedelta(seconds=60)  # of 'orders'; the other topics keep everything
SHORT_RETENTION = timedelta(seconds=20)  # of a run that does not last for much longer
COMPACT_AFTER_BYTES = 20_000
REWRITE_BELOW_BYTES = 1 << 20

ORDERS, COPIES, FOLLOWED, STATES, JOBS, INVOICES = "orders", "copies", "followed", "states", "jobs", "invoices"
PAID, POSTED = "paid", "posted"  # what becomes of each order, in one transaction
FAN = ("fan-0", "fan-1", "fan-2", "fan-3")  # the orders once more, each in one of these
DEAD = "dead"  # the dead letters of those who share
KEYED = pa.schema([("k", pa.string()), ("v", pa.string())])
PLAIN = pa.schema([("v", pa.string())])
TOPICS = {ORDERS: KEYED, COPIES: PLAIN, FOLLOWED: PLAIN, STATES: PLAIN, JOBS: PLAIN, INVOICES: PLAIN}
TOPICS |= dict.fromkeys((PAID, POSTED, *FAN), PLAIN)
FOLLOW, WORK = "follow", "work"  # the subscriptions of 'orders': of a query, and of Python consumers,
ARCHIVE = "archive"  # and of who notes what there was, so that it may be given up
SHARE, BY_KEY = "share", "by-key"  # and of those who share one,
PAY = "pay"  # and of those who do so in transactions
SUBSCRIPTIONS = (FOLLOW, WORK, ARCHIVE, SHARE, BY_KEY, PAY)
MAX_REDELIVERIES = 2
BILLING = "billing"  # the token group
KEYS = 40
TOGETHER = 4  # records that a producer sends at once

# What a fault may lead to. Anything else is a fault of the product, or of the run.
EXPECTED = (
    "LEDGER_UNAVAILABLE",
    "LEDGER_STORAGE_UNAVAILABLE",
    "LEDGER_OUTCOME_UNKNOWN",
    "LEDGER_CONFLICT",
    "LEDGER_STAGED_TOO_LONG_AGO",
    "LEDGER_SUBSCRIPTION_BUSY",
    "LEDGER_SUBSCRIPTION_FENCED",
    "LEDGER_PRODUCER_FENCED",
    "LEDGER_DELIVERY_TIMEOUT",
    "LEDGER_CURSOR_UNDER_REVISION",
    "LEDGER_REVISION_FENCED",
    "LEDGER_MESSAGE_OUTDATED",
    "LEDGER_COMPACTION_RUNNING",
    "LEDGER_COMPACTION_FENCED",
    "LEDGER_CORRUPT_DATA",  # its text must name a file that was damaged: see summary.py
)
FILE_MISSING = "LEDGER_FILE_MISSING"  # of a task that took longer than the grace
TRIMMED = "LEDGER_TRIMMED"  # of a reader without a subscription that was away for too long
NEW_CHECKPOINT = (TRIMMED, "LEDGER_GENERATION_GONE", "LEDGER_DELETIONS_DROPPED")  # the latter of a compacted reader
CODE = re.compile(r"\[(LEDGER_[A-Z_]+)\]")


@dataclass(frozen=True)
class World:
    folder: str
    zookeeper: str
    storage: str
    seed: int

    @classmethod
    def load(cls, file: str) -> World:
        return cls(**json.loads(Path(file).read_text()))

    @property
    def file(self) -> Path:
        return self.path("world.json")

    def save(self) -> None:
        self.file.write_text(json.dumps(asdict(self)))

    def path(self, *parts: str) -> Path:
        path = Path(self.folder, *parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def is_calm(self) -> bool:
        """No fault comes any more."""
        return self.path("calm").exists()

    def calm_down(self) -> None:
        self.path("calm").touch()

    def client(self, limits: Limits = LIMITS) -> LedgerClient:
        metadata = ZooKeeperMetadata(self.zookeeper, timeout_s=8.0, session_timeout_s=SESSION_S, answered=True)
        return client_of(OpenNamespace(metadata, self.storage, address=self.zookeeper, limits=limits))

    def recorder(self, process: str) -> Recorder:
        """Of a process; its name begins with what it is called over restarts, and a dot."""
        return Recorder(self.path("histories", f"history-{process}.jsonl"), process)

    def checkpoint(self, query: str) -> Path:
        return self.path("checkpoints", query)

    def progress(self, name: str) -> Path:
        """Its time is that of the last thing that went well."""
        return self.path("progress", name)

    def chance(self, *what: object) -> random.Random:
        return random.Random("/".join(map(str, (self.seed, *what))))


# -- records --------------------------------------------------------------------------------------------------------


def content(world: World, topic: str, producer: str, number: int) -> dict[str, str | None]:
    """A record of a producer that numbers them: the same whenever it is sent again. Some delete their key."""
    if topic != ORDERS:
        return {"v": f"{producer}-{number}"}
    chance = world.chance(producer, number)
    deletes = chance.random() < 0.15
    return {"k": f"k{chance.randrange(KEYS)}", "v": None if deletes else f"{producer}-{number}"}


def name_of(v: str | None, producer: str | None, sequence: int | None) -> str:
    """A record's value in the history. One that deletes its key has no column to hold a name: its producer's does."""
    return f"{producer}-{sequence}" if v is None else v


def row_of(record: Any) -> Row:
    """A record, or a message, as the history has it."""
    columns: Mapping[str, Any] = record.value
    value = name_of(columns["v"], record.producer, record.sequence_id)
    return Row(value, record.position, columns.get("k"), columns["v"] is None)


def fan_of(value: str) -> str:
    """The topic into which an order goes."""
    return FAN[zlib.crc32(value.encode()) % len(FAN)]


def after(position: Position) -> Position:
    return Position(position.ledger, position.entry, position.index + 1)


def patiently(ask: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What is asked when no fault is left, but ZooKeeper perhaps still elects a leader."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def is_expected(error: LedgerError) -> bool:
    return error.code in EXPECTED
