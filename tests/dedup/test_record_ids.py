"""Records that bring their own sequence ids: whatever is new gets in, once; nothing else does (I1, I5)."""

from __future__ import annotations

import threading
from datetime import timedelta
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import ByBatchId, StagedBatch
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.position import Position
from pyspark_ledger.client import client_of
from pyspark_ledger.dedup import sequences
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.dedup.id_ranges import LEFT_OUT_TABLES, RANGES, IdColumns, IdRanges
from pyspark_ledger.dedup.producers import Producers
from pyspark_ledger.errors import Conflict, InvalidInput
from pyspark_ledger.files import mask
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log import places, policies, scan
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.log.policies import UNCHANGED
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.log.sources import ReadSource
from pyspark_ledger.metadata.port import CommitKey, DedupKey, NamespaceKey
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from pyspark_ledger.zk_metadata import codec
from tests.support import examples
from tests.support.worlds import ID_COLUMNS, IDS, SMALL, World, append, append_ids, forget, read_ids, stage_ids


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, schema=IDS)


def ids_of(log):
    return [(who, seq) for who, seq, _ in read_ids(log)]


def last_ids(log):
    log.refresh(sync=True)
    return {state.name: state.sequence for state in log.producers()[1].all()}


def test_a_reader_looks_for_its_position_only_when_it_is_asked_where_it_is(world, monkeypatch):
    """Looking for the next record that is not masked takes longer the longer the entry is."""
    log = world.log()
    append_ids(log, [[("a", 1)]])
    append_ids(log, [[("a", n) for n in range(100)]])
    searched = []
    skip = mask.skip
    monkeypatch.setattr(mask, "skip", lambda *where: searched.append(where) or skip(*where))
    reader = Reader(log, "earliest", "latest")
    records = iter(reader)
    assert [next(records)["seq"] for _ in range(50)] == list(range(1, 51))
    assert searched == []
    assert reader.position == Position(0, 1, 51)
    assert [record["seq"] for record in records] == list(range(51, 100))
    assert (reader.position, len(searched)) == (Position(0, 2, 0), 1)


# -- what gets in ---------------------------------------------------------------------------------------------------


def test_a_batch_that_mixes_old_and_new_ids_loses_only_the_old_ones_pulsar_6273(world):
    log = world.log()
    append_ids(log, [[("a", 1), ("a", 2)]])
    again = append_ids(log, [[("a", 1), ("a", 2), ("a", 3), ("b", 1)]])
    assert (again.records, again.dropped, again.duplicate) == (2, 2, False)
    assert ids_of(log) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]


def test_a_resent_batch_with_other_bounds_keeps_what_is_above_the_highest_pulsar_5476(world):
    log = world.log()
    append_ids(log, [[("a", 5), ("a", 6), ("a", 7)]])
    append_ids(log, [[("a", 6), ("a", 7), ("a", 8)]])
    append_ids(log, [[("a", 4), ("a", 9)]])
    assert ids_of(log) == [("a", n) for n in (5, 6, 7, 8, 9)]


def test_order_inside_a_batch_and_spread_over_tasks_drop_nothing_I1(world):
    log = world.log()
    append_ids(log, [[("a", 9), ("a", 1)], [("b", 5)], [("a", 5), ("b", 2)]])
    assert ids_of(log) == [("a", 9), ("a", 1), ("b", 5), ("a", 5), ("b", 2)]
    assert last_ids(log) == {"a": 9, "b": 5}


def test_of_equal_ids_in_a_batch_the_first_wins_in_a_task_and_across_tasks_I5(world):
    log = world.log()
    appended = append_ids(log, [[("a", 1), ("a", 2), ("a", 1)], [("a", 3), ("a", 2)], [("a", 3)]])
    assert ids_of(log) == [("a", 1), ("a", 2), ("a", 3)]
    assert [entry.kept for entry in appended.entries] == [2, 1]  # a task with no new row leaves no entry
    assert appended.dropped == 3


