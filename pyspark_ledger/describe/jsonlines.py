"""JSON lines, and cells of a table, as records, for every type a topic can have. What ``files.jsonrows`` writes is read
back the same."""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, localcontext
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.types as pat

from pyspark_ledger.describe.ddl import type_name
from pyspark_ledger.errors import InvalidInput

Convert = Callable[[Any], Any]
_SECONDS = re.compile(r"PT(-?[0-9]{1,30}(?:\.[0-9]{1,6})?)S")
_LARGEST = sys.float_info.max
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Decoder:
    """Turns JSON or cells of a table into a record that fits a topic. InvalidInput names the column and what is wrong
    with it."""

    def __init__(self, schema: pa.Schema, *, without: Collection[str] = ()) -> None:
        """``without``: names that are passed over, unless the topic has columns of these names."""
        self._without = {name for name in without if name not in schema.names}
        self._fields = {field.name: _decode(field) for field in schema}
        self._cells = {field.name: _cell(field.type) for field in schema}
        self._required = [field.name for field in schema if not field.nullable]

    def line(self, text: str) -> dict[str, Any]:
        """One JSON object."""
        try:
            value = json.loads(text, parse_float=Decimal)  # a float would already have lost a decimal's digits
        except (ValueError, ArithmeticError, RecursionError) as error:
            raise InvalidInput(f"this is no JSON: {error}", "LEDGER_INVALID_VALUE") from None
        if not isinstance(value, dict):
            raise InvalidInput("a JSON object was expected, column -> value", "LEDGER_INVALID_VALUE")
        return self.record(value)

    def cells(self, names: list[str], cells: list[str]) -> dict[str, Any]:
        """One row of a table. An empty cell is null."""
        if len(cells) != len(names):
            raise InvalidInput(f"{len(cells)} cells for {len(names)} columns", "LEDGER_INVALID_VALUE")
        named = [(name, cell) for name, cell in zip(names, cells, strict=True) if name not in self._without]
        return self.record({name: self._cells[name](cell) if cell else None for name, cell in named})

    def record(self, value: Mapping[str, Any]) -> dict[str, Any]:
        self._check(value)
        record = {}
        for name, given in value.items():
            if name in self._without:
                continue
            try:
                record[name] = self._fields[name](given)
            except (ValueError, RecursionError) as error:
                raise InvalidInput(f"column '{name}': {error}", "LEDGER_INVALID_VALUE") from None
        for name in self._required:
            if record.get(name) is None:
                raise InvalidInput(f"column '{name}' is missing or null, and must not be", "LEDGER_NULL_NOT_ALLOWED")
        return record

    def header(self, names: list[str]) -> list[str]:
        """The columns of a table."""
        self._check(names)
        if len(set(names)) < len(names):
            raise InvalidInput(f"a column is named twice: {', '.join(names)}", "LEDGER_SCHEMA_MISMATCH")
        return names

    def _check(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._fields and name not in self._without:
                near = difflib.get_close_matches(name, self._fields, 1)
                hint = f" (did you mean '{near[0]}'?)" if near else ""
                raise InvalidInput(
                    f"the topic has no column '{name}'{hint}: {', '.join(self._fields)}", "LEDGER_SCHEMA_MISMATCH"
                )


def _decode(field: pa.Field) -> Convert:
    """Raises ValueError."""
    convert, nullable = _decode_value(field.type), field.nullable

    def decode(value: Any) -> Any:
        if value is None:
            if not nullable:
                raise ValueError("null is not allowed")
            return None
        return convert(value)

    return decode


def _decode_value(kind: pa.DataType) -> Convert:
    if pat.is_struct(kind):
        return partial(_struct, {field.name: _decode(field) for field in kind})
    if pat.is_map(kind):
        return partial(_map, _decode(kind.key_field), _decode(kind.item_field))
    if pat.is_list(kind):
        return partial(_list, _decode(kind.value_field))
    if pat.is_integer(kind):
        return partial(_integer, type_name(kind), 1 << (kind.bit_width - 1))
    if pat.is_decimal(kind):
        return partial(_decimal, kind.precision, kind.scale)
    if pat.is_timestamp(kind):
        return partial(_timestamp, kind.tz is not None)
    return next(convert for is_kind, convert in _SIMPLE if is_kind(kind))


def _cell(kind: pa.DataType) -> Convert:
    """The text of a cell as JSON would have it; text that makes no sense is left for the decoder to refuse."""
    if pat.is_boolean(kind) or pat.is_nested(kind):
        parse: Convert = partial(json.loads, parse_float=Decimal)
    elif pat.is_integer(kind):
        parse = int
    elif pat.is_floating(kind):
        parse = Decimal
    else:
        return str

    def convert(text: str) -> Any:
        try:
            return parse(text.lower() if pat.is_boolean(kind) else text)
        except (ValueError, ArithmeticError, RecursionError):
            return text

    return convert


def _refuse(value: Any, what: str) -> NoReturn:
    shown = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False, default=str)
    raise ValueError(f"{shown} is no {what}")


