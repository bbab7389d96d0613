"""The Python client: puts ZooKeeper, storage and the core together behind one class."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import get_args

import pyarrow as pa

from pyspark_ledger.append.admission import ForgetProducer, StagedBatch
from pyspark_ledger.append.append import append
from pyspark_ledger.append.background import Background
from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.limits import DEFAULT_LIMITS, Limits
from pyspark_ledger.base.names import query_of
from pyspark_ledger.base.position import Position
from pyspark_ledger.base.settings import Settings
from pyspark_ledger.compaction import run as compaction
from pyspark_ledger.compaction.plan import check_compactable, state_slices
from pyspark_ledger.compaction.run import CompactionStats
from pyspark_ledger.compaction.table_view import TableView
from pyspark_ledger.compaction.work import Progress
from pyspark_ledger.cursors.arguments import check_dead_letters, check_sharing
from pyspark_ledger.cursors.attachment import SubscriptionType
from pyspark_ledger.cursors.backoff import Backoff
from pyspark_ledger.cursors.compacted_consumer import CompactedConsumer
from pyspark_ledger.cursors.consumer import Consumer
from pyspark_ledger.cursors.dead_letters import DeadLetters
from pyspark_ledger.cursors.handle import CursorHandle, CursorStats
from pyspark_ledger.cursors.key_shared_consumer import KeySharedConsumer
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.shared_consumer import PREFETCH, SharedConsumer
from pyspark_ledger.cursors.shares import Sharing
from pyspark_ledger.errors import InvalidInput, LedgerError
from pyspark_ledger.lifecycle import condemned, gc, repair, retention, rewriting, skipping, termination
from pyspark_ledger.lifecycle.findings import Verified
from pyspark_ledger.lifecycle.verify import verify
from pyspark_ledger.log import policies, topics
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.log.places import PlaceLike
from pyspark_ledger.log.policies import UNCHANGED, Unchanged
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.metadata.port import CursorKey, PartKey
from pyspark_ledger.metadata.records import Policies, ProducerState, Topic
from pyspark_ledger.outbox.outbox import Dispatcher, Outbox
from pyspark_ledger.outbox.transaction import Transaction
from pyspark_ledger.tokens.tokens import Tokens

logger = logging.getLogger(__name__)


class LedgerClient:
    """A connection to one namespace: makes topics, writes and reads them, looks after subscriptions and tokens.

    Use it with ``with``, or :meth:`close` it. Threads may share one. Every method may raise ``Unavailable`` when
    ZooKeeper or the storage does not answer; then nothing was changed.

    >>> _ = client.create_topic("sales", pa.schema([("id", pa.int64()), ("amount", pa.float64())]), key="id")
    >>> with client.producer("sales") as producer:
    ...     receipt = producer.send({"id": 1, "amount": 9.5})
    >>> for record in client.reader("sales", end="latest"):
    ...     print(record.position, record["amount"])
    0:0:0 9.5
    """

    def __init__(
        self,
        zookeeper: str | None = None,
        storage: str | None = None,
        *,
        profile: str | None = None,
        user: str | None = None,
        password: str | None = None,
        options: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Connects. What is not given comes from the environment (``LEDGER_…``), and what is not there from a profile.

        :param zookeeper: connect string, with a chroot if you like (``host:2181,host:2181/prod``); default: the
            environment's LEDGER_ZOOKEEPER, else 127.0.0.1:2181.
        :param storage: folder or URI for the files; default: LEDGER_STORAGE. Needed by the first user of a namespace
            only: it is recorded there.
        :param profile: of the file with profiles, which may say all the rest.
        :param user: for ZooKeeper's digest scheme.
        :param password: of that user; or ``user:password``.
        :param options: more about where the namespace is and who we are, by the names of Spark's options, as
            ``{"zookeeper.tls.ca": "ca.pem"}``.
        :param timeout_s: how long each request may take.
        :raises Unavailable: nobody answers at that address, or not as it must.
        :raises InvalidInput: the connect string is none, or the login is wrong.
        """
        settings = settings_of(options, zookeeper, storage, profile=profile, user=user, password=password)
        self._namespace = open_namespace(settings.here(), timeout_s=timeout_s)

    @property
    def zookeeper(self) -> str:
        """The connect string that is used."""
        return self._namespace.address

    # -- topics --------------------------------------------------------------------------------------------

    def create_topic(self, name: str, schema: pa.Schema, key: str = "", version_column: str = "") -> Topic:
        """Makes a topic.

        :param schema: its columns; more can be added later, none removed.
        :param key: the column that compaction keeps one record of; fixed for the topic's life.
        :param version_column: of two records with one key the higher version wins; fixed too.
        :raises Conflict: there is a topic of that name.
        :raises InvalidInput: a name, a type or a column that cannot be.
        """
        return self._namespace.create_topic(name, schema, key, version_column)

    def topics(self) -> list[str]:
        """The names of all topics.

        >>> client.topics()
        ['orders']
        """
        self._namespace.metadata.sync()  # a server that is behind the others would leave out the newest
        return topics.list_topics(self._namespace.metadata)

    def topic(self, name: str) -> Topic:
        """What is fixed of a topic: its id, key, version column, and when it was made.

        :raises NotFound: there is no such topic.
        """
        return topics.get_topic(self._namespace.metadata, name)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and its files. A topic that is made later under the same name is another topic: offsets and
        tokens of the old one are refused by it, and queries that wrote to the old one do not write to it. A mark stays
        on the name, so that no write makes the topic again unasked: :meth:`create_topic` does.

        A file that could not be deleted, or that a task wrote too late, goes with ``pyspark-ledger namespace gc``.

        :raises NotFound: there is no such topic.
        :raises Unavailable: the storage is not there; nothing was deleted.
        """
        namespace = self._namespace
        namespace.check_storage()  # or its files would stay for ever where they are
        topic = topics.delete_topic(namespace.metadata, name, limits=namespace.limits, clock=namespace.clock)
        try:
            condemned.delete_files(namespace.storage, topic.uuid)
        except LedgerError as error:  # the topic is deleted, and to say anything else would be wrong
            logger.warning("deleted topic=%s uuid=%s, but not all of its files yet: %s", name, topic.uuid, error)

    # -- records -------------------------------------------------------------------------------------------

    def producer(
        self,
        topic: str,
        name: str | None = None,
        initial_sequence_id: int | None = None,
        *,
        compression: str = "lz4",
        mint_tokens: bool = False,
        linger_ms: float | None = 5.0,
        delivery_timeout_s: float = 120.0,
        max_waiting_records: int = 100_000,
        max_waiting_bytes: int = 64 << 20,
        send_timeout_s: float | None = None,
    ) -> Producer:
        """A producer that takes records one by one, and writes them in commits of many. Threads may share it. Close it,
        or use it with ``with``.

        :param name: records are then numbered, and a retry after a crash adds nothing twice; without, a unique name is
            assigned, and nobody can tell a retry from new records.
        :param initial_sequence_id: the number of the first record; default: after the last one that is in the log.
        :param compression: ``lz4``, ``zstd`` or ``none``.
        :param mint_tokens: each record gets a token (see :meth:`tokens`).
        :param linger_ms: how long a record waits for others, in milliseconds, before a background thread writes them;
            None: only :meth:`Producer.flush` and :meth:`Producer.close` write, and the arguments below do not count.
        :param delivery_timeout_s: a record that could not be written for so long is given up, and its future says so.
        :param max_waiting_records: how many records may wait to be written, before ``send`` waits for room.
        :param max_waiting_bytes: and how many bytes.
        :param send_timeout_s: how long ``send`` waits for room before it refuses a record; 0: not at all, as event
            loops need it; None: as long as it takes.
        :raises NotFound: there is no such topic.
        :raises InvalidInput: a name or number that cannot be, or deduplication is off for the topic.

        >>> with client.producer("orders", "web-shop") as producer:
        ...     producer.send({"order_id": 7}).result().sequence_id
        0
        """
        background = None
        if linger_ms is not None:
            background = Background(
                linger_ms, delivery_timeout_s, max_waiting_records, max_waiting_bytes, send_timeout_s
            )
        return Producer(
            self._namespace.log(topic),
            name=name,
            initial_sequence_id=initial_sequence_id,
            compression=compression,
            mint_tokens=mint_tokens,
            background=background,
        )

    def reader(
        self,
        topic: str,
        start: PlaceLike = "earliest",
        end: PlaceLike | None = None,
        *,
        columns: list[str] | None = None,
        compacted: bool = False,
        fail_on_data_loss: bool = True,
    ) -> Reader:
        """Iterates over records in their order.

        :param start: a place in the topic: ``earliest``, ``latest``, a position (``3:17:0``), a time (a datetime or
            ISO 8601), or a Spark offset's JSON.
        :param end: where to stop; without one the iterator waits for more.
        :param columns: read only these.
        :param compacted: the state of every key up to the end instead of its history: its last record, if that is no
            tombstone, and the records that have no key. Without an end: the state as it is now, then every change,
            tombstones too. The topic needs a key; it need not have been compacted, which only makes this faster.
        :param fail_on_data_loss: what to do at a damaged entry that was given up by name (:meth:`skip_damaged`): raise
            ``DataLoss``, or go around it and say so in the log.
        :raises NotFound: there is no such topic.
        :raises InvalidInput: a place or a column that is not there, or ``compacted`` for a topic without a key.

        >>> [record["order_id"] for record in client.reader("orders", end="latest")]
        [1, 2, 3]
        """
        log = self._namespace.log(topic, watch=end is None)
        if compacted:
            check_compactable(log)
        state = state_slices if compacted else None
        return Reader(log, start, end, columns, state, fail_on_data_loss=fail_on_data_loss)

    def table_view(self, topic: str, *, columns: list[str] | None = None, fail_on_data_loss: bool = True) -> TableView:
        """The last record of every key as a mapping in memory, kept current in the background; see
        :class:`~pyspark_ledger.compaction.table_view.TableView`. Returns when it has the state as of now.

        :param columns: only these are in the rows.
        :param fail_on_data_loss: as for :meth:`reader`.
        :raises NotFound: there is no such topic.
        :raises InvalidInput: the topic has no key, or no such column.

        >>> with client.table_view("orders") as orders:
        ...     orders[2]["amount"], 99 in orders
        (20.0, False)
        """
        log = self._namespace.log(topic, watch=True)
        return TableView(log, columns, fail_on_data_loss=fail_on_data_loss)

    # -- subscriptions -------------------------------------------------------------------------------------

    def create_cursor(
        self, topic: str, subscription: str, start: PlaceLike = "earliest", *, compacted: bool = False
    ) -> CursorHandle:
        """Makes a subscription, unless it is there, and returns its handle.

        :param start: where it begins, if it is new: a place, as for :meth:`reader`.
        :param compacted: it is for a query with ``readCompacted``: then ``earliest`` is the start of the compacted
            records, also of those whose originals the log has given up.
        :raises NotFound: there is no such topic.

        >>> client.create_cursor("orders", "billing", "latest").stats().backlog_records
        0
        """
        log = self._namespace.log(topic)
        CursorNode(log, subscription).ensure(start, compacted=compacted)
        return CursorHandle(log, subscription)

    def cursor(self, topic: str, subscription: str) -> CursorHandle:
        """A subscription from outside: look at it and move it, also while a query or a consumer follows it.

        :raises NotFound: by its methods, if there is no such subscription.

        >>> _ = client.create_cursor("orders", "billing")
        >>> client.cursor("orders", "billing").reset("latest").revision
        1
        """
        return CursorHandle(self._namespace.log(topic), subscription)

    def consumer(
        self,
        topic: str,
        subscription: str,
        type: SubscriptionType | Sharing = "exclusive",
        start: PlaceLike = "earliest",
        *,
        redelivery_delay_s: float = 1.0,
        max_redelivery_delay_s: float = 60.0,
        fail_on_data_loss: bool = True,
        read_compacted: bool = False,
        prefetch: int | None = None,
        ack_timeout_s: float | None = None,
        max_redeliveries: int | None = None,
        dead_letter_topic: str | None = None,
    ) -> Consumer | SharedConsumer:
        """Follows a subscription: receive, acknowledge. It is made if it is not there.

        :param type: ``exclusive``: refused while another one is attached; ``failover``: waits until that is gone;
            ``shared``: each record goes to one of those that share it, in no order; ``key_shared``: and those of one
            key in order, to one of them at a time.
        :param start: where the subscription begins, if it is new.
        :param redelivery_delay_s: how long a record stays away that was acknowledged negatively; each time twice as
            long.
        :param max_redelivery_delay_s: how long at most.
        :param fail_on_data_loss: what to do when records were taken from the subscription by a backlog quota, are no
            longer in the log, or were given up by :meth:`skip_damaged`. False: go on without them; the subscription
            counts them as lost.
        :param read_compacted: below the horizon of the newest compaction only the last record of every key comes. Not
            for the types that share. The topic needs a key.
        :param prefetch: only for the types that share: how many records this consumer has for itself at most that it
            has not delivered yet, 1,000 by default. With 1 nobody waits for a record that another is not busy with.
        :param ack_timeout_s: only for the types that share: what is neither acknowledged nor refused for so long is
            delivered again. By default it stays in hand for as long as this consumer lives.
        :param max_redeliveries: a record that was delivered once more than this, and is to come again all the same,
            goes to ``dead_letter_topic`` instead: it is stored there and acknowledged in one step.
        :param dead_letter_topic: where to; it is made if it is not there. ``pyspark-ledger deadletters`` lists what is
            in it, and brings it back.
        :raises Conflict: another owner is attached and alive, or living consumers share it in another way.
        :raises CursorUnderRevision: somebody is resetting the subscription, and that does not end.

        >>> with client.producer("orders") as producer:
        ...     _ = producer.send({"order_id": 1})
        >>> with client.consumer("orders", "shipping") as consumer:
        ...     message = consumer.receive(timeout_s=5)
        ...     consumer.acknowledge(message)
        True
        """
        types = (*get_args(SubscriptionType), *get_args(Sharing))
        if type not in types:
            raise InvalidInput(f"type '{type}' is not one of {', '.join(types)}")
        backoff = Backoff(redelivery_delay_s, max_redelivery_delay_s, max_redeliveries)
        check_sharing(type, prefetch, ack_timeout_s, read_compacted=read_compacted)
        check_dead_letters(topic, max_redeliveries, dead_letter_topic, read_compacted=read_compacted)
        log, grave = self._namespace.log(topic, watch=True), None
        if read_compacted:
            check_compactable(log)
        if dead_letter_topic is not None and max_redeliveries is not None:
            grave = DeadLetters(self._namespace, dead_letter_topic, max_redeliveries)
        if type == "exclusive" or type == "failover":
            owning = CompactedConsumer if read_compacted else Consumer
            return owning(log, subscription, type, start, backoff, fail_on_data_loss=fail_on_data_loss, grave=grave)
        kind = KeySharedConsumer if type == "key_shared" else SharedConsumer
        return kind(
            log, subscription, start, backoff,
            prefetch=PREFETCH if prefetch is None else prefetch,
            ack_timeout_s=ack_timeout_s,
            fail_on_data_loss=fail_on_data_loss,
            grave=grave,
        )  # fmt: skip

    def cursors(self, topic: str) -> list[CursorStats]:
        """All subscriptions of a topic: position, backlog, owner, epoch, revision."""
        self._namespace.metadata.sync()
        log = self._namespace.log(topic)
        keys = self._namespace.metadata.children(PartKey(log.topic.uuid, "subscriptions"))
        return [CursorHandle(log, key.name).stats() for key in keys if isinstance(key, CursorKey)]

    # -- tokens --------------------------------------------------------------------------------------------

    def tokens(self, topic: str, group: str | None = None) -> Tokens:
        """The tokens of a topic: those of its records, and those minted for messages from outside.

        :param group: who consumes; each group does so for itself. The default is the topic's own name, as it is for a
            sink that writes to the topic.

        >>> [token] = client.tokens("orders").mint()
        >>> client.tokens("orders").consume([token]), client.tokens("orders").consume([token])
        ([True], [False])
        """
        return Tokens(self._namespace.log(topic), group if group is not None else topic)

    def outbox(
        self,
        name: str,
        *,
        dispatch: Dispatcher | None = None,
        dispatch_tokens: Tokens | None = None,
        mint_tokens: bool = True,
    ) -> Outbox:
        """Runs handlers with business state whose effects happen once; see :meth:`Outbox.process`.

        :param name: of the outbox, and of the group whose tokens are consumed.
        :param dispatch: ``dispatch(payload, token)`` takes messages out of the namespace. It may be called again for
            the same message, with the same token.
        :param dispatch_tokens: mint the tokens for what is dispatched: ``client.tokens(topic)``, of this namespace or
            of the receiver's.
        :param mint_tokens: whether the records that handlers send to topics have tokens.
        """
        here = self._namespace
        return Outbox(
            name, here.metadata, here.storage, here.log, here.limits, here.clock,
            dispatch=dispatch, dispatch_tokens=dispatch_tokens, mint_tokens=mint_tokens,
        )  # fmt: skip

    def transaction(
        self, *, producer: str | None = None, sequence_id: int | None = None, mint_tokens: bool = False
    ) -> Transaction:
        """Appends to several topics, acknowledges messages and consumes tokens in one step: all of it, or nothing; see
        :class:`~pyspark_ledger.outbox.transaction.Transaction`.

        :param producer: who writes, with a ``sequence_id``: the same name and id are done once, as for a batch job with
            ``producerName`` and ``sequenceId``. The batch id of ``foreachBatch`` is one.
        :param sequence_id: numbers the transactions of a producer; each must be above the last one, or be the last one
            again with as many records, which changes nothing (:attr:`Transaction.duplicate`).
        :param mint_tokens: whether the records have tokens.
        :raises InvalidInput: one of producer and sequence id is given, and not the other.

        >>> with client.transaction() as t:
        ...     t.append("orders", {"order_id": 7})
        ...     t.append("orders", [{"order_id": 8}, {"order_id": 9}])
        >>> [record["order_id"] for record in client.reader("orders", t.positions["orders"], "latest")]
        [7, 8, 9]
        """
        return Transaction(self._namespace, producer=producer, sequence_id=sequence_id, mint_tokens=mint_tokens)

    # -- producers and maintenance -------------------------------------------------------------------------

    def producers(self, topic: str) -> list[ProducerState]:
        """Who has written with sequence ids: name, last sequence id, last publish time, owner query."""
        return self._namespace.log(topic).producers()[1].all()

    def evicted_producers(self, topic: str) -> int:
        """How many producers the topic's policy has evicted that were not forgotten or heard of since."""
        return self._namespace.log(topic).producers()[1].evicted

    def forget_producer(self, topic: str, name: str) -> None:
        """Lets a producer's name go, so that another query may use it. What it wrote stays.

        The name ``spark-<query id>`` also stands for the query itself, whatever its producer is called: a query whose
        topic was deleted may then go on in the next one of that name, which it makes if there is none. The name of a
        batch job that writes to several topics (``topicColumn``) is let go for all of them.

        :raises NotFound: there is no such topic.
        :raises InvalidInput: the topic knows no such producer.
        """
        query = query_of(name)
        let_go = self._namespace.sinks.forget(query, topic) if query else self._namespace.sinks.forget_claim(name)
        if let_go and topics.find_topic(self._namespace.metadata, topic) is None:
            return
        log = self._namespace.log(topic)
        _, states = log.producers()
        if states.get(name) is None and not states.is_evicted(name):
            if let_go:
                return
            known = ", ".join(state.name for state in states.all()[:10]) or "none at all"
            raise InvalidInput(
                f"topic '{topic}' knows no producer '{name}'; it knows {known}", "LEDGER_PRODUCER_NOT_FOUND"
            )
        append(log, StagedBatch(self._namespace.clock.new_id(), producer=name, admission=ForgetProducer()))

    def compact(
        self,
        topic: str,
        progress: Progress = lambda *_: None,
        *,
        read_rate: float | None = None,
        write_rate: float | None = None,
    ) -> CompactionStats | None:
        """Writes the last record of every key to compacted files, for readers with ``readCompacted``. Incremental:
        reads the last generation and what was written since. The generation before can be read for at least a day, and
        is deleted by :meth:`gc`.

        :param progress: called with the phase, the records done, and of how many.
        :param read_rate: records per second at most; ``write_rate`` likewise.
        :returns: what is known of the topic's compaction then; None if it is empty and was never compacted.
        :raises Conflict: another process compacts the topic; or there are 1,000 older generations that gc has not
            deleted yet.
        :raises InvalidInput: the topic has no key.
        """
        log = self._namespace.log(topic)
        compaction.compact(log, progress, read_rate, write_rate)
        return compaction.stats(log)

    def compaction(self, topic: str) -> CompactionStats | None:
        """Generation, horizon, records before and after. Generation 0 while the first run has not finished; None if
        there was none."""
        return compaction.stats(self._namespace.log(topic))

    def policies(self, topic: str) -> Policies:
        """What :meth:`set_policies` has set for a topic."""
        self._namespace.metadata.sync()
        return self._namespace.log(topic).policies().record

    def set_policies(
        self,
        topic: str,
        *,
        deduplication: bool | Unchanged | None = UNCHANGED,
        snapshot_commits: int | Unchanged = UNCHANGED,
        evict_producers_after: timedelta | Unchanged | None = UNCHANGED,
        retention_age: timedelta | Unchanged | None = UNCHANGED,
        retention_bytes: int | Unchanged | None = UNCHANGED,
        backlog_quota_age: timedelta | Unchanged | None = UNCHANGED,
        backlog_quota_bytes: int | Unchanged | None = UNCHANGED,
        backlog_action: str | Unchanged = UNCHANGED,
        expire_subscriptions_after: timedelta | Unchanged | None = UNCHANGED,
        compact_after_bytes: int | Unchanged | None = UNCHANGED,
        rewrite_below_bytes: int | Unchanged | None = UNCHANGED,
    ) -> Policies:
        """Changes what is given. No commit after this returns is judged by the old policies.

        :param deduplication: whether sequence ids are checked; None: as the namespace says.
        :param snapshot_commits: commits between two snapshots of the producers' state; 0: the default, 1,000.
        :param evict_producers_after: producers that are silent for longer are evicted; None: never.
        :param retention_age: sealed ledgers whose last record is older are given up (:meth:`trim`); None: never.
        :param retention_bytes: sealed ledgers are given up if so many bytes were written after them; None: never.
        :param backlog_quota_age: how old a record may be that a subscription has not acknowledged; None: any age.
        :param backlog_quota_bytes: how many bytes a subscription may not have acknowledged; None: any number.
        :param backlog_action: what happens to a subscription that is over its quota: ``hold`` (only an alarm), or
            ``evict``: it loses what retention would give up.
        :param expire_subscriptions_after: subscriptions that nobody uses for longer are deleted; None: never.
        :param compact_after_bytes: maintenance compacts the topic when so many bytes were written since, and before it
            is trimmed for the first time; None: never. Only for topics with a key.
        :param rewrite_below_bytes: maintenance rewrites ledgers whose files are smaller on average; None: never.
        :raises InvalidInput: a value that cannot be; nothing was changed.

        >>> client.set_policies("orders", retention_age=timedelta(days=7)).retention_ms
        604800000
        """
        changes = policies.Changes(
            deduplication, snapshot_commits, evict_producers_after, retention_age, retention_bytes, backlog_quota_age,
            backlog_quota_bytes, backlog_action, expire_subscriptions_after, compact_after_bytes, rewrite_below_bytes,
        )  # fmt: skip
        return policies.change(self._namespace.log(topic), changes)

    def trim(self, topic: str, *, before: PlaceLike | None = None, dry_run: bool = False) -> retention.Trimmed:
        """Gives up the oldest ledgers of a topic, as its policies say, except for those that a subscription has not
        passed or the newest compaction needs. The files are deleted by :meth:`gc`, two to three days later.

        :param before: give up the ledgers that end before this place instead; a place as for :meth:`reader`.
        :param dry_run: only tell what would be given up.
        :raises NotFound: there is no such topic.

        >>> client.trim("orders").why
        'the topic keeps everything: it has neither a retention age nor a retention size'
        """
        return retention.trim(self._namespace.log(topic), before=before, dry_run=dry_run)

    def rewrite(
        self,
        topic: str,
        *,
        below_bytes: int | None = None,
        everything: bool = False,
        dry_run: bool = False,
        progress: Progress = lambda *_: None,
        read_rate: float | None = None,
    ) -> rewriting.Rewritten:
        """Joins the small files that many small commits have left, so that a read has few large ones to open. Nothing
        that a reader sees changes: records, positions, ids and tokens are the same. Only sealed ledgers are rewritten,
        each once. The old files are deleted by :meth:`gc`, one to two days later.

        :param below_bytes: rewrite ledgers whose files are smaller on average; default: the topic's policy, else 4 MiB.
        :param everything: look at all ledgers. Otherwise those are left out that were rewritten before, and those
            before a hundred in a row that needed nothing.
        :param dry_run: only tell what would be done.
        :param progress: called with the word ``rewriting``, the bytes read, and of how many.
        :param read_rate: bytes per second at most.
        :raises Conflict: another process rewrites the topic.
        :raises NotFound: there is no such topic.

        >>> client.rewrite("orders").ledgers
        0
        """
        return rewriting.rewrite(
            self._namespace.log(topic), below_bytes=below_bytes, dry_run=dry_run, everything=everything,
            progress=progress, read_rate=read_rate,
        )  # fmt: skip

    def terminate(self, topic: str) -> Position:
        """Ends a topic for good: it takes no more records, and can be read as before. Returns its end.

        :raises NotFound: there is no such topic.
        """
        return termination.terminate(self._namespace.log(topic))

    def set_namespace_policies(self, *, deduplication: bool) -> None:
        """Sets what holds for every topic whose own policies do not say. Writers that run notice within seconds.

        :param deduplication: whether sequence ids are checked.
        """
        policies.check_namespace(deduplication)
        _ = self._namespace.storage  # makes the namespace if this is its first use
        policies.change_namespace(self._namespace.transactions, self._namespace.metadata, deduplication)

    def gc(
        self,
        topic: str,
        *,
        dry_run: bool = False,
        thorough: bool | None = None,
        progress: Progress = lambda *_: None,
    ) -> gc.Collected:
        """Deletes files that no commit names and none can name any more: what failed and killed writers left behind,
        and what was replaced. It does so once a day, however often it is called, so that a batch has a day to be
        committed, and a backup of the last day can be restored: a file goes two to three days after it was left behind.

        :param dry_run: only tell what would be deleted.
        :param thorough: compare all files with all references, which takes longer the longer the log is, and finds what
            tasks wrote days after their time; None: every 30th time.
        :param progress: called with what is done, and how much of it.
        :raises DataLoss: ZooKeeper was rolled back to an older state: nothing is deleted.
        """
        return gc.collect(self._namespace.log(topic), dry_run=dry_run, thorough=thorough, progress=progress)

    def verify(
        self,
        topic: str,
        *,
        deep: bool = False,
        sample: float | None = None,
        progress: Progress = lambda *_: None,
    ) -> Verified:
        """Looks whether all of a topic is there, is what was written, and adds up: every file with its length and
        checksums, ledgers and totals, masks, compacted generations, subscriptions and tokens. Changes nothing, and can
        run beside everything else: what looks wrong is looked at again before it is told.

        :param deep: also compare compacted generations with what a fold of the log gives.
        :param sample: a quick look: the share of files, as 0.01, whose records are read, chosen anew every time. Of the
            others it is checked whether they are there with their length.
        :param progress: called with the word ``verifying``, the records that were passed, and of how many.
        :returns: what was found. ``is_sound`` says whether nothing is lost, damaged or contradicts itself.
        :raises NotFound: there is no such topic.
        :raises InvalidInput: the sample is no share, or given together with ``deep``.

        >>> client.verify("orders").is_sound
        True
        """
        return verify(self._namespace.log(topic), deep=deep, sample=sample, progress=progress)

    def skip_damaged(
        self, topic: str, position: Position | str, *, reason: str = "", undo: bool = False, dry_run: bool = False
    ) -> skipping.SkippedEntry:
        """Gives up an entry whose file is damaged or missing, and of which there is no copy. Positions and totals stay
        as they are. Readers that meet it are told exactly what is missing (LEDGER_ENTRY_LOST); those with
        ``failOnDataLoss=false``, and compaction, go around it.

        :param position: of the entry, as ``3:17`` or of any record in it.
        :param reason: for those who are told of it.
        :param undo: take that back, after the file was restored from a copy.
        :param dry_run: only tell what would be given up.
        :raises InvalidInput: the entry is whole (or with ``undo`` is not), or there is none.
        :raises NotFound: there is no such topic.
        """
        at = position if isinstance(position, Position) else skipping.parse_entry(position)
        return skipping.skip_damaged(self._namespace.log(topic), at, reason=reason, undo=undo, dry_run=dry_run)

    def damage(self, topic: str) -> repair.Damage | None:
        """What is known of a rollback of ZooKeeper to an older state; None if nothing shows one."""
        return repair.inspect(self._namespace.log(topic))

    def accept_loss(self, topic: str) -> repair.Damage:
        """Repairs a topic after ZooKeeper was rolled back to an older state: what is there now counts, what came after
        that state is lost, and writers go on. See docs/operations.md before. Where storage has what was lost,
        :meth:`bring_back` is better.

        :returns: what was known of the damage.
        :raises InvalidInput: the topic needs no repair.
        """
        return repair.accept_loss(self._namespace.log(topic))

    def bring_back(self, topic: str) -> repair.Damage:
        """Repairs a topic after ZooKeeper was rolled back to an older state: it goes on with the commits that storage
        has (``damage(topic).later``), and who has seen them goes on too. Subscriptions and token groups stay as
        ZooKeeper has them: some records are delivered again.

        :returns: what was known of the damage.
        :raises InvalidInput: the topic needs no repair, or something was committed since the rollback.
        """
        return repair.bring_back(self._namespace.log(topic))

    def end(self, topic: str) -> Position:
        """The position after a topic's last record.

        >>> str(client.end("orders"))
        '0:1:0'
        """
        return self._namespace.log(topic).refresh(sync=True).head.end

    # -- life ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the connection. What was opened with this client can no longer be used."""
        self._namespace.close()

    def __enter__(self) -> LedgerClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def settings_of(
    options: Mapping[str, str] | None = None,
    zookeeper: str | None = None,
    storage: str | None = None,
    *,
    profile: str | None = None,
    user: str | None = None,
    password: str | None = None,
) -> Settings:
    """From a function's arguments, of which one takes the rest by name. An argument that is empty was not given."""
    given = {"zookeeper": zookeeper, "storage": storage, "profile": profile}
    given |= {"zookeeper.user": user, "zookeeper.password": password}
    found = {name: value for name, value in given.items() if value}
    for name in options or {}:
        if name.lower() in found:
            raise InvalidInput(f"'{name}' is given twice: once in options", "LEDGER_INVALID_OPTION")
    return Settings.of({**found, **(options or {})})


