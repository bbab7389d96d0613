"""What offsets of version 2 bring: a lag, and what their query has seen, to be recognised when it starts (I7, I18)."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.datasource import offsets, planning
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import Conflict, DataLoss, InvalidInput
from pyspark_ledger.files.storage import LocalStorage
from pyspark_ledger.lifecycle import repair
from pyspark_ledger.log import root, snapshots
from pyspark_ledger.log.namespace import OpenNamespace
from tests.support.query import INITIAL, Query, WorldQuery, document, edited, fields, flat, parse, version_1
from tests.support.rollback import accept_the_loss, restore, snapshot
from tests.support.said import said
from tests.support.worlds import World, append, forget


@pytest.fixture
def world(tmp_path):
    """Nine records in three commits; the fifth commit opens another ledger."""
    world = World(tmp_path)
    for number in range(0, 9, 3):
        append(world.log(), number, number + 1, number + 2)
    return world


def commits(world):
    log = world.log()
    return list(log.commits_from(log.view(), Position(0, 0, 0)))


# -- what they look like ------------------------------------------------------------------------------------------


def test_an_offset_has_one_spelling_with_sorted_keys(world):
    query = WorldQuery(world, maxRowsPerTrigger="4")
    query.batch()
    first, second = query.offset, query.plan()[1]
    seen = f"1:{commits(world)[1].id[:4].hex()}"
    at = {"commit": seen, "epoch": 0, "from": "0:0:0", "id": world.topic.uuid, "pos": "0:1:1", "records": 4, "rev": 0}
    assert json.dumps(first) == json.dumps({"topics": {"t": at}, "v": 2}) == json.dumps(first, sort_keys=True)
    assert fields(second)["commit"] == f"2:{commits(world)[2].id[:4].hex()}"
    assert "from" not in fields(second)


def test_with_a_subscription_it_names_the_cursor(world):
    query = WorldQuery(world, subscription="s")
    query.batch()
    cursor = CursorNode(world.log(), "s").refresh(sync=True)
    assert fields(query.offset)["cursor"] == cursor.id[:4].hex()
    assert list(fields(query.offset)) == sorted(fields(query.offset))
    query.stop()


def test_what_was_written_is_what_is_read_back(world):
    for offset in (
        offsets.Offset(world.topic.uuid, Position(0, 1, 1), Position(0, 0, 1), 3, 2, 7, Position(0, 0, 2), b"\0abc"),
        offsets.Offset(world.topic.uuid, Position(0, 0, 0)),
    ):
        log = world.log()
        seen = offset.seen(log, log.view())
        assert parse(document(seen), world.topic) == seen


def test_the_commit_is_the_last_one_of_which_a_record_lies_before_the_position(world):
    log = world.log()
    append(log, 9, producer="p", batch_id=BatchId(0, "q", "run", b""))
    forget(log, "p")  # a commit without records, the first one of its ledger
    append(log, 10)
    of_record = [commit.number for commit in commits(world) for _ in range(commit.records)]
    assert of_record == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 5]
    query = WorldQuery(world, maxRowsPerTrigger="1")
    for number in of_record:
        query.batch()
        assert fields(query.offset)["commit"].startswith(f"{number}:")


def test_where_no_record_lies_before_there_is_no_commit(tmp_path):
    world = World(tmp_path)
    query = WorldQuery(world)
    assert query.batch() == []
    assert (fields(query.offset)["records"], "commit" in fields(query.offset)) == (0, False)
    append(world.log(), 1)
    assert query.batch() == [1]
    again = WorldQuery(world, offset=query.batches[0][1])
    assert again.batch() == [1]


def test_the_lag_of_a_query_is_the_difference_of_two_offsets(world):
    query = WorldQuery(world, maxRowsPerTrigger="4")
    lags = []
    for _ in range(3):
        query.batch()
        lags.append(fields(query.reader.reportLatestOffset())["records"] - fields(query.offset)["records"])
    assert lags == [5, 1, 0]
    append(world.log(), *range(9, 14))
    query.log.refresh()
    assert fields(query.reader.reportLatestOffset())["records"] == 14


def test_an_offset_in_old_history_costs_no_more_than_one_at_the_end(world, monkeypatch):
    """Files of the index are read once, however many offsets are planned."""
    for number in range(9, 60):
        append(world.log(), number)
    query = WorldQuery(world, maxRowsPerTrigger="1")
    files = []
    read = LocalStorage.read
    monkeypatch.setattr(LocalStorage, "read", lambda self, path, *rest: files.append(path) or read(self, path, *rest))
    query.plan()
    files.clear()
    query.plan()
    assert files == []  # all that it needs is in memory
    for _ in range(12):
        query.plan()
    assert len(files) == len(set(files)) < 10
    files.clear()
    query.reader.reportLatestOffset()
    assert len(files) <= 3


# -- version 1 ----------------------------------------------------------------------------------------------------


def old(world, position, **more):
    """As it was written before: flat."""
    return {"epoch": 0, "pos": position, "rev": 0, "topic": world.topic.uuid, "v": 1, **more}


def test_a_checkpoint_of_version_1_goes_on(world):
    query = WorldQuery(world, offset=old(world, "0:1:1"))
    assert query.batch() == [4, 5, 6, 7, 8]
    assert query.offset["v"] == 2
    assert query.read(old(world, "0:1:1"), query.offset) == [4, 5, 6, 7, 8]


def test_a_logged_batch_of_version_1_is_replayed_as_it_was_I7(world):
    first, second = old(world, "0:1:0", **{"from": "0:0:2"}), old(world, "0:2:0")
    query = WorldQuery(world, offset=second)
    assert query.read(INITIAL, first) == [2]
    assert query.read(first, second) == [3, 4, 5]
    assert query.batch() == [6, 7, 8]


@pytest.mark.parametrize("subscribed", [False, True])
@pytest.mark.parametrize("written", [dict, version_1])
def test_with_nothing_new_the_start_comes_back_byte_for_byte(world, subscribed, written):
    options = {"subscription": "s"} if subscribed else {}
    query = WorldQuery(world, **options)
    query.all()
    start = json.dumps(written(query.offset))
    query.stop()
    again = WorldQuery(world, offset=json.loads(start), **options)
    for _ in range(2):
        assert json.dumps(again.plan()[1]) == start
    again.stop()


def test_a_subscription_follows_a_checkpoint_of_version_1(world):
    query = WorldQuery(world, subscription="s", maxRowsPerTrigger="2")
    query.batch()
    CursorHandle(world.log(), "s").reset("0:1:0")
    query.batch()
    query.stop()
    again = WorldQuery(world, subscription="s", offset=version_1(query.offset))
    assert again.batch() == [5, 6, 7, 8]
    assert (fields(again.offset)["rev"], "cursor" in fields(again.offset)) == (1, True)
    again.stop()


@pytest.mark.parametrize("written", [dict, version_1])
def test_options_and_resets_take_offsets_of_both_versions(world, written):
    query = WorldQuery(world, maxRowsPerTrigger="4")
    query.batch()
    text = json.dumps(written(query.offset))
    assert flat(WorldQuery(world, startingOffsets=text).all()) == [4, 5, 6, 7, 8]
    assert flat(WorldQuery(world, endingOffsets=text).all()) == [0, 1, 2, 3]
    CursorNode(world.log(), "s").ensure("earliest")
    moved = CursorHandle(world.log(), "s").reset(text)
    assert (moved.position, moved.exact) == (Position(0, 1, 1), True)


# -- what is not accepted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"commit": "2"}, {"commit": "2:xyz"}, {"commit": "2:0a1b"}, {"commit": 2}, {"pos": "0:1"}, {"pos": 7},
        {"cursor": "g"}, {"cursor": 5}, {"rev": "x"}, {"epoch": None}, {"gen": "1", "base": "0:0:0"},
    ],
    ids=str,
)  # fmt: skip
def test_an_offset_that_is_spelled_wrongly_is_refused(world, changes):
    query = WorldQuery(world)
    query.batch()
    with pytest.raises(InvalidInput):
        WorldQuery(world, offset=edited(query.offset, **changes)).plan()


@pytest.mark.parametrize(
    "offset",
    [{"v": 2}, {"v": 2, "topics": {}}, {"v": 2, "topics": []}, {"v": 0, "topics": {}}, {"logOffset": 3}, 12, [1], "x"],
    ids=str,
)  # what other sources keep in their checkpoints is not always a JSON object
def test_what_is_no_offset_is_refused(world, offset):
    with pytest.raises(InvalidInput, match=r"not a ledger's.*start with a new checkpoint"):
        WorldQuery(world, offset=offset).plan()
    with pytest.raises(InvalidInput, match="'startingOffsets'"):
        WorldQuery(world, startingOffsets=json.dumps(offset))


def test_a_checkpoint_of_another_topic_is_refused_by_both_names(world):
    offset = {"topics": {"orders": {"epoch": 0, "id": "another", "pos": "0:1:0", "records": 3, "rev": 0}}, "v": 2}
    with pytest.raises(InvalidInput, match=r"LEDGER_TOPIC_RECREATED.*'orders'.*reads 't'"):
        WorldQuery(world, offset=offset).plan()


# -- ZooKeeper was rolled back (I18) ------------------------------------------------------------------------------


class RolledBack:
    """A query has read 0 to 8 in three commits; ZooKeeper comes back with the first two of them, and others have
    written as many again, and one more: neither an end nor a number shows it."""

    def __init__(self, world, then=(100, 101, 102), after=(103, 104, 105), **options) -> None:
        self.world, self.options = world, options
        log = world.log()
        self.backup = snapshot(world.server)
        append(log, 20, 21, 22)
        query = WorldQuery(world, **{"maxRowsPerTrigger": "6", **options})
        query.all()
        self.batches, self.offset = query.batches, query.offset
        query.stop()
        restore(world.server, self.backup)
        append(world.log(), *then)
        if after:
            append(world.log(), *after)

    def restarted(self, **options) -> WorldQuery:
        return WorldQuery(self.world, offset=self.offset, **self.options, **options)


@pytest.mark.parametrize("options", [{}, {"subscription": "s"}], ids=["", "subscription"])
def test_a_log_that_has_grown_past_the_old_end_again_is_recognised_when_the_query_starts_I18(world, options):
    rolled_back = RolledBack(world, **options)
    assert Position.parse(fields(rolled_back.offset)["pos"]) < world.log().view().head.end
    start, end, _ = next(batch for batch in reversed(rolled_back.batches) if batch[2])
    query = rolled_back.restarted()
    for call in (query.plan, lambda: query.read(start, end)):
        with pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*commit 3 .*topics repair t.*failOnDataLoss=false"):
            call()
    query.stop()
    assert world.log().view().head.set_back.next_commit == 4  # everybody is told
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        append(world.log(), 200)


def test_nothing_is_acknowledged_before_the_query_knows_where_it_is_I8_I18(world):
    CursorNode(world.log(), "s").ensure("earliest")
    rolled_back = RolledBack(world, subscription="s")
    query = rolled_back.restarted()
    for call in (lambda: query.plan(), lambda: query.reader.commit(rolled_back.offset)):
        with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
            call()
    query.stop()
    assert CursorHandle(world.log(), "s").stats().mark_delete == Position(0, 0, 0)


def test_without_fail_on_data_loss_it_says_what_is_lost_and_goes_on_from_its_position(world, caplog):
    rolled_back = RolledBack(world)
    query = rolled_back.restarted(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert query.batch() == [103, 104, 105]
    assert "[LEDGER_SET_BACK]" in caplog.text
    assert "going on from 0:4:0: what was written before it since then is not read" in caplog.text
    caplog.clear()
    again = WorldQuery(world, offset=query.offset)  # what it has seen since is there
    assert again.batch() == []
    assert world.log().view().head.set_back is not None  # the others are told all the same
    assert said(caplog) == []


def test_without_fail_on_data_loss_a_logged_batch_reads_what_is_there_now(world):
    rolled_back = RolledBack(world, maxRowsPerTrigger="3")
    start, end, rows = next(batch for batch in reversed(rolled_back.batches) if batch[2])
    assert rows == [20, 21, 22]
    assert rolled_back.restarted(failOnDataLoss="false").read(start, end) == [100, 101, 102]


@pytest.mark.parametrize("then", [(100,), (100, 101)])
def test_without_fail_on_data_loss_a_position_that_is_gone_leads_to_the_next_one(world, then):
    """The query was in the middle of an entry that has fewer rows now."""
    log, backup = world.log(), snapshot(world.server)
    append(log, 20, 21, 22)
    query = WorldQuery(world, maxRowsPerTrigger="11")
    query.batch()
    assert fields(query.offset)["pos"] == "0:3:2"
    restore(world.server, backup)
    append(world.log(), *then)
    append(world.log(), 200)
    assert flat(WorldQuery(world, offset=query.offset, failOnDataLoss="false").all()) == [200]


def test_without_fail_on_data_loss_a_query_past_the_end_goes_on_from_the_end(world):
    rolled_back = RolledBack(world, then=(100,), after=())
    restore(world.server, rolled_back.backup)
    query = rolled_back.restarted(failOnDataLoss="false")
    assert query.batch() == []
    assert (fields(query.offset)["pos"], fields(query.offset)["records"]) == ("0:3:0", 9)
    accept_the_loss(world.log())
    append(world.log(), 100)
    assert query.batch() == [100]


def test_a_query_that_runs_through_a_rollback_fails_or_goes_on_as_it_was_told_to(world, caplog):
    backup = snapshot(world.server)
    append(world.log(), 20)
    careful, careless = WorldQuery(world), WorldQuery(world, failOnDataLoss="false")
    assert careful.batch() == careless.batch() == [*range(9), 20]
    restore(world.server, backup)
    careful.log._hint(), careless.log._hint()  # their watches fire
    with pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*failOnDataLoss=false"):
        careful.reader.latestOffset(careful.offset, careful.reader.getDefaultReadLimit())
    with caplog.at_level(logging.WARNING):
        assert Query.batch(careless) == []
    assert "failOnDataLoss is false" in caplog.text
    accept_the_loss(world.log())
    append(world.log(), 30)
    assert careless.batch() == [30]


def test_after_a_repair_only_the_query_that_had_seen_what_is_gone_is_told(world):
    rolled_back = RolledBack(world)
    with pytest.raises(DataLoss):
        rolled_back.restarted().plan()
    accept_the_loss(world.log())
    with pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*was repaired since.*failOnDataLoss=false"):
        rolled_back.restarted().plan()
    assert world.log().view().head.set_back is None  # nobody else is stopped
    append(world.log(), 200)
    reading = WorldQuery(world)
    assert reading.batch()[-1] == 200
    assert WorldQuery(world, offset=reading.offset).batch() == []
    assert rolled_back.restarted(failOnDataLoss="false").batch() == [103, 104, 105, 200]


@pytest.mark.parametrize("options", [{}, {"subscription": "s"}], ids=["", "subscription"])
def test_after_what_was_lost_is_brought_back_a_query_goes_on_without_loss_I1_I18(world, options):
    world.storage = root.open_root(world.metadata(), world.storage.uri)
    log = world.log()
    CursorNode(log, "s").ensure("earliest")
    backup = snapshot(world.server)
    append(log, 20, 21, 22)
    query = WorldQuery(world, **options)
    assert query.batch()[-3:] == [20, 21, 22]
    snapshots.leave(log)
    query.stop()
    restore(world.server, backup)
    repair.bring_back(world.log())
    append(world.log(), 30)
    again = WorldQuery(world, offset=query.offset, **options)
    assert again.batch() == [30]
    again.stop()


def test_a_query_that_had_only_seen_what_is_left_goes_on(world):
    rolled_back = RolledBack(world)
    start, end, rows = rolled_back.batches[0]  # up to 0:2:0
    assert rows == [0, 1, 2, 3, 4, 5]
    query = WorldQuery(world, offset=end)
    assert query.read(start, end) == rows
    assert query.batch() == [6, 7, 8, 100, 101, 102, 103, 104, 105]


def test_an_offset_at_an_end_that_later_commits_have_not_changed_is_no_loss(world):
    """It knows only commits of which it has read a record."""
    query = WorldQuery(world)
    query.batch()
    backup = snapshot(world.server)
    append(world.log(), 20)
    restore(world.server, backup)
    append(world.log(), 30)
    assert WorldQuery(world, offset=query.offset).batch() == [30]


def test_options_with_an_offset_that_knows_a_lost_commit_are_refused_and_stop_nobody(world):
    rolled_back = RolledBack(world)
    text = json.dumps(rolled_back.offset)
    for name in ("startingOffsets", "endingOffsets"):
        with pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*commit 3:.*give only that: 0:4:0"):
            WorldQuery(world, **{name: text}).plan()
    assert flat(WorldQuery(world, startingOffsets="0:4:0").all()) == [103, 104, 105]
    CursorNode(world.log(), "s").ensure("earliest")
    cursor = CursorHandle(world.log(), "s")
    for move in (cursor.preview, cursor.reset):
        with pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*give only that: 0:4:0"):
            move(text)
    assert cursor.reset("0:4:0").revision == 1
    append(world.log(), 200)  # a person may have mistyped it: nothing was written into the head


# -- which cursor -------------------------------------------------------------------------------------------------


def test_a_cursor_made_again_at_the_same_revision_and_epoch_is_recognised_by_its_id(world):
    query = WorldQuery(world, subscription="s", maxRowsPerTrigger="4")
    query.batch()
    start, end = query.plan()
    query.stop()
    before = CursorNode(world.log(), "s").refresh(sync=True)
    CursorHandle(world.log(), "s").delete()
    CursorNode(world.log(), "s").ensure("earliest")
    other = WorldQuery(world, subscription="s")
    other.stop()
    now = CursorNode(world.log(), "s").refresh(sync=True)
    assert (now.revision, now.epoch) == (before.revision, before.epoch)
    again = WorldQuery(world, subscription="s", offset=end)
    for call in (again.plan, lambda: again.read(start, end), lambda: again.reader.commit(end)):
        with pytest.raises(Conflict, match=rf"LEDGER_CURSOR_RECREATED.*{before.id[:4].hex()}.*{now.id[:4].hex()}"):
            call()
    again.stop()
    assert CursorHandle(world.log(), "s").stats().mark_delete == Position(0, 0, 0)


def test_a_cursor_without_an_id_is_judged_by_its_epoch_as_before(world):
    CursorNode(world.log(), "s").ensure("earliest")
    CursorNode(world.log(), "s").update(lambda cursor: replace(cursor, id=b""))  # made before there were ids
    query = WorldQuery(world, subscription="s", maxRowsPerTrigger="4")
    query.batch()
    query.stop()
    assert "cursor" not in fields(query.offset)
    again = WorldQuery(world, subscription="s", offset=query.offset)
    assert again.batch() == [4, 5, 6, 7, 8]
    again.stop()
    CursorHandle(world.log(), "s").delete()
    third = WorldQuery(world, subscription="s", offset=again.offset)
    with pytest.raises(Conflict, match=r"LEDGER_CURSOR_RECREATED.*epoch 2"):
        third.plan()
    third.stop()


def test_a_query_may_begin_to_follow_a_subscription_or_cease_to(world):
    plain = WorldQuery(world, maxRowsPerTrigger="2")
    plain.batch()
    following = WorldQuery(world, subscription="s", offset=plain.offset, maxRowsPerTrigger="2")
    assert following.batch() == [2, 3]
    following.stop()
    assert WorldQuery(world, offset=following.offset).batch() == [4, 5, 6, 7, 8]


def test_a_reader_that_goes_on_after_it_was_stopped_knows_a_recreated_subscription_as_well_I8(world, monkeypatch):
    query = WorldQuery(world, subscription="s")
    query.batch()
    query.stop()
    CursorHandle(world.log(), "s").delete()
    CursorNode(world.log(), "s").ensure("earliest")
    session = OpenNamespace(world.metadata(), world.storage.uri, limits=world.limits, clock=world.clock)
    monkeypatch.setattr(planning, "shared_namespace", lambda *_: session)
    with pytest.raises(Conflict, match="LEDGER_CURSOR_RECREATED"):
        query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())
    assert CursorHandle(world.log(), "s").stats().mark_delete == Position(0, 0, 0)
