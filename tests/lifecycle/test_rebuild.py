"""A namespace is made again from what storage has: everything is there, no number is used twice, and whoever comes from
the old ZooKeeper is refused."""

from __future__ import annotations

import contextlib
import random
import shutil
from contextlib import closing
from dataclasses import replace

import pytest

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient, client_of, namespace_of
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.shared_consumer import SharedConsumer
from pyspark_ledger.errors import Conflict, DataLoss, InvalidInput, LedgerError, NotFound, Unavailable
from pyspark_ledger.lifecycle import backup_file, gc, retention
from pyspark_ledger.lifecycle.backup import Backup
from pyspark_ledger.lifecycle.rates import Pace
from pyspark_ledger.lifecycle.rebuild import from_storage
from pyspark_ledger.log import policies, seal, snapshots, topics
from pyspark_ledger.log.policies import Changes
from pyspark_ledger.metadata.port import (
    CondemnedKey,
    Create,
    Delete,
    DeletedKey,
    HeadKey,
    NamespaceKey,
    TopicKey,
    TransactionLost,
)
from pyspark_ledger.testing.memory import Crash, Faults
from pyspark_ledger.tokens.tokens import Tokens
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata
from tests.support import histories
from tests.support.everything import ENTITY, GROUP, LIMITS, OUTBOX, SUBSCRIPTION, outbox
from tests.support.recovery import GONE, IDLE, TOPIC, Shop, dying
from tests.support.worlds import SCHEMA, append, append_ids, read


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Shop:
    """Made once: it takes a few seconds."""
    shop = Shop(tmp_path_factory.mktemp("filled") / "root")
    shop.fill()
    shop.save()
    return shop


@pytest.fixture
def shop(filled, tmp_path) -> Shop:
    return filled.copy(tmp_path / "root")


def ids(shop: Shop) -> list[tuple[str, int]]:
    return [(value["who"], value["seq"]) for value in (record["value"] for record in shop.records(shop.log()))]


# -- what is there --------------------------------------------------------------------------------------------------


def test_everything_is_there_again_I1(shop):
    before = shop.facts()
    shop.lose()
    plan = shop.rebuild()
    assert [(topic.topic, topic.missing_files) for topic in plan.topics] == [(IDLE, 0), (TOPIC, 0)]
    assert shop.facts() == before
    assert {topic.uuid for topic in plan.left_out} == set()


def test_the_topic_goes_on_and_gc_deletes_nothing_that_it_names_I1_I12(shop):
    before = ids(shop)
    shop.lose()
    shop.rebuild()
    log = shop.log()
    for number in range(100, 112):
        shop.commit(log, number)
        gc.collect(log)
    assert ids(shop)[: len(before)] == before
    assert len(ids(shop)) == len(before) + 12 * 3 + 6 * 3
    assert compact(log).number > LIMITS.repair_jump
    assert shop.log(IDLE).refresh().head.records == 0


def test_no_ledger_commit_epoch_token_or_generation_is_used_again_I1_I10_I11(shop):
    lost = shop.log()
    for number in range(50, 57):
        shop.commit(lost, number)  # these are lost, and some process has seen them
    gc.collect(lost)
    assert compact(lost) is not None
    before = lost.refresh(sync=True).head
    shop.lose()
    shop.rebuild()
    after = shop.log().refresh().head
    assert after.ledger > before.ledger
    assert after.next_commit == after.repaired > before.next_commit
    assert after.gc_epoch > before.gc_epoch
    assert after.token_base + after.tokens > before.token_base + before.tokens
    assert compact(shop.log()).number > before.generation.number
    shop.commit(shop.log(), 60)
    assert shop.log().refresh().head.end > before.end


def test_a_batch_that_is_sent_again_is_recognised_and_a_lost_one_is_not_I5(shop):
    lost = [[("p1", 7000), ("p2", 7000)]]
    append_ids(shop.log(), lost)
    shop.lose()
    shop.rebuild()
    assert append_ids(shop.log(), [[("p1", 60), ("p2", 60)]]).records == 0
    assert append_ids(shop.log(), lost).records == 2


