"""Commands that repair or move something leave a report, however they end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from pyspark_ledger.cli.base import COMMON_OPTIONS, Commands, Session
from pyspark_ledger.cli.report import report_option, reporting
from pyspark_ledger.errors import Conflict


@click.group(cls=Commands, params=COMMON_OPTIONS)
def main() -> None: ...


@main.command()
@click.option("--to")
@click.option("--fails", is_flag=True)
@click.option("--stops", is_flag=True)
@report_option
@click.pass_obj
def mend(session: Session, to: str, fails: bool, stops: bool, report: str | None) -> None:
    with reporting(session, report) as told:
        told.found({"files": 2, "from": "s3://key:secret@bucket/old"})
        assert json.loads(told.path.read_text())["outcome"] == "under way"  # as a killed command leaves it
        told.done({"copied": 1})
        if fails:
            raise Conflict("somebody else was faster")
        if stops:
            raise KeyboardInterrupt
        told.done({"copied": 2})
        told.lost({"records": 0})
    session.output.done("mended", {"copied": 2})


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["--zookeeper", "zk:2181/prod", "--password", "me:hush", "mend", *arguments])


def test_a_report_says_what_was_found_done_and_lost_and_has_no_secrets(folder):
    result = run("--to", "s3://key:secret@bucket/new?region=eu-west-1")
    assert result.exit_code == 0, result.output
    (file,) = folder.iterdir()
    assert re.fullmatch(r"pyspark-ledger-mend-\d{8}T\d{6}Z\.json", file.name)
    assert f"report: {file.name}" in result.stderr
    told = json.loads(file.read_text())
    assert (told["command"], told["namespace"], told["outcome"]) == ("mend", "zk:2181/prod", "done")
    assert told["arguments"]["to"] == "s3://***@bucket/new?region=eu-west-1"
    assert told["found"] == {"files": 2, "from": "s3://***@bucket/old"}
    assert (told["done"], told["lost"], told["error"]) == ({"copied": 2}, {"records": 0}, None)
    assert told["begun"] <= told["ended"]
    assert not {"hush", "secret"} & set(re.findall(r"\w+", file.read_text()))


@pytest.mark.parametrize(("how", "outcome"), [("--fails", "failed"), ("--stops", "interrupted")])
def test_a_command_that_ends_half_way_says_how_far_it_came(folder, how, outcome):
    result = run(how, "--report", "mine.json")
    assert result.exit_code == 1
    assert "report: mine.json" in result.stderr
    told = json.loads((folder / "mine.json").read_text())
    assert (told["outcome"], told["done"]) == (outcome, {"copied": 1})
    assert told["error"]


def test_an_earlier_report_is_never_overwritten(folder):
    for _ in range(3):
        assert run().exit_code == 0
    assert len(list(folder.iterdir())) == 3
    (folder / "mine.json").write_text("earlier")
    refused = run("--report", "mine.json")
    assert (refused.exit_code, "LEDGER_REPORT_EXISTS" in refused.stderr) == (1, True)
    assert (folder / "mine.json").read_text() == "earlier"


def test_nothing_is_done_if_the_report_cannot_be_written(folder):
    refused = run("--report", str(folder / "nowhere" / "report.json"))
    assert refused.exit_code == 1
    assert "LEDGER_REPORT_UNAVAILABLE" in refused.stderr
    assert "mended" not in refused.stdout
