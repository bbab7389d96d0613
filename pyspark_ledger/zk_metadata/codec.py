"""Records as protobuf bytes, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_args

from google.protobuf.message import DecodeError

from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.metadata import port
from pyspark_ledger.metadata.records import Marker, Namespace, NodeRecord
from pyspark_ledger.zk_metadata import mapping, paths
from pyspark_ledger.zk_metadata import records_pb2 as pb
from pyspark_ledger.zk_metadata.raw import NodeAt, Raw

FORMAT = 2
# Of the namespace's record once it has roles: code that does not know of them would make nodes that are open to
# everybody, and so is to refuse the namespace.
FORMAT_WITH_ROLES = 3

R = TypeVar("R", bound=NodeRecord)


@dataclass(frozen=True, slots=True)
class _Kind:
    record: type
    message: Any  # the class that protobuf generated
    dump: mapping.Convert
    load: mapping.Convert  # ValueError if it is none


def encode(key: port.Key[Any], record: NodeRecord | Raw) -> bytes:
    if isinstance(record, Raw):
        return record.data
    kind = _KINDS[type(key)]
    if not isinstance(record, kind.record):
        raise TypeError(f"{key!r} holds a {kind.record.__name__}, not {record!r}")
    return cast(bytes, kind.message(format=_format_for(record), **kind.dump(record)).SerializeToString())


def _format_for(record: NodeRecord) -> int:
    return FORMAT_WITH_ROLES if isinstance(record, Namespace) and record.roles else FORMAT


def decode(key: port.Key[R], data: bytes, path: str, oldest: int = FORMAT) -> R:
    """``path`` is only for the error messages; ``oldest`` is the oldest format that the caller takes."""
    if isinstance(key, NodeAt):
        return cast(R, Raw(data))
    kind = _KINDS[type(key)]
    return cast(R, load(kind.message, kind.load, data, path, oldest))


def load(message: Any, convert: mapping.Convert, data: bytes, path: str, oldest: int = FORMAT) -> Any:
    """What ``convert`` makes of the message that the bytes hold."""
    try:
        found = message.FromString(data)
        _check_format(found.format, path, oldest, FORMAT_WITH_ROLES if message is pb.Namespace else FORMAT)
        return convert(found)
    except (DecodeError, ValueError) as error:
        raise CorruptData(f"node {path} holds no valid {message.DESCRIPTOR.name}: {error}") from error


def format_of(data: bytes, path: str) -> int:
    """The format of any record."""
    message = pb.Namespace if path == paths.NAMESPACE else pb.Marker
    return cast(int, load(message, lambda message: message.format, data, path, oldest=1))


def _check_format(found: int, path: str, oldest: int, newest: int) -> None:
    if found > newest:
        raise InvalidInput(
            f"node {path} has format {found}, this version knows {newest}: upgrade pyspark-ledger",
            "LEDGER_NEWER_FORMAT",
        )
    if found < 1:  # what empty or foreign bytes look like
        raise ValueError("the format version is missing")
    if found < oldest:
        raise InvalidInput(
            f"node {path} has format {found}, this version needs {FORMAT}: stop everything that uses the namespace, "
            "then run 'pyspark-ledger namespace upgrade' once (docs/upgrading.md)",
            "LEDGER_OLDER_FORMAT",
        )


class _Kinds(dict[type[port.Key[Any]], _Kind]):
    """By the class of the key, which says what record it holds, as in ``class HeadKey(Key[Head])``. The message has
    the record's name. Each is made when it is first needed."""

    def __missing__(self, key: Any) -> _Kind:
        [record] = get_args(key.__orig_bases__[0])
        message = getattr(pb, record.__name__)
        converter = mapping.converter(record, message.DESCRIPTOR)
        load = _checked(converter.load) if hasattr(record, "check") else converter.load
        kind = self[key] = _Kind(record, message, converter.dump, load)
        return kind


def _checked(load: mapping.Convert) -> mapping.Convert:
    def loaded(message: Any) -> Any:
        record = load(message)
        record.check()
        return record

    return loaded


_KINDS = _Kinds()

MARKER = encode(port.TopicsKey(), Marker())
