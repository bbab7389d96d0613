"""What Prometheus is told of one topic and its subscriptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from pyspark_ledger.base.position import Position
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.errors import Conflict
from pyspark_ledger.lifecycle import retention
from pyspark_ledger.lifecycle.looking import Seen
from pyspark_ledger.log import scan, trimmed
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import CompactorKey, Key, MemberKey, OwnerKey, ReviserKey, Versioned
from pyspark_ledger.metadata.records import Commit, Cursor, Head, Holder, Policies, ProducerState
from pyspark_ledger.metrics.families import Sample
from pyspark_ledger.tokens.tokens import Tokens

OTHERS = "(others)"
Holders = Mapping[Key[Holder], Holder]
_WANTED_S = 60.0  # how long what retention wants to give up is reckoned from what it was


class TopicMetrics:
    """One topic, and what its commits added up to since it was first seen. What is in the nodes that were seen costs
    nothing; the rest is read by :meth:`update`, and kept. What a topic does not have is left out: ten thousand topics
    that are never trimmed or compacted need not say so in every scrape."""

    def __init__(self, log: Log, max_producers: int) -> None:
        self._log, self._max_producers = log, max_producers
        self._name = log.topic.name
        self._of: object = None  # what the details belong to
        self._details: list[Sample] = []
        self._counted: Position | None = None
        self._dropped = 0
        self._records: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._wanted: tuple[object, float, retention.LedgerStart] | None = None
        self._backlogs: dict[str, tuple[object, int, int]] = {}  # bytes and publish time, and what they belong to

    @property
    def is_known(self) -> bool:
        """Whether it was looked at closer at least once."""
        return self._of is not None

    def is_current(self, seen: Seen) -> bool:
        return self._of == _state(seen)

    def was_moved(self, seen: Seen) -> bool:
        """Whether the storage was moved since: then new files are elsewhere."""
        try:
            self._log.check_readable(seen.head.record)
        except Conflict:
            return True
        return False

    def follow(self, log: Log) -> None:
        """Goes on with the same topic, opened again."""
        self._log = log

    def update(self, seen: Seen, *, has_groups: bool) -> list[Sample]:
        """Looks closer at what has changed."""
        view = self._log.view() if self.is_current(seen) else self._log.refresh()
        self._count(view)
        self._details = [*self._of_producers(), *(self._of_tokens() if has_groups else ())]
        self._of = _state(seen)
        names = {cursor.record.name for cursor in seen.cursors}
        self._backlogs = {name: known for name, known in self._backlogs.items() if name in names}
        return self._details

    def _count(self, view: View) -> None:
        new = view.open_commits if self._counted is None else self._log.commits_from(view, self._counted)
        for commit in list(new):
            self._add(commit)
        self._counted = view.head.end

    def _add(self, commit: Commit) -> None:
        known = commit.producer in self._records or len(self._records) < self._max_producers
        producer = commit.producer if commit.producer and known else OTHERS
        self._records[producer] += commit.records
        self._bytes[producer] += commit.bytes
        self._dropped += commit.dropped

    def _of_producers(self) -> Iterator[Sample]:
        _, states = self._log.producers()
        yield "ledger_topic_dropped_duplicates_total", (self._name,), self._dropped
        yield "ledger_topic_producers", (self._name,), len(states)
        yield "ledger_topic_evicted_producers", (self._name,), states.evicted
        for producer in self._records:
            yield "ledger_producer_records_total", (self._name, producer), self._records[producer]
            yield "ledger_producer_bytes_total", (self._name, producer), self._bytes[producer]
        known = {state.name: state for state in states.owned()}
        known |= {name: state for name in self._records if (state := states.get(name)) is not None}
        for state in sorted(known.values(), key=_age)[: self._max_producers]:
            labels = (self._name, state.name)
            yield "ledger_producer_sequence_id", labels, state.sequence
            yield "ledger_producer_last_publish_timestamp_seconds", labels, state.publish_ms / 1000
            yield "ledger_producer_fenced_runs", labels, len(state.past_runs)

    def _of_tokens(self) -> Iterator[Sample]:
        for stats in Tokens(self._log, self._name).stats():
            labels = (self._name, stats.group)
            yield "ledger_tokens_in_flight", labels, stats.in_flight
            yield "ledger_tokens_consumed_total", labels, stats.consumed
            yield "ledger_tokens_nodes", labels, stats.nodes
            yield "ledger_tokens_bytes", labels, stats.bytes

    # -- from what was seen ------------------------------------------------------------------------------------

    def samples(self, seen: Seen, held: Holders) -> Iterator[Sample]:
        head = seen.head.record
        yield from self._of_head(head)
        yield from self._of_lifecycle(seen)
        yield from self._of_compaction(head, held.get(CompactorKey(seen.uuid)))
        yield from self._details

    def _of_head(self, head: Head) -> Iterator[Sample]:
        labels = (self._name,)
        yield "ledger_topic_records_total", labels, head.records
        yield "ledger_topic_bytes_total", labels, head.bytes
        yield "ledger_topic_commits_total", labels, head.next_commit
        yield "ledger_topic_end_ledger", labels, head.ledger
        yield "ledger_topic_end_entry", labels, head.next_entry
        if head.tokens:
            yield "ledger_topic_tokens_total", labels, head.tokens
        if head.last_publish_ms:
            yield "ledger_topic_last_publish_timestamp_seconds", labels, head.last_publish_ms / 1000

    def _of_lifecycle(self, seen: Seen) -> Iterator[Sample]:
        head, labels = seen.head.record, (self._name,)
        yield "ledger_topic_gc_epoch", labels, head.gc_epoch
        age_ms = self._log.metadata.now_ms() - seen.gc.modified_ms
        yield "ledger_topic_gc_epoch_age_seconds", labels, max(0, age_ms) / 1000
        if head.trim is not None:
            yield "ledger_topic_begin_ledger", labels, trimmed.begin(head).ledger
            yield "ledger_topic_trimmed_records_total", labels, head.trim.records
            yield "ledger_topic_trimmed_bytes_total", labels, head.trim.bytes
            yield "ledger_topic_kept_records", labels, head.records - head.trim.records
            yield "ledger_topic_kept_bytes", labels, head.bytes - head.trim.bytes
            yield "ledger_topic_pending_ranges", labels, len(head.pending)
        if head.terminated_ms:
            yield "ledger_topic_terminated", labels, 1
        if head.set_back is not None:
            yield "ledger_topic_set_back", labels, 1

    def _of_compaction(self, head: Head, running: Holder | None) -> Iterator[Sample]:
        last, labels = head.generation, (self._name,)
        since_ms = self._log.clock.now_ms() - running.since_ms if running else 0
        if running is not None or last is not None:
            yield "ledger_compaction_running", labels, running is not None
            yield "ledger_compaction_running_seconds", labels, max(0, since_ms) / 1000
        if last is not None:
            yield "ledger_compaction_generation", labels, last.number
            yield "ledger_compaction_horizon_ledger", labels, last.horizon.ledger
            yield "ledger_compaction_horizon_entry", labels, last.horizon.entry
            yield "ledger_compaction_records", labels, last.records
            yield "ledger_compaction_bytes", labels, last.bytes
            yield "ledger_compaction_ratio", labels, last.records / last.read
            yield "ledger_compaction_backlog_records", labels, head.records - last.read
            yield "ledger_compaction_finished_timestamp_seconds", labels, last.finished_ms / 1000
            yield "ledger_compaction_duration_seconds", labels, (last.finished_ms - last.started_ms) / 1000

    # -- subscriptions -----------------------------------------------------------------------------------------

    def cursor(self, seen: Seen, cursor: Versioned[Cursor], held: Holders) -> Iterator[Sample]:
        record, labels = cursor.record, (self._name, cursor.record.name)
        owner, reviser = held.get(OwnerKey(seen.uuid, record.name)), held.get(ReviserKey(seen.uuid, record.name))
        members = sum(MemberKey(seen.uuid, record.name, each.id) in held for each in record.members)
        acks = len(Runs.unpack(record.acks, record.ordinal))
        behind = self._log.view().head.records - record.ordinal - acks
        stored, seconds = self._backlog(cursor) if behind > 0 else (0, 0.0)
        yield "ledger_cursor_backlog_records", labels, max(0, behind)
        yield "ledger_cursor_backlog_bytes", labels, stored
        yield "ledger_cursor_backlog_seconds", labels, seconds
        yield "ledger_cursor_position_ledger", labels, record.mark_delete.ledger
        yield "ledger_cursor_position_entry", labels, record.mark_delete.entry
        yield "ledger_cursor_individual_acks", labels, acks
        yield "ledger_cursor_attached", labels, members > 0 or (owner is not None and owner.id == record.owner)
        if record.sharing:
            yield "ledger_cursor_members", labels, members
        yield "ledger_cursor_epochs_total", labels, record.epoch
        yield "ledger_cursor_revisions_total", labels, record.revision
        yield "ledger_cursor_revision_running", labels, reviser is not None and reviser.id == record.reviser
        yield "ledger_cursor_evicted_records", labels, record.evicted
        yield "ledger_cursor_lost_records_total", labels, record.lost
        yield "ledger_cursor_over_quota", labels, _is_over(seen.policies.record, stored, seconds)
        records, bytes_held = self._held_back(seen, record)
        yield "ledger_cursor_held_records", labels, records
        yield "ledger_cursor_held_bytes", labels, bytes_held

    def _backlog(self, cursor: Versioned[Cursor]) -> tuple[int, float]:
        """Bytes, and the age of the oldest record. Looked up again only if the subscription or the topic has moved."""
        view, name = self._log.view(), cursor.record.name
        state = (view.version, cursor.version, cursor.record.mark_delete)
        known = self._backlogs.get(name)
        if known is None or known[0] != state:
            stored = view.head.bytes - scan.bytes_before(self._log, view, cursor.record.mark_delete)
            known = state, stored, self._log.commit_at_ordinal(view, cursor.record.ordinal).publish_ms
            self._backlogs[name] = known
        return known[1], max(0, self._log.clock.now_ms() - known[2]) / 1000

    def _held_back(self, seen: Seen, cursor: Cursor) -> tuple[int, int]:
        """Records and bytes."""
        policies, view, now = seen.policies.record, self._log.view(), self._log.clock.monotonic()
        if not (policies.retention_ms or policies.retention_bytes) or cursor.ordinal >= view.head.records:
            return 0, 0
        state = (view.version, seen.policies.version)
        if self._wanted is None or self._wanted[0] != state or now - self._wanted[1] > _WANTED_S:
            self._wanted = state, now, retention.start_of_wanted(self._log, view, policies)
        return retention.held_back(self._log, view, self._wanted[2], cursor.ordinal)


def _state(seen: Seen) -> object:
    return seen.head.version, seen.head.record.last_change


def _is_over(policies: Policies, stored: int, seconds: float) -> bool:
    too_much = bool(policies.backlog_bytes) and stored > policies.backlog_bytes
    return too_much or (bool(policies.backlog_ms) and seconds * 1000 > policies.backlog_ms)


def _age(state: ProducerState) -> int:
    """The most recent first."""
    return -state.publish_ms
