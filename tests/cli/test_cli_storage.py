"""``namespace move-storage`` and ``set-storage`` on a real ZooKeeper, with a producer in another process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient

SCHEMA = pa.schema([("v", pa.int64())])

# Writes number after number; when the storage moves it opens the topic again, as its error says, and goes on.
PRODUCER = """
import sys
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.errors import LedgerError

n, refused = 0, set()
with LedgerClient(sys.argv[1]) as client:
    while True:
        producer = client.producer("orders", "writer", compression="lz4")
        try:
            while True:
                producer.send({"v": n}, sequence_id=n).result()
                print(n, *sorted(refused), flush=True)
                n += 1
        except LedgerError as error:
            if not error.code.startswith("LEDGER_STORAGE_MOV"):
                raise
            refused.add(error.code)
"""


@pytest.fixture
def client(namespace, storage_root, tmp_path, monkeypatch) -> Iterator[LedgerClient]:
    monkeypatch.chdir(tmp_path)  # where reports go
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", SCHEMA)
        yield client


def run(client: LedgerClient, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--zookeeper", client.zookeeper, "namespace", *arguments])


def report(folder: Path, command: str) -> dict[str, object]:
    newest = sorted(folder.glob(f"pyspark-ledger-{command}-*.json"), key=lambda path: path.stat().st_mtime_ns)[-1]
    return json.loads(newest.read_text())


def read(zookeeper: str) -> list[int]:
    with LedgerClient(zookeeper) as client:
        return [record["v"] for record in client.reader("orders", end="latest")]


def test_a_producer_goes_on_after_the_storage_has_moved_I1(client, namespace, storage_root, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", PRODUCER, namespace], stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(20):
            assert process.stdout.readline()
        moved = run(client, "move-storage", "--to", str(tmp_path / "new"), "--yes", "--json")
        assert moved.exit_code == 0, moved.output
        told: list[str] = []
        while "LEDGER_STORAGE_MOVED" not in told:
            told = process.stdout.readline().split()
            assert told, "the producer has ended"
        last = int(process.stdout.readline().split()[0])
    finally:
        process.kill()
        process.communicate()
    deleted = run(client, "move-storage", "--delete-old", "--yes")
    assert deleted.exit_code == 0, deleted.output
    shutil.rmtree(storage_root)
    records = read(namespace)
    assert records == [*range(len(records))]
    assert last in records
    done = json.loads(moved.stdout)
    assert Path(done["report"]).name.startswith("pyspark-ledger-move-storage-")
    assert (done["missing_files"], done["topics"]) == (0, 1)


def test_what_would_be_done_is_shown_and_nothing_happens_without_yes(client, namespace, storage_root, tmp_path):
    for options in (["--dry-run"], ["--dry-run", "--yes"], []):
        shown = run(client, "move-storage", "--to", str(tmp_path / "new"), *options)
        assert str(tmp_path / "new") in shown.stdout
        assert (shown.exit_code, "LEDGER_NOT_CONFIRMED" in shown.stderr) == (not options, not options)
    assert [path.name for path in tmp_path.iterdir()] == ["storage"]
    wrong = run(client, "move-storage", "--abandon", "--delete-old", "--yes")
    assert (wrong.exit_code, "LEDGER_INVALID_OPTION" in wrong.stderr) == (1, True)


def test_a_move_is_reported_also_if_it_fails(client, storage_root, tmp_path):
    moved = run(client, "move-storage", "--to", str(tmp_path / "new"), "--yes")
    assert moved.exit_code == 0, moved.output
    told = report(tmp_path, "move-storage")
    assert (told["outcome"], told["done"]["storage"]) == ("done", (tmp_path / "new").as_uri())
    (tmp_path / "link").symlink_to(tmp_path / "new")
    again = run(client, "move-storage", "--to", str(tmp_path / "link"), "--yes")
    assert (again.exit_code, "LEDGER_SAME_STORAGE" in again.stderr) == (1, True)
    assert report(tmp_path, "move-storage")["outcome"] == "failed"
    none = run(client, "move-storage", "--abandon", "--yes")
    assert (none.exit_code, "LEDGER_NOT_MOVING" in none.stderr) == (1, True)


def test_a_folder_that_was_moved_by_hand_is_set(client, namespace, storage_root, tmp_path):
    with client.producer("orders") as producer:
        producer.send({"v": 0})
    refused = run(client, "set-storage", str(tmp_path / "new"), "--yes")
    assert (refused.exit_code, "LEDGER_NOT_THE_STORAGE" in refused.stderr) == (1, True)
    Path(storage_root).rename(tmp_path / "new")
    shown = run(client, "set-storage", str(tmp_path / "new"))
    assert (shown.exit_code, "the files are there" in shown.stdout) == (1, True)
    done = run(client, "set-storage", str(tmp_path / "new"), "--yes", "--report", "mine.json")
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "mine.json").read_text())["done"] == {"storage": (tmp_path / "new").as_uri()}
    assert read(namespace) == [0]
