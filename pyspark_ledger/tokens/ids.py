"""Tokens as text, and as the summary that a task sends to the driver.

A token is ``<topic UUID>:<ledger>:<entry>:<index>`` for a record of a topic, ``<topic UUID>:m<block>:<index>`` for one
that was minted for a message from outside. All but the index is its *prefix*. Records that are read in order have
consecutive tokens, so the summary is a list of runs: prefix, first index, length.

Tokens of one topic's records can also be given as numbers, 8 bytes instead of 45 (see :mod:`base.token_prefix`). Their
summary is the same, with one prefix for all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from pyspark_ledger.base import compute as pc
from pyspark_ledger.base.token_prefix import TokenPrefix, first_number, prefix_of_numbers
from pyspark_ledger.errors import InvalidInput

TOKEN_RUNS = pa.schema(
    [("prefix", pa.dictionary(pa.int32(), pa.string())), ("index", pa.int64()), ("length", pa.int64())]
)
_DIGITS = 18  # of an index, at most
_INDEX = re.compile(rf"[0-9]{{1,{_DIGITS}}}")


def check_column(schema: pa.Schema, name: str, topic: str) -> None:
    """``topic`` is the one that option 'tokenTopic' names, if any."""
    if name not in schema.names:
        raise InvalidInput(f"tokenColumn '{name}' is not a column: {', '.join(schema.names)}", "LEDGER_INVALID_OPTION")
    kind = schema.field(name).type
    problem = ""
    if pat.is_string(kind) and topic:
        problem = "has text, which says which topic each token belongs to: leave option 'tokenTopic' out"
    elif pat.is_int64(kind) and not topic:
        problem = "has numbers: name the topic whose tokens they are in option 'tokenTopic', or take _metadata.token"
    elif not pat.is_string(kind) and not pat.is_int64(kind):
        problem = f"is of type {kind}: it must be a string, or a long with option 'tokenTopic'"
    if problem:
        raise InvalidInput(f"tokenColumn '{name}' {problem}", "LEDGER_INVALID_OPTION")


@dataclass(frozen=True, slots=True)
class TokenColumn:
    """The column that a task finds its rows' tokens in: text, or numbers of one topic."""

    name: str
    topic: str = ""
    uuid: str = ""

    def gatherer(self) -> TokenRuns | NumberRuns:
        where = f"tokenColumn '{self.name}'"
        return NumberRuns(self.uuid, self.topic, where) if self.uuid else TokenRuns(where)


class TokenRuns:
    """Gathers the tokens of rows as runs, in the order of the rows."""

    def __init__(self, where: str = "tokenColumn") -> None:
        self._where = where
        self._rows = 0
        self._codes: dict[str, int] = {}
        self._runs: list[pa.Table] = []

    def add(self, tokens: pa.Array) -> None:
        if not len(tokens):
            return
        tokens = tokens.cast(pa.string())
        if tokens.null_count:
            raise self._malformed(tokens)
        codes, text = self._of_one_prefix(tokens) or self._of_many_prefixes(tokens)
        try:
            index = text.cast(pa.int64())
        except pa.ArrowInvalid:
            raise self._malformed(tokens) from None
        if pc.min(index).as_py() < 0:
            raise self._malformed(tokens)
        self._runs.append(_runs(codes, index))
        self._rows += len(tokens)

    def table(self) -> pa.Table:
        """As TOKEN_RUNS: one row for each run."""
        runs = pa.concat_tables([pa.table({"prefix": pa.array([], pa.int32()), "index": pa.array([], pa.int64()),
                                           "length": pa.array([], pa.int64())}), *self._runs])  # fmt: skip
        runs = runs.combine_chunks()
        codes = runs["prefix"].combine_chunks() if runs.num_rows else pa.array([], pa.int32())
        prefixes = pa.DictionaryArray.from_arrays(codes, pa.array(list(self._codes), pa.string()))
        return pa.table([prefixes, runs["index"], runs["length"]], schema=TOKEN_RUNS)

    def _of_one_prefix(self, tokens: pa.Array) -> tuple[pa.Array, pa.Array] | None:
        """Codes of the prefixes, and the indexes as text, if all tokens have the same prefix. That is the usual case,
        and nothing has to be split."""
        prefix = tokens[0].as_py().rpartition(":")[0]
        start = len(prefix) + 1
        longest = pc.max(pc.binary_length(tokens)).as_py()
        if longest > start + _DIGITS or not pc.all(pc.starts_with(tokens, f"{prefix}:")).as_py():
            return None
        code = self._code(tokens, prefix)  # which refuses a prefix whose bytes are not its characters
        text = pc.binary_slice(tokens.cast(pa.binary()), start, start + _DIGITS).cast(pa.string())
        return pa.repeat(pa.scalar(code, pa.int32()), len(tokens)), text

    def _of_many_prefixes(self, tokens: pa.Array) -> tuple[pa.Array, pa.Array]:
        parts = pc.split_pattern(tokens, ":", max_splits=1, reverse=True)
        if pc.min(pc.list_value_length(parts)).as_py() < 2:
            raise self._malformed(tokens)
        encoded = pc.list_element(parts, 0).dictionary_encode()
        codes = pa.array([self._code(tokens, prefix) for prefix in encoded.dictionary.to_pylist()], pa.int32())
        return codes.take(encoded.indices), pc.list_element(parts, 1)

    def _code(self, tokens: pa.Array, prefix: str) -> int:
        if prefix not in self._codes:
            if TokenPrefix.parse(prefix) is None:
                raise self._malformed(tokens)
            self._codes[prefix] = len(self._codes)
        return self._codes[prefix]

    def _malformed(self, tokens: pa.Array) -> InvalidInput:
        for row, token in enumerate(tokens.to_pylist(), self._rows):
            if token is None:
                return _no_token(self._where, row)
            prefix, _, index = token.rpartition(":")
            if TokenPrefix.parse(prefix) is None or not _INDEX.fullmatch(index):
                return InvalidInput(
                    f"{self._where}: row {row} (of its task, from 0) has '{token}', which is not a token: take it from "
                    "_metadata.token of a topic written with mintTokens, or mint one for it",
                    "LEDGER_INVALID_TOKEN",
                )
        raise AssertionError("every token is well formed")


