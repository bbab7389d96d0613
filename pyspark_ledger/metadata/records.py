"""What ZooKeeper keeps, as plain immutable values. No record grows with the number of commits.

``zk_metadata`` turns them into protobuf and back.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark_ledger.base.limits import MOST_OPEN_COMMITS, MOST_SCHEMAS
from pyspark_ledger.base.position import EARLIEST, Position


@dataclass(frozen=True, slots=True)
class FileRef:
    """An immutable file in the topic's folder, with what is needed to verify that it is the one we wrote.

    The last ``tail_length`` bytes hash to ``tail_hash``. For an entry file the tail holds the checksums of
    everything before it; other files are hashed whole.
    """

    epoch: int  # the gc epoch that was read before the file was staged
    uid: bytes
    length: int
    tail_length: int
    tail_hash: int


@dataclass(frozen=True, slots=True)
class Entry:
    """The records that one task, or one producer flush, added.

    Positions count every row of the entry. Rows that turned out to be duplicates when the batch was committed are
    masked: they keep their index, and no reader sees them.
    """

    file: FileRef
    records: int
    masked: int = 0
    mask: builtins.bytes = b""  # see mask.py; empty if every row is kept
    first_row: int = 0  # where in the file the entry begins, if it shares the file with others,
    file_rows: int = 0  # and how many rows that file has; 0: the entry has a file of its own

    @property
    def kept(self) -> int:
        return self.records - self.masked

    @property
    def bytes(self) -> int:
        """Of a file that is shared, by the entry's share of rows."""
        return self.file.length * self.records // self.file_rows if self.file_rows else self.file.length


@dataclass(frozen=True, slots=True)
class Commit:
    """What one transaction made visible, all or nothing."""

    number: int  # counts from 0 over the life of the topic
    id: bytes  # unique: if an answer was lost, it shows whether this commit was applied or another one
    ledger: int
    first_entry: int
    entry_count: int
    records: int
    bytes: int
    records_before: int  # running totals of the topic before this commit
    bytes_before: int
    publish_ms: int
    schema_id: int
    entries: tuple[Entry, ...] = ()  # inline, or else in
    entries_file: FileRef | None = None
    producer: str = ""
    query: str = ""
    run: str = ""
    sequence: int | None = None
    digest: builtins.bytes = b""  # of the offsets that Spark logged: distinguishes a replay from another batch
    forget: bool = False  # this commit only removes the producer's state
    sequence_column: str = ""  # records bring their own sequence ids, in this column of the entry files,
    producer_column: str = ""  # and their producers in this one, unless it is one producer for all
    highest: tuple[tuple[str, int], ...] = ()  # what such a commit adds to the dedup state: inline, or else in
    highest_file: FileRef | None = None
    dropped: int = 0  # duplicates that did not become visible
    mints: bool = False  # each of its records has a token
    tokens_before: int = 0  # the number of its first token: tokens are numbered in the order of records
    previous: builtins.bytes = b""  # id of the commit before: who knows that one sees whether this one follows it


@dataclass(frozen=True, slots=True)
class Policies:
    """What a topic's owner may set, with ``client.set_policies``.

    Attributes:
        deduplication: whether sequence ids are checked; None: as the namespace says.
        snapshot_commits: commits in a ledger, and so between two snapshots of the dedup state; 0: the default.
        evict_producers_ms: producers that write nothing for longer are evicted; 0: never.
        retention_ms: sealed ledgers whose last record is older are given up; 0: never.
        retention_bytes: sealed ledgers are given up if so many bytes were written after them; 0: never.
        backlog_bytes: a subscription may hold back so many bytes; 0: any number.
        backlog_ms: a subscription may hold back records that are so old; 0: any age.
        evict_backlog: whether a subscription that holds back more loses what retention would give up; else there is
            only an alarm.
        expire_subscriptions_ms: subscriptions that nobody uses for longer are deleted; 0: never.
        compact_after_bytes: maintenance compacts the topic when so many bytes were written since; 0: never.
        rewrite_below_bytes: maintenance rewrites ledgers whose files are smaller than this on average; 0: never.
    """

    # A node of its own, whose version every commit checks: none is judged by outdated policies.
    deduplication: bool | None = None
    snapshot_commits: int = 0
    evict_producers_ms: int = 0
    retention_ms: int = 0
    retention_bytes: int = 0
    backlog_bytes: int = 0
    backlog_ms: int = 0
    evict_backlog: bool = False
    expire_subscriptions_ms: int = 0
    compact_after_bytes: int = 0
    rewrite_below_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """One compaction of the topic: the last record of every key up to a horizon, in files of its own."""

    number: int  # counts from 1
    horizon: Position  # everything before it was read
    manifest: FileRef  # which files, and where in them a position is
    records: int  # tombstones that are kept are counted too
    bytes: int
    read: int  # records before the horizon
    finished_ms: int
    started_ms: int = 0
    tombstones_from: Position = EARLIEST  # tombstones before this are dropped: no reader needs them any more


