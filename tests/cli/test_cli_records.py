"""The command line reads and writes records: JSON lines and CSV, every type, and what happens when it goes wrong."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.describe import ddl
from pyspark_ledger.describe.jsonlines import Decoder
from pyspark_ledger.errors import InvalidInput
from tests.support import interruptible

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("paid", pa.bool_())])
EVERYTHING = (
    "b boolean, i8 tinyint, i16 smallint, i32 int, i64 bigint not null, f float, d double, dec decimal(20,4), "
    "s string, raw binary, day date, ts timestamp, ntz timestamp_ntz, t time, gap interval day to second, "
    "nothing void, tags array<string>, at struct<x: int not null, `the y`: array<decimal(3,1)>>, "
    "m map<string, double>, n map<int, struct<u: binary>>"
)


@pytest.fixture
def client(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", SCHEMA, key="id")
        yield client


def run(client, *arguments, stdin=None):
    return CliRunner().invoke(main, ["--zookeeper", client.zookeeper, "topics", *arguments], input=stdin)


def write(client, lines, *options, topic="orders"):
    return run(client, "write", topic, "-", *options, stdin=lines)


def records(client, topic="orders"):
    return [dict(record.value) for record in client.reader(topic, end="latest")]


# -- writing ----------------------------------------------------------------------------------------------------


def test_json_lines_become_records(client):
    done = write(client, '{"id": 1, "name": "ä", "paid": true}\n\n{"id": 2}\n', "--json")
    assert json.loads(done.stdout) == {"topic": "orders", "records": 2, "duplicates": 0, "end": "0:1:0"}
    assert records(client) == [{"id": 1, "name": "ä", "paid": True}, {"id": 2, "name": None, "paid": None}]


def test_csv_becomes_records_and_a_cell_may_have_line_breaks(client, tmp_path):
    file = tmp_path / "orders.csv"
    file.write_text('id,paid,name\n007,True,"two\nlines"\n8,,\n')
    done = run(client, "write", "orders", str(file), "--producer", "import")
    assert done.stdout == "orders: 2 records written, 0 were there already; end 0:1:0\n"
    assert records(client) == [{"id": 7, "name": "two\nlines", "paid": True}, {"id": 8, "name": None, "paid": None}]
    assert [record.sequence_id for record in client.reader("orders", end="latest")] == [2, 4]


def test_a_repeated_write_with_a_producer_adds_nothing_twice_and_a_longer_file_only_its_end(client):
    lines = [json.dumps({"id": n}) for n in range(30)]
    assert json.loads(write(client, "\n".join(lines[:20]), "--producer", "f", "--json").stdout)["records"] == 20
    again = json.loads(write(client, "\n".join(lines), "--producer", "f", "--json").stdout)
    assert (again["records"], again["duplicates"]) == (10, 20)
    assert [record["id"] for record in records(client)] == list(range(30))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ('{"id": 1', "this is no JSON"),
        ("[1]", "a JSON object was expected"),
        ('{"id": 1, "nam": "x"}', "no column 'nam' (did you mean 'name'?)"),
        ('{"id": "1"}', "column 'id': \"1\" is no bigint"),
        ('{"id": 9223372036854775808}', "column 'id': 9223372036854775808 is no bigint"),
        ('{"name": "x"}', "column 'id' is missing or null"),
        ('{"id": 1, "paid": "yes"}', "column 'paid': \"yes\" is no boolean"),
        (b'{"id": 1, "name": "\xff"}', "this cannot be read"),
    ],
)
def test_a_line_that_does_not_fit_is_named_and_nothing_is_written(client, bad, why):
    bad = bad if isinstance(bad, bytes) else bad.encode()
    failed = write(client, b'{"id": 0}\n' + bad + b"\n")
    assert failed.exit_code == 1
    assert "line 2: " in failed.stderr
    assert why in failed.stderr
    assert "Nothing was written" in failed.stderr
    assert records(client) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("id,nme\n1,x\n", "line 1: the topic has no column 'nme' (did you mean 'name'?)"),
        ("id,id\n1,2\n", "line 1: a column is named twice"),
        ("id,name\n1,x\n2\n", "line 3: 1 cells for 2 columns"),
        ('id,name\n1,"two\nlines"\nx,y\n', "line 4: column 'id': \"x\" is no bigint"),
        ('id,name\n1,"x\n', "line 2: this cannot be read"),
    ],
)
def test_csv_that_does_not_fit_is_named_by_its_line(client, text, why):
    failed = write(client, text, "--format", "csv")
    assert (failed.exit_code, why in failed.stderr) == (1, True), failed.stderr
    assert records(client) == []


def test_a_disk_that_gets_full_is_told_with_a_code_the_file_and_the_line(client, monkeypatch):
    monkeypatch.setattr("pyspark_ledger.append.delivery.FLUSH_ROWS", 10)
    log, real = namespace_of(client).log("orders"), os.fsync

    def full(fd):
        if log.refresh().head.next_commit == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    failed = write(client, "\n".join(json.dumps({"id": n}) for n in range(25)))
    assert (failed.exit_code, len(failed.stderr.splitlines())) == (1, 1)
    assert "[LEDGER_STORAGE_UNAVAILABLE] cannot write" in failed.stderr
    assert ".arrow: No space left on device; make room there" in failed.stderr
    assert "What is on lines 1 to 20 is in the log, and nothing after them" in failed.stderr


def test_a_write_that_stops_says_how_far_it_came_and_can_be_repeated(client, monkeypatch):
    monkeypatch.setattr("pyspark_ledger.append.delivery.FLUSH_ROWS", 10)
    lines = [json.dumps({"id": n}) for n in range(25)] + ["oops", '{"id": 25}']
    failed = write(client, "\n".join(lines), "--producer", "f")
    assert failed.exit_code == 1
    assert "line 26: " in failed.stderr
    assert "What is on lines 1 to 20 is in the log, and nothing after them; the same command again" in failed.stderr
    assert [record["id"] for record in records(client)] == list(range(20))
    lines[25] = ""
    mended = json.loads(write(client, "\n".join(lines), "--producer", "f", "--json").stdout)
    assert (mended["records"], mended["duplicates"]) == (6, 20)
    assert [record["id"] for record in records(client)] == list(range(26))


def test_what_comes_slowly_through_a_pipe_is_in_the_log_before_the_pipe_ends(client):
    command = [sys.executable, "-m", "pyspark_ledger.cli", "--zookeeper", client.zookeeper, "topics", "write", "orders"]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for number in range(2):
        writer.stdin.write(f'{{"id": {number}}}\n')
        writer.stdin.flush()
        reader = client.reader("orders", start=f"0:{number}:0")
        assert next(iter(reader))["id"] == number
    told = writer.communicate('{"id": "none"}\n', timeout=30)[1]
    assert writer.returncode == 1
    assert "line 3:" in told
    assert "What is on lines 1 to 2 is in the log, and nothing after them" in told
    assert [record["id"] for record in records(client)] == [0, 1]


# -- reading ----------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(client):
    for batch in range(3):
        with client.producer("orders", name="web") as producer:
            for n in range(10):
                producer.send({"id": n, "name": f"b{batch}"})
    return client


def read(client, *options):
    done = run(client, "read", "orders", "--json", *options)
    assert done.exit_code == 0, done.stderr
    return [(value["id"], value.get("name")) for value in map(json.loads, done.stdout.splitlines())]


def test_reading_starts_and_stops_where_it_is_told(filled):
    assert len(read(filled)) == 30
    assert read(filled, "-n", "2") == [(0, "b0"), (1, "b0")]
    assert read(filled, "--from", "0:1:8", "-n", "3") == [(8, "b1"), (9, "b1"), (0, "b2")]
    assert read(filled, "--from", "latest") == []
    assert read(filled, "--from", "2000-01-01T00:00:00Z", "-n", "1", "--columns", "id") == [(0, None)]
    wrong = run(filled, "read", "orders", "--from", "yesterday")
    assert (wrong.exit_code, "no place in a topic" in wrong.stderr) == (2, True)


def test_a_compacted_read_is_the_last_record_of_every_key(filled):
    assert read(filled, "--compacted") == [(n, "b2") for n in range(10)]
    filled.compact("orders")
    with filled.producer("orders") as producer:
        producer.send({"id": 3, "name": "new"})
    assert read(filled, "--compacted") == [(n, "b2") for n in range(10) if n != 3] + [(3, "new")]


def test_peek_shows_the_newest_with_where_they_are(filled):
    first, last = run(filled, "peek", "orders", "-n", "2").stdout.splitlines()
    assert first.startswith("0:2:8  20")
    assert last.endswith('Z  {"id": 9, "name": "b2", "paid": null}')
    told = json.loads(run(filled, "peek", "orders", "-n", "1", "--json", "--metadata").stdout)["_metadata"]
    assert (told["position"], told["producer"], told["sequence_id"]) == ("0:2:9", "web", 29)


def test_following_waits_for_more_and_ends_cleanly_with_ctrl_c(filled):
    command = [sys.executable, "-m", "pyspark_ledger.cli", "--zookeeper", filled.zookeeper, "topics", "read", "orders"]
    options = ["--from", "0:2:9", "--follow", "--json"]
    reader = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    assert json.loads(reader.stdout.readline())["name"] == "b2"
    with filled.producer("orders") as producer:
        producer.send({"id": 77})
    assert json.loads(reader.stdout.readline())["id"] == 77
    reader.send_signal(signal.SIGINT)
    assert reader.communicate(timeout=30) == ("", "")
    assert reader.returncode == 0


def test_what_is_read_as_json_is_written_back_the_same_for_every_type(client):
    schema = ddl.parse(EVERYTHING)
    client.create_topic("source", schema)
    client.create_topic("copy", schema)
    full = {
        "b": True, "i8": -128, "i16": 32767, "i32": -1, "i64": 2**63 - 1, "f": 0.5, "d": float("inf"),
        "dec": Decimal("1234567890123456.7890"), "s": 'ä"\n', "raw": b"\x00\xff", "day": date(2026, 2, 28),
        "ts": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), "ntz": datetime(1, 1, 1), "t": time(23, 59, 59, 5),
        "gap": timedelta(days=-1, microseconds=1), "nothing": None, "tags": ["x", None],
        "at": {"x": 1, "the y": [Decimal("-9.9"), None]}, "m": [("a", 1.5), ("b", None)],
        "n": [(1, {"u": b""}), (2, None)],
    }  # fmt: skip
    with client.producer("source") as producer:
        producer.send(full)
        producer.send({"i64": 0})
        producer.send({"i64": 1, "d": float("-inf"), "tags": [], "m": [], "gap": timedelta(0)})
    lines = run(client, "read", "source", "--json").stdout
    done = write(client, lines, topic="copy")
    assert done.exit_code == 0, done.stderr
    tables = [pa.Table.from_batches(client.reader(topic, end="latest").batches()) for topic in ("source", "copy")]
    assert tables[0].num_rows == 3
    assert tables[0].equals(tables[1])


# -- schemas ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "a column's name"),
        ("id", "a type: boolean"),
        ("id number", "a type: boolean, tinyint"),
        ("id int,", "a column's name"),
        ("id int name string", "',' or the end at 'name string'"),
        ("d decimal(39)", "a number of digits from 1 to 38 at '39)'"),
        ("d decimal(3,4)", "at most 3 digits after the point"),
        ("a array<int", "'>' at its end"),
        ("a map<int>", "',' at '>'"),
    ],
)
def test_a_schema_that_makes_no_sense_is_refused_where_it_stops(text, what):
    with pytest.raises(InvalidInput) as refused:
        ddl.parse(text)
    assert what in str(refused.value)


def test_a_schema_is_written_as_it_is_read():
    assert ddl.parse(ddl.ddl(ddl.parse(EVERYTHING))).equals(ddl.parse(EVERYTHING))
    assert (
        ddl.ddl(ddl.parse("A INTEGER, b: Long NOT NULL, `c d` dec(5)"))
        == "A int, b bigint not null, `c d` decimal(5,0)"
    )


@pytest.mark.spark
def test_sql_types_mean_what_spark_means(spark):
    from pyspark_ledger.datasource.types import arrow_schema
    from pyspark_ledger.files.schema import canonical

    assert canonical(ddl.parse(EVERYTHING)).equals(
        canonical(arrow_schema(spark.createDataFrame([], EVERYTHING).schema))
    )


# -- numbers at the edge of their types -------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", ["9" * 34 + ".9999", "-" + "1" * 29, "1e30"])
def test_a_decimal_may_have_all_the_digits_of_its_type(digits):
    """Python's own decimals have 28 unless they are told otherwise, and longer ones were refused."""
    decoder = Decoder(ddl.parse("d decimal(38,4)"))
    assert decoder.line(json.dumps({"d": digits})) == {"d": Decimal(digits)}
    with pytest.raises(InvalidInput, match=r"is no decimal\(38,4\)"):
        decoder.line(json.dumps({"d": "9" * 35}))


@pytest.mark.parametrize("number", ["1e3", "-9223372036854775808", "9223372036854775807.0"])
def test_an_integer_may_be_spelled_with_an_exponent_or_a_point(number):
    assert Decoder(ddl.parse("n bigint")).line(f'{{"n": {number}}}') == {"n": int(Decimal(number))}


def test_a_number_that_no_double_holds_is_refused_and_not_infinite():
    decoder = Decoder(ddl.parse("d double"))
    with pytest.raises(InvalidInput, match="is no number of a double's size"):
        decoder.line('{"d": 1e400}')
    assert decoder.line('{"d": 1.7976931348623157e308}') == {"d": sys.float_info.max}
    assert decoder.line('{"d": "-Infinity"}') == decoder.cells(["d"], ["-Infinity"]) == {"d": -float("inf")}
