"""Records as JSON, for every type a topic can have: as the command line prints them, and a dead letter keeps its row.

Bytes are base64, decimals strings, times ISO 8601, numbers that JSON does not have the strings ``NaN``, ``Infinity``
and ``-Infinity``. A map is an object if its keys are strings, else a list of pairs.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

Convert = Callable[[Any], Any]


def encoder(schema: pa.Schema) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Turns a record into what ``json.dumps`` takes."""
    return _encode_struct({field.name: _encode(field.type) for field in schema})


def _encode_struct(fields: dict[str, Convert]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return lambda value: {name: encode(value[name]) for name, encode in fields.items() if name in value}


def _encode(kind: pa.DataType) -> Convert:
    """Of one type, null or not."""
    convert = _encode_value(kind)
    return lambda value: None if value is None else convert(value)


def _encode_value(kind: pa.DataType) -> Convert:
    if pat.is_struct(kind):
        return _encode_struct({field.name: _encode(field.type) for field in kind})
    if pat.is_map(kind):
        return partial(_encode_map, _encode(kind.key_type), _encode(kind.item_type), pat.is_string(kind.key_type))
    if pat.is_list(kind):
        element = _encode(kind.value_type)
        return lambda value: [element(each) for each in value]
    if pat.is_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if pat.is_decimal(kind):
        return str
    if pat.is_floating(kind):
        return lambda value: value if math.isfinite(value) else _spell(value)
    if pat.is_duration(kind):
        return lambda value: f"PT{Decimal(value // timedelta(microseconds=1)).scaleb(-6).normalize():f}S"
    if pat.is_temporal(kind):
        return lambda value: value.isoformat()
    return lambda value: value


def _spell(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _encode_map(key: Convert, item: Convert, named: bool, value: list[tuple[Any, Any]]) -> Any:
    pairs = [[key(k), item(v)] for k, v in value]
    return dict(pairs) if named and len({k for k, _ in pairs}) == len(pairs) else pairs
