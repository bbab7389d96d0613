"""Sealing: stop at every step, and nothing is lost, doubled or left for ever."""

from __future__ import annotations

import pytest

from pyspark_ledger.base.position import Position
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import CorruptData, Unavailable
from pyspark_ledger.lifecycle.gc import collect
from pyspark_ledger.log import places, policies, scan
from pyspark_ledger.log.index import Index
from pyspark_ledger.log.seal import seal, sweep
from pyspark_ledger.metadata.port import CommitKey, Delete, HeadKey, LedgerKey, PartKey
from pyspark_ledger.testing.memory import Crash, Faults
from tests.support.worlds import EAGER, SMALL, World, append


def nodes(world) -> int:
    """Ledgers and commits."""
    metadata = world.metadata()
    keys = metadata.children(PartKey(world.topic.uuid, "commits"))
    ledgers = [key for key in keys if isinstance(key, LedgerKey)]
    return len(ledgers) + sum(len(metadata.children(ledger)) for ledger in ledgers)


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("step", range(1, 14))
def test_a_crash_at_any_transaction_is_completed_by_the_next_writer_I1_I13(tmp_path, step, applied):
    world = World(tmp_path)
    faults = Faults()
    log = world.log(faults)
    append(log, 0)
    faults.crash_at(step, applied=applied)
    acknowledged, sent = 1, 1
    with pytest.raises(Crash):
        while True:
            sent += 1
            append(log, acknowledged)
            acknowledged += 1
    after = world.read()
    assert after[:acknowledged] == list(range(acknowledged)), "what was acknowledged is there"
    assert len(after) <= sent, "and at most the one that was on its way"
    survivor = world.log()
    for number in range(len(after), 20):
        append(survivor, number)
    assert world.read() == list(range(20))
    assert nodes(world) <= SMALL.commits_per_ledger + 1, "the crashed sealer's nodes are gone"


@pytest.mark.parametrize("torn", [True, False])
def test_a_crash_while_index_files_are_staged_leaves_only_unnamed_files(tmp_path, monkeypatch, torn):
    world = World(tmp_path)
    log = world.log()
    for number in range(4):
        append(log, number)

    def die(*args, **kwargs):
        raise Crash

    monkeypatch.setattr(log.files, "stage", die)
    with pytest.raises(Crash):
        append(log, 4)
    assert world.read() == [0, 1, 2, 3]
    append(world.log(), 4)
    assert world.read() == [0, 1, 2, 3, 4]


def test_three_levels_of_index_find_every_record_by_position_number_and_time(tmp_path):
    world = World(tmp_path)  # 4 commits a ledger, 3 rows a node: 200 commits need three levels
    log = world.log()
    placed = [append(log, number) for number in range(200)]
    view = world.log().view()
    reader = world.log()
    assert len(view.head.index) >= 3
    assert world.read() == list(range(200))
    for number, appended in enumerate(placed):
        assert reader.commit(view, number).number == number
        assert next(reader.commits_from(view, appended.start)).number == number
        assert scan.records_before(reader, view, appended.start) == number
        first_of_time = next(i for i, p in enumerate(placed) if p.publish_ms >= appended.publish_ms)
        assert places.at_time(reader, view, appended.publish_ms) == placed[first_of_time].start


def test_opening_a_long_topic_reads_a_bounded_number_of_nodes_and_files_I13(tmp_path):
    world = World(tmp_path)
    log = world.log()
    reads = []
    for number in range(150):
        append(log, number)
        if number % 50 == 49:
            fresh = world.log()
            fetched = []
            original = fresh.files.fetch
            fresh.files.fetch = lambda ref, f=original, seen=fetched: (seen.append(ref), f(ref))[1]
            next(iter(scan.slices(fresh, fresh.view(), Position(0, 0, 0), fresh.view().head.end)))
            reads.append(len(fetched) + len(fresh.view().open_commits))
    assert max(reads) <= 12


def test_a_reader_that_misses_nodes_reads_the_head_again_I2(tmp_path):
    world = World(tmp_path)
    writer, reader = world.log(), world.log()
    append(writer, 0)
    stale_head = reader.metadata.read(HeadKey(world.topic.uuid))
    for number in range(1, 9):
        append(writer, number)
    original = reader.metadata.read
    answers = iter([stale_head])
    reader.metadata.read = lambda key, on_change=None: (
        (next(answers, None) if isinstance(key, HeadKey) else None) or original(key, on_change)
    )
    assert reader.refresh().head.next_commit == 9


