"""Tokens that a transaction over several topics consumes: one spending for all of its parts, because what one part has
taken is gone for the others, and because a group's node can be written only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pyspark_ledger.append.admission import Admission, StagedBatch, TopicState, Verdict, kept_by_tokens
from pyspark_ledger.append.several import Beside
from pyspark_ledger.errors import Conflict
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import Metadata, Op, Versioned
from pyspark_ledger.metadata.transactions import Look
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.spending import Spending


class TokenPool(Beside):
    """Consumes what the parts of the transaction have taken."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self.spending = Spending(groups)

    def begin(self) -> bool:
        self.spending = Spending(self._groups)
        return True

    def ops(self) -> Sequence[Op]:
        return self.spending.ops()

    def refresh(self) -> None:
        self._groups.reload()

    def committed(self) -> None:
        self.spending.committed()


class Consumption(Beside):
    """Consumes tokens of one group, all of them or none: one that is gone refuses the whole transaction."""

    def __init__(self, log: Log, groups: Groups) -> None:
        self._log, self._groups = log, groups
        self._operation = log.clock.new_id()
        self._claims: list[pa.Table] = []
        self._ids: list[Sequence[object]] = []
        self._spending = Spending(groups)
        self._look: Look | None = None

    def is_of(self, metadata: Metadata) -> bool:
        return self._log.metadata is metadata

    def add(self, claims: pa.Table, ids: Sequence[object]) -> None:
        self._claims.append(claims)
        self._ids.append(ids)

    def begin(self) -> bool:
        self._spending = Spending(self._groups)
        for claims, ids in zip(self._claims, self._ids, strict=True):
            present = self._spending.take(claims)
            if present is not None:
                gone = next(id for id, there in zip(ids, present.to_pylist(), strict=True) if not there)
                raise Conflict(
                    f"token {gone} is gone for group '{self._groups.name}', or is given twice: what it stands for was "
                    "processed before. Nothing was changed",
                    "LEDGER_TOKEN_CONSUMED",
                )
        return True

    def ops(self) -> Sequence[Op]:
        group = self._groups.group(self._log.topic.uuid)
        if group is None:
            raise self._log.gone()
        before = None if group.version is None else Versioned(group.record, group.version)
        what = f"consuming tokens for group '{self._groups.name}'"
        self._look = self._log.transactions.by_id(group.key, before, self._operation, what)
        return self._spending.ops(self._operation, group)

    def refresh(self) -> None:
        self._groups.reload()

    def look(self) -> bool | None:
        assert self._look is not None
        return self._look()

    def committed(self) -> None:
        self._spending.committed()


@dataclass(frozen=True, slots=True)
class FromPool(Admission):
    """As ``ByTokens``, for one part of several. ``runs[i]`` are the tokens of the batch's entry i."""

    pool: TokenPool
    runs: Sequence[pa.Table]
    fan_out: bool = False

    def judge(self, batch: StagedBatch, topic: TopicState) -> Verdict:
        entries = tuple(kept_by_tokens(self.pool.spending, batch.entries, self.runs, fan_out=self.fan_out))
        return Verdict(entries, batch.records - sum(entry.kept for entry in entries), is_duplicate=not entries)