def test_what_was_committed_after_the_backup_is_lost_and_the_report_says_so(shop):
    before = ids(shop)
    shop.commit(shop.log(), 90)
    shop.lose()
    plan = shop.rebuild()
    [topic] = [topic for topic in plan.topics if topic.topic == TOPIC]
    assert topic.later_files >= 3
    assert topic.later_bytes > 0
    assert topic.records == len(before)
    assert topic.last_commit == 13
    assert topic.last_publish is not None
    assert topic.token_groups == (OUTBOX, GROUP)
    assert ids(shop) == before


def test_a_plan_changes_nothing(shop):
    shop.lose()
    files = {path: path.read_bytes() for path in shop.folder.rglob("*") if path.is_file()}
    assert len(shop.rebuilding().plan().topics) == 2
    assert {path: path.read_bytes() for path in shop.folder.rglob("*") if path.is_file()} == files
    assert shop.namespace().metadata.read(NamespaceKey()) is None


def test_tokens_are_consumed_at_most_once_more_I11(shop):
    """Those that were consumed before the backup are gone, the others are there."""
    shop.lose()
    shop.rebuild()
    tokens = Tokens(shop.log(), GROUP)
    present = tokens.present(shop.tokens)
    assert sum(present) < len(shop.tokens)
    assert tokens.consume([token for token, there in zip(shop.tokens, present, strict=True) if there])
    assert not any(Tokens(shop.log(), GROUP).present(shop.tokens))
    shop.commit(shop.log(), 100)  # mints
    new = [record["token"] for record in shop.records(shop.log()) if record["token"]][-3:]
    assert all(Tokens(shop.log(), GROUP).present(new))


# -- subscriptions --------------------------------------------------------------------------------------------------


def test_a_subscription_has_a_new_revision_and_no_owner_and_stays_where_it_was_I8(shop):
    before = CursorNode(shop.log(), SUBSCRIPTION).refresh()
    shop.lose()
    shop.rebuild()
    after = CursorNode(shop.log(), SUBSCRIPTION).refresh()
    assert (after.mark_delete, after.revision, after.owner) == (before.mark_delete, before.revision + 1, b"")
    assert after.last_backward_revision == before.last_backward_revision, "a query goes on from its checkpoint"
    assert after.epoch > before.epoch
    CursorHandle(shop.log(), SUBSCRIPTION).clear_backlog()


def test_nobody_shares_a_subscription_any_more_and_whoever_comes_goes_on_I16(shop):
    """Those who did are of the old history, and nobody could tell what they have in hand."""
    consumer = SharedConsumer(shop.log(), SUBSCRIPTION)
    assert consumer.receive(0.0) is not None
    shop.save()
    shop.lose()
    shop.rebuild()
    after = CursorNode(shop.log(), SUBSCRIPTION).refresh()
    assert (after.sharing, after.members, after.deliveries) == ("", (), ())
    with SharedConsumer(shop.log(), SUBSCRIPTION) as another:
        assert another.receive(0.0) is not None


def damage(shop: Shop, path: str) -> None:
    (shop.folder / path).write_bytes(b"damaged")


def recovery_files(shop: Shop, kind: str, topic: str = TOPIC) -> list[str]:
    uuid, storage = shop.log(topic).topic.uuid, shop.namespace().storage
    folder = names.recovery_folder_of_topic(storage.marker, uuid)
    return sorted(path for path in storage.list(folder) if f"/{kind}-" in path)


def test_if_the_newest_snapshot_is_damaged_the_one_before_it_is_taken_and_readers_fit_it(shop):
    before = shop.facts()
    shop.commit(shop.log(), 90)
    CursorHandle(shop.log(), SUBSCRIPTION).clear_backlog()
    shop.save()
    newest = recovery_files(shop, "log")[-1]
    damage(shop, newest)
    shop.lose()
    [topic] = [topic for topic in shop.rebuild().topics if topic.topic == TOPIC]
    assert newest in topic.warnings[0]
    assert shop.facts() == before


