"""What older formats stored is read by this code, for ever: golden files, made once with the code of their time. What
format 1 stored is read once, by the upgrade."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.files.storage import open_storage
from pyspark_ledger.lifecycle.upgrade import Upgrade
from pyspark_ledger.zk_metadata import codec
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata
from tests.golden.make import LIMITS, make
from tests.support import REPOSITORY
from tests.support.golden import file_samples, is_format_1, meaning, nodes, opened, plain, put_old_nodes
from tests.support.records import KEYS

FORMATS = sorted((REPOSITORY / "tests" / "golden").glob("format*"))
SINCE = {"sinks": "Sink"}  # nodes that had no content then: what they hold now has a default that is true of them
every_format = pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)


def assert_agrees(found: Any, golden: Any, where: str) -> None:
    """What was stored is what is found. A record may have fields that came later."""
    if isinstance(golden, dict):
        assert isinstance(found, dict), where
        for name, value in golden.items():
            assert name in found, f"{where} has no {name} any more"
            assert_agrees(found[name], value, f"{where}, {name}")
    elif isinstance(golden, list):
        assert len(found) == len(golden), where
        for number, (each, value) in enumerate(zip(found, golden, strict=True)):
            assert_agrees(each, value, f"{where}[{number}]")
    else:
        assert found == golden, where


def assert_is_read(folder: Path) -> None:
    for name in ("node_samples.json", "nodes.json"):
        for line, _, record in nodes(folder, name):
            assert type(record).__name__.removeprefix("Old") in (line["kind"], SINCE.get(line["path"].split("/")[1]))
            assert_agrees(plain(record), line["record"], line["path"])
    for number, (golden, found) in enumerate(file_samples(folder)):
        assert_agrees(found, golden, f"file sample {number}")


def assert_means_the_same(folder: Path) -> None:
    assert_agrees(meaning(*opened(folder)), meant(folder), folder.name)


def meant(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "meaning.json").read_text())


def assert_is_complete(folder: Path) -> None:
    """Every kind of file is there."""
    stored = {line["path"].rpartition("/")[2]: line["record"] for line, _, _ in nodes(folder, "nodes.json")}
    found = meant(folder)
    assert len(found["t"]["index"]["nodes"]) == 2
    assert len(found["keyed"]["manifests"]) == 2
    assert any(commit["entries_file"] and commit["highest_file"] for commit in found["keyed"]["commits"])
    assert any(entry["mask"] for commit in found["keyed"]["commits"] for entry in commit["entries"])
    assert stored["dedup"]["producers_file"]
    assert stored["dedup"]["evicted_file"]
    assert stored["chunk-0000000001"]["file"]
    assert stored["=bob"]["file"]


@every_format
def test_golden_files_are_read(folder):
    assert_is_complete(folder)
    assert_is_read(folder)


def test_golden_files_of_the_present_format_mean_what_they_did():
    assert_means_the_same(FORMATS[-1])
    assert FORMATS[-1].name == f"format{codec.FORMAT}"


def test_golden_files_of_format_1_mean_what_they_did_after_the_upgrade(namespace, tmp_path):
    """Its open ledgers are sealed on the way, so the index has one leaf more: all others are as they were."""
    [folder] = [folder for folder in FORMATS if is_format_1(folder)]
    shutil.copytree(folder / "storage", tmp_path / "storage")
    put_old_nodes(folder, namespace, str(tmp_path / "storage"))
    with closing(ZooKeeperMetadata(namespace)) as metadata:
        Upgrade(metadata, limits=LIMITS).run()
        found, golden = meaning(metadata, open_storage(str(tmp_path / "storage"))), meant(folder)
    for topic in ("t", "keyed"):
        leaves, before = found[topic].pop("index")["leaves"], golden[topic].pop("index")["leaves"]
        assert_agrees(leaves[:-1], before, topic)
        assert leaves[-1]["first_commit"] > before[-1]["first_commit"]
    assert_agrees(found, golden, folder.name)


def test_golden_files_of_the_present_format_can_be_made(tmp_path):
    """So that the next format's are made in the same way."""
    folder = tmp_path / "golden"
    make(folder)
    assert_is_complete(folder)
    assert_is_read(folder)
    assert_means_the_same(folder)
    assert {type(key) for _, key, _ in nodes(folder, "node_samples.json")} == set(KEYS)