def test_tasks_whose_ids_meet_only_at_the_edge_share_that_id_I5(world):
    append_ids(world.log(), [[("a", 1), ("a", 2)], [("a", 2), ("a", 3)]])
    assert [sequence for _, sequence, _ in read_ids(world.log())] == [1, 2, 3]


def test_ranges_of_one_producer_in_one_run_are_compared_I5(world, monkeypatch):
    """A task that had more rows than one run has several ranges of a producer, which may come as one array."""
    two = pa.table([["a", "a"], [1, 2], [2, 3], [True, True]], schema=RANGES)
    monkeypatch.setattr(IdRanges, "table", lambda self: two)
    append_ids(world.log(), [[("a", 1), ("a", 2), ("a", 2), ("a", 3)]])
    assert [sequence for _, sequence, _ in read_ids(world.log())] == [1, 2, 3]


def test_old_records_beside_new_ones_of_another_do_not_put_the_last_id_back_I5(world):
    append_ids(world.log(), [[("a", number) for number in range(5)]])
    append_ids(world.log(), [[("a", 1), ("b", 1)]])
    assert append_ids(world.log(), [[("a", 3)]]).duplicate


def test_a_batch_of_duplicates_makes_no_commit(world):
    log = world.log()
    append_ids(log, [[("a", 1)], [("b", 1)]])
    before = log.view().head
    again = append_ids(world.log(), [[("b", 1), ("a", 1)]])
    assert (again.duplicate, again.dropped, again.records) == (True, 2, 0)
    assert log.refresh(sync=True).head == before


def test_holes_are_fine_and_any_whole_number_is_an_id(world):
    log = world.log()
    ids = [-(2**63), -7, 0, 10**12, 2**63 - 1]
    for number in ids:
        append_ids(log, [[("a", number)]])
    append_ids(log, [[("a", number) for number in ids]])
    assert [seq for _, seq in ids_of(log)] == ids


def test_two_overlapping_writers_with_old_pictures_add_nothing_twice_I5(world):
    """Both stage before either commits; the second is judged again, row by row, from what the first left."""
    one, two = world.log(), world.log()
    for log in (one, two):
        log.producers()
    append_ids(one, [[("a", n) for n in range(10)], [("b", n) for n in range(5)]])
    append_ids(two, [[("a", n) for n in range(5, 15)], [("b", n) for n in range(8)]])
    assert sorted(ids_of(world.log())) == [("a", n) for n in range(15)] + [("b", n) for n in range(8)]


def test_tasks_that_know_the_state_do_not_write_what_is_in_the_log(world):
    log = world.log()
    append_ids(log, [[("a", 1), ("b", 1)]])
    known = log.producers()[1].known_sequences(100)
    before = world.files()
    staged = stage_ids(log, [[("a", 1), ("b", 1)]], known=known)
    assert (staged.entries, world.files()) == ((), before)
    (entry,) = stage_ids(log, [[("a", 1), ("b", 2), ("c", 1)]], known=known).entries
    assert entry.records == 2


def test_what_tasks_are_told_is_bounded_and_a_large_state_is_not_even_loaded(world, monkeypatch):
    log = world.log()
    append_ids(log, [[("a", 1), ("b", 2)]])
    assert log.known_sequences(2).to_pylist() == [{"producer": "a", "sequence": 1}, {"producer": "b", "sequence": 2}]
    assert log.known_sequences(2, "b").to_pylist() == [{"producer": "b", "sequence": 2}]
    assert log.known_sequences(2, "c").to_pylist() == []
    assert log.known_sequences(1) is None
    append_ids(log, [[(f"device-{number}", 1) for number in range(5_000)]])  # their highest ids are in a file
    reader = world.log()
    monkeypatch.setattr(Producers, "load", None)
    assert reader.known_sequences(2) is None


def test_what_tasks_left_out_is_not_lost_when_its_producer_is_let_go_meanwhile_I1(world):
    log = world.log()
    append_ids(log, [[("a", 1)]])
    known = log.producers()[1].known_sequences(100)
    batch = stage_ids(log, [[("a", 1)]], known=known)
    again = protocol.append(log, batch)
    assert (again.duplicate, again.dropped) == (True, 1)
    forget(log, "a")
    with pytest.raises(Conflict, match="LEDGER_RETRY"):
        protocol.append(log, batch)