@dataclass(frozen=True, slots=True)
class Replaced:
    """A generation that a newer one has replaced. It is kept for a while, for batches that were planned on it."""

    generation: Generation
    epoch: int  # the gc epoch in which it was replaced


@dataclass(frozen=True, slots=True)
class Trim:
    """Where the log begins, after its oldest ledgers were given up, and what there was before."""

    position: Position
    commit: int  # number of the first commit that is left
    records: int
    bytes: int  # as they were written: rewriting does not change this
    tokens: int = 0  # the number of the first token that may be left
    end: Position = EARLIEST  # after the last record that was given up: who is here or later has lost nothing


@dataclass(frozen=True, slots=True)
class PendingRange:
    """Ledgers that are no longer a part of the log, and whose files are still there for those who planned to read them:
    those from ``first`` up to, and without, ``end``."""

    first: int
    end: int
    epoch: int  # the gc epoch in which they were given up


@dataclass(frozen=True, slots=True)
class Going:
    """A file that others have replaced, and that is kept for a while: for processes with an older head, and for a
    ZooKeeper that is restored from a backup. A leaf of the index goes with the files that it names, except for those
    that its ledger still needs."""

    file: FileRef
    epoch: int  # the gc epoch in which it was replaced
    leaf_of: int | None = None  # the ledger, if the file is a leaf of the index


