"""What verifying a topic has found, in words and numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import LedgerError

Kind = Literal["loss", "damage", "inconsistent", "rollback", "given up", "orphan"]

_HARMLESS: tuple[Kind, ...] = ("given up", "orphan")
_MOST_FINDINGS = 10_000
_ADVICE: dict[Kind, str] = {
    "loss": "restore it from a copy",
    "damage": "restore it from a copy",
    "inconsistent": "restore ZooKeeper's newest state, if this one is not it; otherwise report it as a bug",
    "rollback": "see 'pyspark-ledger topics repair'",
    "given up": "nothing to do; if a copy of the file turns up, put it there and take this back with --undo",
    "orphan": "nothing to do: gc deletes what nothing names",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the log: from a position up to, and without, another one, and how many records that are."""

    first: Position | None = None
    end: Position | None = None
    records: int = 0


NO_RECORDS = Span()


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        kind: ``loss``: a file or node is missing; ``damage``: it is not what was written; ``inconsistent``: two things
            that were written contradict each other; ``rollback``: ZooKeeper was set back to an older state;
            ``given up``: an entry that is known to be damaged; ``orphan``: files that nothing names.
        what: what was found, in words.
        file: the full name of the file; empty if it is none.
        first: the first position that is concerned; None if no records are.
        end: the position after the last one; if all of a damaged ledger is concerned, where the next one begins.
        records: how many records are concerned.
        advice: what to do.
    """

    kind: Kind
    what: str
    file: str = ""
    first: Position | None = None
    end: Position | None = None
    records: int = 0
    advice: str = ""

    @property
    def is_harm(self) -> bool:
        """Whether it is more than a note: something is lost, damaged or contradicts itself."""
        return self.kind not in _HARMLESS


def finding(kind: Kind, what: str, span: Span = NO_RECORDS, file: str = "", advice: str = "") -> Finding:
    return Finding(kind, what, file, span.first, span.end, span.records, advice or _ADVICE[kind])


def from_error(error: LedgerError, span: Span = NO_RECORDS, file: str = "", of: str = "") -> Finding:
    """What somebody would be told who reads it; ``of`` says what it is, if that is not obvious."""
    kind: Kind = "loss" if error.code == "LEDGER_FILE_MISSING" else "damage"
    return finding(kind, f"{of}: {error.message}" if of else error.message, span, file)


@dataclass(frozen=True, slots=True)
class Verified:
    """What ``client.verify`` has looked at, and found.

    Attributes:
        topic: the topic's name.
        end: the end of the topic when it was looked at.
        ledgers: how many ledgers were looked at,
        commits: commits in them,
        entries: entries of these,
        records: and records.
        files: files whose existence and length were checked,
        files_read: and those of which every byte that counts was read.
        bytes_read: how many bytes that were.
        generations: compacted generations that were looked at.
        subscriptions: subscriptions,
        token_groups: and groups of tokens.
        orphans: files that nothing names: others have replaced them, writers that failed left them behind, or a commit
            to come will name them. Gc deletes what stays unnamed. Not counted if a file that names others is damaged.
        orphan_bytes: how many bytes these have.
        findings: what is not as it should be, the oldest part of the log first; of very many only the first 10,000,
        more_findings: and how many more there are.
    """

    topic: str
    end: Position
    ledgers: int
    commits: int
    entries: int
    records: int
    files: int
    files_read: int
    bytes_read: int
    generations: int
    subscriptions: int
    token_groups: int
    orphans: int
    orphan_bytes: int
    findings: tuple[Finding, ...]
    more_findings: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether nothing is lost, damaged or contradicts itself; but for what was given up by name."""
        return not any(found.is_harm for found in self.findings)


class Findings:
    """Collects findings, of very many only the first."""

    def __init__(self) -> None:
        self.all: list[Finding] = []
        self.more = 0

    def add(self, found: Iterable[Finding]) -> None:
        for each in found:
            if len(self.all) < _MOST_FINDINGS:
                self.all.append(each)
            else:
                self.more += 1
