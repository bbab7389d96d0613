"""The alert rules for Prometheus name metrics that there are, and Prometheus takes them."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from pyspark_ledger.lifecycle.actions import NAMES
from pyspark_ledger.metrics.families import FAMILIES, MAINTENANCE
from tests.support import REPOSITORY
from tests.support.prometheus import program

FILE = REPOSITORY / "examples" / "alerts.yml"
RULES = [rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]
REQUESTS = "ledger_zookeeper_request_duration_seconds_bucket"  # the exporter's own, by requests.py
OPERATIONS = (REPOSITORY / "docs" / "operations.md").read_text()
RUNBOOK = (REPOSITORY / "docs" / "runbook.md").read_text()
EXPORTED = {**FAMILIES, **MAINTENANCE}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_is_whole_and_names_metrics_and_labels_that_there_are(rule):
    assert rule.keys() >= {"alert", "expr", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert re.fullmatch(r"\d+[mhd]", rule.get("for", "0m"))
    named = set(re.findall(r"ledger_\w+", rule["expr"]))
    assert named
    assert named - {REQUESTS} <= EXPORTED.keys()
    labels = {label for name in named - {REQUESTS} for label in EXPORTED[name].labels}
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels


def test_the_runbook_says_of_every_alert_what_it_means_and_what_to_do():
    entries = re.split(r"^##+ ", RUNBOOK, flags=re.M)
    told = {entry.partition("\n")[0]: entry for entry in entries if entry.startswith("Ledger")}
    assert told.keys() == {rule["alert"] for rule in RULES}
    for name, entry in told.items():
        assert "**Means**" in entry, name
        assert re.search(r"^- \*\*Look", entry, re.M), name
        assert re.search(r"^- \*\*(Do|Look and do)\*\*", entry, re.M), name


def test_every_action_is_explained():
    assert set(NAMES) == set(
        re.findall(r"^\| `(\w+)` \|", OPERATIONS.partition("## Maintenance")[2].partition("\n### ")[0], re.M)
    )


def test_what_has_to_be_alarmed_is():
    names = {rule["alert"] for rule in RULES}
    assert {
        "LedgerLag", "LedgerRevisionRunsLong", "LedgerBacklogQuota", "LedgerMaintenanceNotLeading",
        "LedgerBackupTooOld", "LedgerGcNotRunning", "LedgerZooKeeperSlow", "LedgerExporterDown",
    } <= names  # fmt: skip


def test_prometheus_takes_them():
    checked = subprocess.run([program("promtool"), "check", "rules", str(FILE)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"SUCCESS: {len(RULES)} rules found" in checked.stdout


def test_the_unit_and_the_container_start_the_command():
    unit = (REPOSITORY / "examples" / "maintain.service").read_text()
    container = (REPOSITORY / "examples" / "Dockerfile.maintain").read_text()
    assert "pyspark-ledger maintain " in unit
    assert 'ENTRYPOINT ["pyspark-ledger", "maintain"]' in container