# -- against a model ------------------------------------------------------------------------------------------------

ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), max_size=12)
BATCHES = st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=8)


def model(batches):
    """PIP-6 in ten lines: what the log must hold, and the last id of every producer."""
    log, last = [], {}
    for number, tasks in enumerate(batches):
        before, seen = dict(last), set()
        for who, seq in (row for rows in tasks for row in rows):
            if seq > before.get(who, -1) and (who, seq) not in seen:
                log.append((who, seq, str(number)))
                seen.add((who, seq))
                last[who] = max(seq, last.get(who, -1))
    return log, last


@settings(max_examples=examples(150), deadline=None)
@given(batches=BATCHES, inline=st.booleans(), many=st.booleans(), data=st.data())
def test_any_batches_in_any_order_give_the_models_log_I1_I2_I5(tmp_path_factory, batches, inline, many, data):
    with mock.patch.object(sequences, "_MANY", 1 if many else 10**9):  # a batch of many producers is looked up at once
        check_against_the_model(tmp_path_factory.mktemp("w"), batches, inline, data)


def check_against_the_model(folder, batches, inline, data):
    limits = (
        SMALL if inline else Limits(4, index_fanout=3, inline_entries=0, inline_mask_bytes=0, inline_producers_bytes=0)
    )
    world = World(folder, limits, schema=IDS)
    log = world.log()
    for number, tasks in enumerate(batches):
        append_ids(log if number % 3 else world.log(), tasks, str(number))
    wanted, last = model(batches)
    fresh = world.log()
    assert read_ids(fresh) == wanted
    assert last_ids(fresh) == last
    view = fresh.view()
    assert view.head.records == len(wanted)
    check_limits_and_positions(fresh, view, wanted, data.draw(st.integers(1, 5)))


def test_very_many_producers_are_as_exact_as_few_I5(world):
    """Names in other orders, forgotten ones, new ones, old and repeated ids: the whole state is compared each time."""
    log, last = world.log(), {}
    names = [f"device-{n}" for n in range(3_000)]
    for batch, turn in enumerate((1, -1, 1, -1)):
        tasks = [names[:2_000][::turn], names[: 1_500 + 500 * batch][::-turn]]  # most are in both
        rows = [[(who, 2 * batch + task) for who in each] for task, each in enumerate(tasks)]
        rows[1] += rows[0][:batch]  # and a few ids twice
        appended = append_ids(log, [*rows, [("device-7", 0)]])  # which is old from the second batch on
        assert appended.dropped == batch + 1
        for who, sequence in [*rows[0], *rows[1]]:
            last[who] = max(sequence, last.get(who, -1))
        for gone in (names[batch], "device-7"):
            forget(log, gone)
            del last[gone]
        assert {state.name: state.sequence for state in log.producers()[1].all()} == last
        assert last_ids(world.log()) == last
        append_ids(log, [[("device-7", 0)]])
        last["device-7"] = 0
        assert append_ids(log, [[("device-7", 0)]]).duplicate


def check_limits_and_positions(log, view, wanted, rows):
    """A limited read takes exactly as many records as it says, wherever masked rows lie, and misses none."""
    position, done = places.earliest(view), 0
    while done < len(wanted):
        after, taken = ReadSource(log, view).advance(position, view.head.end, max_rows=rows)
        assert taken == min(rows, len(wanted) - done)
        assert read_ids(log, position, after) == wanted[done : done + taken]
        assert scan.count(log, view, position, after) == taken
        position, done = after, done + taken
    assert scan.count(log, view, position, view.head.end) == 0


