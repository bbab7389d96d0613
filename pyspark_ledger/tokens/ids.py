"""Tokens as text, and as the summary that a task sends to the driver.

A token is ``<topic UUID>:<ledger>:<entry>:<index>`` for a record of a topic, ``<topic UUID>:m<block>:<index>`` for one
that was minted for a message from outside. All but the index is its *prefix*. Records that are read in order have
consecutive tokens, so the summary is a list of runs: prefix, first index, length.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from pyspark_ledger.base.token_prefix import TokenPrefix
from pyspark_ledger.errors import InvalidInput

TOKEN_RUNS = pa.schema(
    [("prefix", pa.dictionary(pa.int32(), pa.string())), ("index", pa.int64()), ("length", pa.int64())]
)
_DIGITS = 18  # of an index, at most
_INDEX = re.compile(rf"[0-9]{{1,{_DIGITS}}}")


def check_column(schema: pa.Schema, name: str) -> None:
    if name not in schema.names:
        raise InvalidInput(f"tokenColumn '{name}' is not a column: {', '.join(schema.names)}", "LEDGER_INVALID_OPTION")
    kind = schema.field(name).type
    if not pat.is_string(kind):
        raise InvalidInput(f"tokenColumn '{name}' is of type {kind}, it must be a string", "LEDGER_INVALID_OPTION")


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
                return InvalidInput(
                    f"{self._where}: row {row} (of its task, from 0) has no token: it was written without mintTokens, "
                    "or read with readCompacted. Leave such records out, or write them without deduplication=token",
                    "LEDGER_NO_TOKEN",
                )
            prefix, _, index = token.rpartition(":")
            if TokenPrefix.parse(prefix) is None or not _INDEX.fullmatch(index):
                return InvalidInput(
                    f"{self._where}: row {row} (of its task, from 0) has '{token}', which is not a token: take it from "
                    "_metadata.token of a topic written with mintTokens, or from client.tokens(topic).mint()",
                    "LEDGER_INVALID_TOKEN",
                )
        raise AssertionError("every token is well formed")


def _runs(codes: pa.Array, index: pa.Array) -> pa.Table:
    """Consecutive tokens as one run."""
    same = pc.and_(pc.equal(codes[1:], codes[:-1]), pc.equal(index[1:], pc.add(index[:-1], 1)))
    starts = pc.indices_nonzero(pa.concat_arrays([pa.array([True]), pc.invert(same)])).cast(pa.int64())
    stops = pa.concat_arrays([starts[1:], pa.array([len(codes)], pa.int64())])
    return pa.table({"prefix": codes.take(starts), "index": index.take(starts), "length": pc.subtract(stops, starts)})
