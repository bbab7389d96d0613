"""The container file and the compose file, which nobody has run: read, and held against the rest of the repository."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib

import click
import pytest
import yaml

from pyspark_ledger.cli import main
from tests.support import REPOSITORY
from tests.support.prometheus import program

DEPLOY = REPOSITORY / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("pyspark-ledger:")}
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
ALLOWED = {
    "image", "build", "restart", "environment", "depends_on", "hostname", "ports", "volumes", "healthcheck", "command",
    "entrypoint",
}  # fmt: skip
PORT = re.compile(r"127\.0\.0\.1:(\d+):(\d+)")
each_service = pytest.mark.parametrize("name", SERVICES)


def default_port(command: str) -> int:
    return next(option.default for option in main.commands[command].params if option.name == "port")


def given(service: dict, option: str, otherwise: object) -> object:
    words = service["command"]
    return words[words.index(option) + 1] if option in words else otherwise


# -- compose ----------------------------------------------------------------------------------------------------


def test_everything_that_belongs_together_is_there():
    assert {"maintain", "exporter", "console"} <= OURS.keys()
    assert {"minio", "bucket", "prometheus", "grafana"} <= SERVICES.keys()
    assert sum(service["image"].startswith("zookeeper:") for service in SERVICES.values()) == 3
    assert COMPOSE.keys() - {key for key in COMPOSE if key.startswith("x-")} == {"name", "services", "volumes"}


@each_service
def test_a_service_says_what_it_is_and_nothing_that_we_do_not_know(name):
    service = SERVICES[name]
    assert service.keys() <= ALLOWED
    image, _, tag = service["image"].rpartition(":")
    assert image
    assert re.search(r"\d", tag) if name not in OURS else tag == "local", "images are pinned"
    assert service["restart"] in ("unless-stopped", "no")
    assert all(isinstance(value, str) for value in service.get("environment", {}).values()), "YAML would change others"
    assert isinstance(service.get("command", []), list)


@each_service
def test_ports_are_published_to_this_machine_alone(name):
    assert [port for port in SERVICES[name].get("ports", []) if PORT.fullmatch(port) is None] == []


def test_no_port_is_published_twice():
    published = [PORT.fullmatch(port)[1] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(set(published)) == len(published)


def test_volumes_are_declared_and_used_and_files_are_there():
    used = set()
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, target, *mode = volume.split(":")
            assert target.startswith("/")
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
                assert mode == ["ro"]
            else:
                used.add(source)
    assert used == COMPOSE["volumes"].keys()


@each_service
def test_what_a_service_waits_for_is_there_and_can_come_true(name):
    for other, how in SERVICES[name].get("depends_on", {}).items():
        awaited = SERVICES[other]
        assert how["condition"] in ("service_healthy", "service_completed_successfully", "service_started")
        assert ("healthcheck" in awaited) or how["condition"] != "service_healthy"
        assert (awaited["restart"] == "no") is (how["condition"] == "service_completed_successfully")


@each_service
def test_health_is_asked_with_a_command(name):
    check = SERVICES[name].get("healthcheck")
    if check is not None:
        assert check["test"][0] == "CMD"
        assert {"interval", "timeout"} <= check.keys()
        assert all(re.fullmatch(r"\d+s", check[key]) for key in ("interval", "timeout", "start_period") if key in check)


@pytest.mark.parametrize("name", OURS)
def test_our_commands_are_those_of_the_command_line(name):
    words = list(OURS[name]["command"])
    command, context = main.commands[words[0]], click.Context(main)
    command.parse_args(click.Context(command, parent=context, info_name=words[0]), words[1:])
    assert given(OURS[name], "--host", "") == "0.0.0.0", "in a container nobody else would see it"
    [port] = OURS[name]["ports"]
    assert int(PORT.fullmatch(port)[2]) == int(given(OURS[name], "--port", default_port(words[0])))
    assert f"{default_port(words[0])}" in re.search(r"EXPOSE (.*)", DOCKERFILE)[1].split()


def test_every_variable_is_in_the_example_and_no_secret_is_in_a_file():
    text = (DEPLOY / "compose.yaml").read_text()
    asked = set(re.findall(r"\$\{(\w+):\?", text))
    example = dict(line.split("=", 1) for line in (DEPLOY / "example.env").read_text().splitlines() if "=" in line)
    assert asked == example.keys()
    assert set(example.values()) == {""}
    secrets = re.findall(r"^ *(\w*(?:PASSWORD|SECRET)\w*): (.*)$", text, re.M)
    assert secrets
    assert all(value.startswith("${") for _, value in secrets)
    for ignored in (".dockerignore", ".gitignore"):
        assert "deploy/.env" in (REPOSITORY / ignored).read_text().splitlines()


def test_our_environment_is_what_the_package_reads_and_names_services():
    code = "\n".join(file.read_text() for file in (REPOSITORY / "pyspark_ledger").rglob("*.py"))
    for service in OURS.values():
        environment = service["environment"]
        assert {name for name in environment if name.startswith("LEDGER_") and name not in code} == set()
        servers, _, chroot = environment["LEDGER_ZOOKEEPER"].partition("/")
        assert {server.partition(":")[0] for server in servers.split(",")} <= SERVICES.keys()
        assert chroot
        assert "endpoint_override=minio:9000" in environment["LEDGER_STORAGE"]


def test_the_ensemble_knows_all_of_its_servers():
    servers = {name: service for name, service in SERVICES.items() if service["image"].startswith("zookeeper:")}
    assert {service["environment"]["ZOO_MY_ID"] for service in servers.values()} == {"1", "2", "3"}
    for name, service in servers.items():
        number = service["environment"]["ZOO_MY_ID"]
        assert service["hostname"] == name
        assert f"server.{number}={name}:2888:3888;2181" in service["environment"]["ZOO_SERVERS"].split()


# -- Prometheus and Grafana -------------------------------------------------------------------------------------


def test_prometheus_takes_its_configuration_and_every_target_is_a_service():
    checked = subprocess.run(
        [program("promtool"), "check", "config", "--syntax-only", str(DEPLOY / "prometheus.yml")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    mounted = {volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]}
    assert [f"/etc/prometheus/{file}" for file in config["rule_files"]] == ["/etc/prometheus/alerts.yml"]
    assert {"/etc/prometheus/alerts.yml", "/etc/prometheus/prometheus.yml"} <= mounted
    for job in config["scrape_configs"]:
        for target in job["static_configs"][0]["targets"]:
            service, _, port = target.partition(":")
            if service in OURS:
                assert int(port) == default_port(OURS[service]["command"][0])
            else:
                assert f"metricsProvider.httpPort={port}" in SERVICES[service]["environment"]["ZOO_CFG_EXTRA"]
    assert {"ledger", "ledger-maintain"} <= {job["job_name"] for job in config["scrape_configs"]}


def test_grafana_finds_prometheus_and_the_dashboard():
    [source] = yaml.safe_load((DEPLOY / "grafana" / "datasources" / "prometheus.yaml").read_text())["datasources"]
    service, _, port = source["url"].removeprefix("http://").partition(":")
    assert (source["type"], service in SERVICES, port) == ("prometheus", True, "9090")
    [provider] = yaml.safe_load((DEPLOY / "grafana" / "dashboards" / "ledger.yaml").read_text())["providers"]
    targets = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert any(target.startswith(f"{provider['options']['path']}/") for target in targets)
    assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in targets


# -- the container file -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["deploy/Dockerfile", "examples/Dockerfile.maintain"])
def test_a_container_file_is_pinned_runs_as_nobody_special_and_installs_extras_that_there_are(file):
    text = (REPOSITORY / file).read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    words = [word for word, _ in lines]
    assert set(words) <= {"FROM", "COPY", "RUN", "USER", "WORKDIR", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert words[0] == "FROM"
    assert re.fullmatch(r"python:3\.\d+-slim", lines[0][1])
    python = tuple(map(int, re.findall(r"\d+", lines[0][1])[:2]))
    assert python >= (3, 11)
    assert words.index("RUN") < words.index("USER") < words.index("ENTRYPOINT")
    assert next(rest for word, rest in lines if word == "USER") != "root"
    assert yaml.safe_load(next(rest for word, rest in lines if word == "ENTRYPOINT"))[0] == "pyspark-ledger"
    extras = re.search(r"/source\[([\w,]+)\]", text)[1].split(",")
    assert set(extras) <= EXTRAS.keys()
    assert "cli" in extras
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert {".git", ".venv", "deploy/.env"} <= set(ignored), "COPY . would take them along"


def test_the_docs_say_that_nobody_has_run_it_and_name_every_port():
    page = (REPOSITORY / "docs" / "deploy.md").read_text()
    assert re.search(r"nobody has\s+run", page)
    for service in SERVICES.values():
        for port in service.get("ports", []):
            assert PORT.fullmatch(port)[1] in page, port
    for line in re.findall(r"^docker .*$", page, re.M):
        assert shlex.split(line)[1] in ("compose", "build", "run")
