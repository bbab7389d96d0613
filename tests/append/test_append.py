"""The append protocol on the in-memory store: every way in which an answer can be lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.errors import Conflict, DataLoss, InvalidInput, OutcomeUnknown
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log.log import head_ops
from pyspark_ledger.metadata.port import HeadKey, LedgerKey, PartKey, Put, TransactionLost
from pyspark_ledger.testing.memory import Faults
from tests.support.worlds import IDS, SCHEMA, SMALL, World, append, append_ids, read, read_ids, stage


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_what_was_acknowledged_is_readable_once_and_in_order_I1_I2(world):
    log = world.log()
    for number in range(30):
        append(log, number)
    assert world.read() == list(range(30))
    positions = [position for _, position in read(world.log())]
    assert positions == sorted(positions)


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "delayed", "expired"])
@pytest.mark.parametrize("at", range(9))
def test_a_lost_answer_is_resolved_never_guessed_I14(world, fault, at):
    faults = Faults()
    log = world.log(faults)
    for number in range(9):
        if number == at:
            faults.next_transact(fault)
        append(log, number)
    world.server.deliver_delayed()
    assert world.read() == list(range(9))


@pytest.mark.parametrize("first", ["applied_then_lost", "delayed", "lost_before"])
@pytest.mark.parametrize("second", ["applied_then_lost", "delayed", "lost_before"])
def test_two_lost_answers_in_a_row_add_one_record_I1(world, first, second):
    faults = Faults()
    log = world.log(faults)
    append(log, 0)
    faults.next_transact(first, second)
    append(log, 1)
    append(world.log(), 2)
    world.server.deliver_delayed()
    assert world.read() == [0, 1, 2]


def test_a_rival_may_commit_and_seal_while_an_outcome_is_unknown_I14(world):
    """The commit to look for is then no longer a node, but in the index."""
    faults = Faults()
    log = world.log(faults)
    append(log, 0)
    rival = world.log()
    original = log.metadata.sync

    def meanwhile():
        for number in range(100, 110):
            append(rival, number)
        log.metadata.sync = original
        original()

    log.metadata.sync = meanwhile
    faults.next_transact("applied_then_lost")
    append(log, 1)
    assert world.read() == [0, 1, *range(100, 110)]


def test_a_rival_that_takes_the_version_makes_the_loser_decide_again_I2(world):
    one, two = world.log(), world.log()
    append(one, 0)
    append(two, 1)  # its picture is older than one's commit
    append(one, 2)
    assert world.read() == [0, 1, 2]


def test_nobody_sees_a_staged_file_before_its_commit_I3(world):
    log = world.log()
    entry = stage(log, 7)
    assert world.read() == []
    protocol.append(log, StagedBatch(b"i" * 16, (entry,), SCHEMA))
    assert world.read() == [7]


def test_there_is_one_open_ledger_I4(world):
    log = world.log()
    for number in range(23):
        append(log, number)
        keys = log.metadata.children(PartKey(world.topic.uuid, "commits"))
        open_ledgers = [key for key in keys if isinstance(key, LedgerKey)]
        assert [k.ledger for k in open_ledgers] == [log.view().head.ledger]


def test_publish_times_never_go_back(world, monkeypatch):
    log = world.log()
    times = iter([5000, 4000, 6000])
    monkeypatch.setattr(log.clock, "now_ms", lambda: next(times, 6000), raising=False)
    world_times = [append(log, n).publish_ms for n in range(2)]
    assert world_times == sorted(world_times)


def test_many_entries_go_to_a_file_and_the_node_stays_small_I13(world):
    log = world.log()
    entries = tuple(stage(log, n) for n in range(200))
    protocol.append(log, StagedBatch(b"i" * 16, entries, SCHEMA))
    commit = log.view().open_commits[0]
    assert commit.entries == ()
    assert commit.entries_file is not None
    assert world.read() == list(range(200))


def test_a_long_mask_goes_to_a_file_and_the_node_stays_small_I13(tmp_path):
    world = World(tmp_path, limits=replace(SMALL, inline_mask_bytes=4), schema=IDS)
    old, new = ([(who, number) for number in range(100)] for who in ("a", "b"))
    append_ids(world.log(), [old])
    mixed = [row for pair in zip(old, new, strict=True) for row in pair]
    assert append_ids(world.log(), [mixed]).dropped == 100
    commit = world.log().view().open_commits[-1]
    assert (commit.entries, commit.entries_file is None) == ((), False)
    assert len(read_ids(world.log())) == 200


def test_a_commit_from_an_older_head_is_refused_because_of_its_version_I2(tmp_path):
    world = World(tmp_path)
    log = world.log()
    view = log.view()
    append(world.log(), 1)
    with pytest.raises(TransactionLost) as refusal:
        log.metadata.transact(head_ops(view, replace(view.head, last_change=b"x" * 16)))
    assert isinstance(refusal.value.op, Put)


def test_a_commit_that_arrives_when_it_is_sent_again_is_there_once_I1_I14(tmp_path):
    world, faults = World(tmp_path), Faults()
    log = world.log(faults)
    faults.delay = lambda: 1_000
    faults.next_transact("delayed")
    send = log.metadata.transact

    def arrives_first(ops):
        world.server.deliver_delayed()
        send(ops)

    log.metadata.transact = arrives_first
    append(log, 1)
    assert world.read() == [1]


def test_an_outcome_that_stays_unknown_is_an_error_that_says_so_I14(world):
    from pyspark_ledger.testing.clock import SeededClock

    world.clock = SeededClock()
    faults = Faults()
    log = world.log(faults)
    append(log, 0)
    faults.next_transact(*["lost_before"] * 1_000_000)
    log.metadata.sync = lambda: world.clock.sleep(1)
    with pytest.raises(OutcomeUnknown, match="sequence id is safe"):
        append(log, 1)


def test_a_commit_that_arrives_while_it_is_sent_again_is_found_I14(world, monkeypatch):
    log, sent = world.log(), []

    def interrupted(prepared):
        sent.append(prepared)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        protocol.append(log, StagedBatch(b"i" * 16, (stage(log, 1),)), interrupted)

    def late(ops):
        monkeypatch.undo()
        world.metadata().transact(ops)
        log.metadata.transact(ops)

    monkeypatch.setattr(log.metadata, "transact", late)
    assert protocol.resolve(log, sent[0]).duplicate
    assert world.read() == [1]


def test_a_batch_that_does_not_fit_changes_nothing(world):
    import pyarrow as pa

    log = world.log()
    before = log.view().head
    wrong = pa.schema([pa.field("n", pa.string()), pa.field("extra", pa.int64())])
    with pytest.raises(InvalidInput, match=r"(?s)n string.*the topic has n int64.*extra.*mergeSchema"):
        protocol.append(log, StagedBatch(b"i" * 16, (stage(log, 1),), wrong))
    assert world.log().view().head == before


def test_merge_schema_adds_a_column_in_the_same_multi(world):
    import pyarrow as pa

    log = world.log()
    append(log, 1)
    wider = pa.schema([*SCHEMA, pa.field("extra", pa.string(), False)])
    protocol.append(log, StagedBatch(b"i" * 16, (stage(log, 2),), wider, merge_schema=True))
    fresh = world.log()
    assert fresh.schema(fresh.view().head.schema_id).field("extra").nullable
    assert world.read() == [1, 2]


def test_a_file_staged_too_long_ago_is_refused_I12(tmp_path):
    world = World(tmp_path, limits=replace(SMALL, gc_grace_ms=0))
    log = world.log()
    old = stage(log, 1, epoch=0)
    gc.collect(log)
    gc.collect(log)
    with pytest.raises(Conflict, match="LEDGER_STAGED_TOO_LONG_AGO"):
        protocol.append(log, StagedBatch(b"i" * 16, (old,), SCHEMA))
    assert world.read() == []


def test_a_file_from_the_future_means_that_zookeeper_was_set_back(world):
    log = world.log()
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        protocol.append(log, StagedBatch(b"i" * 16, (stage(log, 1, epoch=9),), SCHEMA))
    assert world.log().view().head.set_back.gc_epoch == 9


def test_a_file_of_an_epoch_that_only_this_process_has_not_seen_yet_is_no_rollback(tmp_path):
    world = World(tmp_path, limits=replace(SMALL, gc_grace_ms=0))
    log = world.log()
    append(log, 1)
    gc.collect(world.log())
    protocol.append(log, StagedBatch(b"i" * 16, (stage(log, 2, epoch=1),), SCHEMA))
    assert world.read() == [1, 2]
    assert world.log().view().head.set_back is None


def test_a_head_that_is_older_than_it_was_means_that_zookeeper_was_set_back(world):
    log = world.log()
    old = log.metadata.read(HeadKey(world.topic.uuid))
    append(log, 1)
    log.metadata.read = lambda key, on_change=None: old
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        log.refresh()
