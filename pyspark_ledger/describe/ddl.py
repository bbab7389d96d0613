"""Schemas as SQL writes them, without Spark: ``order_id bigint NOT NULL, lines array<struct<sku: string, n: int>>``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

import pyarrow as pa
import pyarrow.types as pat

from pyspark_ledger.errors import InvalidInput

_SIMPLE = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("ns"),
    "interval day to second": pa.duration("us"),
    "void": pa.null(),
}
_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_DECIMALS = ("decimal", "dec", "numeric")
_DEPTH = 100  # of types inside types: Arrow files hold no more either
_TOKEN = re.compile(r"`(?:[^`]|``)+`|\w+|\S")
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")
T = TypeVar("T")


def parse(text: str) -> pa.Schema:
    """InvalidInput says where it stops making sense."""
    if not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInput("the schema has characters that are no UTF-8", "LEDGER_INVALID_SCHEMA")
    parser = _Parser(text)
    fields = parser.list_of(parser.column)
    parser.end()
    return pa.schema(fields)


class _Parser:
    """By recursive descent, over tokens."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_TOKEN.finditer(text))
        self._at = self._depth = 0

    def column(self) -> pa.Field:
        """``name type`` or ``name: type``, perhaps NOT NULL."""
        name = self._take(r"(?s:`.+`)|\w+", "a column's name (in `backticks` if it is unusual)")
        self._accept(":")
        kind = self.type()
        nullable = not self._accept("not")
        if not nullable:
            self._expect("null")
        return pa.field(name[1:-1].replace("``", "`") if name.startswith("`") else name, kind, nullable)

    def type(self) -> pa.DataType:
        if self._accept("array"):
            return pa.list_(pa.field("element", self._inside(self.type)))
        if self._accept("map"):
            return pa.map_(*self._inside(self._pair))
        if self._accept("struct"):
            return pa.struct(self._inside(lambda: self.list_of(self.column)))
        if any(map(self._accept, _DECIMALS)):
            return self._decimal()
        if self._accept("interval"):
            for word in ("day", "to", "second"):
                self._expect(word)
            return _SIMPLE["interval day to second"]
        known = "|".join((*_SIMPLE, *_ALIASES))
        known = f"(?a:{known})"  # or IGNORECASE would take "ſtring" for a string
        word = self._take(known, f"a type: {', '.join(_SIMPLE)}, decimal(p,s), array<>, map<,> or struct<>").lower()
        return _SIMPLE[_ALIASES.get(word, word)]

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._accept("("):
            precision = int(self._take(r"[1-9]|[12][0-9]|3[0-8]", "a number of digits from 1 to 38"))
            scale = int(self._take(r"[0-9]{1,2}", "a number of digits after the point")) if self._accept(",") else 0
            if scale > precision:
                self._fail(f"at most {precision} digits after the point")
            self._expect(")")
        return pa.decimal128(precision, scale)

    def _pair(self) -> tuple[pa.DataType, pa.DataType]:
        key = self.type()
        self._expect(",")
        return key, self.type()

    def list_of(self, part: Callable[[], T]) -> list[T]:
        parts = [part()]
        while self._accept(","):
            parts.append(part())
        return parts

    def _inside(self, part: Callable[[], T]) -> T:
        self._expect("<")
        self._depth += 1
        if self._depth > _DEPTH:
            self._fail(f"at most {_DEPTH} types inside one another, and not another one")
        inner = part()
        self._depth -= 1
        self._expect(">")
        return inner

    def end(self) -> None:
        if self._at < len(self._tokens):
            self._fail("',' or the end")

    def _accept(self, word: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at][0].lower() == word
        self._at += found
        return found

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            self._fail(f"'{word}'")

    def _take(self, pattern: str, what: str) -> str:
        token = self._tokens[self._at][0] if self._at < len(self._tokens) else ""
        if not re.fullmatch(pattern, token, re.IGNORECASE):
            self._fail(what)
        self._at += 1
        return token

    def _fail(self, what: str) -> NoReturn:
        rest = self._text[self._tokens[self._at].start() :] if self._at < len(self._tokens) else ""
        where = f"at '{rest[:20]}'" if rest else "at its end"
        raise InvalidInput(f"the schema '{self._text}' should have {what} {where}", "LEDGER_INVALID_SCHEMA")


def type_name(kind: pa.DataType) -> str:
    """An Arrow type of a topic, as SQL writes it."""
    if pat.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pat.is_map(kind):
        return f"map<{type_name(kind.key_type)}, {type_name(kind.item_type)}>"
    if pat.is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if pat.is_struct(kind):
        return f"struct<{', '.join(_inner(field) for field in kind)}>"
    return next((name for name, simple in _SIMPLE.items() if simple.equals(kind)), str(kind))


def _inner(field: pa.Field) -> str:
    return f"{_quoted(field.name)}: {type_name(field.type)}{'' if field.nullable else ' not null'}"


def ddl(schema: pa.Schema) -> str:
    """What :func:`parse` takes back."""
    return ", ".join(
        f"{_quoted(field.name)} {type_name(field.type)}{'' if field.nullable else ' not null'}" for field in schema
    )


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"
