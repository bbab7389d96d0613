"""Few records wait without a file, and whoever commits them writes one file for all (append/loose.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append import loose
from pyspark_ledger.append.admission import ADMIT_ALL, TopicState
from pyspark_ledger.append.prepared import SideFiles, draft
from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base import names
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.errors import CorruptData, Unavailable
from pyspark_ledger.files import packed_rows
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.metadata.port import Put
from pyspark_ledger.metadata.records import Commit
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults
from tests.support.loose_rows import append_in_turn, batch_of, rows, wants
from tests.support.worlds import SCHEMA, World, append, widen


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, Limits(gc_grace_ms=0), SeededClock())


def files(world: World) -> set[str]:
    """Of entries."""
    return set(world.storage.list(names.topic_folder(world.topic.uuid)))


def commits(world: World) -> list[Commit]:
    log = world.log()
    return list(log.commits_since(log.refresh(sync=True), 0))


def numbers(world: World) -> list[int]:
    return [record["n"] for record in Reader(world.log(), "earliest", "latest")]


# -- one file for all ----------------------------------------------------------------------------------------


def test_who_has_its_turn_writes_one_file_for_all_I1_I2(world):
    log = world.log()
    keys = [wants(world.log(), 7, 8), wants(world.log(), 9)]
    append_in_turn(log, 1)
    assert world.read() == [*([7, 8, 9] if keys[0].id < keys[1].id else [9, 7, 8]), 1]
    assert len(files(world)) == 1
    for key in keys:
        answer = log.queue.answer(key.id)
        assert answer is not None
        [entry] = commits(world)[answer.number].entries
        assert entry.file_rows == 4


def test_each_is_one_commit_with_its_share_of_the_file(world):
    wants(world.log(), *range(10, 40))
    append_in_turn(world.log(), 1)
    theirs, own = commits(world)
    assert (theirs.records, own.records) == (30, 1)
    assert (theirs.entries[0].first_row, own.entries[0].first_row) == (0, 30)
    assert theirs.bytes == theirs.entries[0].file.length * 30 // 31
    assert world.read() == [*range(10, 40), 1]


def test_one_writer_alone_has_a_file_of_its_own(world):
    log = world.log()
    protocol.append(log, batch_of(log, rows(1, 2)))
    [commit] = commits(world)
    assert commit.entries[0].file_rows == 0
    assert world.read() == [1, 2]


def test_nothing_is_written_before_it_is_its_turn(world):
    log = world.log()
    wants(log, 7)
    assert files(world) == set()


def test_records_with_other_columns_get_another_file(world):
    """What a record means can depend on which columns its entry has."""
    widen(world.log(), "note")
    log = world.log()
    wants(world.log(), 7)
    wider = rows(1, schema=SCHEMA).append_column("note", pa.array(["x"]))
    log.queue.was_answered_after(0.01)
    protocol.append(log, batch_of(log, wider))
    assert len(files(world)) == 2
    found = [record.value for record in Reader(world.log(), "earliest", "latest")]
    assert found == [{"n": 7, "note": None}, {"n": 1, "note": "x"}]


@pytest.mark.parametrize("limits", [{"request_rows": 2}, {"request_bytes": 16}], ids=["rows", "bytes"])
def test_many_records_wait_with_a_file_of_their_own(tmp_path, limits):
    world = World(tmp_path, Limits(**limits), SeededClock())
    producer = Producer(world.log())
    for number in range(3):
        producer.send({"n": number})
    producer._log.queue.was_answered_after(0.01)
    seen = []
    join = producer._log.queue.join
    producer._log.queue.join = lambda key, request: (seen.append((request, files(world))), join(key, request))[1]
    producer.flush()
    [(request, there)] = seen
    assert request.rows == b""
    assert len(there) == 1
    assert world.read() == [0, 1, 2]


def test_a_producer_in_a_crowd_sends_its_records_along_and_is_told_where_they_are_I1_I5(world):
    """Nobody has committed for it yet when it begins to wait, and somebody does before it has its turn."""
    producer = Producer(world.log(), name="ann")
    log = producer._log
    log.queue.was_answered_after(0.01)
    acted = []

    def others_act(_: float) -> bool:
        if not acted:
            acted.append(files(world))
            append_in_turn(world.log(), 1)
        return True

    log.queue.wait_for_answers = others_act
    receipts = [producer.send({"n": number}) for number in (7, 8)]
    producer.flush()
    assert acted == [set()]
    assert [receipt.result().position.index for receipt in receipts] == [0, 1]
    found = list(Reader(world.log(), "earliest", "latest"))
    assert sorted((record["n"], record.sequence_id) for record in found if record["n"] > 1) == [(7, 0), (8, 1)]
    assert [record.position for record in found if record["n"] > 1] == [r.result().position for r in receipts]
    assert len(files(world)) == 2  # one has ids and the other has not


def test_an_id_that_is_in_the_log_is_left_out_of_records_that_have_no_file_yet_I5(world):
    """Which of them are new is compared in memory."""
    producer = Producer(world.log(), name="ann")
    producer.send({"n": 0}, sequence_id=5)
    producer.flush()
    other = Producer(world.log(), name="ann")
    other._log.queue.was_answered_after(0.01)
    Producer(world.log(), name="ann").send({"n": 1}, sequence_id=7).result()
    told = [other.send({"n": number}, sequence_id=number) for number in (6, 8)]
    other.flush()
    assert [each.result().duplicate for each in told] == [True, False]
    assert numbers(world) == [0, 1, 8]


# -- what goes wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": b"no record batch"},
        {"rows": packed_rows.pack(rows(7, 8))},
        {"rows": packed_rows.pack(rows(7))[:-8]},
        {"columns": ("m",)},
        {"columns": ("n", "n")},
        {"columns": ()},
        {"rows": b"", "columns": ()},
    ],
    ids=["nonsense", "another count", "cut short", "unknown column", "twice", "no column", "nothing"],
)
def test_records_that_cannot_be_read_are_left_to_their_writer_I16(world, changes):
    key = wants(world.log(), 7, **changes)
    log = world.log()
    append_in_turn(log, 1)
    assert world.read() == [1]
    assert log.queue.waiting() == [key]


def test_compressed_records_are_refused_before_they_are_unpacked():
    """A few bytes of zstd could be any number of bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows(*range(1_000)))
    message = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))[1]
    with pytest.raises(CorruptData, match="compressed"):
        packed_rows.unpack(message.serialize().to_pybytes(), SCHEMA, 1_000, "a request")


