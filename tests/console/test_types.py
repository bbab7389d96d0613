"""Records of every type are shown and compared, wherever they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.client import client_of
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from tests.support.console import Console, running

ODD = {
    "bytes": (pa.binary(), b"\x00\xff"),
    "list": (pa.list_(pa.string()), ["<b>", "&"] * 40),
    "map": (pa.map_(pa.string(), pa.int64()), {"a<": 1}),
    "struct": (pa.struct([("x", pa.int64()), ("y", pa.string())]), {"x": 1, "y": "'\"<b>"}),
    "decimal": (pa.decimal128(38, 10), Decimal("1.5")),
    "local": (pa.timestamp("us"), datetime(2026, 1, 1)),
    "day": (pa.date32(), date(2026, 1, 1)),
    "float": (pa.float64(), float("nan")),
    "flag": (pa.bool_(), True),
    "clock": (pa.time64("us"), time(12, 30)),
}


@pytest.fixture(scope="module")
def console(tmp_path_factory) -> Iterator[Console]:
    """Of a topic with a column of every kind, in ledgers that were rewritten."""
    root = str(tmp_path_factory.mktemp("types"))
    namespace = OpenNamespace(MemoryMetadata(MemoryServer()), root, limits=Limits(commits_per_ledger=4))
    with client_of(namespace) as client:
        client.create_topic("odd", pa.schema([(name, kind) for name, (kind, _) in ODD.items()]))
        for _ in range(9):
            with client.producer("odd", mint_tokens=True) as producer:
                for _ in range(3):
                    producer.send({name: value for name, (_, value) in ODD.items()})
        assert client.rewrite("odd").ledgers == 2
        with running(namespace) as console:
            yield console


@pytest.mark.parametrize("path", ["", "/records", "/records?view=json", "/records?from=earliest", "/records/0:1:2"])
def test_every_type_is_shown_as_text(console, path):
    page = console.ask(f"/topics/odd{path}")
    assert page.status == 200
    assert "<b>" not in page.text


@pytest.mark.parametrize(
    ("column", "operator", "value", "found"),
    [
        ("flag", "=", "true", 27),
        ("float", ">", "1", 0),
        ("decimal", "=", "1.5", 27),
        ("local", ">=", "2025-01-01", 27),
        ("day", "=", "2026-01-01", 27),
        ("clock", "<=", "12:30:00", 27),
        ("clock", "<", "12:30", 0),
        ("list", "is not null", "", 27),
        ("bytes", "is null", "", 0),
    ],
)
def test_values_of_every_type_are_compared_in_rewritten_ledgers_too(console, column, operator, value, found):
    answer = console.api("/topics/odd/records", column=column, operator=operator, value=value)
    assert [record["ordinal"] for record in answer.json["records"]] == list(range(found))


@pytest.mark.parametrize(("column", "value"), [("bytes", "x"), ("list", "x"), ("local", "2026-01-01T00:00:00Z")])
def test_values_that_cannot_be_compared_are_told(console, column, value):
    refused = console.api("/topics/odd/records", column=column, value=value)
    assert (refused.status, refused.code) == (400, "LEDGER_INVALID_PARAMETER")
