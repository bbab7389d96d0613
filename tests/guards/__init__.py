"""Every guard of the protocols, and the tests that notice when it is not there. ``make guards`` takes out one after the
other; CONTRIBUTING.md says how to add one."""

from tests.guards import (
    append,
    backup,
    compaction,
    cursors,
    datasource,
    dedup,
    files,
    lifecycle,
    log,
    metadata,
    moving,
    outbox,
    recovery,
    retention,
    rewriting,
    sharing,
    tokens,
    verifying,
)

GUARDS = [
    *append.GUARDS,
    *backup.GUARDS,
    *compaction.GUARDS,
    *cursors.GUARDS,
    *datasource.GUARDS,
    *dedup.GUARDS,
    *files.GUARDS,
    *lifecycle.GUARDS,
    *log.GUARDS,
    *metadata.GUARDS,
    *moving.GUARDS,
    *outbox.GUARDS,
    *recovery.GUARDS,
    *retention.GUARDS,
    *rewriting.GUARDS,
    *sharing.GUARDS,
    *tokens.GUARDS,
    *verifying.GUARDS,
]