def test_commits_that_are_not_in_zookeeper_are_corrupt_data_by_name(tmp_path):
    world = World(tmp_path)
    append(world.log(), 0)
    world.metadata().transact([Delete(CommitKey(world.topic.uuid, 0, 0))])
    with pytest.raises(CorruptData, match=rf"topic 't' \({world.topic.uuid}\): commits that its head names are not in"):
        world.log().refresh()


def test_a_seal_between_the_looks_at_head_and_dedup_state_makes_both_be_read_again_I5(tmp_path):
    world = World(tmp_path)
    append(world.log(), 0, producer="p", batch_id=BatchId(0))
    reader = world.log()
    assert reader.view().head.next_commit == 1
    for number in range(1, 6):
        append(world.log(), number, producer="p", batch_id=BatchId(number))
    view, states = reader.producers()
    assert (view.head.ledger, view.head.next_commit, [state.sequence for state in states.all()]) == (1, 6, [5])


def test_index_spine_is_immutable(tmp_path):
    world = World(tmp_path)
    log = world.log()
    for number in range(40):
        append(log, number)
    old = log.view()
    for number in range(40, 80):
        append(log, number)
    leaves = list(Index(world.log().files, old.head.index).leaves(lambda row: row.first_commit, 0))
    assert [leaf.ledger for leaf in leaves] == list(range(old.head.ledger))


def test_a_seal_begins_with_the_newest_head_because_files_of_an_older_one_may_be_gone_I16(tmp_path):
    world = World(tmp_path, limits=EAGER)
    for number in range(8):
        append(world.log(), number)
    late = world.log()
    late.view()
    append(world.log(), 8)  # seals the ledger that is full in the older head, and replaces the index
    for _ in range(4):
        collect(world.log())
    append(late, 9)
    assert world.read() == list(range(10))


def test_a_ledger_that_another_has_sealed_meanwhile_is_not_followed_by_a_short_one_I13(tmp_path):
    world = World(tmp_path)
    late = world.log()
    for number in range(world.limits.commits_per_ledger):
        append(late, number)
    append(world.log(), 99)  # seals
    assert seal(late).head.ledger == 1


def test_a_seal_that_was_decided_by_old_policies_is_refused_I5(tmp_path):
    """They say who is evicted."""
    world = World(tmp_path)
    log = world.log()
    for number in range(world.limits.commits_per_ledger):
        append(log, number)
    transact = log.metadata.transact

    def overtaken(ops):
        log.metadata.transact = transact
        policies.change(world.log(), policies.Changes(deduplication=True))
        transact(ops)

    log.metadata.transact = overtaken
    assert seal(log).head.ledger == 0
    assert seal(log).head.ledger == 1


def test_nodes_are_deleted_in_parts_that_zookeeper_takes_I13(tmp_path):
    world = World(tmp_path)
    log, parts = world.log(), []
    transact = log.metadata.transact

    def counted(ops):
        parts.append(sum(isinstance(op, Delete) and isinstance(op.key, CommitKey) for op in ops))
        transact(ops)

    log.metadata.transact = counted
    for number in range(world.limits.commits_per_ledger + 1):
        append(log, number)
    assert sum(parts) == world.limits.commits_per_ledger
    assert max(parts) == world.limits.nodes_per_delete


def test_a_sweep_that_fails_is_nothing_to_the_writer_that_sealed_I16(tmp_path, monkeypatch):
    world = World(tmp_path)
    log = world.log()
    for number in range(world.limits.commits_per_ledger):
        append(log, number)

    def away(key):
        monkeypatch.undo()
        raise Unavailable("ZooKeeper does not answer")

    monkeypatch.setattr(log.metadata, "children", away)
    assert append(log, 99).start.ledger == 1


def test_a_sweep_asks_only_for_the_nodes_of_sealed_ledgers_I13(tmp_path):
    world = World(tmp_path)
    log, asked = world.log(), []
    for number in range(world.limits.commits_per_ledger + 1):
        append(log, number)
    children = log.metadata.children
    log.metadata.children = lambda key: asked.append(key) or children(key)
    sweep(log, log.view())
    assert asked == [PartKey(world.topic.uuid, "commits")]
