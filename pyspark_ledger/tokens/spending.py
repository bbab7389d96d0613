"""Consuming tokens: which of them are present, and the operations that consume those in one transaction.

A token is present if it is neither consumed in the store nor taken before by the same spending. If all tokens of all
runs are present, as in a topic that is read in order, this is decided run by run; otherwise row by row, in Arrow.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.base.bitmap import Bitmap
from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.base.token_prefix import TokenPrefix, topic_of_numbers
from pyspark_ledger.errors import Conflict, CorruptData, InvalidInput
from pyspark_ledger.log.log import View
from pyspark_ledger.metadata.port import Op
from pyspark_ledger.tokens.groups import Block, Group, GroupChanged, Groups, Numbering

FEW_RUNS = 4_096  # more are decided row by row

T = TypeVar("T")
Space = Group | Block


class Spending:
    """Tokens that are about to be consumed together: changed copies of the bitmaps, for one transaction to store."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._changed: dict[Space, dict[int, Bitmap]] = {}
        self._by_prefix: dict[str, Numbering | None] = {}
        self._blocks: dict[tuple[str, str], Block | None] = {}
        self._looked: set[Group] = set()
        self._on_commit: list[Callable[[], None]] = []

    @classmethod
    def decide(cls, groups: Groups, decision: Callable[[Spending], T]) -> T:
        """Calls ``decision``, again and again until each group that it reads has stayed at one version."""
        for _ in range(DEFAULT_LIMITS.look_attempts):
            try:
                return decision(cls(groups))
            except GroupChanged:
                groups.reload()
        raise Conflict(f"the tokens of group '{groups.name}' change too quickly: try again")

    # -- deciding ------------------------------------------------------------------------------------------

    def take(self, runs: pa.Table, *, fan_out: bool = False) -> pa.BooleanArray | None:
        """Takes the tokens that are present. Returns for each row whether its token was; None if all were. With
        ``fan_out`` several rows may share one token."""
        column = runs["prefix"].combine_chunks()
        numberings = [self._numbering(prefix, code, runs) for code, prefix in enumerate(column.dictionary.to_pylist())]
        spans = self._spans(runs, column.indices, numberings)
        if spans is not None and self._take_spans(spans, fan_out):
            return None
        return self._take_rows(runs, column.indices, numberings, fan_out)

    def _numbering(self, text: str, code: int, runs: pa.Table) -> Numbering | None:
        if uuid := topic_of_numbers(text):
            return self._numbers(uuid, runs.filter(pc.equal(runs["prefix"].combine_chunks().indices, code)))
        if text not in self._by_prefix:
            prefix = TokenPrefix.parse(text)
            assert prefix is not None
            self._by_prefix[text] = self._block(prefix) if prefix.block else self._entry(prefix)
        return self._by_prefix[text]

    def _numbers(self, uuid: str, runs: pa.Table) -> Numbering | None:
        """Raises unless all were minted, and none is lost: a number itself does not say where it is from."""
        group = self._groups.group(uuid)
        if group is None:
            raise InvalidInput(
                f"the topic with the UUID {uuid}, whose tokens a batch brings, was deleted while the batch was written",
                "LEDGER_INVALID_TOKEN",
            )
        first, length = runs["index"].combine_chunks(), runs["length"].combine_chunks()
        last = pc.subtract(pc.add(first, length), 1)
        return self._asked(group, lambda view: group.checked_numbers(view, first, last))

    def _block(self, prefix: TokenPrefix) -> Numbering | None:
        key = (prefix.uuid, prefix.block)
        if key not in self._blocks:
            self._blocks[key] = self._groups.block(*key)
        block = self._blocks[key]
        return None if block is None else Numbering(block, 0, block.size)

    def _entry(self, prefix: TokenPrefix) -> Numbering | None:
        group = self._groups.group(prefix.uuid)
        if group is None:
            return None
        return self._asked(group, lambda view: group.number(view, prefix))

    def _asked(self, group: Group, ask: Callable[[View], Numbering | None]) -> Numbering | None:
        if group not in self._looked:
            # What is in memory may be too old to know a token, or so old that gc has deleted the files it names.
            with suppress(CorruptData, InvalidInput):
                found = ask(group.log.view())
                if found is not None:
                    return found
            self._looked.add(group)
            group.log.refresh(sync=True)
        return ask(group.log.view())

    def _spans(
        self, runs: pa.Table, codes: pa.Array, numberings: list[Numbering | None]
    ) -> list[tuple[Space, int, int, int]] | None:
        """The runs as (space, chunk, start, stop); None if they have to be decided row by row."""
        if runs.num_rows > FEW_RUNS:
            return None
        spans: list[tuple[Space, int, int, int]] = []
        columns = (column.to_pylist() for column in (codes, runs["index"], runs["length"]))
        for code, index, length in zip(*columns, strict=True):
            numbering = numberings[code]
            if numbering is None or numbering.kept is not None or index + length > numbering.rows:
                return None
            start, stop = numbering.base + index, numbering.base + index + length
            while start < stop:
                chunk, offset = divmod(start, numbering.space.size)
                width = min(stop - start, numbering.space.size - offset)
                spans.append((numbering.space, chunk, offset, offset + width))
                start += width
        return spans

    def _take_spans(self, spans: list[tuple[Space, int, int, int]], fan_out: bool) -> bool:
        """All or nothing."""
        ordered = sorted(spans, key=lambda span: (id(span[0]), *span[1:]))
        for before, after in pairwise(ordered):
            if not fan_out and before[:2] == after[:2] and after[2] < before[3]:
                return False
        if not all(self._bitmap(space, chunk, fan_out).has_none(start, stop) for space, chunk, start, stop in spans):
            return False
        for space, chunk, start, stop in spans:
            self._working(space, chunk).fill(start, stop)
        return True

    def _take_rows(
        self, runs: pa.Table, codes: pa.Array, numberings: list[Numbering | None], fan_out: bool
    ) -> pa.BooleanArray:
        codes, index = _expand(codes, runs["index"].combine_chunks(), runs["length"].combine_chunks())
        numbers = _numbers(codes, index, numberings)
        rows = pa.arange(0, len(codes))
        taken = [rows.slice(0, 0)]
        for space in dict.fromkeys(numbering.space for numbering in numberings if numbering is not None):
            of_space = pa.array([numbering is not None and numbering.space is space for numbering in numberings])
            here = pc.and_(of_space.take(codes), pc.is_valid(numbers))
            taken += self._take_numbers(space, numbers.filter(here), rows.filter(here), fan_out)
        return pc.is_in(rows, value_set=pa.concat_arrays(taken))

    def _take_numbers(self, space: Space, numbers: pa.Array, rows: pa.Array, fan_out: bool) -> list[pa.Array]:
        taken = []
        chunks = pc.divide(numbers, space.size)
        for chunk in chunks.unique().to_pylist():
            here = pc.equal(chunks, chunk)
            local, local_rows = pc.subtract(numbers.filter(here), chunk * space.size), rows.filter(here)
            free = pc.invert(self._bitmap(space, chunk, fan_out).has(local))
            local, local_rows = local.filter(free), local_rows.filter(free)
            if not fan_out:
                local, local_rows = _firsts(local, local_rows)
            if len(local):
                self._working(space, chunk).add(local)
                taken.append(local_rows)
        return taken

    def _bitmap(self, space: Space, chunk: int, fan_out: bool) -> Bitmap:
        """What counts as consumed: with fan-out what the store says, otherwise also what this spending has taken."""
        changed = {} if fan_out else self._changed.get(space, {})
        return changed.get(chunk) or space.bitmap(chunk)

    def _working(self, space: Space, chunk: int) -> Bitmap:
        changed = self._changed.setdefault(space, {})
        if chunk not in changed:
            changed[chunk] = space.bitmap(chunk).copy()
        return changed[chunk]

    # -- consuming -----------------------------------------------------------------------------------------

    def ops(self, operation: bytes = b"", group: Group | None = None) -> list[Op]:
        """The operations that consume all that was taken. ``group`` keeps the operation's id, even if nothing else
        changes in it."""
        spaces = dict(self._changed)
        for changed_group in (group, *(self._groups.group(s.uuid) for s in self._changed if isinstance(s, Block))):
            if changed_group is not None:  # a new version, so that a late request to mint the same block is refused
                spaces.setdefault(changed_group, {})
        ops: list[Op] = []
        for space, changed in spaces.items():
            space_ops, install = space.ops(changed, operation if space is group else b"")
            ops += space_ops
            self._on_commit.append(install)
        return ops

    def guards(self) -> list[Op]:
        """Operations that make a transaction fail unless all that was taken is still present. They consume nothing."""
        return [op for space in self._changed for op in space.guard()]

    def committed(self) -> None:
        for install in self._on_commit:
            install()


