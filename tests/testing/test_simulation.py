"""Simulated histories: whatever happens to the processes, the store and the disk, the checker finds nothing, everybody
gets on afterwards, and nothing is left behind."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import islice

import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.cursors.revision import SeenRevision
from pyspark_ledger.errors import CorruptData, DataLoss, InvalidInput
from pyspark_ledger.lifecycle import gc, retention
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.ephemeral import Ephemeral
from pyspark_ledger.testing.checker import Report
from pyspark_ledger.testing.disk import MemoryStorage
from pyspark_ledger.testing.history import Reset
from tests.simulation.keepers import Operator
from tests.simulation.play import SCENES, Failure, Play, Rollback, era
from tests.simulation.readers import SubscribedQuery
from tests.simulation.subscribers import Resetter
from tests.simulation.writers import Writer
from tests.support import REPOSITORY, examples

HISTORIES = examples(2)  # of each scene; make simulate plays a thousand


def seeds(scene: str, count: int, first: int = 0) -> list[int]:
    """The first seeds that give histories of a kind."""
    return list(islice((seed for seed in itertools.count(first) if Play(seed).scene == scene), count))


@pytest.mark.parametrize("scene", SCENES)
def test_whatever_happens_there_is_no_anomaly_and_everybody_gets_on(scene):
    for seed in seeds(scene, HISTORIES):
        report = Play(seed).run()
        assert report.anomalies == [], f"python -m tests.simulation --seed {seed}\n{report}"


def wrong(scene: str, count: int = 12, first: int = 0) -> set[str]:
    """What is found in histories of a kind. ``first``: where one is that shows it, so that it is found soon; when the
    simulation has changed, one after it does."""
    found: set[str] = set()
    for seed in seeds(scene, count, first):
        try:
            found |= Play(seed).run().names
        except Exception as error:  # a play that could not go on has found something, too
            found.add(type(error).__name__)
        if found:
            break
    return found


def test_an_append_that_takes_unknown_for_not_done_is_found_out(monkeypatch):
    monkeypatch.setattr(protocol, "look_for", lambda log, prepared, **_: lambda: False)
    assert wrong("the log", 40, first=121) & {"duplicate", "aborted read", "non-monotonic send"}


def test_a_gc_that_believes_in_an_old_list_of_what_is_named_is_found_out(monkeypatch):
    monkeypatch.setattr(gc, "references", lambda log, view, *since: iter(()))
    with pytest.raises(Exception, match="LEDGER_FILE_MISSING"):
        for seed in seeds("the log", 4):
            Play(seed).run()


def test_a_retention_that_holds_nothing_back_is_found_out_I15(monkeypatch):
    monkeypatch.setattr(retention, "held_by", lambda log, view: iter(()))
    with pytest.raises(DataLoss, match="LEDGER_TRIMMED"):
        for seed in seeds("a log that is given up", 4):
            Play(seed).run()


def test_a_gc_that_leaves_something_is_found_out_I12(monkeypatch):
    monkeypatch.setattr(gc, "collect", lambda log, **_: None)
    with pytest.raises(Failure, match="files of 'table' that nothing names"):
        Play(0, "a table", 0.03).run()


def test_a_lock_that_stays_is_found_out_because_somebody_does_not_get_on_I16(monkeypatch):
    monkeypatch.setattr(Ephemeral, "release", lambda node: None)
    with pytest.raises(Failure, match=r"compactor-3 does not get on.*LEDGER_COMPACTION_RUNNING"):
        Play(0, "a table", 0.0).run()


def test_files_that_are_not_synced_are_found_out_when_the_power_fails_I1(monkeypatch):
    def power_fails(seed: int) -> Report:
        play = Play(seed, "the log", 0.0)

        def cut() -> None:
            for process in play.cast:
                process.kill()
            play.stage.disk.power_loss(play.stage.chance)

        play.stage.later(4.0, cut)
        return play.run()

    assert power_fails(1).anomalies == []
    monkeypatch.setattr(MemoryStorage, "close_file", lambda disk, path, file: setattr(file, "data", bytes(file.data)))
    with pytest.raises(CorruptData, match=r"\.arrow is (?:missing|damaged)"):
        power_fails(1)


def test_a_rollback_that_nobody_looks_for_is_found_out_I18(monkeypatch):
    """Few histories come to harm: mostly the versions of nodes keep a writer out that has not noticed."""

    def comes_to_harm(seed: int) -> bool:
        try:
            return bool(Play(seed, "a rollback", 0.0).run().anomalies)
        except CorruptData:
            return True
        except InvalidInput as error:  # the operator wants to repair what nobody has seen
            if error.code != "LEDGER_NOTHING_TO_REPAIR":
                raise
            return False

    assert not comes_to_harm(20)
    for look in ("_check_follows", "refused", "check_has_commit"):
        monkeypatch.setattr(Log, look, lambda *_: None)
    assert any(map(comes_to_harm, range(20, 300))), "seed 20 did; when the simulation has changed, another one does"


class HurriedResetter(Resetter):
    thinks_s = 0.2


class RareWriter(Writer):
    thinks_s = 3.0


def test_a_reset_that_is_taken_for_a_lost_one_is_found_out(monkeypatch):
    """A rollback has lost a reset that the query follows, and no record, and the next reset has its number: what that
    was to have read again never comes. One in two hundred histories is such a one, if there is hardly more than resets
    and rollbacks. (What must happen then is tested in ``cursors/test_lost_resets.py``.)"""
    monkeypatch.setitem(SCENES, "a rollback", [RareWriter, SubscribedQuery, HurriedResetter, Operator])

    def found(first: int, stop: int) -> set[str]:
        histories = (Play(seed, "a rollback", 0.0).run().names for seed in range(first, stop))
        return next((names for names in histories if names), set())

    assert found(91, 92) == set()
    monkeypatch.setattr(SeenRevision, "is_of", lambda seen, cursor: seen.number <= cursor.revision)
    assert "unseen" in found(91, 2_000), "seed 91 showed it; when the simulation has changed, another one does"


def test_resets_that_a_backup_has_brought_back_are_part_of_what_comes_after_it():
    """And of what was under way at the rollback nothing is known, before it and after it."""
    skip = Reset(process="r", number=1, subscription="s", told="ok", asked_at=1, told_at=2, revision=1, keeps_acks=True)
    lost = replace(skip, number=2, asked_at=3, told_at=4, revision=2)
    doubtful = replace(skip, number=3, asked_at=9, told_at=11, revision=3)
    rollback = Rollback(10.0, (), (), {"s": 1})
    before = [event for event in era([skip, lost, doubtful], None, rollback) if isinstance(event, Reset)]
    assert [(event.number, event.told) for event in before] == [(1, "ok"), (2, "ok"), (3, "unknown")]
    assert rollback.kept_resets(before) == [replace(skip, repeated=True)]
    after = [event for event in era([skip, lost, doubtful], rollback, None) if isinstance(event, Reset)]
    assert [(event.number, event.told) for event in after] == [(3, "unknown")]


@pytest.mark.parametrize("seed", [3, 11])
def test_the_same_seed_gives_the_same_history_in_any_process(seed):
    """Also where Python orders its sets in another way."""
    said = [history(seed, hash_seed) for hash_seed in ("1", "2")]
    assert said[0] == said[1]
    assert len(said[0]) > 100


def history(seed: int, hash_seed: str) -> str:
    program = (
        "from pyspark_ledger.testing.history import merge, to_line\n"
        "from tests.simulation.play import Play\n"
        f"play = Play({seed})\n"
        "play.run()\n"
        "print(*map(to_line, merge(play.events.values())), sep='\\n')\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return re.sub(r"process \d+", "process", done.stdout)  # errors name it
