"""A namespace that this process has opened: its metadata store, its storage, and its topics as logs."""

from __future__ import annotations

import os

import pyarrow as pa

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.limits import DEFAULT_LIMITS, Limits
from pyspark_ledger.base.settings import NOTHING_GIVEN, Settings
from pyspark_ledger.errors import Conflict, NotFound, Unavailable
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.log import root, topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.sinks import Sinks
from pyspark_ledger.metadata.port import Metadata
from pyspark_ledger.metadata.records import Topic
from pyspark_ledger.metadata.transactions import Transactions


class OpenNamespace:
    """What every room above the log starts from. ``address`` is ZooKeeper's connect string, ``storage`` where the files
    are, if that is known; ``settings`` say how to get there."""

    def __init__(
        self,
        metadata: Metadata,
        storage: str | Storage | None = None,
        *,
        address: str = "",
        settings: Settings = NOTHING_GIVEN,
        limits: Limits = DEFAULT_LIMITS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.metadata, self.address, self.limits, self.clock = metadata, address, limits, clock
        self.settings = settings
        self._storage = storage if isinstance(storage, Storage) else None
        self._asked_storage = None if isinstance(storage, Storage) else storage or os.environ.get("LEDGER_STORAGE")
        self.sinks = Sinks(metadata, limits, clock)

    @property
    def storage(self) -> Storage:
        """Where the files are, recorded in ZooKeeper by whoever names it first. Who keeps it finds out later that the
        files were moved (``log.root``); who asks again after that gets the new place."""
        if self._storage is None or self._storage.is_left:
            asked = self._asked_storage if self._storage is None else None  # it was right when this was opened
            self._storage = root.open_root(
                self.metadata, asked, self.clock, address=self.address, settings=self.settings
            )
        return self._storage

    def check_storage(self) -> None:
        """Before something is deleted: raises if this is not the right storage, or not any more."""
        try:
            self.storage.check_marked()
        except Unavailable:
            root.check_not_left(self.metadata, self.storage)
            raise

    @property
    def transactions(self) -> Transactions:
        return Transactions(self.metadata, self.limits, self.clock)

    def create_topic(self, name: str, schema: pa.Schema, key: str = "", version_column: str = "") -> Topic:
        return topics.create_topic(
            self.metadata, name, schema, key=key, version_column=version_column, clock=self.clock, storage=self.storage
        )

    def ensure_topic(self, name: str, schema: pa.Schema, key: str = "", version_column: str = "") -> None:
        """Makes a topic, unless somebody has made it meanwhile."""
        try:
            self.create_topic(name, schema, key, version_column)
        except Conflict as conflict:
            if conflict.code != "LEDGER_TOPIC_EXISTS":
                raise

    def log(self, topic: str, *, watch: bool = False) -> Log:
        """A topic as this process sees it; with ``watch`` it is told of changes."""
        try:
            found = topics.get_topic(self.metadata, topic)
        except NotFound:
            root.check_not_lost(self.metadata, self._asked_storage, self.address)
            raise
        return self.log_of(found, watch=watch)

    def log_of(self, topic: Topic, *, watch: bool = False) -> Log:
        """The same of a topic that was found before."""
        return Log(self.metadata, self.storage, topic, limits=self.limits, clock=self.clock, watch=watch)

    def close(self) -> None:
        self.metadata.close()
