"""The continuous backup: what has changed is written to storage, what is newer there is never replaced (I16, I18)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from pyspark_ledger.base import names
from pyspark_ledger.client import client_of
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.errors import CorruptData, Unavailable
from pyspark_ledger.lifecycle.actions import ACTIONS
from pyspark_ledger.lifecycle.backup import NAMESPACE, Backup
from pyspark_ledger.lifecycle.maintenance import Maintenance
from pyspark_ledger.lifecycle.saved_files import SavedFiles, of_namespace, readers_of
from pyspark_ledger.log import policies
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import (
    CursorKey,
    EntityKey,
    HeadKey,
    PoliciesKey,
    TokenChunkKey,
    TopicKey,
)
from pyspark_ledger.metadata.records import TokenChunk
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.disk import MemoryStorage, StorageFaults
from pyspark_ledger.testing.memory import Crash, MemoryMetadata, MemoryServer
from pyspark_ledger.tokens.tokens import Tokens
from tests.support.backups import ENTITY, LIMITS, OUTBOX, Shop, Vault, in_storage, pace
from tests.support.rollback import accept_the_loss, restore, snapshot
from tests.support.worlds import SCHEMA, append

HOUR = 3600.0


@pytest.fixture
def vault() -> Vault:
    vault = Vault()
    vault.create("a", "b", "c")
    return vault


def unreadable(monkeypatch, backup: Backup, *keys) -> None:
    """These nodes are damaged, for the process that does the backup."""
    metadata = backup._metadata
    real = metadata.read

    def read(key, *watch):
        if key in keys:
            raise CorruptData(f"{key} is damaged")
        return real(key, *watch)

    monkeypatch.setattr(metadata, "read", read)


# -- what is written --------------------------------------------------------------------------------------------------


def test_only_what_has_changed_is_written(vault):
    backup = vault.backup()
    first = vault.round(backup)
    assert (first.logs, first.readers, first.namespaces, first.failed) == (3, 0, 1, {})
    idle = vault.round(backup)
    assert (idle.logs, idle.readers, idle.namespaces) == (0, 0, 0)
    vault.write("a", 1)
    vault.acknowledge("b", 0)
    done = vault.round(backup)
    assert (done.logs, done.readers, done.namespaces) == (1, 1, 0)


def test_a_process_that_has_just_started_knows_from_names_that_nothing_has_changed(vault):
    vault.write("a", 1)
    vault.acknowledge("a", 1)
    vault.round()
    again = vault.round()
    assert (again.logs, again.readers, again.namespaces) == (0, 0, 0)
    vault.acknowledge("a", 0, "another")
    assert vault.round().readers == 1


def test_all_of_it_is_in_storage_with_the_files_that_nodes_name():
    shop = Shop()
    shop.everybody()
    assert Tokens(shop.namespace.log("orders"), "scattered").consume(shop.tokens[::3])
    shop.round()
    found = in_storage(shop.storage)
    chunks = [key for key in found if isinstance(key, TokenChunkKey)]
    assert chunks
    assert all(isinstance(found[key], TokenChunk) and found[key].bitmap for key in chunks)
    assert found[EntityKey(OUTBOX, ENTITY)].content.startswith(b'{"state"')
    there = {key for key, node in snapshot(shop.server).items() if node is not None}
    missing = {type(key).__name__ for key in there - found.keys()}
    made_anew = {"TopicsKey", "DeletedsKey", "CondemnedsKey", "SinksKey", "OutboxesKey", "RootKey", "PartKey"}
    assert missing <= made_anew | {"LedgerKey", "TipKey", "RetentionKey"}
    for key in found.keys() & there - {*chunks, EntityKey(OUTBOX, ENTITY)}:
        assert found[key] == snapshot(shop.server)[key].record


def test_policies_are_backed_up_although_they_do_not_change_the_head(vault):
    backup = vault.backup()
    vault.round(backup)
    policies.change(vault.namespace.log("b"), policies.Changes(retention_age=timedelta(days=3)))
    assert vault.round(backup).logs == 1
    assert in_storage(vault.storage)[PoliciesKey(vault.uuid("b"))].retention_ms == 3 * 24 * 3600 * 1000
    assert vault.round().logs == 0


def test_much_is_written_in_parts_and_little_is_in_memory(vault):
    vault.limits = replace(LIMITS, backup_bytes=10)
    for name in "abc":
        vault.write(name, 1)
        vault.acknowledge(name, 1)
    done = vault.round()
    assert (done.logs, done.readers, done.namespaces) == (3, 3, 1)
    found = in_storage(vault.storage)
    assert all(found[CursorKey(vault.uuid(name), "sub")].ordinal == 1 for name in "abc")


def test_an_idle_namespace_is_written_once_an_hour_so_that_its_age_is_known(vault):
    backup = vault.backup()
    vault.round(backup)
    written = sum(vault.round(backup).namespaces for _ in range(3 * 60))
    assert written in (2, 3)
    assert vault.clock.now_ms() - backup.last_ms < 1000 * (HOUR + 120)


# -- what goes --------------------------------------------------------------------------------------------------------


def test_four_of_each_kind_are_kept(vault):
    backup = vault.backup()
    for number in range(8):
        vault.write("a", number)
        vault.acknowledge("a", number)
        vault.create(f"t{number}")
        vault.round(backup)
    of_a = [name for name in vault.snapshots() if name.startswith(vault.uuid("a"))]
    assert len([name for name in of_a if "/log-" in name]) == LIMITS.kept_snapshots
    assert len([name for name in of_a if "/readers-" in name]) == LIMITS.kept_snapshots
    assert len(vault.snapshots("namespace-")) == LIMITS.kept_snapshots


def test_a_round_that_dies_anywhere_leaves_nothing_behind_for_long_I16(vault):
    for number in range(5):
        vault.write("a", number)
        vault.acknowledge("a", number)
        vault.create(f"t{number}")
        vault.round()
    step, died = 0, True
    while died:
        vault.write("a", step)
        vault.acknowledge("a", step)
        vault.create(f"late{step}")
        died = _dies_at(vault, step)
        step += 1
    assert step > 10
    vault.clock.sleep(2 * HOUR)
    vault.write("a", step)
    vault.acknowledge("a", step)
    assert vault.round().failed == {}
    of_a = [name for name in vault.snapshots() if name.startswith(vault.uuid("a"))]
    assert len(of_a) == 2 * LIMITS.kept_snapshots
    assert len(vault.snapshots("namespace-")) == LIMITS.kept_snapshots
    assert vault.snapshots("unfinished-") == []


def _dies_at(vault: Vault, step: int) -> bool:
    process = vault.open()
    calls = 0

    def on_call(_: str) -> None:
        nonlocal calls
        calls += 1
        if calls > step:
            raise Crash("here")

    process.storage.on_call = on_call
    vault.clock.sleep(60)
    try:
        Backup(process).run(pace(vault.clock))
    except Crash:
        return True
    return False


def test_a_topic_that_is_deleted_during_the_round_leaves_no_snapshots(vault, monkeypatch):
    for name in "abc":
        vault.write(name, 1)
        vault.acknowledge(name, 1)
    uuid, backup = vault.uuid("b"), vault.backup()
    real = backup._look.all

    def deleted_before_logs_are_written():
        client_of(vault.namespace).delete_topic("b")
        monkeypatch.setattr(backup._look, "all", real)
        return real()

    monkeypatch.setattr(backup._look, "all", deleted_before_logs_are_written)
    assert vault.round(backup).failed == {}
    assert [name for name in vault.snapshots() if name.startswith(uuid)] == []
    assert vault.round(backup).failed == {}


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [HeadKey, PoliciesKey, lambda uuid: CursorKey(uuid, "sub"), lambda _: TopicKey("b")])
def test_a_damaged_topic_is_said_and_the_others_are_backed_up_I16(vault, monkeypatch, key):
    vault.acknowledge("b", 0)
    vault.round()
    for name in "abc":
        vault.write(name, 1)
        vault.acknowledge(name, 1)
    backup = vault.backup()
    with monkeypatch.context() as damaged:
        unreadable(damaged, backup, key(vault.uuid("b")))
        done = vault.round(backup)
        assert list(done.failed) == ["b"]
    found = in_storage(vault.storage)
    assert all(found[HeadKey(vault.uuid(name))].records == 1 for name in "ac")
    assert all(found[CursorKey(vault.uuid(name), "sub")].ordinal == 1 for name in "ac")
    assert found[TopicKey("b")].uuid == vault.uuid("b")  # the last copy stays
    assert vault.round(backup).failed == {}
    assert in_storage(vault.storage)[HeadKey(vault.uuid("b"))].records == 1


def test_the_last_copy_of_a_damaged_entity_stays_in_the_backup(monkeypatch):
    shop = Shop()
    shop.bill()
    shop.round()
    backup = shop.backup()
    path = f"/entities/{OUTBOX}/={ENTITY}"
    unreadable(monkeypatch, backup, EntityKey(OUTBOX, ENTITY))
    for number in range(6):
        shop.create(f"t{number}")
        assert list(shop.round(backup).failed) == [path]
    assert in_storage(shop.storage)[EntityKey(OUTBOX, ENTITY)].content.startswith(b'{"state"')


def test_a_disk_that_fails_is_said_and_tried_again_with_the_next_round(vault, caplog):
    namespace = vault.open()
    faults = StorageFaults()
    namespace._storage = MemoryStorage(vault.disk, faults, marker=vault.marker)
    maintainer = Maintenance(namespace, actions=[action for action in ACTIONS if action.name == "backup"])
    faults.next(*[None] * 3, "fails")
    assert maintainer.once() is False
    stats = maintainer.stats["backup"]
    assert (stats.failing, stats.last_success_ms) == (1, 0)
    assert "failed action=backup topic=namespace" in caplog.text
    assert maintainer.once() is True
    assert (stats.failing, stats.last_success_ms) == (0, vault.clock.now_ms())


def test_who_has_just_taken_the_lead_knows_the_age_of_the_backup_although_it_fails(vault, monkeypatch):
    vault.round()
    began_ms = vault.clock.now_ms()
    vault.clock.sleep(HOUR / 2)
    maintainer = Maintenance(vault.open(), actions=[action for action in ACTIONS if action.name == "backup"])
    monkeypatch.setattr(Backup, "run", lambda *_: (_ for _ in ()).throw(Unavailable("the disk is full")))
    assert maintainer.once() is False
    assert maintainer.stats["backup"].last_success_ms == began_ms


# -- rollbacks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_new", [True, False], ids=["a new process", "one that lived through it"])
def test_what_storage_has_of_a_topic_that_was_set_back_is_not_replaced_I18(vault, is_new):
    backup = vault.backup()
    vault.acknowledge("a", 0)
    vault.round(backup)
    old = snapshot(vault.server)
    vault.write("a", 1)
    vault.acknowledge("a", 1)
    vault.acknowledge("b", 0)
    vault.round(backup)
    before = vault.snapshots()
    restore(vault.server, old)
    for number in range(6):
        vault.acknowledge("a", 0, f"late{number}")
        vault.create(f"t{number}")
        vault.write("c", number)
        done = vault.round(None if is_new else backup)
        assert done.failed["a"].code == "LEDGER_SET_BACK"
    of_c = vault.uuid("c")
    assert {name for name in before if not name.startswith(of_c)} <= {*vault.snapshots()}
    assert (done.logs, done.readers, done.namespaces) == (2, 0, 0)  # those that are not behind
    accept_the_loss(vault.namespace.log("a"))
    assert (vault.round().failed, in_storage(vault.storage)[HeadKey(vault.uuid("a"))].records) == ({}, 1)


@pytest.mark.parametrize("is_new", [True, False], ids=["a new process", "one that lived through it"])
def test_a_topic_that_is_gone_and_was_not_deleted_shows_a_rollback_I18(vault, is_new):
    old, backup = snapshot(vault.server), vault.backup()
    vault.create("late")
    vault.round(backup)
    kept = vault.snapshots()
    restore(vault.server, old)
    vault.create("late")  # as a sink does without being asked
    done = vault.round(None if is_new else backup)
    assert done.failed[NAMESPACE].code == "LEDGER_SET_BACK"
    assert "topic 'late'" in str(done.failed[NAMESPACE])
    assert (done.readers, done.namespaces, {*kept} <= {*vault.snapshots()}) == (0, 0, True)
    for name in vault.snapshots("namespace-"):  # a person accepts the loss
        vault.disk.put(f"{names.recovery_folder(vault.marker)}/{name}", None)
    again = vault.round()
    assert (again.failed, again.namespaces) == ({}, 1)


def test_a_disk_that_fails_while_the_newest_snapshot_is_read_hides_no_rollback_I18(vault):
    old = snapshot(vault.server)
    vault.create("late")
    vault.round()
    restore(vault.server, old)
    for step in range(12):
        process = vault.open()
        faults = StorageFaults()
        faults.next(*[None] * step, "fails")
        process._storage = MemoryStorage(vault.disk, faults, marker=vault.marker)
        with suppress(Unavailable):
            assert Backup(process).run(pace(vault.clock)).failed[NAMESPACE].code == "LEDGER_SET_BACK"
    assert len(vault.snapshots("namespace-")) == 1


def test_if_the_newest_snapshot_is_damaged_the_one_before_is_compared_I18(vault):
    vault.round()
    old = snapshot(vault.server)
    for name in ("late", "later"):
        vault.create(name)
        vault.round()
    newest = f"{names.recovery_folder(vault.marker)}/{vault.snapshots('namespace-')[-1]}"
    vault.disk.tear(newest, 100)
    restore(vault.server, old)
    assert "topic 'late'" in str(vault.round().failed[NAMESPACE])


def test_an_entity_that_is_gone_shows_a_rollback_I18():
    shop = Shop()
    old = snapshot(shop.server)
    outbox = shop.outbox()
    assert outbox.process("m", shop.tokens[0], lambda _: ("a state", []), entity=ENTITY).state == "a state"
    shop.round()
    restore(shop.server, old)
    assert shop.round().failed[NAMESPACE].code == "LEDGER_SET_BACK"


def test_topics_that_were_deleted_and_made_again_are_no_rollback(vault):
    backup = vault.backup()
    for _ in range(3):
        assert vault.round(backup).failed == {}
        client_of(vault.namespace).delete_topic("a")
        assert vault.round(backup).failed == {}
        vault.create("a")
        vault.write("a", 1)


def test_after_a_rollback_that_took_only_acknowledgements_the_backup_follows_zookeeper(vault):
    vault.write("a", 1, 2)
    vault.acknowledge("a", 1)
    vault.round()
    old = snapshot(vault.server)
    vault.acknowledge("a", 2)
    vault.round()
    restore(vault.server, old)
    done = vault.round()
    assert (done.failed, done.readers) == ({}, 1)
    assert in_storage(vault.storage)[CursorKey(vault.uuid("a"), "sub")].ordinal == 1


def test_a_wrong_clock_does_not_make_an_older_state_the_newest(vault, monkeypatch):
    vault.limits = replace(LIMITS, clock_slack_ms=1 << 40)  # it is believed
    vault.acknowledge("a", 0)
    with monkeypatch.context() as ahead:
        now = vault.clock.now_ms()
        ahead.setattr(vault.clock, "now_ms", lambda: now + 10_000_000)
        vault.round()
    vault.write("a", 1)
    vault.acknowledge("a", 1)
    vault.round()
    assert in_storage(vault.storage)[CursorKey(vault.uuid("a"), "sub")].ordinal == 1


def test_what_a_seal_has_left_in_storage_is_not_written_again():
    vault = Vault(replace(LIMITS, commits_per_ledger=2))
    vault.create("a")
    vault.write("a", 0)
    vault.write("a", 1)
    vault.round()
    vault.write("a", 2)  # seals the ledger first
    assert vault.namespace.log("a").view().head.ledger == 1
    assert vault.round().logs == 1
    assert in_storage(vault.storage)[HeadKey(vault.uuid("a"))].ledger == 1
    assert vault.round().logs == 0


def test_it_is_the_same_in_an_object_store(s3_root):
    clock, server = SeededClock(1), MemoryServer()

    def open_one() -> OpenNamespace:
        return OpenNamespace(MemoryMetadata(server), s3_root, limits=LIMITS, clock=clock)

    namespace = open_one()
    namespace.create_topic("t", SCHEMA)
    backup = Backup(namespace)
    for number in range(6):
        append(namespace.log("t"), number)
        CursorNode(namespace.log("t"), f"s{number}").ensure("latest")
        assert backup.run(pace(clock)).failed == {}
    again = Backup(open_one()).run(pace(clock))
    assert (again.logs, again.readers, again.namespaces) == (0, 0, 0)
    there = SavedFiles.list(namespace.storage)
    uuid = namespace.log("t").topic.uuid
    assert (len(there.readers[uuid]), len(there.namespace), there.unfinished) == (4, 1, [])
    found = in_storage(namespace.storage)
    assert (found[HeadKey(uuid)].records, found[CursorKey(uuid, "s5")].ordinal) == (6, 6)
    assert of_namespace(namespace.storage) == there.namespace
    assert readers_of(namespace.storage, uuid) == there.readers[uuid]
