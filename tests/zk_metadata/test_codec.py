"""What is stored is what is read, for every field of every record, without naming one."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, make_dataclass, replace
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pyspark_ledger.base.limits import MOST_OPEN_COMMITS, MOST_SCHEMAS
from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.metadata.port import HeadKey, NamespaceKey
from pyspark_ledger.metadata.records import Head, Marker, Namespace
from pyspark_ledger.zk_metadata import codec, mapping
from pyspark_ledger.zk_metadata import records_pb2 as pb
from tests.support.records import KEYS, a_uuid, bare, filled, record_of, types_of

HEAD = HeadKey("u")
RECORDS = sorted({record_of(key) for key in KEYS}, key=lambda record: record.__name__)
every_key = pytest.mark.parametrize("key", KEYS, ids=lambda key: key.__name__)
every_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)


def taken_round(key, record):
    return codec.decode(key, codec.encode(key, record), "/path")


@every_key
@pytest.mark.parametrize("text", ["text {}".format, a_uuid], ids=["text", "uuid"])
def test_every_field_of_every_record_is_stored(key, text):
    record = filled(record_of(key), text)
    assert taken_round(filled(key), record) == record


@every_record
def test_those_records_have_no_field_left_at_its_default(record):
    full, empty = filled(record), bare(record)
    assert [field.name for field in fields(record) if getattr(full, field.name) == getattr(empty, field.name)] == []


@every_key
def test_a_record_with_nothing_set_is_stored_too(key):
    record = bare(record_of(key))
    assert taken_round(filled(key), record) == record


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    if is_dataclass(kind):
        return st.builds(kind, **{name: values_of(hint) for name, hint in types_of(kind).items()})
    if isinstance(kind, UnionType):
        return st.one_of(st.none() if each is NoneType else values_of(each) for each in get_args(kind))
    if get_origin(kind) is tuple:
        first, *others = get_args(kind)
        if others == [...]:
            return st.lists(values_of(first), max_size=3).map(tuple)
        return st.tuples(*map(values_of, get_args(kind)))
    made = {
        bool: st.booleans(),
        int: st.integers(0, 2**63 - 1),
        bytes: st.binary(max_size=20),
        str: st.one_of(st.text(max_size=10), st.uuids().map(str), st.uuids().map(lambda uuid: str(uuid).upper())),
    }
    return made[kind]


@every_record
@given(data=st.data())
def test_any_value_comes_back_as_it_was(record, data):
    key = filled(next(key for key in KEYS if record_of(key) is record))
    value = data.draw(values_of(record))
    if isinstance(value, Head):  # which is refused if it counts more than any topic has
        commits, schemas = value.next_commit % MOST_OPEN_COMMITS, value.schema_id % MOST_SCHEMAS
        value = replace(value, next_commit=value.ledger_first_commit + commits, schema_id=schemas)
        assume(value.next_commit < 1 << 63)
    assert taken_round(key, value) == value


# -- a record and its message ----------------------------------------------------------------------------------------


@every_record
def test_a_record_and_its_message_have_the_same_fields(record):
    mapping.converter(record, getattr(pb, record.__name__).DESCRIPTOR)  # a TypeError says what differs


HOLDER = {"id": bytes, "name": str, "since_ms": int}


@pytest.mark.parametrize(
    ("holder", "says"),
    [
        (HOLDER | {"host": str}, "Holder.host: message Holder has no field .host."),
        ({"id": bytes, "name": str}, r"message Holder has fields that Holder lacks: since_ms"),
        (HOLDER | {"since_ms": str}, r"Holder.since_ms does not fit Holder.since_ms: .*str.* protobuf type"),
        (HOLDER | {"name": str | None}, r"Holder.name does not fit Holder.name: .*needs a field that can be absent"),
        (HOLDER | {"id": tuple[bytes, ...]}, r"Holder.id does not fit Holder.id: .*tuple"),
    ],
    ids=["only in the record", "only in the message", "another type", "never absent", "not repeated"],
)
def test_a_record_that_does_not_match_its_message_is_refused_by_field(holder, says):
    with pytest.raises(TypeError, match=says):
        mapping.converter(make_dataclass("Holder", holder.items()), pb.Holder.DESCRIPTOR)


@pytest.mark.parametrize(
    ("group", "says"),
    [
        ({"operations": bytes}, "a repeated field needs a tuple of any length"),
        ({"partials": tuple[tuple[int, int], ...]}, "TokenGroup.partials does not fit .*int.* protobuf type"),
        ({"partials": tuple[tuple[int, bytes, int], ...]}, "a pair needs a message of two fields"),
        ({"partials": tuple[Namespace, ...]}, "Namespace.* cannot be stored in a message TokenPartial"),
    ],
)
def test_a_list_that_does_not_match_its_message_is_refused_by_field(group, says):
    types = types_of(record_of(next(key for key in KEYS if key.__name__ == "TokenGroupKey"))) | group
    with pytest.raises(TypeError, match=says):
        mapping.converter(make_dataclass("TokenGroup", types.items()), pb.TokenGroup.DESCRIPTOR)


# -- errors ----------------------------------------------------------------------------------------------------------


def test_a_key_takes_only_its_own_kind_of_record():
    with pytest.raises(TypeError, match=r"HeadKey.* holds a Head, not Marker"):
        codec.encode(HEAD, Marker())


def test_a_newer_format_is_refused_by_name():
    data = pb.Head(format=codec.FORMAT + 1).SerializeToString()
    with pytest.raises(InvalidInput, match=rf"LEDGER_NEWER_FORMAT.*/path has format {codec.FORMAT + 1}"):
        codec.decode(HEAD, data, "/path")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff\xff",
        pb.Head(format=codec.FORMAT, uuid={"uuid": b"short"}),
        pb.Head(format=codec.FORMAT, uuid={"uuid": b""}),
    ],
    ids=["nothing", "no message", "a uuid that is none", "an empty uuid"],
)
def test_bytes_that_are_no_record_are_corrupt(message):
    data = message if isinstance(message, bytes) else message.SerializeToString()
    with pytest.raises(CorruptData, match="node /path holds no valid Head"):
        codec.decode(HEAD, data, "/path")


def test_an_older_format_is_refused_by_name_with_the_command_that_brings_it_over():
    data = pb.Head(format=1).SerializeToString()
    with pytest.raises(
        InvalidInput, match=r"LEDGER_OLDER_FORMAT.*/path has format 1.*pyspark-ledger namespace upgrade"
    ):
        codec.decode(HEAD, data, "/path")


def test_nodes_from_before_a_field_was_there_have_its_default():
    old = pb.Namespace(format=codec.FORMAT, storage="/data", created_ms=7).SerializeToString()
    assert codec.decode(NamespaceKey(), old, "/path") == Namespace("/data", 7, deduplication=True)
