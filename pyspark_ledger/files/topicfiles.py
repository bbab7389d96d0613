"""Small files that ZooKeeper names with length and checksum: index files, long lists of entries, snapshots.

All are Arrow IPC files, so that any Arrow tool shows them.
"""

from __future__ import annotations

import builtins
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import MISSING, dataclass, fields
from itertools import islice
from operator import itemgetter
from types import UnionType
from typing import Any, Generic, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
import xxhash

from pyspark_ledger.base import names
from pyspark_ledger.base.arrays import one_array
from pyspark_ledger.base.clock import Clock, LedgerClock
from pyspark_ledger.errors import CorruptData, damage
from pyspark_ledger.files import bounds
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.metadata.records import Entry, FileRef

_TYPES = {bool: pa.bool_(), int: pa.int64(), str: pa.string(), bytes: pa.binary()}
_OTHER_TYPES = {"Commit.id": pa.binary(16), "FileRef.uid": pa.binary(16), "FileRef.tail_hash": pa.uint64()}

_READ = pa.ipc.IpcReadOptions(use_threads=False)  # to share out such small columns costs more than to unpack them

T = TypeVar("T")
U = TypeVar("U")
_Convert = Callable[[Any], Any]


class RowCodec(Generic[T]):
    """Stores records of one class as rows of a file: one column for each field, whose type follows from the field's.

    If a file lacks a column, because the field was added later, the field gets its default. Unknown columns are
    ignored."""

    def __init__(self, kind: type[T]) -> None:
        hints = get_type_hints(kind, localns=vars(builtins))  # otherwise a field called "bytes" would hide the type
        columns = {name: _column(f"{kind.__name__}.{name}", hint) for name, hint in hints.items()}
        self._kind = kind
        self._names = tuple(columns)
        self._values: _Convert = itemgetter(*columns) if len(columns) > 1 else _only(*columns)
        self._columns = columns
        self._defaults = {field.name: field.default for field in fields(cast(Any, kind))}
        self._dumps = [(name, column.dump) for name, column in columns.items() if column.dump]
        self._loads = [(number, column.load) for number, column in enumerate(columns.values()) if column.load]
        self.schema = pa.schema([(name, column.type) for name, column in columns.items()])
        self.struct = pa.struct(list(self.schema))

    def check(self, table: pa.Table) -> None:
        """Raises an error if the rows of a file cannot be such records: before they are made, and looked at."""
        self._check({name: one_array(table[name]) for name in table.schema.names})

    def _check(self, columns: dict[str, pa.Array]) -> None:
        for name, values in columns.items():
            if name in self._columns:
                self._columns[name].check(name, values)

    def check_struct(self, where: str, structs: pa.StructArray) -> None:
        for field, values in zip(structs.type, structs.flatten(), strict=True):
            if field.name in self._columns:
                self._columns[field.name].check(f"{where}.{field.name}", values, structs.null_count)

    def columns(self, table: pa.Table) -> dict[str, pa.Array]:
        """The rows of a file, checked, for those who need no record for each."""
        columns = {name: one_array(table[name]) for name in table.schema.names}
        self._check(columns)
        return self.complete(columns, table.num_rows)

    def nested(self, structs: pa.StructArray) -> dict[str, pa.Array]:
        """As :meth:`columns`, of records in a column that was checked."""
        names = [field.name for field in structs.type]
        return self.complete(dict(zip(names, structs.flatten(), strict=True)), len(structs))

    def complete(self, columns: dict[str, pa.Array], count: int) -> dict[str, pa.Array]:
        """One column for each field. If it was added later than the file was written, all rows have its default."""
        return {name: columns[name] if name in columns else self._absent(name, count) for name in self._names}

    def _absent(self, name: str, count: int) -> pa.Array:
        default, kind = self._defaults[name], self._columns[name].type
        if default is MISSING and count:
            raise ValueError(f"there is no column '{name}'")
        return pa.repeat(pa.scalar(default, kind), count) if count else pa.array([], kind)

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

    def load_all(self, columns: dict[str, pa.Array], count: int) -> list[T]:
        """As many records at once, column by column: a leaf of the index has a thousand, and whoever plans a read needs
        all of them."""
        if not count:
            return []
        there = self.complete(columns, count)
        values = [column.load_all(there[name]) for name, column in self._columns.items()]
        return list(map(self._kind, *values))

    def _load_older(self, row: dict[str, Any]) -> T:
        values = {name: row[name] for name in self._names if name in row}
        for name, load in ((self._names[number], load) for number, load in self._loads):
            if values.get(name) is not None:
                values[name] = load(values[name])
        return self._kind(**values)


