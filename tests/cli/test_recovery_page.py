"""The commands of docs/recovery.md, as they stand there, on real servers: every symptom is made, and then goes away."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pyspark_ledger import LedgerClient
from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.cli import main
from pyspark_ledger.client import namespace_of
from pyspark_ledger.errors import DataLoss, LedgerError, Unavailable
from pyspark_ledger.files.storage import open_storage
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.lifecycle.backup import Backup
from pyspark_ledger.lifecycle.moving import Mover
from pyspark_ledger.lifecycle.rates import Pace
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "recovery.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])


def commands(section: str) -> list[str]:
    return re.findall(r"^ *pyspark-ledger (.*)$", SECTIONS[section], re.M)


class Site:
    """A namespace with a topic, on a server of its own, and somebody who works through a section of the page."""

    def __init__(self, server: LocalZooKeeper, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.data, self.storage = folder / "zookeeper", folder / "storage"
        self._left: list[str] = []

    def client(self) -> LedgerClient:
        return LedgerClient(self.server.address, timeout_s=10.0)

    def write(self, *numbers: int) -> None:
        with self.client() as client, client.producer("orders") as producer:
            for number in numbers:
                producer.send({"k": str(number % 2), "n": number})
                producer.flush()

    def read(self, **options: bool) -> list[int]:
        with self.client() as client:
            return [record["n"] for record in client.reader("orders", end="latest", **options)]

    def back_up(self) -> None:
        """What maintenance does every minute."""
        with self.client() as client:
            assert not Backup(namespace_of(client)).run(Pace(SYSTEM_CLOCK, lambda _: None)).failed

    def files(self) -> list[Path]:
        """Of the topic's entries, oldest first."""
        with self.client() as client:
            folder = self.storage / client.topic("orders").uuid
        return sorted(folder.rglob("*.arrow"), key=lambda file: file.stat().st_mtime_ns)

    # -- what the page says ------------------------------------------------------------------------------------------

    def open(self, section: str, **instead: str) -> None:
        """Begins with a section; what is an example there is replaced by what this site has."""
        self._left = commands(section)
        for example, real in instead.items():
            self._left = [line.replace(EXAMPLES[example], real) for line in self._left]

    def next(self, expected: str, *, fails: bool = False) -> str:
        """Runs the section's next command, which must begin so. Returns what it prints."""
        line = self._left.pop(0)
        assert line.startswith(expected), f"the page says: pyspark-ledger {line}"
        result = CliRunner().invoke(main, ["--zookeeper", self.server.address, *shlex.split(line, comments=True)])
        assert (result.exit_code != 0) == fails, result.output
        assert "LEDGER_UNEXPECTED_ERROR" not in result.output
        return result.output

    def close(self) -> None:
        assert not self._left, "the page has more commands than were rehearsed"


EXAMPLES = {
    "storage": "s3://bucket/prefix",
    "larger": "/mnt/larger/ledger",
    "entry": "3:17",
    "uuid": "5f0c1d3e-8f1b-4c6e-9d55-0f6f3b7a2c11",
}


@pytest.fixture
def site(tmp_path, monkeypatch) -> Iterator[Site]:
    monkeypatch.chdir(tmp_path)  # reports and backups go there
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)
    with LocalZooKeeper(data_dir=tmp_path / "zookeeper", fsync=False) as server:
        site = Site(server, tmp_path)
        with LedgerClient(server.address, str(site.storage)) as client:
            client.create_topic("orders", SCHEMA, key="k")
            client.create_cursor("orders", "billing")
        site.write(1, 2, 3)
        yield site
        site.close()


def lose_zookeeper(site: Site) -> None:
    site.server.kill()
    for data in site.data.rglob("version-2"):
        shutil.rmtree(data)
    site.server.restart()


def test_zookeeper_was_lost_I1_I16(site):
    site.back_up()
    site.open("ZooKeeper was lost", storage=str(site.storage))
    site.write(4)  # after the backup, and so lost
    lose_zookeeper(site)
    with (
        LedgerClient(site.server.address, str(site.storage)) as client,
        pytest.raises(DataLoss, match=r"LEDGER_NAMESPACE_LOST.*namespace rebuild --storage"),
    ):
        client.create_topic("orders", SCHEMA)
    assert "orders" in site.next("namespace rebuild")
    site.next("namespace rebuild")
    assert site.read() == [1, 2, 3]
    site.write(5)
    with site.client() as client:
        saved = site.folder / "all.ledger-backup"
        assert [cursor.name for cursor in client.cursors("orders")] == ["billing"]
    run(site, "namespace backup", str(saved))
    lose_zookeeper(site)
    assert "orders" in site.next("namespace restore")
    site.next("namespace restore")
    assert site.read() == [1, 2, 3, 5]
    [*reports] = site.folder.glob("pyspark-ledger-*.json")
    assert reports
    assert all(json.loads(report.read_text()) for report in reports)


def run(site: Site, *words: str) -> None:
    line = [*words[0].split(), *words[1:]]
    result = CliRunner().invoke(main, ["--zookeeper", site.server.address, *line])
    assert result.exit_code == 0, result.output