def _struct(fields: dict[str, Convert], value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(value, "object")
    for name in value:
        if name not in fields:
            raise ValueError(f"there is no field '{name}': {', '.join(fields)}")
    return {name: decode(value.get(name)) for name, decode in fields.items()}


def _map(key: Convert, item: Convert, value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        value = list(value.items())
    if not isinstance(value, list) or any(not isinstance(pair, list | tuple) or len(pair) != 2 for pair in value):
        _refuse(value, "object or list of pairs")
    return [(key(k), item(v)) for k, v in value]


def _list(element: Convert, value: Any) -> list[Any]:
    return [element(each) for each in value] if isinstance(value, list) else _refuse(value, "list")


def _integer(name: str, limit: int, value: Any) -> int:
    # 1e3 is a whole number, and so is 1e999999999: to make an int of that one takes minutes.
    if isinstance(value, Decimal) and -limit <= value < limit and value == value.to_integral_value():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
        _refuse(value, name)
    return value


def _float(value: Any) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if not isinstance(value, int | Decimal) or isinstance(value, bool):
        _refuse(value, "number")
    if isinstance(value, Decimal) and not value.is_finite():  # of a table, which may have NaN without quotes
        return float(value)
    return float(value) if -_LARGEST <= value <= _LARGEST else _refuse(value, "number of a double's size")


def _decimal(precision: int, scale: int, value: Any) -> Decimal:
    what = f"decimal({precision},{scale})"
    if not isinstance(value, str | int | Decimal) or isinstance(value, bool):
        _refuse(value, what)
    try:
        with localcontext(prec=100):  # more digits than any decimal has: otherwise 28 are the most
            number = Decimal(value)
            fits = number == round(number, scale) and abs(number) < Decimal(10) ** (precision - scale)
    except (ArithmeticError, ValueError):  # no number, or none that is finite
        fits = False
    return number if fits else _refuse(value, what)


def _timestamp(zoned: bool, value: Any) -> datetime:
    """Without an offset it is UTC."""
    moment = _iso(datetime.fromisoformat, "time in ISO 8601", value)
    assert isinstance(moment, datetime)
    if zoned:
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment.tzinfo:
        _refuse(value, "local time: leave the offset out")
    return moment


def _iso(parse: Callable[[str], Any], what: str, value: Any) -> Any:
    try:
        return parse(value)
    except (ValueError, TypeError):
        _refuse(value, what)


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError):
        _refuse(value, "base64")


def _duration(value: Any) -> timedelta:
    match = _SECONDS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        _refuse(value, "duration as PT1.5S")
    try:
        return timedelta(microseconds=int(Decimal(match[1]).scaleb(6)))
    except OverflowError:
        _refuse(value, "duration of less than a billion days")


def _of(python: type, what: str) -> Convert:
    return lambda value: value if isinstance(value, python) else _refuse(value, what)


_SIMPLE: list[tuple[Callable[[pa.DataType], bool], Convert]] = [
    (pat.is_boolean, _of(bool, "boolean")),
    (pat.is_floating, _float),
    (pat.is_string, _of(str, "string")),
    (pat.is_binary, _bytes),
    (pat.is_date, partial(_iso, date.fromisoformat, "date as 2026-01-31")),
    (pat.is_time, partial(_iso, time.fromisoformat, "time as 12:30:00")),
    (pat.is_duration, _duration),
    (pat.is_null, partial(_refuse, what="null")),
]