@given(st.lists(st.booleans(), min_size=1, max_size=300), st.data())
def test_a_mask_counts_and_skips_as_a_list_does(kept, data):
    packed = mask.pack(pa.array(kept))
    assert mask.unpack(packed, len(kept)).to_pylist() == kept
    start = data.draw(st.integers(0, len(kept)))
    stop = data.draw(st.integers(start, len(kept)))
    number = data.draw(st.integers(0, len(kept)))
    assert mask.count(packed, len(kept), start, stop) == sum(kept[start:stop])
    left = [index for index in range(start, len(kept)) if kept[index]]
    assert mask.skip(packed, len(kept), start, number) == (left[number] if number < len(left) else len(kept))


# -- state, snapshots, recovery ---------------------------------------------------------------------------------------


def test_snapshots_move_on_and_recovery_replays_at_most_one_interval_pulsar_7345_20951(world):
    log = world.log()
    for number in range(23):
        append_ids(log, [[("a", number), (f"p{number}", 0)]])
        snapshot = log.metadata.read(DedupKey(world.topic.uuid)).record
        head = log.refresh(sync=True).head
        assert snapshot.next_commit == head.ledger_first_commit  # never more than it has seen
        assert head.next_commit - snapshot.next_commit <= SMALL.commits_per_ledger
        assert snapshot.properties.get("a", -1) == head.ledger_first_commit - 1
        assert last_ids(world.log()) == {"a": number} | {f"p{n}": 0 for n in range(number + 1)}


def test_the_interval_between_snapshots_is_a_policy(world):
    log = world.log()
    policies.change(log, policies.Changes(snapshot_commits=2))
    for number in range(7):
        append_ids(log, [[("a", number)]])
    assert log.refresh(sync=True).head.ledger == 3


def test_recovery_reads_no_data(world, monkeypatch):
    log = world.log()
    for number in range(6):
        append_ids(log, [[("a", number), ("b", number)]])
    monkeypatch.setattr("pyspark_ledger.dedup.record_ids.EntryReader", None)
    assert last_ids(world.log()) == {"a": 5, "b": 5}


def test_two_recoveries_at_once_give_one_state_pulsar_25954(world):
    log = world.log()
    for number in range(10):
        append_ids(log, [[(f"p{number}", number)]])
    found, failures = [], []

    def recover(number):
        try:
            mine = world.log()
            found.append(last_ids(mine))
            append_ids(mine, [[("new", 1), (f"w{number}", 1)]])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=recover, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert all({f"p{n}": n for n in range(10)}.items() <= state.items() for state in found)
    assert sorted(ids_of(world.log())[10:]) == [("new", 1), *((f"w{n}", 1) for n in range(4))]


def test_a_hundred_thousand_producers_leave_small_nodes_and_an_exact_state_I13(tmp_path):
    world = World(tmp_path, Limits(commits_per_ledger=3), schema=IDS)
    log = world.log()
    names = [f"device-{n}" for n in range(100_000)]
    for number in range(4):
        append_ids(log, [[(name, number) for name in names[:60_000]], [(name, number) for name in names[60_000:]]])
    append_ids(log, [[("device-7", 3), ("device-7", 4)]])
    fresh = world.log()
    _, states = fresh.producers()
    assert len(states) == 100_000
    assert states.get("device-7").sequence == 4
    assert states.get("device-99999").sequence == 3
    uuid = world.topic.uuid
    snapshot = fresh.metadata.read(DedupKey(uuid)).record
    assert snapshot.producers == ()
    assert snapshot.producers_file is not None
    assert len(codec.encode(DedupKey(uuid), snapshot)) < 200
    for commit in fresh.view().open_commits:
        assert len(codec.encode(CommitKey(uuid, commit.ledger, commit.number), commit)) < 1000


def test_masks_lists_and_states_survive_gc_I12(tmp_path):
    limits = Limits(4, index_fanout=3, inline_entries=1, inline_mask_bytes=0, inline_producers_bytes=0)
    world = World(tmp_path, limits, schema=IDS)
    log = world.log()
    for number in range(0, 60, 2):
        append_ids(log, [[("a", number - 1), ("a", number)], [("b", number), ("b", number)]])
        gc.collect(world.log())
    assert sorted(ids_of(world.log())) == sorted(
        {("a", n) for n in range(-1, 59)} | {("b", n) for n in range(0, 60, 2)}
    )
    assert last_ids(world.log()) == {"a": 58, "b": 58}


