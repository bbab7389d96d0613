"""Records as protobuf bytes, and back."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from google.protobuf.message import DecodeError

from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.metadata import port
from pyspark_ledger.metadata.records import (
    Commit,
    Cursor,
    DedupSnapshot,
    Entity,
    Entry,
    FileRef,
    Generation,
    Head,
    Holder,
    Marker,
    Namespace,
    NodeRecord,
    Past,
    Pin,
    Policies,
    ProducerState,
    Schema,
    TokenBlock,
    TokenChunk,
    TokenGroup,
    Topic,
)
from pyspark_ledger.zk_metadata import records_pb2 as pb

FORMAT = 1

R = TypeVar("R", bound=NodeRecord)


class _Message(Protocol):
    @property
    def format(self) -> int: ...

    def SerializeToString(self) -> bytes: ...


M = TypeVar("M", bound=_Message)


@dataclass(frozen=True)
class _Kind(Generic[R, M]):
    record: type[R]
    parse: Callable[[bytes], M]
    dump: Callable[[R], M]
    load: Callable[[M], R]


def encode(key: port.Key[Any], record: NodeRecord) -> bytes:
    kind = _KINDS[type(key)]
    if not isinstance(record, kind.record):
        raise TypeError(f"{key!r} holds a {kind.record.__name__}, not {record!r}")
    message: _Message = kind.dump(record)
    return message.SerializeToString()


def decode(key: port.Key[R], data: bytes, path: str) -> R:
    """``path`` is only for the error messages."""
    kind = _KINDS[type(key)]
    try:
        message = kind.parse(data)
        _check_format(message.format, path)
        return cast(R, kind.load(message))
    except (DecodeError, ValueError) as error:
        raise CorruptData(f"node {path} holds no valid {kind.record.__name__}: {error}") from error


def _check_format(found: int, path: str) -> None:
    if found > FORMAT:
        raise InvalidInput(
            f"node {path} has format {found}, this version knows {FORMAT}: upgrade pyspark-ledger",
            "LEDGER_NEWER_FORMAT",
        )
    if found < 1:  # what empty or foreign bytes look like
        raise ValueError("the format version is missing")


def _dump_name(text: str) -> pb.Name | None:
    if text == "":
        return None
    try:
        packed = uuid.UUID(text)
    except ValueError:
        return pb.Name(text=text)
    return pb.Name(uuid=packed.bytes) if str(packed) == text else pb.Name(text=text)


def _load_name(name: pb.Name) -> str:
    return str(uuid.UUID(bytes=name.uuid)) if name.WhichOneof("form") == "uuid" else name.text


def _dump_file(file: FileRef) -> pb.FileRef:
    return pb.FileRef(
        epoch=file.epoch,
        uid=file.uid,
        length=file.length,
        tail_length=file.tail_length,
        tail_hash=file.tail_hash,
    )


def _load_file(file: pb.FileRef) -> FileRef:
    return FileRef(file.epoch, file.uid, file.length, file.tail_length, file.tail_hash)


def _dump_entry(entry: Entry) -> pb.Entry:
    return pb.Entry(file=_dump_file(entry.file), records=entry.records, masked=entry.masked, mask=entry.mask)


def _load_entry(entry: pb.Entry) -> Entry:
    return Entry(_load_file(entry.file), entry.records, entry.masked, entry.mask)


def _dump_commit(commit: Commit) -> pb.Commit:
    return pb.Commit(
        format=FORMAT,
        number=commit.number,
        id=commit.id,
        ledger=commit.ledger,
        first_entry=commit.first_entry,
        entry_count=commit.entry_count,
        records=commit.records,
        size=commit.bytes,
        records_before=commit.records_before,
        size_before=commit.bytes_before,
        publish_ms=commit.publish_ms,
        schema_id=commit.schema_id,
        entries=[_dump_entry(entry) for entry in commit.entries],
        entries_file=None if commit.entries_file is None else _dump_file(commit.entries_file),
        producer=commit.producer,
        query=_dump_name(commit.query),
        run=_dump_name(commit.run),
        sequence=commit.sequence,
        digest=commit.digest,
        forget=commit.forget,
        sequence_column=commit.sequence_column,
        producer_column=commit.producer_column,
        highest=[pb.LongProperty(name=name, value=value) for name, value in commit.highest],
        highest_file=None if commit.highest_file is None else _dump_file(commit.highest_file),
        dropped=commit.dropped,
        mints=commit.mints,
        tokens_before=commit.tokens_before,
    )


def _load_commit(commit: pb.Commit) -> Commit:
    return Commit(
        number=commit.number,
        id=commit.id,
        ledger=commit.ledger,
        first_entry=commit.first_entry,
        entry_count=commit.entry_count,
        records=commit.records,
        bytes=commit.size,
        records_before=commit.records_before,
        bytes_before=commit.size_before,
        publish_ms=commit.publish_ms,
        schema_id=commit.schema_id,
        entries=tuple(_load_entry(entry) for entry in commit.entries),
        entries_file=_load_file(commit.entries_file) if commit.HasField("entries_file") else None,
        producer=commit.producer,
        query=_load_name(commit.query),
        run=_load_name(commit.run),
        sequence=commit.sequence if commit.HasField("sequence") else None,
        digest=commit.digest,
        forget=commit.forget,
        sequence_column=commit.sequence_column,
        producer_column=commit.producer_column,
        highest=tuple((item.name, item.value) for item in commit.highest),
        highest_file=_load_file(commit.highest_file) if commit.HasField("highest_file") else None,
        dropped=commit.dropped,
        mints=commit.mints,
        tokens_before=commit.tokens_before,
    )


def _dump_head(head: Head) -> pb.Head:
    return pb.Head(
        format=FORMAT,
        uuid=_dump_name(head.uuid),
        name=head.name,
        schema_id=head.schema_id,
        ledger=head.ledger,
        ledger_first_commit=head.ledger_first_commit,
        ledger_opened_ms=head.ledger_opened_ms,
        ledger_bytes=head.ledger_bytes,
        next_commit=head.next_commit,
        next_entry=head.next_entry,
        last_publish_ms=head.last_publish_ms,
        records=head.records,
        size=head.bytes,
        gc_epoch=head.gc_epoch,
        gc_floor=head.gc_floor,
        gc_marks=head.gc_marks,
        index=[_dump_file(file) for file in head.index],
        gc_kept=[_dump_file(file) for file in head.gc_kept],
        gc_kept_before=[_dump_file(file) for file in head.gc_kept_before],
        policies=_dump_policies(head.policies),
        generations=[_dump_generation(generation) for generation in head.generations],
        tokens=head.tokens,
    )


def _load_head(head: pb.Head) -> Head:
    return Head(
        uuid=_load_name(head.uuid),
        name=head.name,
        schema_id=head.schema_id,
        ledger=head.ledger,
        ledger_first_commit=head.ledger_first_commit,
        ledger_opened_ms=head.ledger_opened_ms,
        ledger_bytes=head.ledger_bytes,
        next_commit=head.next_commit,
        next_entry=head.next_entry,
        last_publish_ms=head.last_publish_ms,
        records=head.records,
        bytes=head.size,
        gc_epoch=head.gc_epoch,
        gc_floor=head.gc_floor,
        gc_marks=tuple(head.gc_marks),
        index=tuple(_load_file(file) for file in head.index),
        gc_kept=tuple(_load_file(file) for file in head.gc_kept),
        gc_kept_before=tuple(_load_file(file) for file in head.gc_kept_before),
        policies=_load_policies(head.policies),
        generations=tuple(_load_generation(generation) for generation in head.generations),
        tokens=head.tokens,
    )


def _dump_generation(generation: Generation) -> pb.Generation:
    return pb.Generation(
        number=generation.number,
        horizon=_dump_position(generation.horizon),
        manifest=_dump_file(generation.manifest),
        records=generation.records,
        size=generation.bytes,
        read=generation.read,
        finished_ms=generation.finished_ms,
        started_ms=generation.started_ms,
        tombstones_from=_dump_position(generation.tombstones_from),
    )


def _load_generation(generation: pb.Generation) -> Generation:
    return Generation(
        number=generation.number,
        horizon=_load_position(generation.horizon),
        manifest=_load_file(generation.manifest),
        records=generation.records,
        bytes=generation.size,
        read=generation.read,
        finished_ms=generation.finished_ms,
        started_ms=generation.started_ms,
        tombstones_from=_load_position(generation.tombstones_from),
    )


def _dump_policies(policies: Policies) -> pb.Policies:
    dumped = pb.Policies(snapshot_commits=policies.snapshot_commits, evict_producers_ms=policies.evict_producers_ms)
    if policies.deduplication is not None:
        dumped.deduplication = policies.deduplication
    return dumped


def _load_policies(policies: pb.Policies) -> Policies:
    return Policies(
        deduplication=policies.deduplication if policies.HasField("deduplication") else None,
        snapshot_commits=policies.snapshot_commits,
        evict_producers_ms=policies.evict_producers_ms,
    )


def _dump_producer(state: ProducerState) -> pb.ProducerState:
    return pb.ProducerState(
        name=state.name,
        sequence=state.sequence,
        query=_dump_name(state.query),
        run=_dump_name(state.run),
        past_runs=[_dump_name(run) or pb.Name(text="") for run in state.past_runs],
        digest=state.digest,
        records=state.records,
        publish_ms=state.publish_ms,
        per_record=state.per_record,
    )


def _load_producer(state: pb.ProducerState) -> ProducerState:
    return ProducerState(
        name=state.name,
        sequence=state.sequence,
        query=_load_name(state.query),
        run=_load_name(state.run),
        past_runs=tuple(_load_name(run) for run in state.past_runs),
        digest=state.digest,
        records=state.records,
        publish_ms=state.publish_ms,
        per_record=state.per_record,
    )


def _dump_dedup(snapshot: DedupSnapshot) -> pb.DedupSnapshot:
    return pb.DedupSnapshot(
        format=FORMAT,
        next_commit=snapshot.next_commit,
        mark_delete=_dump_position(snapshot.mark_delete),
        producers=[_dump_producer(state) for state in snapshot.producers],
        producers_file=None if snapshot.producers_file is None else _dump_file(snapshot.producers_file),
        evicted=snapshot.evicted,
        evicted_file=None if snapshot.evicted_file is None else _dump_file(snapshot.evicted_file),
    )


def _load_dedup(snapshot: pb.DedupSnapshot) -> DedupSnapshot:
    return DedupSnapshot(
        next_commit=snapshot.next_commit,
        mark_delete=_load_position(snapshot.mark_delete),
        producers=tuple(_load_producer(state) for state in snapshot.producers),
        producers_file=_load_file(snapshot.producers_file) if snapshot.HasField("producers_file") else None,
        evicted=snapshot.evicted,
        evicted_file=_load_file(snapshot.evicted_file) if snapshot.HasField("evicted_file") else None,
    )


def _dump_position(position: Position) -> pb.Position:
    return pb.Position(ledger=position.ledger, entry=position.entry, index=position.index)


def _load_position(position: pb.Position) -> Position:
    return Position(position.ledger, position.entry, position.index)


def _dump_cursor(cursor: Cursor) -> pb.Cursor:
    return pb.Cursor(
        format=FORMAT,
        name=cursor.name,
        mark_delete=_dump_position(cursor.mark_delete),
        ordinal=cursor.ordinal,
        created_ms=cursor.created_ms,
        properties=[pb.LongProperty(name=name, value=value) for name, value in cursor.properties],
        acks=cursor.acks,
        epoch=cursor.epoch,
        owner=cursor.owner,
        owner_name=cursor.owner_name,
        revision=cursor.revision,
        rewound=cursor.rewound,
        reviser=cursor.reviser,
        revising_since_ms=cursor.revising_since_ms,
        operations=cursor.operations,
        pasts=[pb.Past(revision=past.revision, finished=_dump_position(past.finished)) for past in cursor.pasts],
        void_below=cursor.void_below,
    )


def _load_cursor(cursor: pb.Cursor) -> Cursor:
    return Cursor(
        name=cursor.name,
        mark_delete=_load_position(cursor.mark_delete),
        ordinal=cursor.ordinal,
        created_ms=cursor.created_ms,
        properties=tuple((item.name, item.value) for item in cursor.properties),
        acks=cursor.acks,
        epoch=cursor.epoch,
        owner=cursor.owner,
        owner_name=cursor.owner_name,
        revision=cursor.revision,
        rewound=cursor.rewound,
        reviser=cursor.reviser,
        revising_since_ms=cursor.revising_since_ms,
        operations=tuple(cursor.operations),
        pasts=tuple(Past(past.revision, _load_position(past.finished)) for past in cursor.pasts),
        void_below=cursor.void_below,
    )


def _dump_holder(holder: Holder) -> pb.Holder:
    return pb.Holder(format=FORMAT, id=holder.id, name=holder.name, since_ms=holder.since_ms)


def _load_holder(holder: pb.Holder) -> Holder:
    return Holder(holder.id, holder.name, holder.since_ms)


def _dump_pin(pin: Pin) -> pb.Pin:
    return pb.Pin(format=FORMAT, position=_dump_position(pin.position))


def _load_pin(pin: pb.Pin) -> Pin:
    return Pin(_load_position(pin.position))


def _dump_group(group: TokenGroup) -> pb.TokenGroup:
    return pb.TokenGroup(
        format=FORMAT,
        chunk_tokens=group.chunk_tokens,
        whole=group.whole,
        partials=[pb.TokenPartial(chunk=chunk, bitmap=bitmap) for chunk, bitmap in group.partials],
        spilled=group.spilled,
        consumed=group.consumed,
        operations=group.operations,
    )


def _load_group(group: pb.TokenGroup) -> TokenGroup:
    return TokenGroup(
        chunk_tokens=group.chunk_tokens,
        whole=group.whole,
        partials=tuple((partial.chunk, partial.bitmap) for partial in group.partials),
        spilled=group.spilled,
        consumed=group.consumed,
        operations=tuple(group.operations),
    )


def _dump_chunk(chunk: TokenChunk) -> pb.TokenChunk:
    file = None if chunk.file is None else _dump_file(chunk.file)
    return pb.TokenChunk(format=FORMAT, bitmap=chunk.bitmap, file=file)


def _load_chunk(chunk: pb.TokenChunk) -> TokenChunk:
    return TokenChunk(chunk.bitmap, _load_file(chunk.file) if chunk.HasField("file") else None)


def _dump_block(block: TokenBlock) -> pb.TokenBlock:
    return pb.TokenBlock(format=FORMAT, tokens=block.tokens, bitmap=block.bitmap, minted_ms=block.minted_ms)


def _load_block(block: pb.TokenBlock) -> TokenBlock:
    return TokenBlock(block.tokens, block.bitmap, block.minted_ms)


def _dump_entity(entity: Entity) -> pb.Entity:
    file = None if entity.file is None else _dump_file(entity.file)
    return pb.Entity(format=FORMAT, content=entity.content, file=file, operations=entity.operations)


def _load_entity(entity: pb.Entity) -> Entity:
    file = _load_file(entity.file) if entity.HasField("file") else None
    return Entity(entity.content, file, tuple(entity.operations))


def _dump_topic(topic: Topic) -> pb.Topic:
    return pb.Topic(
        format=FORMAT,
        name=topic.name,
        uuid=_dump_name(topic.uuid),
        key=topic.key,
        version_column=topic.version_column,
        created_ms=topic.created_ms,
    )


def _load_topic(topic: pb.Topic) -> Topic:
    return Topic(topic.name, _load_name(topic.uuid), topic.key, topic.version_column, topic.created_ms)


def _dump_schema(schema: Schema) -> pb.Schema:
    return pb.Schema(format=FORMAT, id=schema.id, arrow=schema.arrow)


def _load_schema(schema: pb.Schema) -> Schema:
    return Schema(schema.id, schema.arrow)


def _dump_namespace(namespace: Namespace) -> pb.Namespace:
    return pb.Namespace(
        format=FORMAT,
        storage=namespace.storage,
        created_ms=namespace.created_ms,
        no_deduplication=not namespace.deduplication,
    )


def _load_namespace(namespace: pb.Namespace) -> Namespace:
    return Namespace(namespace.storage, namespace.created_ms, not namespace.no_deduplication)


_MARKER: _Kind[Any, Any] = _Kind(Marker, pb.Marker.FromString, lambda _: pb.Marker(format=FORMAT), lambda _: Marker())

_KINDS: dict[type[port.Key[Any]], _Kind[Any, Any]] = {
    port.NamespaceKey: _Kind(Namespace, pb.Namespace.FromString, _dump_namespace, _load_namespace),
    port.TopicsKey: _MARKER,
    port.TopicKey: _Kind(Topic, pb.Topic.FromString, _dump_topic, _load_topic),
    port.RootKey: _MARKER,
    port.HeadKey: _Kind(Head, pb.Head.FromString, _dump_head, _load_head),
    port.SchemaKey: _Kind(Schema, pb.Schema.FromString, _dump_schema, _load_schema),
    port.DedupKey: _Kind(DedupSnapshot, pb.DedupSnapshot.FromString, _dump_dedup, _load_dedup),
    port.LedgerKey: _MARKER,
    port.CursorKey: _Kind(Cursor, pb.Cursor.FromString, _dump_cursor, _load_cursor),
    port.OwnerKey: _Kind(Holder, pb.Holder.FromString, _dump_holder, _load_holder),
    port.CompactorKey: _Kind(Holder, pb.Holder.FromString, _dump_holder, _load_holder),
    port.PinKey: _Kind(Pin, pb.Pin.FromString, _dump_pin, _load_pin),
    port.ReviserKey: _Kind(Holder, pb.Holder.FromString, _dump_holder, _load_holder),
    port.TokenGroupKey: _Kind(TokenGroup, pb.TokenGroup.FromString, _dump_group, _load_group),
    port.TokenChunkKey: _Kind(TokenChunk, pb.TokenChunk.FromString, _dump_chunk, _load_chunk),
    port.TokenBlockKey: _Kind(TokenBlock, pb.TokenBlock.FromString, _dump_block, _load_block),
    port.OutboxKey: _MARKER,
    port.EntityKey: _Kind(Entity, pb.Entity.FromString, _dump_entity, _load_entity),
    port.CommitKey: _Kind(Commit, pb.Commit.FromString, _dump_commit, _load_commit),
}

MARKER = encode(port.TopicsKey(), Marker())
