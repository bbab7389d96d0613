"""Sealing: the open ledger's commits move from ZooKeeper nodes to an index file.

The order makes every crash harmless: first the files are staged, then one transaction changes the head, then the nodes
are deleted. A crash before the transaction leaves files that nothing names; a crash after it leaves nodes of a ledger
that is no longer open, which the next seal deletes. Last, a snapshot of the log is left in storage (``snapshots``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.errors import LedgerError, OutcomeUnknown
from pyspark_ledger.log import snapshots
from pyspark_ledger.log.index import Index, stage_leaf
from pyspark_ledger.log.log import Log, View, head_ops
from pyspark_ledger.metadata.port import (
    AnyKey,
    Check,
    DedupKey,
    Delete,
    LedgerKey,
    PartKey,
    PoliciesKey,
    Put,
    TipKey,
    TransactionLost,
)
from pyspark_ledger.metadata.records import Head, Policies
from pyspark_ledger.metadata.transactions import RolledBack

logger = logging.getLogger(__name__)


def is_full(log: Log, view: View) -> bool:
    if view.head.next_commit == view.head.ledger_first_commit:
        return False
    return is_due(view.head, log.policies().record, log.limits, log.now_ms())


def is_due(head: Head, policies: Policies, limits: Limits, now_ms: int) -> bool:
    """Whether the open ledger has enough in it to be sealed, or is old enough."""
    commits = head.next_commit - head.ledger_first_commit
    return commits > 0 and (
        commits >= (policies.snapshot_commits or limits.commits_per_ledger)
        or head.ledger_bytes >= _most_bytes(policies, limits)
        or now_ms - head.ledger_opened_ms >= _longest_ms(policies, limits)
    )


def _most_bytes(policies: Policies, limits: Limits) -> int:
    """Retention gives up whole ledgers: so one is a small part of what the topic keeps."""
    part = policies.retention_bytes // limits.retention_parts
    return min(limits.bytes_per_ledger, max(1, part)) if policies.retention_bytes else limits.bytes_per_ledger


def _longest_ms(policies: Policies, limits: Limits) -> int:
    part = max(limits.retention_ledger_ms, policies.retention_ms // limits.retention_parts)
    return min(limits.ledger_age_ms, part) if policies.retention_ms else limits.ledger_age_ms


def seal(log: Log) -> View:
    """Seals the open ledger and opens the next; returns the new view. If somebody else was faster, the ledger is sealed
    all the same, and nothing is left to do."""
    there = snapshots.listed(log.storage, log.topic.uuid)
    log.refresh(sync=True)  # files that an outdated view names may have been replaced and deleted
    view, producers = log.producers()
    head, policies = view.head, log.policies()
    log.check_not_set_back(head)
    snapshots.check_not_behind(log, view, there)
    if not is_full(log, view):
        return view
    leaf = stage_leaf(log.files, list(view.open_commits), head.gc_epoch)
    spine = Index(log.files, head.index).extended(leaf, head.gc_epoch, log.limits.index_fanout)
    if silence := policies.record.evict_producers_ms:
        # A publish time may be in the future, if a wrong clock was believed once: nobody is silent because of that.
        producers = producers.without_silent(min(head.last_publish_ms, log.now_ms()) - silence)
    snapshot = producers.snapshot(log.files, head.end, head.gc_epoch)
    dedup = log.metadata.read(DedupKey(head.uuid))
    if dedup is None:
        return log.refresh(sync=True)  # raises if the topic is gone
    opened = replace(
        head,
        ledger=head.ledger + 1,
        ledger_first_commit=head.next_commit,
        ledger_opened_ms=log.now_ms(),
        ledger_bytes=0,
        next_entry=0,
        index=spine,
        last_change=log.clock.new_id(),
    )
    try:
        log.metadata.transact(
            [
                *head_ops(view, opened),
                Check(PoliciesKey(head.uuid), policies.version),
                Put(DedupKey(head.uuid), snapshot, dedup.version),
            ]
        )
        logger.info("sealed topic=%s ledger=%d commits=%d", head.name, head.ledger, len(view.open_commits))
    except TransactionLost as refusal:
        log.refused(refusal)
    except OutcomeUnknown:
        pass  # the head shows what happened, whoever did it
    view = log.refresh(sync=True)
    sweep(log, view)
    snapshots.leave(log, there)
    return log.view()


def sweep(log: Log, view: View) -> None:
    """Deletes the nodes of ledgers that are no longer open, also those that a crash left."""
    try:
        for key in log.metadata.children(PartKey(view.head.uuid, "commits")):
            if isinstance(key, LedgerKey) and key.ledger < view.head.ledger:
                _delete_ledger(log, key)
    except RolledBack:
        raise
    except LedgerError as error:
        logger.warning("topic=%s: sweep is left to the next seal: %s", view.head.name, error)


def _delete_ledger(log: Log, ledger: LedgerKey) -> None:
    commits = log.metadata.children(ledger)
    size = log.limits.nodes_per_delete
    for start in range(0, len(commits), size):
        _delete(log, ledger, commits[start : start + size])
    _delete(log, ledger, [ledger])


def _delete(log: Log, ledger: LedgerKey, nodes: Sequence[AnyKey]) -> None:
    """Only together with the tip of a head that says that the ledger is sealed: if ZooKeeper was rolled back meanwhile,
    it may be the open one again, and these nodes all that is known of its commits (I18)."""
    for _ in range(log.limits.change_attempts):
        head = log.view().head
        if ledger.ledger >= head.ledger:
            return
        tip = Check(TipKey(head.uuid, head.last_change), 0)
        try:
            log.metadata.transact([tip, *(Delete(key) for key in nodes)])
            return
        except TransactionLost as refusal:
            if refusal.op != tip:
                raise  # another one sweeps too
            log.refresh(sync=True)  # somebody has written meanwhile
