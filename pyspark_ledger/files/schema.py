"""What a topic's records look like, and whether a batch fits.

A topic's schema uses one canonical Arrow type for each type that Spark knows, so that what was written by
Python and by Spark, in any session time zone, is the same on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from pyspark_ledger.errors import InvalidInput, damage

_AS_IT_IS = (
    pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
    pa.string(), pa.binary(), pa.date32(),
)  # fmt: skip


# Columns that files have in addition to the topic's.
SEQUENCE = "ledger.sequence"  # sequence ids that are not in the payload
HIDDEN = pa.schema(
    [
        pa.field("ledger.ledger", pa.int64(), False),  # where a compacted record was,
        pa.field("ledger.entry", pa.int64(), False),
        pa.field("ledger.index", pa.int64(), False),
        pa.field("ledger.published", pa.int64(), False),  # when it was published,
        pa.field("ledger.producer", pa.string()),  # by whom,
        pa.field(SEQUENCE, pa.int64()),  # under which sequence id,
        pa.field("ledger.tombstone", pa.bool_(), False),  # whether it says that its key is gone,
        pa.field("ledger.ordinal", pa.int64()),  # and how many records were before it; null or absent: not noted then
    ]
)
LEDGER, ENTRY, INDEX, PUBLISHED, PRODUCER, _, TOMBSTONE, ORDINAL = HIDDEN.names
_OWN_SEQUENCE = pa.field(SEQUENCE, pa.int64(), nullable=False)  # in an entry file


def canonical(schema: pa.Schema) -> pa.Schema:
    """The schema as a topic stores it. InvalidInput names a column that Spark could not read."""
    if len(schema) == 0:
        raise InvalidInput("a topic needs at least one column", "LEDGER_INVALID_SCHEMA")
    for name in schema.names:
        if name in HIDDEN.names:
            raise InvalidInput(f"the column name '{name}' is reserved: rename it", "LEDGER_INVALID_SCHEMA")
    folded: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in folded:
            raise InvalidInput(
                f"the columns '{folded[name.lower()]}' and '{name}' differ in case at most; Spark could not tell them "
                "apart: rename one",
                "LEDGER_INVALID_SCHEMA",
            )
        folded[name.lower()] = name
    return pa.schema([canonical_field(field, field.name) for field in schema])


def canonical_field(field: pa.Field, path: str) -> pa.Field:
    return pa.field(field.name, canonical_type(field.type, path), field.nullable, field.metadata)


def canonical_type(kind: pa.DataType, path: str) -> pa.DataType:
    if kind in _AS_IT_IS or pat.is_decimal128(kind):
        return kind
    if pat.is_large_string(kind) or pat.is_string_view(kind):
        return pa.string()
    if pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind) or pat.is_binary_view(kind):
        return pa.binary()
    if pat.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pat.is_duration(kind):
        return pa.duration("us")
    if pat.is_time(kind):
        return pa.time64("ns")
    if pat.is_dictionary(kind):
        return canonical_type(kind.value_type, path)
    if pat.is_map(kind):
        return pa.map_(
            canonical_field(kind.key_field, f"{path}.key").with_name("key").with_nullable(False),
            canonical_field(kind.item_field, f"{path}.value").with_name("value"),
        )
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return pa.list_(canonical_field(kind.value_field, f"{path}.element").with_name("element"))
    if pat.is_struct(kind):
        return pa.struct([canonical_field(child, f"{path}.{child.name}") for child in kind])
    raise InvalidInput(
        f"column '{path}' has the Arrow type {kind}, which Spark does not know: cast it first",
        "LEDGER_INVALID_SCHEMA",
    )


def merge(topic: pa.Schema, incoming: pa.Schema, *, may_add: bool) -> pa.Schema:
    """The topic's schema after a batch with this (canonical) schema; the same object if nothing changes.

    InvalidInput shows every difference at once.
    """
    problems: list[str] = []
    added: list[pa.Field] = []
    spelled = {name.lower(): name for name in topic.names}
    for field in incoming:
        if spelled.get(field.name.lower(), field.name) != field.name:
            problems.append(f"! {_show(field)}: the topic spells it {spelled[field.name.lower()]}")
        elif field.name not in topic.names:
            added.append(field.with_nullable(True))
            if not may_add:
                problems.append(f"+ {_show(field)}: not in the topic; option mergeSchema=true would add it")
        elif not fits(topic.field(field.name).type, field.type):
            problems.append(f"! {_show(field)}: the topic has {_show(topic.field(field.name))}")
    problems += [
        f"- {_show(field)}: missing, and the topic does not allow null there"
        for field in topic
        if not field.nullable and field.name not in incoming.names
    ]
    if problems:
        raise InvalidInput("the schema does not fit the topic:\n  " + "\n  ".join(problems), "LEDGER_SCHEMA_MISMATCH")
    return pa.schema([*topic, *added]) if added else topic


def union(topics: Mapping[str, pa.Schema]) -> pa.Schema:
    """The columns of several topics that are read together, by the topics' names. A column that one of them does not
    have may be null. InvalidInput names the topics whose columns do not go together."""
    fields: dict[str, pa.Field] = {}
    first: dict[str, str] = {}  # which topic had a column first
    for topic, schema in topics.items():
        for field in schema:
            seen = field.name.lower()
            fields[seen] = _either(fields[seen], field, first[seen], topic) if seen in fields else field
            first.setdefault(seen, topic)
    everywhere = set.intersection(*({name.lower() for name in schema.names} for schema in topics.values()))
    return pa.schema([field if seen in everywhere else field.with_nullable(True) for seen, field in fields.items()])


def _either(one: pa.Field, other: pa.Field, topic: str, other_topic: str) -> pa.Field:
    """The column that has the values of both."""
    nullable = one.nullable or other.nullable
    if one.name == other.name and one.metadata == other.metadata:
        for field, narrower in ((one, other), (other, one)):
            if fits(field.type, narrower.type):
                return field.with_nullable(nullable)
    raise InvalidInput(
        f"topics '{topic}' and '{other_topic}' cannot be read together: the first has {_show(one)}, the second "
        f"{_show(other)}. Read them apart, or name the columns to read without it in option 'columns'",
        "LEDGER_SCHEMA_MISMATCH",
    )


def check_version(kind: pa.DataType, column: str, key: str) -> None:
    if column == key:
        raise InvalidInput(
            f"versionColumn '{column}' is the key: all records of a key would have one version", "LEDGER_INVALID_OPTION"
        )
    if pat.is_nested(kind) or pat.is_null(kind):
        raise InvalidInput(
            f"versionColumn '{column}' is of type {kind}: versions are compared, so it must be a single value",
            "LEDGER_INVALID_OPTION",
        )


def check_key(kind: pa.DataType, key: str, topic: str) -> None:
    if pat.is_nested(kind):
        raise InvalidInput(
            f"the key '{key}' of topic '{topic}' is of type {kind}: only a key that is a single value can be compacted",
            "LEDGER_NOT_COMPACTABLE",
        )


def written(topic: pa.Schema, incoming: pa.Schema) -> pa.Schema:
    """The schema of an entry file: the topic's columns that the batch brings, in the topic's order."""
    return pa.schema([field for field in topic if field.name in incoming.names])


def of_entry(topic: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """The schema of an entry file that has these columns. ValueError if there is no such file."""
    fields = {SEQUENCE: _OWN_SEQUENCE, **{field.name: field for field in topic}}
    needed = {field.name for field in topic if not field.nullable}
    if not needed <= set(names) <= fields.keys() or len(set(names)) < len(names) or not names:
        raise ValueError(f"no file of the topic has the columns {', '.join(names)}")
    return pa.schema([fields[name] for name in names])


def conform(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """A writer's batch in the topic's types. Zero-copy unless a type really changes."""
    columns = [_cast(batch.column(batch.schema.get_field_index(field.name)), field) for field in target]
    for field, column in zip(target, columns, strict=True):
        if not field.nullable and column.null_count:
            raise InvalidInput(
                f"column '{field.name}' has a null, and the topic does not allow null there",
                "LEDGER_NULL_NOT_ALLOWED",
            )
    return pa.RecordBatch.from_arrays(columns, schema=target)


def check_columns(schema: pa.Schema, record: Mapping[str, Any], topic: str) -> None:
    unknown = record.keys() - set(schema.names)
    if unknown:
        raise InvalidInput(
            f"topic '{topic}' has no column '{min(unknown)}': {', '.join(schema.names)}", "LEDGER_SCHEMA_MISMATCH"
        )


def from_records(records: Iterable[Mapping[str, Any]], schema: pa.Schema, topic: str) -> pa.RecordBatch:
    """Records as column -> value; a column that is left out is null."""
    try:
        rows = [record if type(record) is dict else dict(record) for record in records]
        return pa.RecordBatch.from_pylist(rows, schema=schema)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"a record does not fit topic '{topic}': {error}", "LEDGER_INVALID_VALUE") from None


def with_sequence(batches: list[pa.RecordBatch], ids: pa.Array) -> list[pa.RecordBatch]:
    """Adds sequence ids that the payload does not have."""
    numbered, first = [], 0
    for batch in batches:
        column = ids.slice(first, batch.num_rows)
        numbered.append(batch.append_column(_OWN_SEQUENCE, column))
        first += batch.num_rows
    return numbered


def project(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """A stored batch as a reader wants it. Columns that the topic did not have yet are null."""
    if not target.names:
        return no_columns(batch.num_rows)
    columns = []
    for field in target:
        index = batch.schema.get_field_index(field.name)
        columns.append(pa.nulls(batch.num_rows, field.type) if index < 0 else _cast(batch.column(index), field))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def no_columns(rows: int) -> pa.RecordBatch:
    """A batch without columns that still has a number of rows, for reads that only count."""
    return pa.RecordBatch.from_struct_array(pa.nulls(rows, pa.struct([])))


def to_bytes(schema: pa.Schema) -> bytes:
    return schema.serialize().to_pybytes()  # type: ignore[no-any-return]


def from_bytes(data: bytes) -> pa.Schema:
    with damage("the node with a topic's schema"):
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        for field in schema:
            _check_names(field)
        return schema


def _check_names(field: pa.Field) -> None:
    """So that a name that is no text, at any depth, is found here and not where it is used."""
    assert isinstance(field.name, str)
    for number in range(field.type.num_fields):
        _check_names(field.type.field(number))


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(field.type, check_metadata=True):
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidInput(
            f"column '{field.name}' cannot be stored as {field.type}: {error}", "LEDGER_INVALID_VALUE"
        ) from None


def fits(topic: pa.DataType, incoming: pa.DataType) -> bool:
    """Whether the types are equal, except that the topic may allow null where the batch does not."""
    if pat.is_struct(topic) and pat.is_struct(incoming):
        return [f.name for f in topic] == [f.name for f in incoming] and all(map(_field_fits, topic, incoming))
    if pat.is_map(topic) and pat.is_map(incoming):
        return fits(topic.key_type, incoming.key_type) and _field_fits(topic.item_field, incoming.item_field)
    if pat.is_list(topic) and pat.is_list(incoming):
        return _field_fits(topic.value_field, incoming.value_field)
    return bool(topic.equals(incoming))


def _field_fits(topic: pa.Field, incoming: pa.Field) -> bool:
    return (topic.nullable or not incoming.nullable) and fits(topic.type, incoming.type)


def _show(field: pa.Field) -> str:
    return f"{field.name} {field.type}{'' if field.nullable else ' not null'}"
