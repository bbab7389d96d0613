"""Group commit without a broker: whoever has its turn commits for those who wait behind it.

One transaction has a commit for each of them, and deletes each request at the version that was read. Each is judged
with the effects of those before it, and only as far as anybody can judge it: what needs more is left to its writer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from pyspark_ledger.append import loose
from pyspark_ledger.append.loose import Loose
from pyspark_ledger.append.prepared import Draft, with_file
from pyspark_ledger.dedup.producers import Producers
from pyspark_ledger.errors import CorruptData, LedgerError
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.queue import Answer, Waiting
from pyspark_ledger.metadata.port import Delete, Op, RequestKey, Versioned
from pyspark_ledger.metadata.records import Commit, Entry, Request

logger = logging.getLogger(__name__)

_LONG_NAME = 500  # of a hundred producers with longer ones, what one transaction can have might not be enough


@dataclass
class Companions:
    """The writers whose requests are committed together with one's own, or are in the log already."""

    waiting: int = 0  # all who waited
    commits: list[Commit] = field(default_factory=list)
    _rows: dict[int, pa.RecordBatch] = field(default_factory=dict)  # of those whose records no file has yet
    _done: list[Op] = field(default_factory=list)

    @property
    def are_all(self) -> bool:
        """Whether nobody is left behind."""
        return len(self._done) == self.waiting

    def ops(self, log: Log, placed: Sequence[Commit]) -> list[Op]:
        """Deletes their requests, and tells them where their commits are."""
        if not placed:
            return self._done
        new = [Answer(each.id, each.number, each.ledger, each.first_entry, each.publish_ms) for each in placed]
        return [*self._done, *log.queue.answer_ops(new, log.view().head.gc_epoch)]

    def write(self, log: Log, epoch: int, own: Loose | None) -> Entry | None:
        """Writes the files of those whose records are loose, and of one's own, which come last. Returns where these
        are."""
        parts = [*self._rows.values(), *([] if own is None else [own.rows])]
        if not parts:
            return None
        shares = loose.write(log, epoch, parts, "lz4" if own is None else own.compression)
        for number, share in zip(self._rows, shares, strict=False):
            self.commits[number] = with_file(self.commits[number], share)
        return None if own is None else shares[-1]

    @classmethod
    def gather(cls, log: Log, view: View, producers: Producers, own: Draft, own_key: RequestKey | None) -> Companions:
        others = [key for key in log.queue.waiting() if key != own_key]
        # The tokens of a batch may take nearly all the room that a transaction has: then it is committed by itself.
        found = [] if own.verdict.token_ops else log.queue.requests(others[: log.limits.requests_at_once])
        self = cls(len(others))
        if found:
            judge = _Judge(log, view, producers, own, found)
            for key, request in found:
                if judge.is_done(request.record):
                    self._done.append(Delete(key, request.version))
                elif judge.takes(request.record):
                    self._take(log, key, request)
        return self

    def _take(self, log: Log, key: RequestKey, request: Versioned[Request]) -> None:
        if request.record.rows:
            try:
                self._rows[len(self.commits)] = loose.unpack(log, request.record)
            except CorruptData as error:
                logger.warning("%s; it is left to its writer", error)
                return
        self._done.append(Delete(key, request.version))
        self.commits.append(request.record.commit)


class _Judge:
    """Decides who can be taken along, in the order of the queue."""

    def __init__(self, log: Log, view: View, producers: Producers, own: Draft, found: Sequence[Waiting]) -> None:
        self._log, self._view, self._producers = log, view, producers
        self._since = max(min(request.record.since for _, request in found), self._oldest_known)
        self._ids = {commit.id for commit in log.commits_since(view, self._since)}
        # Producers whose ids this transaction raises already, or that have an earlier request which is left out.
        highest = own.verdict.highest
        self._touched = {own.commit.producer, *(() if highest is None else highest["producer"].to_pylist())}

    @property
    def _oldest_known(self) -> int:
        """Commits from here on are compared by their ids: those of the open ledger, and as many before it."""
        head = self._view.head
        trimmed = head.trim.commit if head.trim is not None else 0
        return max(trimmed, head.ledger_first_commit - self._log.limits.commits_per_ledger)

    def is_done(self, request: Request) -> bool:
        """Whether the log has it: then the request has arrived late, or a second time."""
        return request.commit.id in self._ids

    def takes(self, request: Request) -> bool:
        """At most one of a producer: its ids are compared with the state before this transaction. And none after one
        that is left to its writer, whose ids would be below the last one then, and so be taken for duplicates."""
        commit = request.commit
        names = {commit.producer, *(name for name, _ in commit.highest)} - {""}
        taken = self._fits(request) and self._touched.isdisjoint(names) and self._is_new(request)
        self._touched |= names
        return taken

    def _fits(self, request: Request) -> bool:
        head, commit = self._view.head, request.commit
        files = [] if request.rows else [entry.file for entry in commit.entries]
        return (
            not request.alone
            and request.since >= self._since
            and request.moves == head.moves
            and commit.schema_id == head.schema_id
            and len(commit.producer) <= _LONG_NAME
            and all(head.gc_epoch - 1 <= file.epoch <= head.gc_epoch for file in files)
        )

    def _is_new(self, request: Request) -> bool:
        """Whether all of its ids are above the last one of their producer."""
        commit = request.commit
        if not commit.sequence_column:
            return True
        [(name, _)] = commit.highest
        try:
            last = self._producers.last_sequence(name, self._log.topic.name)
        except LedgerError:
            return False  # its writer will be told
        return self._log.deduplicates() and request.lowest is not None and (last is None or request.lowest > last)
