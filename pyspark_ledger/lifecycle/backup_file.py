"""A backup by hand: everything that ZooKeeper knows of a namespace, in one file that is kept elsewhere.

It is read in the same order as the continuous backup (``saving``). The data files are not in it: these never change, so
a copy of the storage that is made after it has all that it names, unless gc has deleted something meanwhile that was
replaced more than a grace ago.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark_ledger.base.paging import pages
from pyspark_ledger.errors import Conflict, CorruptData, InvalidInput, LedgerError, NotFound, disk_errors
from pyspark_ledger.files.nodefile import NodeFile
from pyspark_ledger.files.storage import open_storage
from pyspark_ledger.lifecycle.saved_files import WHAT, WRITTEN
from pyspark_ledger.lifecycle.saving import Records, Saved, Saving
from pyspark_ledger.log import snapshots
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import CursorKey, EntityKey, TokenGroupKey
from pyspark_ledger.metadata.records import Topic
from pyspark_ledger.metadata.wallclock import believable_ms
from pyspark_ledger.zk_metadata import exporting

EVERYTHING = "everything of a namespace"
Progress = Callable[[str, int, int], None]  # what is done, how much of it, and of how much


@dataclass(frozen=True, slots=True)
class BackedUpTopic:
    """A topic in a backup.

    Attributes:
        name: its name.
        last_commit: the number of its last commit; -1 if it has none.
        last_publish_ms: when that was published, in milliseconds since 1970; 0 if there is none.
        records: how many records were written to it.
        subscriptions: how many subscriptions it has.
        groups: how many groups have consumed tokens of it.
        set_back: whether somebody has noticed that ZooKeeper was rolled back, and nobody has decided how to go on.
    """

    name: str
    last_commit: int
    last_publish_ms: int
    records: int
    subscriptions: int
    groups: int
    set_back: bool


@dataclass(frozen=True, slots=True)
class BackedUp:
    """What is in a backup file.

    Attributes:
        file: where it is.
        bytes: how long it is.
        storage: the storage root, which is to be copied too.
        topics: the topics.
        entities: how many entities of outboxes there are.
        failed: what is not in it, by the name of the topic or the path of the node, and why.
    """

    file: Path
    bytes: int
    storage: str
    topics: tuple[BackedUpTopic, ...]
    entities: int
    failed: Mapping[str, LedgerError]


def write(
    namespace: OpenNamespace, file: Path, *, overwrite: bool = False, progress: Progress = lambda *_: None
) -> BackedUp:
    """Writes a backup file. What is damaged is left out, and said.

    :raises InvalidInput: there is such a file, and it is not to be overwritten.
    :raises Unavailable: ZooKeeper or the storage does not answer, or the file cannot be written.
    """
    check_place(file, overwrite, "LEDGER_BACKUP_NOT_WRITTEN")
    facts = {
        WHAT: EVERYTHING,
        WRITTEN: str(believable_ms(namespace.metadata, namespace.clock, namespace.limits)),
        "storage": namespace.storage.uri.partition("?")[0],
    }
    saving = Saving(namespace)
    topics = saving.topics()
    readers = _readers(saving, topics, namespace.limits.topics_at_once, progress)
    whole = saving.namespace(topics)
    parts = [*readers.values(), saving.with_files(whole)]
    shown = []
    for number, topic in enumerate(topics, 1):
        log = _log(namespace, topic, saving.failed)
        if log is not None:
            parts.append(Saved(exporting.dump(log.records())))
            shown.append(_shown(log, exporting.load(readers.get(topic.uuid, Saved({})).nodes, str(file))))
        progress("logs", number, len(topics))
    nodes = {path: data for part in parts for path, data in part.nodes.items()}
    files = {path: data for part in parts for path, data in part.files.items()}
    data = NodeFile(facts, nodes, files).to_bytes()
    _put(file, data, namespace)
    entities = sum(isinstance(key, EntityKey) for key in whole)
    return BackedUp(file, len(data), facts["storage"], tuple(shown), entities, saving.failed)


def _readers(saving: Saving, topics: list[Topic], at_once: int, progress: Progress) -> dict[str, Saved]:
    found: dict[str, Saved] = {}
    done = 0
    for page in pages(topics, at_once):
        records = saving.readers(page)
        for topic in page:
            if topic.uuid in records:
                saved = saving.readers_with_files(topic, records[topic.uuid])
                found |= {topic.uuid: saved} if saved is not None else {}
        done += len(page)
        progress("subscriptions and token groups", done, len(topics))
    return found


def _log(namespace: OpenNamespace, topic: Topic, failed: dict[str, LedgerError]) -> snapshots.LogSnapshot | None:
    try:
        return snapshots.take(namespace.log_of(topic))
    except NotFound:  # deleted meanwhile
        return None
    except (CorruptData, InvalidInput, Conflict) as error:
        failed[topic.name] = error
        return None


def _shown(log: snapshots.LogSnapshot, readers: Records) -> BackedUpTopic:
    head = log.head
    return BackedUpTopic(
        name=log.topic.name,
        last_commit=head.next_commit - 1,
        last_publish_ms=head.last_publish_ms if head.next_commit else 0,
        records=head.records,
        subscriptions=sum(isinstance(key, CursorKey) for key in readers),
        groups=sum(isinstance(key, TokenGroupKey) for key in readers),
        set_back=head.set_back is not None,
    )


def check_place(file: Path, overwrite: bool, code: str) -> None:
    """Whether the file may be written. Before anything is read: that may take minutes."""
    with disk_errors("look for", file, code):
        if not file.absolute().parent.is_dir():
            raise InvalidInput(f"there is no folder {file.absolute().parent}: make it first", "LEDGER_NO_SUCH_FOLDER")
        if file.exists() and not (overwrite and file.is_file()):
            raise InvalidInput(
                f"{file} is there already: choose another name, or add --overwrite", "LEDGER_FILE_EXISTS"
            )


def _put(file: Path, data: bytes, namespace: OpenNamespace) -> None:
    """Nobody ever sees a part of it under its name."""
    temporary = f".{file.name}.{namespace.clock.new_id().hex()}"
    open_storage(str(file.absolute().parent)).replace(file.name, data, temporary)