@dataclass(frozen=True, slots=True)
class SetBack:
    """Somebody has noticed that ZooKeeper was rolled back to an older state. Nobody writes until a person has decided
    how to go on: ``pyspark-ledger topics repair``."""

    found_ms: int
    found_by: str
    why: str  # what was noticed, in words
    next_commit: int = 0  # how far the lost history had come, as far as anybody has noticed
    ledger: int = 0
    gc_epoch: int = 0
    next_token: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """The topic's one small node, whose version serialises appends.

    After a rollback of ZooKeeper its version starts again, and proves nothing. So every change of the head has an id of
    its own, and is also a change of the *tip*: a node that is named by the id of the last change."""

    uuid: str
    name: str
    schema_id: int
    ledger: int  # the one open ledger
    ledger_first_commit: int
    ledger_opened_ms: int
    ledger_bytes: int
    next_commit: int
    next_entry: int
    last_publish_ms: int
    records: int
    bytes: int
    gc_epoch: int
    last_change: builtins.bytes  # id of the last change of this head: of a commit, or of anything else
    last_commit: builtins.bytes = b""  # id of the commit before next_commit
    operations: tuple[builtins.bytes, ...] = ()  # ids of the last changes that were no commits, newest last
    index: tuple[FileRef, ...] = ()  # the right edge of the tree over sealed ledgers, lowest level first
    gc_kept: tuple[FileRef, ...] = ()  # files that can be replaced, as they were when gc last raised the epoch
    gc_gone: tuple[FileRef, ...] = ()  # those that were not named any more then: they go when the epoch ends
    generation: Generation | None = None  # the newest
    replaced: FileRef | None = None  # the generations before it that are kept
    tokens: int = 0  # minted so far, with records of the topic
    token_base: int = 0  # the next token's number is this plus ``tokens``
    trim: Trim | None = None  # None: the log is there from its beginning
    pending: tuple[PendingRange, ...] = ()
    going: FileRef | None = None  # a list of files that were replaced, and are kept for a while
    lost: FileRef | None = None  # a list of damaged entries that somebody has given up by name
    terminated_ms: int = 0  # since when the topic takes no more appends; 0: it does
    set_back: SetBack | None = None  # nobody writes
    repaired: int = 0  # commits before this one may differ from what others have seen: they were told, or will be
    moves: int = 0  # as of the namespace: nobody writes through a root that was opened with another number
    last_generation: int = 0  # numbers of generations up to this one are used up: they may be of a lost history

    @property
    def end(self) -> Position:
        return Position(self.ledger, self.next_entry, 0)

    def check(self) -> None:
        """ValueError if whoever reads what it counts would need more memory than any topic's takes."""
        if self.next_commit - self.ledger_first_commit > MOST_OPEN_COMMITS:
            open_commits = self.next_commit - self.ledger_first_commit
            raise ValueError(f"the open ledger has {open_commits} commits, and none has more than {MOST_OPEN_COMMITS}")
        if self.schema_id >= MOST_SCHEMAS:
            raise ValueError(f"the topic has had {self.schema_id} schemas, and none has more than {MOST_SCHEMAS}")


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a topic remembers of a producer: enough to see whether its next batch is new, a replay, outdated, or from
    somebody else who uses the same name.

    Attributes:
        name: the producer's name.
        sequence: its last sequence id.
        query: the Spark query that owns the name; empty for a batch job, and if every record has an id.
        run: the query's last run.
        past_runs: its runs before, newest last, at most 16; a writer of one of these is fenced.
        digest: a hash of the offsets that Spark logged for the last batch; empty if they could not be read.
        records: records of the commit that brought the last sequence id.
        publish_ms: when that was committed, in milliseconds since 1970.
        per_record: whether every record has a sequence id of its own; such a producer has no owner.
    """

    name: str
    sequence: int
    query: str
    run: str
    past_runs: tuple[str, ...]
    digest: bytes
    records: int
    publish_ms: int
    per_record: bool = False

    @property
    def publish_time(self) -> datetime:
        """When the last sequence id was committed, in UTC."""
        return datetime.fromtimestamp(self.publish_ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class DedupSnapshot:
    """The dedup cursor: producer states attached to the position up to which they are true."""

    next_commit: int  # every commit below this one has been seen, no other
    mark_delete: Position
    producers: tuple[ProducerState, ...] = ()  # inline, or when large in
    producers_file: FileRef | None = None
    evicted: int = 0  # how many producers were evicted and have not been forgotten since
    evicted_file: FileRef | None = None  # fingerprints of their names

    @property
    def properties(self) -> dict[str, int]:
        """PIP-6's view of it: what is attached to the mark-delete position, producer -> sequence id."""
        return {state.name: state.sequence for state in self.producers}


@dataclass(frozen=True, slots=True)
class PastRevision:
    """How far an earlier revision came: everything that was read under it before ``finished`` was acknowledged."""

    revision: int
    finished: Position


@dataclass(frozen=True, slots=True)
class Member:
    """One of those who share a subscription. Numbers are in runs (see runs.py) that are packed from 0."""

    id: bytes
    name: str
    since_ms: int
    claims: bytes = b""  # records that it has, or is about to have, in hand, by ordinal: nobody else gets them
    slots: bytes = b""  # of the keys whose records it gets,
    dealt: bytes = b""  # and of those whose records it is to get: a slot moves when nothing of it is in hand any more


