"""How commands answer: tables that fit a terminal, JSON and CSV, and errors that name commands."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pyspark_ledger.cli import main, output, tables
from pyspark_ledger.client import LedgerClient
from tests.support import REPOSITORY

LONG = "a-topic-whose-name-is-as-long-as-names-may-be-" + "x" * 140
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
LISTINGS = (
    "topics list", f"topics describe {LONG}", f"topics config get {LONG}", "cursors list",
    f"cursors describe {LONG} {LONG}", f"producers list {LONG}", f"tokens stats {LONG}", "namespace gc --dry-run",
    "maintain --once --actions trim,gc,compact",
    f"deadletters list {LONG}-dead", "options",
)  # fmt: skip


@pytest.fixture(scope="module")
def address(zookeeper, tmp_path_factory):
    address = f"{zookeeper}/test-output"
    with LedgerClient(address, str(tmp_path_factory.mktemp("storage"))) as client:
        for name in (LONG, "orders"):
            client.create_topic(name, SCHEMA, key="k")
            with client.producer(name, name=LONG, mint_tokens=True) as producer:
                producer.send({"k": LONG, "v": 1})
            client.create_cursor(name, LONG)
            client.tokens(name, LONG).mint(2)
            client.compact(name)
            with client.consumer(name, "s", "shared", max_redeliveries=0, redelivery_delay_s=0.0,
                                 dead_letter_topic=f"{LONG}-dead") as consumer:  # fmt: skip
                consumer.negative_acknowledge(consumer.receive(10))
                consumer.receive(0.2)
    return address


def run(address, line, *more):
    done = CliRunner().invoke(main, ["--zookeeper", address, *line.split(), *more])
    assert done.exit_code == 0, done.output
    return done.stdout


def _named(answer):
    """The names of all values of a JSON answer: each is a header, or a line's name. A column may go that is empty."""
    rows = answer if isinstance(answer, list) else [answer]
    for row in rows:
        for name, value in row.items():
            if value is not None:
                yield name
            if isinstance(value, list) and value and isinstance(value[0], dict):
                yield from _named(value)