def test_a_subscription_past_the_end_is_moved_to_the_end_I1(shop):
    shop.commit(shop.log(), 90)
    CursorHandle(shop.log(), SUBSCRIPTION).clear_backlog()
    shop.save()
    damage(shop, recovery_files(shop, "log")[-1])
    for older in recovery_files(shop, "readers")[:-1]:
        (shop.folder / older).unlink()
    shop.lose()
    [topic] = [topic for topic in shop.rebuild().topics if topic.topic == TOPIC]
    assert topic.clamped == (SUBSCRIPTION,)
    after = CursorNode(shop.log(), SUBSCRIPTION).refresh()
    assert after.ordinal == shop.log().refresh().head.records
    assert after.last_backward_revision == after.revision
    shop.commit(shop.log(), 91)
    assert CursorHandle(shop.log(), SUBSCRIPTION).stats().backlog_records == 6, "what comes next is not skipped"


def test_a_subscription_does_not_stay_before_what_was_given_up_with_its_consent_I15(tmp_path):
    shop = Shop(tmp_path / "root")
    log = shop.namespace().log_of(shop.namespace().create_topic("n", SCHEMA))
    CursorNode(log, "s").ensure("earliest")
    shop.save()
    for number in range(9):
        append(log, number)
    CursorHandle(log, "s").clear_backlog()
    policies.change(log, Changes(retention_bytes=1))
    assert retention.trim(log)
    snapshots.leave(log)  # as a seal does, before the next backup
    begin, left = log.view().head.trim.position, [number for number, _ in read(log)]
    shop.lose()
    shop.rebuild()
    log = shop.log("n")
    assert CursorHandle(log, "s").stats().mark_delete == begin
    assert [number for number, _ in read(log)] == left
    for number in range(100, 110):
        append(log, number)
        gc.collect(log)
    assert [number for number, _ in read(log)] == [*left, *range(100, 110)]


# -- the old ZooKeeper comes back -------------------------------------------------------------------------------------


def test_writers_and_gc_of_the_old_zookeeper_refuse_I6_I12(shop):
    old = shop.lose()
    shop.rebuild()
    before = shop.facts()
    log = shop.log(server=old)

    def write() -> None:
        with client_of(shop.namespace(server=old)).producer(TOPIC) as producer:
            producer.send({"who": "late", "seq": 1, "note": ""})

    for act in (write, lambda: gc.collect(log), lambda: compact(log)):
        with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_MISSING.*ledger-namespace-"):
            act()
    assert shop.facts() == before


def test_a_gc_of_the_old_zookeeper_that_has_seen_its_marker_deletes_nothing_I12_I18(shop):
    marker = shop.namespace().storage.marker
    old = shop.lose()
    shop.rebuild()
    before = shop.facts()
    (shop.folder / marker).touch()
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        gc.collect(shop.log(server=old))
    assert shop.facts() == before


def test_tokens_and_entities_of_the_old_zookeeper_delete_no_long_value_of_the_new_one_I12(shop):
    marker = shop.namespace().storage.marker
    old = shop.lose()
    shop.rebuild()
    before = shop.facts()
    (shop.folder / marker).touch()
    log = shop.log(server=old)
    for number in range(3):
        assert Tokens(log, GROUP).consume([shop.tokens[1 + 3 * number]])
        outbox(log).process(
            f"m{number + 1}", shop.tokens[2 + 3 * number], lambda _: ("a late state", []), entity=ENTITY
        )
    assert shop.facts() == before


def test_a_process_that_has_lived_on_is_told_what_is_lost_and_goes_on(shop):
    """Its connection is to the new ZooKeeper at the same address."""
    survivor = shop.log()
    shop.commit(survivor, 90)
    shop.lose()
    shop.rebuild()
    here = shop.log()
    survivor.metadata, survivor.storage = here.metadata, here.storage
    with pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*repaired since"):
        survivor.refresh(sync=True)
    assert survivor.refresh().head == here.refresh().head


# -- again and again --------------------------------------------------------------------------------------------------


