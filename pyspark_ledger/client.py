"""The Python client: puts ZooKeeper, storage and the core together behind one class."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import get_args

import pyarrow as pa

from pyspark_ledger.append.admission import ForgetProducer, StagedBatch
from pyspark_ledger.append.append import append
from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.limits import DEFAULT_LIMITS, Limits
from pyspark_ledger.base.names import zookeeper_address
from pyspark_ledger.base.position import Position
from pyspark_ledger.compaction import run as compaction
from pyspark_ledger.compaction.plan import check_compactable, state_slices
from pyspark_ledger.compaction.run import CompactionStats
from pyspark_ledger.compaction.work import Progress
from pyspark_ledger.cursors.attachment import SubscriptionType
from pyspark_ledger.cursors.consumer import Consumer
from pyspark_ledger.cursors.handle import CursorHandle, CursorStats
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log import policies, topics
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.log.places import PlaceLike
from pyspark_ledger.log.policies import UNCHANGED, Unchanged
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.metadata.port import CursorKey, RootKey
from pyspark_ledger.metadata.records import Policies, ProducerState, Topic
from pyspark_ledger.outbox.outbox import Dispatcher, Outbox
from pyspark_ledger.tokens.tokens import Tokens


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
        password: str | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Connects.

        :param zookeeper: connect string, with a chroot if you like (``host:2181,host:2181/prod``); default: the
            environment's LEDGER_ZOOKEEPER, else 127.0.0.1:2181.
        :param storage: folder or URI for the files; default: LEDGER_STORAGE. Needed by the first user of a namespace
            only: it is recorded there.
        :param password: ``user:password`` for ZooKeeper's digest scheme.
        :param timeout_s: how long each request may take.
        :raises Unavailable: nobody answers at that address.
        :raises InvalidInput: the connect string is none.
        """
        self._namespace = open_namespace(zookeeper, storage, password=password, timeout_s=timeout_s)

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
        return topics.list_topics(self._namespace.metadata)

    def topic(self, name: str) -> Topic:
        """What is fixed of a topic: its id, key, version column, and when it was made.

        :raises NotFound: there is no such topic.
        """
        return topics.get_topic(self._namespace.metadata, name)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and its files. A topic that is made later under the same name is another topic: offsets and
        tokens of the old one are refused by it.

        :raises NotFound: there is no such topic.
        """
        namespace = self._namespace
        topic = topics.delete_topic(namespace.metadata, name, limits=namespace.limits, clock=namespace.clock)
        for path in list(namespace.storage.list(topic.uuid)):
            namespace.storage.delete(path)

    # -- records -------------------------------------------------------------------------------------------

    def producer(
        self,
        topic: str,
        name: str | None = None,
        initial_sequence_id: int | None = None,
        *,
        compression: str = "lz4",
        mint_tokens: bool = False,
    ) -> Producer:
        """Writes records one by one, in commits of many. Close it, or use it with ``with``.

        With a name, records are numbered (from ``initial_sequence_id``, or after the last one in the log) and a retry
        after a crash adds nothing twice. Without one, a unique name is assigned. With ``mint_tokens`` each record gets
        a token (see :meth:`tokens`)."""
        return Producer(
            self._namespace.log(topic),
            name=name,
            initial_sequence_id=initial_sequence_id,
            compression=compression,
            mint_tokens=mint_tokens,
        )

    def reader(
        self,
        topic: str,
        start: PlaceLike = "earliest",
        end: PlaceLike | None = None,
        *,
        columns: list[str] | None = None,
        compacted: bool = False,
    ) -> Reader:
        """Iterates over records. ``start`` and ``end`` are ``earliest``, ``latest``, a position (``3:17:0``), a time (a
        datetime or ISO 8601) or a Spark offset's JSON; without an end the iterator waits for more.

        With ``compacted`` it gives the state of every key up to the end: its last record, if that is no tombstone, and
        the records that have no key. Without an end it gives the state as it is now, and then every change: records
        as they are written, tombstones too. The topic needs a key; it need not have been compacted, which only makes
        this faster."""
        log = self._namespace.log(topic, watch=end is None)
        if compacted:
            check_compactable(log)
        return Reader(log, start, end, columns, state_slices if compacted else None)

    # -- subscriptions -------------------------------------------------------------------------------------

    def create_cursor(self, topic: str, subscription: str, start: PlaceLike = "earliest") -> CursorHandle:
        """Makes a subscription, unless it is there."""
        log = self._namespace.log(topic)
        CursorNode(log, subscription).ensure(start)
        return CursorHandle(log, subscription)

    def cursor(self, topic: str, subscription: str) -> CursorHandle:
        """A subscription from outside: stats, preview, reset, skip, clear_backlog, rewind, redeliver, mark_delete."""
        return CursorHandle(self._namespace.log(topic), subscription)

    def consumer(
        self,
        topic: str,
        subscription: str,
        type: SubscriptionType = "exclusive",
        start: PlaceLike = "earliest",
    ) -> Consumer:
        """Follows a subscription: receive, acknowledge. ``start`` counts only if the subscription is new."""
        if type not in get_args(SubscriptionType):
            raise InvalidInput(f"type '{type}' is not one of {', '.join(get_args(SubscriptionType))}")
        return Consumer(self._namespace.log(topic, watch=True), subscription, type, start)

    def cursors(self, topic: str) -> list[CursorStats]:
        """All subscriptions of a topic."""
        log = self._namespace.log(topic)
        keys = self._namespace.metadata.children(RootKey(log.topic.uuid))
        return [CursorHandle(log, key.name).stats() for key in keys if isinstance(key, CursorKey)]

    # -- tokens --------------------------------------------------------------------------------------------

    def tokens(self, topic: str, group: str | None = None) -> Tokens:
        """The tokens of a topic's records, and of messages from outside: mint, present, consume, stats. Each group
        consumes for itself; the default is the topic's own name, as it is for a sink that writes to the topic."""
        return Tokens(self._namespace.log(topic), group if group is not None else topic)

    def outbox(
        self,
        name: str,
        *,
        dispatch: Dispatcher | None = None,
        dispatch_tokens: Tokens | None = None,
        mint_tokens: bool = True,
    ) -> Outbox:
        """Runs handlers with business state whose effects happen once: ``outbox.process(message_id, token, handler)``.

        ``dispatch(payload, token)`` takes messages out of the namespace; it may be called again for the same message,
        with the same token, which ``dispatch_tokens`` mint for it (``client.tokens(topic)``, of this namespace or of
        the receiver's). With ``mint_tokens`` the records that handlers send to topics have tokens."""
        here = self._namespace
        return Outbox(
            name, here.metadata, here.storage, here.log, here.limits, here.clock,
            dispatch=dispatch, dispatch_tokens=dispatch_tokens, mint_tokens=mint_tokens,
        )  # fmt: skip

    # -- producers and maintenance -------------------------------------------------------------------------

    def producers(self, topic: str) -> list[ProducerState]:
        """Who has written with sequence ids: name, last sequence id, last publish time, owner query."""
        return self._namespace.log(topic).producers()[1].all()

    def evicted_producers(self, topic: str) -> int:
        """How many producers the topic's policy has evicted, and not been told to forget since."""
        return self._namespace.log(topic).producers()[1].evicted

    def forget_producer(self, topic: str, name: str) -> None:
        """Lets a producer's name go, so that another query may use it. What it wrote stays."""
        log = self._namespace.log(topic)
        _, states = log.producers()
        if states.get(name) is None and not states.is_evicted(name):
            known = ", ".join(state.name for state in states.all()[:10]) or "none"
            raise InvalidInput(f"topic '{topic}' knows no producer '{name}': {known}", "LEDGER_PRODUCER_NOT_FOUND")
        append(log, StagedBatch(self._namespace.clock.new_id(), producer=name, admission=ForgetProducer()))

    def compact(
        self,
        topic: str,
        progress: Progress = lambda *_: None,
        *,
        read_rate: float | None = None,
        write_rate: float | None = None,
    ) -> CompactionStats | None:
        """Writes the last record of every key to a compacted ledger, for readers with readCompacted. Incremental: reads
        the last generation and what was written since. ``progress`` is called with phase, records done and total; the
        rates are records per second at most."""
        log = self._namespace.log(topic)
        compaction.compact(log, progress, read_rate, write_rate)
        return compaction.stats(log)

    def compaction(self, topic: str) -> CompactionStats | None:
        """Generation, horizon, records before and after; generation 0 while the first run has not finished, None if
        there was none."""
        return compaction.stats(self._namespace.log(topic))

    def policies(self, topic: str) -> Policies:
        return self._namespace.log(topic).refresh(sync=True).head.policies

    def set_policies(
        self,
        topic: str,
        *,
        deduplication: bool | Unchanged | None = UNCHANGED,
        snapshot_commits: int | Unchanged = UNCHANGED,
        evict_producers_after: timedelta | Unchanged | None = UNCHANGED,
    ) -> Policies:
        """Changes what is given. No commit after this returns is judged by the old policies.

        ``deduplication``: whether sequence ids are checked; None: as the namespace says. ``snapshot_commits``: commits
        between two snapshots of the dedup state (0: the default, 1,000). ``evict_producers_after``: producers silent
        for longer are evicted; None: never."""
        return policies.change(self._namespace.log(topic), deduplication, snapshot_commits, evict_producers_after)

    def set_namespace_policies(self, *, deduplication: bool) -> None:
        """For every topic whose own policies do not say. Writers that run notice within seconds."""
        policies.check_namespace(deduplication)
        _ = self._namespace.storage  # makes the namespace if this is its first use
        policies.change_namespace(self._namespace.transactions, self._namespace.metadata, deduplication)

    def gc(self, topic: str, *, dry_run: bool = False) -> gc.Collected:
        """Deletes files that no commit names and none can name any more: what failed and killed writers left."""
        return gc.collect(self._namespace.log(topic), dry_run=dry_run)

    def end(self, topic: str) -> Position:
        return self._namespace.log(topic).refresh(sync=True).head.end

    # -- life ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._namespace.close()

    def __enter__(self) -> LedgerClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_namespace(
    zookeeper: str | None = None,
    storage: str | None = None,
    *,
    password: str | None = None,
    timeout_s: float = 30.0,
    limits: Limits = DEFAULT_LIMITS,
    clock: Clock = SYSTEM_CLOCK,
) -> OpenNamespace:
    """What a client is a face of. The ZooKeeper client is imported only here: who only reads files needs none."""
    from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata

    address = zookeeper_address(zookeeper)
    metadata = ZooKeeperMetadata(address, timeout_s=timeout_s, password=password)
    return OpenNamespace(metadata, storage, address=address, limits=limits, clock=clock)


def client_of(namespace: OpenNamespace) -> LedgerClient:
    """A client of a namespace that was opened in a special way: for the package's own tools, and for tests."""
    client = LedgerClient.__new__(LedgerClient)
    client._namespace = namespace
    return client


def namespace_of(client: LedgerClient) -> OpenNamespace:
    """What is behind a client: for the package's own tools, and for tests."""
    return client._namespace


_shared: dict[tuple[int, str, str | None, str | None], OpenNamespace] = {}
_sharing = threading.Lock()


def shared_namespace(zookeeper: str | None, storage: str | None, password: str | None) -> OpenNamespace:
    """One per process and namespace. Spark pools its driver-side Python processes and makes new readers and writers
    for every batch: connecting each time would cost more than the commit."""
    key = (os.getpid(), zookeeper_address(zookeeper), storage, password)
    with _sharing:
        for stale in [k for k in _shared if k[0] != key[0]]:
            del _shared[stale]  # inherited over a fork: not ours to use, nor to close
        if key not in _shared:
            _shared[key] = open_namespace(key[1], storage, password=password)
        return _shared[key]
