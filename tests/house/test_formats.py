"""What older formats stored is read by this code, for ever: golden files, made once with the code of their time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.make import make
from tests.support import REPOSITORY
from tests.support.golden import file_samples, meaning, nodes, opened, plain
from tests.support.records import KEYS

FORMATS = sorted((REPOSITORY / "tests" / "golden").glob("format*"))
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
            assert type(record).__name__ == line["kind"]
            assert_agrees(plain(record), line["record"], line["path"])
    for number, (golden, found) in enumerate(file_samples(folder)):
        assert_agrees(found, golden, f"file sample {number}")
    golden = json.loads((folder / "meaning.json").read_text())
    assert_agrees(meaning(*opened(folder)), golden, folder.name)


def assert_is_complete(folder: Path) -> None:
    """Every kind of file is there."""
    stored = {line["path"].rpartition("/")[2]: line["record"] for line, _, _ in nodes(folder, "nodes.json")}
    found = json.loads((folder / "meaning.json").read_text())
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


def test_golden_files_of_the_present_format_can_be_made(tmp_path):
    """So that the next format's are made in the same way."""
    folder = tmp_path / "golden"
    make(folder)
    assert_is_complete(folder)
    assert_is_read(folder)
    assert {type(key) for _, key, _ in nodes(folder, "node_samples.json")} == set(KEYS)
