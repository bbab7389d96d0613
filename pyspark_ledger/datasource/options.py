"""Every Spark option, with its default and its parser, in one place."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pyspark_ledger.base import names, setting_names
from pyspark_ledger.base.settings import Settings
from pyspark_ledger.datasource import option_values as values
from pyspark_ledger.datasource.logs import FORMATS, LEVELS, LogSettings
from pyspark_ledger.dedup.id_ranges import IdColumns
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log.places import Place

if TYPE_CHECKING:
    from pyspark_ledger.cursors.attachment import SubscriptionType

T = TypeVar("T")

_INT64 = 1 << 63
_EARLIEST = Place(word="earliest")

BOTH = (*setting_names.NAMES, "topic", "logLevel", "logFormat")
READ = (
    "topics", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "maxRowsPerTrigger",
    "maxBytesPerTrigger", "minRowsPerTrigger", "maxTriggerDelay", "columns", "minPartitions", "includeMetadata",
    "failOnDataLoss", "subscription", "subscriptionType", "readCompacted", "onSchemaChange",
)  # fmt: skip
WRITE = (
    "keyColumn", "versionColumn", "deduplication", "producerName", "producerColumn", "sequenceColumn", "sequenceId",
    "mergeSchema", "compression", "tokenColumn", "tokenTopic", "tokenGroup", "tokenFanOut", "mintTokens",
    "createTopic", "topicColumn", "deadLetterTopic",
)  # fmt: skip
KNOWN = {name.lower(): name for name in (*BOTH, *READ, *WRITE)}

# What Spark itself adds to the options of a source or a sink.
_SPARKS_OWN = {"path", "paths", "checkpointlocation", "queryname", "owner", "provider", "location"}

# What people who come from Kafka, Pulsar and Delta type first.
_ELSEWHERE = {
    "maxoffsetspertrigger": "maxRowsPerTrigger",
    "minoffsetspertrigger": "minRowsPerTrigger",
    "maxfilespertrigger": "maxRowsPerTrigger",
    "maxentriespertrigger": "maxRowsPerTrigger",
    "subscribe": "topic",
    "subscriptionname": "subscription",
    "predefinedsubscription": "subscription",
    "kafka.group.id": "subscription",
    "group.id": "subscription",
    "subscribepattern": "topics",
    "topicspattern": "topics",
    "assign": "topic",
    "txnappid": "producerName",
    "txnversion": "sequenceId",
    "kafka.bootstrap.servers": "zookeeper",
    "service.url": "zookeeper",
    "kafka.security.protocol": "zookeeper.tls",
    "kafka.ssl.truststore.location": "zookeeper.tls.ca",
    "kafka.ssl.keystore.location": "zookeeper.tls.cert",
    "kafka.ssl.key.password": "zookeeper.tls.password",
    "kafka.sasl.mechanism": "zookeeper.sasl.mechanism",
    "kafka.sasl.jaas.config": "zookeeper.sasl.user",
    "includeheaders": "includeMetadata",
    "topicfield": "topicColumn",
    "deadletterqueue": "deadLetterTopic",
    "dlq": "deadLetterTopic",
}

# What could be offered, and why it is not.
_REFUSED = {
    "filterpushdown": "Spark 4.3 keeps the filters that it pushed to a Python source in the DataFrame, and a later use "
    "of the same DataFrame without them silently misses rows",
}

_NO_TOPIC = (
    'no topic: give it as .load("orders"), .start("orders"), .save("orders") or option("topic", "orders"). In SQL, '
    "Spark keeps the columns of a catalog table and loses its OPTIONS, TBLPROPERTIES and LOCATION, so each statement "
    "says it: SELECT … FROM t WITH ('topic'='orders', 'zookeeper'='…') and INSERT INTO t WITH (…) …; or say it once, "
    "with CREATE VIEW orders AS SELECT * FROM t WITH (…), or CREATE TEMPORARY VIEW orders USING ledger OPTIONS (topic "
    "'orders', zookeeper '…')"
)
# CREATE TABLE asks for the columns, and nothing else of what it was given will be there later.
_NO_COLUMNS = (
    "no topic to take the table's columns from: give columns, as CREATE TABLE t (order_id BIGINT) USING ledger, or the "
    "topic that has them, as CREATE TABLE t USING ledger OPTIONS (topic 'orders', zookeeper '…'). Spark keeps only the "
    "columns, so each statement names the topic again: SELECT … FROM t WITH ('topic'='orders', 'zookeeper'='…')"
)


def check_names(options: Mapping[str, str]) -> None:
    for name in options:
        low = name.lower()
        if low in KNOWN or low in _SPARKS_OWN or low.startswith("option."):
            continue
        if low in _REFUSED:
            raise InvalidInput(f"option '{name}' is not offered: {_REFUSED[low]}", "LEDGER_UNKNOWN_OPTION")
        if low == "subscribe" and "," in options[name]:
            low = "subscribepattern"  # a list of topics, as Kafka takes it
        near = [_ELSEWHERE[low]] if low in _ELSEWHERE else difflib.get_close_matches(low, KNOWN, 1)
        hint = f"; use '{KNOWN.get(near[0], near[0])}'" if near else f"; the options are {', '.join(KNOWN.values())}"
        raise InvalidInput(f"there is no option '{name}'{hint}", "LEDGER_UNKNOWN_OPTION")


@dataclass(frozen=True, slots=True)
class TopicRange:
    """A topic that is read, and from where to where."""

    name: str
    start: Place = _EARLIEST
    end: Place | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    settings: Settings  # where the namespace is; only the driver uses it
    topics: tuple[TopicRange, ...]
    max_rows: int | None
    max_bytes: int | None
    min_rows: int | None
    max_delay_s: float
    columns: tuple[str, ...] | None
    min_partitions: int
    include_metadata: tuple[str, ...]  # these fields of it; none: it is not there
    fail_on_data_loss: bool
    subscription: str
    subscription_type: SubscriptionType
    read_compacted: bool
    on_schema_change: Literal["", "fail", "ignore"]  # empty: not given
    logs: LogSettings

    def fails_on_new_columns(self, *, given: bool) -> bool:
        """Whether a stream fails when the topic gets a column. Who chose the columns wants these and no others."""
        chosen = "columns" if self.columns is not None else ".schema()" if given else ""
        if chosen and self.on_schema_change == "fail":
            raise InvalidInput(
                f"option 'onSchemaChange' is 'fail', and {chosen} says which columns are read: give one of them",
                "LEDGER_INVALID_OPTION",
            )
        return not chosen and self.on_schema_change != "ignore"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        check_names(options)
        given = {name.lower(): value for name, value in options.items()}
        take = _Taker(given)
        min_rows = take("minRowsPerTrigger", values.positive, None)
        max_rows = take("maxRowsPerTrigger", values.positive, None)
        if min_rows is not None and max_rows is not None and min_rows > max_rows:
            raise values.invalid("minRowsPerTrigger", min_rows, f"it must not be above maxRowsPerTrigger ({max_rows})")
        if "subscriptiontype" in given and "subscription" not in given:
            raise InvalidInput("option 'subscriptionType' needs 'subscription'", "LEDGER_INVALID_OPTION")
        return cls(
            settings=_settings(given),
            topics=_topic_ranges(given, take),
            max_rows=max_rows,
            max_bytes=take("maxBytesPerTrigger", values.size, None),
            min_rows=min_rows,
            max_delay_s=take("maxTriggerDelay", values.duration, 900.0),
            columns=take("columns", values.columns, None),
            min_partitions=take("minPartitions", values.positive, 1),
            include_metadata=take("includeMetadata", values.metadata_fields, ()),
            fail_on_data_loss=take("failOnDataLoss", values.boolean, True),
            subscription=take("subscription", values.subscription_name, ""),
            subscription_type=take("subscriptionType", values.one_of("exclusive", "failover"), "exclusive"),
            read_compacted=take("readCompacted", values.boolean, False),
            on_schema_change=take("onSchemaChange", values.one_of("fail", "ignore"), ""),
            logs=_logs(take),
        )


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """Records bring tokens, which are consumed with them."""

    column: str
    topic: str  # whose tokens they are, as numbers; empty: they are text, which says it
    group: str
    fan_out: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    settings: Settings  # where the namespace is; only the driver uses it
    topic: str  # empty: each row says it,
    topic_column: str  # in this column
    dead_letters: str  # a topic for rows that cannot be stored; empty: they are refused
    key_column: str
    version_column: str
    deduplicate: bool  # by sequence ids
    tokens: TokenOptions | None
    mint_tokens: bool
    producer: str
    sequence: int | None  # of the whole batch
    ids: IdColumns | None  # or of each record
    merge_schema: bool
    compression: str
    create_topic: bool | None  # None: unless the name had a topic that was deleted
    checkpoint: str | None
    logs: LogSettings

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        check_names(options)
        given = {name.lower(): value for name, value in options.items()}
        take = _Taker(given)
        producer, sequence, ids = _producer(take)
        if "topics" in given:
            raise InvalidInput(
                "option 'topics' is for reading: a write goes to one topic, given as 'topic'", "LEDGER_INVALID_OPTION"
            )
        topic, topic_column = _topic_or_column(given, take)
        mode = take("deduplication", values.one_of("sequence", "token", "none"), "sequence")
        if mode != "sequence" and (sequence is not None or ids is not None):
            option = "sequenceId" if ids is None else "sequenceColumn"
            raise InvalidInput(
                f"options '{option}' and 'deduplication={mode}' exclude each other", "LEDGER_INVALID_OPTION"
            )
        return cls(
            settings=_settings(given),
            topic=topic,
            topic_column=topic_column,
            dead_letters=_dead_letters(take, topic),
            key_column=take("keyColumn", values.nonempty, ""),
            version_column=take("versionColumn", values.nonempty, ""),
            deduplicate=mode == "sequence",
            tokens=_tokens(take, topic, mode),
            mint_tokens=take("mintTokens", values.boolean, False),
            producer=producer,
            sequence=sequence,
            ids=ids,
            merge_schema=take("mergeSchema", values.boolean, False),
            compression=take("compression", values.one_of("lz4", "zstd", "none"), "lz4"),
            create_topic=take("createTopic", values.boolean, None),
            checkpoint=given.get("checkpointlocation"),
            logs=_logs(take),
        )


def _topic_or_column(given: Mapping[str, str], take: _Taker) -> tuple[str, str]:
    """Where all rows go, or the column in which each row says it."""
    column: str = take("topicColumn", values.nonempty, "")
    if not column:
        return _topic(given), ""
    if given.get("topic") or given.get("path") or values.paths(given.get("paths") or "[]"):
        raise InvalidInput(
            "options 'topicColumn' and 'topic' (or a path) exclude each other: for rows that name no topic, fill the "
            f"column, as with coalesce({column}, lit('orders')), or set 'deadLetterTopic'",
            "LEDGER_INVALID_OPTION",
        )
    return "", column


def _dead_letters(take: _Taker, topic: str) -> str:
    name: str = take("deadLetterTopic", values.topic_name, "")
    if name and name == topic:
        raise values.invalid("deadLetterTopic", name, "it must be another topic than the one that rows go to")
    return name


def _producer(take: _Taker) -> tuple[str, int | None, IdColumns | None]:
    """Who writes, and what is numbered: batches, or each record."""
    producer, producer_column = take("producerName", values.nonempty, ""), take("producerColumn", values.nonempty, "")
    sequence, sequence_column = take("sequenceId", values.integer, None), take("sequenceColumn", values.nonempty, "")
    for wrong, problem in (
        (producer and producer_column, "options 'producerName' and 'producerColumn' exclude each other"),
        (sequence is not None and sequence_column, "options 'sequenceId' and 'sequenceColumn' exclude each other"),
        (producer_column and not sequence_column, "option 'producerColumn' needs 'sequenceColumn'"),
        (
            sequence is not None and not producer,
            "option 'sequenceId' needs 'producerName': a sequence id counts within one producer",
        ),
        (
            sequence_column and not producer and not producer_column,
            "option 'sequenceColumn' needs 'producerColumn', or 'producerName' if all records are of one producer: a "
            "sequence id counts within one producer",
        ),
    ):
        if wrong:
            raise InvalidInput(problem, "LEDGER_INVALID_OPTION")
    return producer, sequence, IdColumns(sequence_column, producer_column, producer) if sequence_column else None


def _tokens(take: _Taker, topic: str, mode: str) -> TokenOptions | None:
    column = take("tokenColumn", values.nonempty, "")
    if mode == "token":
        if not column:
            raise InvalidInput(
                "option 'deduplication=token' needs 'tokenColumn': the column with the records' tokens, as "
                "_metadata.token of the topic that they come from",
                "LEDGER_INVALID_OPTION",
            )
        group, fan_out = take("tokenGroup", values.group_name, topic), take("tokenFanOut", values.boolean, False)
        if not group:
            raise InvalidInput(
                "options 'topicColumn' and 'deduplication=token' need 'tokenGroup': it is named after the sink's topic "
                "otherwise, and there are several",
                "LEDGER_INVALID_OPTION",
            )
        return TokenOptions(column, take("tokenTopic", values.topic_name, ""), group, fan_out)
    for option in ("tokenColumn", "tokenTopic", "tokenGroup", "tokenFanOut"):
        if take(option, values.nonempty, ""):
            raise InvalidInput(f"option '{option}' needs 'deduplication=token'", "LEDGER_INVALID_OPTION")
    return None


class _Taker:
    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def __call__(self, name: str, parse: Callable[[str, str], T], default: Any) -> Any:
        text = self._given.get(name.lower())
        return default if text is None else parse(name, text)


def _settings(given: Mapping[str, str]) -> Settings:
    return Settings.of({name: given.get(name.lower()) for name in setting_names.NAMES})


def _logs(take: _Taker) -> LogSettings:
    return LogSettings.given(
        take("logLevel", values.one_of(*LEVELS), None), take("logFormat", values.one_of(*FORMATS), None)
    )


def _topic(given: Mapping[str, str]) -> str:
    paths = values.paths(given.get("paths") or "[]")
    if len(paths) > 1:
        raise InvalidInput(
            f"several topics by path: read them with option topics='{','.join(map(str, paths))}'; a write has one",
            "LEDGER_INVALID_OPTION",
        )
    path, option = given.get("path") or next(iter(paths), None), given.get("topic")
    if path and option and path != option:
        raise InvalidInput(f"the topic is '{path}' by path and '{option}' by option: give one", "LEDGER_INVALID_OPTION")
    name = option or path
    if not name:
        raise InvalidInput(_NO_COLUMNS if "provider" in given else _NO_TOPIC, "LEDGER_NO_TOPIC")
    if "," in name:
        raise InvalidInput(
            f"'{name}' is no topic's name: read several topics with option topics='{name}'; a write has one",
            "LEDGER_INVALID_TOPIC_NAME",
        )
    return names.check_topic_name(name)


def _topic_ranges(given: Mapping[str, str], take: _Taker) -> tuple[TopicRange, ...]:
    """What is read of each topic."""
    several: tuple[str, ...] | None = take("topics", values.topic_names, None)
    if several is not None and (given.get("topic") or given.get("path") or values.paths(given.get("paths") or "[]")):
        raise InvalidInput("options 'topics' and 'topic' (or a path) exclude each other", "LEDGER_INVALID_OPTION")
    topics = several or (_topic(given),)
    starts = _places(take, "startingOffsets", "startingTimestamp", topics)
    ends = _places(take, "endingOffsets", "endingTimestamp", topics)
    return tuple(
        TopicRange(topic, start or _EARLIEST, end) for topic, start, end in zip(topics, starts, ends, strict=True)
    )


def _places(take: _Taker, offsets: str, timestamp: str, topics: Sequence[str]) -> list[Place | None]:
    """One end of a read, for each topic."""
    by_offset: list[Place] | None = take(offsets, partial(values.offsets, topics=topics), None)
    by_time: Place | None = take(timestamp, values.timestamp, None)
    if by_offset is not None and by_time is not None:
        raise InvalidInput(f"options '{offsets}' and '{timestamp}' exclude each other", "LEDGER_INVALID_OPTION")
    return [by_time] * len(topics) if by_offset is None else list(by_offset)