# -- names, forgetting, eviction --------------------------------------------------------------------------------------


def append_numbered_batch(log, producer, batch_id):
    entries = stage_ids(log, [[("x", 1)]]).entries
    batch = StagedBatch(log.clock.new_id(), entries, IDS, producer=producer, admission=ByBatchId(batch_id))
    protocol.append(log, batch)


def test_a_name_numbers_batches_or_records_and_never_both(world):
    log = world.log()
    append_ids(log, [[("records", 1)]])
    append_numbered_batch(log, "batches", BatchId(1, "query-1", "run"))
    with pytest.raises(Conflict, match=r"LEDGER_PRODUCER_OWNED.*'batches'.*query query-1.*producers forget"):
        append_ids(log, [[("batches", 2)]])
    with pytest.raises(Conflict, match=r"LEDGER_PRODUCER_OWNED.*'records'.*numbers single records"):
        append_numbered_batch(log, "records", BatchId(2, "query-1", "run"))


def test_a_forgotten_producer_begins_anew(world):
    log = world.log()
    append_ids(log, [[("a", 7)]])
    forget(log, "a")
    append_ids(world.log(), [[("a", 1)]])
    assert ids_of(log) == [("a", 7), ("a", 1)]


def test_nobody_is_evicted_unless_a_policy_says_so_and_the_evicted_are_reported(tmp_path):
    clock = SeededClock()
    world = World(tmp_path, clock=clock, schema=IDS)
    log = world.log()
    append_ids(log, [[("silent", 5), ("loud", 0)]])
    for number in range(1, 9):
        clock.sleep(3600)
        append_ids(log, [[("loud", number)]])
    assert last_ids(world.log()) == {"silent": 5, "loud": 8}

    policies.change(log, policies.Changes(evict_producers_after=timedelta(hours=2)))
    for number in range(9, 18):
        clock.sleep(3600)
        append_ids(log, [[("loud", number)]])
    for who in (log, world.log()):  # whoever remembers and whoever recovers say the same
        assert last_ids(who) == {"loud": 17}
        assert who.producers()[1].evicted == 1
        with pytest.raises(Conflict, match=r"LEDGER_PRODUCER_EVICTED.*'silent'.*producers forget"):
            append_ids(who, [[("silent", 6), ("loud", 99)]])
        with pytest.raises(Conflict, match="LEDGER_PRODUCER_EVICTED"):
            append_numbered_batch(who, "silent", BatchId(1))
    forget(log, "silent")
    append_ids(world.log(), [[("silent", 6)]])
    assert last_ids(world.log()) == {"silent": 6, "loud": 17}
    assert log.producers()[1].evicted == 0


# -- policies and bad input -------------------------------------------------------------------------------------------


def test_with_deduplication_off_a_writer_that_asks_for_it_is_refused(tmp_path):
    world = World(tmp_path)
    log, other = world.log(), world.log()
    append(other, 1, producer="p", batch_id=BatchId(1))
    policies.change(log, policies.Changes(deduplication=False))
    for writer in (log, other):  # also one whose picture is older than the policy
        with pytest.raises(InvalidInput, match=r"LEDGER_DEDUPLICATION_OFF.*deduplication=none"):
            append(writer, 2, producer="p", batch_id=BatchId(2))
    append(log, 3)
    policies.change(log, policies.Changes(deduplication=True))
    append(other, 4, producer="p", batch_id=BatchId(2))
    assert world.read() == [1, 3, 4]


