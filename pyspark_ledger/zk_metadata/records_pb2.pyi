# mypy: ignore-errors
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Name(_message.Message):
    __slots__ = ("text", "uuid")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    text: str
    uuid: bytes
    def __init__(self, text: _Optional[str] = ..., uuid: _Optional[bytes] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("ledger", "entry", "index")
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ledger: int
    entry: int
    index: int
    def __init__(self, ledger: _Optional[int] = ..., entry: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class FileRef(_message.Message):
    __slots__ = ("epoch", "uid", "length", "tail_length", "tail_hash")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    TAIL_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TAIL_HASH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    uid: bytes
    length: int
    tail_length: int
    tail_hash: int
    def __init__(self, epoch: _Optional[int] = ..., uid: _Optional[bytes] = ..., length: _Optional[int] = ..., tail_length: _Optional[int] = ..., tail_hash: _Optional[int] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("file", "records", "masked", "mask", "first_row", "file_rows")
    FILE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    FILE_ROWS_FIELD_NUMBER: _ClassVar[int]
    file: FileRef
    records: int
    masked: int
    mask: bytes
    first_row: int
    file_rows: int
    def __init__(self, file: _Optional[_Union[FileRef, _Mapping]] = ..., records: _Optional[int] = ..., masked: _Optional[int] = ..., mask: _Optional[bytes] = ..., first_row: _Optional[int] = ..., file_rows: _Optional[int] = ...) -> None: ...

class LongProperty(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("format", "number", "id", "ledger", "first_entry", "entry_count", "records", "size", "records_before", "size_before", "publish_ms", "schema_id", "entries", "entries_file", "producer", "query", "run", "sequence", "digest", "forget", "sequence_column", "producer_column", "highest", "highest_file", "dropped", "mints", "tokens_before", "previous")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    ENTRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_MS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FILE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_COLUMN_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_COLUMN_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_FILE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    MINTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    format: int
    number: int
    id: bytes
    ledger: int
    first_entry: int
    entry_count: int
    records: int
    size: int
    records_before: int
    size_before: int
    publish_ms: int
    schema_id: int
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    entries_file: FileRef
    producer: str
    query: Name
    run: Name
    sequence: int
    digest: bytes
    forget: bool
    sequence_column: str
    producer_column: str
    highest: _containers.RepeatedCompositeFieldContainer[LongProperty]
    highest_file: FileRef
    dropped: int
    mints: bool
    tokens_before: int
    previous: bytes
    def __init__(self, format: _Optional[int] = ..., number: _Optional[int] = ..., id: _Optional[bytes] = ..., ledger: _Optional[int] = ..., first_entry: _Optional[int] = ..., entry_count: _Optional[int] = ..., records: _Optional[int] = ..., size: _Optional[int] = ..., records_before: _Optional[int] = ..., size_before: _Optional[int] = ..., publish_ms: _Optional[int] = ..., schema_id: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., entries_file: _Optional[_Union[FileRef, _Mapping]] = ..., producer: _Optional[str] = ..., query: _Optional[_Union[Name, _Mapping]] = ..., run: _Optional[_Union[Name, _Mapping]] = ..., sequence: _Optional[int] = ..., digest: _Optional[bytes] = ..., forget: bool = ..., sequence_column: _Optional[str] = ..., producer_column: _Optional[str] = ..., highest: _Optional[_Iterable[_Union[LongProperty, _Mapping]]] = ..., highest_file: _Optional[_Union[FileRef, _Mapping]] = ..., dropped: _Optional[int] = ..., mints: bool = ..., tokens_before: _Optional[int] = ..., previous: _Optional[bytes] = ...) -> None: ...

class Policies(_message.Message):
    __slots__ = ("format", "deduplication", "snapshot_commits", "evict_producers_ms", "retention_ms", "retention_bytes", "backlog_bytes", "backlog_ms", "evict_backlog", "expire_subscriptions_ms", "compact_after_bytes", "rewrite_below_bytes")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_COMMITS_FIELD_NUMBER: _ClassVar[int]
    EVICT_PRODUCERS_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_MS_FIELD_NUMBER: _ClassVar[int]
    EVICT_BACKLOG_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_SUBSCRIPTIONS_MS_FIELD_NUMBER: _ClassVar[int]
    COMPACT_AFTER_BYTES_FIELD_NUMBER: _ClassVar[int]
    REWRITE_BELOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    format: int
    deduplication: bool
    snapshot_commits: int
    evict_producers_ms: int
    retention_ms: int
    retention_bytes: int
    backlog_bytes: int
    backlog_ms: int
    evict_backlog: bool
    expire_subscriptions_ms: int
    compact_after_bytes: int
    rewrite_below_bytes: int
    def __init__(self, format: _Optional[int] = ..., deduplication: bool = ..., snapshot_commits: _Optional[int] = ..., evict_producers_ms: _Optional[int] = ..., retention_ms: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., backlog_bytes: _Optional[int] = ..., backlog_ms: _Optional[int] = ..., evict_backlog: bool = ..., expire_subscriptions_ms: _Optional[int] = ..., compact_after_bytes: _Optional[int] = ..., rewrite_below_bytes: _Optional[int] = ...) -> None: ...

class Generation(_message.Message):
    __slots__ = ("number", "horizon", "manifest", "records", "size", "read", "finished_ms", "tombstones_from", "started_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    FINISHED_MS_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_FROM_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    horizon: Position
    manifest: FileRef
    records: int
    size: int
    read: int
    finished_ms: int
    tombstones_from: Position
    started_ms: int
    def __init__(self, number: _Optional[int] = ..., horizon: _Optional[_Union[Position, _Mapping]] = ..., manifest: _Optional[_Union[FileRef, _Mapping]] = ..., records: _Optional[int] = ..., size: _Optional[int] = ..., read: _Optional[int] = ..., finished_ms: _Optional[int] = ..., tombstones_from: _Optional[_Union[Position, _Mapping]] = ..., started_ms: _Optional[int] = ...) -> None: ...

class Trim(_message.Message):
    __slots__ = ("position", "commit", "records", "size", "tokens", "end")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    position: Position
    commit: int
    records: int
    size: int
    tokens: int
    end: Position
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ..., commit: _Optional[int] = ..., records: _Optional[int] = ..., size: _Optional[int] = ..., tokens: _Optional[int] = ..., end: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class PendingRange(_message.Message):
    __slots__ = ("first", "end", "epoch")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    epoch: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class SetBack(_message.Message):
    __slots__ = ("found_ms", "found_by", "why", "next_commit", "ledger", "gc_epoch", "next_token")
    FOUND_MS_FIELD_NUMBER: _ClassVar[int]
    FOUND_BY_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    NEXT_COMMIT_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    GC_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    found_ms: int
    found_by: str
    why: str
    next_commit: int
    ledger: int
    gc_epoch: int
    next_token: int
    def __init__(self, found_ms: _Optional[int] = ..., found_by: _Optional[str] = ..., why: _Optional[str] = ..., next_commit: _Optional[int] = ..., ledger: _Optional[int] = ..., gc_epoch: _Optional[int] = ..., next_token: _Optional[int] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("format", "uuid", "name", "schema_id", "ledger", "ledger_first_commit", "ledger_opened_ms", "ledger_bytes", "next_commit", "next_entry", "last_publish_ms", "records", "size", "gc_epoch", "index", "gc_kept", "tokens", "last_change", "last_commit", "operations", "generation", "replaced", "token_base", "trim", "pending", "set_back", "repaired", "going", "terminated_ms", "gc_gone", "moves", "lost", "last_generation")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIRST_COMMIT_FIELD_NUMBER: _ClassVar[int]
    LEDGER_OPENED_MS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_BYTES_FIELD_NUMBER: _ClassVar[int]
    NEXT_COMMIT_FIELD_NUMBER: _ClassVar[int]
    NEXT_ENTRY_FIELD_NUMBER: _ClassVar[int]
    LAST_PUBLISH_MS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    GC_EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    GC_KEPT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAST_CHANGE_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BASE_FIELD_NUMBER: _ClassVar[int]
    TRIM_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    SET_BACK_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    GOING_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_MS_FIELD_NUMBER: _ClassVar[int]
    GC_GONE_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    LAST_GENERATION_FIELD_NUMBER: _ClassVar[int]
    format: int
    uuid: Name
    name: str
    schema_id: int
    ledger: int
    ledger_first_commit: int
    ledger_opened_ms: int
    ledger_bytes: int
    next_commit: int
    next_entry: int
    last_publish_ms: int
    records: int
    size: int
    gc_epoch: int
    index: _containers.RepeatedCompositeFieldContainer[FileRef]
    gc_kept: _containers.RepeatedCompositeFieldContainer[FileRef]
    tokens: int
    last_change: bytes
    last_commit: bytes
    operations: _containers.RepeatedScalarFieldContainer[bytes]
    generation: Generation
    replaced: FileRef
    token_base: int
    trim: Trim
    pending: _containers.RepeatedCompositeFieldContainer[PendingRange]
    set_back: SetBack
    repaired: int
    going: FileRef
    terminated_ms: int
    gc_gone: _containers.RepeatedCompositeFieldContainer[FileRef]
    moves: int
    lost: FileRef
    last_generation: int
    def __init__(self, format: _Optional[int] = ..., uuid: _Optional[_Union[Name, _Mapping]] = ..., name: _Optional[str] = ..., schema_id: _Optional[int] = ..., ledger: _Optional[int] = ..., ledger_first_commit: _Optional[int] = ..., ledger_opened_ms: _Optional[int] = ..., ledger_bytes: _Optional[int] = ..., next_commit: _Optional[int] = ..., next_entry: _Optional[int] = ..., last_publish_ms: _Optional[int] = ..., records: _Optional[int] = ..., size: _Optional[int] = ..., gc_epoch: _Optional[int] = ..., index: _Optional[_Iterable[_Union[FileRef, _Mapping]]] = ..., gc_kept: _Optional[_Iterable[_Union[FileRef, _Mapping]]] = ..., tokens: _Optional[int] = ..., last_change: _Optional[bytes] = ..., last_commit: _Optional[bytes] = ..., operations: _Optional[_Iterable[bytes]] = ..., generation: _Optional[_Union[Generation, _Mapping]] = ..., replaced: _Optional[_Union[FileRef, _Mapping]] = ..., token_base: _Optional[int] = ..., trim: _Optional[_Union[Trim, _Mapping]] = ..., pending: _Optional[_Iterable[_Union[PendingRange, _Mapping]]] = ..., set_back: _Optional[_Union[SetBack, _Mapping]] = ..., repaired: _Optional[int] = ..., going: _Optional[_Union[FileRef, _Mapping]] = ..., terminated_ms: _Optional[int] = ..., gc_gone: _Optional[_Iterable[_Union[FileRef, _Mapping]]] = ..., moves: _Optional[int] = ..., lost: _Optional[_Union[FileRef, _Mapping]] = ..., last_generation: _Optional[int] = ...) -> None: ...

class ProducerState(_message.Message):
    __slots__ = ("name", "sequence", "query", "run", "past_runs", "digest", "records", "publish_ms", "per_record")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PAST_RUNS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_MS_FIELD_NUMBER: _ClassVar[int]
    PER_RECORD_FIELD_NUMBER: _ClassVar[int]
    name: str
    sequence: int
    query: Name
    run: Name
    past_runs: _containers.RepeatedCompositeFieldContainer[Name]
    digest: bytes
    records: int
    publish_ms: int
    per_record: bool
    def __init__(self, name: _Optional[str] = ..., sequence: _Optional[int] = ..., query: _Optional[_Union[Name, _Mapping]] = ..., run: _Optional[_Union[Name, _Mapping]] = ..., past_runs: _Optional[_Iterable[_Union[Name, _Mapping]]] = ..., digest: _Optional[bytes] = ..., records: _Optional[int] = ..., publish_ms: _Optional[int] = ..., per_record: bool = ...) -> None: ...

class DedupSnapshot(_message.Message):
    __slots__ = ("format", "next_commit", "mark_delete", "producers", "producers_file", "evicted", "evicted_file")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    NEXT_COMMIT_FIELD_NUMBER: _ClassVar[int]
    MARK_DELETE_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FILE_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FILE_FIELD_NUMBER: _ClassVar[int]
    format: int
    next_commit: int
    mark_delete: Position
    producers: _containers.RepeatedCompositeFieldContainer[ProducerState]
    producers_file: FileRef
    evicted: int
    evicted_file: FileRef
    def __init__(self, format: _Optional[int] = ..., next_commit: _Optional[int] = ..., mark_delete: _Optional[_Union[Position, _Mapping]] = ..., producers: _Optional[_Iterable[_Union[ProducerState, _Mapping]]] = ..., producers_file: _Optional[_Union[FileRef, _Mapping]] = ..., evicted: _Optional[int] = ..., evicted_file: _Optional[_Union[FileRef, _Mapping]] = ...) -> None: ...

class Past(_message.Message):
    __slots__ = ("revision", "finished")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    revision: int
    finished: Position
    def __init__(self, revision: _Optional[int] = ..., finished: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("id", "name", "since_ms", "claims", "slots", "dealt")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    DEALT_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    name: str
    since_ms: int
    claims: bytes
    slots: bytes
    dealt: bytes
    def __init__(self, id: _Optional[bytes] = ..., name: _Optional[str] = ..., since_ms: _Optional[int] = ..., claims: _Optional[bytes] = ..., slots: _Optional[bytes] = ..., dealt: _Optional[bytes] = ...) -> None: ...

class Deliveries(_message.Message):
    __slots__ = ("count", "ordinals")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ORDINALS_FIELD_NUMBER: _ClassVar[int]
    count: int
    ordinals: bytes
    def __init__(self, count: _Optional[int] = ..., ordinals: _Optional[bytes] = ...) -> None: ...

class Cursor(_message.Message):
    __slots__ = ("format", "name", "mark_delete", "ordinal", "created_ms", "properties", "acks", "epoch", "owner", "owner_name", "revision", "rewound", "reviser", "revising_since_ms", "operations", "pasts", "void_below", "id", "evicted", "lost", "compacted", "abandoned", "sharing", "members", "deliveries")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MARK_DELETE_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OWNER_NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REWOUND_FIELD_NUMBER: _ClassVar[int]
    REVISER_FIELD_NUMBER: _ClassVar[int]
    REVISING_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    PASTS_FIELD_NUMBER: _ClassVar[int]
    VOID_BELOW_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    format: int
    name: str
    mark_delete: Position
    ordinal: int
    created_ms: int
    properties: _containers.RepeatedCompositeFieldContainer[LongProperty]
    acks: bytes
    epoch: int
    owner: bytes
    owner_name: str
    revision: int
    rewound: int
    reviser: bytes
    revising_since_ms: int
    operations: _containers.RepeatedScalarFieldContainer[bytes]
    pasts: _containers.RepeatedCompositeFieldContainer[Past]
    void_below: int
    id: bytes
    evicted: int
    lost: int
    compacted: bool
    abandoned: bool
    sharing: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    deliveries: _containers.RepeatedCompositeFieldContainer[Deliveries]
    def __init__(self, format: _Optional[int] = ..., name: _Optional[str] = ..., mark_delete: _Optional[_Union[Position, _Mapping]] = ..., ordinal: _Optional[int] = ..., created_ms: _Optional[int] = ..., properties: _Optional[_Iterable[_Union[LongProperty, _Mapping]]] = ..., acks: _Optional[bytes] = ..., epoch: _Optional[int] = ..., owner: _Optional[bytes] = ..., owner_name: _Optional[str] = ..., revision: _Optional[int] = ..., rewound: _Optional[int] = ..., reviser: _Optional[bytes] = ..., revising_since_ms: _Optional[int] = ..., operations: _Optional[_Iterable[bytes]] = ..., pasts: _Optional[_Iterable[_Union[Past, _Mapping]]] = ..., void_below: _Optional[int] = ..., id: _Optional[bytes] = ..., evicted: _Optional[int] = ..., lost: _Optional[int] = ..., compacted: bool = ..., abandoned: bool = ..., sharing: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., deliveries: _Optional[_Iterable[_Union[Deliveries, _Mapping]]] = ...) -> None: ...

class Holder(_message.Message):
    __slots__ = ("format", "id", "name", "since_ms")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    format: int
    id: bytes
    name: str
    since_ms: int
    def __init__(self, format: _Optional[int] = ..., id: _Optional[bytes] = ..., name: _Optional[str] = ..., since_ms: _Optional[int] = ...) -> None: ...

class Pin(_message.Message):
    __slots__ = ("format", "position")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    format: int
    position: Position
    def __init__(self, format: _Optional[int] = ..., position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("format", "commit", "since", "moves", "alone", "lowest", "rows", "columns")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    format: int
    commit: Commit
    since: int
    moves: int
    alone: bool
    lowest: int
    rows: bytes
    columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, format: _Optional[int] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., since: _Optional[int] = ..., moves: _Optional[int] = ..., alone: bool = ..., lowest: _Optional[int] = ..., rows: _Optional[bytes] = ..., columns: _Optional[_Iterable[str]] = ...) -> None: ...

class Answers(_message.Message):
    __slots__ = ("format", "packed", "gc_epoch")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    GC_EPOCH_FIELD_NUMBER: _ClassVar[int]
    format: int
    packed: bytes
    gc_epoch: int
    def __init__(self, format: _Optional[int] = ..., packed: _Optional[bytes] = ..., gc_epoch: _Optional[int] = ...) -> None: ...

class TokenPartial(_message.Message):
    __slots__ = ("chunk", "bitmap")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    BITMAP_FIELD_NUMBER: _ClassVar[int]
    chunk: int
    bitmap: bytes
    def __init__(self, chunk: _Optional[int] = ..., bitmap: _Optional[bytes] = ...) -> None: ...

class TokenGroup(_message.Message):
    __slots__ = ("format", "chunk_tokens", "whole", "partials", "spilled", "consumed", "operations", "began", "first_token")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    PARTIALS_FIELD_NUMBER: _ClassVar[int]
    SPILLED_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    format: int
    chunk_tokens: int
    whole: bytes
    partials: _containers.RepeatedCompositeFieldContainer[TokenPartial]
    spilled: bytes
    consumed: int
    operations: _containers.RepeatedScalarFieldContainer[bytes]
    began: Position
    first_token: int
    def __init__(self, format: _Optional[int] = ..., chunk_tokens: _Optional[int] = ..., whole: _Optional[bytes] = ..., partials: _Optional[_Iterable[_Union[TokenPartial, _Mapping]]] = ..., spilled: _Optional[bytes] = ..., consumed: _Optional[int] = ..., operations: _Optional[_Iterable[bytes]] = ..., began: _Optional[_Union[Position, _Mapping]] = ..., first_token: _Optional[int] = ...) -> None: ...

class TokenChunk(_message.Message):
    __slots__ = ("format", "bitmap", "file")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    BITMAP_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    format: int
    bitmap: bytes
    file: FileRef
    def __init__(self, format: _Optional[int] = ..., bitmap: _Optional[bytes] = ..., file: _Optional[_Union[FileRef, _Mapping]] = ...) -> None: ...

class TokenBlock(_message.Message):
    __slots__ = ("format", "tokens", "bitmap", "minted_ms")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BITMAP_FIELD_NUMBER: _ClassVar[int]
    MINTED_MS_FIELD_NUMBER: _ClassVar[int]
    format: int
    tokens: int
    bitmap: bytes
    minted_ms: int
    def __init__(self, format: _Optional[int] = ..., tokens: _Optional[int] = ..., bitmap: _Optional[bytes] = ..., minted_ms: _Optional[int] = ...) -> None: ...

class Entity(_message.Message):
    __slots__ = ("format", "content", "file", "operations")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    format: int
    content: bytes
    file: FileRef
    operations: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, format: _Optional[int] = ..., content: _Optional[bytes] = ..., file: _Optional[_Union[FileRef, _Mapping]] = ..., operations: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("format", "name", "uuid", "key", "version_column", "created_ms")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_COLUMN_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    format: int
    name: str
    uuid: Name
    key: str
    version_column: str
    created_ms: int
    def __init__(self, format: _Optional[int] = ..., name: _Optional[str] = ..., uuid: _Optional[_Union[Name, _Mapping]] = ..., key: _Optional[str] = ..., version_column: _Optional[str] = ..., created_ms: _Optional[int] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("format", "id", "arrow")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    format: int
    id: int
    arrow: bytes
    def __init__(self, format: _Optional[int] = ..., id: _Optional[int] = ..., arrow: _Optional[bytes] = ...) -> None: ...

class Moving(_message.Message):
    __slots__ = ("to", "since_ms", "by")
    TO_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    to: str
    since_ms: int
    by: str
    def __init__(self, to: _Optional[str] = ..., since_ms: _Optional[int] = ..., by: _Optional[str] = ...) -> None: ...

class Namespace(_message.Message):
    __slots__ = ("format", "storage", "created_ms", "no_deduplication", "id", "marked", "upgrading", "moves", "moving", "moved_from", "rebuilding", "roles")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    NO_DEDUPLICATION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MARKED_FIELD_NUMBER: _ClassVar[int]
    UPGRADING_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    MOVED_FROM_FIELD_NUMBER: _ClassVar[int]
    REBUILDING_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    format: int
    storage: str
    created_ms: int
    no_deduplication: bool
    id: bytes
    marked: bool
    upgrading: bool
    moves: int
    moving: Moving
    moved_from: str
    rebuilding: bytes
    roles: _containers.RepeatedCompositeFieldContainer[Grant]
    def __init__(self, format: _Optional[int] = ..., storage: _Optional[str] = ..., created_ms: _Optional[int] = ..., no_deduplication: bool = ..., id: _Optional[bytes] = ..., marked: bool = ..., upgrading: bool = ..., moves: _Optional[int] = ..., moving: _Optional[_Union[Moving, _Mapping]] = ..., moved_from: _Optional[str] = ..., rebuilding: _Optional[bytes] = ..., roles: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("role", "scheme", "id", "since_ms", "leaving")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    role: str
    scheme: str
    id: str
    since_ms: int
    leaving: bool
    def __init__(self, role: _Optional[str] = ..., scheme: _Optional[str] = ..., id: _Optional[str] = ..., since_ms: _Optional[int] = ..., leaving: bool = ...) -> None: ...

class Deleted(_message.Message):
    __slots__ = ("format", "uuid", "deleted_ms")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    DELETED_MS_FIELD_NUMBER: _ClassVar[int]
    format: int
    uuid: Name
    deleted_ms: int
    def __init__(self, format: _Optional[int] = ..., uuid: _Optional[_Union[Name, _Mapping]] = ..., deleted_ms: _Optional[int] = ...) -> None: ...

class Sink(_message.Message):
    __slots__ = ("format", "sequence", "query", "run", "past_runs", "digest", "records", "transaction")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PAST_RUNS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    format: int
    sequence: int
    query: Name
    run: Name
    past_runs: _containers.RepeatedCompositeFieldContainer[Name]
    digest: bytes
    records: int
    transaction: bytes
    def __init__(self, format: _Optional[int] = ..., sequence: _Optional[int] = ..., query: _Optional[_Union[Name, _Mapping]] = ..., run: _Optional[_Union[Name, _Mapping]] = ..., past_runs: _Optional[_Iterable[_Union[Name, _Mapping]]] = ..., digest: _Optional[bytes] = ..., records: _Optional[int] = ..., transaction: _Optional[bytes] = ...) -> None: ...

class SinkTopic(_message.Message):
    __slots__ = ("format", "uuid")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    format: int
    uuid: Name
    def __init__(self, format: _Optional[int] = ..., uuid: _Optional[_Union[Name, _Mapping]] = ...) -> None: ...

class EpochBirth(_message.Message):
    __slots__ = ("epoch", "commit")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    commit: int
    def __init__(self, epoch: _Optional[int] = ..., commit: _Optional[int] = ...) -> None: ...

class GcEpoch(_message.Message):
    __slots__ = ("format", "epoch", "floor", "births")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    BIRTHS_FIELD_NUMBER: _ClassVar[int]
    format: int
    epoch: int
    floor: int
    births: _containers.RepeatedCompositeFieldContainer[EpochBirth]
    def __init__(self, format: _Optional[int] = ..., epoch: _Optional[int] = ..., floor: _Optional[int] = ..., births: _Optional[_Iterable[_Union[EpochBirth, _Mapping]]] = ...) -> None: ...

class Marker(_message.Message):
    __slots__ = ("format",)
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    format: int
    def __init__(self, format: _Optional[int] = ...) -> None: ...
