"""Records that no file has yet.

A writer that others have lately committed for is likely to wait again. If it has few records it writes no file for
them: they go along with its request, and whoever commits them writes one file for all. So a hundred writers cost the
disk one sync instead of a hundred, and readers find one file. All the same nothing is named before it is durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.errors import damage
from pyspark_ledger.files import packed_rows
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.log import folders
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.records import Entry, FileRef, Request

# Of a gc epoch that is never reached: a commit that names it is refused.
_NO_FILE = FileRef(1 << 62, b"", 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Loose:
    """Few records, of one entry."""

    rows: pa.RecordBatch
    compression: str | None

    @property
    def entry(self) -> Entry:
        """As it is as long as no file has them."""
        return Entry(_NO_FILE, self.rows.num_rows)


def few(batches: Sequence[pa.RecordBatch], compression: str | None, limits: Limits) -> Loose | None:
    """None if they are too many for a request."""
    if sum(batch.num_rows for batch in batches) > limits.request_rows:
        return None
    if sum(batch.nbytes for batch in batches) > limits.request_bytes:
        return None
    return Loose(pa.concat_batches(batches), compression)


def pack(loose: Loose, limits: Limits) -> tuple[bytes, tuple[str, ...]] | None:
    """What a request brings: its rows, and their columns. None if that is too long, because the columns are many."""
    data, columns = packed_rows.pack(loose.rows), tuple(loose.rows.schema.names)
    return (data, columns) if len(data) + sum(map(len, columns)) <= 2 * limits.request_bytes else None


def unpack(log: Log, request: Request) -> pa.RecordBatch:
    """The rows that a request brings. CorruptData if they cannot be."""
    topic = log.schema(request.commit.schema_id)
    what = f"a request to append to topic '{log.topic.name}'"
    with damage(what):
        [entry] = request.commit.entries
        schema = schemas.of_entry(topic, request.columns)
        if not 0 < entry.records <= log.limits.request_rows:
            raise ValueError(f"it brings {entry.records} records")
    return packed_rows.unpack(request.rows, schema, entry.records, what)


def write(log: Log, epoch: int, parts: Sequence[pa.RecordBatch], compression: str | None) -> list[Entry]:
    """Makes records durable: an entry for each part. Parts with the same columns share a file; what a record means can
    depend on which columns its entry has."""
    folders.prepare(log)
    alike: dict[tuple[str, ...], list[int]] = {}
    for number, rows in enumerate(parts):
        alike.setdefault(tuple(rows.schema.names), []).append(number)
    entries: dict[int, Entry] = {}
    for numbers in alike.values():
        same = [parts[number] for number in numbers]
        file = stage_entry(log.storage, log.topic.uuid, epoch, same, compression, log.clock)
        entries |= zip(numbers, _shares(file, same), strict=True)
    return [entries[number] for number in range(len(parts))]


def _shares(file: Entry, parts: Sequence[pa.RecordBatch]) -> list[Entry]:
    if len(parts) == 1:
        return [file]
    shares, row = [], 0
    for part in parts:
        shares.append(Entry(file.file, part.num_rows, first_row=row, file_rows=file.records))
        row += part.num_rows
    return shares


def placed(entry: Entry, share: Entry) -> Entry:
    """An entry, in the file that has its records now."""
    return replace(entry, file=share.file, first_row=share.first_row, file_rows=share.file_rows)
