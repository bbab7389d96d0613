"""Topics that were deleted: their files go, whatever happens.

The transaction that deletes a topic also makes a node that condemns its UUID. The files are deleted right after it, but
a process may die before that, and a task that runs late may still stage one: executors write without asking ZooKeeper.
So the node stays for two graces. Until then everybody who comes by deletes what is there, and who comes after that also
removes the folder and the node.

Only a UUID that was condemned is touched, and not if there is a topic with it: another namespace may keep its files in
the same root. A run that ends half way has done a part of what the next one does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from pyspark_ledger.base import names
from pyspark_ledger.base.paging import by_halves, pages
from pyspark_ledger.errors import LedgerError, OutcomeUnknown
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.log import topics
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import (
    CondemnedKey,
    CondemnedsKey,
    Delete,
    HeadKey,
    RootKey,
    TransactionLost,
    Versioned,
)
from pyspark_ledger.metadata.records import Deleted

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]  # what is done, how much of it, and of how much


@dataclass(frozen=True, slots=True)
class Finished:
    """What was done about a topic that was deleted, or with ``dry_run`` would be.

    Attributes:
        uuid: the topic.
        deleted_ms: when it was deleted.
        files: how many files were still there, and are deleted.
        is_over: whether nothing of it is left. If not, a task that runs late may still bring a file.
        error: why that could not be done; the next run tries again.
    """

    uuid: str
    deleted_ms: int
    files: int = 0
    is_over: bool = False
    error: str = ""


def finish(namespace: OpenNamespace, *, dry_run: bool = False, progress: Progress = lambda *_: None) -> list[Finished]:
    """Deletes what is left of topics that were deleted. An error with one of them does not stop the others."""
    namespace.storage.check_marked()
    now_ms = namespace.metadata.now_ms(exact=True)
    keys = [key for key in namespace.metadata.children(CondemnedsKey()) if isinstance(key, CondemnedKey)]
    finished: list[Finished] = []
    for page in pages(keys, namespace.limits.topics_at_once):
        for found in by_halves(page, partial(_condemned, namespace), _unreadable):
            one = found if isinstance(found, Finished) else _finish_one(namespace, *found, now_ms, dry_run)
            finished.append(one)
            progress("deleted topics", len(finished), len(keys))
    return finished


_Condemned = tuple[CondemnedKey, Versioned[Deleted]]


def _condemned(namespace: OpenNamespace, keys: Sequence[CondemnedKey]) -> list[_Condemned | Finished]:
    """Those that are topics no more. The UUID becomes a path, so it has to look like one."""
    metadata = namespace.metadata
    metadata.sync()
    nodes = metadata.read_many(keys)
    heads = metadata.read_many([HeadKey(key.uuid) for key in keys])
    return [
        (key, node)
        for key, node, head in zip(keys, nodes, heads, strict=True)
        if node is not None and head is None and names.parse_topic_folder(key.uuid) is not None
    ]


def _unreadable(key: CondemnedKey, error: LedgerError) -> list[_Condemned | Finished]:
    return [Finished(key.uuid, 0, error=str(error))]


def _finish_one(
    namespace: OpenNamespace, key: CondemnedKey, node: Versioned[Deleted], now_ms: int, dry_run: bool
) -> Finished:
    is_over = now_ms - node.modified_ms >= 2 * namespace.limits.gc_grace_ms
    found = Finished(key.uuid, node.record.deleted_ms)
    try:
        found = replace(found, files=count_files(namespace.storage, key.uuid), is_over=is_over)
        if not dry_run:
            if found.files:
                delete_files(namespace.storage, key.uuid)
            if is_over:
                _remove(namespace, key, node)
            if found.files or is_over:
                logger.info("finished uuid=%s files=%d over=%s", key.uuid, found.files, is_over)
    except LedgerError as error:
        return replace(found, is_over=False, error=str(error))
    return found


def _remove(namespace: OpenNamespace, key: CondemnedKey, node: Versioned[Deleted]) -> None:
    """The node goes last: it is how the rest is found."""
    if namespace.metadata.read(RootKey(key.uuid)) is not None:  # who deleted the topic has died before it was done
        topics.purge(namespace.metadata, key.uuid, namespace.limits)
    delete_files(namespace.storage, key.uuid)
    namespace.storage.delete_folder(names.topic_folder(key.uuid))
    with suppress(TransactionLost, OutcomeUnknown):  # somebody else has done it, or the next run will
        namespace.metadata.transact([Delete(key, node.version)])


def count_files(storage: Storage, uuid: str) -> int:
    return sum(1 for _ in storage.list(names.topic_folder(uuid)))


def delete_files(storage: Storage, uuid: str) -> None:
    """All files of a topic, and its snapshots. Its folder stays: a task that runs late stages its file in vain, and
    then its query is told that the topic was deleted, and not that the storage seems to be missing."""
    folder = names.topic_folder(uuid)
    for below in storage.folders(folder):
        storage.delete_folder(f"{folder}/{below}")
    storage.delete_many(list(storage.list(folder)))
    if storage.marker:
        storage.delete_folder(names.recovery_folder_of_topic(storage.marker, uuid))
