"""Records as protobuf bytes, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_args

from google.protobuf.message import DecodeError

from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.metadata import port
from pyspark_ledger.metadata.records import Marker, NodeRecord
from pyspark_ledger.zk_metadata import mapping
from pyspark_ledger.zk_metadata import records_pb2 as pb

FORMAT = 1

R = TypeVar("R", bound=NodeRecord)


@dataclass(frozen=True, slots=True)
class _Kind:
    record: type
    message: Any  # the class that protobuf generated
    dump: mapping.Convert
    load: mapping.Convert


def encode(key: port.Key[Any], record: NodeRecord) -> bytes:
    kind = _KINDS[type(key)]
    if not isinstance(record, kind.record):
        raise TypeError(f"{key!r} holds a {kind.record.__name__}, not {record!r}")
    return cast(bytes, kind.message(format=FORMAT, **kind.dump(record)).SerializeToString())


def decode(key: port.Key[R], data: bytes, path: str) -> R:
    """``path`` is only for the error messages."""
    kind = _KINDS[type(key)]
    try:
        message = kind.message.FromString(data)
        _check_format(message.format, path)
        return cast(R, kind.load(message))
    except (DecodeError, ValueError) as error:
        raise CorruptData(f"node {path} holds no valid {kind.record.__name__}: {error}") from error


def _check_format(found: int, path: str) -> None:
    if found > FORMAT:
        raise InvalidInput(
            f"node {path} has format {found}, this version knows {FORMAT}: upgrade pyspark-ledger",
            "LEDGER_NEWER_FORMAT",
        )
    if found < 1:  # what empty or foreign bytes look like
        raise ValueError("the format version is missing")


class _Kinds(dict[type[port.Key[Any]], _Kind]):
    """By the class of the key, which says what record it holds, as in ``class HeadKey(Key[Head])``. The message has
    the record's name. Each is made when it is first needed."""

    def __missing__(self, key: Any) -> _Kind:
        [record] = get_args(key.__orig_bases__[0])
        message = getattr(pb, record.__name__)
        converter = mapping.converter(record, message.DESCRIPTOR)
        kind = self[key] = _Kind(record, message, converter.dump, converter.load)
        return kind


_KINDS = _Kinds()

MARKER = encode(port.TopicsKey(), Marker())
