"""Whether a record fits a topic, decided when it is sent: a producer gathers many, and one that does not fit must not
keep the others from being stored.

Converting one value with Arrow takes longer than everything else that happens to a record, so each type has a quick
test for the Python values that surely fit it. Only what fails that test is converted, and Arrow has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.types as pat

from pyspark_ledger.errors import InvalidInput

QuickTest = Callable[[Any], int]  # about how many bytes the value takes; UNSURE: ask Arrow

UNSURE = -1
QUICK_LENGTH = 1 << 24  # longer texts are converted: Arrow has a limit
QUICK_ELEMENTS = 16  # longer lists too: for them Arrow is faster
_SAFE_ZONES = (type(None), timezone, ZoneInfo)  # a time zone of another class may raise
_LONGEST = timedelta(days=100_000_000)  # Arrow counts microseconds in 64 bits


class RecordCheck:
    """Takes records for a topic with this schema."""

    def __init__(self, schema: pa.Schema, topic: str) -> None:
        self.schema, self._topic = schema, topic
        self._tests = {field.name: quick_test(field.type) for field in schema}
        self._required = [field.name for field in schema if not field.nullable]
        self._nested = [field.name for field in schema if pat.is_nested(field.type)]

    def take(self, record: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """A copy of the record, and about how many bytes it takes. InvalidInput names the column that does not fit."""
        if not isinstance(record, Mapping):
            raise InvalidInput(
                f"a record for topic '{self._topic}' is a mapping of columns to values, not {_show(record)}",
                "LEDGER_INVALID_VALUE",
            )
        taken, size, tests = dict(record), 0, self._tests
        for name, value in taken.items():
            test = tests.get(name)
            if test is None:
                raise self._unknown(name)
            if value is not None:
                bytes_taken = test(value)
                size += self._convert(name, value) if bytes_taken == UNSURE else bytes_taken
        for name in self._required:
            if taken.get(name) is None:
                raise self._null(name)
        for name in self._nested:
            if name in taken:
                taken[name] = _copied(taken[name])
        return taken, size

    def _convert(self, name: str, value: Any) -> int:
        kind = self.schema.field(name).type
        try:
            array = pa.array([value], kind)
            why = None if array.null_count else _why_changed(kind, value, array[0].as_py(), name)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            why = str(error)
        if why is not None:
            raise self._misfit(name, kind, value, why)
        if array.null_count and name in self._required:  # a null of another library, such as pandas.NaT
            raise self._null(name)
        return int(array.nbytes)

    def _null(self, name: str) -> InvalidInput:
        return InvalidInput(
            f"column '{name}' is null, and topic '{self._topic}' does not allow null there", "LEDGER_NULL_NOT_ALLOWED"
        )

    def _unknown(self, name: object) -> InvalidInput:
        return InvalidInput(
            f"topic '{self._topic}' has no column '{name}': {', '.join(self.schema.names)}", "LEDGER_SCHEMA_MISMATCH"
        )

    def _misfit(self, name: str, kind: pa.DataType, value: Any, why: str) -> InvalidInput:
        return InvalidInput(
            f"column '{name}' of topic '{self._topic}' is {kind}, and {_show(value)} does not fit: {why}",
            "LEDGER_INVALID_VALUE",
        )


def quick_test(kind: pa.DataType) -> QuickTest:
    """Says how many bytes a value takes if it surely fits the type. Types are exact: a bool is no int."""
    if pat.is_integer(kind):
        return _integer(kind.bit_width)
    if pat.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pat.is_list(kind):
        return _list(quick_test(kind.value_type))
    if pat.is_struct(kind):
        return _struct({field.name: quick_test(field.type) for field in kind})
    for applies, test in _BY_TYPE:
        if applies(kind):
            return test
    return _unsure


def _integer(bits: int) -> QuickTest:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return lambda value: 8 if type(value) is int and low <= value <= high else UNSURE


def _decimal(precision: int, scale: int) -> QuickTest:
    def test(value: Any) -> int:
        if type(value) is not Decimal:
            return UNSURE
        _, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int) or -exponent > scale or len(digits) + exponent > precision - scale:
            return UNSURE
        return 16

    return test


def _list(element: QuickTest) -> QuickTest:
    def test(values: Any) -> int:
        if type(values) is not list or len(values) > QUICK_ELEMENTS:
            return UNSURE
        size = 4
        for value in values:
            if value is not None:
                bytes_taken = element(value)
                if bytes_taken == UNSURE:
                    return UNSURE
                size += bytes_taken
        return size

    return test


def _struct(children: dict[str, QuickTest]) -> QuickTest:
    def test(values: Any) -> int:
        if type(values) is not dict:
            return UNSURE
        size = 1
        for name, value in values.items():
            child = children.get(name)
            if child is None:
                return UNSURE
            if value is not None:
                bytes_taken = child(value)
                if bytes_taken == UNSURE:
                    return UNSURE
                size += bytes_taken
        return size

    return test


def _text(value: Any) -> int:
    if type(value) is not str or len(value) > QUICK_LENGTH:
        return UNSURE
    if value.isascii():
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError:  # half of a character
        return UNSURE


def _timestamp(value: Any) -> int:
    return 8 if type(value) is datetime and type(value.tzinfo) in _SAFE_ZONES else UNSURE


def _float(value: Any) -> int:
    return 8 if type(value) is float else UNSURE


def _small_float(value: Any) -> int:
    return 4 if type(value) is float and -1e38 < value < 1e38 else UNSURE


def _bool(value: Any) -> int:
    return 1 if type(value) is bool else UNSURE


def _bytes(value: Any) -> int:
    return len(value) if type(value) is bytes and len(value) <= QUICK_LENGTH else UNSURE


def _date(value: Any) -> int:
    return 4 if type(value) is date else UNSURE


def _time(value: Any) -> int:
    return 8 if type(value) is time and value.tzinfo is None else UNSURE


def _duration(value: Any) -> int:
    return 8 if type(value) is timedelta and -_LONGEST < value < _LONGEST else UNSURE


def _unsure(value: Any) -> int:
    return UNSURE


_BY_TYPE: list[tuple[Callable[[pa.DataType], bool], QuickTest]] = [
    (pat.is_string, _text),
    (pat.is_float64, _float),
    (pat.is_float32, _small_float),
    (pat.is_boolean, _bool),
    (pat.is_binary, _bytes),
    (pat.is_timestamp, _timestamp),
    (pat.is_date32, _date),
    (pat.is_time, _time),
    (pat.is_duration, _duration),
]


def _why_changed(kind: pa.DataType, value: Any, stored: Any, path: str) -> str | None:
    """What Arrow would change or leave out without a word; None: nothing."""
    if pat.is_integer(kind) and stored != value:
        return f"{path} would be stored as {stored}"
    if pat.is_floating(kind) and stored is not None and math.isinf(stored) and not math.isinf(value):
        return f"{path} is too large"
    if pat.is_struct(kind) and isinstance(value, Mapping):
        fields = {field.name: field.type for field in kind}
        for name, child in value.items():
            inside = f"{path}.{name}"
            if name not in fields:
                return f"there is no {inside}"
            if why := _why_changed(fields[name], child, stored[name], inside):
                return why
    elif pat.is_list(kind) and isinstance(value, list | tuple):
        for item, kept in zip(value, stored, strict=True):
            if why := _why_changed(kind.value_type, item, kept, path):
                return why
    return None


def _copied(value: Any) -> Any:
    """Lists and dicts anew: the caller may change theirs before the record is written."""
    if type(value) is list or type(value) is tuple:
        return type(value)(_copied(item) for item in value)
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
