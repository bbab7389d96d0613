"""What maintenance does, as a table: a line adds an action.

Each action says of a topic, from what was seen of it and with no request, whether there may be something to do. Then it
does it, once, as it can be done by hand. None relies on being the only one that does it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.errors import LedgerError
from pyspark_ledger.lifecycle import condemned, gc, old_sinks, retention, rewriting, subscriptions
from pyspark_ledger.lifecycle.backup import NAMESPACE, Backup
from pyspark_ledger.lifecycle.looking import Seen
from pyspark_ledger.lifecycle.rates import Pace
from pyspark_ledger.log import scan, seal, trimmed
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import CondemnedsKey
from pyspark_ledger.metadata.records import Head, Policies
from pyspark_ledger.metadata.wallclock import believable_ms

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """What an action did: numbers by what they count, and when there may be more to do even if nothing changes."""

    numbers: Mapping[str, int] = field(default_factory=dict)
    again_ms: int | None = 0  # None: only if the topic changes
    warning: str = ""  # a state that somebody should know of: said once,
    about: object = None  # and again when this changes
    failed: Mapping[str, LedgerError] = field(default_factory=dict)  # of an action on the namespace: by topic


@dataclass
class ActionStats:
    """What an action has done since this process started."""

    runs: int = 0  # rounds
    failures: int = 0  # topics that failed, in all rounds
    failing: int = 0  # topics that fail now
    last_success_ms: int = 0  # when a round ended in which nothing failed; of backup, also before this process started
    seconds: float = 0.0
    done: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class TopicAction:
    """``may_be_due`` costs nothing. ``of`` is what the action looks at: while that is the same, and it was done once,
    there is nothing to do before the time that it said. One that is ``heavy`` reads or writes whole files, and does not
    keep the others waiting."""

    name: str
    every_s: Callable[[Limits], float]
    may_be_due: Callable[[Seen, OpenNamespace], bool]
    run: Callable[[Log, Pace], Done]
    of: Callable[[Seen], object]
    heavy: bool = False


@dataclass(frozen=True, slots=True)
class NamespaceAction:
    """``start`` gives what does a round, and may remember something until the next one."""

    name: str
    every_s: Callable[[Limits], float]
    start: Callable[[OpenNamespace, ActionStats], Callable[[Pace], Done]]
    heavy: bool = False


Action = TopicAction | NamespaceAction


# -- ledgers --------------------------------------------------------------------------------------------------------


def _can_seal(seen: Seen, namespace: OpenNamespace) -> bool:
    now_ms = believable_ms(namespace.metadata, namespace.clock, namespace.limits)
    return seal.is_due(seen.head.record, seen.policies.record, namespace.limits, now_ms)


def _seal(log: Log, _pace: Pace) -> Done:
    before = log.refresh(sync=True).head.ledger
    return Done({"ledgers": seal.seal(log).head.ledger - before})


def _can_trim(seen: Seen, _namespace: OpenNamespace) -> bool:
    head, policies = seen.head.record, seen.policies.record
    return bool(policies.retention_ms or policies.retention_bytes) and head.ledger > trimmed.begin(head).ledger


def _trim(log: Log, _pace: Pace) -> Done:
    if _is_compacted_first(log.refresh(sync=True).head, log.policies().record):
        if _is_past_retention(log):
            return Done(warning="nothing is given up before the topic was compacted for the first time", about="first")
        return Done()
    done, policies = retention.trim(log), log.policies().record
    numbers = {"ledgers": done.ledgers, "records": done.records, "bytes": done.bytes}
    if done.holds:  # they may pass at any time
        about = {hold.by.partition(",")[0] for hold in done.holds}  # who, and not where its horizon is by now
        return Done(numbers, warning=f"{done.why}, which retention would give up", about=about)
    return Done(numbers, retention.next_ms(log, log.view(), policies))


def _is_compacted_first(head: Head, policies: Policies) -> bool:
    """A topic that is to be compacted, and never was, is not trimmed before that, however little was written to it:
    after it the last record of each key is kept, whatever is given up."""
    return policies.compact_after_bytes > 0 and head.generation is None


def _is_past_retention(log: Log) -> bool:
    """Whether retention would give up a ledger, if nobody held it back."""
    view = log.view()
    return retention.wanted(log, view, log.policies().record) > trimmed.begin(view.head).ledger


def _trimmed_by(seen: Seen) -> object:
    head, policies = seen.head.record, seen.policies
    size = head.bytes if policies.record.retention_bytes else 0
    return head.ledger, head.trim, policies.version, size, head.generation is None


# -- files ----------------------------------------------------------------------------------------------------------


def _can_collect(seen: Seen, namespace: OpenNamespace) -> bool:
    """An epoch that seems to begin in the future is mended by a run, too."""
    graces = namespace.limits.gc_quiet_graces if _is_quiet(seen) else 1
    return not 0 <= namespace.metadata.now_ms() - seen.gc.modified_ms < graces * namespace.limits.gc_grace_ms


def _is_quiet(seen: Seen) -> bool:
    """Nothing was committed for two epochs, and nothing waits to be deleted: only a task that failed can have left
    files, and these have time."""
    head, births = seen.head.record, seen.gc.record.births
    waiting = head.pending or head.going is not None or head.replaced is not None
    return not waiting and len(births) > 1 and births[0].commit == head.next_commit


def _collect(log: Log, pace: Pace) -> Done:
    return Done({"files": gc.collect(log, progress=pace.step).deleted})


def _can_compact(seen: Seen, namespace: OpenNamespace) -> bool:
    head, policies = seen.head.record, seen.policies.record
    return policies.compact_after_bytes > 0 and (
        policies.compact_after_bytes <= head.bytes or _can_trim(seen, namespace)
    )


def _compact(log: Log, pace: Pace) -> Done:
    view, last = log.refresh(sync=True), log.view().head.generation
    new = view.head.bytes - (scan.bytes_before(log, view, last.horizon) if last is not None else 0)
    policies = log.policies().record
    if new < policies.compact_after_bytes and not retention.waits_for_compaction(log, view, policies):
        return Done(again_ms=retention.next_ms(log, view, policies))
    rows = view.head.records - (last.read - last.records if last is not None else 0)
    read = new + (last.bytes if last is not None else 0)
    generation = compact(log, pace.of_rows(read / max(1, rows)))
    records = generation.records if generation is not None else 0
    return Done({"generations": int(generation is not None), "records": records}, again_ms=None)


def _as_it_is(seen: Seen) -> object:
    return seen.head.version, seen.head.record.last_change, seen.policies.version


def _can_rewrite(seen: Seen, _namespace: OpenNamespace) -> bool:
    return seen.policies.record.rewrite_below_bytes > 0 and bool(seen.head.record.index)


def _rewrite(log: Log, pace: Pace) -> Done:
    done = rewriting.rewrite(log, progress=pace.of_bytes())
    numbers = {"ledgers": done.ledgers, "files": done.files_before - done.files_after, "bytes": done.bytes_after}
    return Done(numbers, again_ms=None, warning="; ".join(done.skipped), about=done.skipped)


def _rewritten_by(seen: Seen) -> object:
    return seen.head.record.index, seen.policies.version


# -- subscriptions --------------------------------------------------------------------------------------------------


def _can_be_over_quota(seen: Seen, _namespace: OpenNamespace) -> bool:
    return subscriptions.has_quota(seen.policies.record) and any(
        cursor.record.ordinal < seen.head.record.records for cursor in seen.cursors
    )


def _quota(log: Log, _pace: Pace) -> Done:
    found = subscriptions.enforce_quota(log)
    evicted = sum(each.evicted for each in found)
    held = {each.name: each.why for each in found if not each.evicted}
    over = "; ".join(f"subscription '{name}': {why}" for name, why in held.items())
    warning = f"over its backlog quota: {over}" if held else ""
    return Done({"over_quota": len(found), "evicted_records": evicted}, warning=warning, about=set(held))


def _can_expire(seen: Seen, namespace: OpenNamespace) -> bool:
    now_ms = min(namespace.clock.now_ms(), namespace.metadata.now_ms())
    return any(subscriptions.is_old(now_ms, seen.policies.record, cursor) for cursor in seen.cursors)


def _expire(log: Log, _pace: Pace) -> Done:
    done = subscriptions.expire(log)
    return Done({"subscriptions": len(done.deleted), "renewed": done.renewed})


# -- the namespace --------------------------------------------------------------------------------------------------


def _sinks(namespace: OpenNamespace, _stats: ActionStats) -> Callable[[Pace], Done]:
    return partial(_remove_unused_sinks, namespace)


def _remove_unused_sinks(namespace: OpenNamespace, pace: Pace) -> Done:
    return Done({"nodes": old_sinks.remove_unused(namespace, pace.step)})


def _condemned(namespace: OpenNamespace, _stats: ActionStats) -> Callable[[Pace], Done]:
    return partial(_finish, namespace)


def _finish(namespace: OpenNamespace, pace: Pace) -> Done:
    """What is left of topics that were deleted."""
    if not namespace.metadata.children(CondemnedsKey()):
        return Done()
    found = condemned.finish(namespace, progress=pace.step)
    failed = {each.uuid: each.error for each in found if each.error}
    errors = "; ".join(f"the deleted topic {uuid}: {error}" for uuid, error in failed.items())
    numbers = {"files": sum(each.files for each in found), "topics": sum(each.is_over for each in found)}
    return Done(numbers, warning=errors, about=failed)


def _backup(namespace: OpenNamespace, stats: ActionStats) -> Callable[[Pace], Done]:
    backup = Backup(namespace)

    def run(pace: Pace) -> Done:
        """An error is no reason to wait longer than until the next round."""
        try:
            backup.look()
            stats.last_success_ms = max(stats.last_success_ms, backup.last_ms)
            done = backup.run(pace)
        except LedgerError as error:
            nobody_made_it_yet = error.code == "LEDGER_STORAGE_NOT_SET"
            return Done(failed={} if nobody_made_it_yet else {NAMESPACE: error})
        numbers = {"logs": done.logs, "readers": done.readers, "namespaces": done.namespaces}
        return Done(numbers, failed=done.failed)

    return run


# In this order: what makes work for another comes before it.
ACTIONS: tuple[Action, ...] = (
    TopicAction("seal", lambda limits: limits.seal_every_s, _can_seal, _seal, _as_it_is),
    TopicAction("expire", lambda limits: limits.expire_every_s, _can_expire, _expire, _as_it_is),
    TopicAction("quota", lambda limits: limits.quota_every_s, _can_be_over_quota, _quota, _as_it_is),
    TopicAction("trim", lambda limits: limits.trim_every_s, _can_trim, _trim, _trimmed_by),
    TopicAction("compact", lambda limits: limits.compact_every_s, _can_compact, _compact, _as_it_is, heavy=True),
    TopicAction("rewrite", lambda limits: limits.rewrite_every_s, _can_rewrite, _rewrite, _rewritten_by, heavy=True),
    TopicAction("gc", lambda limits: limits.gc_every_s, _can_collect, _collect, _as_it_is, heavy=True),
    NamespaceAction("sinks", lambda limits: limits.sinks_every_s, _sinks),
    NamespaceAction("condemned", lambda limits: limits.condemned_every_s, _condemned),
    NamespaceAction("backup", lambda limits: limits.backup_every_s, _backup),
)
NAMES = tuple(action.name for action in ACTIONS)