def test_what_was_rebuilt_can_be_rebuilt_and_an_older_state_is_not_taken_I1_I18(shop):
    shop.lose()
    shop.rebuild()
    shop.commit(shop.log(), 90)
    seal.seal(shop.log())
    shop.save()
    before = shop.facts()
    shop.lose()
    shop.rebuild()
    assert shop.facts() == before
    used = [path.parent.name for path in shop.folder.glob("ledger-recovery-*/rebuilt-as-*")]
    assert len(used) == 2
    for folder in used:
        shop.lose()
        with pytest.raises(Conflict, match="LEDGER_REBUILT_BEFORE"):
            shop.rebuild(asked=folder.removeprefix("ledger-recovery-"))


def test_right_after_a_rebuild_everything_can_be_rebuilt_again_I1(shop):
    before = shop.facts()
    for _ in range(3):
        shop.lose()
        shop.rebuild()
    assert shop.facts() == before


def test_a_rebuild_whose_zookeeper_is_lost_too_begins_again_I16(shop, monkeypatch):
    before = shop.facts()

    def die(*_) -> None:
        raise Crash("right before the end")

    shop.lose()
    with monkeypatch.context() as patched, pytest.raises(Crash):
        patched.setattr(names, "rebuilt_file", die)
        shop.rebuild()
    for at in (3, 6, 9, 12):
        shop.lose()
        faults = Faults()
        faults.crash_at(at)
        with pytest.raises(Crash):
            shop.rebuild(faults)
    shop.lose()
    shop.rebuild()
    assert shop.facts() == before


@pytest.mark.parametrize("applied", [False, True])
def test_a_rebuild_that_dies_at_any_transaction_is_completed_by_the_next_I16(filled, tmp_path, applied):
    before = filled.facts()
    for at in range(1, 100):
        shop = filled.copy(tmp_path / str(at))
        shop.lose()
        faults = Faults()
        faults.crash_at(at, applied=applied)
        try:
            shop.rebuild(faults)
            break
        except Crash:
            with contextlib.suppress(Conflict):  # it was the last one, and is done
                shop.rebuild()
        assert shop.facts() == before
        shop.commit(shop.log(), 99)
    assert at > 8


def test_a_rebuild_that_dies_at_any_file_is_completed_by_the_next_I16(filled, tmp_path):
    before = filled.facts()
    for at in range(1, 200):
        shop = filled.copy(tmp_path / str(at))
        shop.lose()
        with dying(at) as count, contextlib.suppress(Crash):
            shop.rebuild()
        if count() < at:
            break
        shop.rebuild()
        assert shop.facts() == before
        shop.commit(shop.log(), 99)
        gc.collect(shop.log())
    assert at > 15


def test_answers_that_are_lost_do_no_harm_I14(shop):
    before = shop.facts()
    shop.lose()
    shop.rebuild(Faults(3, applied_then_lost=0.3, lost_before=0.2, stale_read=0.2, missing_read=0.1))
    assert shop.facts() == before


def test_of_two_rebuilds_at_once_the_first_is_refused_I6(shop, monkeypatch):
    before = shop.facts()
    shop.lose()
    slow = shop.rebuilding()
    real, left = slow._metadata.transact, 5

    def transact(ops):
        nonlocal left
        left -= 1
        if left == 0:
            monkeypatch.undo()
            shop.rebuild()
        return real(ops)

    monkeypatch.setattr(slow._metadata, "transact", transact)
    with pytest.raises(Conflict, match="LEDGER_REBUILD_FENCED"):
        slow.run()
    assert shop.facts() == before


def test_a_request_of_the_earlier_run_that_arrives_late_does_no_harm_to_the_later_one_I6(shop, monkeypatch):
    before = shop.facts()
    shop.lose()
    slow, late = shop.rebuilding(), []
    send = slow._metadata.transact

    def makes_a_log(ops) -> bool:
        return any(isinstance(op, Create) and isinstance(op.key, HeadKey) for op in ops)

    def paused(ops):
        if makes_a_log(ops):
            late.append(ops)
            raise Crash("paused")
        return send(ops)

    monkeypatch.setattr(slow._metadata, "transact", paused)
    with pytest.raises(Crash):
        slow.run()
    fast = shop.rebuilding()
    real = fast._metadata.transact

    def overtaken(ops):
        if makes_a_log(ops) and late:
            with pytest.raises(TransactionLost):
                send(late.pop())
        return real(ops)

    monkeypatch.setattr(fast._metadata, "transact", overtaken)
    fast.run()
    assert not late
    assert shop.facts() == before


