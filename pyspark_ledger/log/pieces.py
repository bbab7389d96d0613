"""From commits to slices: what a ledger consists of for its readers.

A leaf of the index lists a thousand commits. Who reads all of them needs none as a record of Python: the slices come
straight from its columns. Entries that share a file are one slice, the others one each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from itertools import accumulate, count, pairwise, repeat
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.base.limits import MOST_MASKED_ROWS
from pyspark_ledger.files import mask
from pyspark_ledger.files.topicfiles import RowCodec, entry_columns, listed_columns, to_list
from pyspark_ledger.log.slices import ENTRIES, EntrySlice, LogSlice, SharedSlice
from pyspark_ledger.metadata.records import Commit, Entry, FileRef

_first_entry = attrgetter("first_entry")
_OF_FILE = ("epoch", "uid", "length", "tail_length", "tail_hash")  # fields of a FileRef, in their order,
_OF_LOG = ("sequence_column", "producer_column", "mints")  # of a LogSlice, as its commit has them,
_COUNTED = ("first_ordinal", "first_token")  # and as the entries before it in the commit have to be counted,
_OF_ENTRY = ("publish_ms", "producer", "sequence")  # of an EntrySlice
_OF_COMMIT = (*_OF_LOG, *_OF_ENTRY)
_ALIKE = ("ledger", "sequence_column", "producer_column", "mints")  # in all entries of a SharedSlice, as its fields are


def pieces_of_leaf(codec: RowCodec[Commit], table: pa.Table) -> list[LogSlice | Commit]:
    """The slices of the commits in a leaf, in order. A commit whose entries are in a file of their own is there itself:
    that file is read when they are wanted."""
    commits = pa.RecordBatch.from_pydict(codec.columns(table))
    has_list = commits["entries_file"].is_valid()
    if not has_list.true_count:
        return [*_slices(_inline(commits))]
    listed = commits.filter(has_list)
    records = codec.load_all(dict(zip(listed.schema.names, listed.columns, strict=True)), len(listed))
    slices = _slices(_inline(commits.filter(pc.invert(has_list))))
    return sorted([*records, *slices], key=_first_entry)  # one without entries comes before what has its number


def slices_of_list(commit: Commit, table: pa.Table) -> list[LogSlice]:
    """Those of a commit whose entries are in a file of their own."""
    rows = table.num_rows
    same = {name: getattr(commit, name) for name in ("ledger", *_OF_COMMIT)}
    types = {"sequence": pa.int64()}  # it may be null
    columns = {name: pa.repeat(pa.scalar(value, types.get(name)), rows) for name, value in same.items()}
    columns["entry"] = pa.arange(commit.first_entry, commit.first_entry + rows)
    own = listed_columns(table)
    before = _records_before(own).slice(0, rows)
    columns["first_ordinal"] = pc.add_checked(before, commit.records_before)
    columns["first_token"] = pc.add_checked(before, commit.tokens_before)
    return _slices(_entries(columns, own))


def slices_of_commit(commit: Commit) -> list[LogSlice]:
    """Those of a commit in memory."""
    before = accumulate((entry.kept for entry in commit.entries), initial=0)
    numbered = zip(count(commit.first_entry), commit.entries, before, strict=False)
    return _with_records([_slice_of(commit, *each) for each in numbered])


def _slice_of(commit: Commit, number: int, entry: Entry, before: int) -> LogSlice:
    """Of one entry, and how many records of its commit are before it. No entry of an open ledger shares its file, so
    there is nothing to be won by doing many at once."""
    piece = EntrySlice(
        entry.file, 0, entry.records, entry.records, entry.mask, commit.ledger, number, commit.sequence_column,
        commit.producer_column, commit.mints, commit.records_before + before, commit.tokens_before + before, None,
        commit.publish_ms, commit.producer, commit.sequence,
    )  # fmt: skip
    return _in_shared_file(piece, entry.first_row, entry.file_rows) if entry.file_rows else piece


def _in_shared_file(piece: EntrySlice, first_row: int, file_rows: int) -> SharedSlice:
    values = (first_row, first_row + piece.stop, piece.publish_ms, piece.producer, piece.sequence)
    entries = pa.RecordBatch.from_pylist([dict(zip(ENTRIES.names, values, strict=True))], schema=ENTRIES)
    kept = mask.joined([(first_row, mask.unpack(piece.mask, piece.stop))], file_rows) if piece.mask else b""
    return SharedSlice(
        piece.file, first_row, first_row + piece.stop, file_rows, kept, piece.ledger, piece.first_entry,
        piece.sequence_column, piece.producer_column, piece.mints, piece.first_ordinal, piece.first_token,
        None, entries,
    )  # fmt: skip


def _inline(commits: pa.RecordBatch) -> pa.RecordBatch:
    """The entries of commits, each with what it has from its commit."""
    lists = commits["entries"]
    commit = pc.list_parent_indices(lists)
    columns = {name: commits[name].take(commit) for name in ("ledger", *_OF_COMMIT)}
    before = pc.subtract(lists.offsets, lists.offsets[0])  # entries before each commit
    shift = pc.subtract_checked(commits["first_entry"], before.slice(0, len(lists)))
    columns["entry"] = pc.add_checked(shift.take(commit), pa.arange(0, len(commit)))
    own = entry_columns(lists.flatten())
    records = _records_before(own)  # of these commits, before each entry
    of_commit = pc.subtract(records.slice(0, len(commit)), records.take(before.slice(0, len(lists))).take(commit))
    columns["first_ordinal"] = pc.add_checked(commits["records_before"].take(commit), of_commit)
    columns["first_token"] = pc.add_checked(commits["tokens_before"].take(commit), of_commit)
    return _entries(columns, own)


def _records_before(entries: Mapping[str, pa.Array]) -> pa.Array:
    """How many records are in the entries before each, and in all of them."""
    kept = pc.subtract_checked(entries["records"], entries["masked"])
    return pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum_checked(kept)])


def _entries(of_commit: Mapping[str, pa.Array], own: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Entries in order, and where each ends in its file."""
    return pa.RecordBatch.from_pydict({**of_commit, **own, "end_row": pc.add_checked(own["first_row"], own["records"])})


