"""Prometheus itself scrapes the exporter and maintenance, takes the alert rules, and is asked everything that the
dashboard and the alerts ask."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
import yaml

from pyspark_ledger.client import LedgerClient
from tests.support import REPOSITORY
from tests.support.prometheus import Prometheus, running
from tests.support.query import eventually

DASHBOARD = json.loads((REPOSITORY / "examples" / "grafana-dashboard.json").read_text())
PANELS = [
    target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", []) if "expr" in target
]  # fmt: skip
ALERTS = REPOSITORY / "examples" / "alerts.yml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
CONFIG = REPOSITORY / "deploy" / "prometheus.yml"

# What has no value while all is well, or until something has happened that is not made to happen here.
QUIET = {
    "ledger_scrape_errors_total", "ledger_topic_set_back", "ledger_producer_fenced_runs",
    "ledger_cursor_evicted_records", "ledger_compaction_running_seconds",
}  # fmt: skip
MAY_FIRE = ("LedgerNobodyFollows", "LedgerExporterDown", "LedgerMaintenanceNotLeading", "LedgerZooKeeperSlow")


@pytest.fixture
def prometheus(namespace, tmp_path) -> Iterator[Prometheus]:
    folder, address = tmp_path, namespace
    with LedgerClient(address, str(folder / "storage")) as client, contextlib.ExitStack() as started:
        _fill(client)
        urls = [
            started.enter_context(_serving(address, "exporter", "--port", "0")),
            started.enter_context(_serving(address, "maintain", "--port", "0")),
        ]
        consumer = started.enter_context(contextlib.closing(client.consumer("orders", "attached")))
        assert consumer.receive(10) is not None
        server = started.enter_context(running(_config(folder, urls), folder))

        def seen() -> bool:
            """Several scrapes of each went well, so that rates are known; and maintenance has made its first backup."""
            well = server.query("sum_over_time(up[5m])")
            backup = server.query("ledger_backup_age_seconds < 1e9")
            return len(well) == 2 and all(float(each["value"][1]) >= 3 for each in well) and bool(backup)

        eventually(seen, 100)
        client.producer("orders").send_batch(pa.table({"id": [9], "v": [9]}))
        yield server


def _fill(client: LedgerClient) -> None:
    client.create_topic("orders", pa.schema([("id", pa.int64()), ("v", pa.int64())]), key="id")
    with client.producer("orders", name="web", mint_tokens=True) as producer:
        producer.send({"id": 1, "v": 1}, 1)
        producer.send({"id": 1, "v": 2}, 2)
    with client.producer("orders", name="web") as producer:
        producer.send_batch(pa.table({"id": [1, 2], "v": [2, 2]}), pa.array([2, 3]))  # one of them again
    client.create_cursor("orders", "waiting")
    client.cursor("orders", "waiting").reset("earliest")
    tokens = client.tokens("orders", "billing")
    tokens.consume(tokens.mint(1))
    tokens.mint(1)
    client.compact("orders")


@contextlib.contextmanager
def _serving(address: str, *command: str) -> Iterator[str]:
    """A command that serves, and says where."""
    arguments = [sys.executable, "-m", "pyspark_ledger.cli", "--zookeeper", address, *command, "--json"]
    served = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert served.stdout is not None
        yield json.loads(served.stdout.readline())["url"]
    finally:
        served.kill()
        served.wait()


def _config(folder, urls):
    """That of the compose file, with these addresses, and scrapes that come quickly."""
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ALERTS)]
    config["scrape_configs"] = [job for job in config["scrape_configs"] if job["job_name"] != "zookeeper"]
    for job, url in zip(config["scrape_configs"], urls, strict=True):
        job["static_configs"][0]["targets"] = [url.partition("//")[2].partition("/")[0]]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    return file


def _asked(expression: str) -> str:
    """As Grafana asks it: with its variables filled in."""
    filled = expression.replace("$__rate_interval", "5m").replace("$topic", ".*").replace("$subscription", ".*")
    assert "$" not in filled
    return filled


def _is_quiet(expression: str) -> bool:
    return bool(set(re.findall(r"ledger_\w+", expression)) & QUIET)


def test_prometheus_scrapes_us_and_has_an_answer_to_everything_that_dashboard_and_alerts_ask(prometheus):
    """One test, because a server and two processes are started for it."""
    _scraped(prometheus)
    _panels_have_data(prometheus)
    _variables_are_labels(prometheus)
    for rule in RULES:
        _alert_looks_at_what_is_there(prometheus, rule)
    _rules_are_evaluated(prometheus)


def _scraped(prometheus):
    targets = {each["labels"]["job"] for each in prometheus.ask("targets")["activeTargets"]}
    assert targets == {"ledger", "ledger-maintain"}
    _eventually_nothing_of(lambda: [up for up in targets if not prometheus.query(f'up{{job="{up}"}} == 1')])
    _eventually_nothing_of(lambda: [] if prometheus.query("ledger_up == 1") else ["ledger_up"])


def _panels_have_data(prometheus):
    assert len(PANELS) > 25
    _eventually_nothing_of(
        lambda: [each for each in PANELS if not prometheus.query(_asked(each)) and not _is_quiet(each)]
    )


def _eventually_nothing_of(missing):
    """On a busy machine a scrape may take too long, and then nothing is known until the next one."""
    with contextlib.suppress(AssertionError):
        eventually(lambda: missing() == [])
        return
    assert missing() == []


def _variables_are_labels(prometheus):
    for variable in DASHBOARD["templating"]["list"]:
        match = re.fullmatch(r"label_values\((\w+)(\{.*\})?, (\w+)\)", variable.get("query", ""))
        if match is not None:
            assert prometheus.ask(f"label/{match[3]}/values", **{"match[]": match[1]})


def _alert_looks_at_what_is_there(prometheus, rule):
    """Nothing is alarmed while all is well, but what has to last for a while; and a busy machine may be late."""
    if rule["alert"] not in MAY_FIRE:
        assert prometheus.query(rule["expr"]) == []
    names = set(re.findall(r"ledger_\w+", rule["expr"])) - QUIET
    _eventually_nothing_of(lambda: [name for name in names if not prometheus.query(f"count({name})")])


def _rules_are_evaluated(prometheus):
    def rules():
        [group] = prometheus.ask("rules")["groups"]
        return group["rules"]

    eventually(lambda: all(rule["lastEvaluation"] > "2000" for rule in rules()))
    assert sorted(rule["name"] for rule in rules()) == sorted(rule["alert"] for rule in RULES)
    assert {rule["health"] for rule in rules()} == {"ok"}
