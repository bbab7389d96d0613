"""Dead letters on the driver: the topic that tasks stage them for, and their part in the transaction that commits the
rows which could be stored."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_ledger.append.admission import ADMIT_ALL, ByBatchId, StagedBatch, TopicState, Verdict
from pyspark_ledger.append.several import Part
from pyspark_ledger.base.names import spark_producer
from pyspark_ledger.datasource.executor.staging import Destination, StagedPart
from pyspark_ledger.datasource.options import WriteOptions
from pyspark_ledger.datasource.write_plan import known_log, make_topic, open_log, writer_namespace
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import Conflict, InvalidInput, NotFound
from pyspark_ledger.files import dead_letters as letters
from pyspark_ledger.log import folders, topics
from pyspark_ledger.log.log import FRESH_S
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.log.sinks import gone_meanwhile


def plan_dead_letters(options: WriteOptions, *, again: bool) -> Destination:
    """The topic for rows that cannot be stored. It is made when a write names it for the first time; ``again`` as for
    ``plan_write``."""
    name = options.dead_letters
    namespace = writer_namespace(options, planned=again)
    log = known_log(namespace, name, 0)
    if log is None:
        namespace.metadata.sync()
        if topics.find_topic(namespace.metadata, name) is None:
            if again:
                raise gone_meanwhile(name, recreated=False)
            if options.create_topic is False:
                raise NotFound(
                    f"option 'deadLetterTopic' is '{name}', there is no such topic, and option 'createTopic' is false: "
                    "make it by a write without that option, or leave one of them out",
                    "LEDGER_TOPIC_NOT_FOUND",
                )
            make_topic(namespace, name, letters.SCHEMA)
        log = open_log(namespace, name)
    folders.prepare(log)
    head = log.view().head
    try:
        letters.check_schema(log.schema(head.schema_id), name)
    except InvalidInput as wrong:
        raise InvalidInput(f"option 'deadLetterTopic': {wrong.message}", wrong.code) from None
    return Destination(name, log.topic.uuid, head.gc_epoch, letters.SCHEMA)


class OncePerBatch(ByBatchId):
    """For dead letters of a sink whose records bring ids or tokens, by which the others are recognised: these have
    none. The last batch again adds nothing. Whatever else it is: better twice than not at all."""

    def judge(self, batch: StagedBatch, topic: TopicState) -> Verdict:
        try:
            return ByBatchId.judge(self, batch, topic)
        except Conflict as conflict:
            if conflict.code not in ("LEDGER_SEQUENCE_BEHIND", "LEDGER_SEQUENCE_REUSED"):
                raise
            id = self.id
            return Verdict(batch.entries, sequence=id.sequence, query=id.query, run=id.run, digest=id.digest)


def dead_part(namespace: OpenNamespace, name: str, staged: Sequence[StagedPart], id: BatchId | None) -> Part:
    """``id``: of the batch, if nothing else in the transaction decides whether it is a replay."""
    log = known_log(namespace, name, FRESH_S)
    if log is None or log.topic.uuid != staged[0].uuid:
        namespace.metadata.sync()
        log = open_log(namespace, name)
    if any(part.uuid != log.topic.uuid for part in staged):
        raise gone_meanwhile(name, recreated=True)
    by_batch = id is not None and id.query and log.deduplicates()
    batch = StagedBatch(
        id=log.clock.new_id(),
        entries=tuple(part.entry for part in staged),
        producer=spark_producer(id.query) if id is not None and id.query else "",
        admission=OncePerBatch(id) if by_batch and id is not None else ADMIT_ALL,
    )
    return Part(log, batch)
