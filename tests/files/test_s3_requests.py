"""How many requests an object store gets (a moto server, which counts them): each takes a while, and costs money.

pyarrow asks for the length of every file that it opens, though we know it: that is the HEAD in each of these."""

from __future__ import annotations

import os
import threading
from collections import Counter

import pyarrow as pa
import pytest

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.position import EARLIEST
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.files import entrysource
from pyspark_ledger.files.entryfile import EntryReader, EntryWriter
from pyspark_ledger.files.storage import ObjectStorage, Opened, _OpenedObject, open_storage
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.log import scan
from pyspark_ledger.log.rows import read_slices
from pyspark_ledger.metadata.records import Entry
from tests.support import worlds
from tests.support.worlds import World, append

SCHEMA = pa.schema([("n", pa.int64()), ("noise", pa.binary()), ("text", pa.string())])


@pytest.fixture
def storage(s3_root) -> ObjectStorage:
    return open_storage(s3_root)


@pytest.fixture
def requests(storage, monkeypatch) -> Counter[str]:
    """How many of each kind came. Opening the storage needs none."""
    from werkzeug.serving import WSGIRequestHandler

    counted: Counter[str] = Counter()
    answer = WSGIRequestHandler.run_wsgi

    def count(handler: WSGIRequestHandler) -> None:
        counted[handler.command] += 1
        answer(handler)

    monkeypatch.setattr(WSGIRequestHandler, "run_wsgi", count)
    return counted


def rows(count: int, width: int = 10, first: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + count)
    noise = [os.urandom(width) for _ in numbers]
    return pa.RecordBatch.from_arrays([list(numbers), noise, [f"row {n}" for n in numbers]], schema=SCHEMA)


def write(storage: ObjectStorage, *batches: pa.RecordBatch) -> Entry:
    writer = EntryWriter(storage, "topic", 0, SCHEMA)
    for batch in batches:
        writer.write(batch)
        writer.end_batch()
    entry = writer.close()
    assert entry is not None
    return entry


def read(storage: ObjectStorage, entry: Entry, columns: list[str] | None = None) -> list[pa.RecordBatch]:
    return [batch for _, batch in EntryReader(storage, "topic", entry.file, columns).batches(0, entry.records)]


def test_a_small_entry_is_written_with_one_request_and_read_with_two(storage, requests):
    batch = rows(1000)
    entry = write(storage, batch)
    assert requests == {"PUT": 1}
    requests.clear()
    assert read(storage, entry) == [batch]
    assert requests == {"HEAD": 1, "GET": 1}


def test_a_file_of_metadata_too(storage, requests):
    files = TopicFiles(storage, "topic", SYSTEM_CLOCK)
    ref = files.stage([{"n": 1}], pa.schema([("n", pa.int64())]), 0)
    assert requests == {"PUT": 1}
    requests.clear()
    assert files.fetch_table(ref).to_pylist() == [{"n": 1}]
    assert requests == {"HEAD": 1, "GET": 1}
    requests.clear()
    storage.read_whole(names.staged_file("topic", 0, ref.uid))
    assert requests == {"HEAD": 1, "GET": 1}


def test_a_large_entry_is_read_with_one_request_for_several_megabytes(storage, requests):
    batches = [rows(1000, 2000, number * 1000) for number in range(12)]  # 24 MB
    entry = write(storage, *batches)
    assert requests["PUT"] <= 4  # parts of an upload, beside its begin and its end
    requests.clear()
    assert read(storage, entry) == batches
    assert requests == {"HEAD": 1, "GET": 4}  # the tail, and three for what fits into 8 MB each


def test_one_column_is_read_without_the_long_one_between(storage, requests, monkeypatch):
    batches = [rows(1000, 2000, number * 1000) for number in range(3)]
    entry = write(storage, *batches)
    asked: list[int] = []
    ask = entrysource.FetchedSource._request
    monkeypatch.setattr(
        entrysource.FetchedSource,
        "_request",
        lambda source, number: (asked.append(source._plan[number][1]), ask(source, number))[1],
    )
    requests.clear()
    assert read(storage, entry, ["n"]) == [batch.select(["n"]) for batch in batches]
    assert requests == {"HEAD": 1, "GET": 4}  # the tail, and one for each batch
    assert sum(asked) < 100_000 < entry.file.length


def test_requests_for_what_comes_next_go_out_before_it_is_needed(storage, requests, monkeypatch):
    """With the first batch in hand others are there too: nobody waits for one after the other."""
    monkeypatch.setattr(entrysource, "FETCH_BYTES", 1 << 20)
    entry = write(storage, *(rows(1000, 2000, number * 1000) for number in range(3)))
    together = threading.Barrier(3, timeout=30)  # nobody passes who is alone
    read_part = _OpenedObject.read

    def read_together(opened: _OpenedObject, offset: int, length: int) -> pa.Buffer:
        if length > 1 << 20:
            together.wait()
        return read_part(opened, offset, length)

    monkeypatch.setattr(_OpenedObject, "read", read_together)
    assert [batch.num_rows for batch in read(storage, entry)] == [1000] * 3


def test_entries_are_opened_some_at_a_time_and_given_in_order(s3_root, monkeypatch):
    log = World(open_storage(s3_root), Limits()).log()
    for number in range(16):
        append(log, *range(10 * number, 10 * number + 10))
    together = threading.Barrier(4, timeout=30)
    open_one = log.storage.open

    def open_together(path: str) -> Opened:
        together.wait()
        return open_one(path)

    pieces = list(scan.slices(log, log.view(), EARLIEST, log.view().head.end))
    assert len(pieces) == 16
    monkeypatch.setattr(log.storage, "open", open_together)
    found = read_slices(log.storage, log.topic.uuid, pieces, worlds.SCHEMA)
    assert [n for each in found for n in each.batch["n"].to_pylist()] == list(range(160))


def test_an_object_that_goes_while_it_is_read_is_missing_by_name(storage):
    entry = write(storage, *(rows(1000, 2000, number * 1000) for number in range(2)))
    reader = EntryReader(storage, "topic", entry.file)
    path = names.staged_file("topic", 0, entry.file.uid)
    storage.delete(path)
    with pytest.raises(CorruptData, match=f"LEDGER_FILE_MISSING.*{entry.file.uid.hex()}"):
        list(reader.batches(0, entry.records))
