"""Creating, finding and deleting topics, and the namespace they are in."""

from __future__ import annotations

import contextlib
import difflib
from uuid import UUID

import pyarrow as pa

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.limits import DEFAULT_LIMITS, Limits
from pyspark_ledger.base.position import EARLIEST
from pyspark_ledger.errors import Conflict, InvalidInput, NotFound, OutcomeUnknown
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.storage import Storage, normalise_uri, open_storage
from pyspark_ledger.log.folders import make_topic_folder
from pyspark_ledger.metadata.port import (
    Create,
    DedupKey,
    Delete,
    HeadKey,
    Key,
    LedgerKey,
    Metadata,
    NamespaceKey,
    R,
    RootKey,
    SchemaKey,
    TokenGroupKey,
    TopicKey,
    TopicsKey,
    TransactionLost,
)
from pyspark_ledger.metadata.records import DedupSnapshot, Head, Marker, Namespace, Schema, Topic
from pyspark_ledger.metadata.transactions import Transactions

_HOW_TO_MAKE = "a first write through Spark makes it, client.create_topic(), or 'pyspark-ledger topics create'"


def storage_root(metadata: Metadata, asked: str | None, clock: Clock = SYSTEM_CLOCK) -> str:
    """Where the namespace keeps its files. The first user says it, and it is recorded for later ones."""
    wanted = normalise_uri(asked) if asked else None
    found = _find(metadata, NamespaceKey())
    if found is None:
        if wanted is None:
            raise InvalidInput(
                "this ZooKeeper namespace is new, and nothing says where its files go: set the option 'storage' (or "
                "LEDGER_STORAGE) once, to a folder or a URI such as s3://bucket/prefix; later users need not",
                "LEDGER_STORAGE_NOT_SET",
            )
        open_storage(wanted).prove_usable(names.probe_file(clock.new_id()))  # it cannot be changed afterwards
        transactions = Transactions(metadata, DEFAULT_LIMITS, clock)
        found = transactions.make(NamespaceKey(), Namespace(wanted, clock.now_ms()), "the namespace").record
    if wanted is not None and wanted != found.storage:
        raise InvalidInput(
            f"option 'storage' is {wanted}, but this ZooKeeper namespace keeps its files in {found.storage}: "
            "leave the option out, or give the ZooKeeper address another chroot",
            "LEDGER_STORAGE_CONFLICT",
        )
    return found.storage


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
    """Makes a topic, and its folder in ``storage``; without one, the topic's first writer makes the folder."""
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
    now = clock.now_ms()
    topic = Topic(name, str(UUID(bytes=clock.new_id())), key, version_column, now)
    head = Head(
        uuid=topic.uuid, name=name, schema_id=0, ledger=0, ledger_first_commit=0, ledger_opened_ms=now, ledger_bytes=0,
        next_commit=0, next_entry=0, last_publish_ms=0, records=0, bytes=0, gc_epoch=0, gc_floor=0, gc_marks=(0,),
    )  # fmt: skip
    ops = [
        Create(TopicKey(name), topic),
        Create(RootKey(topic.uuid), Marker()),
        Create(HeadKey(topic.uuid), head),
        Create(SchemaKey(topic.uuid, 0), Schema(0, schemas.to_bytes(stored))),
        Create(DedupKey(topic.uuid), DedupSnapshot(0, EARLIEST)),
        Create(LedgerKey(topic.uuid, 0), Marker()),
    ]

    def look() -> bool | None:
        metadata.sync()
        found = metadata.read(TopicKey(name))
        return None if found is None else found.record.uuid == topic.uuid

    if storage is not None:
        make_topic_folder(metadata, storage, topic.uuid)
    if not Transactions(metadata, DEFAULT_LIMITS, clock).carry_out(ops, look, f"making topic '{name}'"):
        if storage is not None:
            storage.remove_folder(names.topic_folder(topic.uuid))
        raise Conflict(f"topic '{name}' exists already: use it, or choose another name", "LEDGER_TOPIC_EXISTS")
    return topic


def find_topic(metadata: Metadata, name: str) -> Topic | None:
    return _find(metadata, TopicKey(names.check_topic_name(name)))


def _find(metadata: Metadata, key: Key[R]) -> R | None:
    """None only after a synced look: what a stale server has not seen yet is there."""
    found = metadata.read(key)
    if found is None:
        metadata.sync()
        found = metadata.read(key)
    return None if found is None else found.record


def get_topic(metadata: Metadata, name: str) -> Topic:
    topic = find_topic(metadata, name)
    if topic is None:
        existing = list_topics(metadata)
        near = difflib.get_close_matches(name, existing, 1)
        hint = f"did you mean '{near[0]}'?" if near else _HOW_TO_MAKE
        raise NotFound(f"there is no topic '{name}' in this namespace: {hint}", "LEDGER_TOPIC_NOT_FOUND")
    return topic


def list_topics(metadata: Metadata) -> list[str]:
    return [key.name for key in metadata.children(TopicsKey()) if isinstance(key, TopicKey)]


def delete_topic(
    metadata: Metadata, name: str, *, limits: Limits = DEFAULT_LIMITS, clock: Clock = SYSTEM_CLOCK
) -> Topic:
    """Deletes a topic's nodes, the name first, so that nobody finds a topic that is half deleted. Leaves its files."""
    topic = get_topic(metadata, name)

    def look() -> bool | None:
        metadata.sync()
        return None if metadata.read(HeadKey(topic.uuid)) is not None else True

    ops = [Delete(TopicKey(name)), Delete(HeadKey(topic.uuid))]
    if not Transactions(metadata, limits, clock).carry_out(ops, look, f"deleting topic '{name}'"):
        raise Conflict(f"topic '{name}' is being deleted by somebody else, or was a moment ago: look again")
    _purge(metadata, topic.uuid, limits)
    return topic


def _purge(metadata: Metadata, uuid: str, limits: Limits) -> None:
    for _ in range(limits.purge_attempts):
        for key in metadata.children(RootKey(uuid)):
            if isinstance(key, LedgerKey | TokenGroupKey):
                below = metadata.children(key)
                for start in range(0, len(below), limits.nodes_per_delete):
                    _delete(metadata, [Delete(k) for k in below[start : start + limits.nodes_per_delete]])
            _delete(metadata, [Delete(key)])
        _delete(metadata, [Delete(RootKey(uuid))])
        if metadata.read(RootKey(uuid)) is None:
            return


def _delete(metadata: Metadata, ops: list[Delete]) -> None:
    """A late commit may add a node, and the end of a session may delete one: the next round reads what is there."""
    with contextlib.suppress(TransactionLost, OutcomeUnknown):
        metadata.transact(ops)
