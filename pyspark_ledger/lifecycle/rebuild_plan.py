"""What a rebuild brings back, and what may be missing: for people who decide, and for the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import CorruptData, Unavailable
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.lifecycle.rebuild_readers import is_past_end
from pyspark_ledger.lifecycle.rebuild_sources import LeftOut, SavedNamespace, SavedTopic
from pyspark_ledger.log import generations
from pyspark_ledger.log.index import Index
from pyspark_ledger.log.snapshots import LogSnapshot
from pyspark_ledger.log.trimmed import first_ledger
from pyspark_ledger.metadata.port import EntityKey, TokenBlockKey, TokenGroupKey
from pyspark_ledger.metadata.records import Commit, Cursor, FileRef, Generation, Head


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic that is made again.

    Attributes:
        topic: its name.
        uuid: the topic itself.
        saved: when its log was saved. What was committed after that is lost.
        where: the file that it is made from.
        records: how many records it has then.
        end: the position after the last one.
        last_commit: the number of its last commit; None if it has none.
        last_publish: when that was published.
        later_files: files that nothing names, and that may be of commits that are lost.
        later_bytes: how long these are.
        missing_files: files of the index, or of the last commits, that are not there: 'topics verify' says more.
        subscriptions: those that are brought back.
        clamped: those of them that were past the end, and begin there.
        readers_saved: when subscriptions and token groups were saved; None if there are none.
        token_groups: those whose tokens may be there again although they were consumed: at least once, for what was
            consumed since they were saved.
        generation: the newest compacted generation that is brought back; 0: none.
        warnings: what else a person should know.
    """

    topic: str
    uuid: str
    saved: datetime
    where: str
    records: int
    end: Position
    last_commit: int | None
    last_publish: datetime | None
    later_files: int
    later_bytes: int
    missing_files: int
    subscriptions: tuple[str, ...]
    clamped: tuple[str, ...]
    readers_saved: datetime | None
    token_groups: tuple[str, ...]
    generation: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What is made, or was.

    Attributes:
        namespace: the id that the namespace had.
        storage: where its files are.
        where: what it is made from.
        saved: when sinks, outboxes and the list of topics were saved; None if that is not there.
        topics: those that are made again.
        left_out: those that are not, and why.
        entities: how many entities of outboxes are brought back.
        warnings: what else a person should know.
    """

    namespace: str
    storage: str
    where: str
    saved: datetime | None
    topics: tuple[TopicPlan, ...]
    left_out: tuple[LeftOut, ...]
    entities: int
    warnings: tuple[str, ...] = ()


def of(storage: Storage, found: SavedNamespace, limits: Limits) -> RebuildPlan:
    warnings = list(found.unusable)
    if not found.rest.written_ms:
        warnings.append(
            "no snapshot of the namespace can be used: its sinks, outboxes and marks of deleted topics are lost, and "
            "topics that were deleted may be among those that are made again"
        )
    return RebuildPlan(
        namespace=found.id.hex(),
        storage=storage.uri,
        where=found.where,
        saved=_moment(found.rest.written_ms),
        topics=tuple(_topic_plan(storage, topic) for topic in found.topics),
        left_out=found.left_out,
        entities=sum(isinstance(key, EntityKey) for key in found.rest.nodes),
        warnings=tuple(warnings),
    )


def _topic_plan(storage: Storage, topic: SavedTopic) -> TopicPlan:
    log, head = topic.log, topic.log.head
    files = TopicFiles(storage, head.uuid, SYSTEM_CLOCK)
    kept = without_missing(files, head)
    later, missing = _compared(storage, files, log)
    cursors = [cursor for cursor in topic.readers.nodes.values() if isinstance(cursor, Cursor)]
    groups = {key.group for key in topic.readers.nodes if isinstance(key, TokenGroupKey | TokenBlockKey)}
    return TopicPlan(
        topic=head.name,
        uuid=head.uuid,
        saved=datetime.fromtimestamp(log.written_ms / 1000, UTC),
        where=topic.where,
        records=head.records,
        end=head.end,
        last_commit=head.next_commit - 1 if head.last_commit else None,
        last_publish=_moment(head.last_publish_ms),
        later_files=len(later),
        later_bytes=sum(_size(storage, path) for path in later),
        missing_files=len(missing),
        subscriptions=tuple(cursor.name for cursor in cursors),
        clamped=tuple(cursor.name for cursor in cursors if is_past_end(cursor, head)),
        readers_saved=_moment(topic.readers.written_ms),
        token_groups=tuple(sorted(groups)),
        generation=kept.generation.number if kept.generation is not None else 0,
        warnings=(*topic.unusable, *_of_generation(head, kept)),
    )


def _of_generation(head: Head, kept: Head) -> Iterator[str]:
    if head.generation is not None and kept.generation is None:
        lost = f"files of compacted generation {head.generation.number} are missing: compact the topic again"
        if head.trim is not None and head.trim.position > Position(0, 0, 0):
            lost += (
                f". What the log has given up, before {head.trim.position}, was only there: readers of compacted "
                "ledgers have lost keys that were not written since"
            )
        yield lost


def without_missing(files: TopicFiles, head: Head) -> Head:
    """The head without a generation whose files are not there, and without lists that are not there."""
    generation, replaced, going = head.generation, head.replaced, head.going
    if generation is not None and not _is_there(files, generation):
        generation = None
    if replaced is not None and not _has(files, replaced):
        replaced = None
    if going is not None and not _has(files, going):
        going = None
    return replace(head, generation=generation, replaced=replaced, going=going)


def _is_there(files: TopicFiles, generation: Generation) -> bool:
    try:
        return all(_has(files, file) for file in generations.files_of(files, generation.manifest))
    except (CorruptData, Unavailable):
        return False


def _has(files: TopicFiles, file: FileRef) -> bool:
    """By its length."""
    with suppress(CorruptData, Unavailable):
        return files.storage.size(names.staged_file(files.uuid, file.epoch, file.uid)) == file.length
    return False


def _compared(storage: Storage, files: TopicFiles, log: LogSnapshot) -> tuple[list[str], list[str]]:
    """Files that nothing names although a later commit could, and files that are named and are not there: those of the
    index, and of the ledgers that were sealed or rewritten in the last two gc epochs."""
    floor = log.head.gc_epoch - 1
    there: set[str] = set()
    for folder in storage.folders(names.topic_folder(files.uuid)):
        epoch = names.parse_epoch_folder(folder)
        if epoch is not None:
            there.update(storage.list(names.epoch_folder(files.uuid, epoch)))
    named = {names.staged_file(files.uuid, file.epoch, file.uid) for file in _named(files, log, floor)}
    parsed = {path: names.parse_staged_file(files.uuid, path) for path in there - named}
    later = [path for path, found in parsed.items() if found is not None and found[0] >= floor]
    return later, sorted(named - there)


def _named(files: TopicFiles, log: LogSnapshot, floor: int) -> Iterator[FileRef]:
    """A leaf was staged in the epoch of the files that it names, or in the next one: older leaves are not read."""
    head, dedup = log.head, log.dedup
    index = Index(files, head.index, first_ledger(head))
    with suppress(CorruptData, Unavailable):
        yield from index.references(0)
    with suppress(CorruptData, Unavailable):
        for leaf in index.leaves(lambda row: row.ledger, 0):
            if leaf.file.epoch >= floor:
                for commit in index.commits(leaf):
                    yield from _named_by(files, commit)
    for commit in log.commits:
        yield from _named_by(files, commit)
    others = (*head.gc_kept, *head.gc_gone, head.replaced, head.going, dedup.producers_file, dedup.evicted_file)
    yield from (file for file in others if file is not None and _has(files, file))
    if head.generation is not None and _is_there(files, head.generation):
        yield head.generation.manifest
        yield from generations.files_of(files, head.generation.manifest)


def _named_by(files: TopicFiles, commit: Commit) -> Iterator[FileRef]:
    with suppress(CorruptData, Unavailable):
        entries = files.fetch_entries(commit.entries_file) if commit.entries_file is not None else commit.entries
        yield from (entry.file for entry in entries)
    yield from (file for file in (commit.highest_file, commit.entries_file) if file is not None)


def _size(storage: Storage, path: str) -> int:
    with suppress(CorruptData, Unavailable):
        return storage.size(path)
    return 0


def _moment(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None
