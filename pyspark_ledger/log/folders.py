"""Where a folder for files may be made, so that a disk that is not mounted is never taken for an empty one.

The root is made with the namespace, a topic's folder with the topic, and nobody makes either again. There is one
exception: what an earlier version made in ZooKeeper has no folder before its first file."""

from __future__ import annotations

from pyspark_ledger.base import names
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import HeadKey, Metadata, TopicKey, TopicsKey


def prepare(log: Log) -> None:
    """Before a file of a topic is written, by a process that can look into ZooKeeper.

    :raises Unavailable: the topic has records, and its folder is not there.
    """
    folder = names.topic_folder(log.topic.uuid)
    if not log.storage.has_folder(folder):
        if log.refresh(sync=True).head.next_commit:
            raise log.storage.not_there(folder)
        make_topic_folder(log.metadata, log.storage, log.topic.uuid)


def make_topic_folder(metadata: Metadata, storage: Storage, uuid: str) -> None:
    if storage.is_bare():
        if (elsewhere := _topic_with_records(metadata)) is not None:
            raise storage.not_there(names.topic_folder(elsewhere))
        storage.make_folder("")
    storage.make_folder(names.topic_folder(uuid))


def _topic_with_records(metadata: Metadata) -> str | None:
    """The UUID of a topic that has a commit, and so a file somewhere."""
    keys = [key for key in metadata.children(TopicsKey()) if isinstance(key, TopicKey)]
    found = [topic.record.uuid for topic in metadata.read_many(keys) if topic is not None]
    heads = metadata.read_many([HeadKey(uuid) for uuid in found])
    return next((head.record.uuid for head in heads if head is not None and head.record.next_commit), None)
