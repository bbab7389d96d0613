"""How a rollback of ZooKeeper to an older state is noticed, and what is said about it.

A ZooKeeper that is restored from a backup has forgotten commits, and its versions start again: so a version alone
proves nothing to a process that lived through it. Three things do (I18). A change of the head also replaces the tip, a
node that is named by the head's last change; who has the head of a lost history does not know the tip of the new one.
Every commit has the id of the one before, and must follow the last one that is in memory. And what only grows has not
become smaller.

Whoever notices a rollback writes a note into the head, and nobody writes to the topic until it is repaired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark_ledger.errors import DataLoss
from pyspark_ledger.metadata.records import Commit, Head, SetBack
from pyspark_ledger.metadata.transactions import RolledBack

if TYPE_CHECKING:
    from pyspark_ledger.log.log import View


def is_chain(commits: Sequence[Commit], head: Head) -> bool:
    """Whether each commit follows the one before, up to the head's last one."""
    return commits[-1].id == head.last_commit and all(b.previous == a.id for a, b in pairwise(commits))


def what_went_back(before: View, now: View) -> str:
    """What shows that ZooKeeper was rolled back between two views; empty: nothing does."""
    if now.version < before.version:
        return "its head is older than it was before"
    if now.version == before.version:
        return "its head has the version that it had before, and is another one"
    for what, was, found in zip(_GROWING, _growing(before.head), _growing(now.head), strict=True):
        if found < was:
            return f"its {what} was {was} before, and is {found} now"
    return ""


_GROWING = ("next commit", "open ledger", "gc epoch", "compacted generation")


def _growing(head: Head) -> tuple[int, ...]:
    """What only ever grows, unless ZooKeeper is rolled back."""
    return head.next_commit, head.ledger, head.gc_epoch, head.generation.number if head.generation else 0


def note(now_ms: int, by: str, why: str, lost_commit: int, known: Head | None) -> SetBack:
    """What to write into the head; ``known`` is the newest head of the lost history that is in memory."""
    found = SetBack(now_ms, by, why, lost_commit + 1)
    if known is None:
        return found
    next_token = known.token_base + known.tokens
    return replace(found, ledger=known.ledger, gc_epoch=known.gc_epoch, next_token=next_token)


def with_largest(noted: SetBack | None, found: SetBack) -> SetBack:
    """The first note stays. How far the lost history had come is the most that anybody knows: a repair begins after
    that."""
    if noted is None:
        return found
    return replace(
        noted,
        next_commit=max(noted.next_commit, found.next_commit),
        ledger=max(noted.ledger, found.ledger),
        gc_epoch=max(noted.gc_epoch, found.gc_epoch),
        next_token=max(noted.next_token, found.next_token),
    )


def loss(topic: str, why: str) -> DataLoss:
    """What to tell who wants to write after somebody has noticed a rollback."""
    return DataLoss(_message(topic, why, repaired=False), "LEDGER_SET_BACK")


def noticed(topic: str, why: str, *, repaired: bool) -> RolledBack:
    """What to tell a process that has noticed a rollback."""
    return RolledBack(_message(topic, why, repaired=repaired))


def _message(topic: str, why: str, *, repaired: bool) -> str:
    if repaired:
        what = (
            "and the topic was repaired since. What this process had written or read after that state is lost; it can "
            "go on from what is there now"
        )
    else:
        what = (
            "and commits were lost. Nobody writes to the topic until somebody decides how to go on: restore the newer "
            f"state of ZooKeeper, or accept the loss with 'pyspark-ledger topics repair {topic}'"
        )
    return f"topic '{topic}': {why}: ZooKeeper was rolled back to an older state, {what}"