def test_nobody_can_use_a_namespace_that_is_half_made_I16(shop):
    shop.lose()
    faults = Faults()
    faults.crash_at(6)
    with pytest.raises(Crash):
        shop.rebuild(faults)
    for act in (
        lambda: shop.namespace().storage,
        lambda: shop.log(),
        lambda: topics.delete_topic(shop.namespace().metadata, IDLE),
    ):
        with pytest.raises(LedgerError, match=r"LEDGER_REBUILDING|LEDGER_TOPIC_NOT_FOUND"):
            act()


# -- which namespace, which topics ------------------------------------------------------------------------------------


def test_a_namespace_that_is_there_is_not_overwritten(shop):
    with pytest.raises(Conflict, match="LEDGER_NAMESPACE_EXISTS"):
        shop.rebuild()


def test_several_namespaces_in_one_root_are_told_apart(shop):
    first = shop.server
    shop.lose()
    other = shop.namespace()
    other.create_topic("other", SCHEMA)
    shop.save()
    ids = [shop.namespace(server=server).metadata.read(NamespaceKey()).record.id for server in (first, shop.server)]
    shop.lose()
    with pytest.raises(InvalidInput, match="LEDGER_SEVERAL_NAMESPACES") as said:
        shop.rebuild()
    assert all(id.hex() in str(said.value) for id in ids)
    with pytest.raises(NotFound, match="LEDGER_NOTHING_SAVED"):
        shop.rebuild(asked="abcd")
    assert [topic.topic for topic in shop.rebuild(asked=ids[1].hex()).topics] == ["other"]
    shop.lose()
    assert [topic.topic for topic in shop.rebuild(asked=ids[0].hex()).topics] == [IDLE, TOPIC]


def test_an_empty_root_has_nothing_to_rebuild(tmp_path):
    with pytest.raises(NotFound, match="LEDGER_NOTHING_SAVED"):
        Shop(tmp_path).rebuild()


@pytest.mark.parametrize("age_s", [0.0, 3600.0], ids=["young", "old"])
def test_a_deleted_topic_does_not_come_back_I1(shop, age_s):
    """Also if a process that was late has left a snapshot of it."""
    namespace = shop.namespace()
    namespace.create_topic("brief", SCHEMA)
    shop.clock.sleep(age_s)
    late = snapshots.take(namespace.log("brief"))
    topics.delete_topic(namespace.metadata, "brief", limits=LIMITS, clock=shop.clock)
    shop.save()
    snapshots.write(namespace.storage, late, shop.clock)
    shop.lose()
    plan = shop.rebuild()
    assert [topic.topic for topic in plan.topics] == [IDLE, TOPIC]
    assert [(each.topic, each.is_loss) for each in plan.left_out] == [("brief", False)]
    for name in ("brief", GONE):
        assert shop.namespace().metadata.read(DeletedKey(name)) is not None


def test_a_topic_that_was_deleted_long_ago_does_not_come_back_I1(shop):
    """Nothing condemns it any more, and the namespace does not list it."""
    namespace = shop.namespace()
    made = namespace.create_topic("brief", SCHEMA)
    late = snapshots.take(namespace.log("brief"))
    topics.delete_topic(namespace.metadata, "brief", limits=LIMITS, clock=shop.clock)
    namespace.metadata.transact([Delete(CondemnedKey(made.uuid))])
    shop.clock.sleep(3600)
    shop.save()
    snapshots.write(namespace.storage, late, shop.clock)
    shop.lose()
    plan = shop.rebuild()
    assert [(each.topic, each.is_loss) for each in plan.left_out] == [("brief", False)]


