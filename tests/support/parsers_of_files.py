"""The parsers of files in storage.

Files are parsed as if the checksum in ZooKeeper were theirs, or nothing behind it would ever be tried."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from itertools import islice

import pyarrow as pa
import xxhash

from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.base.position import EARLIEST
from pyspark_ledger.dedup.producers import Producers
from pyspark_ledger.files.blobs import Blobs
from pyspark_ledger.files.entryfile import EntryReader
from pyspark_ledger.files.ipc_layout import BatchLayout, RecordBatchMessage
from pyspark_ledger.files.nodefile import NodeFile
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.log import generations
from pyspark_ledger.log.index import Index, IndexRow
from pyspark_ledger.metadata.records import Commit, DedupSnapshot, FileRef
from pyspark_ledger.zk_metadata import exporting
from tests.support.golden_files import GOLDEN, golden_files
from tests.support.held import HeldStorage
from tests.support.parser_table import UID, UUID, parser_of


def _ref(data: bytes, tail: int | None = None) -> FileRef:
    """As ZooKeeper would name this file, if it had been written like that."""
    tail = len(data) if tail is None else tail
    return FileRef(0, UID, len(data), tail, xxhash.xxh3_64_intdigest(data[max(0, len(data) - tail) :]))


def _topic_files(data: bytes) -> TopicFiles:
    return TopicFiles(HeldStorage(data, mapped=True), UUID, SYSTEM_CLOCK)


def _golden(kind: str) -> Callable[[], list[bytes]]:
    return lambda: golden_files()[kind]


def _fixed_file() -> bytes:
    return golden_files()["index"][0]


def _node_files() -> list[bytes]:
    """Without the hash at their end."""
    nodes = json.loads((GOLDEN / "format2" / "nodes.json").read_text())
    saved = {line["path"]: bytes.fromhex(line["bytes"]) for line in nodes}
    few = dict(list(saved.items())[:3])
    return [NodeFile(*content).to_bytes()[:-8] for content in (({"what": "all"}, saved), ({}, few, {"a/b": b"c"}), ())]


@parser_of("nodefile", _node_files)
def _node_file(data: bytes) -> object:
    found = NodeFile.from_bytes(data + xxhash.xxh3_64_intdigest(data).to_bytes(8), "file")
    return found.facts, found.files, exporting.load(found.nodes, "file")


@parser_of("leaf", _golden("leaf"))
def _leaf(data: bytes) -> object:
    return Index(_topic_files(data), ()).commits(IndexRow(0, 0, 0, 0, 0, _ref(data)))


@parser_of("index", _golden("index"))
def _index(data: bytes) -> object:
    return Index(_topic_files(data), ())._rows(_ref(data))


@parser_of("entries", _golden("entries"))
def _entries(data: bytes) -> object:
    return _topic_files(data).fetch_entries(_ref(data))


@parser_of("manifest", _golden("manifest"))
def _manifest(data: bytes) -> object:
    files = _topic_files(data)
    assert isinstance(generations.is_manifest(files.fetch_table(_ref(data))), bool)
    return generations.files_of(files, _ref(data)), generations.fetch_manifest(files, _ref(data))


@parser_of("replaced", _golden("replaced"))
def _replaced(data: bytes) -> object:
    return generations.fetch_replaced(_topic_files(data), _ref(data))


@parser_of("producers", _golden("producers"))
def _producers(data: bytes) -> object:
    snapshot = DedupSnapshot(0, EARLIEST, producers_file=_ref(data))
    return Producers.load(snapshot, _topic_files(data), DEFAULT_LIMITS).all()


@parser_of("evicted", _golden("evicted"))
def _evicted(data: bytes) -> object:
    snapshot = DedupSnapshot(0, EARLIEST, evicted_file=_ref(data))
    return Producers.load(snapshot, _topic_files(data), DEFAULT_LIMITS).is_evicted("ann")


@parser_of("highest", _golden("highest"))
def _highest(data: bytes) -> object:
    commit = Commit(0, UID, 0, 0, 0, 0, 0, 0, 0, 0, 0, sequence_column="n", highest_file=_ref(data))
    producers = Producers(0, (), DEFAULT_LIMITS)
    producers.apply(commit, _topic_files(data))
    return producers.all()


class _Trusting(EntryReader):
    """Takes every batch as if its checksum were right."""

    def _verify(self, number: int, batch: BatchLayout) -> None:
        self._fetch(batch)


def _read_entry(kind: type[EntryReader], data: bytes, *, mapped: bool) -> object:
    tail, file = int.from_bytes(data[:4], "little"), data[4:]
    reader = kind(HeldStorage(file, mapped=mapped), UUID, _ref(file, tail))
    rows = sum(batch.num_rows for _, batch in islice(reader.batches(0, 1 << 40), 100))
    reader.choose([])
    return rows, [batch.num_rows for _, batch in islice(reader.batches(1, 5), 100)]


@parser_of("entry-mapped", _golden("entry"))
def _mapped_entry(data: bytes) -> object:
    return _read_entry(EntryReader, data, mapped=True)


@parser_of("entry-fetched", _golden("entry"))
def _fetched_entry(data: bytes) -> object:
    return _read_entry(EntryReader, data, mapped=False)


@parser_of("entry-trusted", _golden("entry"))
def _trusted_entry(data: bytes) -> object:
    return _read_entry(_Trusting, data, mapped=len(data) % 2 == 0)


def _reference_seeds() -> list[bytes]:
    right = _ref(_fixed_file())
    return [bytes([n]) + struct.pack("<4Q", 0, right.length, right.length, right.tail_hash) + UID for n in range(2)]


@parser_of("file-reference", _reference_seeds)
def _reference(data: bytes) -> object:
    """A record that names a file, with any numbers."""
    epoch, length, tail, hashed = struct.unpack("<4Q", data[1:33].ljust(32, b"\0"))
    ref, file = FileRef(epoch, data[33:49], length, tail, hashed), _fixed_file()
    readers: list[Callable[[], object]] = [
        lambda: _topic_files(file).fetch(ref),
        lambda: Blobs(HeldStorage(file, mapped=False), "folder", SYSTEM_CLOCK).fetch(ref),
        lambda: EntryReader(HeldStorage(file, mapped=True), UUID, ref),
        lambda: EntryReader(HeldStorage(file, mapped=False), UUID, ref),
    ]
    return readers[data[0] % len(readers) if data else 0]()


def _batch_message() -> bytes:
    batch = pa.RecordBatch.from_pydict({"n": [1, 2, 3], "t": ["a", None, "c"]})
    return batch.serialize().to_pybytes()


@parser_of("batch-message", lambda: [_batch_message()])
def _message(data: bytes) -> object:
    return RecordBatchMessage(len(data), [memoryview(data)]).describe(3, [2, 3])
