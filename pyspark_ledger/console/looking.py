"""What pages and the API show, as rows of plain values: the same for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import Any

from pyspark_ledger.base.position import Position
from pyspark_ledger.compaction import run as compaction
from pyspark_ledger.console import history, records
from pyspark_ledger.console.asking import Asked
from pyspark_ledger.console.checkpoints import queries_in
from pyspark_ledger.console.letters import Letters
from pyspark_ledger.console.reader import RATE_MS, NamespaceReader
from pyspark_ledger.console.records import Filter
from pyspark_ledger.console.settings import Settings
from pyspark_ledger.console.state import Alarm, Details, Health, Snapshot, Subscription, TopicState
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.describe import ddl
from pyspark_ledger.describe.cursors import subscription_facts
from pyspark_ledger.describe.producers import producer_row
from pyspark_ledger.describe.rows import moment
from pyspark_ledger.describe.topics import description
from pyspark_ledger.errors import InvalidInput, LedgerError
from pyspark_ledger.log import generations, places, scan, trimmed
from pyspark_ledger.log.locks import split_name
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import CompactorKey, EntityKey, OutboxesKey, OutboxKey
from pyspark_ledger.metadata.records import Commit
from pyspark_ledger.outbox.outbox import Outbox
from pyspark_ledger.tokens.tokens import Tokens

Row = dict[str, Any]
_SORTED_BY: dict[str, Callable[[TopicState], Any]] = {
    "topic": lambda topic: topic.name,
    "records": lambda topic: topic.head.records,
    "bytes": lambda topic: topic.head.bytes,
    "kept_bytes": lambda topic: topic.kept[1],
    "rate": lambda topic: (topic.details or Details()).records_per_second or 0.0,
    "backlog": lambda topic: topic.slowest.behind if topic.slowest else 0,
    "last_publish": lambda topic: topic.head.last_publish_ms,
}
SORTS = tuple(_SORTED_BY)
_NO_SOURCE = dict.fromkeys(("source", "offset_topic", "uuid", "position", "topic", "behind_records", "offset", "error"))
MOST_TOPICS = 500  # on one page
_SEGMENTS = 80  # ledgers that are drawn one by one
_ENTITIES = 200  # of an outbox, that are looked into
_COMMITS = 500


class Looking:
    def __init__(self, namespace: OpenNamespace, reader: NamespaceReader, settings: Settings) -> None:
        self._namespace, self._reader, self._settings = namespace, reader, settings
        self._letters = Letters(namespace, reader)

    # -- the namespace -------------------------------------------------------------------------------------

    def overview(self, asked: Asked) -> Row:
        asked.only()
        now = self._reader.snapshot()
        kept = [topic.kept for topic in now.topics.values()]
        return {
            "zookeeper": {"address": self._namespace.address, **_health(now.zookeeper)},
            "storage": _health(now.storage),
            "topics": len(now.topics),
            "subscriptions": sum(len(topic.subscriptions) for topic in now.topics.values()),
            "kept_records": sum(records for records, _ in kept),
            "kept_bytes": sum(stored for _, stored in kept),
            "alarms": [_alarm(alarm) for alarm in now.alarms],
            "maintenance": self._maintenance(now),
            "as_of": moment(now.taken_ms),
            "look_seconds": round(now.seconds, 4),
        }

    def _maintenance(self, now: Snapshot) -> Row:
        """Who leads, and what its last runs left behind."""
        heads = [topic.head for topic in now.topics.values()]
        generations_of = [head.generation for head in heads if head.generation is not None]
        epochs = [topic.seen.gc.modified_ms for topic in now.topics.values() if topic.head.gc_epoch]
        return {
            "leader": now.leader.name if now.leader else None,
            "leads_since": moment(now.leader.since_ms) if now.leader else None,
            "last_backup": moment(now.backup_ms),
            "last_compaction": moment(max((each.finished_ms for each in generations_of), default=None)),
            "last_gc_epoch": moment(max(epochs, default=None)),
            "trimmed_topics": sum(head.trim is not None for head in heads),
            "compacting_topics": sum(topic.compacting_since_ms is not None for topic in now.topics.values()),
            "deleted_topics_with_files": now.condemned,
        }

    def topics(self, asked: Asked) -> Row:
        asked.only("search", "sort", "descending", "offset", "limit")
        now, search = self._reader.snapshot(), asked.text("search").lower()
        sort, limit = asked.choice("sort", SORTS, "topic"), asked.number("limit", 50, 1, MOST_TOPICS)
        if sort == "rate":  # of all others it is 0
            recent = now.taken_ms - RATE_MS
            now = self._reader.want([each.name for each in now.topics.values() if each.head.last_publish_ms > recent])
        found = [topic for topic in now.topics.values() if search in topic.name.lower()]
        offset = min(asked.number("offset", 0, 0, 1_000_000), max(0, len(found) - 1) // limit * limit)
        found.sort(key=_SORTED_BY[sort])
        if asked.flag("descending"):
            found.reverse()
        page = found[offset : offset + limit]
        with_rates = self._reader.want([topic.name for topic in page]).topics
        rows = [self._topic_row(with_rates.get(topic.name, topic)) for topic in page]
        return {"topics": rows, "found": len(found), "offset": offset, "limit": limit, "as_of": moment(now.taken_ms)}

    def _topic_row(self, topic: TopicState) -> Row:
        head, details, slowest = topic.head, topic.details or Details(), topic.slowest
        kept_records, kept_bytes = topic.kept
        return {
            "topic": topic.name,
            "records": head.records,
            "bytes": head.bytes,
            "kept_records": kept_records,
            "kept_bytes": kept_bytes,
            "last_publish": moment(head.last_publish_ms),
            "records_per_second": details.records_per_second,
            "bytes_per_second": details.bytes_per_second,
            "last_hour": list(details.records_by_time),
            "subscriptions": len(topic.subscriptions),
            "slowest": None if slowest is None or not slowest.behind else self._lag(topic, slowest),
            "terminated": head.terminated_ms > 0,
        }

    def _lag(self, topic: TopicState, subscription: Subscription) -> Row:
        oldest = (topic.details or Details()).oldest_ms.get(subscription.name)
        now = self._namespace.clock.now_ms()
        return {
            "subscription": subscription.name,
            "backlog_records": subscription.behind,
            "backlog_seconds": None if oldest is None else max(0, now - oldest) / 1000,
            "followed": bool(subscription.followers),
        }

    def outboxes(self, asked: Asked) -> list[Row]:
        """Messages that have yet to leave: those of a handler that is at it, or has crashed."""
        asked.only()
        return self._reader.once("outboxes", self._outboxes)

    def _outboxes(self) -> list[Row]:
        space = self._namespace
        keys = [key for key in space.metadata.children(OutboxesKey()) if isinstance(key, OutboxKey)]
        rows = []
        for key in keys:
            outbox = Outbox(key.outbox, space.metadata, space.storage, space.log, space.limits, space.clock)
            entities = [each.entity for each in space.metadata.children(key) if isinstance(each, EntityKey)]
            pending = sum(len(outbox.pending(entity)) for entity in entities[:_ENTITIES])
            looked = min(len(entities), _ENTITIES)
            rows.append({"outbox": key.outbox, "entities": len(entities), "looked_at": looked, "pending": pending})
        return rows

    def queries(self, asked: Asked) -> list[Row]:
        """What the checkpoints say that can be read here."""
        asked.only()
        return self._reader.once("queries", self._queries)

    def _queries(self) -> list[Row]:
        rows: list[Row] = []
        for query in queries_in(self._settings.checkpoints):
            sources = [{**_NO_SOURCE, **source, **self._distance(source)} for source in query.pop("sources")]
            rows.append({**query, "sources": sources})
        return rows

    def _distance(self, source: Row) -> Row:
        """How far the topic is ahead of an offset."""
        position = source.get("position")
        found = next((t for t in self._reader.snapshot().topics.values() if t.seen.uuid == source.get("uuid")), None)
        if position is None or found is None:
            return {"topic": None, "behind_records": None}
        log, lock = self._reader.log(found.name)
        with lock:
            try:
                view = log.refresh()
                before = scan.records_before(log, view, Position.parse(position))
                return {"topic": found.name, "behind_records": view.head.records - before}
            except LedgerError as error:
                return {"topic": found.name, "behind_records": None, "error": str(error)}

    # -- one topic -----------------------------------------------------------------------------------------

    def topic(self, asked: Asked) -> Row:
        asked.only("range")
        return self._reader.once(("topic", asked.topic), lambda: self._topic(asked.topic))

    def _topic(self, name: str) -> Row:
        log, lock = self._reader.log(name)
        with lock:
            log.refresh(sync=True)
            view = log.view()
            found = description(log, 20)
            is_grave = self._letters.are_in(log, view.head.schema_id)
            bar = self._bar(log, view)
        found |= {"dead_letters": is_grave, "bar": bar}
        state = self._reader.snapshot().topics.get(name)
        found["waiting_letters"] = self._letters.waiting(state) if is_grave and state else None
        found["alarms"] = [_alarm(each) for each in self._reader.snapshot().alarms if each.topic == name]
        return found

    def _bar(self, log: Log, view: View) -> Row:
        """The topic from its start to its end, in records: its ledgers, and where everybody stands."""
        head = view.head
        begin = trimmed.records_before_begin(head)
        starts = list(islice(((row.ledger, row.records_before) for row in log.index(view).newest_first()), _SEGMENTS))
        starts.reverse()
        opened = view.open_commits[0].records_before if view.open_commits else head.records
        starts.append((head.ledger, opened))
        if starts[0][1] > begin:  # the older ones as one
            starts.insert(0, (trimmed.begin(head).ledger, begin))
        ends = [*(start for _, start in starts[1:]), head.records]
        ledgers = [
            {"ledger": ledger, "from": start, "to": end, "open": ledger == head.ledger}
            for (ledger, start), end in zip(starts, ends, strict=True)
        ]
        state = self._reader.snapshot().topics.get(log.topic.name)
        marks = [
            {"subscription": each.name, "at": each.cursor.ordinal, "behind": each.behind,
             "position": str(each.cursor.mark_delete), "followed": bool(each.followers)}
            for each in (state.subscriptions if state else ())
        ]  # fmt: skip
        generation = head.generation
        return {
            "begin": begin,
            "end": head.records,
            "ledgers": ledgers,
            "horizon": None if generation is None else generation.read,
            "horizon_position": None if generation is None else str(generation.horizon),
            "subscriptions": marks,
        }

    def rates(self, asked: Asked) -> Row:
        asked.only("range", "parts")
        name, parts = asked.choice("range", history.RANGES, "1h"), asked.number("parts", 60, 1, 240)
        return self._reader.once(("rates", asked.topic, name, parts), lambda: self._rates(asked.topic, name, parts))

    def _rates(self, topic: str, name: str, parts: int) -> Row:
        log, lock = self._reader.log(topic)
        with lock:
            view = log.refresh()
            from_ms, to_ms = history.span(log, view, name, self._namespace.clock.now_ms())
            found = history.buckets(log, view, from_ms, to_ms, parts)
        rows = [{**asdict(each), "from": moment(each.from_ms), "to": moment(each.to_ms)} for each in found]
        return {"topic": topic, "range": name, "from": moment(from_ms), "to": moment(to_ms), "buckets": rows}

    def commits(self, asked: Asked) -> Row:
        """The newest first, from before a number."""
        asked.only("before", "limit")
        log, lock = self._reader.log(asked.topic)
        with lock:
            view = log.refresh()
            limit = asked.number("limit", 50, 1, _COMMITS)
            before = asked.number("before", view.head.next_commit, 0, 1 << 60)
            before = min(before, view.head.next_commit)
            first = max(0, before - limit)
            some = islice(log.commits_since(view, first), limit)
            rows = [_commit_row(commit) for commit in some if commit.number < before]
        rows.reverse()
        older = rows[-1]["commit"] if rows and rows[-1]["commit"] > 0 else None
        newer = before + limit if before < view.head.next_commit else None
        return {"commits": rows, "older": older, "newer": newer, "next_commit": view.head.next_commit}

    def schemas(self, asked: Asked) -> list[Row]:
        """Every version, the newest first, with what it has added."""
        asked.only()
        log, lock = self._reader.log(asked.topic)
        with lock:
            head = log.refresh().head
            all_of_them = [log.schema(number) for number in range(head.schema_id + 1)]
        columns = [[_column(field) for field in schema] for schema in all_of_them]
        before = [[], *columns[:-1]]
        rows = [
            {"schema": number, "columns": now, "new": [each["column"] for each in now if each not in then],
             "ddl": ddl.ddl(schema)}
            for number, (schema, now, then) in enumerate(zip(all_of_them, columns, before, strict=True))
        ]  # fmt: skip
        return rows[::-1]

    def producers(self, asked: Asked) -> Row:
        asked.only()
        log, lock = self._reader.log(asked.topic)
        with lock:
            _, states = log.producers()
            found = sorted(states.all(), key=lambda state: -state.publish_ms)
        rows = [{**producer_row(state), "past_runs": list(state.past_runs)} for state in found[:1000]]
        return {"producers": rows, "known": len(found), "evicted": states.evicted}

    def tokens(self, asked: Asked) -> Row:
        asked.only()
        log, lock = self._reader.log(asked.topic)
        with lock:
            groups = [asdict(stats) for stats in Tokens(log, log.topic.name).stats()]
            minted = log.view().head.tokens
        return {"minted": minted, "groups": groups}

    def compaction(self, asked: Asked) -> Row:
        asked.only()
        log, lock = self._reader.log(asked.topic)
        with lock:
            stats, view = compaction.stats(log), log.view()
            running = log.metadata.read(CompactorKey(log.topic.uuid))
            who, progress = split_name(running.record) if running is not None else (None, None)
            kept = generations.kept(log.files, view.head) if view.head.generation is not None else []
        rows = [
            {
                "generation": each.number,
                "horizon": str(each.horizon),
                "records": each.records,
                "records_before": each.read,
                "ratio": each.records / each.read if each.read else None,
                "bytes": each.bytes,
                "finished": moment(each.finished_ms),
                "seconds": (each.finished_ms - each.started_ms) / 1000,
                "tombstones_from": str(each.tombstones_from),
            }
            for each in reversed(kept)
        ]
        return {
            "key": log.topic.key,
            "running_since": moment(stats.running_since_ms) if stats else None,
            "running_by": who,
            "progress": progress,
            "backlog_records": stats.backlog_records if stats else view.head.records,
            "generations": rows,
        }

    # -- records -------------------------------------------------------------------------------------------

    def records(self, asked: Asked) -> Row:
        """From a place forwards, or backwards from before it."""
        asked.only("from", "backwards", "limit", "column", "operator", "value")
        self._check_records()
        log, lock = self._reader.log(asked.topic)
        limit = asked.number("limit", 50, 1, records.MOST_RECORDS)
        with lock:
            view = log.refresh(sync=True)
        page = records.Page(log, view, self._settings.masked, self._filter(asked, log, view))
        given = asked.text("from")
        backwards = asked.flag("backwards") or not given
        position = places.settle(log, view, places.parse(given or "latest", "place to look from")).position
        found = page.backwards(position, limit) if backwards else page.forwards(position, limit)
        return {
            "records": found.records,
            "previous": None if found.previous is None else str(found.previous),
            "next": None if found.next is None else str(found.next),
            "looked": found.looked,
            "complete": found.complete,
            "columns": log.schema(view.head.schema_id).names,
            "begin": str(trimmed.begin(view.head)),
            "end": str(view.head.end),
        }

    def _filter(self, asked: Asked, log: Log, view: View) -> Filter | None:
        column, value = asked.text("column"), asked.text("value")
        if not column:
            if value or asked.text("operator") not in ("", "="):
                raise InvalidInput("'column' is missing: say what to compare", "LEDGER_MISSING_PARAMETER")
            return None
        self._check_not_masked(column)
        schema = log.schema(view.head.schema_id)
        return Filter(schema, column, asked.text("operator", "="), value, log.topic.name)

    def record(self, asked: Asked) -> Row:
        """One, by its position."""
        asked.only()
        self._check_records()
        log, lock = self._reader.log(asked.topic)
        position = Position.parse(asked.path["position"])
        with lock:
            view = log.refresh(sync=True)
        if trimmed.is_gone(view.head, position):
            raise trimmed.loss(view.head, position)
        return records.Page(log, view, self._settings.masked).one(position)

    def key(self, asked: Asked) -> Row:
        """The state of a key."""
        asked.only("key")
        self._check_records()
        log, lock = self._reader.log(asked.topic)
        if not log.topic.key:
            raise InvalidInput(f"topic '{log.topic.name}' has no key column", "LEDGER_NOT_COMPACTABLE")
        self._check_not_masked(log.topic.key)
        key = asked.needed("key", "a value of the key column")
        with lock:
            view = log.refresh(sync=True)
        found = records.state_of(log, view, key, self._settings.masked)
        return {**asdict(found), "key": key, "through": str(found.through)}

    def _check_records(self) -> None:
        if not self._settings.show_records:
            raise InvalidInput("this console shows no records (--no-records)", "LEDGER_CONSOLE_NO_RECORDS")

    def _check_not_masked(self, column: str) -> None:
        if column in self._settings.masked:
            raise InvalidInput(
                f"column '{column}' is masked here (--mask): it cannot be searched either", "LEDGER_CONSOLE_MASKED"
            )

    # -- subscriptions -------------------------------------------------------------------------------------

    def subscriptions(self, asked: Asked) -> list[Row]:
        asked.only()
        return self._reader.once(("subscriptions", asked.topic), lambda: self._subscriptions(asked.topic))

    def _subscriptions(self, name: str) -> list[Row]:
        state = self._reader.want([name]).topics.get(name)
        if state is None:
            self._reader.log(name)  # says that there is none, unless it was made just now
            state = self._reader.look_again().topics.get(name)
        now, details = self._namespace.clock.now_ms(), (state.details if state else None) or Details()
        rows = []
        for each in state.subscriptions if state else ():
            oldest = details.oldest_ms.get(each.name)
            rows.append(
                {
                    "subscription": each.name,
                    "position": str(each.cursor.mark_delete),
                    "backlog_records": each.behind,
                    "backlog_bytes": details.bytes_behind.get(each.name) if each.behind else 0,
                    "backlog_seconds": (max(0, now - oldest) / 1000 if oldest else None) if each.behind else 0.0,
                    "owner": ", ".join(each.followers),
                    "sharing": each.cursor.sharing,
                    "epoch": each.cursor.epoch,
                    "revision": each.cursor.revision,
                    "revision_running_since": moment(each.revising_since_ms),
                }
            )
        return rows

    def subscription(self, asked: Asked) -> Row:
        asked.only()
        what = ("subscription", asked.topic, asked.subscription)
        return self._reader.once(what, lambda: self._subscription(asked.topic, asked.subscription))

    def _subscription(self, topic: str, name: str) -> Row:
        log, lock = self._reader.log(topic)
        with lock:
            stats = CursorHandle(log, name).stats()
            cursor = CursorNode(log, name).refresh()
            end = log.view().head.records
        past = [{"revision": each.revision, "finished": str(each.finished)} for each in cursor.past_revisions]
        facts = subscription_facts(topic, stats)
        return {
            **facts,
            "position": str(stats.mark_delete),
            "created": moment(cursor.created_ms),
            "compacted": cursor.compacted,
            "records_before": cursor.ordinal,
            "records_of_topic": end,
            "past_revisions": past[::-1],
            "last_backward_revision": cursor.last_backward_revision,
            "dead_letter_topics": self._letters.topics(),
        }


def _health(health: Health) -> Row:
    took = None if health.milliseconds is None else round(health.milliseconds, 3)
    return {"well": health.is_well, "milliseconds": took, "error": health.error}


def _alarm(alarm: Alarm) -> Row:
    return asdict(alarm)


def _column(field: Any) -> Row:
    return {"column": field.name, "type": ddl.type_name(field.type), "null": field.nullable}


def _commit_row(commit: Commit) -> Row:
    first = Position(commit.ledger, commit.first_entry, 0) if commit.entry_count else None
    return {
        "commit": commit.number,
        "id": commit.id.hex(),
        "published": moment(commit.publish_ms),
        "producer": commit.producer,
        "query": commit.query,
        "run": commit.run,
        "sequence_id": commit.sequence,
        "records": commit.records,
        "bytes": commit.bytes,
        "entries": commit.entry_count,
        "dropped": commit.dropped,
        "forgets_producer": commit.forget,
        "ledger": commit.ledger,
        "position": None if first is None else str(first),
        "schema": commit.schema_id,
        "mints": commit.mints,
    }
