"""Where a namespace keeps its files: the root is recorded in ZooKeeper, and marked by a file.

The marker file is named by the namespace's id, so that two namespaces may share a root. Whoever writes or deletes files
looks for it first: where a volume is not mounted, or a folder was moved, it is missing, and an empty place is never
taken for the namespace's root (I1).

A namespace is made in steps: the record; the marker file; and "marked" in the record, once the file was read back. A
process may die between any two of them: whoever opens a namespace that is not marked finishes it.

The marker file also says at which ZooKeeper the namespace was made. A ZooKeeper that has lost its data looks like a new
one: if the root has the marker of a namespace from the same address, nobody makes another one there (I16, I18).

The root can be changed (``lifecycle.moving``). Each such change has a number, which the namespace's record and every
topic's head get before the last files are copied. A process remembers with which number it opened the root, and names a
file only by a head of that number. Where no head is changed, as for long values of tokens and entities, it looks at the
record after it has written the file: if nobody was moving anything then, the file is among those that are copied.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.base.roots import tell
from pyspark_ledger.base.settings import NOTHING_GIVEN, Settings
from pyspark_ledger.base.uris import check_no_keys, shown
from pyspark_ledger.errors import Conflict, DataLoss, InvalidInput, LedgerError, NotFound, Unavailable
from pyspark_ledger.files.storage import BEING_MOVED, Storage, normalise_uri, open_storage
from pyspark_ledger.metadata.port import HeadKey, Metadata, NamespaceKey, TopicKey, TopicsKey
from pyspark_ledger.metadata.records import Namespace
from pyspark_ledger.metadata.transactions import PlainNode, Transactions, find

_ADDRESS = "zookeeper"  # in a marker file
_MARKER_BYTES = 100_000  # at most


def open_root(
    metadata: Metadata,
    asked: str | None,
    clock: Clock = SYSTEM_CLOCK,
    *,
    address: str = "",
    settings: Settings = NOTHING_GIVEN,
) -> Storage:
    """The namespace's storage, which knows its marker file. The first user says where it is, and that is recorded for
    later ones. ``address`` is ZooKeeper's connect string, ``settings`` say how to get into the storage."""
    wanted = normalise_uri(asked) if asked else None
    found = find(metadata, NamespaceKey())
    if wanted is not None and (found is None or wanted != found.record.storage):  # an old one may have keys in it
        check_no_keys(wanted)
    if place := wanted or (found and found.record.storage):
        tell(settings, place)
    record = _new_namespace(metadata, wanted, clock, address) if found is None else found.record
    check_complete(record)
    if wanted is not None and wanted != record.storage:
        was_moved = wanted == record.moved_from
        raise InvalidInput(
            f"option 'storage' (or LEDGER_STORAGE) is {shown(wanted)}, but this ZooKeeper namespace keeps its files in "
            f"{shown(record.storage)}: "
            + ("they were moved there: " if was_moved else "")
            + "leave the option out, or give "
            + ("it the new place" if was_moved else "the ZooKeeper address another chroot"),
            "LEDGER_STORAGE_CONFLICT",
        )
    if record.moving is not None:
        return open_storage(record.storage, names.marker_file(record.id), BEING_MOVED)
    if not record.marked:
        record = finish_namespace(metadata, open_storage(record.storage), clock, address=address)
    return open_storage(record.storage, names.marker_file(record.id), record.moves)


# -- a root that changes ---------------------------------------------------------------------------------------


def check_not_moved(metadata: Metadata, storage: Storage) -> None:
    """After a file was written that no head will name, and before the transaction that names it. If this passes, nobody
    had begun to move the storage when the file was there, and so it will be copied with the others.

    :raises Unavailable: the storage is being moved.
    :raises Conflict: it was moved.
    """
    metadata.sync()
    found = metadata.read(NamespaceKey())
    if found is not None and (found.record.moving is not None or found.record.moves != storage.moves):
        raise _refusal(found.record, storage)


def check_may_make(namespace: Namespace, storage: Storage | None) -> None:
    """Raises as :func:`check_not_moved` does, before a topic is made whose folder is in this storage."""
    if namespace.moving is not None or (storage is not None and namespace.moves != storage.moves):
        raise _refusal(namespace, storage or open_storage(namespace.storage))


