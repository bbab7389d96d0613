"""The table of parsers: each as a function of bytes, with valid examples to begin from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from pyspark_ledger.errors import LedgerError

Parse = Callable[[bytes], object]
UID = b"u" * 16
UUID = "0a1b2c3d-0000-4000-8000-000000000001"
# One column of every kind of type, nested ones too.
COLUMNS = (
    "flag boolean, tiny tinyint, n bigint, f float, d double, price decimal(10,2), wide decimal(38,4), t string, "
    "b binary, day date, at timestamp, local timestamp_ntz, clock time, took interval day to second, nothing void, "
    "tags array<string>, names map<string, int>, ids map<int, bigint>, point struct<x: double not null, y: double>"
)


@dataclass(frozen=True)
class Parser:
    """``seeds`` are valid inputs."""

    name: str
    parse: Parse
    seeds: Callable[[], list[bytes]]

    def check(self, data: bytes) -> bool:
        """Whether the input is valid. Whatever the parser raises but an error of this package goes on."""
        try:
            self.parse(data)
        except LedgerError as error:
            if not error.code.startswith("LEDGER_") or len(error.message) < 10:
                raise AssertionError(f"an error says what is wrong: {error}") from error
            return False
        return True


PARSERS: dict[str, Parser] = {}


def parser(name: str, *seeds: str | bytes) -> Callable[[Parse], Parse]:
    """A parser with short examples."""
    return parser_of(name, lambda: [seed.encode() if isinstance(seed, str) else seed for seed in seeds])


def parser_of(name: str, seeds: Callable[[], list[bytes]]) -> Callable[[Parse], Parse]:
    """A parser whose examples are made or read when they are needed."""

    def add(parse: Parse) -> Parse:
        assert name not in PARSERS, name
        PARSERS[name] = Parser(name, parse, cache(seeds))
        return parse

    return add


def text_of(data: bytes) -> str:
    """Text as a process gets it from its command line: what is no UTF-8 becomes lone surrogates."""
    return data.decode("utf-8", "surrogateescape")
