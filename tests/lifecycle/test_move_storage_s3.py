"""Between a folder and an object store, both ways, and between two object stores."""

from __future__ import annotations

import pytest

from pyspark_ledger.errors import Conflict
from pyspark_ledger.lifecycle import move_storage
from tests.support.moving import FILES, TOPIC, Movable


def _other(s3_root: str) -> str:
    return s3_root.replace("?", "-other?")


@pytest.mark.parametrize("way", ["folder to S3", "S3 to folder", "S3 to S3"])
def test_the_storage_moves_between_kinds_of_storage_I1(tmp_path, s3_root, monkeypatch, way):
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)
    folder = str(tmp_path / "folder")
    old, new = {
        "folder to S3": (folder, s3_root),
        "S3 to folder": (s3_root, folder),
        "S3 to S3": (s3_root, _other(s3_root)),
    }[way]
    movable = Movable(tmp_path, old, new)
    before, client = movable.everything(), movable.client()
    producer = client.producer(TOPIC)
    producer.send({"k": "a", "n": 7}).result()
    done = move_storage.move(movable.mover(), new)
    assert (done.copied, done.missing_files) == (FILES + 1, 0)
    with pytest.raises(Conflict, match="LEDGER_STORAGE_MOVED"):  # also where the marker was looked at only once
        producer.send({"k": "a", "n": 8}).result()
    left = move_storage.delete_old(movable.mover())
    assert left.files in (FILES + 1, FILES + 2)  # perhaps with what the producer has staged in vain
    found = movable.everything()
    assert found == {**before, "records": [*before["records"], 7], "state": found["state"]}
    for act in (movable.write, movable.consume, movable.bill):
        act(client, 1)
    assert movable.everything()["records"][-2:] == [7, 1]