def test_with_deduplication_off_records_with_ids_are_refused_too_I5(world):
    policies.change(world.log(), policies.Changes(deduplication=False))
    with pytest.raises(InvalidInput, match="LEDGER_DEDUPLICATION_OFF"):
        append_ids(world.log(), [[("a", 1)]])


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (("off", UNCHANGED, UNCHANGED), "deduplication is 'off': it must be True, False, or None"),
        ((1, UNCHANGED, UNCHANGED), "deduplication is 1"),
        ((UNCHANGED, 20_000, UNCHANGED), "snapshot_commits is 20000"),
        ((UNCHANGED, -1, UNCHANGED), "snapshot_commits is -1: it must be a whole number from 1 to 10000"),
        ((UNCHANGED, 1.5, UNCHANGED), "snapshot_commits is 1.5"),
        ((UNCHANGED, True, UNCHANGED), "snapshot_commits is True"),
        ((UNCHANGED, UNCHANGED, 60), "evict_producers_after is 60: it must be a timedelta"),
        ((UNCHANGED, UNCHANGED, timedelta(0)), "evict_producers_after is datetime.timedelta"),
        ((True, "often", UNCHANGED), "snapshot_commits is 'often'"),
    ],
)
def test_policies_that_make_no_sense_are_refused_and_change_nothing(world, wanted, problem):
    log = world.log()
    before = log.refresh(sync=True)
    with pytest.raises(InvalidInput, match=f"LEDGER_INVALID_POLICY.*{problem}"):
        policies.change(log, policies.Changes(*wanted))
    assert log.refresh(sync=True).version == before.version


def test_a_namespaces_policy_is_checked_before_the_namespace_is_made(tmp_path):
    metadata = MemoryMetadata(MemoryServer())
    client = client_of(OpenNamespace(metadata, str(tmp_path)))
    for wanted in ("off", None):
        with pytest.raises(InvalidInput, match=r"LEDGER_INVALID_POLICY.*must be True or False"):
            client.set_namespace_policies(deduplication=wanted)
    assert metadata.read(NamespaceKey()) is None
    client.set_namespace_policies(deduplication=False)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (IdColumns("sequence", "who"), "sequenceColumn 'sequence' is not a column: who, seq, note"),
        (IdColumns("note", "who"), "sequenceColumn 'note' is of type string, it must be an integer"),
        (IdColumns("seq", "whom"), "producerColumn 'whom' is not a column"),
    ],
)
def test_columns_that_cannot_be_ids_are_refused_by_name(columns, problem):
    with pytest.raises(InvalidInput, match=problem):
        columns.check(IDS)


@pytest.mark.parametrize(("column", "rows"), [("seq", [("a", None)]), ("who", [(None, 1)])])
def test_a_record_without_an_id_is_an_error_not_a_guess(column, rows):
    batch = pa.RecordBatch.from_pylist([{"who": who, "seq": seq} for who, seq in rows], schema=IDS)
    with pytest.raises(InvalidInput, match=f"LEDGER_NO_SEQUENCE_ID.*1 of 1 rows have no value in '{column}'"):
        IdRanges(ID_COLUMNS).add(batch)


def test_a_position_inside_masked_rows_means_the_next_record(world):
    log = world.log()
    append_ids(log, [[("a", 5)]])
    append_ids(log, [[("a", 6), ("a", 1), ("a", 2), ("a", 7)]])
    assert read_ids(log, Position(0, 1, 1)) == read_ids(log, Position(0, 1, 3)) == [("a", 7, "")]
    end = log.view().head.end
    after, taken = ReadSource(log, log.view()).advance(Position(0, 1, 0), end, max_rows=1)
    assert (after, taken) == (Position(0, 1, 3), 1)  # one spelling: the next record's


def test_what_a_task_keeps_of_rows_that_it_leaves_out_does_not_grow_with_their_number():
    known = pa.table({"producer": ["p"], "sequence": pa.array([10**6], pa.int64())})
    ranges = IdRanges(ID_COLUMNS, known)
    for number in range(1_000):
        rows = pa.RecordBatch.from_pydict({"who": ["p"], "seq": [number], "note": [""]}, schema=IDS)
        assert ranges.add(rows).num_rows == 0
    assert len(ranges._left_out) <= LEFT_OUT_TABLES
    assert ranges.left_out().to_pylist() == [{"producer": "p", "sequence": 999}]
