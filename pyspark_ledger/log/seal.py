"""Sealing: the open ledger's commits move from ZooKeeper nodes to an index file.

The order makes every crash harmless: first the files are staged, then one transaction changes the head, then the nodes
are deleted. A crash before the transaction leaves files that nothing names; a crash after it leaves nodes of a ledger
that is no longer open, which the next seal deletes.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from pyspark_ledger.errors import LedgerError, OutcomeUnknown
from pyspark_ledger.log.index import Index, stage_leaf
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import Create, DedupKey, Delete, HeadKey, LedgerKey, Put, RootKey, TransactionLost
from pyspark_ledger.metadata.records import Marker

logger = logging.getLogger(__name__)


def is_full(log: Log, view: View) -> bool:
    head, limits = view.head, log.limits
    if head.next_commit == head.ledger_first_commit:
        return False
    return (
        head.next_commit - head.ledger_first_commit >= (head.policies.snapshot_commits or limits.commits_per_ledger)
        or head.ledger_bytes >= limits.bytes_per_ledger
        or log.clock.now_ms() - head.ledger_opened_ms >= limits.ledger_age_ms
    )


def seal(log: Log) -> View:
    """Seals the open ledger and opens the next; returns the new view. If somebody else was faster, the ledger is sealed
    all the same, and nothing is left to do."""
    log.refresh(sync=True)  # files that an outdated view names may have been replaced and deleted
    view, producers = log.producers()
    head = view.head
    if not is_full(log, view):
        return view
    leaf = stage_leaf(log.files, list(view.open_commits), head.gc_epoch)
    spine = Index(log.files, head.index).extended(leaf, head.gc_epoch, log.limits.index_fanout)
    if silence := head.policies.evict_producers_ms:
        producers = producers.without_silent(head.last_publish_ms - silence)
    snapshot = producers.snapshot(log.files, head.end, head.gc_epoch)
    dedup = log.metadata.read(DedupKey(head.uuid))
    if dedup is None or dedup.record.next_commit > head.ledger_first_commit:
        return log.refresh(sync=True)
    opened = replace(
        head,
        ledger=head.ledger + 1,
        ledger_first_commit=head.next_commit,
        ledger_opened_ms=log.clock.now_ms(),
        ledger_bytes=0,
        next_entry=0,
        index=spine,
    )
    try:
        log.metadata.transact(
            [
                Put(HeadKey(head.uuid), opened, view.version),
                Create(LedgerKey(head.uuid, opened.ledger), Marker()),
                Put(DedupKey(head.uuid), snapshot, dedup.version),
            ]
        )
        logger.info("sealed topic=%s ledger=%d commits=%d", head.name, head.ledger, len(view.open_commits))
    except (TransactionLost, OutcomeUnknown):
        pass  # the head shows what happened, whoever did it
    view = log.refresh(sync=True)
    sweep(log, view)
    return view


def sweep(log: Log, view: View) -> None:
    """Deletes the nodes of ledgers that are no longer open, also those that a crash left."""
    try:
        for key in log.metadata.children(RootKey(view.head.uuid)):
            if isinstance(key, LedgerKey) and key.ledger < view.head.ledger:
                _delete_ledger(log, key)
    except LedgerError as error:
        logger.warning("topic=%s: sweep is left to the next seal: %s", view.head.name, error)


def _delete_ledger(log: Log, ledger: LedgerKey) -> None:
    commits = log.metadata.children(ledger)
    size = log.limits.nodes_per_delete
    for start in range(0, len(commits), size):
        log.metadata.transact([Delete(key) for key in commits[start : start + size]])
    log.metadata.transact([Delete(ledger)])
