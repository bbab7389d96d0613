"""How a namespace gets another storage root while others use it: the steps in ZooKeeper.

1. *begin*: the namespace's record says where it is moving, and has a new number. From here on no topic is made, and no
   long value of a token group or an entity is named: who wrote one looks at the record before naming it.
2. *fence*: every topic's head gets the number. Whoever has the former root open is refused by name from then on: it
   remembers another number, and a transaction that was decided before comes too late, because the head has another
   version. The gc epoch is raised by two as well, so that a batch whose tasks have staged files in the former root is
   refused also by a process that opens the new one.
3. Now nothing new can be named in the former root, and the caller brings over what is missing (``move_storage``).
4. *finish*: one transaction makes the new root the namespace's.

A process may die between any two steps. Then nobody writes, everybody can read, and errors say who has begun what. The
next one goes back and begins again; *go back* is such a move too: to the root that the namespace has.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.limits import DEFAULT_LIMITS, Limits
from pyspark_ledger.base.paging import pages
from pyspark_ledger.errors import Conflict, DataLoss, LedgerError, NotFound
from pyspark_ledger.files.storage import Storage, open_storage
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.lifecycle.belongings import same_place
from pyspark_ledger.log import root
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.ephemeral import Ephemeral
from pyspark_ledger.metadata.port import DedupKey, GcKey, Metadata, MoverKey, NamespaceKey, Op, Put, TopicKey, TopicsKey
from pyspark_ledger.metadata.records import GcEpoch, Head, Holder, Moving, Namespace, Topic
from pyspark_ledger.metadata.transactions import PlainNode, Transactions

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]  # what is done, how much of it, and of how much
_EPOCHS = 2  # files that were staged before are then of an epoch before the last but one


class Mover:
    """Changes the root of one namespace. ``address`` is ZooKeeper's connect string, for the new marker file;
    ``progress`` is told what is done."""

    def __init__(
        self,
        metadata: Metadata,
        *,
        address: str = "",
        limits: Limits = DEFAULT_LIMITS,
        clock: Clock = SYSTEM_CLOCK,
        progress: Progress = lambda *_: None,
    ) -> None:
        self.address = address
        self.metadata, self.limits, self.clock, self.progress = metadata, limits, clock, progress
        self._transactions = Transactions(metadata, limits, clock)
        self._node = PlainNode(metadata, NamespaceKey(), _no_namespace)

    # -- looking ---------------------------------------------------------------------------------------------------

    def namespace(self) -> Namespace:
        """The namespace's record as it is now."""
        record = self._node.newest().record
        root.check_complete(record)
        return record

    def topics(self) -> list[Topic]:
        """All topics that there are."""
        self.metadata.sync()
        keys = [key for key in self.metadata.children(TopicsKey()) if isinstance(key, TopicKey)]
        found = (self.metadata.read_many(page) for page in pages(keys, self.limits.topics_at_once))
        return [topic.record for page in found for topic in page if topic is not None]

    def log(self, topic: Topic, storage: Storage) -> Log:
        """A topic, with its files in this root."""
        return Log(self.metadata, storage, topic, limits=self.limits, clock=self.clock)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A lock for one mover at a time. No promise depends on it: each step checks that the record is still as this
        mover has left it."""
        mine = Holder(self.clock.new_id(), names.this_process(), self.clock.now_ms())
        lock = Ephemeral(self.metadata, self.limits, self.clock, MoverKey(), mine, "the lock of who moves the storage")
        other = lock.take()
        if other is not None:
            since = datetime.fromtimestamp(other.since_ms / 1000, UTC)
            raise Conflict(
                f"the storage of this namespace is being moved by {other.name} since {since:%Y-%m-%d %H:%M:%S} UTC: "
                "wait for it",
                "LEDGER_STORAGE_MOVING",
            )
        try:
            yield
        finally:
            lock.release()

    # -- the steps -------------------------------------------------------------------------------------------------

    def begin(self, known: Namespace, to: str) -> Namespace:
        """Notes where the namespace is moving, and returns the record. ``known`` is the record from which the mover has
        started: if it has been moved since, what was copied came from the wrong place."""
        note = Moving(to, self.clock.now_ms(), names.this_process())

        def noted(record: Namespace) -> Namespace | None:
            if record.moving == note:
                return None  # it was applied when it was sent before
            root.check_complete(record)
            if record.moves != known.moves:
                raise _overtaken()
            if record.moving is not None and to not in (record.moving.to, record.storage):
                raise moving_elsewhere(record.moving)
            return replace(record, id=record.id or self.clock.new_id(), moves=record.moves + 1, moving=note)

        return self._transactions.change(self._node, noted, "the note that the namespace's storage is being moved")

    def fence(self, record: Namespace, files: Storage) -> None:
        """Refuses everybody who has the former root open, from now on. ``files`` is the root that has the files. One
        topic that cannot be fenced does not keep the others from it, and is told at the end."""
        topics, failed = self.topics(), []
        for number, topic in enumerate(topics, 1):
            try:
                self._fence(self.log(topic, files), record)
            except NotFound:
                pass  # deleted meanwhile
            except LedgerError as error:
                failed.append(error)
            self.progress("topics", number, len(topics))
        if failed:
            raise failed[0]

    def _fence(self, log: Log, record: Namespace) -> None:
        assert record.moving is not None
        goes_back = record.moving.to == record.storage
        if not goes_back:
            _note_rollback(log)  # files of later epochs show it, and would not any more when the epoch is raised
        ops: list[Op] = []

        def fenced(head: Head) -> Head | None:
            ops.clear()
            if head.moves == record.moves:
                return None
            after = replace(head, moves=record.moves)
            if goes_back or head.set_back is not None:  # its files are where they belong, or nobody writes anyway
                return after
            after = replace(after, gc_epoch=head.gc_epoch + _EPOCHS)
            dedup, node = self.metadata.read(DedupKey(head.uuid)), self.metadata.read(GcKey(head.uuid))
            if node is not None:
                ops.append(Put(GcKey(head.uuid), GcEpoch(after.gc_epoch), node.version))
            return replace(after, gc_kept=gc.replaceable(after, None if dedup is None else dedup.record))

        log.change_head(fenced, "its storage is being moved", lambda: ops, in_any_root=True)

    def finish(self, begun: Namespace) -> Namespace:
        """The new root is the namespace's. ``begun`` is what :meth:`begin` has returned."""
        assert begun.moving is not None
        to = begun.moving.to

        def moved(record: Namespace) -> Namespace | None:
            if record.moves != begun.moves:
                raise _overtaken()
            if record.moving is None:
                return None  # it was applied when it was sent before
            former = record.storage if to != record.storage else record.moved_from
            return replace(record, storage=to, moving=None, moved_from=former, marked=True)

        return self._transactions.change(self._node, moved, "the namespace's new storage")

    def go_back(self) -> Namespace:
        """Gives up a move that was begun: the namespace keeps the root that it has."""
        before = self.namespace()
        record = self.begin(before, before.storage)
        self.fence(record, open_storage(record.storage))
        record = self.finish(record)
        if before.moving is not None:
            self.unmark(record, before.moving.to)
        return record

    def unmark(self, record: Namespace, other: str) -> None:
        """Another root is not the namespace's, or not any more, and nobody shall take it for that. It keeps its marker
        if the namespace's root has none: then it may be the only one with the files."""
        try:
            storage, marker = open_storage(other), names.marker_file(record.id)
            now = open_storage(record.storage)
            if marker in now.files("") and not same_place(now, storage, names.probe_file(self.clock.new_id())):
                storage.delete(marker)
        except LedgerError as error:  # a disk that is gone is not taken for anything
            logger.warning("the marker file in %s could not be deleted: %s", other, error)

    @contextlib.contextmanager
    def or_back(self, begun: Namespace) -> Iterator[None]:
        """Around what is done while nobody writes: if it fails, or somebody stops it, the namespace is as it was and
        writing goes on. Only a process that dies leaves it to the next one."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(LedgerError):  # what failed first matters more; errors say how to go on
                if self.namespace().moves == begun.moves:  # else somebody else is at it by now
                    self.go_back()
            raise


def _note_rollback(log: Log) -> None:
    with contextlib.suppress(DataLoss):
        gc.check_not_rolled_back(log, gc.epochs_with_files(log), dry_run=False)


def moving_elsewhere(moving: Moving) -> Conflict:
    return Conflict(
        f"the storage of this namespace is being moved to {moving.to}, which {moving.by} has begun: finish that with "
        f"'pyspark-ledger namespace move-storage --to {moving.to} --yes', or give it up with 'pyspark-ledger namespace "
        "move-storage --abandon --yes'",
        "LEDGER_STORAGE_MOVING",
    )


def _overtaken() -> Conflict:
    return Conflict(
        "somebody else has moved the storage of this namespace meanwhile, or has begun to: look again, with "
        "'pyspark-ledger namespace move-storage --dry-run'",
        "LEDGER_STORAGE_MOVING",
    )


def _no_namespace() -> NotFound:
    return NotFound(
        "there is no namespace at this ZooKeeper address: it is made with its first topic", "LEDGER_NO_NAMESPACE"
    )