def to_list(values: pa.Array) -> list[Any]:
    """Most columns have the same value in all rows of a file, and then only one is made. In few rows it takes longer to
    find that out than to make them all."""
    if len(values) > 16 and not pat.is_nested(values.type):
        distinct = values.unique()
        if len(distinct) == 1:
            return [distinct[0].as_py()] * len(values)
    found: list[Any] = values.to_pylist()
    return found


def _only(name: str) -> _Convert:
    """As an itemgetter of several names, which gives a tuple."""
    return lambda row: (row[name],)


class _Column(NamedTuple):
    type: pa.DataType
    dump: _Convert | None = None  # None: as it is
    load: _Convert | None = None
    rows: RowCodec[Any] | None = None  # of the records in it, or in its lists
    optional: bool = False

    def load_all(self, values: pa.Array) -> list[Any]:
        if self.rows is None:
            found = to_list(values)
            return found if self.load is None else [None if each is None else self.load(each) for each in found]
        if pat.is_list(values.type):
            records = iter(self._records(values.flatten()))
            lengths = pc.list_value_length(values).to_pylist()
            return [None if length is None else tuple(islice(records, length)) for length in lengths]
        return self._records(values)

    def _records(self, structs: pa.StructArray) -> list[Any]:
        assert self.rows is not None
        if structs.null_count == len(structs):
            return [None] * len(structs)
        records = self.rows.load_all(self.rows.nested(structs), len(structs))
        if not structs.null_count:
            return records
        there = structs.is_valid().to_pylist()
        return [record if is_there else None for record, is_there in zip(records, there, strict=True)]

    def check(self, where: str, values: pa.Array, absent: int = 0) -> None:
        """``absent`` of the values have no record that they could belong to."""
        if values.null_count > absent and not self.optional:
            raise ValueError(f"a value of '{where}' is missing")
        records = values.flatten() if pat.is_list(self.type) and pat.is_list(values.type) else values
        if self.rows is not None and pat.is_struct(records.type):
            self.rows.check_struct(where, records)
        elif values.type != self.type:
            raise ValueError(f"'{where}' is of type {values.type} and not {self.type}")
        elif pat.is_map(self.type) and values.items.null_count:
            raise ValueError(f"a value of '{where}' is missing")


def _column(field: str, hint: Any) -> _Column:
    if isinstance(hint, UnionType):  # "FileRef | None"
        return _column(field, get_args(hint)[0])._replace(optional=True)
    if get_origin(hint) is tuple:
        return _list_column(get_args(hint)[0])
    if hint in _TYPES:
        return _Column(_OTHER_TYPES.get(field) or _TYPES[hint])
    rows = RowCodec(hint)
    return _Column(rows.struct, rows.dump, rows.load, rows)


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
        rows,
    )


@dataclass(frozen=True, slots=True)
class _Listed:
    """A row of a list of entries."""

    entry: Entry


_FILES, _ENTRIES, _LISTED = RowCodec(FileRef), RowCodec(Entry), RowCodec(_Listed)


def entry_columns(entries: pa.StructArray) -> dict[str, pa.Array]:
    """The fields of entries that are rows of a file, and those of their files as ``file.epoch`` and so on."""
    if entries.null_count:
        raise ValueError("an entry is missing")
    columns = _ENTRIES.nested(entries)
    files = _FILES.nested(columns.pop("file"))
    return columns | {f"file.{name}": column for name, column in files.items()}


def listed_columns(table: pa.Table) -> dict[str, pa.Array]:
    """The same, of the entries in a list."""
    return entry_columns(_LISTED.columns(table)["entry"])


def check_columns(table: pa.Table, schema: pa.Schema) -> None:
    """Raises an error if a table that was stored lacks one of these columns, or a value in one."""
    for field in schema:
        if table.schema.field(field.name).type != field.type or table[field.name].null_count:
            raise ValueError(f"column '{field.name}' is not {field.type} throughout")


