"""A server may be behind the others. What it has not seen yet is not gone: a "no" needs a synced look."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_ledger.base.position import EARLIEST
from pyspark_ledger.client import client_of
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.errors import DataLoss, InvalidInput, NotFound
from pyspark_ledger.lifecycle import repair
from pyspark_ledger.log import generations, places, root, topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.records import FileRef, Generation
from pyspark_ledger.testing.memory import Faults, MemoryMetadata, MemoryServer
from tests.support.flaky import Behind
from tests.support.worlds import SCHEMA, World, append


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_a_topic_made_a_moment_ago_is_found(world):
    made = topics.create_topic(world.metadata(), "new", SCHEMA)
    assert topics.get_topic(world.metadata(Behind(1)), "new") == made
    assert topics.find_topic(world.metadata(Behind(1)), "new") == made
    with pytest.raises(NotFound, match="LEDGER_TOPIC_NOT_FOUND"):
        topics.get_topic(world.metadata(Behind(1)), "never")


def test_lists_have_what_was_made_a_moment_ago(world):
    topics.create_topic(world.metadata(), "new", SCHEMA)
    CursorNode(world.log(), "s").ensure("earliest")
    with client_of(OpenNamespace(world.metadata(Behind(2)))) as client:
        assert client.topics() == ["new", "t"]
    with client_of(OpenNamespace(world.metadata(Behind(1)), world.storage.uri)) as client:
        assert [cursor.name for cursor in client.cursors("t")] == ["s"]


def test_a_namespace_made_a_moment_ago_is_not_new(tmp_path):
    server = MemoryServer()
    where = OpenNamespace(MemoryMetadata(server), str(tmp_path)).storage.uri
    assert root.open_root(MemoryMetadata(server, Behind(1)), None).uri == where
    with pytest.raises(InvalidInput, match="LEDGER_STORAGE_NOT_SET"):
        root.open_root(MemoryMetadata(MemoryServer(), Behind(1)), None)


def test_a_position_written_a_moment_ago_is_not_past_the_end(world):
    append(world.log(), 1, 2)
    end = world.log().view().head.end
    log = world.log(Behind(1))
    assert places.resolve(log, log.view(), end) == end
    with pytest.raises(DataLoss, match="LEDGER_POSITION_PAST_END"):
        places.resolve(log, log.view(), "0:9:0")


def test_a_generation_published_a_moment_ago_is_not_gone(world):
    published = Generation(1, EARLIEST, FileRef(0, bytes(16), 0, 0, 0), 0, 0, 0, 0)
    world.log().change_head(lambda head: replace(head, generation=published), "publishing")
    log = world.log(Behind(1))
    assert generations.numbered(log, log.view(), 1) == published
    with pytest.raises(DataLoss, match="LEDGER_GENERATION_GONE"):
        generations.numbered(log, log.view(), 2)


def test_an_offset_of_the_topic_that_took_a_name_over_is_not_said_to_be_of_a_deleted_one(world):
    """It is the log in memory that belongs to the deleted one."""
    old = world.topic
    topics.delete_topic(world.metadata(), "t")
    new = topics.create_topic(world.metadata(), "t", SCHEMA)
    outdated = Log(world.metadata(), world.storage, old)
    offset = f'{{"pos": "0:0:0", "topic": "{new.uuid}", "v": 1}}'
    with pytest.raises(NotFound, match=r"LEDGER_TOPIC_DELETED.*is another topic"):
        places.check_topic(outdated, places.parse(offset))
    with pytest.raises(InvalidInput, match="LEDGER_TOPIC_RECREATED"):
        places.check_topic(Log(world.metadata(), world.storage, new), places.parse(offset.replace(new.uuid, old.uuid)))


def test_an_older_head_than_the_one_in_memory_is_no_rollback_I18(world):
    faults = Faults(max_lag=1)
    log = world.log(faults)
    append(world.log(), 1)
    assert log.refresh().head.records == 1
    faults.next_read("stale")
    assert log.refresh().head.records == 1
    assert repair.inspect(log) is None


def test_a_topic_that_a_server_does_not_know_yet_is_not_gone_I14(world):
    assert world.log(Behind(world.server.time)).view().head.records == 0


def test_another_topic_of_the_namespace_that_a_server_does_not_know_yet_is_there_I14(world):
    made = topics.create_topic(world.metadata(), "new", SCHEMA)
    assert world.log(Behind(world.server.time)).sibling(made.uuid) is not None


# -- what is in memory ---------------------------------------------------------------------------------------------


def test_who_watches_a_topic_sees_a_commit_without_asking_again_I17(world):
    log = world.log(watch=True)
    log.view()
    append(world.log(), 1)
    assert log.view().head.records == 1


def test_a_head_that_was_written_does_not_replace_a_newer_one_that_another_thread_has_read_I2(world):
    log = world.log()
    append(log, 1)
    transact = log.metadata.transact

    def and_then(ops):
        log.metadata.transact = transact
        transact(ops)
        append(world.log(), 2)
        log.refresh()  # another thread

    log.metadata.transact = and_then
    log.change_head(lambda head: head, "a change")
    assert log.view().head.records == 2