def test_of_two_topics_with_one_name_the_later_comes_back(shop):
    late = snapshots.take(shop.log(IDLE))
    namespace = shop.namespace()
    topics.delete_topic(namespace.metadata, IDLE, limits=LIMITS, clock=shop.clock)
    made = namespace.create_topic(IDLE, SCHEMA)
    snapshots.leave(namespace.log(IDLE))
    snapshots.write(namespace.storage, late, shop.clock)
    shop.lose()  # before the next backup of the namespace
    shop.rebuild()
    assert shop.log(IDLE).topic.uuid == made.uuid
    assert topics.list_topics(shop.namespace().metadata) == [IDLE, TOPIC]


def test_a_topic_that_was_made_after_the_last_backup_of_the_namespace_comes_back_I1(shop):
    namespace = shop.namespace()
    namespace.create_topic("young", SCHEMA)
    append(namespace.log("young"), 1)
    snapshots.leave(namespace.log("young"))
    shop.lose()
    shop.rebuild()
    assert [number for number, _ in read(shop.log("young"))] == [1]


def test_a_topic_without_a_usable_snapshot_is_named_and_the_others_come_back(shop):
    before = shop.facts()
    for path in recovery_files(shop, "log", IDLE):
        damage(shop, path)
    shop.lose()
    plan = shop.rebuild()
    assert [(each.topic, each.is_loss) for each in plan.left_out] == [(IDLE, True)]
    assert shop.facts() == before
    assert shop.namespace().metadata.read(TopicKey(IDLE)) is None
    assert shop.namespace().metadata.read(DeletedKey(IDLE)) is not None, "no write makes it again unasked"


def test_without_a_usable_snapshot_of_the_namespace_its_topics_come_back(shop):
    records = shop.records(shop.log())
    for path in shop.folder.glob("ledger-recovery-*/namespace-*"):
        path.write_bytes(b"damaged")
    shop.lose()
    plan = shop.rebuild()
    assert any("sinks, outboxes" in warning for warning in plan.warnings)
    assert shop.records(shop.log()) == records


def test_a_generation_whose_files_are_missing_is_left_out_and_its_number_is_not_used_again_I10(shop):
    log = shop.log()
    generation, records = log.view().head.generation, shop.records(log)
    file = names.staged_file(log.topic.uuid, generation.manifest.epoch, generation.manifest.uid)
    (shop.folder / file).unlink()
    shop.lose()
    [topic] = [topic for topic in shop.rebuild().topics if topic.topic == TOPIC]
    assert any(f"generation {generation.number}" in warning for warning in topic.warnings)
    assert topic.generation == 0
    log = shop.log()
    assert shop.records(log) == records
    assert compact(log).number > generation.number
    for number in range(100, 106):
        shop.commit(log, number)
        gc.collect(log)
    assert shop.records(shop.log())[: len(records)] == records


def test_a_missing_index_file_is_no_reason_to_lose_what_an_older_snapshot_has(shop):
    log, before = shop.log(), ids(shop)
    for number in range(90, 95):
        shop.commit(log, number)
    written = ids(shop)
    edge = log.refresh(sync=True).head.index[0]
    snapshots.leave(log)
    (shop.folder / names.staged_file(log.topic.uuid, edge.epoch, edge.uid)).unlink()
    shop.lose()
    [topic] = [topic for topic in shop.rebuild().topics if topic.topic == TOPIC]
    assert "is missing" in topic.warnings[0]
    assert len(before) <= topic.records < len(written)
    assert ids(shop) == written[: topic.records]


# -- from a backup file -----------------------------------------------------------------------------------------------


def test_everything_comes_back_from_a_backup_file_I1(shop, tmp_path):
    backup_file.write(shop.namespace(), tmp_path / "all")
    before = shop.facts()
    shop.lose()
    plan = shop.restore(tmp_path / "all")
    assert [topic.topic for topic in plan.topics] == [IDLE, TOPIC]
    assert shop.facts() == before
    shop.commit(shop.log(), 90)
    shop.lose()
    shop.rebuild()
    assert shop.facts()["producers"] == before["producers"]


