"""topics export and import: what goes out comes back as it was, and an import that is killed is completed once (I5)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.describe import ddl
from tests.support import interruptible
from tests.support.query import eventually

EVERYTHING = ddl.parse(
    "b boolean, i8 tinyint, i64 bigint not null, f float, d double, dec decimal(20,4), s string, raw binary, day date, "
    "ts timestamp, ntz timestamp_ntz, t time, gap interval day to second, tags array<string>, "
    "at struct<x: int not null, `the y`: array<decimal(3,1)>>, m map<string, double>, n map<int, struct<u: binary>>"
)
ROWS = [
    {
        "b": True, "i8": -8, "i64": 1, "f": 1.5, "d": float("inf"), "dec": Decimal("12345.6789"), "s": 'ä, "q"\nline',
        "raw": b"\x00\xff", "day": date(2026, 1, 31), "ts": datetime(2026, 1, 31, 12, 0, 0, 5, UTC),
        "ntz": datetime(2026, 1, 31, 12), "t": time(12, 30, 0, 7), "gap": timedelta(seconds=-1.5), "tags": ["a", None],
        "at": {"x": 1, "the y": [Decimal("1.5")]}, "m": [("k", 2.0)], "n": [(1, {"u": b"u"})],
    },
    {"i64": 2},
]  # fmt: skip


@pytest.fixture
def client(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        for name in ("all", "back"):
            client.create_topic(name, EVERYTHING)
        with client.producer("all") as producer:
            for row in ROWS:
                producer.send(row)
        client.create_topic("orders", pa.schema([pa.field("id", pa.int64(), False), ("v", pa.int32())]), key="id")
        client.create_topic("copy", pa.schema([pa.field("id", pa.int64(), False), ("v", pa.int32())]), key="id")
        yield client


def run(client, *arguments):
    return CliRunner().invoke(main, ["--zookeeper", client.zookeeper, "topics", *arguments])


def told(client, *arguments):
    done = run(client, *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def values(client, topic):
    return [dict(record.value) for record in client.reader(topic, end="latest")]


def fill(client, *numbers, topic="orders"):
    with client.producer(topic) as producer:
        producer.send_batch(pa.table({"id": list(numbers), "v": pa.array(numbers, pa.int32())}))


@pytest.mark.parametrize("metadata", [(), ("--metadata",)])
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_every_type_goes_out_and_comes_back_as_it_was(client, tmp_path, kind, metadata):
    file = tmp_path / f"all.{kind}"
    done = told(client, "export", "all", str(file), *metadata)
    assert (done["records"], done["format"], done["bytes"]) == (2, kind, file.stat().st_size)
    assert ("0:0:1" in file.read_text() if kind != "parquet" else "_metadata" in pq.read_schema(file).names) is bool(
        metadata
    )
    assert told(client, "import", "back", str(file), "--producer", "f")["records"] == 2
    assert values(client, "back") == values(client, "all")
    again = told(client, "import", "back", str(file), "--producer", "f")
    assert (again["records"], again["duplicates"]) == (0, 2)
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == [file.name]


def test_a_part_some_columns_the_state_and_standard_output(client, tmp_path):
    fill(client, 1, 2)
    fill(client, 2, 3)
    shown = run(client, "export", "orders", "--start", "0:0:1", "--end", "0:1:1", "--columns", "id")
    assert shown.stdout == '{"id": 2}\n{"id": 2}\n'
    assert "orders: 2 records" in shown.stderr
    assert run(client, "export", "orders", "--format", "csv").stdout == "id,v\n1,1\n2,2\n2,2\n3,3\n"
    state = tmp_path / "state.parquet"
    assert told(client, "export", "orders", str(state), "--compacted")["records"] == 3
    assert pq.read_table(state).column("id").to_pylist() == [1, 2, 3]
    as_bytes = CliRunner().invoke(main, ["--zookeeper", client.zookeeper, "topics", "export", "orders", "--format",
                                         "parquet"])  # fmt: skip
    assert pq.read_table(pa.BufferReader(as_bytes.stdout_bytes)).num_rows == 4


def test_a_file_that_is_there_stays_unless_told_and_a_failed_export_leaves_nothing(client, tmp_path, monkeypatch):
    fill(client, 1)
    file = tmp_path / "orders.csv"
    file.write_text("mine")
    refused = run(client, "export", "orders", str(file))
    assert (refused.exit_code, "LEDGER_FILE_EXISTS" in refused.stderr, file.read_text()) == (1, True, "mine")
    assert (
        "LEDGER_COLUMN_NOT_FOUND" in run(client, "export", "orders", str(file), "--overwrite", "--columns", "w").stderr
    )
    from pyspark_ledger.cli import formats

    with monkeypatch.context() as broken:
        broken.setattr(formats._Csv, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        full = run(client, "export", "orders", str(file), "--overwrite")
    assert "[LEDGER_EXPORT_NOT_WRITTEN]" in full.stderr
    assert "make room there" in full.stderr
    assert (file.read_text(), os.listdir(tmp_path).count("orders.csv"), len(os.listdir(tmp_path))) == ("mine", 1, 2)
    assert told(client, "export", "orders", str(file), "--overwrite")["records"] == 1
    assert file.read_text() == "id,v\n1,1\n"


def test_empty_texts_in_csv_are_told_of(client, tmp_path):
    with client.producer("all") as producer:
        producer.send({"i64": 3, "s": ""})
    assert "1 empty texts are empty cells" in run(client, "export", "all", str(tmp_path / "all.csv")).stderr


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"id": [1], "w": [1]}, "no column 'w': id, v"),
        ({"v": [1]}, "column 'id' is missing"),
        ({"id": ["1"]}, "column 'id' of the file is string, and the topic has bigint"),
        ({"id": [1, None]}, "rows 0 to 1: column 'id' has a null"),
        ({"id": [1], "v": [1 << 40]}, "rows 0 to 0: column 'v' does not fit"),
        ({"id": [1.5]}, "column 'id' does not fit"),
    ],
)
def test_a_file_that_does_not_fit_names_the_column_and_nothing_is_written(client, tmp_path, table, why):
    file = tmp_path / "orders.parquet"
    pq.write_table(pa.table(table), file)
    refused = run(client, "import", "orders", str(file))
    assert (refused.exit_code, why in refused.stderr) == (1, True), refused.stderr
    assert values(client, "orders") == []
    file.write_text("nothing")
    assert "this is no file of Parquet" in run(client, "import", "orders", str(file)).stderr


def test_numbers_of_another_width_are_taken_and_missing_columns_are_null(client, tmp_path):
    file = tmp_path / "orders.parquet"
    pq.write_table(pa.table({"id": pa.array([1.0, 2.0], pa.float32())}), file)
    assert told(client, "import", "orders", str(file))["records"] == 2
    assert values(client, "orders") == [{"id": 1, "v": None}, {"id": 2, "v": None}]


def test_an_import_that_is_killed_again_and_again_adds_every_row_once_I5(client, tmp_path):
    count = 800
    file = tmp_path / "orders.parquet"
    pq.write_table(pa.table({"id": range(count), "v": pa.array(range(count), pa.int32())}), file)
    program = (
        "import sys, time\nfrom pyspark_ledger.cli import importing, main\n"
        "importing._BATCH_ROWS, send = 20, importing._send\n"
        "importing._send = lambda *batch: (send(*batch), time.sleep(0.1))[0]\nmain(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", program, "--zookeeper", client.zookeeper, "topics", "import", "orders", str(file),
               "--producer", "f"]  # fmt: skip

    def killed_after(there):
        importing = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(lambda: client.end("orders") > there or importing.poll() is not None)
        importing.send_signal(signal.SIGKILL)
        importing.wait()
        return client.end("orders")

    killed_after(killed_after(killed_after(client.end("orders"))))
    log_end = len(values(client, "orders"))
    assert 0 < log_end < count
    assert told(client, "import", "orders", str(file), "--producer", "f")["duplicates"] == log_end
    assert [row["id"] for row in values(client, "orders")] == list(range(count))


def test_a_copy_that_is_killed_again_and_again_has_every_record_once_I5(client, namespace, tmp_path):
    other = f"{namespace}/other"
    for number in range(0, 300, 10):
        fill(client, *range(number, number + 10))
    program = (
        "import sys, time\n"
        "from pyspark_ledger.append.producer import Producer\n"
        "from pyspark_ledger.cli import main\n"
        "from pyspark_ledger.lifecycle import copy_topic\n"
        "copy_topic._COMMIT_BYTES, send = 1, Producer.send_batch\n"
        "Producer.send_batch = lambda *batch: (send(*batch), time.sleep(0.1))[0]\n"
        "main(sys.argv[1:])\n"
    )
    arguments = ["topics", "copy", "orders", "--to-zookeeper", other, "--to-storage", str(tmp_path / "other")]
    command = [sys.executable, "-c", program, "--zookeeper", client.zookeeper, *arguments]
    with LedgerClient(other, str(tmp_path / "other")) as there:

        def end():
            return there.end("orders") if "orders" in there.topics() else None

        def killed_after(before):
            copying = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            eventually(lambda: end() != before or copying.poll() is not None)
            copying.send_signal(signal.SIGKILL)
            copying.wait()
            return end()

        killed_after(killed_after(killed_after(None)))
        assert 0 < len(values(there, "orders")) < 300
        fill(client, 300)
        done = CliRunner().invoke(main, ["--zookeeper", client.zookeeper, *arguments, "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["records"] == 301
        assert values(there, "orders") == values(client, "orders")
        again = CliRunner().invoke(main, ["--zookeeper", client.zookeeper, *arguments])
        assert again.stdout == "orders: 0 records copied to 'orders', which has 301; end " + f"{end()}\n"


def test_a_copy_goes_where_a_profile_says(client, namespace, tmp_path, monkeypatch):
    file = tmp_path / "config.toml"
    file.write_text(f'[elsewhere]\nzookeeper = "{namespace}/elsewhere"\nstorage = "{tmp_path / "elsewhere"}"\n')
    monkeypatch.setenv("LEDGER_CONFIG", str(file))
    fill(client, 1, 2)
    copied = run(client, "copy", "orders", "--to-profile", "elsewhere")
    assert copied.exit_code == 0, copied.output
    with LedgerClient(f"{namespace}/elsewhere") as there:
        assert values(there, "orders") == values(client, "orders")
    assert "has no profile 'nowhere'" in run(client, "copy", "orders", "--to-profile", "nowhere").stderr


def test_a_copy_follows_until_it_is_interrupted(client, tmp_path):
    fill(client, 1)
    command = [sys.executable, "-m", "pyspark_ledger.cli", "--zookeeper", client.zookeeper, "topics", "copy", "orders",
               "--as", "orders2", "--follow"]  # fmt: skip
    following = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=interruptible)
    eventually(lambda: "orders2" in client.topics() and values(client, "orders2"))
    fill(client, 2, 3)
    eventually(lambda: len(values(client, "orders2")) == 3)
    following.send_signal(signal.SIGINT)
    said, _ = following.communicate(timeout=60)
    assert (following.returncode, said) == (0, "orders: 3 records copied to 'orders2', which has 3; end 0:2:0\n")


def test_options_of_a_copy_that_make_no_sense_are_refused(client):
    assert run(client, "copy", "orders", "--to-storage", "/x").exit_code == 2
    assert "LEDGER_TOPIC_NOT_FOUND" in run(client, "copy", "nope", "--as", "x").stderr
    assert "to itself" in run(client, "copy", "orders").stderr
    assert "nothing listens" in run(client, "copy", "orders", "--to-zookeeper", "127.0.0.1:1").stderr
    new = run(client, "copy", "orders", "--to-zookeeper", f"{client.zookeeper}-new").stderr
    assert "LEDGER_STORAGE_NOT_SET" in new
    assert "add --to-storage" in new
