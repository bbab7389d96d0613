"""The Python client on a real ZooKeeper."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pyspark_ledger import Position
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.client import LedgerClient, client_of, namespace_of, open_namespace
from pyspark_ledger.errors import Conflict, CorruptData, InvalidInput, NotFound
from pyspark_ledger.metadata.port import AnyKey, CommitKey, RootKey

SCHEMA = pa.schema([pa.field("order_id", pa.int64(), False), pa.field("note", pa.string())])


@pytest.fixture
def client(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", SCHEMA, key="order_id")
        yield client


def ids(client, topic="orders", start="earliest", end="latest"):
    return [record["order_id"] for record in client.reader(topic, start, end)]


def test_send_flush_read(client):
    with client.producer("orders", name="web") as producer:
        producer.send({"order_id": 1, "note": "first"})
        producer.send({"order_id": 2})
        assert ids(client) == []
        producer.flush()
        assert ids(client) == [1, 2]
        producer.send({"order_id": 3})
    record = list(client.reader("orders", "earliest", "latest"))[1]
    assert (record.position, record.value, record.producer) == (
        Position(0, 0, 1),
        {"order_id": 2, "note": None},
        "web",
    )
    assert abs(record.publish_time - datetime.now(UTC)) < timedelta(minutes=1)
    assert ids(client) == [1, 2, 3]


def test_a_reader_without_an_end_waits_for_more(client):
    seen: list[int] = []
    reader = client.reader("orders")
    enough = threading.Event()

    def follow():
        for record in reader:
            seen.append(record["order_id"])
            if len(seen) == 30:
                enough.set()
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    with client.producer("orders") as producer:
        for number in range(30):
            producer.send({"order_id": number})
            producer.flush()
    assert enough.wait(30)
    assert seen == list(range(30))
    thread.join(5)


def test_positions_and_times_select(client):
    with client.producer("orders") as producer:
        for number in range(6):
            producer.send({"order_id": number})
            if number % 2:
                producer.flush()
    assert ids(client, start="0:1:1") == [3, 4, 5]
    assert ids(client, start=Position(0, 1, 0), end="0:2:0") == [2, 3]
    assert ids(client, start=datetime.now(UTC) + timedelta(hours=1)) == []
    assert ids(client, start=datetime(2000, 1, 1)) == list(range(6))
    assert next(iter(client.reader("orders", "earliest", "latest", columns=["note"]))).value == {"note": None}


def test_a_read_of_no_column_gives_positions(client):
    with client.producer("orders") as producer:
        for n in range(3):
            producer.send({"order_id": n})
    records = list(client.reader("orders", end="latest", columns=[]))
    assert [(record.position, record.value) for record in records] == [(Position(0, 0, n), {}) for n in range(3)]
    assert [batch.num_rows for batch in client.reader("orders", end="latest", columns=[]).batches()] == [3]


def test_arrow_batches_go_in_and_come_out(client):
    table = pa.table({"order_id": range(100_000), "note": pa.nulls(100_000, pa.large_string())})
    with client.producer("orders") as producer:
        producer.send_batch(table)
    back = pa.Table.from_batches(client.reader("orders", "earliest", "latest").batches())
    assert back.column("order_id").to_pylist() == list(range(100_000))


def test_a_bad_record_changes_nothing_and_names_the_column(client):
    producer = client.producer("orders")
    with pytest.raises(InvalidInput, match="no column 'colour'"):
        producer.send({"order_id": 1, "colour": "red"})
    with pytest.raises(InvalidInput, match="column 'order_id' of topic 'orders' is int64, and 'one' does not fit"):
        producer.send({"order_id": "one"})
    with pytest.raises(InvalidInput, match="column 'order_id' is null"):
        producer.send({"note": "no key"})
    producer.close()
    assert client.end("orders") == Position(0, 0, 0)


@pytest.mark.parametrize("name", ["a/b", "..", "", "é", "x" * 201, ".hidden", "-dash"])
def test_a_topic_is_a_name_not_a_path(client, name):
    with pytest.raises(InvalidInput, match="LEDGER_INVALID_TOPIC_NAME"):
        client.create_topic(name, SCHEMA)


def test_missing_and_existing_topics_are_errors_by_name(client):
    with pytest.raises(NotFound, match=r"LEDGER_TOPIC_NOT_FOUND.*did you mean 'orders'"):
        client.reader("order")
    with pytest.raises(Conflict, match="LEDGER_TOPIC_EXISTS"):
        client.create_topic("orders", SCHEMA)
    with pytest.raises(InvalidInput, match=r"keyColumn 'order_ids' is not a column.*did you mean 'order_id'"):
        client.create_topic("other", SCHEMA, key="order_ids")
    assert client.topics() == ["orders"]


def test_the_storage_is_recorded_once_and_for_all(client, namespace, storage_root, tmp_path):
    with LedgerClient(namespace) as other:
        assert namespace_of(other).storage.uri == namespace_of(client).storage.uri
    with (
        LedgerClient(namespace, str(tmp_path / "elsewhere")) as other,
        pytest.raises(InvalidInput, match="LEDGER_STORAGE_CONFLICT"),
    ):
        other.topics()
        _ = namespace_of(other).storage
    with LedgerClient(namespace + "-new") as other, pytest.raises(InvalidInput, match="LEDGER_STORAGE_NOT_SET"):
        other.create_topic("orders", SCHEMA)


def test_a_recreated_topic_is_another_topic(client):
    old = client.producer("orders")
    old.send({"order_id": 1})
    old.flush()
    client.delete_topic("orders")
    client.create_topic("orders", SCHEMA)
    old.send({"order_id": 2})
    with pytest.raises(NotFound, match="LEDGER_TOPIC_DELETED"):
        old.flush()
    assert ids(client) == []
    assert list(namespace_of(client).storage.list(client.topic("orders").uuid)) == []


def test_a_damaged_file_is_named(client, tmp_path):
    with client.producer("orders") as producer:
        producer.send({"order_id": 1})
    [path] = list(namespace_of(client).storage.list(client.topic("orders").uuid))
    file = tmp_path / "storage" / path
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CorruptData, match=file.name):
        ids(client)


def test_two_producers_at_once_lose_and_double_nothing_I1_I2(client, namespace):
    def work(first):
        with LedgerClient(namespace) as own, own.producer("orders") as producer:
            for number in range(first, first + 60):
                producer.send({"order_id": number})
                producer.flush()

    threads = [threading.Thread(target=work, args=(base,)) for base in (0, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = ids(client)
    assert [n for n in found if n < 1000] == list(range(60))
    assert [n for n in found if n >= 1000] == list(range(1000, 1060))


def node_count(client) -> tuple[int, int]:
    """All nodes of the topic, and those that are commits."""
    metadata = namespace_of(client).metadata

    def below(key: AnyKey) -> list[AnyKey]:
        return [each for child in metadata.children(key) for each in (child, *below(child))]

    nodes = below(RootKey(client.topic("orders").uuid))
    return len(nodes), sum(isinstance(key, CommitKey) for key in nodes)


PROGRAM = """
import sys
from pyspark_ledger import LedgerClient
with LedgerClient(sys.argv[1]) as client:
    producer = client.producer("orders", name="program")
    last = producer.last_sequence_id
    for n in range(0 if last is None else last + 1, 1_000_000):
        producer.send({"order_id": n}, sequence_id=n)
        if n % 7 == 0:
            producer.flush()
            print(n, flush=True)
