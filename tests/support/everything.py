"""A small namespace that has every kind of file, on a disk in memory, and every operation that reads files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import ByTokens
from pyspark_ledger.base import names
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.compaction.plan import state_slices
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.errors import LedgerError
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log import policies, scan, topics
from pyspark_ledger.log.generations import files_of, kept, numbered
from pyspark_ledger.log.index import Index
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.log.rows import read_slice
from pyspark_ledger.log.sources import ReadSource
from pyspark_ledger.metadata.port import DedupKey, Key
from pyspark_ledger.metadata.records import FileRef
from pyspark_ledger.outbox.outbox import Outbox, Send
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.disk import Disk, MemoryStorage, StorageFaults
from pyspark_ledger.testing.memory import Crash, MemoryMetadata
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.tokens import Tokens
from tests.support.pipeline import token_runs
from tests.support.rollback import Snapshot, restore, snapshot
from tests.support.worlds import EAGER, IDS, World, append_ids, stage_ids

LIMITS = replace(
    EAGER, inline_producers_bytes=0, token_chunk=64, inline_bitmap_bytes=1, node_bitmap_bytes=2, entity_bytes=10
)
ROOMY = replace(LIMITS, commits_per_ledger=100)  # of a process that does not seal
OnCall = Callable[[str], None]
GROUP, OUTBOX, ENTITY, SUBSCRIPTION = "group", "billing", "ann", "old"


class Everything:
    """24 commits of three entries each: five sealed ledgers in an index of two levels, and a full open one. Three
    generations, evicted producers, consumed tokens, an entity, and files that nothing names."""

    def __init__(self) -> None:
        self.disk, self.clock = Disk(), SeededClock()
        self.world = World(MemoryStorage(self.disk), LIMITS, self.clock, IDS, key="who")
        log = self.world.log()
        policies.change(log, policies.Changes(evict_producers_after=timedelta(hours=1)))
        with self.world.storage.mounted():
            for number in range(24):
                self._commit(log, number)
                if number in (2, 4):
                    stage_ids(log, [[("nobody", number)]])  # what a writer that died leaves
                    gc.collect(log)
                if number in (10, 15, 20):
                    assert compact(log) is not None
        CursorNode(log, SUBSCRIPTION).ensure("earliest")
        self.tokens = [record.token for record in Reader(log, "earliest", "latest") if record.token]
        assert Tokens(log, GROUP).consume(self.tokens[::3])
        outbox(log).process("m0", self.tokens[0], lambda _: ("a long state", []), entity=ENTITY)
        self._clean, self._folders = self.state(), self.disk.folders()

    def _commit(self, log: Log, number: int) -> None:
        producers = [f"early{task}" if number < 2 else f"p{(number + task) % 5}" for task in range(3)]
        tasks = [[(who, 10 * number + row) for row in range(1 + number % 2)] for who in producers]
        protocol.append(log, replace(stage_ids(log, tasks, f"n{number}"), mints=number % 4 == 0))
        self.clock.sleep(600)

    # -- processes ---------------------------------------------------------------------------------------------

    @contextmanager
    def process(
        self, limits: Limits = LIMITS, faults: StorageFaults | None = None, on_call: OnCall | None = None
    ) -> Iterator[Log]:
        """A process that has just been started, which knows nothing."""
        storage = MemoryStorage(self.disk, faults)
        metadata = MemoryMetadata(self.world.server, clock=self.clock)

        def called(call: str) -> None:
            if on_call is not None:
                try:
                    on_call(call)
                except Crash:
                    metadata._crashed = True  # it says nothing more to ZooKeeper either
                    raise

        storage.on_call = called
        with storage.mounted():
            try:
                yield Log(metadata, storage, self.world.topic, limits=limits, clock=self.clock)
                metadata.chores.run_all()  # what a thread does in the background
            except LedgerError:
                metadata.chores.run_all()
                raise
            finally:
                metadata.close()

    def run(self, operation: str, faults: StorageFaults | None = None, on_call: OnCall | None = None) -> Any:
        """What an operation answers to a new process."""
        limits = ROOMY if operation in ROOMY_OPERATIONS else LIMITS
        with self.process(limits, faults, on_call) as log:
            return OPERATIONS[operation](self, log)

    # -- what there is ------------------------------------------------------------------------------------------

    def kinds(self) -> dict[str, list[str]]:
        """The paths of all files that something names, by kind."""
        with self.process() as log:
            return self._kinds(log)

    def _kinds(self, log: Log) -> dict[str, list[str]]:
        view = log.refresh(sync=True)
        uuid, index = log.topic.uuid, Index(log.files, view.head.index)
        leaves = list(index.leaves(lambda row: row.first_commit, 0))
        commits = list(log.commits_from(view, EARLIEST))
        generations = kept(log.files, view.head)
        dedup = log.metadata.read(DedupKey(uuid)).record
        manifests = [generation.manifest for generation in generations]
        refs: dict[str, list[FileRef | None]] = {
            "entry": [entry.file for commit in commits for entry in log.entries(commit)],
            "entry list": [commit.entries_file for commit in commits],
            "highest ids": [commit.highest_file for commit in commits],
            "index leaf": [leaf.file for leaf in leaves],
            "index node": [ref for ref in index.references(0) if ref not in [leaf.file for leaf in leaves]],
            "snapshot": [dedup.producers_file],
            "evicted": [dedup.evicted_file],
            "manifest": manifests,
            "compacted": [file for manifest in manifests for file in files_of(log.files, manifest)],
            "replaced generations": [view.head.replaced],
        }
        found = {
            kind: [names.staged_file(uuid, ref.epoch, ref.uid) for ref in files if ref is not None]
            for kind, files in refs.items()
        }
        found["token bitmap"] = [path for path in self.disk.files() if f"/tokens/{GROUP}/" in path]
        found["entity"] = [path for path in self.disk.files() if path.startswith(names.OUTBOXES_FOLDER)]
        return found

    def nodes(self) -> dict[Key[Any], Any]:
        return {key: found.record for key, found in snapshot(self.world.server).items() if found is not None}

    def state(self) -> tuple[Snapshot, dict[str, bytes]]:
        return snapshot(self.world.server), {path: self.disk.content(path) for path in self.disk.files()}

    def restore(self) -> None:
        """All as it was when it was made."""
        nodes, files = self._clean
        restore(self.world.server, nodes)
        for folder in set(self.disk.folders()) - set(self._folders):
            self.disk.set_folder(folder, there=False)
        for path in self.disk.files():
            if path not in files:
                self.disk.put(path, None)
        for path, data in files.items():
            if path not in self.disk.files() or self.disk.content(path) != data:
                self.disk.put(path, data)
        self.disk.sync()  # or what was deleted could come back with the next power cut


# -- operations ----------------------------------------------------------------------------------------------------


def outbox(log: Log) -> Outbox:
    def open_topic(name: str) -> Log:
        found = topics.get_topic(log.metadata, name)
        return Log(log.metadata, log.storage, found, limits=log.limits, clock=log.clock)

    return Outbox(OUTBOX, log.metadata, log.storage, open_topic, log.limits, log.clock)


def _rows(log: Log, pieces: Any) -> list[Any]:
    return [
        (str(Position(*place)), row)
        for piece in pieces
        for rows in read_slice(log.storage, log.topic.uuid, piece, IDS, with_ids=True)
        for *place, row in zip(
            *(column.to_pylist() for column in rows.positions()), rows.batch.to_pylist(), strict=True
        )
    ]


def _read(_: Everything, log: Log) -> Any:
    return [(str(record.position), dict(record.value), record.token) for record in Reader(log, "earliest", "latest")]


def _read_state(_: Everything, log: Log) -> Any:
    return [(str(r.position), dict(r.value)) for r in Reader(log, "earliest", "latest", None, state_slices)]


def _read_old_generation(_: Everything, log: Log) -> Any:
    view = log.refresh(sync=True)
    return _rows(log, ReadSource(log, view, numbered(log, view, 1), EARLIEST).slices(EARLIEST, view.head.end))


def _look_up(_: Everything, log: Log) -> Any:
    view = log.refresh(sync=True)
    positions = [scan.position_at(log, view, ordinal) for ordinal in range(0, view.head.records, 5)]
    times = [log.commit_at_time(view, view.head.last_publish_ms - ms) for ms in (0, 3_000_000, 10_000_000)]
    return positions, [scan.records_before(log, view, at) for at in positions], [c.number for c in times if c]


def _producers(_: Everything, log: Log) -> Any:
    _, states = log.producers()
    return states.all(), states.evicted


def _tokens(world: Everything, log: Log) -> Any:
    return Tokens(log, GROUP).present(world.tokens)


def _entity(_: Everything, log: Log) -> Any:
    return outbox(log).state(ENTITY)


def _append(_: Everything, log: Log) -> Any:
    """One record of it is in the log already."""
    done = append_ids(log, [[("p1", 5), ("p1", 5000)], [("p2", 5000)], [("new", 1)]], "appended")
    return done.start, done.records, done.dropped


def _compact(world: Everything, log: Log) -> Any:
    done = compact(log)
    with world.process() as another:  # reads what it wrote
        view = another.refresh(sync=True)
        pieces = ReadSource(another, view, done, EARLIEST).slices(EARLIEST, view.head.end)
        return done.number, done.horizon, done.records, _rows(another, pieces)


def _collect(_: Everything, log: Log) -> Any:
    return gc.collect(log)


def _consume(world: Everything, log: Log) -> Any:
    return Tokens(log, GROUP).consume(world.tokens)


def _append_with_tokens(world: Everything, log: Log) -> Any:
    """The first of these tokens is gone."""
    tokens = world.tokens[:3]
    batch = stage_ids(log, [[("spender", number) for number in range(len(tokens))]], "spent")
    admission = ByTokens(Groups.in_namespace_of(log, GROUP), [token_runs(tokens)])
    done = protocol.append(log, replace(batch, admission=admission))
    return done.start, done.records, done.dropped


def _process(world: Everything, log: Log) -> Any:
    """State, token and a record of the topic in one transaction."""

    def handler(state: Any) -> Any:
        return f"{state} and more", [Send("t", {"who": "p1", "seq": 1, "note": "sent"})]

    return outbox(log).process("m1", world.tokens[1], handler, entity=ENTITY)


def _create_topic(world: Everything, log: Log) -> Any:
    made = topics.create_topic(log.metadata, "another", IDS, clock=log.clock, storage=log.storage)
    return made.name, made.uuid in world.disk.folders()


def _subscribe(_: Everything, log: Log) -> Any:
    cursor = CursorNode(log, "new").ensure("2:1:0")
    return cursor.mark_delete, cursor.ordinal


def _acknowledge(_: Everything, log: Log) -> Any:
    """With many gaps."""
    node = CursorNode(log, SUBSCRIPTION)
    done = node.update(lambda cursor: node.moved(cursor, 7, node.acks(cursor) | [(n, n + 1) for n in range(9, 40, 2)]))
    return done.mark_delete, list(node.acks(done))


def _reset(_: Everything, log: Log) -> Any:
    return CursorHandle(log, SUBSCRIPTION).reset("1:3:0")


READING: dict[str, Callable[[Everything, Log], Any]] = {
    "read": _read,
    "read the state": _read_state,
    "read an old generation": _read_old_generation,
    "look up": _look_up,
    "producers": _producers,
    "tokens": _tokens,
    "entity": _entity,
}
CHANGING: dict[str, Callable[[Everything, Log], Any]] = {
    "append": _append,
    "seal and append": _append,
    "compact": _compact,
    "collect": _collect,
    "consume": _consume,
    "append with tokens": _append_with_tokens,
    "process": _process,
    "create a topic": _create_topic,
    "subscribe": _subscribe,
    "acknowledge": _acknowledge,
    "reset": _reset,
}
OPERATIONS = READING | CHANGING
ROOMY_OPERATIONS = OPERATIONS.keys() - {"seal and append"}