def open_namespace(
    where: Settings | str | None = None,
    storage: str | None = None,
    *,
    timeout_s: float = 30.0,
    answered: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    clock: Clock = SYSTEM_CLOCK,
) -> OpenNamespace:
    """What a client is a face of: by exactly these settings, or by a connect string and the environment. The ZooKeeper
    client is imported only here: who only reads files needs none."""
    from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata

    settings = where if isinstance(where, Settings) else settings_of(None, where).here()
    metadata = ZooKeeperMetadata(settings, timeout_s=timeout_s, answered=answered)
    return OpenNamespace(
        metadata, storage or settings.storage, address=settings.zookeeper, settings=settings, limits=limits, clock=clock
    )


def client_of(namespace: OpenNamespace) -> LedgerClient:
    """A client of a namespace that was opened in a special way: for the package's own tools, and for tests."""
    client = LedgerClient.__new__(LedgerClient)
    client._namespace = namespace
    return client


def namespace_of(client: LedgerClient) -> OpenNamespace:
    """What is behind a client: for the package's own tools, and for tests."""
    return client._namespace


_shared: dict[tuple[int, Settings, str], OpenNamespace] = {}
_sharing = threading.Lock()


def shared_namespace(settings: Settings, *, answered: bool = False, pooled: bool = True) -> OpenNamespace:
    """One per process and namespace. Spark pools its driver-side Python processes and makes new readers and writers
    for every batch: connecting each time would cost more than the commit. ``answered``: ZooKeeper has answered the
    process that planned this batch. ``pooled``: the process is one of Spark's, which does one thing at a time."""
    settings = settings.here()
    key = (os.getpid(), settings, settings.zookeeper)  # a profile may have got another address meanwhile
    with _sharing:
        for stale in [k for k in _shared if k[0] != key[0]]:
            del _shared[stale]  # inherited over a fork: not ours to use, nor to close
        if pooled:
            _forget_disconnected()
        if key not in _shared:
            _shared[key] = open_namespace(settings, answered=answered)
        return _shared[key]


def _forget_disconnected() -> None:
    """A ZooKeeper that was rolled back, or lost its data and was rebuilt, refuses a connection that has seen more than
    it has. A query that is started again must not fail because a process of Spark still has such a connection."""
    for key in [key for key, namespace in _shared.items() if not namespace.metadata.is_connected]:
        _shared.pop(key).close()