"""


def test_a_program_that_is_killed_again_and_again_writes_every_record_once_I1_I5(client, namespace):
    """It knows nothing but where the log says it was; kill -9 falls anywhere between two steps of a flush."""
    confirmed = -1
    for kill_after in (1, 30, 7, 60):
        program = subprocess.Popen([sys.executable, "-c", PROGRAM, namespace], stdout=subprocess.PIPE, text=True)
        for _ in range(kill_after):
            confirmed = int(program.stdout.readline())
        time.sleep(random.Random(kill_after).uniform(0, 0.01))
        program.kill()
        program.wait()
        program.stdout.close()
        found = ids(client)
        assert found == list(range(len(found)))
        assert len(found) > confirmed
    (state,) = client.producers("orders")
    assert (state.name, state.sequence, state.query) == ("program", len(ids(client)) - 1, "")
    assert abs(state.publish_time - datetime.now(UTC)) < timedelta(minutes=1)


CONSUMER = """
import sys
from pyspark_ledger.client import client_of
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata
with client_of(OpenNamespace(ZooKeeperMetadata(sys.argv[1], session_timeout_s=4.0))) as client:
    consumer = client.consumer("orders", "billing")
    for message in consumer:
        if message["order_id"] % 3:
            consumer.acknowledge(message)
            consumer.flush()
        print(message["order_id"], flush=True)
