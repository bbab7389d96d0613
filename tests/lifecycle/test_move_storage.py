"""The storage of a namespace moves while others use it: nothing is lost, and nobody writes into the former place."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.append.append import append
from pyspark_ledger.base import names
from pyspark_ledger.client import LedgerClient, client_of
from pyspark_ledger.errors import Conflict, InvalidInput, LedgerError, NotFound, Unavailable
from pyspark_ledger.files import storage
from pyspark_ledger.files.blobs import Blobs
from pyspark_ledger.files.storage import LocalStorage, open_storage
from pyspark_ledger.lifecycle import gc, move_storage
from pyspark_ledger.lifecycle.moving import Mover
from pyspark_ledger.log import folders, seal
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.memory import Crash, Faults, MemoryMetadata, MemoryServer
from tests.support.lifecycle import act_before
from tests.support.moving import FILES, SCHEMA, TOPIC, Movable, whatever_happens
from tests.support.worlds import stage


@pytest.fixture
def movable(tmp_path, monkeypatch) -> Movable:
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)
    monkeypatch.setattr(storage, "_make_durable", lambda _: None)  # nothing here is about power cuts
    return Movable(tmp_path)


def move(movable: Movable, **how: Any) -> move_storage.Moved:
    return move_storage.move(movable.mover(), movable.new, **how)


def marker(movable: Movable) -> str:
    return names.marker_file(movable.record().id)


def check_all_is_in(movable: Movable, folder: str, records: list[int]) -> None:
    """All that was there is in one root, and can be written on."""
    assert movable.record().storage == Path(folder).as_uri()
    assert movable.everything()["records"] == records
    movable.write(movable.client(), 100)
    movable.bill(movable.client(), 3)
    assert movable.everything()["records"] == [*records, 100]


def test_all_files_move_and_writing_goes_on_I1(movable):
    before = movable.everything()
    done = move(movable)
    assert done.copied == done.files == FILES
    movable.lose_old()
    assert movable.everything() == before
    check_all_is_in(movable, movable.new, before["records"])
    movable.consume(movable.client(), 1)


def test_a_plan_changes_nothing_and_says_what_is_there_already(movable):
    plan = move_storage.plan(movable.mover(), movable.new)
    assert (plan.topics, plan.outboxes, plan.files, plan.there, plan.is_done) == (2, 1, FILES, 0, False)
    assert not Path(movable.new).exists()
    assert movable.record().moves == 0
    move(movable)
    assert move_storage.plan(movable.mover(), movable.new).is_done


def test_files_that_are_not_there_and_were_not_are_told(movable):
    lost = newest_file(movable)
    Path(movable.old, lost).unlink()
    assert move(movable).missing == (lost,)


def newest_file(movable: Movable) -> str:
    log = movable.open().log(TOPIC)
    file = log.view().open_commits[-1].entries[0].file
    return names.staged_file(log.topic.uuid, file.epoch, file.uid)


def test_garbage_that_is_copied_goes_with_gc_I12(movable):
    stage(movable.open().log("empty"), 666)
    move(movable)
    log = movable.open().log("empty")
    copy = Path(movable.new) / log.topic.uuid
    assert len(list(copy.rglob("*.arrow"))) == 1
    log.limits = replace(log.limits, gc_grace_ms=0)
    gc.collect(log)
    assert list(copy.rglob("*.arrow")) == []


# -- processes that have the former root open -----------------------------------------------------------------------


def test_a_writer_is_refused_by_name_and_goes_on_after_it_has_opened_the_topic_again_I1(movable):
    client = movable.client()
    producer = client.producer(TOPIC)
    producer.send({"k": "a", "n": 7}).result()
    move(movable)
    for _ in range(2):
        with pytest.raises(Conflict, match=r"LEDGER_STORAGE_MOVED.*was moved to file:.*/new.*open the topic again"):
            producer.send({"k": "a", "n": 8}).result()
    movable.lose_old()
    movable.write(client, 8)  # the same client
    assert movable.everything()["records"][-2:] == [7, 8]


def test_a_reader_is_told_that_the_storage_was_moved_and_not_that_data_are_lost(movable):
    client = movable.client()
    reader = iter(client.reader(TOPIC))
    next(reader)
    log = movable.open().log(TOPIC)
    newest = newest_file(movable)
    move(movable)
    movable.write(movable.client(), 7)
    with pytest.raises(Conflict, match=r"LEDGER_STORAGE_MOVED.*Nothing is lost"):
        list(reader)
    movable.lose_old()
    Path(movable.old, log.topic.uuid).mkdir(parents=True)
    with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_MISSING.*storage was moved.*open the topic again"):
        log.storage.size(newest)
    assert [record["n"] for record in client.reader(TOPIC, end="latest")][-1] == 7


def test_reading_goes_on_while_the_storage_is_being_moved(movable):
    before = movable.everything()
    mover, files = movable.mover(), open_storage(movable.old)
    mover.fence(mover.begin(mover.namespace(), Path(movable.new).as_uri()), files)
    assert movable.everything() == before
    for write in (movable.write, movable.consume, movable.bill):
        with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_MOVING.*being moved to .*/new, by process"):
            write(movable.client(), 1)
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_MOVING"):
        movable.client().create_topic("another", SCHEMA)


def test_the_option_storage_with_the_former_root_is_told_that_it_was_moved(movable):
    move(movable)
    with pytest.raises(InvalidInput, match=r"LEDGER_STORAGE_CONFLICT.*they were moved there.*the new place"):
        _ = movable.open(movable.old).storage
    assert movable.open(movable.new).storage.moves == 1


def test_a_head_from_a_server_that_is_behind_is_of_no_other_root_I14(movable):
    before = movable.open().log(TOPIC).view()
    move(movable)
    log = movable.open().log(TOPIC)
    log._view = before
    folders.prepare(log)
    assert log.view().head.moves == 1


def _seal(log: Log) -> None:
    log.limits = replace(log.limits, commits_per_ledger=1)
    seal.seal(log)


Actor = Callable[[Movable, LedgerClient, Log], object]
ACTORS: dict[str, Actor] = {
    "append": lambda movable, client, log: movable.write(client, 50),
    "seal": lambda movable, client, log: _seal(log),
    "compaction": lambda movable, client, log: client.compact(TOPIC),
    "rewriting": lambda movable, client, log: client.rewrite(TOPIC, everything=True),
    "retention": lambda movable, client, log: client.trim(TOPIC, before="latest"),
    "termination": lambda movable, client, log: client.terminate(TOPIC),
    "tokens": lambda movable, client, log: movable.consume(client, 1),
    "outbox": lambda movable, client, log: movable.bill(client, 1),
    "new topic": lambda movable, client, log: client.create_topic("made", SCHEMA),
    "deletion": lambda movable, client, log: client.delete_topic("empty"),
}


@pytest.mark.parametrize("actor", sorted(ACTORS.keys() - {"seal", "rewriting", "new topic"}))
def test_whoever_is_paused_while_the_storage_moves_names_nothing_that_is_left_behind_I1_I12(movable, actor):
    check_may_be_paused(movable, actor)


def test_a_seal_that_is_paused_names_no_index_that_is_left_behind_I1(movable):
    check_may_be_paused(movable, "seal")


def test_a_rewriting_that_is_paused_begins_again_and_names_nothing_that_is_left_behind_I1(movable):
    check_may_be_paused(movable, "rewriting")


def test_a_topic_is_made_before_the_move_or_not_at_all_I1(movable):
    check_may_be_paused(movable, "new topic")


def check_may_be_paused(movable: Movable, actor: str) -> None:
    """The whole move happens before one of its requests, whichever: then it is refused, or what it did was moved."""
    steps = refused = 0
    was_reached = True
    while was_reached:
        steps += 1
        movable.reset()
        error, was_reached = move_before(movable, steps, ACTORS[actor])
        assert error is None or error.code in ("LEDGER_STORAGE_MOVED", "LEDGER_STAGED_TOO_LONG_AGO"), error
        refused += error is not None
        if was_reached:
            movable.lose_old()
            check_is_whole(movable)
    assert steps > 3
    assert refused or actor == "deletion"  # which names nothing


def move_before(movable: Movable, step: int, act: Actor) -> tuple[LedgerError | None, bool]:
    """A process acts, and the storage moves before one of its requests. Returns its error, and whether it came so
    far."""
    namespace = movable.open()
    log = namespace.log(TOPIC)
    log.refresh()
    was_reached = act_before(log, step, lambda: move(movable))
    return whatever_happens(lambda: act(movable, client_of(namespace), log), LedgerError), was_reached()


def check_is_whole(movable: Movable) -> None:
    """Every file that is named can be read, and every topic that is there can be written."""
    client, records = movable.client(), movable.everything()["records"]
    assert records[:7] in ([*range(7)], [4, 5, 6])  # the second is what retention has left
    error = whatever_happens(lambda: movable.write(client, 60), LedgerError)
    assert error is None or error.code == "LEDGER_TOPIC_TERMINATED"
    movable.bill(client, 2)
    for topic in client.topics():
        assert (Path(movable.new) / client.topic(topic).uuid).is_dir()


# -- what a killed mover leaves -------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["again", "abandon"])
@pytest.mark.parametrize("applied", [False, True])
def test_a_mover_that_is_killed_at_zookeeper_is_finished_or_given_up_by_the_next_one_I1(movable, end, applied):
    steps = 1
    while killed_at_transaction(movable, steps, applied=applied):
        check_ends_well(movable, end)
        movable.reset()
        steps += 1
    assert steps > 5  # lock, note, two heads, the new root


def killed_at_transaction(movable: Movable, number: int, *, applied: bool) -> bool:
    """Whether it came so far."""
    faults = Faults()
    faults.crash_at(number, applied=applied)
    mover = movable.mover(faults)
    error = whatever_happens(lambda: move_storage.move(mover, movable.new), Crash)
    mover.metadata.close()  # its session ends
    return error is not None


KILLED_AT = ["create", "delete", "make_folder", "replace", "prove_usable", "sizes", "size", "read", "files"]


@pytest.mark.parametrize("end", ["again", "abandon"])
@pytest.mark.parametrize("call", KILLED_AT)
def test_a_mover_that_is_killed_at_the_disk_is_finished_or_given_up_by_the_next_one_I1(movable, monkeypatch, call, end):
    number = 1
    while killed_at_call(movable, monkeypatch, call, number):
        check_ends_well(movable, end)
        movable.reset()
        number += 1 if number < 3 else 7
    assert number > 1


def killed_at_call(movable: Movable, monkeypatch, call: str, number: int) -> bool:
    metadata, real, lock = MemoryMetadata(movable.server), getattr(LocalStorage, call), threading.Lock()
    left, dead = number, False

    def counted(self, *arguments):
        nonlocal left, dead
        with lock:
            left -= 1
            if dead or left == 0:
                dead = metadata._crashed = True  # it says nothing more to ZooKeeper either
                raise Crash(call)
        return real(self, *arguments)

    monkeypatch.setattr(LocalStorage, call, counted)
    whatever_happens(lambda: move_storage.move(Mover(metadata), movable.new), Crash)
    monkeypatch.setattr(LocalStorage, call, real)
    metadata.close()
    return dead


def check_ends_well(movable: Movable, end: str) -> None:
    begun = movable.record().moving is not None
    if end == "abandon" and begun:
        move_storage.abandon(movable.mover())
        assert marker(movable) not in os.listdir(movable.new)
        check_all_is_in(movable, movable.old, [*range(7)])
        return
    if not begun and movable.record().moves == 0:
        movable.write(movable.client(), 7)  # nobody is in the way
    done = move_storage.move(movable.mover(), movable.new)
    assert done.missing_files == 0
    assert marker(movable) not in os.listdir(movable.old)
    movable.lose_old()
    records = movable.everything()["records"]
    assert records in ([*range(7)], [*range(8)])
    check_all_is_in(movable, movable.new, records)


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "delayed", "expired"])
def test_lost_answers_do_no_harm_I14(movable, fault):
    for step in range(8):
        movable.reset()
        faults = Faults()
        faults.next_transact(*[None] * step, fault)
        move_storage.move(movable.mover(faults), movable.new)
        movable.lose_old()
        check_all_is_in(movable, movable.new, [*range(7)])


def test_a_disk_that_is_full_at_the_end_leaves_the_namespace_as_it_was_I16(movable, monkeypatch):
    def full(*_: object) -> None:
        raise Unavailable("no space left", "LEDGER_STORAGE_UNAVAILABLE")

    monkeypatch.setattr(LocalStorage, "replace", full)
    with pytest.raises(Unavailable, match="no space left"):
        move(movable)
    monkeypatch.undo()
    assert movable.record().moving is None
    check_all_is_in(movable, movable.old, [*range(7)])
    move(movable)
    movable.lose_old()
    check_all_is_in(movable, movable.new, [*range(7), 100])


# -- two at once, and other places ----------------------------------------------------------------------------------


def test_a_second_mover_is_refused_and_so_is_another_place(movable, tmp_path):
    first = movable.mover()
    with first.alone():
        with pytest.raises(Conflict, match=r"LEDGER_STORAGE_MOVING.*by process"):
            move(movable)
        first.begin(first.namespace(), Path(movable.new).as_uri())
    with pytest.raises(Conflict, match=r"LEDGER_STORAGE_MOVING.*--abandon"):
        move_storage.move(movable.mover(), str(tmp_path / "third"))
    with pytest.raises(InvalidInput, match="LEDGER_NOT_MOVING"):
        move(movable)
        move_storage.abandon(movable.mover())


def test_a_mover_that_was_overtaken_finishes_nothing_I6(movable, tmp_path):
    late = movable.mover()
    begun = late.begin(late.namespace(), Path(movable.new).as_uri())
    move_storage.abandon(movable.mover())
    with pytest.raises(Conflict, match="LEDGER_STORAGE_MOVING"), late.or_back(begun):
        late.finish(begun)
    check_all_is_in(movable, movable.old, [*range(7)])


def test_a_mover_that_has_copied_from_a_root_that_was_left_meanwhile_begins_nothing_I1(movable, tmp_path):
    late = movable.mover()
    known = late.namespace()
    move(movable)
    with pytest.raises(Conflict, match="LEDGER_STORAGE_MOVING"):
        late.begin(known, (tmp_path / "third").as_uri())
    check_all_is_in(movable, movable.new, [*range(7)])


def test_the_same_place_under_another_name_is_refused_I1(movable, tmp_path):
    Path(movable.new).symlink_to(movable.old)
    with pytest.raises(InvalidInput, match="LEDGER_SAME_STORAGE"):
        move(movable)
    with pytest.raises(InvalidInput, match="LEDGER_INVALID_STORAGE"):
        move_storage.move(movable.mover(), f"{movable.old}/below")
    Path(movable.new).unlink()
    check_all_is_in(movable, movable.old, [*range(7)])


def test_a_namespace_that_is_not_there_cannot_move(tmp_path):
    with pytest.raises(NotFound, match="LEDGER_NO_NAMESPACE"):
        move_storage.plan(Mover(MemoryMetadata(MemoryServer())), str(tmp_path))


def test_there_and_back_again_and_nobody_of_the_first_time_writes_I1(movable):
    old = movable.client()
    producer = old.producer(TOPIC)
    producer.send({"k": "a", "n": 7}).result()
    move(movable)
    move_storage.move(movable.mover(), movable.old)
    with pytest.raises(Conflict, match="LEDGER_STORAGE_MOVED"):
        producer.send({"k": "a", "n": 8}).result()
    check_all_is_in(movable, movable.old, [*range(8)])


# -- copies ---------------------------------------------------------------------------------------------------------


def test_a_copy_that_is_damaged_or_cut_off_is_made_again_I1(movable):
    move(movable)
    move_storage.move(movable.mover(), movable.old)  # and back: all files are in both
    cut, flipped = sorted(Path(movable.new).rglob("*.arrow"))[:2]
    cut.write_bytes(cut.read_bytes()[:-1])
    flipped.write_bytes(b"?" + flipped.read_bytes()[1:])
    assert move(movable).copied == 2
    movable.lose_old()
    check_all_is_in(movable, movable.new, [*range(7)])


def test_existing_copies_are_not_read_if_they_are_trusted(movable):
    move(movable)
    move_storage.move(movable.mover(), movable.old)
    damaged = sorted(Path(movable.new).rglob("*.arrow"))[0]
    damaged.write_bytes(b"?" + damaged.read_bytes()[1:])
    assert move(movable, trust_existing=True).copied == 0


def test_a_copy_that_does_not_read_back_the_same_is_refused_I1(movable, monkeypatch):
    real = LocalStorage.read

    def flaky(self, path, offset, length):
        found = real(self, path, offset, length)
        return found if "/new" not in self.uri or not path.endswith(".arrow") else found.slice(1)

    monkeypatch.setattr(LocalStorage, "read", flaky)
    with pytest.raises(Unavailable, match="read back, and is not the same"):
        move(movable)
    monkeypatch.undo()
    check_all_is_in(movable, movable.old, [*range(7)])


# -- what is left ---------------------------------------------------------------------------------------------------


def test_what_is_left_is_deleted_and_nothing_of_another_namespace_I12(movable):
    other = client_of(OpenNamespace(MemoryMetadata(MemoryServer()), movable.old))
    other.create_topic("theirs", SCHEMA)
    with other.producer("theirs") as producer:
        producer.send({"k": "a", "n": 1})
    with pytest.raises(InvalidInput, match="LEDGER_NOT_MOVED"):
        move_storage.delete_old(movable.mover())
    move(movable)
    deleted = movable.client()
    uuid = deleted.topic("empty").uuid
    deleted.delete_topic("empty")
    left = move_storage.delete_old(movable.mover())
    assert left.files == FILES - 1  # what may be the other namespace's outbox stays
    assert uuid in left.folders
    theirs = other.topic("theirs").uuid
    assert set(left.kept) == {theirs, "outboxes/billing"}
    assert theirs in os.listdir(movable.old)
    assert [record["n"] for record in other.reader("theirs", end="latest")] == [1]
    check_all_is_in(movable, movable.new, [*range(7)])


def test_nothing_is_deleted_if_the_new_root_is_not_complete_I1(movable):
    move(movable)
    newest = Path(movable.new, newest_file(movable))
    content = newest.read_bytes()
    newest.unlink()
    with pytest.raises(Conflict, match="LEDGER_INCOMPLETE"):
        move_storage.delete_old(movable.mover())
    newest.write_bytes(content)
    assert move_storage.delete_old(movable.mover()).files == FILES
    check_all_is_in(movable, movable.new, [*range(7)])


def test_files_of_a_later_epoch_are_noted_before_the_epoch_is_raised_I18(movable):
    """Or the move would hide that ZooKeeper was rolled back."""
    stage(movable.open().log("empty"), 666, epoch=1)
    move(movable)
    assert movable.open().log("empty").view().head.set_back is not None
    assert movable.record().storage.endswith("/new")


# -- files that are staged in the former root -----------------------------------------------------------------------


@pytest.mark.parametrize(("act", "where"), [("consume", "/tokens/"), ("bill", "outboxes/")])
def test_a_long_value_that_is_written_after_the_copying_is_not_named_I1(movable, monkeypatch, act, where):
    """No head guards it: who wrote it looks at the namespace's record before naming it."""
    client, real = movable.client(), Blobs.stage

    def overtaken(self, *arguments):
        if where in self._folder:
            monkeypatch.setattr(Blobs, "stage", real)
            move(movable)
        return real(self, *arguments)

    monkeypatch.setattr(Blobs, "stage", overtaken)
    with pytest.raises(Conflict, match="LEDGER_STORAGE_MOVED"):
        getattr(movable, act)(client, 1)
    movable.lose_old()
    assert movable.everything()["tokens"][1]  # it is not consumed
    getattr(movable, act)(client, 1)


def test_a_batch_that_was_staged_in_the_former_root_is_refused_by_who_opens_the_new_one_I12(movable):
    """As the driver of a Spark job that is started anew between its tasks and the commit."""
    entry = stage(movable.open().log("empty"), 1)
    Path(movable.old, names.staged_file(movable.open().log("empty").topic.uuid, 0, entry.file.uid)).rename(
        Path(movable.old) / "late"
    )  # or it would be copied
    move(movable)
    log = movable.open().log("empty")
    with pytest.raises(Conflict, match="LEDGER_STAGED_TOO_LONG_AGO"):
        append(log, StagedBatch(log.clock.new_id(), (entry,)))


def test_an_object_store_whose_marker_nobody_looks_at_again_is_guarded_by_the_head_I1(movable, monkeypatch):
    client = movable.client()
    with client.producer(TOPIC) as producer:
        producer.send({"k": "a", "n": 7}).result()
        monkeypatch.setattr(LocalStorage, "_is_marked", lambda _: True)  # as it is remembered there
        move(movable)
        with pytest.raises(Conflict, match="LEDGER_STORAGE_MOVED"):
            producer.send({"k": "a", "n": 8}).result()
        producer.discard()
    assert movable.everything()["records"] == [*range(8)]
