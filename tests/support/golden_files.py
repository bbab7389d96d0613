"""The files of a golden namespace, by what they are: real examples for those who parse them."""

from __future__ import annotations

import struct
from collections import defaultdict
from functools import cache

from pyspark_ledger.base import names
from pyspark_ledger.base.position import EARLIEST
from pyspark_ledger.log import generations, topics
from pyspark_ledger.log.index import Index
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import DedupKey, TopicsKey
from pyspark_ledger.metadata.records import FileRef
from tests.support import REPOSITORY
from tests.support.golden import opened

GOLDEN = REPOSITORY / "tests" / "golden"


@cache
def golden_files() -> dict[str, list[bytes]]:
    """Those of the present format. In front of an entry file are four bytes, the length of its tail."""
    metadata, storage = opened(GOLDEN / "format2")
    found: dict[str, list[bytes]] = defaultdict(list)
    for key in metadata.children(TopicsKey()):
        log = Log(metadata, storage, topics.get_topic(metadata, key.name))
        for kind, ref in _files(log):
            path = names.staged_file(log.topic.uuid, ref.epoch, ref.uid)
            data = storage.read(path, 0, ref.length).to_pybytes()
            data = struct.pack("<I", ref.tail_length) + data if kind == "entry" else data
            if data not in found[kind]:
                found[kind].append(data)
    return found


def _files(log: Log) -> list[tuple[str, FileRef]]:
    view = log.refresh(sync=True)
    dedup = log.metadata.read(DedupKey(log.topic.uuid))
    assert dedup is not None
    named = [("index", ref) for ref in view.head.index]
    leaves = Index(log.files, view.head.index).leaves(lambda row: row.first_commit, 0)
    named += [("leaf", leaf.file) for leaf in leaves]
    for commit in log.commits_from(view, EARLIEST):
        named += [("entries", commit.entries_file), ("highest", commit.highest_file)]
        named += [("entry", entry.file) for entry in log.entries(commit)[:1]]
    for generation in generations.kept(log.files, view.head):
        named += [("manifest", generation.manifest)]
        named += [("entry", file) for file in generations.files_of(log.files, generation.manifest)]
    named += [("replaced", view.head.replaced)]
    named += [("producers", dedup.record.producers_file), ("evicted", dedup.record.evicted_file)]
    return [(kind, ref) for kind, ref in named if ref is not None]