@pytest.mark.parametrize("line", LISTINGS)
def test_every_listing_fits_eighty_columns_and_no_header_is_cut(address, line, monkeypatch):
    names = set(_named(json.loads(run(address, line, "--json"))))
    monkeypatch.setattr(output, "_width", lambda: 80)
    shown = run(address, line)
    assert max(cell_len(text) for text in shown.splitlines()) <= 80, shown
    words = {word for name in names for word in output._title(name).split()}
    assert {word for word in words if not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", shown)} == set(), shown


@given(
    st.lists(st.lists(st.text("ab é名-", max_size=30), min_size=3, max_size=3), max_size=4),
    st.integers(10, 60),
)
def test_whatever_is_in_a_table_it_fits_and_nothing_of_it_is_lost(rows, width):
    lines = list(tables.table(["name", "kept records", "v"], rows, [False, True, False], width))
    assert all(cell_len(line) <= max(width, 26) for line in lines)
    kept = sorted("".join(lines).replace(" ", ""))
    for cell in [*(cell for row in rows for cell in row), "name", "kept", "records", "v"] if rows else []:
        for letter in set(cell) - {" "}:
            assert letter in kept
    content = sum(len(cell.replace(" ", "")) for row in rows for cell in row)
    assert len(kept) >= content + (len("namekeptrecordsv") if rows else 0)


def test_a_few_short_rows_are_a_table_and_too_many_columns_become_blocks():
    cells = [["orders", "1,234", "12.5 MB"]]
    assert list(tables.table(["topic", "records", "size"], cells, [False, True, True], 30)) == [
        "topic   records     size",
        "orders    1,234  12.5 MB",
    ]
    assert list(tables.table(["topic", "records", "size"], cells, [False, True, True], 16)) == [
        "topic    orders", "records  1,234", "size     12.5 MB", "",
    ]  # fmt: skip
    assert list(tables.table(["when", "last publish"], [["2026-11-19 03:44:50Z", "-"]], [False, False], 22)) == [
        "when        last", "            publish", "2026-11-19  -", "03:44:50Z",
    ]  # fmt: skip


def test_a_table_of_thousands_of_rows_is_drawn_in_a_moment(capsys, monkeypatch):
    monkeypatch.setattr(output, "_width", lambda: 60)
    rows = [{"topic": f"töpic-{n}", "records": 7 * n, "key": "名" * (n % 40), "end": None} for n in range(5_000)]
    output.ConsoleOutput().rows(rows, "no topics")
    assert len(capsys.readouterr().out.splitlines()) > 5_000


def test_csv_has_a_header_and_the_values_of_json(address):
    [header, *rows] = csv.reader(io.StringIO(run(address, "topics list", "--output", "csv")))
    listed = json.loads(run(address, "topics list", "--output", "json"))
    assert header == list(listed[0])
    assert [row[:2] for row in rows] == [[row["topic"], str(row["records"])] for row in listed]
    [header, facts] = csv.reader(io.StringIO(run(address, "topics describe orders", "-o", "csv")))
    assert json.loads(facts[header.index("ledgers")])[0]["records"] == 1
    [header, record] = csv.reader(io.StringIO(run(address, "topics read orders", "--output", "csv")))
    assert (header, record) == (["k", "v"], [LONG, "1"])


def test_formats_that_contradict_each_other_are_refused_and_an_empty_listing_is_nothing_in_csv(address, namespace):
    refused = CliRunner().invoke(main, ["--json", "topics", "list", "--output", "csv"])
    assert (refused.exit_code, "--output json and --output csv" in refused.stderr) == (2, True)
    assert run(address, "--json topics list", "--output", "json") == run(address, "topics list", "--json")
    assert run(namespace, "topics list", "--output", "csv") == ""


def test_values_of_csv():
    moment = datetime(2026, 11, 19, tzinfo=UTC)
    cells = [output._csv_cell(value) for value in (None, True, 1.5, "a", moment, [1], {"b": moment})]
    assert cells == [None, "true", 1.5, "a", moment.isoformat(), "[1]", json.dumps({"b": moment.isoformat()})]


# -- errors -----------------------------------------------------------------------------------------------------

OF_PYTHON = (  # what no command can meet: it is said to who has called the thing
    "datasource/", "testing/", "outbox/", "compaction/table_view.py", "log/reader.py",
)  # fmt: skip
CALL = re.compile(r"\bclient\.\w+|\b[a-z]+_[a-z_]+\(|\b(?!array|map|struct|decimal)[a-z]+\(\)")


def test_no_error_that_a_command_may_end_with_tells_people_to_call_python():
    package = REPOSITORY / "pyspark_ledger"
    found = []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        if not name.startswith(OF_PYTHON) and "_pb2" not in name:
            found += [f"{name}: {text}" for text in _texts(ast.parse(file.read_text())) if CALL.search(text)]
    assert found == []


def _texts(tree):
    """What is said to people: texts of several words that are no docstrings."""
    nodes, parts = list(ast.walk(tree)), set()
    for node in nodes:
        if isinstance(node, ast.Expr):
            parts.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts |= {id(part) for part in node.values}
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    constants = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in parts)
    yield from (node.value for node in constants if isinstance(node.value, str) and node.value.count(" ") > 2)


# -- completion -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell):
    done = CliRunner().invoke(main, ["completion", shell])
    assert (done.exit_code, "_PYSPARK_LEDGER_COMPLETE" in done.stdout) == (0, True)
    if shutil.which(shell) is not None:
        checked = subprocess.run([shell, "-n"], input=done.stdout, text=True, capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_bash_completes_commands_and_options_with_it():
    script = CliRunner().invoke(main, ["completion", "bash"]).stdout
    command = str(Path(sys.executable).with_name("pyspark-ledger"))

    def completed(*words):
        line = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _pyspark_ledger_completion {command}"
        asked = f'{script}\n{line} x y\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
        return subprocess.run(["bash", "-c", asked], text=True, capture_output=True, check=True).stdout.split()

    assert completed("pyspark-ledger", "topics", "cr") == ["create"]
    assert "--output" in completed("pyspark-ledger", "topics", "list", "--o")
