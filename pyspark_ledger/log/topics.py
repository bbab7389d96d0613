"""Creating, finding and deleting topics."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Sequence
from uuid import UUID

import pyarrow as pa

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.limits import DEFAULT_LIMITS, Limits
from pyspark_ledger.base.position import EARLIEST
from pyspark_ledger.errors import Conflict, InvalidInput, LedgerError, NotFound, OutcomeUnknown, Unavailable
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.log import root
from pyspark_ledger.metadata.port import (
    AnyKey,
    Check,
    CondemnedKey,
    Create,
    DedupKey,
    Delete,
    DeletedKey,
    GcKey,
    HeadKey,
    LedgerKey,
    Metadata,
    NamespaceKey,
    Op,
    PartKey,
    PoliciesKey,
    Put,
    RetentionKey,
    RootKey,
    SchemaKey,
    TipKey,
    TokenGroupKey,
    TopicKey,
    TopicsKey,
    TransactionLost,
)
from pyspark_ledger.metadata.records import (
    DedupSnapshot,
    Deleted,
    GcEpoch,
    Head,
    Marker,
    Policies,
    Schema,
    Topic,
)
from pyspark_ledger.metadata.roles import parts_of
from pyspark_ledger.metadata.transactions import Transactions, find
from pyspark_ledger.metadata.wallclock import believable_ms

_HOW_TO_MAKE = "a first write through Spark makes it, or 'pyspark-ledger topics create'"


def create_topic(
    metadata: Metadata,
    name: str,
    schema: pa.Schema,
    *,
    key: str = "",
    version_column: str = "",
    clock: Clock = SYSTEM_CLOCK,
    storage: Storage | None = None,
) -> Topic:
    """Makes a topic, and its folder in ``storage``; without one, the topic's first writer makes the folder. A mark that
    a deleted topic has left on the name goes."""
    names.check_topic_name(name)
    stored = schemas.canonical(schema)
    for option, column in (("keyColumn", key), ("versionColumn", version_column)):
        if column and column not in stored.names:
            near = difflib.get_close_matches(column, stored.names, 1)
            raise InvalidInput(
                f"{option} '{column}' is not a column: {', '.join(stored.names)}"
                + (f" (did you mean '{near[0]}'?)" if near else ""),
                "LEDGER_INVALID_OPTION",
            )
    if version_column:
        schemas.check_version(stored.field(version_column).type, version_column, key)
    now = believable_ms(metadata, clock, DEFAULT_LIMITS)
    topic = Topic(name, str(UUID(bytes=clock.new_id())), key, version_column, now)
    first = Schema(0, schemas.to_bytes(stored))

    def look() -> bool | None:
        metadata.sync()
        found = metadata.read(TopicKey(name))
        return None if found is None else found.record.uuid == topic.uuid

    transactions = Transactions(metadata, DEFAULT_LIMITS, clock)
    with _folder_of(topic, storage):
        for _ in range(DEFAULT_LIMITS.change_attempts):
            ops = _creation(metadata, topic, first, storage, clock)
            if transactions.carry_out(ops, look, f"making topic '{name}'"):
                return topic
            if look() is not None:
                raise Conflict(f"topic '{name}' exists already: use it, or choose another name", "LEDGER_TOPIC_EXISTS")
        raise Conflict(f"topic '{name}' cannot be made: others change the namespace all the time; try again")


def _creation(metadata: Metadata, topic: Topic, schema: Schema, storage: Storage | None, clock: Clock) -> list[Op]:
    """The version of the namespace's record is checked: who moves the storage sees all topics that are made before, and
    none is made in the former root after that."""
    namespace = metadata.read(NamespaceKey())
    if namespace is not None:
        root.check_may_make(namespace.record, storage)
    head = Head(
        uuid=topic.uuid, name=topic.name, schema_id=0, ledger=0, ledger_first_commit=0,
        ledger_opened_ms=topic.created_ms, ledger_bytes=0, next_commit=0, next_entry=0, last_publish_ms=0, records=0,
        bytes=0, gc_epoch=0, last_change=clock.new_id(), moves=0 if namespace is None else namespace.record.moves,
    )  # fmt: skip
    mark = metadata.read(DeletedKey(topic.name))
    return [
        Create(TopicKey(topic.name), topic),
        *nodes_of(head, Policies(), DedupSnapshot(0, EARLIEST)),
        *(parts_of(topic.uuid) if namespace is not None and namespace.record.roles else ()),
        Create(SchemaKey(topic.uuid, 0), schema),
        *([] if namespace is None else [Check(NamespaceKey(), namespace.version)]),
        *([] if mark is None else [Delete(DeletedKey(topic.name))]),
    ]


@contextlib.contextmanager
def _folder_of(topic: Topic, storage: Storage | None) -> Iterator[None]:
    """Makes the folder of a topic that is about to be made, and removes it if the topic is not."""
    folder = names.topic_folder(topic.uuid)
    try:
        if storage is not None:
            storage.make_folder(folder)
        yield
    except (Conflict, Unavailable):  # after any other error it may have been made
        if storage is not None:
            with contextlib.suppress(LedgerError):  # why the topic was not made matters more
                storage.remove_folder(folder)
        raise


def nodes_of(head: Head, policies: Policies, dedup: DedupSnapshot) -> list[Op]:
    """Makes the nodes that every topic has, but for its schemas. The rest comes with its first use: of ten thousand
    topics most are idle."""
    uuid = head.uuid
    return [
        Create(RootKey(uuid), Marker()),
        Create(PartKey(uuid, "commits"), Marker()),
        Create(PartKey(uuid, "queue"), Marker()),  # every append looks at it
        Create(HeadKey(uuid), head),
        Create(TipKey(uuid, head.last_change), Marker()),
        Create(PoliciesKey(uuid), policies),
        Create(RetentionKey(uuid), Marker()),
        Create(GcKey(uuid), GcEpoch(head.gc_epoch)),
        Create(DedupKey(uuid), dedup),
    ]


def find_topic(metadata: Metadata, name: str) -> Topic | None:
    found = find(metadata, TopicKey(names.check_topic_name(name)))
    return None if found is None else found.record


def get_topic(metadata: Metadata, name: str) -> Topic:
    topic = find_topic(metadata, name)
    if topic is None:
        existing = list_topics(metadata)
        near = difflib.get_close_matches(name, existing, 1)
        hint = f"did you mean '{near[0]}'?" if near else _HOW_TO_MAKE
        raise NotFound(f"there is no topic '{name}' in this namespace: {hint}", "LEDGER_TOPIC_NOT_FOUND")
    return topic


def find_deleted(metadata: Metadata, name: str) -> Deleted | None:
    """The mark on a name whose topic was deleted, if nobody has made one of that name since."""
    found = find(metadata, DeletedKey(name))
    return None if found is None else found.record


def list_topics(metadata: Metadata) -> list[str]:
    return [key.name for key in metadata.children(TopicsKey()) if isinstance(key, TopicKey)]


def delete_topic(
    metadata: Metadata, name: str, *, limits: Limits = DEFAULT_LIMITS, clock: Clock = SYSTEM_CLOCK
) -> Topic:
    """Deletes a topic's nodes, the name first, so that nobody finds a topic that is half deleted. Leaves its files, and
    two marks: one on its name, so that no write makes a topic of that name unasked, and one on its UUID, so that its
    files are deleted whatever happens (``lifecycle.condemned``)."""
    namespace = find(metadata, NamespaceKey())
    root.check_complete(namespace.record if namespace is not None else None)
    topic = get_topic(metadata, name)
    transactions = Transactions(metadata, limits, clock)

    def look() -> bool | None:
        metadata.sync()
        return None if metadata.read(HeadKey(topic.uuid)) is not None else True

    for _ in range(limits.purge_attempts):
        if transactions.carry_out(_deletion(metadata, topic, clock), look, f"deleting topic '{name}'"):
            purge(metadata, topic.uuid, limits)
            return topic
        # Somebody else has deleted it; or a stale server was wrong about the mark, and is not after this.
        metadata.sync()
        if metadata.read(HeadKey(topic.uuid)) is None:
            break
    raise Conflict(f"topic '{name}' is being deleted by somebody else, or was a moment ago: look again")


def _deletion(metadata: Metadata, topic: Topic, clock: Clock) -> list[Op]:
    mark, record = metadata.read(DeletedKey(topic.name)), Deleted(topic.uuid, clock.now_ms())
    return [
        Delete(TopicKey(topic.name)),
        Delete(HeadKey(topic.uuid)),
        Create(DeletedKey(topic.name), record) if mark is None else Put(DeletedKey(topic.name), record, mark.version),
        Create(CondemnedKey(topic.uuid), record),
    ]


def purge(metadata: Metadata, uuid: str, limits: Limits, guard: Sequence[Check] = ()) -> None:
    """Deletes all nodes of a topic that no name stands for any more; nothing once the ``guard`` does not hold."""
    for _ in range(limits.purge_attempts):
        _purge_below(metadata, RootKey(uuid), limits, guard)
        _delete(metadata, [*guard, Delete(RootKey(uuid))])
        if metadata.read(RootKey(uuid)) is None:
            return


def _purge_below(metadata: Metadata, parent: AnyKey, limits: Limits, guard: Sequence[Check]) -> None:
    below = metadata.children(parent)
    for key in below:
        if isinstance(key, PartKey | LedgerKey | TokenGroupKey):
            _purge_below(metadata, key, limits, guard)
    for start in range(0, len(below), limits.nodes_per_delete):
        _delete(metadata, [*guard, *(Delete(key) for key in below[start : start + limits.nodes_per_delete])])


def _delete(metadata: Metadata, ops: Sequence[Op]) -> None:
    """A late commit may add a node, and the end of a session may delete one: the next round reads what is there."""
    with contextlib.suppress(TransactionLost, OutcomeUnknown):
        metadata.transact(ops)