FILE_TYPE, file_row, file_from_row = _FILES.struct, _FILES.dump, _FILES.load


class TopicFiles:
    """The metadata files of one topic. Files never change, so some that were read are kept in memory."""

    _REMEMBERED = 32

    def __init__(self, storage: Storage, uuid: str, clock: Clock) -> None:
        self.storage = storage
        self.uuid = uuid
        self._clock = clock
        self._last_table: tuple[bytes, pa.Table] = b"", pa.table({})
        self._remembered: OrderedDict[tuple[bytes, Hashable], Any] = OrderedDict()

    def of_ledger(self, ledger: int) -> TopicFiles:
        """The same, and what is staged carries a ledger in its name."""
        return TopicFiles(self.storage, self.uuid, LedgerClock(self._clock, ledger))

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
        return self._remember(ref, None, lambda ref: self.fetch_as(ref, pa.Table.to_pylist))

    def fetch_records(self, ref: FileRef, codec: RowCodec[T]) -> list[T]:
        """The rows as records. Kept in memory as such: to make a thousand of them takes ten milliseconds."""
        return self.fetch_kept(ref, codec, lambda table: codec.load_all(codec.columns(table), table.num_rows))

    def fetch_kept(self, ref: FileRef, what: Hashable, load: Callable[[pa.Table], list[T]]) -> list[T]:
        """As :meth:`fetch_as`, and kept in memory. ``what`` tells it from other things that are made of the file: a
        stream wants the slices of a leaf, and then its commits. So the last table is kept too."""

        def made(ref: FileRef) -> list[T]:
            table = self._table(ref)
            with damage(self._where(ref)):
                return load(table)

        return self._remember(ref, what, made)

    def fetch_record(self, ref: FileRef, codec: RowCodec[T], at: int) -> T | None:
        """One row as a record, without those around it; None if there are not so many."""
        if (ref.uid, codec) in self._remembered:
            return next(iter(self.fetch_records(ref, codec)[at : at + 1]), None)
        table = self._table(ref)
        with damage(self._where(ref)):
            row = table.slice(at, 1)
            return next(iter(codec.load_all(codec.columns(row), row.num_rows)), None)

    def _table(self, ref: FileRef) -> pa.Table:
        uid, table = self._last_table
        if uid != ref.uid:
            table = self.fetch_table(ref)
            self._last_table = ref.uid, table
        return table

    def fetch_as(self, ref: FileRef, load: Callable[[pa.Table], U]) -> U:
        """What ``load`` makes of the table; CorruptData if it cannot. Not kept in memory, because it may be large."""
        table = self.fetch_table(ref)
        with damage(self._where(ref)):
            return load(table)

    def _remember(self, ref: FileRef, what: Hashable, read: Callable[[FileRef], list[T]]) -> list[T]:
        key = (ref.uid, what)
        if key not in self._remembered:
            self._remembered[key] = read(ref)
        self._remembered.move_to_end(key)
        while len(self._remembered) > self._REMEMBERED:
            self._remembered.popitem(last=False)
        return self._remembered[key]  # type: ignore[no-any-return]

    def fetch_table(self, ref: FileRef) -> pa.Table:
        """Not kept in memory, because it may be large."""
        data = self.storage.read_whole(names.staged_file(self.uuid, ref.epoch, ref.uid), ref.length)
        if data.size != ref.length or xxhash.xxh3_64_intdigest(data) != ref.tail_hash:
            raise CorruptData(f"{self._where(ref)} is damaged: it fails its checksum; restore it from a copy")
        with damage(self._where(ref)):
            bounds.check_file(memoryview(data))
            table = pa.ipc.open_file(pa.BufferReader(data), options=_READ).read_all()
            table.validate(full=True)  # what Arrow takes on trust would end the process where it is used
            return table

    def _where(self, ref: FileRef) -> str:
        return self.storage.where(names.staged_file(self.uuid, ref.epoch, ref.uid))

    def stage_entries(self, entries: Iterable[Entry], epoch: int) -> FileRef:
        return self.stage([_LISTED.dump(_Listed(entry)) for entry in entries], _LISTED.schema, epoch)

    def fetch_entries(self, ref: FileRef) -> tuple[Entry, ...]:
        return tuple([listed.entry for listed in self.fetch_records(ref, _LISTED)])
