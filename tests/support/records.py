"""Records made from their types, so that a field that is added later is covered without being named."""

from __future__ import annotations

import builtins
import uuid
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from itertools import count
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pyspark_ledger.metadata import port

KEYS = get_args(port.AnyKey)


def record_of(key: type) -> type:
    """The kind of record that a kind of key names."""
    [record] = get_args(key.__orig_bases__[0])
    return record


def types_of(kind: type) -> dict[str, Any]:
    """The fields of a dataclass. A field called "bytes" does not hide the type."""
    return get_type_hints(kind, localns=vars(builtins))


def a_uuid(number: int) -> str:
    return str(uuid.UUID(int=number))


def filled(kind: Any, text: Callable[[int], str] = "text {}".format, numbers: Iterator[int] | None = None) -> Any:
    """A value with every field set: none has its default, and no two are equal (but flags)."""
    numbers = numbers or count(1)
    if is_dataclass(kind):
        values = {name: filled(hint, text, numbers) for name, hint in types_of(kind).items()}
        flags = {field.name: not field.default for field in fields(kind) if isinstance(field.default, bool)}
        return kind(**values | flags)
    if isinstance(kind, UnionType):
        [kind] = [each for each in get_args(kind) if each is not NoneType]
        return filled(kind, text, numbers)
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        return tuple(filled(each, text, numbers) for each in (kinds[:1] * 2 if kinds[-1] is ... else kinds))
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    number = next(numbers)
    made = {bool: True, int: number, str: text(number), bytes: number.to_bytes(16)}
    return made[kind]


def bare(kind: Any) -> Any:
    """A value with nothing set: zeros, and nothing where there may be nothing."""
    if is_dataclass(kind):
        required = {field.name for field in fields(kind) if field.default is MISSING}
        return kind(**{name: bare(hint) for name, hint in types_of(kind).items() if name in required})
    return get_args(kind)[0] if get_origin(kind) is Literal else (get_origin(kind) or kind)()
