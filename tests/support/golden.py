"""Golden files: a small namespace as one format of nodes and files stored it, and what it means.

A folder ``tests/golden/format<n>`` holds

- ``node_samples.json``: every kind of node, with every field set (names as text and as UUIDs) and with nothing set,
- ``file_samples.json``: a leaf of the index and a list of entries whose records have every field set,
- ``nodes.json``: the nodes of a namespace with two topics, a subscription, token groups and an outbox,
- ``storage/``: its files, and those samples,
- ``meaning.json``: what a reader of all this gets: commits, records, producers, tokens and so on.

``tests/golden/make.py`` makes such a folder for the present format. A namespace of format 1 is read by way of the
upgrade: its nodes are put into a real ZooKeeper, and brought over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.files.storage import Storage, normalise_uri, open_storage
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.log import topics
from pyspark_ledger.log.generations import kept, newest
from pyspark_ledger.log.index import Index, IndexRow
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.log.rows import read_slice
from pyspark_ledger.log.sources import ReadSource
from pyspark_ledger.metadata.port import AnyKey, Create, CursorKey, Metadata, PartKey, TokenGroupKey, TopicsKey
from pyspark_ledger.metadata.records import Commit, FileRef
from pyspark_ledger.outbox.outbox import Outbox
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from pyspark_ledger.tokens.tokens import Tokens
from pyspark_ledger.zk_metadata import codec, format1, paths
from pyspark_ledger.zk_metadata import records_pb2 as pb
from tests.support.zookeeper import put_nodes

SAMPLES = "samples"  # in place of a topic's UUID
OUTBOX, ENTITIES = "billing", ("ann", "bob")
# Fields of records that have had another name since the first golden files were made: there they keep the first one.
FIRST_NAMES = {"last_backward_revision": "rewound", "past_revisions": "pasts"}


def plain(value: Any) -> Any:
    """A value as JSON shows it: bytes are hexadecimal, records are objects, positions are ``L:E:I``."""
    if isinstance(value, Position):
        return str(value)
    if is_dataclass(value):
        return {FIRST_NAMES.get(f.name, f.name): plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def node(key: AnyKey, record: Any) -> dict[str, Any]:
    """A line of ``node_samples.json`` and ``nodes.json``."""
    kind, data = type(record).__name__, codec.encode(key, record)
    return {"path": paths.path(key), "kind": kind, "bytes": data.hex(), "record": plain(record)}


def nodes(folder: Path, name: str) -> Iterator[tuple[dict[str, Any], AnyKey, Any]]:
    """The lines of such a file, each with the key and the record that are read from it."""
    for line in json.loads((folder / name).read_text()):
        path, data = line["path"], bytes.fromhex(line["bytes"])
        if is_format_1(folder):
            yield line, *format1.decode(path, data)
        else:
            key = paths.key(path)
            assert key is not None, path
            yield line, key, codec.decode(key, data, path)


def is_format_1(folder: Path) -> bool:
    return folder.name == "format1"


def put_old_nodes(folder: Path, namespace: str, storage: str, password: str | None = None) -> None:
    """The nodes of a golden namespace of format 1, as the old code left them, in a real ZooKeeper."""
    lines = json.loads((folder / "nodes.json").read_text())
    stored = {line["path"]: bytes.fromhex(line["bytes"]) for line in lines}
    marker = pb.Marker(format=1).SerializeToString()
    containers = dict.fromkeys(("/topics", "/ledgers", "/outboxes"), marker)
    record = pb.Namespace(format=1, storage=normalise_uri(storage), created_ms=1).SerializeToString()
    put_nodes(namespace, {"/namespace": record, **containers, **stored}, password)


def opened(folder: Path) -> tuple[Metadata, Storage]:
    """A golden namespace, as a process would see it. The files are those in the repository: only read."""
    metadata = MemoryMetadata(MemoryServer())
    for _, key, record in nodes(folder, "nodes.json"):
        if metadata.read(key) is None:
            metadata.transact([Create(key, record)])
    return metadata, open_storage(str(folder / "storage"))


def file_samples(folder: Path) -> Iterator[tuple[list[Any], list[Any]]]:
    """What ``file_samples.json`` says of each file, and what is read from it."""
    files = TopicFiles(open_storage(str(folder / "storage")), SAMPLES, SeededClock())
    for sample in json.loads((folder / "file_samples.json").read_text()):
        ref = FileRef(**sample["file"] | {"uid": bytes.fromhex(sample["file"]["uid"])})
        if sample["kind"] == "index leaf":
            records = Index(files, ()).commits(IndexRow(0, 0, 0, 0, 0, ref))
        else:
            records = list(files.fetch_entries(ref))
        yield sample["records"], plain(records)


def meaning(metadata: Metadata, storage: Storage) -> dict[str, Any]:
    """What a reader gets of everything in a namespace."""
    found = {key.name: topics.get_topic(metadata, key.name) for key in metadata.children(TopicsKey())}
    logs = {name: Log(metadata, storage, topic) for name, topic in found.items()}
    outbox = Outbox(OUTBOX, metadata, storage, logs.__getitem__, DEFAULT_LIMITS, SeededClock())
    described = {name: _topic(log) for name, log in logs.items()}
    return described | {f"outbox {OUTBOX}": {name: outbox.state(name) for name in ENTITIES}}


def _topic(log: Log) -> dict[str, Any]:
    view = log.refresh(sync=True)
    _, producers = log.producers()
    keys = [key for part in ("subscriptions", "tokens") for key in log.metadata.children(PartKey(log.topic.uuid, part))]
    return {
        "index": _index(log, view),
        "commits": [_commit(log, commit) for commit in log.commits_from(view, EARLIEST)],
        "records": [
            [str(record.position), dict(record.value), record.producer, record.sequence_id, record.token]
            for record in Reader(log, "earliest", "latest")
        ],
        "producers": [plain(state) for state in producers.all()],
        "evicted producers": producers.evicted,
        "manifests": [plain(log.files.fetch(generation.manifest)) for generation in kept(log.files, view.head)],
        "compacted": list(_compacted(log, view)) if view.head.generation else [],
        "acknowledged": {key.name: _acknowledged(log, key.name) for key in keys if isinstance(key, CursorKey)},
        "tokens": {key.group: _tokens(log, key.group) for key in keys if isinstance(key, TokenGroupKey)},
    }


def _index(log: Log, view: View) -> dict[str, Any]:
    """The rows of the files that the head names, lowest level first, and the leaves of the whole tree."""
    leaves = Index(log.files, view.head.index).leaves(lambda row: row.first_commit, 0)
    return {"nodes": [plain(log.files.fetch(file)) for file in view.head.index], "leaves": [plain(x) for x in leaves]}


def _commit(log: Log, commit: Commit) -> dict[str, Any]:
    """With what it keeps in files of its own."""
    highest = commit.highest
    if commit.highest_file is not None:
        highest = tuple(tuple(row.values()) for row in log.files.fetch(commit.highest_file))
    return plain(replace(commit, entries=log.entries(commit), highest=highest))


def _compacted(log: Log, view: View) -> Iterator[list[Any]]:
    generation = newest(log, view)
    assert generation is not None
    schema = log.schema(view.head.schema_id)
    for piece in ReadSource(log, view, generation, generation.horizon).slices(EARLIEST, view.head.end):
        for rows in read_slice(log.storage, log.topic.uuid, piece, schema, with_ids=True):
            columns = [column.to_pylist() for column in (*rows.positions(), *rows.ids())]
            for row, *place, producer, sequence in zip(rows.batch.to_pylist(), *columns, strict=True):
                yield [str(Position(*place)), row, producer, sequence]


def _acknowledged(log: Log, subscription: str) -> list[Any]:
    """The mark-delete position, and which ordinals after it."""
    node = CursorNode(log, subscription)
    cursor = node.refresh(sync=True)
    return [str(cursor.mark_delete), plain(list(node.acks(cursor)))]


def _tokens(log: Log, group: str) -> list[Any]:
    """Which tokens of the topic's records are present, and how many from outside."""
    minted = [record.token for record in Reader(log, "earliest", "latest") if record.token]
    tokens = Tokens(log, group)
    [stats] = [stats for stats in tokens.stats() if stats.group == group]
    present = [token for token, there in zip(minted, tokens.present(minted), strict=True) if there]
    return [present, stats.in_flight - len(present)]