def test_a_backup_file_and_a_copy_of_the_storage_are_enough_I1(shop, tmp_path):
    backup_file.write(shop.namespace(), tmp_path / "all")
    before = shop.facts()
    shop.folder = shutil.move(shop.folder, tmp_path / "elsewhere")
    for folder in list(shop.folder.glob("ledger-recovery-*")):
        shutil.rmtree(folder)
    shop.lose()
    shop.restore(tmp_path / "all")
    assert shop.facts() == before


def test_a_backup_file_that_is_older_than_storage_says_so_and_uses_no_number_again_I1(shop, tmp_path):
    backup_file.write(shop.namespace(), tmp_path / "all")
    before = ids(shop)
    for number in range(90, 96):
        shop.commit(shop.log(), number)
    shop.save()
    lost = shop.log().refresh().head
    shop.lose()
    [topic] = [topic for topic in shop.restore(tmp_path / "all").topics if topic.topic == TOPIC]
    assert "namespace rebuild" in topic.warnings[0]
    assert ids(shop) == before
    assert shop.log().refresh().head.next_commit > lost.next_commit
    assert shop.log().refresh().head.end > lost.end


@pytest.mark.parametrize("content", [b"", b"nothing", b"x" * 1000])
def test_a_file_that_is_no_backup_is_refused_and_nothing_is_changed(shop, tmp_path, content):
    (tmp_path / "bad").write_bytes(content)
    shop.lose()
    with pytest.raises(LedgerError):
        shop.restore(tmp_path / "bad")
    assert shop.namespace().metadata.read(NamespaceKey()) is None


# -- any history ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", histories(10))
def test_whenever_zookeeper_is_lost_the_log_is_a_beginning_of_what_it_was_I1_I5_I12(tmp_path, seed):
    """Appends, seals, trims, collections and backups in any order; ZooKeeper is lost twice."""
    rng = random.Random(seed)
    shop = Shop(tmp_path, replace(LIMITS, commits_per_ledger=3))
    shop.namespace().create_topic("n", SCHEMA)
    written: list[int] = []
    saved, used = 0, set[Position]()
    for number in range(60):
        log = shop.log("n")
        action = rng.choices(["append", "seal", "gc", "save", "lose"], [60, 5, 10, 15, 5])[0]
        if action == "append":
            append(log, number)
            written.append(number)
        elif action == "seal":
            seal.seal(log)
        elif action == "gc":
            gc.collect(log)
        elif action == "save":
            shop.save()
            saved = len(written)
        elif saved or number > 30:
            if not saved:
                shop.save()
                saved = len(written)
            used |= {position for _, position in read(log)}
            shop.lose()
            shop.rebuild()
            there = [n for n, _ in read(shop.log("n"))]
            assert there == written[: len(there)]
            assert len(there) >= saved
            written, saved = there, len(there)
            append(shop.log("n"), 1000 + number)
            written.append(1000 + number)
            assert list(read(shop.log("n")))[-1][1] not in used
        assert [n for n, _ in read(shop.log("n"))] == written


# -- on an object store -----------------------------------------------------------------------------------------------


def test_on_s3_too_I1(namespace, s3_root):
    def back_up(client: LedgerClient) -> None:
        assert not Backup(namespace_of(client)).run(Pace(SYSTEM_CLOCK, lambda _: None)).failed

    with LedgerClient(namespace, s3_root) as client:
        client.create_topic("n", SCHEMA)
        log = namespace_of(client).log("n")
        for number in range(5):
            append(log, number)
        client.create_cursor("n", "s")
        back_up(client)
        append(log, 5)
    with closing(ZooKeeperMetadata(f"{namespace}-new")) as metadata:
        plan = from_storage(metadata, s3_root).run()
    assert [(topic.topic, topic.records, topic.later_files) for topic in plan.topics] == [("n", 5, 1)]
    with LedgerClient(f"{namespace}-new") as client:
        assert [record["n"] for record in client.reader("n", end="latest")] == [0, 1, 2, 3, 4]
        append(namespace_of(client).log("n"), 6)
        assert [cursor.name for cursor in client.cursors("n")] == ["s"]