def test_a_null_where_none_is_allowed_is_refused():
    strict = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(CorruptData, match="null"):
        packed_rows.unpack(packed_rows.pack(rows(*[None])), strict, 1, "a request")


def test_a_disk_that_fails_in_ones_turn_stops_only_that_writer_I14_I16(world, monkeypatch):
    log = world.log()
    wants(world.log(), 0)
    append_in_turn(log, 1)
    key = wants(world.log(), 7)

    def full(*_: object) -> None:
        raise Unavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(loose, "stage_entry", full)
        with pytest.raises(Unavailable):
            protocol.append(log, batch_of(log, rows(2)))  # it leads on
    assert log.queue.waiting() == [key]
    assert not log.queue.leads
    append_in_turn(world.log(), 3)
    assert world.read() == [0, 1, 7, 3]


def test_a_writer_that_dies_after_it_wrote_the_file_leaves_nothing_named_I1_I12(world, monkeypatch):
    key, log = wants(world.log(), 7), world.log()

    def dies(*_: object, **__: object) -> bool:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(protocol, "_commit", dies)
        with pytest.raises(Crash):
            append_in_turn(log, 1)
    assert len(files(world)) == 1
    assert world.read() == []
    log.metadata.expire()
    assert world.log().queue.waiting() == [key]
    append_in_turn(world.log(), 2)
    assert world.read() == [7, 2]
    for _ in range(3):
        gc.collect(world.log())
    assert len(files(world)) == 1


@pytest.mark.parametrize("fault", ["applied_then_lost", "lost_before"])
def test_a_lost_answer_doubles_and_loses_nothing_I1_I14(world, fault):
    keys, faults = [wants(world.log(), 7), wants(world.log(), 8)], Faults()
    log = world.log(faults)
    log.queue.was_answered_after(0.01)
    join = log.queue.join

    def then_fail(*args: Any) -> bool:
        sure = join(*args)
        faults.next_transact(fault)
        return sure

    log.queue.join = then_fail
    append_in_turn(log, 1)
    assert sorted(world.read()) == [1, 7, 8]
    assert all(log.queue.answer(key.id) for key in keys)


def test_a_lost_race_in_ones_turn_writes_the_file_of_the_others_again_I12(world, monkeypatch):
    """What was written for the others may be in a file that the next transaction does not name."""
    key, log = wants(world.log(), 7), world.log()
    send, sent = protocol._commit, []

    def beaten(*arguments: Any, **named: Any) -> bool:
        if not sent:
            sent.append(files(world))
            world.log().change_head(lambda head: replace(head, gc_epoch=head.gc_epoch + 1), "gc")
        return send(*arguments, **named)

    monkeypatch.setattr(protocol, "_commit", beaten)
    append_in_turn(log, 1)
    assert world.read() == [7, 1]
    assert log.queue.answer(key.id) is not None


def test_a_commit_without_a_file_is_never_sent_I12(world):
    """Whoever forgets to write it finds out at once, and not a reader."""
    log = world.log()
    batch = batch_of(log, rows(1))
    view, producers = log.producers()
    own = draft(log, view.head, batch, ADMIT_ALL.judge(batch, TopicState(log, view, producers)), SideFiles(log))
    with pytest.raises(AssertionError):
        protocol.prepared(log, view, own)


def test_gc_keeps_a_file_as_long_as_one_commit_names_it_I12(world):
    wants(world.log(), 7)
    append_in_turn(world.log(), 1)
    for number in range(5):
        gc.collect(world.log())
        append(world.log(), 10 + number)
    assert world.read()[:2] == [7, 1]


def test_what_is_written_in_ones_turn_is_of_the_epoch_in_which_it_is_committed_I12(world):
    for _ in range(3):
        gc.collect(world.log())
    log = world.log()
    protocol.append(log, batch_of(log, rows(1)))
    assert log.view().head.gc_epoch == 3
    assert [entry.file.epoch for commit in commits(world) for entry in commit.entries] == [3]


def test_a_request_that_says_it_brings_very_many_records_is_left_to_its_writer(tmp_path):
    """Rows of a column without values take no room."""
    nothing = pa.schema([pa.field("n", pa.null())])
    world = World(tmp_path, Limits(request_rows=10), SeededClock(), schema=nothing)
    log = world.log()
    key = wants(log, *[None] * 10, schema=nothing)
    [(_, request)] = log.queue.requests([key])
    [entry] = request.record.commit.entries
    commit = replace(request.record.commit, entries=(replace(entry, records=11),), records=11)
    more = replace(request.record, commit=commit, rows=packed_rows.pack(rows(*[None] * 11, schema=nothing)))
    log.metadata.transact([Put(key, more, None)])
    leader = world.log()
    append_in_turn(leader, None, schema=nothing)
    assert leader.queue.waiting() == [key]
