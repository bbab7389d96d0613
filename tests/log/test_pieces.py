"""Slices from the columns of the index are what a look at every entry, one by one, would find."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.base.token_prefix import first_number
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.files import mask
from pyspark_ledger.files.entryfile import EntryWriter
from pyspark_ledger.log import scan
from pyspark_ledger.log.index import Index, stage_leaf
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.rows import RecordFields, read_slice
from pyspark_ledger.log.slices import EntrySlice, LogSlice, SharedSlice, Slice, joined
from pyspark_ledger.log.sources import ReadSource
from pyspark_ledger.metadata.records import Commit, Entry
from tests.support.worlds import World

COLUMNS = pa.schema([("n", pa.int64()), ("seq", pa.int64()), ("who", pa.string())])
SHARED_ROWS = 200
Found = tuple[Position, int, int, str, int | None, str | None, int | None, int | None]

# -- any log, made of records --------------------------------------------------------------------


@dataclass
class AnyLog:
    """Commits of some sealed ledgers and an open one, as a writer and rewriting could have left them."""

    log: Log
    commits: list[Commit]
    view: View


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    return World(tmp_path_factory.mktemp("pieces"), schema=COLUMNS)


@pytest.fixture(scope="module")
def files(world) -> list[Entry]:
    """Two that entries share. Record n is in row n of the first, in row n - 1000 of the other."""
    return [staged(world.log(), first, SHARED_ROWS) for first in (0, 1000)]


def staged(log: Log, first: int, rows: int) -> Entry:
    writer = EntryWriter(log.storage, log.topic.uuid, 0, COLUMNS, clock=log.clock)
    numbers = list(range(first, first + rows))
    columns = {"n": numbers, "seq": [n * 10 for n in numbers], "who": [f"w{n}" for n in numbers]}
    writer.write(pa.RecordBatch.from_pydict(columns, schema=COLUMNS))
    entry = writer.close()
    assert entry is not None
    return entry


KINDS = st.sampled_from(  # of commits
    [{}, {}, {"producer": "p"}, {"producer": "q", "sequence": 7}, {"mints": True}, {"sequence_column": "seq"},
     {"sequence_column": "seq", "producer_column": "who"}]
)  # fmt: skip
MASKS = st.one_of(st.none(), st.none(), st.lists(st.booleans(), min_size=1, max_size=4))
ENTRIES = st.tuples(st.sampled_from([0, 0, 0, 1, None]), st.integers(1, 4), st.sampled_from([0, 0, 0, 2]), MASKS)
LEDGERS = st.lists(
    st.lists(st.tuples(KINDS, st.lists(ENTRIES, max_size=4), st.booleans()), min_size=1, max_size=5), max_size=4
)


def any_log(world: World, files: list[Entry], ledgers) -> AnyLog:
    log = world.log()
    commits, leaves, number = [], Index(log.files, ()), 0
    spine, records, tokens = (), 0, 0
    for ledger, of_ledger in enumerate(ledgers):
        first, entry_number, rows = len(commits), 0, [0, 0]
        for fields, wanted, is_listed in of_ledger:
            entries = tuple(an_entry(log, files, rows, *each) for each in wanted)
            held = {"entries_file": log.files.stage_entries(entries, 0)} if is_listed else {"entries": entries}
            kept = sum(entry.kept for entry in entries)
            commits.append(
                Commit(
                    number, bytes(16), ledger, entry_number, len(entries), kept, 0, records, 0, number, 0,
                    tokens_before=tokens, **held, **fields,
                )
            )  # fmt: skip
            records, tokens = records + kept, tokens + (kept if "mints" in fields else 0)
            number, entry_number = number + 1, entry_number + len(entries)
        if ledger < len(ledgers) - 1:
            spine = leaves.extended(stage_leaf(log.files, commits[first:], 0), 0, 3)
            leaves = Index(log.files, spine)
    last = len(ledgers) - 1 if ledgers else 0
    opened = tuple(commit for commit in commits if commit.ledger == last)
    next_entry = sum(commit.entry_count for commit in opened)
    head = replace(log.view().head, ledger=last, next_entry=next_entry, index=spine, records=records, tokens=tokens)
    return AnyLog(log, commits, View(head, 0, opened))


def an_entry(log: Log, files: list[Entry], rows: list[int], file: int | None, records: int, gap: int, kept) -> Entry:
    """Of a file of its own, or the next rows of a shared one; after a gap, or all over again: no order is promised."""
    bits = ((kept or [True]) * records)[:records]
    masked = {"masked": bits.count(False), "mask": mask.pack(pa.array(bits))} if not all(bits) else {}
    if file is None:
        return replace(staged(log, 5000, records), **masked)
    first = rows[file] + gap
    rows[file] = (first + records) % (SHARED_ROWS // 3)
    return Entry(files[file].file, records, first_row=first, file_rows=SHARED_ROWS, **masked)


# -- the oracle: every entry, every row --------------------------------------------------------------------


def oracle(found: AnyLog, files: list[Entry]) -> Iterator[Found]:
    ordinal, token = 0, first_number(found.log.topic.uuid)
    for commit in found.commits:
        for number, entry in enumerate(found.log.entries(commit), commit.first_entry):
            first = {files[0].file: 0, files[1].file: 1000}.get(entry.file, 5000) + entry.first_row
            for index in range(entry.records):
                if mask.count(entry.mask, entry.records, index, index + 1):
                    position, n = Position(commit.ledger, number, index), first + index
                    yield (
                        position,
                        n,
                        commit.publish_ms,
                        f"w{n}" if commit.producer_column else commit.producer,
                        n * 10 if commit.sequence_column else commit.sequence,
                        f"{found.log.topic.uuid}:{position}" if commit.mints else None,
                        ordinal,
                        token if commit.mints else None,
                    )
                    ordinal, token = ordinal + 1, token + commit.mints


def records(log: Log, pieces: Iterable[Slice]) -> list[Found]:
    rows = (rows for piece in pieces for rows in read_slice(log.storage, log.topic.uuid, piece, COLUMNS, with_ids=True))
    return [plain(fields) for each in rows for fields in each.records()]


def plain(fields: RecordFields) -> Found:
    position, value, published, *others = fields
    return position, value["n"], round(published.timestamp() * 1000), *others


POSITIONS = st.builds(Position, st.integers(0, 4), st.integers(0, 12), st.integers(0, 5))
few = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(LEDGERS, POSITIONS, POSITIONS, st.integers(1, 6))
@few
def test_any_part_of_any_log_is_read_as_entry_by_entry_I2(world, files, ledgers, start, end, partitions):
    found = any_log(world, files, ledgers)
    log, view = found.log, found.view
    start, end = min(start, view.head.end), min(end, view.head.end)
    expected = [record for record in oracle(found, files) if start <= record[0] < end]
    pieces = list(scan.slices(log, view, start, end))
    assert records(log, pieces) == expected
    assert sum(piece.rows for piece in pieces) == len(expected)
    assert records(log, joined(pieces)) == expected
    assert records(log, joined(pieces, at_most=3)) == expected
    shared_out = scan.share(list(joined(pieces)), 1, partitions)
    assert records(log, (pickle.loads(pickle.dumps(piece)) for part in shared_out for piece in part)) == expected


@given(LEDGERS, POSITIONS, st.integers(1, 9))
@few
def test_a_limit_ends_where_the_next_record_is_as_entry_by_entry(world, files, ledgers, start, limit):
    found = any_log(world, files, ledgers)
    view = found.view
    start = min(start, view.head.end)
    left = [record for record in oracle(found, files) if start <= record[0]]
    after, rows = ReadSource(found.log, view).advance(start, view.head.end, max_rows=limit)
    assert rows == min(limit, len(left))
    assert records(found.log, scan.slices(found.log, view, after, view.head.end)) == left[rows:]
    if rows:
        assert left[rows - 1][0] < after <= (left[rows][0] if rows < len(left) else view.head.end)


@given(LEDGERS)
@few
def test_the_position_after_every_record_is_that_of_the_next_one_or_of_the_next_entry(world, files, ledgers):
    found = any_log(world, files, ledgers)
    positions = [record[0] for record in oracle(found, files)]
    after = []
    for piece in joined(scan.slices(found.log, found.view, EARLIEST, found.view.head.end)):
        assert isinstance(piece, LogSlice)
        for rows in read_slice(found.log.storage, found.log.topic.uuid, piece, COLUMNS):
            after += [piece.after(row + 1) for row in rows.indexes.to_pylist()]
    next_entries = [Position(position.ledger, position.entry + 1, 0) for position in positions]
    following = [*positions[1:], Position(99, 0, 0)]
    assert after == [min(each) for each in zip(following, next_entries, strict=False)]


# -- how many slices, and what they carry --------------------------------------------------------------------


def rewritten(world: World, files: list[Entry], entries: int, **fields) -> AnyLog:
    """A sealed ledger with a commit for each entry of two rows, all in one file; and an open one."""
    of_ledger = [(fields, [(0, 2, 0, None)], False)] * entries
    return any_log(world, files, [of_ledger, [({}, [], False)]])


def test_a_file_is_one_slice_and_a_part_of_it_carries_only_its_entries(world, files):
    found = rewritten(world, files, 30, producer="p")
    (piece,) = scan.slices(found.log, found.view, EARLIEST, found.view.head.end)
    assert isinstance(piece, SharedSlice)
    assert (piece.rows, len(piece.entries), piece.mask) == (60, 30, b"")
    part = pickle.loads(pickle.dumps(piece.part(21, 24)))
    assert (part.first_entry, len(part.entries), part.begin, part.end) == (
        10,
        2,
        Position(0, 10, 1),
        Position(0, 12, 0),
    )
    assert len(pickle.dumps(piece.part(21, 24))) < len(pickle.dumps(piece)) - 20 * 8 * 4


def test_a_commit_with_many_entries_is_read_when_it_is_wanted_and_with_its_neighbours(world, files):
    commit = ({}, [(0, 2, 0, None)] * 3, True)
    found = any_log(world, files, [[commit] * 5, [({}, [], False)]])
    log, opened = world.log(), []
    fetch = log.files.fetch_table
    log.files.fetch_table = lambda ref: opened.append(ref) or fetch(ref)
    pieces = scan.slices(log, found.view, Position(0, 3, 0), Position(0, 9, 0))
    next(pieces)
    lists = [commit.entries_file for commit in found.commits]
    assert [ref for ref in opened if ref in lists] == lists[1:2]
    assert [len(piece.entries) for piece in joined([*log.slices_of(found.commits[1]), *pieces])] == [6]
    assert [ref for ref in opened if ref in lists] == lists[1:3]


def test_a_ledger_after_the_end_is_not_looked_at(world, files):
    found = any_log(world, files, [[({}, [(0, 1, 0, None)], False)]] * 4)
    log, opened = world.log(), []
    pieces = Index.pieces
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Index, "pieces", lambda index, leaf: opened.append(leaf.ledger) or pieces(index, leaf))
        list(scan.slices(log, found.view, Position(1, 0, 0), Position(2, 0, 0)))
    assert opened == [1]


# -- files of earlier code, and damaged ones --------------------------------------------------------------------


def leaf_of(world: World, files: list[Entry]) -> tuple[Log, pa.Table]:
    log = world.log()
    commit = Commit(0, bytes(16), 0, 0, 1, 2, 0, 0, 0, 9, 0, (replace(files[0], first_row=0),))
    return log, log.files.fetch_table(stage_leaf(log.files, [commit], 0).file)


def pieces(log: Log, table: pa.Table) -> list[LogSlice | Commit]:
    row = stage_leaf(log.files, [Commit(0, bytes(16), 0, 0, 0, 0, 0, 0, 0, 0, 0)], 0)
    return Index(log.files, ()).pieces(replace(row, file=log.files.stage_table(table, 0)))


def of_entries(table: pa.Table, change) -> pa.Table:
    """With other columns of its entries."""
    lists = table["entries"].combine_chunks()
    structs = lists.flatten()
    columns = change(dict(zip((field.name for field in structs.type), structs.flatten(), strict=True)))
    changed = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    at = table.schema.get_field_index("entries")
    return table.set_column(at, "entries", pa.ListArray.from_arrays(lists.offsets, changed))


def test_a_leaf_from_before_a_field_was_added_has_its_default(world, files):
    log, table = leaf_of(world, files)
    older = of_entries(
        table.drop_columns(["mints", "sequence_column", "sequence", "tokens_before"]),
        lambda columns: {name: columns[name] for name in ("file", "records", "masked")},
    )
    assert pieces(log, older) == pieces(log, table)
    assert isinstance(pieces(log, older)[0], EntrySlice)


@pytest.mark.parametrize("lost", ["ledger", "publish_ms", "first_entry"])
def test_a_leaf_that_lacks_a_column_is_damaged_by_name(world, files, lost):
    log, table = leaf_of(world, files)
    with pytest.raises(CorruptData, match=rf"\.arrow is damaged: there is no column '{lost}'"):
        pieces(log, table.drop_columns([lost]))


@pytest.mark.parametrize(
    "change",
    [
        lambda columns: columns | {"records": columns["records"].cast(pa.string())},
        lambda columns: columns | {"records": pc.if_else(False, columns["records"], None)},
        lambda columns: columns | {"file": pa.nulls(1, columns["file"].type)},
        lambda columns: columns | {"first_row": pa.array([(1 << 63) - 1])},
        lambda columns: columns | {"first_row": pa.array([1]), "file_rows": pa.array([9]), "mask": pa.array([b"m"])},
        lambda columns: columns | {"file_rows": pa.array([1 << 50]), "mask": pa.array([b"m"])},
        lambda columns: columns | {"mask": pa.array([b"no mask"])},
        lambda columns: (
            columns | {"mask": pa.array([b"no mask"]), "first_row": pa.array([1]), "file_rows": pa.array([9])}
        ),
        lambda columns: {name: column for name, column in columns.items() if name != "records"},
    ],
)
def test_entries_that_cannot_be_are_damage_by_name(world, files, change):
    log, table = leaf_of(world, files)
    with pytest.raises(CorruptData, match=r"damaged"):
        pieces(log, of_entries(table, change))


def test_an_entry_that_is_missing_is_damage_by_name(world, files):
    log, table = leaf_of(world, files)
    at = table.schema.get_field_index("entries")
    missing = pa.array([[None]], table.schema.field("entries").type)
    with pytest.raises(CorruptData, match="an entry is missing"):
        pieces(log, table.set_column(at, "entries", missing))
