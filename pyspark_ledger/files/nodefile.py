"""A file of nodes: what ZooKeeper keeps, written down so that it can be put back.

Each row is a node (its path in the namespace, and its bytes), or a small file that a node names and that would
otherwise be replaced soon. The file ends with a hash of all that comes before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import xxhash

from pyspark_ledger.errors import CorruptData, InvalidInput, damage
from pyspark_ledger.files import bounds
from pyspark_ledger.files.topicfiles import check_columns

FORMAT = 1
_FORMAT = b"ledger.format"
_HASH_BYTES = 8
_SCHEMA = pa.schema([("is_file", pa.bool_()), ("path", pa.string()), ("data", pa.large_binary())])


@dataclass(frozen=True, slots=True)
class NodeFile:
    """Its content: ``facts`` say what it is, of what and when; nodes by path, files by where they are in storage."""

    facts: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, bytes] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        rows = [(False, *node) for node in self.nodes.items()] + [(True, *file) for file in self.files.items()]
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        facts = {name.encode(): value.encode() for name, value in self.facts.items()}
        schema = _SCHEMA.with_metadata({**facts, _FORMAT: str(FORMAT).encode()})
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_file(buffer, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        data: bytes = buffer.getvalue().to_pybytes()
        return data + _hash(data)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> NodeFile:
        """``where`` is the file's name, for messages."""
        content, found = data[:-_HASH_BYTES], data[-_HASH_BYTES:]
        if _hash(content) != found:
            raise CorruptData(f"{where} is damaged: it fails its checksum; use another copy")
        with damage(where):
            bounds.check_file(memoryview(content))
            table = pa.ipc.open_file(pa.BufferReader(content)).read_all()
            table.validate(full=True)
            check_columns(table, _SCHEMA)
            facts = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
            written = int(facts.pop(_FORMAT.decode()))
            if written > FORMAT:
                raise InvalidInput(
                    f"{where} has format {written}, this version knows {FORMAT}: upgrade pyspark-ledger",
                    "LEDGER_NEWER_FORMAT",
                )
            if any(table[name].null_count for name in _SCHEMA.names):
                raise ValueError("a part of a row is missing")
            columns = (table[name].to_pylist() for name in _SCHEMA.names)
            nodes: dict[str, bytes] = {}
            files: dict[str, bytes] = {}
            for is_file, path, value in zip(*columns, strict=True):
                (files if is_file else nodes)[path] = value
        return cls(facts, nodes, files)


def _hash(data: bytes) -> bytes:
    return xxhash.xxh3_64_intdigest(data).to_bytes(_HASH_BYTES)