@dataclass(frozen=True, slots=True)
class Cursor:
    """A subscription's durable state. One node, so one version guards all of it."""

    name: str
    mark_delete: Position  # the next position to acknowledge: everything before it is done
    ordinal: int  # how many records of the topic lie before it
    created_ms: int
    properties: tuple[tuple[str, int], ...] = ()  # attached to mark_delete
    acks: bytes = b""  # records after it that are acknowledged, by ordinal (see runs.py)
    epoch: int = 0  # consumer incarnations and redeliveries (PIP-84); only grows
    owner: bytes = b""  # who attached last
    owner_name: str = ""
    revision: int = 0  # position resets so far (PIP-269)
    last_backward_revision: int = (
        0  # the last one that may have moved the cursor back; later ones only moved it forward
    )
    reviser: bytes = b""  # who is moving it right now
    revising_since_ms: int = 0
    operations: tuple[bytes, ...] = ()  # ids of the last resets, newest last: a retried one is not done twice
    past_revisions: tuple[PastRevision, ...] = ()  # the last ones, newest last
    void_below: int = 0  # batches of lower revisions that had not finished are discarded: they read nothing
    id: bytes = b""  # of this cursor: one that is deleted and made again has another
    evicted: int = 0  # records that a backlog quota took from it, and that nobody was told of yet
    compacted: bool = False  # it is followed by readers of compacted ledgers: these also have what the log has given up
    abandoned: bool = False  # its owner has died, and maintenance has noticed: from then on nobody uses it
    lost: int = 0  # records that it has lost so far, to trimming and to quotas, and that its reader was told of
    sharing: str = ""  # how its consumers share it: "shared", "key_shared"; empty: one at a time owns it
    members: tuple[Member, ...] = ()  # those who share it, in the order in which they came
    # How often records that are not acknowledged were delivered before: a number, and runs of ordinals packed from 0.
    deliveries: tuple[tuple[int, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Holder:
    """Who owns or revises a cursor: an ephemeral node, gone with its session."""

    id: bytes
    name: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a writer that waits for its turn would commit: an ephemeral node, gone with its session.

    Whoever has its turn commits for others too, and deletes their requests in the same transaction. A request that is
    deleted without that has to be made again.
    """

    commit: Commit  # without what depends on its place in the log
    since: int  # no commit before this number has the id
    moves: int = 0  # of the storage root in which its files are
    alone: bool = False  # only its writer can judge it: ids or tokens to compare, a new schema, much of it
    lowest: int | None = None  # the lowest id of its records, which are of one producer, if they bring ids
    rows: bytes = b""  # its records, if no file has them yet: whoever commits them writes it; see files/loose.py
    columns: tuple[str, ...] = ()  # which these have


@dataclass(frozen=True, slots=True)
class Answers:
    """Where the commits are that were last made for writers that waited. Whose is no longer here looks into the log."""

    packed: bytes = b""  # see log/queue.py; newest last
    gc_epoch: int = 0  # of the topic, when they were given


@dataclass(frozen=True, slots=True)
class Pin:
    """How far a running reader of compacted ledgers is, at least: an ephemeral node. Tombstones after it are kept."""

    position: Position


@dataclass(frozen=True, slots=True)
class TokenGroup:
    """Which of a topic's tokens one group of consumers has consumed. Every consumption changes this node, so its
    version orders them. Tokens are numbered in the order of records, and ``chunk_tokens`` in a row are a chunk."""

    chunk_tokens: int  # fixed when the group is made
    whole: bytes = b""  # chunks that are consumed entirely (see runs.py)
    partials: tuple[tuple[int, bytes], ...] = ()  # chunk -> bitmap of what is consumed, for a few short ones
    spilled: bytes = b""  # chunks whose bitmaps are in nodes of their own
    consumed: int = 0
    operations: tuple[bytes, ...] = ()  # ids of the last consumptions that came with no append, newest last
    began: Position = EARLIEST  # where the topic began when the group was made: it has never seen what was before
    first_token: int = 0  # the number of the first token that may have been there then


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """What is consumed of one chunk: a bitmap, here or in a file."""

    bitmap: bytes = b""
    file: FileRef | None = None


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Tokens minted for messages that come from outside, and what is consumed of them. Gone when all are."""

    tokens: int
    bitmap: bytes
    minted_ms: int


@dataclass(frozen=True, slots=True)
class Entity:
    """Business state of an outbox, with what it still has to dispatch: JSON, here or in a file."""

    content: bytes = b""
    file: FileRef | None = None
    operations: tuple[bytes, ...] = ()  # ids of the last changes, newest last: they resolve an unknown outcome


@dataclass(frozen=True, slots=True)
class Topic:
    """What a topic's name stands for. All of it is fixed for the topic's life.

    Attributes:
        name: the name.
        uuid: the topic itself: one that is deleted and recreated has another UUID.
        key: the column whose values are the records' keys; empty if there is none.
        version_column: the column that says which record of a key is the newest; empty: the last one is.
        created_ms: when it was created, in milliseconds since 1970.
    """

    name: str
    uuid: str
    key: str
    version_column: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class Schema:
    """One immutable version of a topic's schema, as an Arrow IPC schema message."""

    id: int
    arrow: bytes


@dataclass(frozen=True, slots=True)
class Moving:
    """The namespace is being given another storage root. Until that is done nobody writes."""

    to: str
    since_ms: int
    by: str  # who began it


@dataclass(frozen=True, slots=True)
class Grant:
    """A role that somebody has in the namespace, by ZooKeeper's name for who that is.

    Attributes:
        role: ``admin``, ``writer`` or ``reader``.
        scheme: how ZooKeeper knows them: ``digest``, ``sasl`` or ``x509``.
        id: who they are in that scheme; for ``digest`` the user and a hash of the password.
        since_ms: when it was given, in milliseconds since 1970.
        leaving: another identity takes over from this one, which goes when that is finished.
    """

    role: str
    scheme: str
    id: str
    since_ms: int
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Namespace:
    """Where the files are."""

    storage: str
    created_ms: int
    deduplication: bool = True  # for topics whose policies do not say
    id: bytes = b""  # also in the name of a marker file in the storage root, so that a wrong root is recognised
    marked: bool = False  # that file was written, and read back
    upgrading: bool = False  # an upgrade from an older format was begun, and has not finished
    moves: int = 0  # how often it was begun to give the namespace another root; heads have the same number
    moving: Moving | None = None
    moved_from: str = ""  # the root before this one
    rebuilding: bytes = b""  # it is being made from what storage has of the namespace with this id; nobody uses it yet
    roles: tuple[Grant, ...] = ()  # who may do what; empty: whoever may open it may do everything


@dataclass(frozen=True, slots=True)
class Deleted:
    """The mark that a deleted topic leaves on its name: who does not ask for it expressly does not make it again."""

    uuid: str
    deleted_ms: int


@dataclass(frozen=True, slots=True)
class Sink:
    """The last batch that a Spark query, or a batch job with a producer's name, has written to several topics at once.
    A replay is recognised by it, whatever topics that names. It holds the query's topics too, see :class:`SinkTopic`.

    Attributes:
        sequence: the batch's id; None: no batch was claimed here, as by queries that write to one topic only.
        query: whose batch that was; empty for a batch job.
        run: the query's last run.
        past_runs: its runs before, newest last, at most 16; a writer of one of these is fenced.
        digest: a hash of the offsets that Spark logged for the batch; empty if they could not be read.
        records: how many rows the batch had, wherever they went.
        transaction: the id of what has written this: if an answer was lost, it shows whether it was applied.
    """

    sequence: int | None = None
    query: str = ""
    run: str = ""
    past_runs: tuple[str, ...] = ()
    digest: bytes = b""
    records: int = 0
    transaction: bytes = b""


@dataclass(frozen=True, slots=True)
class SinkTopic:
    """Which topic a query writes to: a topic that was made since under the same name is another one."""

    uuid: str


@dataclass(frozen=True, slots=True)
class EpochBirth:
    """Where the log stood when a gc epoch began."""

    epoch: int
    commit: int  # the first one of the ledger that was open: no commit before it can name a file of this epoch


@dataclass(frozen=True, slots=True)
class GcEpoch:
    """The gc epoch; the node's time is when it began."""

    epoch: int
    floor: int = 0  # files of epochs before this one were judged: what nothing names is gone, but for late ones
    births: tuple[EpochBirth, ...] = ()  # of the epochs from there on, as far as they are known, oldest first


@dataclass(frozen=True, slots=True)
class Marker:
    """A node without content: it holds others, or only its name or its version counts."""


# What a node may hold. (A record of a topic is a row: see log/reader.)
NodeRecord = (
    Commit
    | Head
    | DedupSnapshot
    | Cursor
    | Holder
    | Pin
    | Request
    | Answers
    | TokenGroup
    | TokenChunk
    | TokenBlock
    | Entity
    | Topic
    | Schema
    | Namespace
    | Deleted
    | Sink
    | SinkTopic
    | GcEpoch
    | Policies
    | Marker
)
