"""How records map to protobuf messages, derived from the fields of both.

A record class is stored in the message of the same name, and each field in the message's field of the same name. The
few differences are listed below. A record and a message that do not match are refused, so a field that was added to
only one of them cannot get lost.
"""

from __future__ import annotations

import builtins
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter, not_
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, FieldDescriptor

# Fields with another name in the message. In generated stubs "bytes" would hide the type; the names of the others were
# improved after the messages were defined.
RENAMED = {
    "bytes": "size",
    "bytes_before": "size_before",
    "last_backward_revision": "rewound",
    "past_revisions": "pasts",
}

# Records with another name than their message, for the same reason.
RENAMED_RECORDS = {"PastRevision": "Past", "OldPolicies": "Policies"}

# Flags that are stored as their opposite, so that nodes from before the field was added are read as True.
INVERTED = {"Namespace.deduplication": "no_deduplication"}

# The message for a str that is nearly always a UUID: 16 bytes instead of 36.
NAME = "Name"

# A field of every message that is a whole node. It belongs to the codec, not to the record.
FORMAT = "format"

_PLAIN = {
    bool: {FieldDescriptor.TYPE_BOOL},
    bytes: {FieldDescriptor.TYPE_BYTES},
    str: {FieldDescriptor.TYPE_STRING},
    int: {FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_FIXED64},
}
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Convert = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Converter:
    """``dump`` makes what a message's constructor takes (for a record a dict), ``load`` what a record's takes."""

    dump: Convert = _same
    load: Convert = _same


@dataclass(frozen=True, slots=True)
class _Field:
    attribute: str  # of the record
    name: str  # in the message
    optional: bool  # may be None in the record: then absent in the message
    converter: Converter


@cache
def converter(record: Any, message: Descriptor) -> Converter:
    """For a record class and its message. A TypeError says what does not match.

    Each way is one expression over all fields, put together as source: as fast as if it were written by hand, which
    a loop over the fields is not.
    """
    found = _fields(record, message)
    scope = {"record": record}
    for field in found:
        scope |= {f"dump_{field.name}": field.converter.dump, f"load_{field.name}": field.converter.load}
    dumps = ", ".join(f"'{field.name}': {_dump_source(field)}" for field in found)
    loads = ", ".join(_load_source(field) for field in found)
    return Converter(eval(f"lambda value: {{{dumps}}}", scope), eval(f"lambda stored: record({loads})", scope))


def _dump_source(field: _Field) -> str:
    value = f"value.{field.attribute}"
    dumped = value if field.converter.dump is _same else f"dump_{field.name}({value})"
    return f"None if {value} is None else {dumped}" if field.optional else dumped


def _load_source(field: _Field) -> str:
    stored = f"stored.{field.name}"
    loaded = stored if field.converter.load is _same else f"load_{field.name}({stored})"
    return f"{loaded} if stored.HasField('{field.name}') else None" if field.optional else loaded


def _fields(record: Any, message: Descriptor) -> list[_Field]:
    hints = get_type_hints(record, localns=vars(builtins))  # else a field called "bytes" would hide the type
    found = [_field(record, field.name, hints[field.name], message) for field in fields(record)]
    unknown = set(message.fields_by_name) - {field.name for field in found} - {FORMAT}
    if unknown:
        raise TypeError(f"message {message.name} has fields that {record.__name__} lacks: {', '.join(sorted(unknown))}")
    return found


def _field(record: Any, attribute: str, hint: Any, message: Descriptor) -> _Field:
    inverted = INVERTED.get(f"{record.__name__}.{attribute}")
    name = inverted or RENAMED.get(attribute, attribute)
    stored = message.fields_by_name.get(name)
    if stored is None:
        raise TypeError(f"{record.__name__}.{attribute}: message {message.name} has no field '{name}'")
    try:
        kind, optional = _without_none(hint, stored)
        found = _of_field(kind, stored)
    except TypeError as error:
        raise TypeError(f"{record.__name__}.{attribute} does not fit {message.name}.{name}: {error}") from None
    return _Field(attribute, name, optional, Converter(not_, not_) if inverted else found)


def _without_none(hint: Any, field: FieldDescriptor) -> tuple[Any, bool]:
    """``int`` and True for ``int | None``."""
    if not isinstance(hint, UnionType):
        return hint, False
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if len(kinds) != 1 or not field.has_presence:
        raise TypeError(f"'{hint}' needs a field that can be absent")
    return kinds[0], True


def _of_field(kind: Any, field: FieldDescriptor) -> Converter:
    """One value, or a tuple of any length."""
    if not field.is_repeated:
        found = _of_value(kind, field)
        return _NAME_OR_ABSENT if found is _NAME else found
    if get_origin(kind) is not tuple or get_args(kind)[1:] != (...,):
        raise TypeError(f"a repeated field needs a tuple of any length, not '{kind}'")
    return _repeated(_of_value(get_args(kind)[0], field))


def _repeated(item: Converter) -> Converter:
    if item.load is _same:
        return Converter(load=tuple)
    dump, load = item.dump, item.load
    return Converter(
        lambda values: [dump(value) for value in values], lambda values: tuple([load(value) for value in values])
    )


def _of_value(kind: Any, field: FieldDescriptor) -> Converter:
    message = field.message_type
    if message is None:
        if field.type not in _PLAIN.get(kind, ()):
            raise TypeError(f"'{kind}' cannot be stored in a field of protobuf type {field.type}")
        return Converter()
    if kind is str and message.name == NAME:
        return _NAME
    if get_origin(kind) is tuple:
        return _pair(get_args(kind), message)
    name = getattr(kind, "__name__", "")
    if RENAMED_RECORDS.get(name, name) != message.name:
        raise TypeError(f"'{kind}' cannot be stored in a message {message.name}")
    return converter(kind, message)


def _pair(kinds: tuple[Any, ...], message: Descriptor) -> Converter:
    """A pair of plain values is a message of two fields, in their order."""
    if len(kinds) != 2 or len(message.fields) != 2:
        raise TypeError(f"a pair needs a message of two fields, not {message.name}")
    if any(_of_field(kind, field) != Converter() for kind, field in zip(kinds, message.fields, strict=True)):
        raise TypeError("a pair can only hold plain values")
    first, second = (field.name for field in message.fields)
    return Converter(lambda pair: {first: pair[0], second: pair[1]}, attrgetter(first, second))


def _dump_name(text: str) -> dict[str, Any]:
    return {"uuid": bytes.fromhex(text.replace("-", ""))} if _UUID.fullmatch(text) else {"text": text}


def _load_name(name: Any) -> str:
    return str(uuid.UUID(bytes=name.uuid)) if name.HasField("uuid") else name.text


_NAME = Converter(_dump_name, _load_name)  # in a list even an empty name has its place
_NAME_OR_ABSENT = Converter(lambda text: _dump_name(text) if text else None, _load_name)
