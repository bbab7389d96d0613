"""Which tokens are consumed, as ZooKeeper keeps it.

The tokens of a topic are numbered in the order of its records. For each group of consumers ZooKeeper keeps which
numbers it has consumed. Numbers are divided into chunks of a million: those that are consumed entirely are kept as runs
of chunks, the others as bitmaps. A topic that is consumed in order needs one short node, however long it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.base import names
from pyspark_ledger.base.bitmap import Bitmap
from pyspark_ledger.base.position import Position
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.base.token_prefix import TokenPrefix, first_number
from pyspark_ledger.errors import CorruptData, DataLoss, LedgerError
from pyspark_ledger.files.blobs import Blobs
from pyspark_ledger.files.mask import unpack
from pyspark_ledger.log import folders, root, trimmed
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import (
    Check,
    Create,
    Delete,
    Metadata,
    Op,
    Put,
    TokenBlockKey,
    TokenChunkKey,
    TokenGroupKey,
    Versioned,
)
from pyspark_ledger.metadata.records import FileRef, Head, TokenBlock, TokenChunk, TokenGroup
from pyspark_ledger.tokens.ids import not_a_token

_REMEMBERED_BITMAPS = 32
_ANY = (1 << 63) - 1


class GroupChanged(LedgerError):
    """What was read belongs to different versions of the group: read it again. Users never see this error."""


@dataclass(frozen=True, slots=True)
class Numbering:
    """The numbers of the tokens of one prefix: they start at ``base``; masked rows have none."""

    space: Group | Block
    base: int
    rows: int
    kept: pa.BooleanArray | None = None


class Group:
    """What one group has consumed of one topic, as far as this process knows.

    That may be outdated. If a token looks present but is consumed by now, the transaction that consumes it is refused,
    because the node has another version. And a token that looks consumed is consumed for good."""

    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, name
        self.key = TokenGroupKey(log.topic.uuid, name)
        self._version: int | None = None  # None: the node is not there
        self._record = TokenGroup(log.limits.token_chunk)
        self._making: list[Op] = []  # what belongs to the transaction that creates the node
        self._whole = self._spilled = Runs()
        self._nodes: dict[int, Versioned[TokenChunk]] = {}
        self._bitmaps: dict[int, Bitmap] = {}
        self.load()

    def load(self, *, sync: bool = False) -> None:
        """If a server that is behind does not know the node yet, who would create it is refused, and loads it again."""
        if sync:
            self.log.metadata.sync()
        found = self.log.metadata.read(self.key)
        self._version = None if found is None else found.version
        self._record, self._making = new_group(self.log) if found is None else (found.record, [])
        self._whole, self._spilled = Runs.unpack(self._record.whole, 0), Runs.unpack(self._record.spilled, 0)
        self._nodes, self._bitmaps = {}, {}

    @property
    def version(self) -> int | None:
        return self._version

    @property
    def record(self) -> TokenGroup:
        return self._record

    @property
    def size(self) -> int:
        """Tokens in a chunk."""
        return self._record.chunk_tokens

    def bitmap(self, chunk: int) -> Bitmap:
        """What is consumed of a chunk. Callers must not change it."""
        if chunk not in self._bitmaps:
            self._bitmaps[chunk] = self._load_bitmap(chunk)
        return self._bitmaps[chunk]

    def _load_bitmap(self, chunk: int) -> Bitmap:
        if chunk in self._whole:
            full = Bitmap(self.size)
            full.fill(0, self.size)
            return full
        if chunk not in self._spilled:
            return Bitmap(self.size, dict(self._record.partials).get(chunk, b""))
        node = self.log.metadata.read(TokenChunkKey(self.log.topic.uuid, self.name, chunk))
        if node is None:
            raise GroupChanged(f"chunk {chunk} of group '{self.name}' is not there")
        self._nodes[chunk] = node
        return Bitmap(self.size, self._content(chunk, node.record))

    def _content(self, chunk: int, record: TokenChunk) -> bytes:
        if record.file is None:
            return record.bitmap
        try:
            return self._blobs(chunk).fetch(record.file)
        except CorruptData as error:
            # The file is deleted once the node names another one: read the node to see whether it does.
            self.log.metadata.sync()
            now = self.log.metadata.read(TokenChunkKey(self.log.topic.uuid, self.name, chunk))
            if now is not None and now.record.file == record.file:
                raise
            raise GroupChanged(str(error)) from None

    def _blobs(self, chunk: int) -> Blobs:
        folder = names.token_folder(self.log.topic.uuid, self.name, chunk)
        return Blobs(self.log.storage, folder, self.log.clock)

    # -- consuming -----------------------------------------------------------------------------------------

    def ops(self, changed: Mapping[int, Bitmap], operation: bytes = b"") -> tuple[list[Op], Callable[[], None]]:
        """The operations that store these bitmaps, and what to call after they were applied."""
        after = _Change(self, changed, operation)
        return after.ops, lambda: self._install(after)

    def guard(self) -> list[Op]:
        """The operations that make a transaction fail if anybody has consumed meanwhile."""
        return [Check(self.key, self._version)] if self._version is not None else self.creation(self._record)

    def creation(self, record: TokenGroup) -> list[Op]:
        """Creates the node. Refused if the topic has given up ledgers since the record was made."""
        self.log.ensure_part("tokens")
        return [*self._making, Create(self.key, record)]

    def _install(self, change: _Change) -> None:
        before = 0 if self._version is None else self._version + 1
        if before != change.version:
            return  # a newer version was read meanwhile
        self._version, self._record = change.version, change.record
        self._whole, self._spilled = change.whole, change.spilled
        self._nodes = {chunk: node for chunk, node in {**self._nodes, **change.nodes}.items() if chunk in self._spilled}
        kept = dict(list(self._bitmaps.items())[-_REMEMBERED_BITMAPS:])
        self._bitmaps = {**kept, **change.bitmaps}
        for chunk, (file, replaced) in change.files.items():
            self._blobs(chunk).sweep(change.version, file, replaced)

    def number(self, view: View, prefix: TokenPrefix) -> Numbering | None:
        """How the tokens of an entry are numbered; None if there is no such entry, or its records have no tokens, or
        they were all consumed and the entry is gone. DataLoss if they may not have been."""
        position = Position(prefix.ledger, prefix.entry, 0)
        if position >= view.head.end:
            return None
        if trimmed.is_gone(view.head, position, planned=True):
            self._check_consumed(view.head, position)
            return None
        commit = next(self.log.commits_from(view, position, planned=True), None)
        if commit is None or not commit.mints or commit.ledger != prefix.ledger:
            return None
        base = commit.tokens_before
        entries = self.log.entries(commit)
        for entry in entries[: prefix.entry - commit.first_entry]:
            base += entry.kept
        entry = entries[prefix.entry - commit.first_entry]
        return Numbering(self, base, entry.records, unpack(entry.mask, entry.records) if entry.mask else None)

    def _check_consumed(self, head: Head, position: Position) -> None:
        """Of an entry that is gone nobody knows any more which numbers its tokens had. If the group has not consumed
        all that were given up since it was made, its token may be one that it never saw (never a "duplicate")."""
        assert head.trim is not None
        if position < self._record.began or not self._has_consumed(self._record.first_token, head.trim.tokens):
            self._check_current()
            raise DataLoss(
                f"a token of topic '{head.name}' belongs to a record at {position}, which the topic's retention has "
                f"given up: the topic begins at {head.trim.position} now, and whether group '{self.name}' has consumed "
                "the token cannot be told any more. Consume records before they are given up: read the topic with a "
                "subscription, which holds them back",
                "LEDGER_TRIMMED",
            )

    def checked_numbers(self, view: View, first: pa.Array, last: pa.Array) -> Numbering:
        """Of runs of tokens that are numbers, counted from the topic's first: InvalidInput if one was never minted,
        DataLoss if its record is gone and it was not consumed. Takes no longer if the runs or the log are longer."""
        there = self._first_there(view)
        if pc.any(pc.less(first, there)).as_py():
            gone = pc.less(first, there)
            for run in zip(first.filter(gone).to_pylist(), last.filter(gone).to_pylist(), strict=True):
                self._check_consumed_number(view.head, run[0], min(run[1] + 1, there))
            left = pc.greater_equal(last, there)
            first, last = pc.max_element_wise(first.filter(left), there), last.filter(left)
        if len(first):
            edges = pa.concat_arrays([first, last])
            self._check_minted(view, edges.take(pc.array_sort_indices(edges)))
        return Numbering(self, 0, _ANY)

    def _check_minted(self, view: View, numbers: pa.Array) -> None:
        """Of sorted numbers, and all that lie between two of a run. Between two that were minted are others that were
        not only where a repair has left a gap, and that is so wide that no run bridges it."""
        ends = numbers[0].as_py(), numbers[-1].as_py()
        for number in ends:
            if self.log.commit_at_token(view, number) is None:
                raise not_a_token(first_number(self.log.topic.uuid) + number, self.log.topic.name)
        if ends[1] - ends[0] >= self.log.limits.repair_token_jump and len(numbers) > 2:
            half = len(numbers) // 2
            self._check_minted(view, numbers[:half])
            self._check_minted(view, numbers[half:])

    def _first_there(self, view: View) -> int:
        """Tokens before this number are of records that are gone."""
        trim, first = view.head.trim, trimmed.first_ledger(view.head, planned=True)
        if trim is None or first == trim.position.ledger:
            return 0 if trim is None else trim.tokens
        index = self.log.index(view, planned=True)
        leaf = index.leaf(first)
        return trim.tokens if leaf is None else index.tokens_before(leaf)

    def _check_consumed_number(self, head: Head, start: int, stop: int) -> None:
        if not self._has_consumed(start, stop):
            self._check_current()
            begin = first_number(self.log.topic.uuid)
            raise DataLoss(
                f"the tokens {begin + start} to {begin + stop - 1} of topic '{head.name}' belong to records that the "
                f"topic's retention has given up, and group '{self.name}' has not consumed all of them. Consume "
                "records before they are given up: read the topic with a subscription, which holds them back",
                "LEDGER_TRIMMED",
            )

    def _check_current(self) -> None:
        """Before a token is said to be lost: somebody else may have consumed it since the group was read."""
        self.log.metadata.sync()
        found = self.log.metadata.read(self.key)
        if (None if found is None else found.version) != self._version:
            raise GroupChanged(f"somebody has consumed tokens for group '{self.name}'")

    def _has_consumed(self, start: int, stop: int) -> bool:
        while start < stop:
            chunk, offset = divmod(start, self.size)
            until = min(stop, (chunk + 1) * self.size)
            if chunk not in self._whole and not self.bitmap(chunk).has_all(offset, offset + until - start):
                return False
            start = until
        return True


def new_group(log: Log) -> tuple[TokenGroup, list[Op]]:
    """The record of a group that nobody has used yet, and what belongs to the transaction that makes it: it orders this
    against those who give up ledgers. The head is read after that."""
    guard = log.retention_guard()
    head = log.refresh(sync=True).head
    first_token = head.trim.tokens if head.trim is not None else 0
    return TokenGroup(log.limits.token_chunk, began=trimmed.begin(head), first_token=first_token), [guard]


class _Change:
    """A group's record and nodes after a consumption."""

    def __init__(self, group: Group, changed: Mapping[int, Bitmap], operation: bytes) -> None:
        self._group, self._limits = group, group.log.limits
        record = group.record
        self.version = 0 if group.version is None else group.version + 1
        self.whole, self.spilled = group._whole, group._spilled
        self.bitmaps = dict(changed)
        self.nodes: dict[int, Versioned[TokenChunk]] = {}
        self.files: dict[int, tuple[FileRef | None, FileRef | None]] = {}  # of chunks to sweep: now, and before
        self._inline = dict(record.partials)
        self._node_ops: list[Op] = []
        # So many nodes would be too large for one transaction: put all but short bitmaps into files.
        self._long = len(changed) * self._limits.node_bitmap_bytes > 400_000
        for chunk, bitmap in sorted(changed.items()):
            self._keep(chunk, bitmap)
        while len(self._inline) > self._limits.inline_bitmaps:
            oldest = min(self._inline)
            self._spill(oldest, self._inline.pop(oldest))
        added = sum(bitmap.count - group.bitmap(chunk).count for chunk, bitmap in changed.items())
        record = group.log.transactions.remembering(record, operation) if operation else record
        self.record = replace(
            record,
            whole=self.whole.pack(0),
            partials=tuple(sorted(self._inline.items())),
            spilled=self.spilled.pack(0),
            consumed=record.consumed + added,
        )

    @property
    def ops(self) -> list[Op]:
        key, version = self._group.key, self._group.version
        own = self._group.creation(self.record) if version is None else [Put(key, self.record, version)]
        return [*own, *self._node_ops]

    def _keep(self, chunk: int, bitmap: Bitmap) -> None:
        self._inline.pop(chunk, None)
        if bitmap.is_full:
            self.whole |= ((chunk, chunk + 1),)
            if chunk in self.spilled:
                self._node_ops.append(Delete(self._node_key(chunk)))  # the group's version is checked
                self.spilled = self.spilled.without(chunk)
                self.files[chunk] = None, self._group._nodes[chunk].record.file
            return
        packed = bitmap.pack()
        if chunk in self.spilled or len(packed) > self._limits.inline_bitmap_bytes:
            self._spill(chunk, packed)
        else:
            self._inline[chunk] = packed

    def _spill(self, chunk: int, packed: bytes) -> None:
        """Moves a chunk's bitmap to a node of its own, where it stays until all of it is consumed: so the node is
        created once and deleted once."""
        limit = self._limits.inline_bitmap_bytes if self._long else self._limits.node_bitmap_bytes
        record = TokenChunk(packed)
        if len(packed) > limit:
            folders.prepare(self._group.log)
            record = TokenChunk(file=self._group._blobs(chunk).stage(packed, self.version))
            root.check_not_moved(self._group.log.metadata, self._group.log.storage)
        old = self._group._nodes.get(chunk)
        replaced = None if old is None else old.record.file
        if record.file is not None or replaced is not None:
            self.files[chunk] = record.file, replaced
        if chunk in self.spilled:
            assert old is not None
            self._node_ops.append(Put(self._node_key(chunk), record, old.version))
            self.nodes[chunk] = Versioned(record, old.version + 1)
        else:
            self._node_ops.append(Create(self._node_key(chunk), record))
            self.nodes[chunk] = Versioned(record, 0)
            self.spilled |= ((chunk, chunk + 1),)

    def _node_key(self, chunk: int) -> TokenChunkKey:
        return TokenChunkKey(self._group.log.topic.uuid, self._group.name, chunk)


