"""Gives a namespace another storage root without copying anything: somebody has moved the folder, or the namespace was
made with a wrong path and has no records yet. The steps are those of ``moving``."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Literal

from pyspark_ledger.base import names
from pyspark_ledger.base.uris import check_no_keys, shown
from pyspark_ledger.errors import Conflict, CorruptData, LedgerError, NotFound
from pyspark_ledger.files.storage import Storage, normalise_uri, open_storage
from pyspark_ledger.lifecycle import belongings
from pyspark_ledger.lifecycle.moving import Mover, moving_elsewhere
from pyspark_ledger.log import root
from pyspark_ledger.metadata.records import Namespace

logger = logging.getLogger(__name__)

Why = Literal["the files are there", "there are no records yet"]


@dataclass(frozen=True, slots=True)
class Setting:
    """Another root for a namespace.

    Attributes:
        storage: the root that the namespace has, or had.
        to: the root that it gets.
        topics: how many topics there are.
        why: why nothing has to be copied.
    """

    storage: str
    to: str
    topics: int
    why: Why


def inspect(mover: Mover, to: str) -> Setting:
    """Whether the namespace can be given this root as it is. Changes nothing.

    :raises Conflict: the files are not there, or not all of them; or somebody moves them elsewhere.
    """
    check_no_keys(to)
    to, record = normalise_uri(to), mover.namespace()
    if record.moving is not None and to not in (record.moving.to, record.storage):
        raise moving_elsewhere(record.moving)
    topics = len(mover.topics())
    if record.id and names.marker_file(record.id) in open_storage(to).files(""):
        _check_complete(mover, open_storage(to))
        return Setting(record.storage, to, topics, "the files are there")
    if not root.has_records(mover.metadata) and not _has_outboxes(mover, record):
        return Setting(record.storage, to, topics, "there are no records yet")
    marker = names.marker_file(record.id) if record.id else "ledger-namespace-<id>"
    now = shown(record.storage)
    raise Conflict(
        f"{to} is not the storage of this namespace: the file {marker} is not there, and the namespace has records. To "
        f"copy them from {now}, use 'pyspark-ledger namespace move-storage --to {to} --yes'. If you have "
        f"moved or copied all files of {now} there yourself, {marker} belongs to them; if only that file "
        "was lost, make an empty one of that name",
        "LEDGER_NOT_THE_STORAGE",
    )


def _has_outboxes(mover: Mover, record: Namespace) -> bool:
    with contextlib.suppress(LedgerError):  # a root that cannot be used has none
        return bool(belongings.outboxes(mover.metadata, open_storage(record.storage)))
    return False


def _check_complete(mover: Mover, storage: Storage) -> None:
    """The newest files of every topic, and of outboxes: a copy that was made too early lacks them."""
    for number, topic in enumerate(topics := mover.topics(), 1):
        with contextlib.suppress(NotFound):  # deleted meanwhile
            _refuse_if(storage, f"topic '{topic.name}'", belongings.newest_missing(mover.log(topic, storage)))
        mover.progress("looking", number, len(topics))
    for outbox in belongings.outboxes(mover.metadata, storage):
        try:
            for path in belongings.named_by_outbox(mover.metadata, outbox):
                storage.size(path)
        except CorruptData as error:
            _refuse_if(storage, f"outbox '{outbox}'", error.message)


def _refuse_if(storage: Storage, what: str, why: str) -> None:
    if why:
        raise Conflict(
            f"{shown(storage.uri)} has not all files of this namespace; {what}: {why}. Stop what writes, copy all "
            "files again, and then try again; the namespace keeps the storage that it has",
            "LEDGER_INCOMPLETE",
        )


def set_storage(mover: Mover, to: str) -> Setting:
    """Gives the namespace this root. Can be interrupted and repeated."""
    with mover.alone():
        known, found = mover.namespace(), inspect(mover, to)
        target = open_storage(found.to)
        is_empty = found.why == "there are no records yet"
        if is_empty:
            target.prove_usable(names.probe_file(mover.clock.new_id()))
        begun = mover.begin(known, found.to)
        with mover.or_back(begun):
            mover.fence(begun, target)
            inspect(mover, to)  # again: perhaps somebody has written before he was refused
            if is_empty:
                for topic in mover.topics():
                    target.make_folder(names.topic_folder(topic.uuid))
                root.mark(target, begun, mover.clock, mover.address)
            done = mover.finish(begun)
        if done.moved_from and done.moved_from != done.storage:
            mover.unmark(done, done.moved_from)
    logger.info("the namespace's storage is %s, and was %s: %s", found.to, found.storage, found.why)
    return found