class NumberRuns:
    """The same of tokens that are numbers, all of one topic."""

    def __init__(self, uuid: str, topic: str, where: str = "tokenColumn") -> None:
        self._uuid, self._topic, self._where = uuid, topic, where
        self._first = first_number(uuid)
        self._end = self._first + (1 << 61)  # no topic has so many, and so nothing below overflows
        self._rows = 0
        self._runs: list[tuple[pa.Array, pa.Array]] = []

    def add(self, numbers: pa.Array) -> None:
        if not len(numbers):
            return
        if numbers.null_count:
            raise _no_token(self._where, self._rows + pc.index(pc.is_null(numbers), True).as_py())
        bounds = pc.min_max(numbers).as_py()
        if bounds["min"] < self._first or bounds["max"] >= self._end:
            strange = pc.or_(pc.less(numbers, self._first), pc.greater_equal(numbers, self._end))
            row = pc.index(strange, True).as_py()
            where = f"{self._where}, row {self._rows + row} (of its task, from 0): "
            raise not_a_token(numbers[row].as_py(), self._topic, where)
        start = numbers[0].as_py()
        if numbers.equals(pa.arange(start, start + len(numbers))):  # nearly always, and quickly seen
            self._runs.append((pa.array([start - self._first]), pa.array([len(numbers)])))
        else:
            index = pc.subtract(numbers, self._first)
            starts, lengths = _starts_and_lengths(pc.equal(index[1:], pc.add(index[:-1], 1)))
            self._runs.append((index.take(starts), lengths))
        self._rows += len(numbers)

    def table(self) -> pa.Table:
        """As TOKEN_RUNS. Runs go on from one batch to the next."""
        none = pa.array([], pa.int64())
        index = pa.concat_arrays([none, *(index for index, _ in self._runs)])
        length = pa.concat_arrays([none, *(length for _, length in self._runs)])
        if len(index):
            starts, counts = _starts_and_lengths(pc.equal(index[1:], pc.add(index[:-1], length[:-1])))
            ends = pc.add(index, length).take(pc.add(starts, pc.subtract(counts, 1)))
            index = index.take(starts)
            length = pc.subtract(ends, index)
        codes = pa.repeat(pa.scalar(0, pa.int32()), len(index))
        prefix = pa.DictionaryArray.from_arrays(codes, pa.array([prefix_of_numbers(self._uuid)]))
        return pa.table([prefix, index, length], schema=TOKEN_RUNS)


def not_a_token(number: int, topic: str, where: str = "") -> InvalidInput:
    return InvalidInput(
        f"{where}the number {number} is no token of topic '{topic}': take it from _metadata.tokenNumber of that topic, "
        "and name the topic that it comes from in option 'tokenTopic'. If the topic was deleted and made again, the "
        "numbers of the old one are not those of the new one",
        "LEDGER_INVALID_TOKEN",
    )


def _no_token(where: str, row: int) -> InvalidInput:
    return InvalidInput(
        f"{where}: row {row} (of its task, from 0) has no token: it was written without mintTokens, or read with "
        "readCompacted. Leave such records out, or write them without deduplication=token",
        "LEDGER_NO_TOKEN",
    )


def _runs(codes: pa.Array, index: pa.Array) -> pa.Table:
    """Consecutive tokens as one run."""
    same = pc.and_(pc.equal(codes[1:], codes[:-1]), pc.equal(index[1:], pc.add(index[:-1], 1)))
    starts, lengths = _starts_and_lengths(same)
    return pa.table({"prefix": codes.take(starts), "index": index.take(starts), "length": lengths})


def _starts_and_lengths(follows: pa.BooleanArray) -> tuple[pa.Array, pa.Array]:
    """Of runs, given for each but the first whether it goes on with the one before."""
    starts = pc.indices_nonzero(pa.concat_arrays([pa.array([True]), pc.invert(follows)])).cast(pa.int64())
    stops = pa.concat_arrays([starts[1:], pa.array([len(follows) + 1], pa.int64())])
    return starts, pc.subtract(stops, starts)
