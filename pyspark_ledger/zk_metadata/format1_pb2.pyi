# mypy: ignore-errors
from pyspark_ledger.zk_metadata import records_pb2 as _records_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Policies(_message.Message):
    __slots__ = ("deduplication", "snapshot_commits", "evict_producers_ms")
    DEDUPLICATION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_COMMITS_FIELD_NUMBER: _ClassVar[int]
    EVICT_PRODUCERS_MS_FIELD_NUMBER: _ClassVar[int]
    deduplication: bool
    snapshot_commits: int
    evict_producers_ms: int
    def __init__(self, deduplication: bool = ..., snapshot_commits: _Optional[int] = ..., evict_producers_ms: _Optional[int] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("format", "uuid", "name", "schema_id", "ledger", "ledger_first_commit", "ledger_opened_ms", "ledger_bytes", "next_commit", "next_entry", "last_publish_ms", "records", "size", "gc_epoch", "gc_floor", "gc_marks", "index", "gc_kept", "gc_kept_before", "policies", "generations", "tokens")
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
    GC_FLOOR_FIELD_NUMBER: _ClassVar[int]
    GC_MARKS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    GC_KEPT_FIELD_NUMBER: _ClassVar[int]
    GC_KEPT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    format: int
    uuid: _records_pb2.Name
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
    gc_floor: int
    gc_marks: _containers.RepeatedScalarFieldContainer[int]
    index: _containers.RepeatedCompositeFieldContainer[_records_pb2.FileRef]
    gc_kept: _containers.RepeatedCompositeFieldContainer[_records_pb2.FileRef]
    gc_kept_before: _containers.RepeatedCompositeFieldContainer[_records_pb2.FileRef]
    policies: Policies
    generations: _containers.RepeatedCompositeFieldContainer[_records_pb2.Generation]
    tokens: int
    def __init__(self, format: _Optional[int] = ..., uuid: _Optional[_Union[_records_pb2.Name, _Mapping]] = ..., name: _Optional[str] = ..., schema_id: _Optional[int] = ..., ledger: _Optional[int] = ..., ledger_first_commit: _Optional[int] = ..., ledger_opened_ms: _Optional[int] = ..., ledger_bytes: _Optional[int] = ..., next_commit: _Optional[int] = ..., next_entry: _Optional[int] = ..., last_publish_ms: _Optional[int] = ..., records: _Optional[int] = ..., size: _Optional[int] = ..., gc_epoch: _Optional[int] = ..., gc_floor: _Optional[int] = ..., gc_marks: _Optional[_Iterable[int]] = ..., index: _Optional[_Iterable[_Union[_records_pb2.FileRef, _Mapping]]] = ..., gc_kept: _Optional[_Iterable[_Union[_records_pb2.FileRef, _Mapping]]] = ..., gc_kept_before: _Optional[_Iterable[_Union[_records_pb2.FileRef, _Mapping]]] = ..., policies: _Optional[_Union[Policies, _Mapping]] = ..., generations: _Optional[_Iterable[_Union[_records_pb2.Generation, _Mapping]]] = ..., tokens: _Optional[int] = ...) -> None: ...