def roll_back(site: Site, *lost: int) -> None:
    """Writes, saves what was written as maintenance does, and restores the state of the servers before that."""
    before = site.folder / f"before-{uuid4().hex}"
    site.server.kill()
    shutil.copytree(site.data, before)
    site.server.restart()
    site.write(*lost)
    site.back_up()
    site.server.kill()
    shutil.rmtree(site.data)
    shutil.copytree(before, site.data)
    site.server.restart()


def notice(site: Site) -> None:
    """Gc is the first to look."""
    with site.client() as client, pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        gc.collect(namespace_of(client).log("orders"))
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        site.write(99)


def test_zookeeper_was_rolled_back_I1_I16_I18(site):
    site.open("ZooKeeper was rolled back")
    roll_back(site, 4, 5)
    notice(site)
    assert "--bring-back" in site.next("topics repair orders", fails=True)  # it waits for a decision
    site.next("topics repair orders --bring-back")
    assert site.read() == [1, 2, 3, 4, 5]
    roll_back(site, 6)
    notice(site)
    site.next("topics repair orders --accept-loss")
    assert site.read() == [1, 2, 3, 4, 5]
    roll_back(site, 7)
    notice(site)
    assert "orders" in site.next("namespace repair", fails=True)
    site.next("namespace repair --bring-back --accept-loss")
    site.write(8)
    assert site.read() == [1, 2, 3, 4, 5, 7, 8]


def test_a_file_is_missing_or_damaged_I16(site):
    site.open("A file is missing or damaged", entry="0:1")
    damaged = site.files()[1]
    copy = damaged.read_bytes()
    damaged.write_bytes(copy[:-9])
    with pytest.raises(LedgerError, match=damaged.name):
        site.read()
    assert damaged.name in site.next("topics verify orders", fails=True)
    assert "--yes" in site.next("topics skip-damaged orders 0:1", fails=True)
    site.next("topics skip-damaged orders 0:1")
    with pytest.raises(DataLoss, match=r"LEDGER_ENTRY_LOST.*rack 3"):
        site.read()
    assert site.read(fail_on_data_loss=False) == [1, 3]
    damaged.write_bytes(copy)
    site.next("topics skip-damaged orders 0:1 --undo")
    assert site.read() == [1, 2, 3]


def test_the_storage_is_not_where_it_was_I16(site):
    larger = site.folder / "larger"
    site.open("The storage is not where it was", larger=str(larger))
    site.storage.rename(larger)
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_MISSING"):
        site.write(4)
    site.next("namespace set-storage")
    site.next("namespace set-storage")
    site.write(5)
    assert site.read() == [1, 2, 3, 5]


def test_the_storage_has_to_move_I1_I16(site):
    new = site.folder / "new"
    site.open("The storage has to move", storage=str(new))
    site.next("namespace move-storage --to")
    site.next("namespace move-storage --to")
    assert site.read() == [1, 2, 3]
    site.next("namespace move-storage --delete-old")
    assert site.read() == [1, 2, 3]
    with site.client() as client:  # a mover dies after it has stopped everybody
        mover = Mover(namespace_of(client).metadata)
        mover.begin(mover.namespace(), open_storage(str(site.folder / "newer")).uri)
    with pytest.raises(LedgerError, match="LEDGER_STORAGE_MOVING"):
        site.write(4)
    site.next("namespace move-storage --abandon")
    site.write(5)
    assert site.read() == [1, 2, 3, 5]


def test_files_that_nobody_needs_I12(site):
    stranger = str(uuid4())
    site.open("Files that nobody needs", uuid=stranger)
    (site.storage / stranger / "00000000").mkdir(parents=True)
    (site.storage / stranger / "00000000" / "left").write_bytes(b"x")
    assert stranger in site.next("namespace gc --dry-run")
    site.next("namespace gc")
    assert (site.storage / stranger).is_dir()
    site.next(f"namespace gc --remove-folder {stranger}", fails=True)
    site.next(f"namespace gc --remove-folder {stranger} --yes")
    assert not (site.storage / stranger).exists()
    assert site.read() == [1, 2, 3]


def test_the_backup_is_too_old(site):
    site.open("The backup is too old")
    [marker] = site.storage.glob("ledger-namespace-*")
    site.next("maintain --once")
    assert any((site.storage / names.recovery_folder(marker.name)).rglob("*.nodes"))
    assert "orders" in site.next("namespace backup")
    assert (site.folder / "all.ledger-backup").stat().st_size


def test_is_everything_there(site):
    site.open("Is everything there?")
    for _ in range(3):
        site.next("topics verify")


REHEARSED: dict[str, Callable[[Site], None]] = {
    "ZooKeeper was lost": test_zookeeper_was_lost_I1_I16,
    "ZooKeeper was rolled back": test_zookeeper_was_rolled_back_I1_I16_I18,
    "A file is missing or damaged": test_a_file_is_missing_or_damaged_I16,
    "The storage is not where it was": test_the_storage_is_not_where_it_was_I16,
    "The storage has to move": test_the_storage_has_to_move_I1_I16,
    "Files that nobody needs": test_files_that_nobody_needs_I12,
    "The backup is too old": test_the_backup_is_too_old,
    "Is everything there?": test_is_everything_there,
}


def test_every_section_with_commands_is_rehearsed():
    assert {section for section in SECTIONS if commands(section)} == set(REHEARSED)
