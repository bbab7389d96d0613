"""Namespaces and topics: made once, found, deleted whole, whatever becomes of an answer."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_ledger.errors import Conflict, InvalidInput, NotFound, OutcomeUnknown
from pyspark_ledger.log import root, seal, topics
from pyspark_ledger.metadata.port import Delete, HeadKey, NamespaceKey, RootKey, TopicKey
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults, MemoryMetadata, MemoryServer
from tests.support.worlds import SCHEMA, SMALL, World, append

TWO = pa.schema([("order_id", pa.int64()), ("amount", pa.float64())])


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


def client(server: MemoryServer, *faults) -> MemoryMetadata:
    """A client whose next transactions fail in these ways."""
    planned = Faults()
    planned.next_transact(*faults)
    return MemoryMetadata(server, planned)


# -- the namespace -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [None, "applied_then_lost"])
def test_who_makes_a_namespace_says_where_files_go_and_later_users_need_not(server, fault, tmp_path):
    assert root.open_root(client(server, fault), str(tmp_path)).uri == tmp_path.as_uri()
    assert root.open_root(client(server), None).uri == tmp_path.as_uri()
    assert root.open_root(client(server), f"{tmp_path}/").uri == tmp_path.as_uri()
    with pytest.raises(InvalidInput, match=r"LEDGER_STORAGE_CONFLICT.*elsewhere.*keeps its files in"):
        root.open_root(client(server), "/elsewhere")


def test_a_new_namespace_without_a_storage_is_an_error_that_says_what_to_set(server):
    with pytest.raises(InvalidInput, match=r"LEDGER_STORAGE_NOT_SET.*LEDGER_STORAGE"):
        root.open_root(client(server), None)


@pytest.mark.parametrize("fault", ["lost_before", "delayed", "expired"])
def test_a_namespace_whose_making_got_lost_is_made_all_the_same_I14(server, tmp_path, fault):
    assert root.open_root(client(server, fault), str(tmp_path)).uri == tmp_path.as_uri()
    assert client(server).read(NamespaceKey()).record.storage == tmp_path.as_uri()


# -- making a topic ----------------------------------------------------------------------------------------------


def test_a_topic_whose_answer_was_lost_is_found_to_be_ours_I14(server):
    made = topics.create_topic(client(server, "applied_then_lost"), "t", SCHEMA)
    assert topics.get_topic(client(server), "t") == made


@pytest.mark.parametrize("fault", ["lost_before", "delayed", "expired"])
def test_a_topic_whose_request_got_lost_is_made_all_the_same_I14(server, fault):
    made = topics.create_topic(client(server, fault), "t", SCHEMA)
    server.deliver_delayed()
    assert topics.get_topic(client(server), "t") == made


def test_a_topic_that_was_not_made_is_never_said_to_be_there_I14(server):
    lost = MemoryMetadata(server, Faults(lost_before=1.0), SeededClock())
    lost.sync = lambda: lost._clock.sleep(1)
    with pytest.raises(OutcomeUnknown):
        topics.create_topic(lost, "t", SCHEMA, clock=lost._clock)
    assert topics.list_topics(client(server)) == []


@pytest.mark.parametrize("fault", [None, "lost_before"])
def test_a_topic_that_somebody_else_made_is_not_ours_I14(server, fault):
    theirs = topics.create_topic(client(server), "t", SCHEMA)
    with pytest.raises(Conflict, match=r"LEDGER_TOPIC_EXISTS.*topic 't' exists already"):
        topics.create_topic(client(server, fault), "t", SCHEMA)
    assert topics.get_topic(client(server), "t") == theirs


def test_a_key_that_is_no_column_is_refused_with_the_nearest_one_and_nothing_is_made(server):
    with pytest.raises(
        InvalidInput, match=r"keyColumn 'order' is not a column: order_id, amount \(did you mean 'order_id'"
    ):
        topics.create_topic(client(server), "t", TWO, key="order")
    with pytest.raises(InvalidInput, match=r"versionColumn 'zzz' is not a column: order_id, amount$"):
        topics.create_topic(client(server), "t", TWO, version_column="zzz")
    assert topics.list_topics(client(server)) == []


def test_a_topic_that_is_not_there_is_an_error_with_the_nearest_name(server):
    with pytest.raises(NotFound, match=r"LEDGER_TOPIC_NOT_FOUND.*'ordres'.*a first write through Spark makes it"):
        topics.get_topic(client(server), "ordres")
    topics.create_topic(client(server), "orders", SCHEMA)
    with pytest.raises(NotFound, match=r"did you mean 'orders'\?"):
        topics.get_topic(client(server), "ordres")


# -- deleting one ------------------------------------------------------------------------------------------------


def nothing_is_left(world: World) -> bool:
    metadata, uuid = world.metadata(), world.topic.uuid
    return metadata.read(RootKey(uuid)) is None and metadata.children(RootKey(uuid)) == []


@pytest.fixture
def world(tmp_path) -> World:
    world = World(tmp_path, SMALL)
    for number in range(6):  # more than one ledger
        append(world.log(), number)
    return world


@pytest.mark.parametrize("fault", [None, "applied_then_lost"])
def test_a_deleted_topic_leaves_nothing_in_zookeeper_I13_I14(world, fault):
    writer = world.log()
    writer.refresh()
    assert topics.delete_topic(client(world.server, fault), "t") == world.topic
    assert nothing_is_left(world)
    with pytest.raises(NotFound, match="LEDGER_TOPIC_DELETED"):
        append(writer, 7)
    again = topics.create_topic(world.metadata(), "t", SCHEMA)
    assert again.uuid != world.topic.uuid


@pytest.mark.parametrize("fault", [None, "applied_then_lost", "lost_before", "delayed", "expired"])
def test_a_deleted_topic_leaves_a_mark_on_its_name_until_one_of_that_name_is_made_I14(world, fault):
    assert topics.find_deleted(world.metadata(), "t") is None
    for _ in range(2):
        uuid = topics.delete_topic(client(world.server, fault), "t").uuid
        assert topics.find_deleted(world.metadata(), "t").uuid == uuid
        topics.create_topic(client(world.server, fault), "t", SCHEMA)
        assert topics.find_deleted(world.metadata(), "t") is None


@pytest.mark.parametrize("late", range(1, 8))
def test_lost_answers_on_the_way_leave_nothing_behind_either_I13(world, late):
    topics.delete_topic(client(world.server, *[None] * late, "lost_before"), "t")
    assert nothing_is_left(world)


@pytest.mark.parametrize("fault", ["lost_before", "delayed", "expired"])
def test_a_deletion_whose_request_got_lost_is_done_all_the_same_I14(world, fault):
    assert topics.delete_topic(client(world.server, fault), "t") == world.topic
    assert nothing_is_left(world)


def test_a_deletion_that_did_not_happen_is_not_said_to_have_I14(world):
    lost = MemoryMetadata(world.server, Faults(lost_before=1.0), SeededClock())
    lost.sync = lambda: lost._clock.sleep(1)
    with pytest.raises(OutcomeUnknown):
        topics.delete_topic(lost, "t", clock=lost._clock)
    assert topics.get_topic(world.metadata(), "t") == world.topic
    assert world.read() == list(range(6))


def test_a_topic_that_is_deleted_twice_at_once_is_deleted_once_I14(world, monkeypatch):
    mine = client(world.server)
    found = topics.get_topic(mine, "t")
    topics.delete_topic(world.metadata(), "t")
    monkeypatch.setattr(topics, "get_topic", lambda *_: found)  # what was read before the other one came
    with pytest.raises(Conflict, match="is being deleted by somebody else, or was a moment ago"):
        topics.delete_topic(mine, "t")
    assert nothing_is_left(world)


def test_a_reader_is_told_that_its_topic_was_deleted_and_what_that_means(world):
    log = world.log()
    log.refresh()
    world.metadata().transact([Delete(HeadKey(world.topic.uuid))])
    with pytest.raises(
        NotFound, match=r"LEDGER_TOPIC_DELETED.*a topic made since under the same name is another topic"
    ):
        log.refresh()


def test_an_idle_topic_that_is_sealed_has_eleven_nodes_I13(tmp_path):
    world = World(tmp_path, limits=replace(SMALL, ledger_age_ms=0))
    log = world.log()
    append(log, 1)
    seal.seal(log)

    def below(key) -> list:
        return [key, *(each for child in log.metadata.children(key) for each in below(child))]

    assert len([TopicKey("t"), *below(RootKey(world.topic.uuid))]) == 11
