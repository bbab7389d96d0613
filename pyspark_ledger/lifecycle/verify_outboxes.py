"""Whether the entities of a namespace's outboxes can be read: those that are long, and so in files."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_ledger.base import names
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.lifecycle.findings import Finding, from_error
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import EntityKey, OutboxKey
from pyspark_ledger.outbox.entities import Entities


def verify_outboxes(namespace: OpenNamespace) -> list[Finding]:
    """Of the outboxes that have files."""
    namespace.storage.check_marked()
    namespace.metadata.sync()
    return [
        found for outbox in namespace.storage.folders(names.OUTBOXES_FOLDER) for found in _outbox(namespace, outbox)
    ]


def _outbox(namespace: OpenNamespace, outbox: str) -> Iterator[Finding]:
    entities = Entities(
        outbox, namespace.metadata, namespace.storage, namespace.limits, namespace.clock, lambda _: None
    )
    for key in namespace.metadata.children(OutboxKey(outbox)):
        if isinstance(key, EntityKey):
            try:
                entities.load(key.entity)  # looks again if a file was replaced meanwhile
            except CorruptData as error:
                yield from_error(error, of=f"entity '{key.entity}' of outbox '{outbox}'")
