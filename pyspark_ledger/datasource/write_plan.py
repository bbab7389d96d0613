"""A write on the driver, before its tasks: checks options and schema, creates the topic if it does not exist, and plans
what the tasks do."""

from __future__ import annotations

import os

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_ledger.append.admission import check_deduplicates
from pyspark_ledger.append.producer import COMPRESSIONS, FRESH_S
from pyspark_ledger.client import shared_namespace
from pyspark_ledger.datasource.checkpoint import Checkpoint
from pyspark_ledger.datasource.executor.staging import Replay, WritePlan, spark_producer
from pyspark_ledger.datasource.options import WriteOptions
from pyspark_ledger.datasource.types import arrow_schema
from pyspark_ledger.errors import Conflict, InvalidInput, NotFound
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.log import folders, topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.records import ProducerState, Topic
from pyspark_ledger.tokens.ids import check_column

_REMEMBERED_PRODUCERS = 64  # sent to tasks when the driver cannot know which query this is
_KNOWN_PRODUCERS = 10_000  # more last ids than these are not sent to tasks


def plan_write(
    options: WriteOptions, schema: StructType, *, overwrite: bool, stream: bool, again: bool = False
) -> WritePlan:
    """``again``: for the commit of what another process has planned."""
    if overwrite:
        raise InvalidInput('a ledger is append only: use outputMode("append") or mode("append")', "LEDGER_APPEND_ONLY")
    if stream and options.sequence is not None:
        raise InvalidInput(
            "option 'sequenceId' is for batch writes; a stream's sequence ids are its batch ids, or its records bring "
            "their own: see 'sequenceColumn'",
            "LEDGER_INVALID_OPTION",
        )
    incoming = _stored(schemas.canonical(arrow_schema(schema)), options)
    if options.ids is not None:
        options.ids.check(incoming)
    log = writer_log(options, incoming, planned=again)
    folders.prepare(log)
    view = log.view()
    if options.ids is not None or options.sequence is not None or (stream and options.deduplicate):
        check_deduplicates(log, view)
    merged = schemas.merge(log.schema(view.head.schema_id), incoming, may_add=options.merge_schema)
    return WritePlan(
        storage=log.storage.uri,
        uuid=log.topic.uuid,
        epoch=view.head.gc_epoch,
        target=schemas.written(merged, incoming),
        compression=COMPRESSIONS[options.compression],
        producer=options.producer,
        sequence=options.sequence,
        replays=_replays(options, log) if options.deduplicate and options.ids is None else {},
        ids=options.ids,
        known=log.known_sequences(_KNOWN_PRODUCERS, options.ids.producer) if options.ids else None,
        token_column=options.tokens.column if options.tokens else "",
    )


def _stored(schema: pa.Schema, options: WriteOptions) -> pa.Schema:
    """The schema that is stored: without the token column, because a token is not part of the record."""
    if options.tokens is None:
        return schema
    check_column(schema, options.tokens.column)
    if len(schema) == 1:
        raise InvalidInput("a record needs at least one column besides its token", "LEDGER_INVALID_SCHEMA")
    return schema.remove(schema.get_field_index(options.tokens.column))


def _replays(options: WriteOptions, log: Log) -> dict[str, Replay]:
    """The last batch of the producer that writes. If the driver cannot know which producer that is, those of the most
    recent ones."""
    _, producers = log.producers()
    checkpoint = Checkpoint(options.checkpoint, log.storage.uri)
    name = options.producer
    if not name and (query := checkpoint.query_id()):
        name = spark_producer(query)
    if name:
        state = producers.get(name)
        return {name: _replay(state, checkpoint)} if state else {}
    recent = sorted(producers.owned(), key=lambda state: state.publish_ms)[-_REMEMBERED_PRODUCERS:]
    return {state.name: _replay(state, checkpoint) for state in recent}


def _replay(state: ProducerState, checkpoint: Checkpoint) -> Replay:
    digest = checkpoint.digest(state.sequence) if state.digest else b""
    return Replay(state.sequence, digest == state.digest if digest else None)


_logs: dict[tuple[int, int, str], Log] = {}


def writer_log(options: WriteOptions, schema: pa.Schema | None = None, *, planned: bool = False) -> Log:
    """The topic's log; with a schema, the topic is created if it does not exist. Cached, so that what the log keeps in
    memory is not read again for every batch. A plan (with a schema) reads the head first, because another process may
    have committed the last batch. A commit need not: if what is in memory is outdated, the head's version differs.

    ``planned``: another process has planned the batch, so the address is right, and a ZooKeeper that does not listen
    is being restarted. It gets its time: the work of the tasks would be lost."""
    connection = options.connection
    namespace = shared_namespace(connection.zookeeper, connection.storage, connection.password, answered=planned)
    key = (os.getpid(), id(namespace), options.topic)
    log = _logs.get(key)
    if log is not None:
        try:
            log.view(0 if schema is not None else FRESH_S)
        except NotFound:
            log = None  # deleted, and perhaps recreated
    if log is None:
        if schema is not None:
            _ensure_topic(namespace, options, schema)
        log = _logs[key] = namespace.log(options.topic)
    _check_fixed_columns(log.topic, options)
    return log


def _ensure_topic(namespace: OpenNamespace, options: WriteOptions, schema: pa.Schema) -> None:
    if topics.find_topic(namespace.metadata, options.topic) is None:
        try:
            namespace.create_topic(options.topic, schema, options.key_column, options.version_column)
        except Conflict as conflict:
            if conflict.code != "LEDGER_TOPIC_EXISTS":
                raise


def _check_fixed_columns(topic: Topic, options: WriteOptions) -> None:
    for option, asked, fixed in (
        ("keyColumn", options.key_column, topic.key),
        ("versionColumn", options.version_column, topic.version_column),
    ):
        if asked and asked != fixed:
            raise InvalidInput(
                f"option '{option}' is '{asked}', but topic '{topic.name}' was made with "
                f"{repr(fixed) if fixed else 'none'}; it is fixed for a topic's life",
                "LEDGER_INVALID_OPTION",
            )
