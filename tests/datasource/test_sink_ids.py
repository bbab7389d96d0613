"""The sink with sequence ids per record, on real Spark and a real ZooKeeper: run it again as you like (I1, I5)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.datasource import LedgerDataSource
from pyspark_ledger.errors import InvalidInput
from tests.support.worlds import IDS, append_ids

pytestmark = pytest.mark.spark


@pytest.fixture
def client(namespace, storage_root) -> Iterator[LedgerClient]:
    with LedgerClient(namespace, storage_root) as client:
        _ = namespace_of(client).storage
        yield client


@pytest.fixture(scope="module")
def readings(tmp_path_factory) -> str:
    """Six files of readings of five devices: 600 rows whose ids are distinct for each device, in no order."""
    folder = tmp_path_factory.mktemp("readings")
    offsets = random.Random(1).sample(range(600), 600)
    for n in range(6):
        rows = [{"device": f"device-{o % 5}", "offset": o, "value": o * 2} for o in offsets[n * 100 : n * 100 + 100]]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{n}.parquet")
    return str(folder)


def ids(client: LedgerClient) -> list[tuple[str, int]]:
    return [(record["device"], record["offset"]) for record in client.reader("out", end="latest")]


EVERYTHING = sorted((f"device-{n % 5}", n) for n in range(600))


class Ingestion:
    def __init__(self, spark, client, readings, checkpoint, files_per_batch, **options) -> None:
        frame = spark.readStream.schema("device string, offset long, value long")
        frame = frame.option("maxFilesPerTrigger", files_per_batch).parquet(readings)
        where = {"zookeeper": client.zookeeper, "sequenceColumn": "offset", "producerColumn": "device", **options}
        self._writer = frame.writeStream.format("ledger").options(**where)
        self._writer = self._writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)

    def start(self):
        return self._writer.start("out")

    def run(self) -> None:
        self.start().awaitTermination()


def test_an_ingestion_run_again_from_the_start_adds_nothing_and_writes_no_file_I5(spark, client, readings, tmp_path):
    Ingestion(spark, client, readings, tmp_path / "one", 100).run()
    assert sorted(ids(client)) == EVERYTHING
    head, files = (
        namespace_of(client).log("out").view().head,
        set(namespace_of(client).storage.list(client.topic("out").uuid)),
    )
    Ingestion(spark, client, readings, tmp_path / "two", 1).run()  # a new checkpoint and other batches
    assert namespace_of(client).log("out").view().head == head
    assert set(namespace_of(client).storage.list(client.topic("out").uuid)) == files
    assert {state.name: state.sequence for state in client.producers("out")} == {
        f"device-{n}": 595 + n for n in range(5)
    }


def test_two_overlapping_jobs_add_everything_once_I1_I5(spark, client, readings, tmp_path):
    jobs = [Ingestion(spark, client, readings, tmp_path / str(n), 100) for n in range(2)]
    for query in [job.start() for job in jobs]:
        query.awaitTermination()
    assert sorted(ids(client)) == EVERYTHING
    assert namespace_of(client).log("out").view().head.records == 600


def test_a_batch_write_that_mixes_old_and_new_adds_the_new_and_masks_the_rest_pulsar_6273(spark, client):
    """12,000 producers: too many to tell the tasks what is in the log, so the commit finds out."""
    options = {"zookeeper": client.zookeeper, "sequenceColumn": "n", "producerColumn": "who"}

    def write(rows):
        frame = rows.selectExpr("concat('p', id % 12000) AS who", "id AS n")
        frame.write.format("ledger").mode("append").options(**options).save("out")

    write(spark.range(0, 24_000, 1, 3))
    write(spark.range(18_000, 30_000, 1, 4))
    write(spark.range(0, 36_000, 1, 2).union(spark.range(30_000, 36_000, 1, 1)))
    found = spark.read.format("ledger").option("zookeeper", client.zookeeper).option("includeMetadata", "true")
    rows = found.load("out").selectExpr("n", "who", "_metadata.sequenceId", "_metadata.producer").collect()
    assert [row["n"] for row in rows] == list(range(36_000))
    assert all((row["sequenceId"], row["producer"]) == (row["n"], row["who"]) for row in rows)
    assert found.load("out").count() == 36_000  # reads no column, and still leaves masked rows out
    log = namespace_of(client).log("out")
    commits = log.view().open_commits
    assert [commit.dropped for commit in commits] == [0, 6_000, 36_000]
    assert any(entry.mask for commit in commits for entry in log.entries(commit))


def test_a_stream_over_masked_rows_is_exact_in_its_limits_and_its_order(spark, client, tmp_path):
    client.create_topic("ids", IDS)
    log = namespace_of(client).log("ids")
    for first in range(0, 60, 10):
        append_ids(log, [[("a", n) for n in range(max(0, first - 5), first + 10)]])
    source = spark.readStream.format("ledger").option("zookeeper", client.zookeeper)
    query = source.option("maxRowsPerTrigger", "7").load("ids").writeStream.format("ledger")
    query = query.option("zookeeper", client.zookeeper).option("checkpointLocation", str(tmp_path / "c"))
    running = query.trigger(availableNow=True).start("copy")
    running.awaitTermination()
    assert [record["seq"] for record in client.reader("copy", end="latest")] == list(range(60))
    sizes = [progress["numInputRows"] for progress in running.recentProgress if progress["numInputRows"]]
    assert sizes == [7] * 8 + [4]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"sequenceColumn": "offset"}, "'sequenceColumn' needs 'producerColumn', or 'producerName'"),
        ({"producerColumn": "device"}, "'producerColumn' needs 'sequenceColumn'"),
        (
            {"sequenceColumn": "offset", "producerColumn": "device", "producerName": "p"},
            "'producerName' and 'producerColumn' exclude each other",
        ),
        (
            {"sequenceColumn": "offset", "producerName": "p", "sequenceId": "3"},
            "'sequenceId' and 'sequenceColumn' exclude each other",
        ),
        (
            {"sequenceColumn": "offset", "producerName": "p", "deduplication": "none"},
            "'sequenceColumn' and 'deduplication=none' exclude each other",
        ),
        ({"sequenceColumn": "ofset", "producerName": "p"}, "sequenceColumn 'ofset' is not a column"),
        ({"sequenceColumn": "device", "producerName": "p"}, "sequenceColumn 'device' is of type string"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_made(client, options, problem):
    schema = StructType([StructField("device", StringType()), StructField("offset", LongType())])
    for writer in ("writer", "streamWriter"):
        source = LedgerDataSource({"zookeeper": client.zookeeper, "topic": "out", **options})
        with pytest.raises(InvalidInput, match=rf"LEDGER_INVALID_OPTION.*{problem}"):
            getattr(source, writer)(schema, overwrite=False)
    assert client.topics() == []


def test_spark_shows_which_option_makes_no_sense(spark, client):
    rows = spark.createDataFrame([("d", 1)], "device string, offset long")
    write = rows.write.format("ledger").mode("append").options(zookeeper=client.zookeeper, producerName="p")
    with pytest.raises(Exception, match=r"LEDGER_INVALID_OPTION.*sequenceColumn 'device' is of type string"):
        write.option("sequenceColumn", "device").save("out")
    assert client.topics() == []


def test_one_producer_name_for_all_records_and_a_missing_id_is_an_error_that_names_the_column(spark, client):
    options = {"zookeeper": client.zookeeper, "sequenceColumn": "offset", "producerName": "import"}

    def write(*offsets):
        rows = spark.createDataFrame([(offset,) for offset in offsets], "offset int")
        rows.write.format("ledger").mode("append").options(**options).save("out")

    write(1, 2, 3)
    write(2, 3, 4)
    with pytest.raises(Exception, match=r"LEDGER_NO_SEQUENCE_ID.*'offset'"):
        write(5, None)
    assert [record["offset"] for record in client.reader("out", end="latest")] == [1, 2, 3, 4]
    (state,) = client.producers("out")
    assert (state.name, state.sequence, state.query, state.per_record) == ("import", 4, "", True)


def test_a_topic_or_a_namespace_without_deduplication_refuses_a_sink_that_asks_for_it(spark, client, tmp_path):
    rows = spark.createDataFrame([("d", 1)], "device string, offset long")
    ids = {"sequenceColumn": "offset", "producerColumn": "device"}

    def write(**options: str) -> None:
        rows.write.format("ledger").mode("append").options(zookeeper=client.zookeeper, **options).save("out")

    write(**ids)
    client.set_policies("out", deduplication=False)
    for options in (ids, {"producerName": "p", "sequenceId": "1"}):
        with pytest.raises(Exception, match="LEDGER_DEDUPLICATION_OFF"):
            write(**options)
    write(deduplication="none")
    client.set_policies("out", deduplication=None)
    client.set_namespace_policies(deduplication=False)
    with pytest.raises(InvalidInput, match="LEDGER_DEDUPLICATION_OFF"):
        client.producer("out", name="p")
    client.set_policies("out", deduplication=True)  # the topic's own policy wins
    write(sequenceColumn="offset", producerName="q")
    assert len(list(client.reader("out", end="latest"))) == 3


def test_ranges_too_long_for_a_task_result_travel_as_files(spark, client):
    options = {"zookeeper": client.zookeeper, "sequenceColumn": "n", "producerColumn": "who"}
    rows = spark.range(0, 60_000, 1, 2).selectExpr("concat('producer-', uuid()) AS who", "id AS n").cache()
    for _ in range(2):  # 30,000 names in each task: about a megabyte of ranges
        rows.write.format("ledger").mode("append").options(**options).save("out")
    assert namespace_of(client).log("out").view().head.records == 60_000
    assert len(client.producers("out")) == 60_000