def check_not_left(metadata: Metadata, storage: Storage) -> None:
    """Raises Conflict if the storage was moved elsewhere, and all of it is there."""
    found = metadata.read(NamespaceKey())
    if found is not None and found.record.moving is None and found.record.moves != storage.moves:
        raise _refusal(found.record, storage)


def refusal(metadata: Metadata, storage: Storage, topic: str) -> LedgerError:
    """What to raise if a head is not of the root that this process has open."""
    metadata.sync()
    found = metadata.read(NamespaceKey())
    if found is not None and (found.record.moving is not None or found.record.moves != storage.moves):
        return _refusal(found.record, storage)
    where = shown(storage.uri)
    return Conflict(
        f"topic '{topic}' was made or restored under another storage root than the namespace has now: if its files are "
        f"in {where}, 'pyspark-ledger namespace set-storage {where} --yes' brings the two together",
        "LEDGER_STORAGE_MOVED",
    )


def _refusal(record: Namespace, storage: Storage) -> LedgerError:
    if record.moving is not None:
        since = datetime.fromtimestamp(record.moving.since_ms / 1000, UTC)
        return Unavailable(
            f"the storage of this namespace is being moved to {record.moving.to}, by {record.moving.by} since "
            f"{since:%Y-%m-%d %H:%M:%S} UTC: wait until that is done, then open the topic again. If it was "
            f"interrupted, 'pyspark-ledger namespace move-storage --to {record.moving.to} --yes' finishes it",
            "LEDGER_STORAGE_MOVING",
        )
    storage.is_left = True
    return Conflict(
        f"the storage of this namespace was moved to {shown(record.storage)}, and this process still has "
        f"{shown(storage.uri)} open: open the topic again, with a new producer, reader or query. Nothing is lost",
        "LEDGER_STORAGE_MOVED",
    )


def check_complete(namespace: Namespace | None) -> None:
    """Raises if only a part of the namespace is there: the rest has yet to be brought over from an older format, or
    rebuilt."""
    if namespace is not None and namespace.upgrading:
        raise Conflict(
            "an upgrade of this namespace was begun and is not finished: wait for it; if it was interrupted, complete "
            "it with 'pyspark-ledger namespace upgrade --yes' (docs/upgrading.md)",
            "LEDGER_UPGRADING",
        )
    if namespace is not None and namespace.rebuilding:
        raise Conflict(
            "this namespace is being rebuilt from storage, or restored from a file, and that is not finished: wait for "
            "it; if it was interrupted, run the same command again",
            "LEDGER_REBUILDING",
        )


def _new_namespace(metadata: Metadata, wanted: str | None, clock: Clock, address: str) -> Namespace:
    """Makes the record, or finds the one that somebody else has made meanwhile."""
    if wanted is None:
        raise InvalidInput(
            "this ZooKeeper namespace is new, and nothing says where its files go: set the option 'storage' (or "
            "LEDGER_STORAGE) once, to a folder or a URI such as s3://bucket/prefix; later users need not",
            "LEDGER_STORAGE_NOT_SET",
        )
    storage = open_storage(wanted)
    lost = _made_at(storage, address)
    if lost and (made := find(metadata, NamespaceKey())) is not None:  # by somebody else, a moment ago
        return made.record
    if lost:
        raise _lost(storage, lost, address)
    storage.prove_usable(names.probe_file(clock.new_id()))  # to change it later is a lot of work
    record = Namespace(wanted, clock.now_ms(), id=clock.new_id())
    return Transactions(metadata, DEFAULT_LIMITS, clock).make(NamespaceKey(), record, "the namespace").record


def check_not_lost(metadata: Metadata, asked: str | None, address: str) -> None:
    """For who does not find a topic: raises DataLoss if that is because ZooKeeper has lost its data, as far as the
    storage that was named shows it."""
    if not asked or find(metadata, NamespaceKey()) is not None:
        return
    try:
        storage = open_storage(normalise_uri(asked))
        marker = _made_at(storage, address)
    except LedgerError:
        return  # that the topic is not there is true in any case
    if marker:
        raise _lost(storage, marker, address)


