"""An entry may be a range of rows in a file that holds many entries: nothing that a reader sees depends on it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.base.position import Position
from pyspark_ledger.files import mask
from pyspark_ledger.log import scan
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.log.sources import ReadSource
from pyspark_ledger.metadata.records import Entry
from tests.support.worlds import SCHEMA, World, append, stage

SIZES = (3, 1, 5)


@pytest.fixture
def worlds(tmp_path) -> tuple[World, World]:
    """The same records: in a file for each entry, and all in one."""
    own, shared = (World(tmp_path / name) for name in ("own", "shared"))
    log, numbers = shared.log(), iter(range(sum(SIZES)))
    file = stage(log, *range(sum(SIZES))).file
    kept = mask.pack(pa.array([True, False, True]))
    for number, size in enumerate(SIZES):
        mine = [next(numbers) for _ in range(size)]
        masked = {"masked": 1, "mask": kept} if number == 0 else {}
        commit(own.log(), replace(stage(own.log(), *mine), **masked))
        commit(log, Entry(file, size, first_row=mine[0], file_rows=sum(SIZES), **masked))
    append(own.log(), 9), append(log, 9)
    return own, shared


def commit(log, entry: Entry) -> None:
    protocol.append(log, StagedBatch(log.clock.new_id(), (entry,), SCHEMA))


def records(world: World, start: str = "earliest") -> list[tuple[Position, int]]:
    return [(record.position, record["n"]) for record in Reader(world.log(), start, "latest")]


def test_records_positions_and_masks_are_the_same(worlds):
    own, shared = worlds
    assert records(shared) == records(own)
    for position, _ in records(own):
        assert records(shared, str(position)) == records(own, str(position))


def test_all_at_once_as_one_by_one(worlds):
    """Pieces of one file are read together: the reader is where it would be without that, after every batch."""
    own, shared = worlds
    for start, _ in records(own):
        reader = Reader(shared.log(), str(start), "latest")
        numbers = [n for batch in reader.batches() for n in batch.column("n").to_pylist()]
        assert numbers == [n for _, n in records(own, str(start))]
        assert reader.position == shared.log().view().head.end
        one_by_one = [Reader(world.log(), str(start), "latest") for world in worlds]
        seen = [[(reader.position, record["n"]) for record in reader] for reader in one_by_one]
        assert seen[0] == seen[1]


def test_ordinals_and_limits_by_rows_are_the_same(worlds):
    def ends(world: World) -> list[object]:
        log = world.log()
        view = log.refresh()
        source = ReadSource(log, view)
        positions = [scan.position_at(log, view, ordinal) for ordinal in range(view.head.records)]
        return [positions, [source.advance(p, view.head.end, max_rows=2) for p in positions]]

    own, shared = worlds
    assert ends(shared) == ends(own)


def test_bytes_are_those_of_the_entry_not_of_the_whole_file(worlds):
    _, shared = worlds
    log = shared.log()
    view = log.refresh()
    *pieces, last = scan.slices(log, view, Position(0, 0, 0), view.head.end)
    whole = pieces[0].file.length
    assert sum(piece.bytes for piece in pieces) <= whole
    assert view.head.bytes <= whole + last.bytes
    limited, rows = ReadSource(log, view).advance(Position(0, 2, 0), view.head.end, max_bytes=pieces[2].bytes // 2)
    assert (limited, rows) == (Position(0, 2, 2), 2)
