"""Which topics a query writes to is kept in nodes (see ``log/sinks``), and so is the last batch of one that writes to
several at once (``append/claim``). This removes those that nobody uses: a sink that runs writes its topics' nodes anew
every day, and its claim with every batch."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.paging import pages
from pyspark_ledger.errors import OutcomeUnknown
from pyspark_ledger.lifecycle.rates import Wait
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import AnyKey, Delete, Metadata, SinkKey, SinksKey, SinkTopicKey, TransactionLost

logger = logging.getLogger(__name__)


def remove_unused(namespace: OpenNamespace, step: Wait = lambda _: None) -> int:
    """Removes the nodes that nobody has used for 90 days; returns how many."""
    metadata, limits, removed = namespace.metadata, namespace.limits, 0
    now_ms = min(namespace.clock.now_ms(), metadata.now_ms())  # a clock that is ahead makes nothing old
    queries = [key for key in metadata.children(SinksKey()) if isinstance(key, SinkKey)]
    for page in pages(queries, limits.topics_at_once):
        below = dict(zip(page, metadata.children_many(page), strict=True))
        old = _old(metadata, below, now_ms - limits.sink_kept_ms)
        for query in page:
            step(0.0)
            gone = sum(_delete(metadata, Delete(key, old[key])) for key in below[query] if key in old)
            removed += gone
            if gone == len(below[query]) and (unused := _unused(metadata, limits, query, now_ms, had_topics=gone > 0)):
                _delete(metadata, unused)  # a topic that the query comes to right now makes it again
    return removed


def _old(metadata: Metadata, below: Mapping[SinkKey, list[AnyKey]], before_ms: int) -> dict[AnyKey, int]:
    """The nodes that nobody has written since, with their versions."""
    keys = [key for keys in below.values() for key in keys if isinstance(key, SinkTopicKey)]
    found = zip(keys, metadata.read_many(keys), strict=True)
    return {key: node.version for key, node in found if node is not None and node.modified_ms <= before_ms}


def _delete(metadata: Metadata, op: Delete) -> bool:
    try:
        metadata.transact([op])
    except (TransactionLost, OutcomeUnknown):  # it was used meanwhile, or the next run tries again
        return False
    logger.info("forgot sink=%s: nobody has used it", op.key)
    return True


def _unused(metadata: Metadata, limits: Limits, query: SinkKey, now_ms: int, *, had_topics: bool) -> Delete | None:
    """Removes the node of a query that has no topics (any more), unless somebody has used it meanwhile. One that has
    just come is about to make some. A claim is kept for as long as a topic is: a replay is recognised by it."""
    found = metadata.read(query)
    if found is None:
        return None
    claims = found.record.sequence is not None
    kept_ms = limits.sink_kept_ms if claims else 0 if had_topics else limits.sink_look_ms
    return Delete(query, found.version) if found.modified_ms <= now_ms - kept_ms else None
