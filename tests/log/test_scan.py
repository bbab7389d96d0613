"""Planning: positions, limits and partitions are exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import DataLoss, InvalidInput
from pyspark_ledger.log import places, scan
from pyspark_ledger.log.slices import EntrySlice
from pyspark_ledger.log.sources import ReadSource
from pyspark_ledger.metadata.records import FileRef
from tests.support.worlds import SCHEMA, World, append, stage


@pytest.fixture
def log(tmp_path):
    """11 commits of two entries of 3 and 2 rows, over three ledgers."""
    log = World(tmp_path).log()
    for commit in range(11):
        entries = (
            stage(log, *(commit * 10 + i for i in range(3))),
            stage(log, *(commit * 10 + 5 + i for i in range(2))),
        )
        protocol.append(log, StagedBatch(log.clock.new_id(), entries, SCHEMA))
    return log


def positions(log):
    view = log.view()
    return [
        Position(piece.ledger, piece.first_entry, index)
        for piece in scan.slices(log, view, Position(0, 0, 0), view.head.end)
        for index in range(piece.start, piece.stop)
    ]


def test_every_interval_is_half_open_and_complete(log):
    view, all_positions = log.view(), [*positions(log), log.view().head.end]
    for i, start in enumerate(all_positions):
        for j in range(i, len(all_positions), 7):
            rows = sum(piece.rows for piece in scan.slices(log, view, start, all_positions[j]))
            assert rows == j - i == scan.count(log, view, start, all_positions[j])


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 1000])
def test_a_row_limit_is_honest_entries_are_split(log, limit):
    view, at, steps = log.view(), Position(0, 0, 0), []
    while at < view.head.end:
        after, rows = ReadSource(log, view).advance(at, view.head.end, max_rows=limit)
        assert rows == sum(piece.rows for piece in scan.slices(log, view, at, after))
        if rows == 0:
            break
        steps.append(rows)
        at = after
    assert sum(steps) == 55
    assert set(steps[:-1]) <= {limit}


def test_a_byte_limit_is_honest_and_never_stops_the_stream(log):
    view, at, total = log.view(), Position(0, 0, 0), 0
    limit = 300
    for _ in range(200):
        after, rows = ReadSource(log, view).advance(at, view.head.end, max_bytes=limit)
        stored = sum(piece.bytes for piece in scan.slices(log, view, at, after))
        assert rows == 1 or stored <= limit
        total, at = total + rows, after
        if rows == 0:
            break
    assert total == 55


def test_positions_have_one_spelling(log):
    last_of_entry = Position(0, 0, 2)
    _, piece = last_of_entry, next(scan.slices(log, log.view(), last_of_entry, log.view().head.end))
    assert piece.first(1).end == Position(0, 1, 0)
    with pytest.raises(InvalidInput, match="ledger:entry:index"):
        Position.parse("3:17")


def test_bytes_before_a_position_grow_with_it_and_are_all_at_the_end(log):
    view = log.view()
    found = [scan.bytes_before(log, view, position) for position in [*positions(log), view.head.end]]
    assert (found[0], found[-1]) == (0, view.head.bytes)
    assert found == sorted(found)
    entry = found[3] - found[0]  # the first entry has three rows, each a third of its bytes
    assert found[:4] == [0, entry // 3, entry * 2 // 3, entry]


def test_a_position_past_the_end_is_data_loss_by_name(log):
    end = log.view().head.end
    with pytest.raises(DataLoss, match="LEDGER_POSITION_PAST_END"):
        list(scan.slices(log, log.view(), Position(end.ledger, end.entry + 1, 0), end))


def test_time_finds_the_first_record_at_or_after_it(log):
    view = log.view()
    assert places.at_time(log, view, 0) == Position(0, 0, 0)
    assert places.at_time(log, view, 2**60) == view.head.end
    append(log, 1)
    last = log.view().open_commits[-1]
    assert places.at_time(log, log.view(), last.publish_ms) <= Position(last.ledger, last.first_entry, 0)


def a_slice(entry: int, rows: int, length: int) -> EntrySlice:
    return EntrySlice(
        FileRef(0, b"", length, 0, 0), 0, rows, rows, b"", 0, entry, "", "", False, 0, 0, None, 0, "", None
    )


@given(
    st.lists(st.tuples(st.integers(1, 500_000), st.integers(300, 50_000_000)), max_size=20),
    st.integers(1 << 20, 64 << 20),
    st.integers(1, 12),
)
def test_partitions_are_contiguous_complete_and_at_least_as_many_as_asked(entries, target, wanted):
    pieces = [a_slice(i, rows, length) for i, (rows, length) in enumerate(entries)]
    parts = scan.share(pieces, target, wanted)
    flat = [(p.first_entry, row) for part in parts for p in part for row in (p.start, p.stop)]
    assert flat == sorted(flat)
    assert sum(p.rows for part in parts for p in part) == sum(p.rows for p in pieces)
    for before, after in zip(
        (p for part in parts for p in part), [p for part in parts for p in part][1:], strict=False
    ):
        assert after.begin == before.end
    assert all(part for part in parts)
    assert len(parts) >= min(wanted, sum(p.rows for p in pieces))


def test_partitions_are_balanced_by_bytes():
    parts = scan.share([a_slice(0, 4_000_000, 400 << 20)], 64 << 20, 1)
    sizes = [sum(p.bytes for p in part) for part in parts]
    assert len(parts) in (6, 7)
    assert max(sizes) < 1.4 * min(sizes[:-1])


def test_small_entries_share_a_task():
    assert len(scan.share([a_slice(i, 10, 2000) for i in range(100)], 4 << 20, 1)) == 1


@pytest.mark.parametrize("wanted", [2, 3, 8])
def test_min_partitions_splits_even_a_small_read(wanted):
    assert len(scan.share([a_slice(0, 1000, 20_000)], 4 << 20, wanted)) == wanted
