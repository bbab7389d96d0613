"""What the console may change, where it is allowed to: subscriptions, policies, and a test record. Each change is
looked at before, confirmed by name, and noted in the audit log before it happens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyspark_ledger.client import LedgerClient
from pyspark_ledger.console.asking import NOT_SIGNED_IN, READ_ONLY, Asked
from pyspark_ledger.console.audit import AuditLog
from pyspark_ledger.console.reader import NamespaceReader
from pyspark_ledger.console.settings import Settings
from pyspark_ledger.cursors.handle import CursorHandle, ResetResult
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.describe import policies as spelled
from pyspark_ledger.describe.jsonlines import Decoder
from pyspark_ledger.errors import Conflict, InvalidInput
from pyspark_ledger.log import places

Row = dict[str, Any]
ACTIONS = ("reset", "skip", "rewind", "redeliver", "clear-backlog")
POLICIES = (
    "deduplication", "snapshot_commits", "evict_producers_after", "retention_age", "retention_bytes", "backlog_quota",
    "backlog_action", "expire_subscriptions_after", "compact_after", "rewrite_below",
)  # fmt: skip
_MOST_SKIPPED = 1 << 50


class Changing:
    def __init__(self, client: LedgerClient, reader: NamespaceReader, settings: Settings, audit: AuditLog) -> None:
        self._client, self._reader, self._settings, self._audit = client, reader, settings, audit

    # -- subscriptions -------------------------------------------------------------------------------------

    def preview(self, asked: Asked) -> Row:
        """What a move of a subscription would do now. Changes nothing, so anybody may ask."""
        asked.only("action", "to", "records", "discard_planned")
        action = asked.choice("action", ACTIONS)
        cursor = self._client.cursor(asked.topic, asked.subscription)
        stats = cursor.stats()
        behind, at = stats.backlog_records, stats.mark_delete
        found: Row = {"position": str(at), "to": str(at), "exact": True, "skipped_records": 0, "repeated_records": 0}
        if action == "reset":
            would = cursor.preview(self._place(asked))
            found |= {"to": str(would.position), "exact": would.exact}
            found |= {"skipped_records": would.skipped_records, "repeated_records": would.repeated_records}
        elif action == "skip":
            found |= {"to": None, "skipped_records": min(self._records(asked), behind)}
        elif action == "clear-backlog":
            found |= {"to": str(self._client.end(asked.topic)), "skipped_records": behind}
        dropped = stats.individual_acks if action in ("reset", "clear-backlog") else 0
        return {
            "topic": asked.topic, "subscription": cursor.name, "action": action, **found,
            "read_again_records": behind if action in ("rewind", "redeliver") else 0,
            "dropped_acks": dropped, "backlog_records": behind, "owner": ", ".join(stats.followers),
            "epoch": stats.epoch, "revision": stats.revision,
        }  # fmt: skip

    def move(self, asked: Asked) -> Row:
        """Moves a subscription. ``revision``: as the preview said, so that nobody confirms what is no longer so."""
        asked.only("to", "records", "discard_planned", "confirm", "revision", "operation_id", "csrf", "action")
        self._check_allowed(asked)
        action = asked.path.get("action") or asked.text("action")
        if action not in ACTIONS:
            raise InvalidInput(f"there is no '{action}': there are {', '.join(ACTIONS)}", "LEDGER_INVALID_PARAMETER")
        self._check_confirmed(asked, asked.subscription, f"the name of the subscription, {asked.subscription}")
        operation = _operation(asked)
        cursor, about = self._client.cursor(asked.topic, asked.subscription), _about(asked)
        about |= {name: asked.text(name) for name in ("to",) if asked.text(name)}
        place = self._place(asked) if action == "reset" else None
        records = self._records(asked) if action == "skip" else 0
        about |= {"records": records} if action == "skip" else {}
        discard = asked.flag("discard_planned") if action == "reset" else False
        about |= {"discard_planned": True} if discard else {}
        self._check_revision(asked, operation)
        with self._audit.change(asked.visitor.name, f"subscription {action}", about) as became:
            moved = _moved(cursor, action, place, records, discard, operation)
            became |= {"position": str(moved.position), "revision": moved.revision}
        self._reader.look_again()
        return {**about, "action": action, "position": str(moved.position), "revision": moved.revision}

    def _place(self, asked: Asked) -> places.Place:
        return places.parse(
            asked.needed("to", "earliest, latest, a position as 3:17:0, or a time in ISO 8601"), "place"
        )

    def _records(self, asked: Asked) -> int:
        records = asked.number("records", 0, 0, _MOST_SKIPPED)
        if not records:
            raise InvalidInput("'records' is missing: say how many to skip, 1 or more", "LEDGER_MISSING_PARAMETER")
        return records

    def _check_revision(self, asked: Asked, operation: bytes | None) -> None:
        seen = asked.number("revision", -1, 0, 1 << 60)
        if seen < 0:
            return
        log, lock = self._reader.log(asked.topic)
        with lock:
            cursor = CursorNode(log, asked.subscription).refresh(sync=True)
        if cursor.revision != seen and (operation is None or operation not in cursor.operations):
            raise Conflict(
                f"subscription '{cursor.name}' was moved by somebody else meanwhile: it has revision "
                f"{cursor.revision}, and you saw {seen}. Nothing was changed: look at the preview again",
                "LEDGER_CONSOLE_OUTDATED",
            )

    # -- policies and records --------------------------------------------------------------------------------

    def policies(self, asked: Asked) -> Row:
        """Sets those that are given, in the words of the command line."""
        asked.only(*POLICIES, "confirm", "csrf")
        self._check_allowed(asked)
        given = {name: asked.text(name) for name in POLICIES if asked.text(name)}
        if not given:
            raise InvalidInput(f"nothing to set: give some of {', '.join(POLICIES)}", "LEDGER_MISSING_PARAMETER")
        changes = spelled.parse(given)
        self._check_confirmed(asked, asked.topic, f"the name of the topic, {asked.topic}")
        before = spelled.policies(self._client.policies(asked.topic))
        with self._audit.change(asked.visitor.name, "policies", {**_about(asked), "set": given}) as became:
            after = spelled.policies(self._client.set_policies(asked.topic, **changes))
            became["changed"] = {name: [before[name], after[name]] for name in after if before[name] != after[name]}
        self._reader.look_again()
        return dict(after)

    def changed_policies(self, asked: Asked) -> list[Row]:
        """What a form of policies would change: name, before, after."""
        given = {name: asked.text(name).strip() for name in POLICIES if asked.text(name).strip()}
        spelled.parse(given)
        before = {
            name: str(value).lower() for name, value in spelled.policies(self._client.policies(asked.topic)).items()
        }
        return [
            {"policy": name, "before": before[name], "after": given[name]}
            for name in given
            if before[name] != given[name]
        ]

    def produce(self, asked: Asked) -> Row:
        """Appends one record, without a sequence id."""
        asked.only("record", "csrf")
        if not self._settings.allow_test_records:
            raise InvalidInput("this console writes no records (--allow-test-records lets it)", READ_ONLY)
        self._check_allowed(asked)
        log, lock = self._reader.log(asked.topic)
        with lock:
            decoder = Decoder(log.schema(log.refresh(sync=True).head.schema_id))
        given = asked.body.get("record")
        if not isinstance(given, str | Mapping):
            raise InvalidInput("'record' is missing: give a JSON object, column -> value", "LEDGER_MISSING_PARAMETER")
        record = decoder.line(given) if isinstance(given, str) else decoder.record(given)
        with self._audit.change(asked.visitor.name, "test record", _about(asked)) as became:
            with self._client.producer(asked.topic, linger_ms=None) as producer:
                sent = producer.send(record)
                producer.flush()
            became["position"] = str(sent.result().position)
        self._reader.look_again()
        return {"topic": asked.topic, "position": became["position"]}

    # -- who may ---------------------------------------------------------------------------------------------

    def _check_allowed(self, asked: Asked) -> None:
        if not self._settings.allow_changes:
            raise InvalidInput("this console changes nothing (--allow-changes lets it)", READ_ONLY)
        if not asked.visitor.name:
            raise InvalidInput("sign in to change something", NOT_SIGNED_IN)

    def _check_confirmed(self, asked: Asked, name: str, what: str) -> None:
        if asked.text("confirm") != name:
            raise InvalidInput(f"nothing was changed: confirm it with {what}", "LEDGER_NOT_CONFIRMED")


def _moved(
    cursor: CursorHandle, action: str, place: places.Place | None, records: int, discard: bool, operation: bytes | None
) -> ResetResult:
    if place is not None:
        return cursor.reset(place, discard_planned=discard, operation_id=operation)
    if action == "skip":
        return cursor.skip(records, operation_id=operation)
    if action == "clear-backlog":
        return cursor.clear_backlog(operation_id=operation)
    return (cursor.rewind if action == "rewind" else cursor.redeliver)(operation_id=operation)


def _operation(asked: Asked) -> bytes | None:
    text = asked.text("operation_id")
    if text and not re.fullmatch(r"[0-9a-f]{32}", text):
        raise InvalidInput("'operation_id' must be 32 digits from 0 to f", "LEDGER_INVALID_PARAMETER")
    return bytes.fromhex(text) if text else None


def _about(asked: Asked) -> Row:
    return {name: asked.path[name] for name in ("topic", "subscription") if name in asked.path}