def _made_at(storage: Storage, address: str) -> str:
    """The marker file of a namespace that was made at this address; empty if there is none."""
    for name in storage.files("") if address else ():
        if names.is_marker_file(name) and names.is_same_zookeeper(address, _address_in(storage, name)):
            return name
    return ""


def _address_in(storage: Storage, marker: str) -> str:
    """Empty if the marker file does not say it: an earlier version made it, or a person."""
    try:
        content = json.loads(storage.read(marker, 0, _MARKER_BYTES).to_pybytes())
        return str(content[_ADDRESS])
    except (LedgerError, ValueError, LookupError, TypeError, RecursionError):
        return ""


def _lost(storage: Storage, marker: str, address: str) -> DataLoss:
    return DataLoss(
        f"ZooKeeper at {names.zookeeper_place(address)} has no namespace, but {storage.where(marker)} shows that it "
        "had one, with its files in this storage: it has lost its data. Nothing was made, or the files of the lost "
        "namespace would be out of reach. Restore ZooKeeper's data, or make the namespace again from storage with "
        f"'pyspark-ledger namespace rebuild --storage {storage.where('')}'. For a new beginning give the "
        "ZooKeeper address another chroot, or choose another storage root",
        "LEDGER_NAMESPACE_LOST",
    )


def finish_namespace(
    metadata: Metadata, storage: Storage, clock: Clock = SYSTEM_CLOCK, *, address: str = ""
) -> Namespace:
    """Gives a namespace an id, a marker file in its root and the note that it is marked, as far as it lacks them. May
    be called again, and by several at once. Its topics must be where they belong: if one of them has records, an empty
    root is the wrong one.

    :raises Unavailable: the root cannot be written, or is not the one with the files.
    """
    transactions = Transactions(metadata, DEFAULT_LIMITS, clock)
    node = PlainNode(metadata, NamespaceKey(), _gone)

    def with_id(record: Namespace) -> Namespace | None:
        return None if record.id else replace(record, id=clock.new_id())

    named = transactions.change(node, with_id, "the namespace's id")
    if named.marked:
        return named
    _make_root(metadata, storage)
    mark(storage, named, clock, address)

    def marked(record: Namespace) -> Namespace | None:
        if record.id != named.id:
            raise Conflict("the namespace was given another id meanwhile: try again")
        return None if record.marked else replace(record, marked=True)

    return transactions.change(node, marked, "the note that the namespace's root is marked")


def mark(storage: Storage, namespace: Namespace, clock: Clock, address: str = "") -> None:
    """Writes the marker file into a root, and reads it back."""
    storage.replace(
        names.marker_file(namespace.id), marker_content(namespace, address), names.probe_file(clock.new_id())
    )


def _gone() -> NotFound:
    return NotFound("the namespace's record is not in ZooKeeper: it was there a moment ago, and somebody deleted it")


def marker_content(namespace: Namespace, address: str) -> bytes:
    """Says to a person what the file is; and ``address``, where the namespace is in ZooKeeper, without a password."""
    content = {
        "what": "The storage root of a pyspark-ledger namespace. Without this file nobody writes here: leave it.",
        "namespace": namespace.id.hex(),
        "created": datetime.fromtimestamp(namespace.created_ms / 1000, UTC).isoformat(timespec="seconds"),
    }
    if address:
        content[_ADDRESS] = names.zookeeper_place(address)
    return json.dumps(content, indent=2).encode() + b"\n"


def _make_root(metadata: Metadata, storage: Storage) -> None:
    """The only time that it is made; version 0.1.0 made it with the first file."""
    if storage.is_bare():
        metadata.sync()
        if has_records(metadata):
            raise storage.not_there("")
        storage.make_folder("")


def has_records(metadata: Metadata) -> bool:
    """Whether a topic has a commit, and so a file somewhere."""
    keys = [key for key in metadata.children(TopicsKey()) if isinstance(key, TopicKey)]
    found = [topic.record.uuid for topic in metadata.read_many(keys) if topic is not None]
    heads = metadata.read_many([HeadKey(uuid) for uuid in found])
    return any(head is not None and head.record.next_commit > 0 for head in heads)
