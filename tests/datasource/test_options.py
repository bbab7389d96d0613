"""Every wrong option is an error that names the option and says what is right, and it changes nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.datasource import LedgerDataSource
from pyspark_ledger.datasource.options import ReadOptions, TokenOptions, WriteOptions
from pyspark_ledger.errors import InvalidInput, LedgerError, NotFound
from pyspark_ledger.log.places import Place
from pyspark_ledger.metadata.records import Topic
from tests.support.query import parse

SCHEMA = StructType([StructField("n", LongType()), StructField("s", StringType())])


def read(**options: str) -> ReadOptions:
    return ReadOptions.parse({"topic": "t", **options})


def write(**options: str) -> WriteOptions:
    return WriteOptions.parse({"topic": "t", **options})


# -- names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        # typing errors
        ("startingOffset", "startingOffsets"),
        ("maxRowPerTrigger", "maxRowsPerTrigger"),
        ("maxBytePerTriger", "maxBytesPerTrigger"),
        ("minPartition", "minPartitions"),
        ("failOnDataloss_", "failOnDataLoss"),
        ("zookeper", "zookeeper"),
        ("storag", "storage"),
        ("producer", "producerName"),
        ("column", "columns"),
        ("mergeSchemas", "mergeSchema"),
        ("createTopics", "createTopic"),
        # Kafka
        ("maxOffsetsPerTrigger", "maxRowsPerTrigger"),
        ("minOffsetsPerTrigger", "minRowsPerTrigger"),
        ("subscribe", "topic"),
        ("subscribePattern", "topics"),
        ("assign", "topic"),
        ("kafka.bootstrap.servers", "zookeeper"),
        ("includeHeaders", "includeMetadata"),
        # Delta and files
        ("txnAppId", "producerName"),
        ("txnVersion", "sequenceId"),
        ("maxFilesPerTrigger", "maxRowsPerTrigger"),
        # Pulsar
        ("service.url", "zookeeper"),
        ("maxEntriesPerTrigger", "maxRowsPerTrigger"),
        ("topicsPattern", "topics"),
    ],
)
@pytest.mark.parametrize("parse", [read, write])
def test_an_unknown_option_names_the_nearest_right_one(parse, wrong, right):
    with pytest.raises(InvalidInput) as caught:
        parse(**{wrong: "1"})
    assert str(caught.value) == f"[LEDGER_UNKNOWN_OPTION] there is no option '{wrong}'; use '{right}'"


def test_a_list_of_topics_leads_to_the_option_for_several():
    """As Kafka's users type it."""
    with pytest.raises(InvalidInput, match=r"LEDGER_UNKNOWN_OPTION.* no option 'subscribe'; use 'topics'"):
        read(subscribe="a,b")
    for several in ({"path": "a,b"}, {"topic": "a,b"}):
        with pytest.raises(InvalidInput, match=r"LEDGER_INVALID_TOPIC_NAME.*option topics='a,b'; a write has one"):
            ReadOptions.parse(several)


def test_an_option_like_no_other_gets_the_whole_list():
    with pytest.raises(InvalidInput, match=r"there is no option 'qqq'; the options are .*startingOffsets"):
        read(qqq="1")


@pytest.mark.parametrize("spell", [str.lower, str.upper, str])
def test_names_are_case_insensitive(spell):
    options = read(**{spell("maxRowsPerTrigger"): "7", spell("failOnDataLoss"): "FALSE"})
    assert (options.max_rows, options.fail_on_data_loss) == (7, False)


def test_what_spark_adds_by_itself_is_not_unknown():
    added = {
        "path": "t",
        "paths": "[]",
        "checkpointLocation": "/c",
        "queryName": "q",
        "owner": "me",
        "provider": "ledger",
        "location": "l",
        "option.x": "y",
    }
    read(**added)
    assert write(**added).checkpoint == "/c"


