"""Plans a compaction, and reads of a topic's state: the last record of every key."""

from __future__ import annotations

import logging
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.compaction import pins
from pyspark_ledger.compaction.work import KeyedSlices, RowNumbers, Work, survivors_of
from pyspark_ledger.errors import Conflict, InvalidInput
from pyspark_ledger.files import mask
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.log import folders, lost, trimmed
from pyspark_ledger.log.generations import kept, last_number, newest
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.slices import LogSlice, Slice, joined
from pyspark_ledger.log.sources import ReadSource
from pyspark_ledger.metadata.records import Generation, Head

logger = logging.getLogger(__name__)


def check_compactable(log: Log) -> None:
    topic = log.topic
    if not topic.key:
        raise InvalidInput(
            f"topic '{topic.name}' has no key, so every record would stay: a topic gets its key when it is made "
            "(option keyColumn)",
            "LEDGER_NOT_COMPACTABLE",
        )
    schemas.check_key(log.schema(log.view().head.schema_id).field(topic.key).type, topic.key, topic.name)


def begin(log: Log) -> Work | None:
    """The work of compacting everything up to now; None if nothing was written since the last compaction."""
    view = log.refresh(sync=True)
    previous = newest(log, view)
    if view.head.records == (previous.read if previous else 0):
        return None
    folders.prepare(log)
    check_room(log, view.head)  # before the work is done in vain
    _tell_lost(log, view, previous)
    start = EARLIEST if previous is not None else trimmed.begin(view.head)  # what was given up before is in no state
    return Work(
        input=_keyed_slices(log, view, start, view.head.end, around_lost=True),
        epoch=view.head.gc_epoch,
        horizon=view.head.end,
        read=view.head.records,
        generation=last_number(view.head) + 1,
        tombstones_from=pins.tombstones_from(log, view),
        started_ms=log.clock.now_ms(),
    )


def _tell_lost(log: Log, view: View, previous: Generation | None) -> None:
    """A damaged entry that somebody has given up is no reason never to compact again."""
    begin = trimmed.begin(view.head) if previous is None else previous.horizon
    for each in lost.between(log.files, view.head, begin, view.head.end):
        logger.warning("%s; the compaction goes around them", each.loss(log.topic.name))


def check_room(log: Log, head: Head) -> None:
    """Raises if there are as many generations as can be kept."""
    older = len(kept(log.files, head)) - 1
    if older >= log.limits.kept_generations:
        raise Conflict(
            f"topic '{log.topic.name}' has {older} older compacted generations. Each is kept for batches that were "
            "planned on it, until gc has run on two later days: let gc run, or compact less often; nothing was changed",
            "LEDGER_TOO_MANY_GENERATIONS",
        )


def state_slices(log: Log, view: View, start: Position, end: Position, around_lost: bool = False) -> list[Slice]:
    """The state of a topic at ``end``: the last record of every key, and the records without one. Writes nothing.
    ``around_lost``: damaged entries that were given up by name are left out."""
    keyed = _keyed_slices(log, view, start, end, around_lost=around_lost)
    records, row, pieces = RowNumbers(survivors_of(keyed).records), 0, []
    for piece in keyed.pieces:
        chosen = records.take(row, row + piece.rows)
        row += piece.rows
        if len(chosen):
            pieces.append(_only(piece, chosen))
    return pieces


def _keyed_slices(log: Log, view: View, start: Position, end: Position, *, around_lost: bool) -> KeyedSlices:
    """What has to be read for the state at ``end``: a generation, and the log since."""
    check_compactable(log)
    source = ReadSource(log, view, newest(log, view, end), around_lost=around_lost)
    return keyed(log, view, tuple(joined(source.slices(start, end))))


def keyed(log: Log, view: View, pieces: tuple[Slice, ...]) -> KeyedSlices:
    """Pieces with what is known of the topic's keys."""
    schema = log.schema(view.head.schema_id)
    return KeyedSlices(log.storage.root, log.topic.uuid, schema, log.topic.key, log.topic.version_column, pieces)


def _only(piece: Slice, rows: pa.Array) -> Slice:
    """The piece with some of its records, given by their numbers in it."""
    indexes = pa.arange(piece.start, piece.stop)
    if piece.mask:
        indexes = indexes.filter(mask.unpack(piece.mask, piece.all_rows).slice(piece.start, piece.width))
    chosen = pc.is_in(pa.arange(0, piece.all_rows), value_set=indexes.take(rows))
    return piece.choose(chosen) if isinstance(piece, LogSlice) else replace(piece, mask=mask.pack(chosen))
