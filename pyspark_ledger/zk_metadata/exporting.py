"""Records as they are in ZooKeeper, for files that keep them outside of it: each with its path and its bytes, and so
with its format, which is checked when it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.metadata.port import AnyKey, Key
from pyspark_ledger.metadata.records import NodeRecord
from pyspark_ledger.zk_metadata import codec, paths


def dump(records: Iterable[tuple[Key[Any], NodeRecord]]) -> dict[str, bytes]:
    """Path -> bytes."""
    return {paths.path(key): codec.encode(key, record) for key, record in records}


def load(nodes: Mapping[str, bytes], where: str) -> dict[AnyKey, NodeRecord]:
    """``where`` is where they were found, for messages."""
    records: dict[AnyKey, NodeRecord] = {}
    for path, data in nodes.items():
        key = paths.key(path)
        if key is None:
            raise InvalidInput(
                f"{where} has a node {path} that this version does not know: upgrade pyspark-ledger",
                "LEDGER_NEWER_FORMAT",
            )
        records[key] = codec.decode(cast("Key[NodeRecord]", key), data, f"{path} in {where}")
    return records
