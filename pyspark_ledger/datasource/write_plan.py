"""A write on the driver, before its tasks: checks options and schema, creates the topic if it does not exist, and plans
what the tasks do."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_ledger.append.admission import check_deduplicates
from pyspark_ledger.append.sender import COMPRESSIONS
from pyspark_ledger.base.names import spark_producer
from pyspark_ledger.client import shared_namespace
from pyspark_ledger.datasource.checkpoint import Checkpoint
from pyspark_ledger.datasource.executor.staging import Destination, Replay, TaskPlan, WritePlan
from pyspark_ledger.datasource.options import WriteOptions
from pyspark_ledger.datasource.types import arrow_schema
from pyspark_ledger.errors import Conflict, InvalidInput, NotFound
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.log import folders, topics
from pyspark_ledger.log.log import FRESH_S, Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.log.sinks import gone_meanwhile
from pyspark_ledger.metadata.records import ProducerState, Topic
from pyspark_ledger.tokens.ids import TokenColumn, check_column

_REMEMBERED_PRODUCERS = 64  # sent to tasks when the driver cannot know which query this is
_KNOWN_PRODUCERS = 10_000  # more last ids than these are not sent to tasks


def plan_write(
    options: WriteOptions, schema: StructType, *, overwrite: bool, stream: bool, again: bool = False
) -> TaskPlan:
    """``again``: for the commit of what another process has planned."""
    if overwrite:
        raise InvalidInput('a ledger is append only: use outputMode("append") or mode("append")', "LEDGER_APPEND_ONLY")
    if stream and options.sequence is not None:
        raise InvalidInput(
            "option 'sequenceId' is for batch writes; a stream's sequence ids are its batch ids, or its records bring "
            "their own: see 'sequenceColumn'",
            "LEDGER_INVALID_OPTION",
        )
    if options.topic_column:
        from pyspark_ledger.datasource.routed_plan import plan_routed

        return plan_routed(options, schemas.canonical(arrow_schema(schema)), stream=stream, again=again)
    incoming = stored(schemas.canonical(arrow_schema(schema)), options)
    if options.ids is not None:
        options.ids.check(incoming)
    tokens = token_column(options, again=again)
    log = _planned_log(options, incoming, stream=stream, again=again)
    folders.prepare(log)
    if options.ids is not None or options.sequence is not None or (stream and options.deduplicate):
        if not log.deduplicates():
            log.refresh(sync=True)  # the policies in memory may be old, and nobody is refused because of that
        check_deduplicates(log)
    view = log.view()
    log.check_root(view.head)  # the tasks will stage where this epoch's files belong
    merged = schemas.merge(log.schema(view.head.schema_id), incoming, may_add=options.merge_schema)
    return WritePlan(
        storage=log.storage.root,
        topic=log.topic.name,
        uuid=log.topic.uuid,
        epoch=view.head.gc_epoch,
        target=schemas.written(merged, incoming),
        compression=COMPRESSIONS[options.compression],
        producer=options.producer,
        sequence=options.sequence,
        replays=_replays(options, log) if options.deduplicate and options.ids is None else {},
        ids=options.ids,
        known=log.known_sequences(_KNOWN_PRODUCERS, options.ids.producer) if options.ids else None,
        tokens=tokens,
        dead_letters=planned_dead_letters(options, again=again),
        logs=options.logs,
    )


def planned_dead_letters(options: WriteOptions, *, again: bool) -> Destination | None:
    if not options.dead_letters:
        return None
    from pyspark_ledger.datasource.dead_letters import plan_dead_letters  # few writes need it

    return plan_dead_letters(options, again=again)


def stored(schema: pa.Schema, options: WriteOptions) -> pa.Schema:
    """The schema that is stored: without the token column, because a token is not part of the record."""
    if options.tokens is None:
        return schema
    check_column(schema, options.tokens.column, options.tokens.topic)
    if len(schema) == 1:
        raise InvalidInput("a record needs at least one column besides its token", "LEDGER_INVALID_SCHEMA")
    return schema.remove(schema.get_field_index(options.tokens.column))


_token_topics: dict[tuple[int, str], tuple[OpenNamespace, str]] = {}  # as they were last found


def token_column(options: WriteOptions, *, again: bool) -> TokenColumn | None:
    """Numbers are those of one topic, which is looked up for each batch: it may have been made again. Who commits needs
    no look: what tasks send says which topic it was."""
    tokens = options.tokens
    if tokens is None or not tokens.topic or again:
        return None if tokens is None else TokenColumn(tokens.column)
    namespace = writer_namespace(options, planned=False)
    key = (os.getpid(), tokens.topic)
    topic = topics.find_topic(namespace.metadata, tokens.topic)
    if topic is None or _token_topics.get(key) != (namespace, topic.uuid):
        namespace.metadata.sync()  # what is new to this process it does not have from a server that is behind
        topic = topics.find_topic(namespace.metadata, tokens.topic)
    if topic is None:
        raise NotFound(
            f"option 'tokenTopic' is '{tokens.topic}', and there is no such topic in this namespace: name the topic "
            "that the numbers come from",
            "LEDGER_TOPIC_NOT_FOUND",
        )
    _token_topics[key] = namespace, topic.uuid
    return TokenColumn(tokens.column, topic.name, topic.uuid)


def _replays(options: WriteOptions, log: Log) -> dict[str, Replay]:
    """The last batch of the producer that writes. If the driver cannot know which producer that is, those of the most
    recent ones."""
    _, producers = log.producers()
    checkpoint = Checkpoint(options.checkpoint, log.storage.root)
    name = options.producer
    if not name and (query := checkpoint.query_id()):
        name = spark_producer(query)
    if name:
        state = producers.get(name)
        return {name: replay_of(state, checkpoint)} if state else {}
    recent = sorted(producers.owned(), key=lambda state: state.publish_ms)[-_REMEMBERED_PRODUCERS:]
    return {state.name: replay_of(state, checkpoint) for state in recent}


def replay_of(state: ProducerState, checkpoint: Checkpoint) -> Replay:
    digest = checkpoint.digest(state.sequence) if state.digest else b""
    return Replay(state.sequence, digest == state.digest if digest else None)


_logs: dict[tuple[int, int, str], Log] = {}


def writer_namespace(options: WriteOptions, *, planned: bool) -> OpenNamespace:
    """``planned``: another process has planned the batch, so the address is right, and a ZooKeeper that does not listen
    is being restarted. It gets its time: the work of the tasks would be lost."""
    return shared_namespace(options.settings, answered=planned)


def writer_log(options: WriteOptions, uuid: str, storage: str) -> Log:
    """The topic's log, for a commit of files that were staged for this topic in this root. If what is in memory is
    outdated, the head's version differs. Another topic is not taken from memory: it is not known whether it is still
    there. If the log in memory has another root, its files may have been moved, which the process that has planned the
    batch knows already."""
    namespace = writer_namespace(options, planned=True)
    log = known_log(namespace, options.topic, FRESH_S)
    if log is not None and log.storage.uri != storage:
        namespace.metadata.sync()
        log = known_log(namespace, options.topic, 0)
    if log is None or log.topic.uuid != uuid:
        namespace.metadata.sync()
        log = open_log(namespace, options.topic)
    check_fixed_columns(log.topic, options)
    return log


def _planned_log(options: WriteOptions, schema: pa.Schema, *, stream: bool, again: bool) -> Log:
    """The topic's log, for a plan; the topic is created if it does not exist and may be. The head is read, because
    another process may have committed the last batch."""
    namespace = writer_namespace(options, planned=again)
    query = Checkpoint(options.checkpoint, namespace.storage.root).query_id() if stream else ""
    log = known_log(namespace, options.topic, 0)
    if log is None:
        namespace.metadata.sync()  # a server that is behind may have the topic that was there before
    topic = topics.find_topic(namespace.metadata, options.topic) if log is None else log.topic
    namespace.sinks.check(query, options.topic, topic)
    if topic is None:
        _check_may_make(namespace, options, query, again=again)
        make_topic(namespace, options.topic, schema, options)
    log = log or open_log(namespace, options.topic)
    check_fixed_columns(log.topic, options)
    return log


def known_log(namespace: OpenNamespace, name: str, max_age_s: float) -> Log | None:
    """Cached, so that what the log keeps in memory is not read again for every batch."""
    log = _logs.get((os.getpid(), id(namespace), name))
    if log is not None and log.metadata is not namespace.metadata:
        return None  # of a namespace that was closed: another object has its id now
    if log is not None:
        try:
            log.check_readable(log.view(max_age_s).head)
        except NotFound:
            return None  # deleted, and perhaps recreated
        except Conflict as conflict:
            if conflict.code != "LEDGER_STORAGE_MOVED":
                raise
            return None  # opened again, it is in the new place
    return log


def open_log(namespace: OpenNamespace, name: str) -> Log:
    log = _logs[os.getpid(), id(namespace), name] = namespace.log(name)
    return log


def _check_may_make(namespace: OpenNamespace, options: WriteOptions, query: str, *, again: bool) -> None:
    """A query that has written nothing to a topic of this name may make it. Who is not known to be such a query does
    not make the name of a deleted topic again, unless told to: perhaps it is what the topic was deleted under."""
    name = options.topic
    if again:
        raise gone_meanwhile(name, recreated=False)
    if options.create_topic is False:
        raise NotFound(
            f"there is no topic '{name}' in this namespace, and option 'createTopic' is false: make it with "
            f"'pyspark-ledger topics create {name}', or leave the option out",
            "LEDGER_TOPIC_NOT_FOUND",
        )
    deleted = None if options.create_topic or query else topics.find_deleted(namespace.metadata, name)
    if deleted is not None:
        when = datetime.fromtimestamp(deleted.deleted_ms / 1000, UTC)
        raise NotFound(
            f"topic '{name}' was deleted on {when:%Y-%m-%d at %H:%M:%S} UTC, and a write does not make it again "
            f"unasked: make it with 'pyspark-ledger topics create {name}', or set the option "
            "createTopic=true",
            "LEDGER_TOPIC_DELETED",
        )


def make_topic(namespace: OpenNamespace, name: str, schema: pa.Schema, options: WriteOptions | None = None) -> None:
    key, version = (options.key_column, options.version_column) if options is not None else ("", "")
    namespace.ensure_topic(name, schema, key, version)


def check_fixed_columns(topic: Topic, options: WriteOptions) -> None:
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