"""


def test_a_killed_consumers_successor_gets_what_was_not_acknowledged_and_a_live_reset_moves_it(client, namespace):
    with client.producer("orders") as producer:
        for n in range(1_000):
            producer.send({"order_id": n})
    program = subprocess.Popen([sys.executable, "-c", CONSUMER, namespace], stdout=subprocess.PIPE, text=True)
    for n in range(20):
        assert int(program.stdout.readline()) == n
    program.kill()
    program.wait()
    program.stdout.close()
    with client.consumer("orders", "billing", type="failover") as consumer:
        found = [message["order_id"] for message in iter(lambda: consumer.receive(0.5), None)]
        assert [n for n in found if n < 20] == list(range(0, 20, 3))
        assert [n for n in found if n >= 20] == [n for n in range(20, 1_000) if n in found]
        assert found[-1] == 999
        client.cursor("orders", "billing").reset(Position(0, 0, 995))
        assert [message["order_id"] for message in iter(lambda: consumer.receive(0.5), None)] == list(range(995, 1_000))
    (stats,) = client.cursors("orders")
    assert (stats.name, stats.owner, stats.revision, stats.backlog_records) == ("billing", "", 1, 5)
    with pytest.raises(InvalidInput, match="type 'queue' is not one of exclusive, failover, shared, key_shared"):
        client.consumer("orders", "billing", type="queue")


def test_consumers_share_a_subscription_and_say_so(client):
    for options in ({"prefetch": 5}, {"ack_timeout_s": 1.0}):
        with pytest.raises(InvalidInput, match=r"LEDGER_INVALID_OPTION.*only for the types shared and key_shared"):
            client.consumer("orders", "labels", **options)
    for options in ({"prefetch": 0}, {"prefetch": "many"}, {"ack_timeout_s": 0.0}):
        with pytest.raises(InvalidInput, match=f"LEDGER_INVALID_OPTION.*{next(iter(options))}"):
            client.consumer("orders", "labels", "shared", **options)
    with client.producer("orders") as producer:
        for n in range(10):
            producer.send({"order_id": n})
    with (
        client.consumer("orders", "labels", "shared") as first,
        client.consumer("orders", "labels", "shared") as second,
    ):
        got = [message for message in (consumer.receive(5) for consumer in (first, second) * 5) if message is not None]
        assert sorted(message["order_id"] for message in got) == list(range(10))
        (stats,) = client.cursors("orders")
        assert (stats.sharing, len(stats.followers), sum(each.records for each in stats.members)) == ("shared", 2, 10)
    assert client.cursor("orders", "labels").stats().members == ()


def test_sealed_ledgers_leave_zookeeper_and_stay_readable_I13(namespace, storage_root):
    limits = Limits(commits_per_ledger=20, index_fanout=4)
    with client_of(open_namespace(namespace, storage_root, limits=limits)) as client:
        client.create_topic("orders", SCHEMA)
        with client.producer("orders") as producer:
            for number in range(250):
                producer.send({"order_id": number})
                producer.flush()
        nodes, commits = node_count(client)
        assert commits <= 20
        assert nodes <= 30
        assert ids(client) == list(range(250))
        assert ids(client, start="7:3:0") == list(range(143, 250))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_twenty_thousand_commits_leave_a_small_zookeeper_I13(client):
    with client.producer("orders") as producer:
        for number in range(20_000):
            producer.send({"order_id": number})
            producer.flush()
    assert node_count(client)[0] <= 2_000
    assert ids(client) == list(range(20_000))


def test_gc_over_the_client_keeps_what_is_named_I12(client, storage_root):
    with client.producer("orders") as producer:
        for number in range(5):
            producer.send({"order_id": number})
            producer.flush()
    sink = namespace_of(client).storage.create(f"{client.topic('orders').uuid}/00000000/{uuid.uuid4().hex}.arrow")
    sink.write(b"what a killed task left")
    sink.close()
    assert [(client.gc("orders").epoch, client.gc("orders").files) for _ in range(3)] == [(0, ())] * 3  # within a day
    with client_of(open_namespace(client.zookeeper, storage_root, limits=Limits(gc_grace_ms=0))) as eager:
        removed = [eager.gc("orders").files for _ in range(4)]
    assert [len(files) for files in removed] == [0, 0, 1, 0]
    assert ids(client) == list(range(5))


def test_a_producer_holds_a_bounded_amount_in_memory(client):
    producer = client.producer("orders")
    for number in range(20):
        producer.send({"order_id": number, "note": "x" * (1 << 20)})
    assert len(ids(client)) >= 16, "it appends by itself before memory runs out"
    producer.close()
    assert ids(client) == list(range(20))


def test_a_topic_on_s3_is_written_sealed_read_and_collected(namespace, s3_root):
    limits = Limits(commits_per_ledger=5, index_fanout=3, gc_grace_ms=0)
    with client_of(open_namespace(namespace, s3_root, limits=limits)) as client:
        client.create_topic("orders", SCHEMA)
        with client.producer("orders") as producer:
            for number in range(23):
                producer.send({"order_id": number})
                producer.flush()
        assert [bool(client.gc("orders").files) for _ in range(4)] == [False, False, True, False]
        assert ids(client) == list(range(23))
        client.delete_topic("orders")
        storage = namespace_of(client).storage
        assert list(storage.list("")) == [storage.marker]