def _slices(entries: pa.RecordBatch) -> list[LogSlice]:
    shares = pc.and_(pc.greater(entries["file_rows"], 0), pc.greater(entries["records"], 0))
    pieces: list[LogSlice] = [*_own(entries.filter(pc.invert(shares)))]
    if shares.true_count:
        pieces += [_shared(run) for run in _runs(entries.filter(shares))]
        pieces.sort(key=_first_entry)
    return _with_records(pieces)


def _with_records(pieces: list[LogSlice]) -> list[LogSlice]:
    return [piece for piece in pieces if piece.rows > 0]


def _own(entries: pa.RecordBatch) -> Iterator[EntrySlice]:
    """Slices of entries that have files of their own."""
    files = map(FileRef, *(to_list(entries[f"file.{name}"]) for name in _OF_FILE))
    records = to_list(entries["records"])
    others = (to_list(entries[name]) for name in ("mask", "ledger", "entry", *_OF_LOG, *_COUNTED))
    own = (to_list(entries[name]) for name in _OF_ENTRY)
    return map(EntrySlice, files, repeat(0), records, records, *others, repeat(None), *own)


def _runs(entries: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Entries that can be read at once: neighbours in the log, whose rows come one after the other in one file."""
    keys = [entries[name] for name in ("file.uid", *_ALIKE)]
    keys += [pc.equal(entries["producer"], ""), pc.subtract(entries["entry"], pa.arange(0, len(entries)))]
    changes = [pc.not_equal(key.slice(1), key.slice(0, len(entries) - 1)) for key in keys]
    changes.append(pc.less(entries["first_row"].slice(1), entries["end_row"].slice(0, len(entries) - 1)))
    cuts = [each + 1 for each in pc.indices_nonzero(reduce(pc.or_, changes)).to_pylist()]
    for first, stop in pairwise([0, *cuts, len(entries)]):
        yield entries.slice(first, stop - first)


def _shared(run: pa.RecordBatch) -> SharedSlice:
    first = run.slice(0, 1).to_pylist()[0]
    file = FileRef(*(first[f"file.{name}"] for name in _OF_FILE))
    start, stop, rows = first["first_row"], run["end_row"][len(run) - 1].as_py(), first["file_rows"]
    entries = pa.RecordBatch.from_arrays([run[name] for name in ENTRIES.names], schema=ENTRIES)
    ledger, sequence_column, producer_column, mints = (first[name] for name in _ALIKE)
    return SharedSlice(
        file, start, stop, rows, _mask(run, stop - start, rows), ledger, first["entry"], sequence_column,
        producer_column, mints, first["first_ordinal"], first["first_token"], None, entries,
    )  # fmt: skip


def _mask(run: pa.RecordBatch, width: int, rows: int) -> bytes:
    """Of the file, from those of the entries."""
    if pc.sum(run["records"]).as_py() == width and not pc.any(pc.not_equal(run["mask"], b"")).as_py():
        return b""  # nearly always
    if not run["end_row"][len(run) - 1].as_py() <= rows <= MOST_MASKED_ROWS:
        raise ValueError(f"entries share a file of {rows} rows that cannot have them")
    entries = zip(*(run[name].to_pylist() for name in ("first_row", "mask", "records")), strict=True)
    return mask.joined(((row, mask.kept(each, records, 0, records)) for row, each, records in entries), rows)