def _expand(codes: pa.Array, index: pa.Array, length: pa.Array) -> tuple[pa.Array, pa.Array]:
    """From runs to rows."""
    ends = pc.cumulative_sum(length)
    starts = pc.subtract(ends, length)
    shift = pc.subtract(index, starts)  # a row's index is its number plus this

    def spread(values: pa.Array) -> pa.Array:
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, values))

    return spread(codes), pc.add(pa.arange(0, ends[-1].as_py()), spread(shift))


def _numbers(codes: pa.Array, index: pa.Array, numberings: list[Numbering | None]) -> pa.Array:
    """The number of each token; null if it never existed."""
    base = pa.array([None if numbering is None else numbering.base for numbering in numberings], pa.int64())
    rows = pa.array([0 if numbering is None else numbering.rows for numbering in numberings], pa.int64())
    there = pc.less(index, rows.take(codes))
    numbers = pc.if_else(there, pc.add(base.take(codes), index), None)
    for code, numbering in enumerate(numberings):
        if numbering is not None and numbering.kept is not None:
            numbers = _skip_masked(numbers, pc.and_(there, pc.equal(codes, code)), index, numbering)
    return numbers


def _skip_masked(numbers: pa.Array, here: pa.Array, index: pa.Array, numbering: Numbering) -> pa.Array:
    """Rows that are masked are no records: they have no tokens, and are not counted."""
    kept = numbering.kept
    assert kept is not None
    rank = pc.subtract(pc.cumulative_sum(kept.cast(pa.int64())), 1)
    number = pc.if_else(kept, pc.add(rank, numbering.base), None)
    return pc.replace_with_mask(numbers, here, number.take(index.filter(here)))


def _firsts(numbers: pa.Array, rows: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The first row of every number."""
    if pc.count_distinct(numbers).as_py() == len(numbers):
        return numbers, rows
    grouped = pa.table({"number": numbers, "row": rows}).group_by("number", use_threads=False)
    firsts = grouped.aggregate([("row", "min")])
    return firsts["number"].combine_chunks(), firsts["row_min"].combine_chunks()
