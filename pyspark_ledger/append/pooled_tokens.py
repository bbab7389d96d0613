"""Tokens that a transaction over several topics consumes: one spending for all of its parts, because what one part has
taken is gone for the others, and because a group's node can be written only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pyspark_ledger.append.admission import Admission, StagedBatch, TopicState, Verdict, kept_by_tokens
from pyspark_ledger.append.several import Beside
from pyspark_ledger.metadata.port import Op
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


@dataclass(frozen=True, slots=True)
class FromPool(Admission):
    """As ``ByTokens``, for one part of several. ``runs[i]`` are the tokens of the batch's entry i."""

    pool: TokenPool
    runs: Sequence[pa.Table]
    fan_out: bool = False

    def judge(self, batch: StagedBatch, topic: TopicState) -> Verdict:
        entries = tuple(kept_by_tokens(self.pool.spending, batch.entries, self.runs, fan_out=self.fan_out))
        return Verdict(entries, batch.records - sum(entry.kept for entry in entries), is_duplicate=not entries)
