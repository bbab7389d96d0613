"""pyspark-ledger options says what the page docs/options.md says, and the page is made from the code."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from pyspark_ledger.cli import main
from pyspark_ledger.datasource import option_table
from pyspark_ledger.datasource.option_table import Option
from pyspark_ledger.datasource.options import BOTH, KNOWN, READ, WRITE
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "options.md").read_text()


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["options", *arguments])
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("title", "names"), [("Both ways", BOTH), ("Reading", READ), ("Writing", WRITE)], ids=["both", "read", "write"]
)
def test_the_table_in_the_code_has_every_option_in_its_place(title, names):
    assert sorted(name for option in option_table.TABLES[title] for name in option.names) == sorted(names)


def test_the_page_of_options_is_made_from_the_table_in_the_code():
    assert option_table.with_tables(PAGE) == PAGE, "make reference (words belong into datasource/option_table.py)"


def test_a_table_is_made_anew_and_what_is_around_it_stays():
    page = PAGE.replace("| `minPartitions` |", "| `somethingElse` |").replace("lz4", "changed by hand")
    made = option_table.with_tables(page)
    assert "somethingElse" not in made
    assert made.partition("\n## Writing\n")[0] == PAGE.partition("\n## Writing\n")[0]


def test_options_that_go_together_share_a_row():
    option = Option("a, b", "text", "", "two")
    assert option.names == ("a", "b")
    assert option.row == "| `a`, `b` | text | | two |\n"


def test_signs_of_markdown_are_left_out_in_a_shell():
    option = Option("x", "`a`, `b`", "`a`", "see ([more](options.md#more)); not `c`")
    assert option.plain() == {"option": "x", "type": "a, b", "default": "a", "meaning": "see (more); not c"}


def test_all_options_are_listed_and_one_is_explained():
    status, printed = run("--json")
    assert status == 0
    rows = json.loads(printed)
    assert [row["option"] for row in rows] == [
        option.name for table in option_table.TABLES.values() for option in table
    ]
    assert {name for row in rows for name in row["option"].split(", ")} == set(KNOWN.values())
    status, printed = run("STARTINGOFFSETS", "--json")
    assert status == 0
    told = json.loads(printed)
    assert (told["option"], told["for"], told["default"]) == ("startingOffsets", "reading", "earliest")
    assert told["meaning"].startswith("where the read begins")


def test_an_option_that_there_is_not_is_told_with_the_nearest():
    status, printed = run("subscribe")
    assert status == 1
    assert "[LEDGER_UNKNOWN_OPTION] there is no option 'subscribe'; use 'topic'" in printed
    assert run("checkpointLocation")[1].startswith(
        "Error: [LEDGER_UNKNOWN_OPTION] 'checkpointLocation' is an option of S"
    )


def test_without_spark_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark_ledger.datasource.option_table", None)
    status, printed = run()
    assert status == 1
    assert "[LEDGER_NOT_INSTALLED] this needs the extra 'spark'" in printed
