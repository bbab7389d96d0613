"""How far a query is behind its topics, from what Spark says of its progress.

An offset says how many records are before it, so the difference of two is a number of records: from ``endOffset``, up
to which the query has finished, to ``latestOffset``, where the topic ended when Spark planned that batch. Sources that
are no ledgers are left out. Whoever has the topics at hand (``lag_topics``) knows more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark_ledger.datasource.offsets import is_initial
from pyspark_ledger.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark_ledger.client import LedgerClient


class HasProgress(Protocol):
    """A streaming query, of a session or of Spark Connect."""

    @property
    def lastProgress(self) -> Mapping[str, Any] | None: ...


@dataclass(frozen=True, slots=True)
class TopicLag:
    """How far a query is behind one of its topics. None: not known.

    Attributes:
        source: which of the query's sources, from 0 on.
        topic: its name; empty if the offset is one of version 0.1.0, which did not say.
        uuid: its id.
        position: the next record that the query reads; empty if it has none yet.
        read: how many records are before that.
        records: how many records it has not read, or read and not finished.
        bytes: how many stored bytes these are, by the mean record of the topic.
        seconds: how long ago the first of these was published; 0 if there is none.
        subscription: which one it follows; empty: none, or not known.
    """

    source: int
    topic: str
    uuid: str
    position: str
    read: int | None
    records: int | None
    bytes: int | None = None
    seconds: float | None = None
    subscription: str = ""
    cursor: str = ""  # how the id of the subscription's cursor begins


@dataclass(frozen=True, slots=True)
class QueryLag:
    """How far a query is behind all of its topics.

    Attributes:
        id: the query's, the same after a restart.
        name: the query's, or its id if it has none.
        batch: the last one that it has finished.
        topics: one for each topic of each ledger source.
    """

    id: str
    name: str
    batch: int
    topics: tuple[TopicLag, ...]

    @property
    def records(self) -> int | None:
        """Of all topics together; None if one of them is not known."""
        known = [each.records for each in self.topics if each.records is not None]
        return sum(known) if len(known) == len(self.topics) else None

    @property
    def bytes(self) -> int | None:
        """Of all topics together; None if one of them is not known."""
        known = [each.bytes for each in self.topics if each.bytes is not None]
        return sum(known) if len(known) == len(self.topics) else None

    @property
    def seconds(self) -> float | None:
        """Of the topic that it is furthest behind; None if one of them is not known."""
        known = [each.seconds for each in self.topics if each.seconds is not None]
        return max(known, default=0.0) if len(known) == len(self.topics) else None


def lag(query: HasProgress | Mapping[str, Any] | None, client: LedgerClient | None = None) -> QueryLag | None:
    """How far a query is behind its topics; None if it has finished no batch yet.

    :param query: a streaming query, or what its ``lastProgress`` or a listener says, also as a dict of its JSON.
    :param client: with one, the topics are looked at: how far behind they are now, also in seconds and bytes. Without,
        it is what Spark has said when the last batch was planned, in records.
    :raises InvalidInput: it is none of these.
    :raises Unavailable: there is a client, and ZooKeeper or the storage does not answer.
    """
    if client is not None and not hasattr(client, "topics"):
        raise InvalidInput(f"lag(): client is {client!r}: give a LedgerClient")
    progress = query if query is None or isinstance(query, Mapping) else _last_progress(query)
    if progress is None:
        return None
    missing = [name for name in ("sources", "id", "batchId") if name not in progress]
    if missing or not all(isinstance(source, Mapping) for source in _listed(progress["sources"])):
        why = f"it has no '{missing[0]}'" if missing else "its 'sources' are none"
        raise InvalidInput(f"lag(): this dict is no progress of a streaming query: {why}")
    found = from_progress(progress)
    if client is None:
        return found
    from pyspark_ledger.client import namespace_of
    from pyspark_ledger.datasource.lag_topics import TopicsAtHand

    return TopicsAtHand(namespace_of(client)).measured(found)


def _listed(given: Any) -> Iterable[Any]:
    return given if isinstance(given, list | tuple) else [given]


def _last_progress(query: HasProgress) -> Mapping[str, Any] | None:
    try:
        return query.lastProgress
    except AttributeError:
        raise InvalidInput(
            f"lag(): a {type(query).__name__} is no streaming query: give what .start() has returned, or its progress"
        ) from None


def from_progress(progress: Mapping[str, Any]) -> QueryLag:
    topics = [each for number, source in enumerate(progress["sources"]) for each in _of_source(number, source)]
    id = str(progress["id"])
    return QueryLag(id, progress.get("name") or id, progress["batchId"], tuple(topics))


def _of_source(number: int, source: Mapping[str, Any]) -> Iterator[TopicLag]:
    """Of each topic that it reads: a topic that was taken out of the query's list keeps its part in ``endOffset``. A
    query that has finished nothing yet has no ``endOffset``; the first batch after a restart, which was planned before,
    has no ``latestOffset``."""
    at, latest = _topics(source.get("endOffset") or source.get("startOffset")), _topics(source.get("latestOffset"))
    for uuid in latest or at:
        (name, here), (newest, end) = at.get(uuid, ("", {})), latest.get(uuid, ("", {}))
        position = str(here.get("pos", ""))
        yield TopicLag(
            source=number,
            topic=newest or name,
            uuid=uuid,
            position=position,
            read=here.get("records"),
            records=_difference(here, end),
            cursor=here.get("cursor", ""),
        )


def _difference(here: Mapping[str, Any], end: Mapping[str, Any]) -> int | None:
    if "records" in here and "records" in end:
        return max(0, int(end["records"]) - int(here["records"]))
    return 0 if here and here.get("pos") == end.get("pos") else None  # of version 1, which knows no number


def _topics(offset: Any) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """What an offset says of each topic, by its id, and the topic's name. Nothing, if it is not a ledger's: anything
    may be the offset of another source."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except (ValueError, RecursionError):
            return {}
    if not isinstance(offset, dict) or is_initial(offset):
        return {}
    if offset.get("v") == 1:
        return {offset["topic"]: ("", offset)} if _is_part({**offset, "id": offset.get("topic")}) else {}
    topics = offset.get("topics") if offset.get("v") == 2 else None
    if not isinstance(topics, dict):
        return {}
    return {each["id"]: (name, each) for name, each in topics.items() if _is_part(each)}


def _is_part(fields: Any) -> bool:
    """Whether this is what an offset of ours says of a topic."""
    return (
        isinstance(fields, dict)
        and all(isinstance(fields.get(name), str) for name in ("id", "pos"))
        and isinstance(fields.get("records", 0), int)
    )
