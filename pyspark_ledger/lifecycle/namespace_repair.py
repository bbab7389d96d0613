"""Repair of all topics of a namespace after ZooKeeper was rolled back. An error with one of them does not stop the
others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark_ledger.errors import LedgerError, NotFound
from pyspark_ledger.lifecycle import repair
from pyspark_ledger.lifecycle.repair import Damage
from pyspark_ledger.lifecycle.saved_files import SavedFiles
from pyspark_ledger.log import snapshots, topics
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import CondemnedKey, HeadKey

Progress = Callable[[str, int, int], None]  # what is done, how much of it, and of how much


@dataclass(frozen=True, slots=True)
class TopicRepair:
    """A topic that needs a repair.

    Attributes:
        topic: its name.
        damage: what is known of the damage; None if that cannot be told.
        outcome: what was done; empty: nothing.
        error: why nothing was done, if it should have been.
    """

    topic: str
    damage: Damage | None = None
    outcome: str = ""
    error: str = ""


def inspect(namespace: OpenNamespace, *, progress: Progress = lambda *_: None) -> list[TopicRepair]:
    """The topics that need a repair. Changes nothing."""
    there = SavedFiles.list(namespace.storage)  # before the topics: what is made meanwhile is known then
    namespace.metadata.sync()
    found: list[TopicRepair] = []
    all_topics = topics.list_topics(namespace.metadata)
    for done, topic in enumerate(all_topics):
        progress("topics", done, len(all_topics))
        try:
            damage = repair.inspect(namespace.log(topic))
            if damage is not None:
                found.append(TopicRepair(topic, damage))
        except NotFound:  # deleted meanwhile
            continue
        except LedgerError as error:
            found.append(TopicRepair(topic, error=str(error)))
    return [*found, *_lost(namespace, there)]


def _lost(namespace: OpenNamespace, there: SavedFiles) -> list[TopicRepair]:
    """Topics that storage knows and ZooKeeper does not, although nobody has deleted them."""
    uuids = list(there.logs)
    heads = namespace.metadata.read_many([HeadKey(uuid) for uuid in uuids])
    marks = namespace.metadata.read_many([CondemnedKey(uuid) for uuid in uuids])
    missing = [uuid for uuid, head, mark in zip(uuids, heads, marks, strict=True) if head is None and mark is None]
    lost = []
    for uuid in missing:
        try:
            name = snapshots.read(namespace.storage, there.logs[uuid]).topic.name
        except LedgerError:
            name = uuid
        if topics.find_deleted(namespace.metadata, name) is None:
            where = namespace.storage.where(there.logs[uuid].path)
            why = (
                f"ZooKeeper does not know this topic ({uuid}), and {where} does: it was rolled back to before the "
                "topic was made. Restore its newer state, or rebuild the namespace in an empty chroot"
            )
            lost.append(TopicRepair(name, error=why))
    return lost


def run(
    namespace: OpenNamespace,
    found: list[TopicRepair],
    *,
    bring_back: bool,
    accept_loss: bool,
    progress: Progress = lambda *_: None,
) -> list[TopicRepair]:
    """Repairs topics that need it: what storage has is brought back where that is possible, if that is wanted; for the
    others the loss is accepted, if that is wanted."""
    done: list[TopicRepair] = []
    for each in found:
        progress("repairing", len(done), len(found))
        done.append(_one(namespace, each, bring_back, accept_loss) if each.damage is not None else each)
    return done


def _one(namespace: OpenNamespace, found: TopicRepair, bring_back: bool, accept_loss: bool) -> TopicRepair:
    assert found.damage is not None
    later = found.damage.later
    possible = later is not None and not later.why_not
    try:
        log = namespace.log(found.topic)
        if bring_back and possible:
            return replace(found, damage=repair.bring_back(log), outcome="brought back")
        if accept_loss:
            return replace(found, damage=repair.accept_loss(log), outcome="loss accepted")
    except LedgerError as error:
        return replace(found, error=str(error))
    why = later.why_not if later is not None else "storage has no commit that ZooKeeper does not have"
    return replace(found, error=f"nothing can be brought back: {why}")