class Block:
    """Tokens that were minted together for messages from outside: one node, deleted when all are consumed."""

    def __init__(self, key: TokenBlockKey, node: Versioned[TokenBlock]) -> None:
        self._key, self._node = key, node
        self.uuid = key.uuid
        self.size = node.record.tokens
        self._bitmap = Bitmap(self.size, node.record.bitmap)

    def bitmap(self, chunk: int) -> Bitmap:
        return self._bitmap

    def guard(self) -> list[Op]:
        return [Check(self._key, self._node.version)]

    def ops(self, changed: Mapping[int, Bitmap], operation: bytes = b"") -> tuple[list[Op], Callable[[], None]]:
        bitmap = changed[0]
        if bitmap.is_full:
            return [Delete(self._key, self._node.version)], _nothing
        return [Put(self._key, replace(self._node.record, bitmap=bitmap.pack()), self._node.version)], _nothing


def _nothing() -> None: ...


class Groups:
    """The groups with one name, over all topics of a namespace. Kept from one batch to the next, so that nothing is
    read again unless somebody else has changed it."""

    def __init__(self, metadata: Metadata, name: str, open_log: Callable[[str], Log | None]) -> None:
        self._metadata, self.name, self._open_log = metadata, names.check_group_name(name), open_log
        self._groups: dict[str, Group] = {}
        self._connection = metadata.connections  # over which they were read

    @classmethod
    def in_namespace_of(cls, log: Log, name: str) -> Groups:
        """All topics of the namespace that this log's topic is in."""
        return cls(log.metadata, name, lambda uuid: log if uuid == log.topic.uuid else log.sibling(uuid))

    def group(self, uuid: str) -> Group | None:
        """None if the namespace has no topic with this UUID (any more)."""
        if self._connection != self._metadata.connections:
            self._connection = self._metadata.connections
            self.reload()
        if uuid not in self._groups:
            log = self._open_log(uuid)
            if log is None:
                return None
            self._groups[uuid] = Group(log, self.name)
        return self._groups[uuid]

    def block(self, uuid: str, id: str) -> Block | None:
        key = TokenBlockKey(uuid, self.name, id)
        node = self._metadata.read(key)
        if node is None:
            self._metadata.sync()  # another client may have minted it a moment ago
            node = self._metadata.read(key)
        return None if node is None else Block(key, node)

    def reload(self) -> None:
        for group in self._groups.values():
            group.load(sync=True)
