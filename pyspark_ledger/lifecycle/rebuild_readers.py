"""The readers of a topic that is made again: subscriptions and token groups, so that they fit the log that there is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pyspark_ledger.base.clock import Clock
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors import shares
from pyspark_ledger.lifecycle.rebuild_sources import SavedTopic
from pyspark_ledger.log import trimmed
from pyspark_ledger.metadata.port import CursorKey, TokenBlockKey, TokenChunkKey, TokenGroupKey
from pyspark_ledger.metadata.records import Cursor, Head, PastRevision, Policies, TokenBlock, TokenChunk, TokenGroup


@dataclass(frozen=True, slots=True)
class ReaderNodes:
    cursors: dict[CursorKey, Cursor] = field(default_factory=dict)
    groups: dict[TokenGroupKey, TokenGroup] = field(default_factory=dict)
    chunks: dict[TokenChunkKey, TokenChunk] = field(default_factory=dict)
    blocks: dict[TokenBlockKey, TokenBlock] = field(default_factory=dict)


def readers_of(topic: SavedTopic, head: Head, limits: Limits, clock: Clock) -> ReaderNodes:
    """``head`` is the one that the topic gets."""
    nodes = ReaderNodes()
    for key, record in topic.readers.nodes.items():
        if isinstance(key, CursorKey) and isinstance(record, Cursor):
            nodes.cursors[key] = cursor_of(record, head, topic.log.policies, limits, clock.new_id())
        elif isinstance(key, TokenGroupKey) and isinstance(record, TokenGroup):
            nodes.groups[key] = record
        elif isinstance(key, TokenChunkKey) and isinstance(record, TokenChunk):
            nodes.chunks[key] = record
        elif isinstance(key, TokenBlockKey) and isinstance(record, TokenBlock):
            nodes.blocks[key] = record
    return _consistent(nodes)


def _consistent(nodes: ReaderNodes) -> ReaderNodes:
    """A group and its chunks were read one after the other. A chunk that the group does not name is of another moment;
    one that is missing was consumed entirely since, or had only begun: its tokens are there again."""
    spilled = {key: Runs.unpack(group.spilled, 0) for key, group in nodes.groups.items()}
    chunks = {
        key: chunk
        for key, chunk in nodes.chunks.items()
        if key.chunk in spilled.get(TokenGroupKey(key.uuid, key.group), Runs())
    }
    groups = {}
    for key, group in nodes.groups.items():
        there = Runs((chunk.chunk, chunk.chunk + 1) for chunk in chunks if chunk.group == key.group)
        groups[key] = group if there == spilled[key] else replace(group, spilled=there.pack(0))
    blocks = {key: block for key, block in nodes.blocks.items() if TokenGroupKey(key.uuid, key.group) in groups}
    return ReaderNodes(nodes.cursors, groups, chunks, blocks)


def is_past_end(cursor: Cursor, head: Head) -> bool:
    return cursor.ordinal > head.records or cursor.mark_delete > head.end


def is_before_begin(cursor: Cursor, head: Head, policies: Policies) -> bool:
    """Whether the log has given up what the cursor had not acknowledged when it was saved. Trimming waits for cursors,
    so it has acknowledged that since; unless it does not wait for this one."""
    waits = not (cursor.compacted or policies.evict_backlog)
    return waits and trimmed.is_gone(head, cursor.mark_delete)


def cursor_of(cursor: Cursor, head: Head, policies: Policies, limits: Limits, operation: bytes) -> Cursor:
    """The cursor under a new revision, for nobody: whoever was attached, or had received something, is of the old
    history. A query goes on from its checkpoint, if that is later: only a cursor that was past the end has moved
    back."""
    position, ordinal, properties = cursor.mark_delete, cursor.ordinal, cursor.properties
    past_end = is_past_end(cursor, head)
    if past_end:
        position, ordinal, properties = head.end, head.records, ()
    elif is_before_begin(cursor, head, policies):
        position, ordinal, properties = trimmed.begin(head), trimmed.records_before_begin(head), ()
    acks = Runs(
        (start, min(stop, head.records)) for start, stop in Runs.unpack(cursor.acks, cursor.ordinal).since(ordinal)
    )
    past = (*cursor.past_revisions, PastRevision(cursor.revision, min(cursor.mark_delete, head.end)))
    return replace(
        shares.disbanded(cursor),
        mark_delete=position,
        ordinal=ordinal,
        properties=properties,
        acks=acks.pack(ordinal),
        epoch=cursor.epoch + limits.repair_jump,
        owner=b"",
        owner_name="",
        reviser=b"",
        revising_since_ms=0,
        revision=cursor.revision + 1,
        last_backward_revision=cursor.revision + 1 if past_end else cursor.last_backward_revision,
        operations=(*cursor.operations, operation)[-limits.remembered_operations :],
        past_revisions=past[-limits.remembered_revisions :],
        abandoned=False,
    )
