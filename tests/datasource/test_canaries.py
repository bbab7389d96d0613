"""Secrets are given in every way there is, and then looked for everywhere: they are nowhere."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from pyspark_ledger.base.settings import Settings
from pyspark_ledger.files import access
from pyspark_ledger.zk_metadata.session import split_connect_string
from tests.support import REPOSITORY

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def canary(what: str) -> str:
    return f"canary-{what}-{secrets.token_hex(12)}"


SECRETS = {
    "zookeeper.password": canary("digest"),
    "storage.accessKey": canary("access"),
    "storage.secretKey": canary("secret"),
    "storage.sessionToken": canary("token"),
}


def spellings(secret: str) -> set[bytes]:
    """As text, in the widths that the JVM keeps it in, and as base64, wherever in a longer text it begins."""
    data = secret.encode()
    shifted = {base64.b64encode(b"x" * shift + data)[4 if shift else 0 : -4] for shift in range(3)}
    return {data, secret.encode("utf-16-le"), secret.encode("utf-16-be"), data.hex().encode(), *shifted}


SPELLINGS = {spelling for secret in SECRETS.values() for spelling in spellings(secret)}


def found_in(data: bytes) -> bool:
    return any(spelling in data for spelling in SPELLINGS)


@pytest.fixture(scope="module")
def store(moto_server) -> tuple[str, dict[str, str]]:
    host, port = moto_server
    settings = {"storage.endpoint": f"{host}:{port}", "storage.scheme": "http", "storage.region": "us-east-1"}
    settings |= {name: secret for name, secret in SECRETS.items() if name.startswith("storage.")}
    client, _ = access.file_system("s3://canaries/x?allow_bucket_creation=true", settings)
    client.create_dir("canaries")
    return "s3://canaries", settings


@pytest.fixture(scope="module")
def played(zookeeper, store, tmp_path_factory) -> Path:
    """Where everything is that a Spark application has left, and is seen of it. By options, and by a profile."""
    root, settings = store
    folder = tmp_path_factory.mktemp("canaries")
    ways = {
        way: {
            "zookeeper": f"{zookeeper}/canary-{way}-{secrets.token_hex(4)}",
            "storage": f"{root}/{way}",
            "zookeeper.password": f"me:{SECRETS['zookeeper.password']}",
            **settings,
        }
        for way in ("options", "profile")
    }
    config = folder / "config.toml"
    config.touch(mode=0o600)
    config.write_text("[prod]\n" + "".join(f'"{name}" = "{text}"\n' for name, text in ways["profile"].items()))
    (folder / "ways.json").write_text(json.dumps({way: given["zookeeper"] for way, given in ways.items()}))
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "LEDGER_"))}
    environment |= {"LEDGER_CONFIG": str(config), "AWS_EC2_METADATA_DISABLED": "true", "PYTHONPATH": str(REPOSITORY)}
    environment |= {"TMPDIR": str(folder / "spark" / "local")}
    command = [sys.executable, str(REPOSITORY / "tests" / "support" / "canary_driver.py"), str(folder / "spark")]
    given = json.dumps({"options": ways["options"], "profile": {"profile": "prod"}})
    done = subprocess.run(command, input=given.encode(), capture_output=True, env=environment, timeout=550, check=False)
    (folder / "spark").mkdir(exist_ok=True)
    (folder / "spark" / "stdout").write_bytes(done.stdout)
    (folder / "spark" / "stderr").write_bytes(done.stderr)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    return folder


def nodes(namespace: str) -> Iterator[tuple[str, bytes]]:
    servers, root = split_connect_string(namespace)
    client = KazooClient(servers, auth_data=[("digest", f"me:{SECRETS['zookeeper.password']}")])
    client.start()
    try:
        waiting = [root]
        while waiting:
            path = waiting.pop()
            waiting += [f"{path}/{child}" for child in client.get_children(path)]
            yield path, client.get(path)[0] + repr(client.get_acls(path)).encode()
    finally:
        client.stop()
        client.close()


def test_no_secret_is_in_what_spark_shows_logs_and_keeps_I19(played):
    files = [path for path in (played / "spark").rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"stderr", "ui-0", "query-options", "plan-batch-profile", "error-options-store"} <= names
    assert any("checkpoint-profile" in str(path) for path in files)
    assert any("/events/" in str(path) for path in files)
    assert b"canary_options" in b"".join(path.read_bytes() for path in files if "/events/" in str(path))
    assert b"DEBUG" in (played / "spark" / "stderr").read_bytes()
    found = [str(path.relative_to(played)) for path in files if found_in(path.read_bytes()) or found_in(bytes(path))]
    assert found == []


def test_no_secret_is_in_a_node_or_a_file_I19(played, store):
    for namespace in json.loads((played / "ways.json").read_text()).values():
        kept = dict(nodes(namespace))
        assert any(b"s3://canaries" in data for data in kept.values())
        assert [path for path, data in kept.items() if found_in(data) or found_in(path.encode())] == []
    root, settings = store
    client, _ = access.file_system(root, settings)
    from pyarrow.fs import FileSelector, FileType

    infos = list(client.get_file_info(FileSelector("canaries", recursive=True)))
    files = [info.path for info in infos if info.type == FileType.File]
    assert len(files) > 4
    assert [path for path in files if found_in(client.open_input_file(path).read()) or found_in(path.encode())] == []


def test_no_secret_is_in_what_the_command_line_says_I19(played):
    """Also where it shows tracebacks."""
    config = played / "config.toml"
    commands = (
        "topics describe none", "topics read orders", "namespace describe", "topics lst",
        "--set storage.endpoint=127.0.0.1:9 --set storage.connectTimeout=1 topics read orders",
        "--set storage.sasToken=x topics read orders",
    )  # fmt: skip
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "LEDGER_"))}
    environment |= {"LEDGER_CONFIG": str(config), "LEDGER_PROFILE": "prod", "AWS_EC2_METADATA_DISABLED": "true"}
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "pyspark_ledger.cli", "--verbose", *command.split()],
            capture_output=True, env=environment, cwd=REPOSITORY, timeout=200, check=False,
        )  # fmt: skip
        assert done.stdout or done.stderr, command
        assert not found_in(done.stdout + done.stderr), command


def test_what_is_searched_for_would_be_found(played):
    """Or nothing would be proved."""
    assert found_in((played / "config.toml").read_bytes())
    for secret in SECRETS.values():
        assert all(found_in(base64.b64encode(b"x" * shift + secret.encode() + b"tail")) for shift in range(7))
    assert not found_in(repr(Settings.of({"profile": "prod", **SECRETS})).encode())