# -- values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("maxRowsPerTrigger", "many", "whole number"),
        ("maxRowsPerTrigger", "0", "at least 1"),
        ("maxRowsPerTrigger", "1.5", "whole number"),
        ("minRowsPerTrigger", "-1", "at least 1"),
        ("minPartitions", "", "whole number"),
        ("maxBytesPerTrigger", "64q", "64m"),
        ("maxBytesPerTrigger", "-1", "number of bytes"),
        ("maxBytesPerTrigger", "0", "number of bytes"),
        ("maxTriggerDelay", "soon", "15m"),
        ("maxTriggerDelay", "-5s", "duration"),
        ("startingOffsets", "begin", "earliest, latest, a position such as 3:17:0"),
        ("startingOffsets", "1:2", "3:17:0"),
        ("startingOffsets", "-1:0:0", "3:17:0"),
        ("startingOffsets", '{"initial": true}', "an offset's JSON"),
        ("startingOffsets", '{"pos": 5}', "an offset's JSON"),
        ("endingOffsets", '{"pos": "0:0:0"', "an offset's JSON"),
        ("endingOffsets", "", "earliest, latest"),
        ("startingTimestamp", "yesterday", "ISO 8601"),
        ("endingTimestamp", "2026-13-01", "ISO 8601"),
        ("includeMetadata", "yes", "true or false"),
        ("includeMetadata", "token,offset", "some of the fields topic, ledgerId"),
        ("includeMetadata", "token,", "some of the fields"),
        ("failOnDataLoss", "1", "true or false"),
        ("onSchemaChange", "stop", "fail, ignore"),
        ("columns", "a,,b", "column names"),
        ("columns", "a,a", "each once"),
        ("zookeeper", "  ", "not be empty"),
        ("storage", "", "not be empty"),
    ],
)
def test_a_read_option_of_the_wrong_type_says_which_and_what_is_right(name, value, hint):
    with pytest.raises(InvalidInput) as caught:
        read(**{name: value})
    assert str(caught.value).startswith(f"[LEDGER_INVALID_OPTION] option '{name}' is '{value}'")
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("deduplication", "on", "sequence"),
        ("compression", "gzip", "lz4, zstd, none"),
        ("mergeSchema", "maybe", "true or false"),
        ("createTopic", "if it is new", "true or false"),
        ("keyColumn", "", "not be empty"),
        ("versionColumn", " ", "not be empty"),
        ("producerName", "", "not be empty"),
    ],
)
def test_a_write_option_of_the_wrong_type_says_which_and_what_is_right(name, value, hint):
    with pytest.raises(InvalidInput) as caught:
        write(**{name: value})
    assert str(caught.value).startswith(f"[LEDGER_INVALID_OPTION] option '{name}' is '{value}'")
    assert hint in str(caught.value)


def test_who_does_not_say_whether_a_topic_is_made_is_told_from_who_does():
    assert write().create_topic is None
    assert write(createTopic="TRUE").create_topic is True
    assert write(createTopic="false").create_topic is False


def test_a_sequence_id_is_a_whole_number():
    with pytest.raises(InvalidInput, match="option 'sequenceId' is 'x': it must be a whole number"):
        write(producerName="p", sequenceId="x")


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("64k", 64 << 10), ("64 MB", 64 << 20), ("2GiB", 2 << 30), ("1T", 1 << 40)]
)
def test_sizes_have_units(text, size):
    assert read(maxBytesPerTrigger=text).max_bytes == size


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("30", 30), ("1.5 m", 90), ("1h", 3600)])
def test_durations_have_units(text, seconds):
    assert read(maxTriggerDelay=text).max_delay_s == seconds


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Earliest", Place(word="earliest")),
        (" latest ", Place(word="latest")),
        ("3:17:0", Place(position=Position(3, 17, 0))),
        ('{"pos": "3:17:0", "topic": "u", "v": 1}', Place(position=Position(3, 17, 0), uuid="u")),
    ],
)
def test_a_start_or_an_end_is_a_word_a_position_or_an_offset(text, place):
    assert read(startingOffsets=text).topics[0].start == place
    assert read(endingOffsets=text).topics[0].end == place


@pytest.mark.parametrize("text", ["1000", "1970-01-01T00:00:01Z", "1970-01-01T01:00:01+01:00", "1970-01-01 00:00:01"])
def test_a_time_is_iso_or_milliseconds_and_utc_unless_it_says_otherwise(text):
    assert read(startingTimestamp=text).topics[0].start.publish_ms == 1000


# -- conflicts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "latest", "startingTimestamp": "0"}, "'startingOffsets' and 'startingTimestamp'"),
        ({"endingOffsets": "latest", "endingTimestamp": "0"}, "'endingOffsets' and 'endingTimestamp'"),
        ({"minRowsPerTrigger": "9", "maxRowsPerTrigger": "8"}, r"maxRowsPerTrigger \(8\)"),
        ({"path": "a", "topic": "b"}, "'a' by path and 'b' by option"),
    ],
)
def test_read_options_that_exclude_each_other_are_both_named(options, words):
    with pytest.raises(InvalidInput, match=words):
        read(**options)


def test_a_sequence_id_without_a_producer_counts_nothing():
    with pytest.raises(InvalidInput, match="'sequenceId' needs 'producerName'"):
        write(sequenceId="1")


