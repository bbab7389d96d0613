"""Where a folder for files may be made, so that a disk that is not mounted is never taken for an empty one.

The root is made and marked with the namespace (``log.root``), a topic's folder with the topic, and nobody makes either
again. There is one exception: a topic that an earlier version made has no folder before its first file."""

from __future__ import annotations

from pyspark_ledger.base import names
from pyspark_ledger.errors import Unavailable
from pyspark_ledger.log.log import Log


def prepare(log: Log) -> None:
    """Before a file of a topic is written, by a process that can look into ZooKeeper.

    :raises Unavailable: the root has no marker file, or the topic has records and its folder is not there; or the
        storage is being moved.
    :raises Conflict: the storage was moved.
    """
    if log.view().head.moves != log.storage.moves:
        log.refresh(sync=True)  # perhaps a server that is behind has told it
    log.check_root(log.view().head)
    try:
        log.storage.check_marked()
    except Unavailable:
        log.check_root(log.refresh(sync=True).head)  # the head in memory may be from before the storage was moved
        raise
    folder = names.topic_folder(log.topic.uuid)
    if not log.storage.has_folder(folder):
        if log.refresh(sync=True).head.next_commit:
            raise log.storage.not_there(folder)
        log.storage.make_folder(folder)
