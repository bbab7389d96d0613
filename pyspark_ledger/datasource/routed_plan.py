"""A write whose rows say which topic they go to (option ``topicColumn``), on the driver, before its tasks.

Which topics rows will name is not known yet. Tasks are told of those that the query has written to before, or else of
those that there are. What they have for others they stage in the folder of a topic that is there for nothing else, and
that has no records: gc deletes what is left there, as in any topic, and never what a commit may still need (I12).
"""

from __future__ import annotations

import difflib

import pyarrow as pa
import pyarrow.types as pat

from pyspark_ledger.append.claim import state_of
from pyspark_ledger.append.sender import COMPRESSIONS
from pyspark_ledger.base.names import STAGING_TOPIC, spark_producer
from pyspark_ledger.datasource.checkpoint import Checkpoint
from pyspark_ledger.datasource.executor.routing import RoutedPlan
from pyspark_ledger.datasource.executor.staging import Destination, Replay
from pyspark_ledger.datasource.options import WriteOptions
from pyspark_ledger.datasource.write_plan import (
    check_fixed_columns,
    known_log,
    make_topic,
    open_log,
    planned_dead_letters,
    replay_of,
    stored,
    token_column,
    writer_namespace,
)
from pyspark_ledger.errors import InvalidInput, NotFound
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.log import folders, topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.log.sinks import job_key
from pyspark_ledger.metadata.port import SinkKey, TopicKey

_KNOWN_TOPICS = 1_000  # that tasks are told of: the others cost a copy
_KNOWN_FOR_S = 60.0  # how old a head may be whose gc epoch tasks stage under: an epoch lasts for a day
_NO_COLUMNS = pa.schema([pa.field("nothing", pa.null())])


def plan_routed(options: WriteOptions, schema: pa.Schema, *, stream: bool, again: bool) -> RoutedPlan:
    """``schema`` has the column with the topics; ``again`` as for ``plan_write``."""
    incoming = stored(_without_topic(schema, options.topic_column), options)
    if options.ids is not None:
        options.ids.check(incoming)
    tokens = token_column(options, again=again)
    namespace = writer_namespace(options, planned=again)
    query = Checkpoint(options.checkpoint, namespace.storage.root).query_id() if stream else ""
    staging = staging_log(namespace)
    known, misfits = ({}, {}) if again else _destinations(namespace, options, query, incoming)
    return RoutedPlan(
        storage=namespace.storage.root,
        column=options.topic_column,
        staging=Destination(STAGING_TOPIC, staging.topic.uuid, staging.view().head.gc_epoch, incoming),
        topics=known,
        misfits=misfits,
        at_most=namespace.limits.topics_together,
        compression=COMPRESSIONS[options.compression],
        producer=options.producer,
        sequence=options.sequence,
        replay=_replay(options, namespace, query) if options.deduplicate and options.ids is None else None,
        ids=options.ids,
        tokens=tokens,
        dead_letters=planned_dead_letters(options, again=again),
        logs=options.logs,
    )


def _without_topic(schema: pa.Schema, column: str) -> pa.Schema:
    """What is stored: without the column that says where."""
    if column not in schema.names:
        near = difflib.get_close_matches(column, schema.names, 1)
        raise InvalidInput(
            f"topicColumn '{column}' is not a column: {', '.join(schema.names)}"
            + (f" (did you mean '{near[0]}'?)" if near else ""),
            "LEDGER_INVALID_OPTION",
        )
    kind = schema.field(column).type
    if not pat.is_string(kind):
        raise InvalidInput(
            f"topicColumn '{column}' is of type {kind}: it must be a string, the topic's name", "LEDGER_INVALID_OPTION"
        )
    if len(schema) == 1:
        raise InvalidInput("a record needs at least one column besides its topic", "LEDGER_INVALID_SCHEMA")
    return schema.remove(schema.get_field_index(column))


def staging_log(namespace: OpenNamespace) -> Log:
    log = known_log(namespace, STAGING_TOPIC, 0)
    if log is None:
        namespace.metadata.sync()
        if topics.find_topic(namespace.metadata, STAGING_TOPIC) is None:
            make_topic(namespace, STAGING_TOPIC, _NO_COLUMNS)
        log = open_log(namespace, STAGING_TOPIC)
    folders.prepare(log)
    return log


def _destinations(
    namespace: OpenNamespace, options: WriteOptions, query: str, incoming: pa.Schema
) -> tuple[dict[str, Destination], dict[str, str]]:
    """The topics that tasks are told of, and those that cannot take such rows."""
    names = namespace.sinks.topics_of(query) if query else []
    names = (names or topics.list_topics(namespace.metadata))[:_KNOWN_TOPICS]
    there = namespace.metadata.read_many([TopicKey(name) for name in names])
    known, misfits = {}, {}
    for name, topic in zip(names, there, strict=True):
        if topic is None:
            continue  # the commit will see what to do about it
        try:
            log = known_log(namespace, name, _KNOWN_FOR_S)
            if log is None or log.topic.uuid != topic.record.uuid:  # made again
                log = open_log(namespace, name)
            known[name] = _destination(log, options, incoming)
        except NotFound:
            continue
        except InvalidInput as wrong:
            misfits[name] = wrong.message
    return known, misfits


def _destination(log: Log, options: WriteOptions, incoming: pa.Schema) -> Destination:
    head = log.view().head
    if not head.next_commit:
        folders.prepare(log)
    log.check_root(head)  # the tasks will stage where this epoch's files belong
    return Destination(log.topic.name, log.topic.uuid, head.gc_epoch, target_of(log, options, incoming))


def target_of(log: Log, options: WriteOptions, incoming: pa.Schema) -> pa.Schema:
    """The schema of entry files for a topic."""
    check_fixed_columns(log.topic, options)
    merged = schemas.merge(log.schema(log.view().head.schema_id), incoming, may_add=options.merge_schema)
    return schemas.written(merged, incoming)


def _replay(options: WriteOptions, namespace: OpenNamespace, query: str) -> Replay | None:
    """The last batch that was claimed, as far as the driver can know whose it is."""
    key = SinkKey(query) if query else job_key(options.producer) if options.sequence is not None else None
    claim = namespace.sinks.claimed(key) if key is not None else None
    if claim is None:
        return None
    checkpoint = Checkpoint(options.checkpoint, namespace.storage.root)
    return replay_of(state_of(claim, options.producer or spark_producer(query)), checkpoint)