def test_a_stream_has_its_own_sequence_ids():
    source = LedgerDataSource({"topic": "t", "producerName": "p", "sequenceId": "1"})
    with pytest.raises(InvalidInput, match="'sequenceId' is for batch writes"):
        source.streamWriter(SCHEMA, overwrite=False)


@pytest.mark.parametrize("writer", ["writer", "streamWriter"])
def test_overwriting_is_refused_by_name(writer):
    with pytest.raises(InvalidInput, match=r"LEDGER_APPEND_ONLY.*append only"):
        getattr(LedgerDataSource({"topic": "t"}), writer)(SCHEMA, overwrite=True)


# -- topics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a/b", "..", "../t", "/t", "s3://bucket/t", "-t", "a b", "t" * 201, "t\n", "ü"])
@pytest.mark.parametrize("key", ["topic", "path"])
def test_a_topic_is_a_name_not_a_path(key, name):
    with pytest.raises(InvalidInput, match="LEDGER_INVALID_TOPIC_NAME") as caught:
        ReadOptions.parse({key: name})
    assert name in str(caught.value)


def test_several_paths_are_a_clear_error():
    with pytest.raises(InvalidInput, match="several topics by path: read them with option topics='a,b'"):
        ReadOptions.parse({"paths": '["a","b"]'})


@pytest.mark.parametrize("parse", [ReadOptions.parse, WriteOptions.parse])
def test_without_a_topic_the_error_shows_every_way_to_give_one(parse):
    with pytest.raises(InvalidInput, match=r"LEDGER_NO_TOPIC.*\.load\(.*\.start\(.*FROM t WITH.*CREATE TEMPORARY VIEW"):
        parse({})


# -- newer formats ---------------------------------------------------------------------------------------------


def test_an_offset_of_a_newer_format_is_refused_by_name():
    newer = {"epoch": 0, "pos": "0:1:0", "rev": 0, "topic": "u", "v": 3}
    topic = Topic("t", "u", "", "", 0)
    with pytest.raises(InvalidInput, match=r"LEDGER_NEWER_FORMAT.*format 3.*knows 2: upgrade"):
        parse(newer, topic)
    with pytest.raises(InvalidInput, match=r"LEDGER_NEWER_FORMAT.*'startingOffsets'.*format 3.*knows 2: upgrade"):
        read(startingOffsets='{"pos": "anything", "v": 3}')


@pytest.mark.parametrize("alien", [{}, {"v": 1}, {"v": "1"}, {"partition": 3}, {"v": 1, "pos": "x", "topic": "u"}])
def test_another_sources_offset_is_refused(alien):
    with pytest.raises(InvalidInput):
        parse(alien, Topic("t", "u", "", "", 0))


# -- with a namespace ------------------------------------------------------------------------------------------


def wrong(**options: str) -> LedgerError:
    with pytest.raises(LedgerError) as caught:
        LedgerDataSource(options).schema()
    return caught.value


def test_a_new_namespace_needs_storage_once_and_stays_new_without(namespace, storage_root):
    assert wrong(zookeeper=namespace, topic="t").code == "LEDGER_TOPIC_NOT_FOUND"
    with pytest.raises(InvalidInput, match=r"LEDGER_STORAGE_NOT_SET.*option 'storage'"):
        LedgerDataSource({"zookeeper": namespace, "topic": "t"}).writer(SCHEMA, overwrite=False)
    with LedgerClient(namespace) as client:
        assert client.topics() == []
    with LedgerClient(namespace, storage_root) as client:  # whoever names it first decides
        client.create_topic("t", pa.schema([("n", pa.int64())]))
    assert LedgerDataSource({"zookeeper": namespace, "topic": "t"}).schema().names == ["n"]


