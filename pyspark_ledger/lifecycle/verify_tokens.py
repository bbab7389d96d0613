"""Whether what is known of consumed tokens can be read, and adds up."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_ledger.base import names
from pyspark_ledger.base.bitmap import Bitmap
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.files.blobs import Blobs
from pyspark_ledger.lifecycle.findings import Finding, finding, from_error
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import PartKey, TokenBlockKey, TokenChunkKey, TokenGroupKey
from pyspark_ledger.metadata.records import TokenChunk, TokenGroup


class TokenGroups:
    def __init__(self, log: Log) -> None:
        self._log = log
        self.count = 0

    def look(self, _: View) -> Iterator[Finding]:
        keys = self._log.metadata.children(PartKey(self._log.topic.uuid, "tokens"))
        groups = [key for key in keys if isinstance(key, TokenGroupKey)]
        self.count = len(groups)
        for key in groups:
            yield from self._group(key)

    def _group(self, key: TokenGroupKey) -> Iterator[Finding]:
        what = f"token group '{key.group}'"
        try:
            node = self._log.metadata.read(key)
            if node is None:
                return  # deleted since they were listed
            whole, spilled = Runs.unpack(node.record.whole, 0), Runs.unpack(node.record.spilled, 0)
        except CorruptData as error:
            yield from_error(error, of=what)
            return
        consumed: int | None = len(whole) * node.record.chunk_tokens
        for chunk, count in self._counts(key, node.record, spilled, what):
            if isinstance(count, Finding):
                yield count
                consumed = None
            elif chunk in whole:
                yield finding("inconsistent", f"{what}: chunk {chunk} is consumed entirely, and has a bitmap too")
            elif consumed is not None:
                consumed += count
        if consumed is not None and consumed != node.record.consumed:
            said = node.record.consumed
            yield finding("inconsistent", f"{what} has consumed {consumed} tokens by its bitmaps, and says {said}")
        yield from self._blocks(key, what)

    def _counts(
        self, key: TokenGroupKey, group: TokenGroup, spilled: Runs, what: str
    ) -> Iterator[tuple[int, int | Finding]]:
        """How many tokens of each chunk are consumed."""
        for chunk, packed in group.partials:
            try:
                yield chunk, Bitmap(group.chunk_tokens, packed).count
            except CorruptData as error:
                yield chunk, from_error(error, of=f"{what}, chunk {chunk}")
        for chunk in spilled.numbers():
            yield chunk, self._spilled(TokenChunkKey(key.uuid, key.group, chunk), group, f"{what}, chunk {chunk}")

    def _spilled(self, key: TokenChunkKey, group: TokenGroup, what: str) -> int | Finding:
        path = ""
        try:
            node = self._log.metadata.read(key)
            if node is None:
                return finding("loss", f"{what} is not in ZooKeeper")
            path = self._path(key, node.record)
            return Bitmap(group.chunk_tokens, self._content(key, node.record)).count
        except CorruptData as error:
            return from_error(error, file=path, of=what)

    def _path(self, key: TokenChunkKey, record: TokenChunk) -> str:
        if record.file is None:
            return ""
        folder = names.token_folder(key.uuid, key.group, key.chunk)
        return self._log.storage.where(names.versioned_file(folder, record.file.epoch, record.file.uid))

    def _content(self, key: TokenChunkKey, record: TokenChunk) -> bytes:
        if record.file is None:
            return record.bitmap
        folder = names.token_folder(key.uuid, key.group, key.chunk)
        return Blobs(self._log.storage, folder, self._log.clock).fetch(record.file)

    def _blocks(self, key: TokenGroupKey, what: str) -> Iterator[Finding]:
        for below in self._log.metadata.children(key):
            if isinstance(below, TokenBlockKey):
                try:
                    block = self._log.metadata.read(below)
                    if block is not None:
                        Bitmap(block.record.tokens, block.record.bitmap)
                except CorruptData as error:
                    yield from_error(error, of=f"{what}, minted block {below.id}")
