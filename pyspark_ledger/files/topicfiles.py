"""Small files that ZooKeeper names with length and checksum: index files, long lists of entries, snapshots.

All are Arrow IPC files, so that any Arrow tool shows them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import xxhash

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import Clock
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.metadata.records import Entry, FileRef

FILE_FIELDS = [
    pa.field("epoch", pa.int64()),
    pa.field("uid", pa.binary(16)),
    pa.field("length", pa.int64()),
    pa.field("tail_length", pa.int64()),
    pa.field("tail_hash", pa.uint64()),
]
FILE_TYPE = pa.struct(FILE_FIELDS)
ENTRY_TYPE = pa.struct(
    [
        pa.field("file", FILE_TYPE),
        pa.field("records", pa.int64()),
        pa.field("masked", pa.int64()),
        pa.field("mask", pa.binary()),
    ]
)
_ENTRIES = pa.schema([pa.field("entry", ENTRY_TYPE)])


class TopicFiles:
    """The metadata files of one topic. Files never change, so what was read once stays read."""

    _REMEMBERED = 32

    def __init__(self, storage: Storage, uuid: str, clock: Clock) -> None:
        self.storage = storage
        self.uuid = uuid
        self._clock = clock
        self._remembered: OrderedDict[bytes, Any] = OrderedDict()

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
        if ref.uid in self._remembered:
            self._remembered.move_to_end(ref.uid)
            return self._remembered[ref.uid]  # type: ignore[no-any-return]
        rows: list[dict[str, Any]] = self.fetch_table(ref).to_pylist()
        self._remembered[ref.uid] = rows
        while len(self._remembered) > self._REMEMBERED:
            self._remembered.popitem(last=False)
        return rows

    def fetch_table(self, ref: FileRef) -> pa.Table:
        """Not remembered: what is kept as a table may be large."""
        path = names.staged_file(self.uuid, ref.epoch, ref.uid)
        data = self.storage.read(path, 0, ref.length + 1)
        if data.size != ref.length or xxhash.xxh3_64_intdigest(data) != ref.tail_hash:
            raise CorruptData(f"{self.storage.where(path)} is damaged: it fails its checksum; restore it from a copy")
        return pa.ipc.open_file(pa.BufferReader(data)).read_all()

    def stage_entries(self, entries: Iterable[Entry], epoch: int) -> FileRef:
        return self.stage([{"entry": entry_row(entry)} for entry in entries], _ENTRIES, epoch)

    def fetch_entries(self, ref: FileRef) -> tuple[Entry, ...]:
        return tuple(entry_from_row(row["entry"]) for row in self.fetch(ref))


def file_row(ref: FileRef) -> dict[str, Any]:
    return {name: getattr(ref, name) for name in ("epoch", "uid", "length", "tail_length", "tail_hash")}


def file_from_row(row: dict[str, Any]) -> FileRef:
    return FileRef(**row)


def entry_row(entry: Entry) -> dict[str, Any]:
    return {"file": file_row(entry.file), "records": entry.records, "masked": entry.masked, "mask": entry.mask}


def entry_from_row(row: dict[str, Any]) -> Entry:
    return Entry(file_from_row(row["file"]), row["records"], row["masked"], row["mask"])
