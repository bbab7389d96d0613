"""Small files that ZooKeeper names with length and checksum: index files, long lists of entries, snapshots.

All are Arrow IPC files, so that any Arrow tool shows them.
"""

from __future__ import annotations

import builtins
from collections import OrderedDict
from collections.abc import Callable, Iterable
from operator import itemgetter
from types import UnionType
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import pyarrow as pa
import xxhash

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import Clock
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.metadata.records import Entry, FileRef

_TYPES = {bool: pa.bool_(), int: pa.int64(), str: pa.string(), bytes: pa.binary()}
_OTHER_TYPES = {"Commit.id": pa.binary(16), "FileRef.uid": pa.binary(16), "FileRef.tail_hash": pa.uint64()}

T = TypeVar("T")
_Convert = Callable[[Any], Any]


class RowCodec(Generic[T]):
    """Stores records of one class as rows of a file: one column for each field, whose type follows from the field's.

    If a file lacks a column, because the field was added later, the field gets its default. Unknown columns are
    ignored."""

    def __init__(self, kind: type[T]) -> None:
        hints = get_type_hints(kind, localns=vars(builtins))  # otherwise a field called "bytes" would hide the type
        columns = {name: _column(f"{kind.__name__}.{name}", hint) for name, hint in hints.items()}
        self._kind = kind
        self._names, self._values = tuple(columns), itemgetter(*columns)
        self._dumps = [(name, column.dump) for name, column in columns.items() if column.dump]
        self._loads = [(number, column.load) for number, column in enumerate(columns.values()) if column.load]
        self.schema = pa.schema([(name, column.type) for name, column in columns.items()])
        self.struct = pa.struct(list(self.schema))

    def dump(self, record: T) -> dict[str, Any]:
        row = {name: getattr(record, name) for name in self._names}
        for name, dump in self._dumps:
            if row[name] is not None:
                row[name] = dump(row[name])
        return row

    def load(self, row: dict[str, Any]) -> T:
        try:
            values = list(self._values(row))
        except KeyError:
            return self._load_older(row)
        for number, load in self._loads:
            if values[number] is not None:
                values[number] = load(values[number])
        return self._kind(*values)

    def _load_older(self, row: dict[str, Any]) -> T:
        values = {name: row[name] for name in self._names if name in row}
        for name, load in ((self._names[number], load) for number, load in self._loads):
            if values.get(name) is not None:
                values[name] = load(values[name])
        return self._kind(**values)


class _Column(NamedTuple):
    type: pa.DataType
    dump: _Convert | None = None  # None: as it is
    load: _Convert | None = None


def _column(field: str, hint: Any) -> _Column:
    if isinstance(hint, UnionType):
        hint = get_args(hint)[0]  # of "FileRef | None": every column may be null
    if get_origin(hint) is tuple:
        return _list_column(get_args(hint)[0])
    if hint in _TYPES:
        return _Column(_OTHER_TYPES.get(field) or _TYPES[hint])
    rows = RowCodec(hint)
    return _Column(rows.struct, rows.dump, rows.load)


def _list_column(item: Any) -> _Column:
    if item in _TYPES:
        return _Column(pa.list_(_TYPES[item]), load=tuple)
    if get_origin(item) is tuple:
        key, value = get_args(item)
        return _Column(pa.map_(_TYPES[key], _TYPES[value]), load=tuple)
    rows = RowCodec(item)
    return _Column(
        pa.list_(rows.struct),
        lambda records: [rows.dump(record) for record in records],
        lambda found: tuple([rows.load(row) for row in found]),
    )


_FILES, _ENTRIES = RowCodec(FileRef), RowCodec(Entry)
_ENTRY_LIST = pa.schema([pa.field("entry", _ENTRIES.struct)])
FILE_TYPE, file_row, file_from_row = _FILES.struct, _FILES.dump, _FILES.load


class TopicFiles:
    """The metadata files of one topic. Files never change, so some that were read are kept in memory."""

    _REMEMBERED = 32

    def __init__(self, storage: Storage, uuid: str, clock: Clock) -> None:
        self.storage = storage
        self.uuid = uuid
        self._clock = clock
        self._remembered: OrderedDict[tuple[bytes, RowCodec[Any] | None], Any] = OrderedDict()

    def stage(self, rows: list[dict[str, Any]], schema: pa.Schema, epoch: int) -> FileRef:
        """Writes rows under a new name; durable when it returns."""
        return self.stage_table(pa.Table.from_pylist(rows, schema=schema), epoch)

    def stage_table(self, table: pa.Table, epoch: int, compression: str = "zstd") -> FileRef:
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_file(buffer, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(table)
        data = buffer.getvalue()
        uid = self._clock.new_id()
        self.storage.write(names.staged_file(self.uuid, epoch, uid), data)
        return FileRef(epoch, uid, data.size, data.size, xxhash.xxh3_64_intdigest(data))

    def fetch(self, ref: FileRef) -> list[dict[str, Any]]:
        return self._remember(ref, None, self._rows)

    def fetch_records(self, ref: FileRef, codec: RowCodec[T]) -> list[T]:
        """The rows as records. Kept in memory as such: to make a thousand of them takes ten milliseconds."""
        return self._remember(ref, codec, lambda ref: [codec.load(row) for row in self._rows(ref)])

    def _rows(self, ref: FileRef) -> list[dict[str, Any]]:
        return self.fetch_table(ref).to_pylist()  # type: ignore[no-any-return]

    def _remember(self, ref: FileRef, codec: RowCodec[Any] | None, read: Callable[[FileRef], list[T]]) -> list[T]:
        key = (ref.uid, codec)
        if key not in self._remembered:
            self._remembered[key] = read(ref)
        self._remembered.move_to_end(key)
        while len(self._remembered) > self._REMEMBERED:
            self._remembered.popitem(last=False)
        return self._remembered[key]  # type: ignore[no-any-return]

    def fetch_table(self, ref: FileRef) -> pa.Table:
        """Not kept in memory, because it may be large."""
        path = names.staged_file(self.uuid, ref.epoch, ref.uid)
        data = self.storage.read(path, 0, ref.length + 1)
        if data.size != ref.length or xxhash.xxh3_64_intdigest(data) != ref.tail_hash:
            raise CorruptData(f"{self.storage.where(path)} is damaged: it fails its checksum; restore it from a copy")
        return pa.ipc.open_file(pa.BufferReader(data)).read_all()

    def stage_entries(self, entries: Iterable[Entry], epoch: int) -> FileRef:
        return self.stage([{"entry": _ENTRIES.dump(entry)} for entry in entries], _ENTRY_LIST, epoch)

    def fetch_entries(self, ref: FileRef) -> tuple[Entry, ...]:
        return tuple([_ENTRIES.load(row["entry"]) for row in self.fetch(ref)])