@pytest.fixture
def orders(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", pa.schema([("n", pa.int64()), ("s", pa.string())]), key="n")
        yield client


def test_a_missing_topic_names_the_nearest_one(orders):
    error = wrong(zookeeper=orders.zookeeper, topic="order")
    assert isinstance(error, NotFound)
    assert str(error).startswith("[LEDGER_TOPIC_NOT_FOUND] there is no topic 'order'")
    assert "did you mean 'orders'?" in str(error)
    assert orders.topics() == ["orders"]


def test_another_storage_than_the_namespaces_is_refused_by_both_names(orders, storage_root, tmp_path):
    error = wrong(zookeeper=orders.zookeeper, topic="orders", storage=str(tmp_path / "elsewhere"))
    assert error.code == "LEDGER_STORAGE_CONFLICT"
    assert "elsewhere" in str(error)
    assert storage_root in str(error)
    assert not (tmp_path / "elsewhere").exists()


def test_another_spelling_of_the_same_storage_is_the_same(orders, storage_root):
    for spelling in (storage_root, storage_root + "/", f"file://{storage_root}"):
        options = {"zookeeper": orders.zookeeper, "topic": "orders", "storage": spelling}
        assert LedgerDataSource(options).schema().names == ["n", "s"]


def test_a_column_that_is_not_there_shows_those_that_are(orders):
    error = wrong(zookeeper=orders.zookeeper, topic="orders", columns="n,x")
    assert (error.code, "no column 'x': n, s" in str(error)) == ("LEDGER_COLUMN_NOT_FOUND", True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "new", "keyColumn": "nn"}, r"keyColumn 'nn' is not a column: n, s \(did you mean 'n'\?\)"),
        ({"topic": "new", "versionColumn": "v"}, "versionColumn 'v' is not a column: n, s"),
        ({"topic": "orders", "keyColumn": "s"}, "'keyColumn' is 's', but topic 'orders' was made with 'n'"),
        ({"topic": "orders", "versionColumn": "s"}, "'versionColumn' is 's', but topic 'orders' was made with none"),
    ],
)
def test_fixed_columns_are_checked_and_nothing_is_made(orders, options, words):
    before = orders.end("orders")
    for writer in ("writer", "streamWriter"):
        with pytest.raises(InvalidInput, match=words):
            getattr(LedgerDataSource({"zookeeper": orders.zookeeper, **options}), writer)(SCHEMA, overwrite=False)
    assert orders.topics() == ["orders"]
    assert orders.end("orders") == before


def test_what_is_not_offered_says_why():
    with pytest.raises(InvalidInput, match=r"LEDGER_UNKNOWN_OPTION.*'filterPushdown' is not offered: Spark"):
        ReadOptions.parse({"topic": "t", "filterPushdown": "true"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deduplication": "token"}, "'deduplication=token' needs 'tokenColumn'"),
        ({"tokenColumn": "t"}, "'tokenColumn' needs 'deduplication=token'"),
        ({"tokenGroup": "g", "deduplication": "none"}, "'tokenGroup' needs 'deduplication=token'"),
        ({"tokenFanOut": "true"}, "'tokenFanOut' needs 'deduplication=token'"),
        ({"tokenTopic": "orders"}, "'tokenTopic' needs 'deduplication=token'"),
        ({"deduplication": "token", "tokenTopic": "orders"}, "'deduplication=token' needs 'tokenColumn'"),
        ({"deduplication": "token", "tokenColumn": "t", "tokenTopic": "a/b"}, "topic's name"),
        ({"deduplication": "token", "tokenColumn": "t", "tokenGroup": "a/b"}, "token group's name"),
        ({"deduplication": "token", "tokenColumn": "t", "tokenFanOut": "yes"}, "'tokenFanOut' is 'yes'"),
        (
            {"deduplication": "token", "tokenColumn": "t", "producerName": "p", "sequenceColumn": "n"},
            "'sequenceColumn' and 'deduplication=token' exclude each other",
        ),
        ({"mintTokens": "1"}, "'mintTokens' is '1': it must be true or false"),
    ],
)
def test_token_options_that_do_not_fit_are_errors_by_name(options, words):
    with pytest.raises(InvalidInput, match=words):
        WriteOptions.parse({"topic": "t", **options})


def test_a_token_group_is_the_sinks_topic_unless_it_is_given():
    asked = {"topic": "invoices", "deduplication": "token", "tokenColumn": "t"}
    assert WriteOptions.parse(asked).tokens == TokenOptions("t", "", "invoices", False)
    assert WriteOptions.parse({**asked, "tokenGroup": "g", "tokenFanOut": "true"}).tokens == TokenOptions(
        "t", "", "g", True
    )
    assert WriteOptions.parse({**asked, "tokenTopic": "orders"}).tokens == TokenOptions(
        "t", "orders", "invoices", False
    )


def test_some_fields_of_the_metadata_may_be_asked_for():
    assert read(includeMetadata=" ordinal, TOKENNUMBER").include_metadata == ("ordinal", "tokenNumber")
    assert (read().include_metadata, read(includeMetadata="false").include_metadata) == ((), ())
    assert read(includeMetadata="True").include_metadata[-1] == "ordinal"


def test_one_path_in_a_list_is_one_topic():
    assert ReadOptions.parse({"paths": '["orders"]'}).topics[0].name == "orders"


def test_a_sequence_id_without_deduplication_is_a_contradiction():
    with pytest.raises(InvalidInput, match=r"'sequenceId' and 'deduplication=none' exclude each other"):
        WriteOptions.parse({"topic": "t", "producerName": "p", "sequenceId": "1", "deduplication": "none"})
