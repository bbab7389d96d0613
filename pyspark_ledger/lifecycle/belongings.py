"""What in a storage root belongs to a namespace: folders, and the files that ZooKeeper names in them."""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from pyspark_ledger.base import names
from pyspark_ledger.base.paging import pages
from pyspark_ledger.errors import CorruptData, LedgerError
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import EntityKey, Metadata, OutboxKey, PartKey, TokenChunkKey, TokenGroupKey
from pyspark_ledger.metadata.records import FileRef, Topic

_READ_TOGETHER = 50  # an entity may have 100 kB


def outboxes(metadata: Metadata, storage: Storage) -> list[str]:
    """The outboxes of this namespace that have a folder. Others in the same root may be of another namespace."""
    found = storage.folders(names.OUTBOXES_FOLDER)
    return [name for name in found if metadata.read(OutboxKey(name)) is not None]


def folders(metadata: Metadata, storage: Storage, topics: list[Topic], marker: str) -> list[str]:
    """Every folder with files of this namespace. ``marker`` is the name of its marker file."""
    own = [f"{names.OUTBOXES_FOLDER}/{name}" for name in outboxes(metadata, storage)]
    return [*(names.topic_folder(topic.uuid) for topic in topics), names.recovery_folder(marker), *own]


def named_by_topic(log: Log, view: View, floor: int = 0, first_commit: int = 0) -> Iterator[str]:
    """The files of a topic that ZooKeeper names, directly or through other files, as ``gc.references`` says."""
    uuid = log.topic.uuid
    for file in gc.references(log, view, floor, first_commit):
        yield names.staged_file(uuid, file.epoch, file.uid)
    yield from _of_tokens(log.metadata, uuid)


def _of_tokens(metadata: Metadata, uuid: str) -> Iterator[str]:
    for group in metadata.children(PartKey(uuid, "tokens")):
        if isinstance(group, TokenGroupKey):
            chunks = [key for key in metadata.children(group) if isinstance(key, TokenChunkKey)]
            for page in pages(chunks, _READ_TOGETHER):
                for key, found in zip(page, metadata.read_many(page), strict=True):
                    if found is not None and (file := found.record.file) is not None:
                        yield _versioned(names.token_folder(uuid, group.group, key.chunk), file)


def named_by_outbox(metadata: Metadata, outbox: str) -> Iterator[str]:
    """The files of entities that are too long for their nodes."""
    keys = [key for key in metadata.children(OutboxKey(outbox)) if isinstance(key, EntityKey)]
    for page in pages(keys, _READ_TOGETHER):
        for key, found in zip(page, metadata.read_many(page), strict=True):
            if found is not None and (file := found.record.file) is not None:
                digest = xxhash.xxh3_128_hexdigest(key.entity.encode())
                yield _versioned(names.entity_folder(outbox, digest), file)


def _versioned(folder: str, file: FileRef) -> str:
    return names.versioned_file(folder, file.epoch, file.uid)


def newest_missing(log: Log) -> str:
    """Why the newest files of a topic are not as they should be in its storage; empty if they are: those of its open
    ledger, its index, its producers and its tokens. Few, however long the log is."""
    try:
        view = log.refresh(sync=True)
        head = view.head
        if head.next_commit and not log.storage.has_folder(names.topic_folder(head.uuid)):
            return f"its folder {log.storage.where(names.topic_folder(head.uuid))} is not there"
        in_ledger = (file for commit in view.open_commits for file in gc.named_by(log, commit))
        for file in (*gc.replaceable_now(log, head), *in_ledger):
            path = names.staged_file(head.uuid, file.epoch, file.uid)
            if (size := log.storage.size(path)) != file.length:
                return f"{log.storage.where(path)} has {size:,} bytes, and should have {file.length:,}"
        for path in _of_tokens(log.metadata, head.uuid):
            log.storage.size(path)
    except CorruptData as error:
        return error.message
    return ""


def same_place(one: Storage, other: Storage, probe: str) -> bool:
    """Whether two roots are the same place under two names. ``probe`` is the name of a file that is written for it."""
    one.write(probe, b"is this the same place?\n")
    try:
        other.size(probe)
    except LedgerError:
        return False
    else:
        return True
    finally:
        one.delete(probe)
