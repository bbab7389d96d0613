"""Verifying: whatever is missing, damaged or contradicts itself is told with its place, and nothing else is; also while
others write, seal, rewrite, give up, compact and collect."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.compaction import run as compaction
from pyspark_ledger.compaction.fold import Survivors
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.errors import CorruptData, InvalidInput, LedgerError, Unavailable
from pyspark_ledger.files.storage import open_storage
from pyspark_ledger.lifecycle import gc, repair, retention, rewriting
from pyspark_ledger.lifecycle.findings import Finding, Findings, Verified, finding
from pyspark_ledger.lifecycle.verify import verify
from pyspark_ledger.lifecycle.verify_outboxes import verify_outboxes
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import (
    CommitKey,
    CursorKey,
    DedupKey,
    GcKey,
    HeadKey,
    Key,
    PoliciesKey,
    RetentionKey,
    SchemaKey,
    TipKey,
    TokenChunkKey,
    TokenGroupKey,
    TopicKey,
    Versioned,
)
from pyspark_ledger.metadata.records import FileRef, Schema, Trim
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.disk import Disk, MemoryStorage, StorageFaults
from tests.support.everything import READING, Everything
from tests.support.lifecycle import act_before, acting_before_files
from tests.support.rollback import restore, snapshot
from tests.support.worlds import EAGER, SMALL, World, append

LIMITS = replace(EAGER, rewrite_below_bytes=1 << 20, verify_threads=1)


@pytest.fixture(scope="module")
def everything() -> Everything:
    return Everything()


@pytest.fixture(autouse=True)
def as_it_was(everything) -> None:
    everything.restore()


def verified(world: Everything, **options: Any) -> Verified:
    with world.process() as log:
        return verify(log, **options)


def harm(done: Verified) -> list[Finding]:
    return [found for found in done.findings if found.is_harm]


def collect(world: World, times: int = 1) -> None:
    for _ in range(times):
        gc.collect(world.log())


# -- a topic that is whole -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"deep": True}, {"sample": 0.5}])
def test_of_a_topic_that_is_whole_only_what_nothing_names_is_mentioned(everything, options):
    before = everything.state()
    done = verified(everything, **options)
    assert done.is_sound
    assert (done.ledgers, done.commits, done.entries, done.records) == (6, 24, 72, 108)
    assert (done.generations, done.subscriptions, done.token_groups) == (3, 1, 2)
    assert [found.kind for found in done.findings] == ["orphan"]
    assert done.orphans == 10
    assert done.files_read < done.files if "sample" in options else done.files_read == done.files
    assert everything.state() == before


def test_what_was_written_rewritten_given_up_compacted_and_collected_is_whole(tmp_path):
    world = World(tmp_path, LIMITS, SeededClock(), key="n")
    for number in range(23):
        append(world.log(), number, number + 1)
        assert verify(world.log(), deep=True).is_sound
        if number % 5 == 4:
            compact(world.log())
        if number % 7 == 6:
            rewriting.rewrite(world.log())
        if number in (12, 20):
            retention.trim(world.log(), before=Position(number // 6, 0, 0))
        if number % 3 == 2:
            collect(world)
        assert verify(world.log(), deep=True).is_sound
    collect(world, 4)
    assert verify(world.log(), deep=True).findings == ()


def test_an_empty_topic_is_whole(tmp_path):
    assert verify(World(tmp_path).log(), deep=True).findings == ()


def test_progress_is_told_and_ends_at_the_end(everything):
    told: list[tuple[str, int, int]] = []
    verified(everything, progress=lambda *step: told.append(step))
    assert told[-1] == ("verifying", 108, 108)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


# -- damaged files ---------------------------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda _: None,
    "cut short": lambda data: data[: len(data) // 2],
    "a flipped bit": lambda data: data[:-11] + bytes([data[-11] ^ 8]) + data[-10:],
    "other bytes": lambda data: bytes(len(data)),
}
KINDS = (
    "entry", "entry list", "highest ids", "index leaf", "index node", "snapshot", "evicted", "manifest", "compacted",
    "replaced generations", "token bitmap",
)  # fmt: skip
WITHOUT_PLACE = ("snapshot", "evicted", "replaced generations", "token bitmap")


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_damaged_file_is_found_with_its_name_and_place_and_nothing_else_is_I1(everything, kind, damage):
    paths = everything.kinds()[kind]
    for path in dict.fromkeys((paths[0], paths[-1])):
        everything.restore()
        everything.disk.put(path, DAMAGE[damage](everything.disk.content(path)))
        before = everything.state()
        found = harm(verified(everything))
        assert [each.kind for each in found] == ["loss" if damage == "missing" else "damage"]
        assert found[0].file.endswith(path)
        assert path in found[0].what
        assert kind in WITHOUT_PLACE or (found[0].first < found[0].end and found[0].records > 0)
        assert everything.state() == before


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_read_would_be_told_is_found(everything, kind):
    """Also where the damage is in the middle of a file, in bytes that may or may not count."""
    path = everything.kinds()[kind][-1]
    data = everything.disk.content(path)
    told = 0
    for at in range(0, len(data), max(1, len(data) // 20)):
        everything.disk.put(path, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        is_told = any(path in outcome(everything, operation) for operation in READING)
        told += is_told
        found = harm(verified(everything))
        assert [each.file.endswith(path) for each in found] == [True] * len(found)
        assert found or not is_told, at
    assert told or kind in ("evicted", "replaced generations")


def outcome(world: Everything, operation: str) -> str:
    try:
        world.run(operation)
    except CorruptData as error:
        return str(error)
    return ""


def test_the_place_of_what_is_lost_is_exact(everything):
    log = everything.world.log()
    commit = log.commit(log.view(), 9)
    with everything.process() as log:
        entry = log.entries(commit)[1].file
    everything.disk.put(f"{log.topic.uuid}/{entry.epoch:08x}/{entry.uid.hex()}.arrow", None)
    (found,) = harm(verified(everything))
    assert found.first == Position(commit.ledger, commit.first_entry + 1, 0)
    assert found.end == Position(commit.ledger, commit.first_entry + 2, 0)
    assert found.records == 2
    assert found.advice == "restore it from a copy"


def test_one_damaged_file_does_not_hide_the_next(everything):
    kinds = everything.kinds()
    chosen = [kinds[kind][-1] for kind in KINDS if kind not in ("entry list", "index leaf", "index node")]
    chosen += [kinds["entry"][0], kinds["index leaf"][2], kinds["entry list"][-1]]
    for path in chosen:
        everything.disk.put(path, None)
    lost = [found.file for found in harm(verified(everything))]
    hidden = {kinds["entry"][-1], kinds["compacted"][-1]}  # their list, and their manifest, are gone too
    assert {path for path in chosen if not any(file.endswith(path) for file in lost)} == hidden
    assert len(lost) == len(chosen) - len(hidden)


def test_all_that_a_lost_part_of_the_index_leads_to_is_counted(everything):
    everything.disk.put(everything.kinds()["index node"][0], None)
    (found,) = harm(verified(everything))
    assert (found.first, found.end, found.records) == (Position(3, 0, 0), Position(5, 0, 0), 36)


def test_what_is_in_memory_hides_nothing_I1(everything):
    with everything.process() as log:
        assert verify(log).is_sound
        list(log.commits_from(log.refresh(), EARLIEST))
        everything.disk.put(everything.kinds()["index leaf"][-1], None)
        assert len(harm(verify(log))) == 1


def test_a_damaged_entity_of_an_outbox_is_found(everything):
    namespace = OpenNamespace.__new__(OpenNamespace)
    log = everything.world.log()
    namespace.metadata, namespace.limits, namespace.clock = log.metadata, log.limits, log.clock
    namespace._storage = log.storage
    assert verify_outboxes(namespace) == []
    (path,) = everything.kinds()["entity"]
    everything.disk.put(path, b"")
    (found,) = verify_outboxes(namespace)
    assert path in found.what


def test_a_sample_finds_every_missing_file_and_some_of_the_damage(tmp_path):
    world = World(tmp_path, replace(SMALL, commits_per_ledger=1000, verify_threads=4))
    log = world.log()
    for number in range(60):
        append(log, number)
    files = [log.entries(commit)[0].file for commit in log.view().open_commits]
    paths = [tmp_path / log.topic.uuid / f"{file.epoch:08x}" / f"{file.uid.hex()}.arrow" for file in files]
    paths[0].unlink()
    for path in paths[1:]:
        data = path.read_bytes()
        path.write_bytes(data[:-20] + bytes(20))
    assert len(harm(verify(world.log()))) == 60
    found = harm(verify(world.log(), sample=0.3))
    assert [each.kind for each in found].count("loss") == 1
    assert 1 < len(found) < 50


# -- damaged nodes ---------------------------------------------------------------------------------------------------


def change(world: Everything | World, key: Key[Any], edit: Callable[[Any], Any] | None) -> None:
    """Edits a node as nobody should; None: deletes it."""
    server = world.world.server if isinstance(world, Everything) else world.server
    nodes = snapshot(server)
    node = nodes[key]
    assert node is not None
    nodes[key] = None if edit is None else Versioned(edit(node.record), node.version + 1)
    restore(server, nodes)


def nodes_of(world: Everything) -> Iterator[Key[Any]]:
    kinds = (CommitKey, CursorKey, DedupKey, GcKey, PoliciesKey, RetentionKey, SchemaKey, TipKey, TokenChunkKey)
    yield from (key for key in world.nodes() if isinstance(key, (*kinds, TopicKey)))


def test_every_node_that_is_lost_is_found_I1(everything):
    keys = [key for key in nodes_of(everything) if not isinstance(key, CursorKey)]  # nobody knows which there were
    assert len({type(key) for key in keys}) == 9
    for key in keys:
        everything.restore()
        change(everything, key, None)
        assert [each.kind for each in harm(verified(everything))] == ["loss"], key


def test_lost_commits_have_their_places_and_the_others_are_looked_at(everything):
    everything.disk.put(everything.kinds()["entry"][-1], None)
    for number in (20, 22):
        change(everything, CommitKey(everything.world.topic.uuid, 5, number), None)
    found = harm(verified(everything))
    places = [(str(each.first), str(each.end), each.records) for each in found]
    assert places == [("5:0:0", "5:3:0", 3), ("5:6:0", "5:9:0", 3), ("5:11:0", "5:12:0", 2)]


def wrong_file(record: Any) -> Any:
    file: FileRef = record.file
    return replace(record, file=replace(file, length=file.length + 1))


EDITS: dict[str, tuple[Callable[[str], Key[Any]], Callable[[Any], Any]]] = {
    "total of records": (HeadKey, lambda head: replace(head, records=head.records + 1)),
    "total of bytes": (HeadKey, lambda head: replace(head, bytes=head.bytes - 1)),
    "bytes of the open ledger": (HeadKey, lambda head: replace(head, ledger_bytes=0)),
    "next entry": (HeadKey, lambda head: replace(head, next_entry=13)),
    "publish time": (HeadKey, lambda head: replace(head, last_publish_ms=1)),
    "first commit of the open ledger": (HeadKey, lambda head: replace(head, ledger_first_commit=21)),
    "begin": (HeadKey, lambda head: replace(head, trim=Trim(Position(1, 0, 0), 4, 17, 1))),
    "begin after the end": (HeadKey, lambda head: replace(head, trim=Trim(Position(9, 0, 0), 99, 1, 1))),
    "gc epoch": (GcKey, lambda node: replace(node, epoch=1)),
    "dedup": (DedupKey, lambda node: replace(node, next_commit=16)),
    "evicted": (DedupKey, lambda node: replace(node, evicted=99)),
    "horizon": (HeadKey, lambda head: replace(head, generation=replace(head.generation, horizon=Position(5, 6, 0)))),
    "generation's size": (HeadKey, lambda head: replace(head, generation=replace(head.generation, records=9))),
    "schema": (lambda uuid: SchemaKey(uuid, 0), lambda _: Schema(0, b"nonsense")),
    "topic": (lambda _: TopicKey("t"), lambda topic: replace(topic, uuid="another")),
    "commit's records": (lambda uuid: CommitKey(uuid, 5, 21), lambda commit: replace(commit, records=5)),
    "commit's records before": (lambda uuid: CommitKey(uuid, 5, 21), lambda commit: replace(commit, records_before=9)),
    "commit's entries": (lambda uuid: CommitKey(uuid, 5, 21), lambda commit: replace(commit, entry_count=4)),
    "commit's time": (lambda uuid: CommitKey(uuid, 5, 22), lambda commit: replace(commit, publish_ms=1)),
    "commit's token": (lambda uuid: CommitKey(uuid, 5, 20), lambda commit: replace(commit, tokens_before=1)),
    "commit's chain": (lambda uuid: CommitKey(uuid, 5, 22), lambda commit: replace(commit, previous=b"other")),
    "cursor's ordinal": (lambda uuid: CursorKey(uuid, "old"), lambda cursor: replace(cursor, ordinal=3)),
    "cursor's acks": (lambda uuid: CursorKey(uuid, "old"), lambda cursor: replace(cursor, acks=b"\x80")),
    "cursor past the end": (
        lambda uuid: CursorKey(uuid, "old"),
        lambda cursor: replace(cursor, mark_delete=Position(8, 0, 0)),
    ),
    "consumed tokens": (lambda uuid: TokenGroupKey(uuid, "group"), lambda group: replace(group, consumed=1)),
    "consumed chunks": (lambda uuid: TokenGroupKey(uuid, "group"), lambda group: replace(group, whole=b"\x80")),
    "bitmap": (lambda uuid: TokenChunkKey(uuid, "group", 0), wrong_file),
}


@pytest.mark.parametrize("what", EDITS)
def test_nodes_that_contradict_each_other_are_found(everything, what):
    key, edit = EDITS[what]
    change(everything, key(everything.world.topic.uuid), edit)
    assert harm(verified(everything))


def test_a_mask_that_does_not_fit_is_found(everything):
    key = CommitKey(everything.world.topic.uuid, 5, 21)

    def masked(commit: Any) -> Any:
        entry = replace(log.entries(commit)[0], mask=b"nonsense", masked=1)
        return replace(commit, entries=(entry, *log.entries(commit)[1:]), entries_file=None)

    with everything.process() as log:
        change(everything, key, masked)
    whats = " ".join(found.what for found in harm(verified(everything)))
    assert "mask" in whats


def test_a_head_that_cannot_be_read_is_all_that_is_told(everything, monkeypatch):
    with everything.process() as log:
        real = log.metadata.read

        def read(key: Key[Any], *more: Any) -> Any:
            if isinstance(key, HeadKey):
                raise CorruptData("the node of the head is damaged")
            return real(key, *more)

        monkeypatch.setattr(log.metadata, "read", read)
        (found,) = verify(log).findings
    assert found.kind == "damage"


# -- rollbacks and repairs -------------------------------------------------------------------------------------------


def test_files_of_a_later_epoch_and_a_note_in_the_head_are_signs_of_a_rollback_I18(tmp_path):
    world = World(tmp_path, EAGER)
    append(world.log(), 1)
    backup = snapshot(world.server)
    collect(world)
    append(world.log(), 2)
    restore(world.server, backup)
    assert [found.kind for found in harm(verify(world.log()))] == ["rollback"]
    with pytest.raises(LedgerError):
        collect(world)
    assert {found.kind for found in harm(verify(world.log()))} == {"rollback"}
    repair.accept_loss(world.log())
    assert verify(world.log()).is_sound  # numbers have a gap now
    for number in range(9):
        append(world.log(), number)
        assert verify(world.log()).is_sound


# -- generations -----------------------------------------------------------------------------------------------------


def test_a_generation_that_is_not_what_the_log_gives_is_found_if_asked_for_I9(tmp_path, monkeypatch):
    world = World(tmp_path, SMALL, key="n")
    for number in range(6):
        append(world.log(), number)
    assert compact(world.log()) is not None
    append(world.log(), 7)
    real = compaction.survivors_of

    def forgetful(*arguments: Any) -> Survivors:
        found = real(*arguments)
        return Survivors(found.records.slice(1), found.tombstones)

    with monkeypatch.context() as patched:
        patched.setattr(compaction, "survivors_of", forgetful)
        assert compact(world.log()) is not None
    assert verify(world.log()).is_sound
    (found,) = harm(verify(world.log(), deep=True))
    assert "generation 2" in found.what
    assert str(EARLIEST) in found.what


# -- beside others ---------------------------------------------------------------------------------------------------


@contextmanager
def busy(step: int) -> Iterator[World]:
    storage = MemoryStorage(Disk())
    with storage.mounted():
        world = World(storage, LIMITS, SeededClock(step), key="n")
        for number in range(10):
            append(world.log(), number)
        compact(world.log())
        CursorNode(world.log(), "s").ensure("earliest")
        yield world


def write_and_seal(world: World) -> None:
    for number in range(20, 25):
        append(world.log(), number)


def acknowledge(world: World) -> None:
    append(world.log(), 99)
    node = CursorNode(world.log(), "s")
    node.update(lambda cursor: node.moved(cursor, node.log.refresh(sync=True).head.records))


RIVALS: dict[str, Callable[[World], object]] = {
    "writers that seal": write_and_seal,
    "rewriting and gc": lambda world: (rewriting.rewrite(world.log()), collect(world, 3)),
    "trimming and gc": lambda world: (retention.trim(world.log(), before="2:0:0"), collect(world, 3)),
    "compaction and gc": lambda world: (append(world.log(), 3), compact(world.log()), collect(world, 4)),
    "a consumer": acknowledge,
    "all of them": lambda world: [act(world) for name, act in RIVALS.items() if name != "all of them"],
}


@pytest.mark.parametrize("rival", RIVALS)
def test_who_acts_between_two_requests_is_no_false_alarm(rival):
    for step in range(1, 80):
        with busy(step) as world:
            log = world.log()
            acted = act_before(log, step, partial(RIVALS[rival], world))
            assert harm(verify(log)) == []
        if not acted():
            break
    assert 10 < step < 79


@pytest.mark.parametrize("rival", RIVALS)
def test_who_acts_between_two_looks_at_files_is_no_false_alarm_I12(rival):
    for step in range(1, 150, 4):
        with busy(step) as world, acting_before_files(world, step, partial(RIVALS[rival], world)) as acted:
            assert harm(verify(world.log(), deep=True)) == []
        if not acted():
            break
    assert 40 < step < 149


def test_a_loss_is_found_whoever_acts_meanwhile():
    """So that looking again does not look away."""
    for step in range(1, 60, 2):
        with busy(step) as world:
            log = world.log()
            lost = log.entries(log.view().open_commits[-1])[0].file
            (path,) = (path for path in world.files() if lost.uid.hex() in path)
            world.storage.delete(path)
            with acting_before_files(world, step, partial(write_and_seal, world)):
                assert [found.file.endswith(path) for found in harm(verify(world.log()))] == [True]


def test_threads_that_do_everything_at_once_are_no_false_alarm(tmp_path):
    world = World(tmp_path, replace(LIMITS, verify_threads=4), key="n")
    stop, errors = threading.Event(), []

    def again_and_again(act: Callable[[World], object]) -> None:
        while not stop.is_set():
            try:
                act(world)
            except LedgerError as error:
                errors.append(error)

    acts = [
        lambda world: append(world.log(), 1),
        lambda world: rewriting.rewrite(world.log()),
        lambda world: (compact(world.log()), collect(world)),
    ]
    threads = [threading.Thread(target=again_and_again, args=[act]) for act in acts]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            assert harm(verify(world.log())) == []
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert verify(world.log(), deep=True).is_sound


# -- what is no finding ----------------------------------------------------------------------------------------------


def test_a_storage_that_does_not_answer_is_an_error_and_no_finding(everything):
    for call in (1, 5, 30, 100):
        faults = StorageFaults()
        faults.next(*[None] * call, "fails")
        with everything.process(faults=faults) as log, pytest.raises(Unavailable):
            verify(log)


@pytest.mark.parametrize("options", [{"sample": 0}, {"sample": 1.5}, {"sample": True}, {"sample": 0.1, "deep": True}])
def test_an_option_that_makes_no_sense_is_refused(tmp_path, options):
    with pytest.raises(InvalidInput, match="sample"):
        verify(World(tmp_path).log(), **options)


def test_very_many_findings_are_counted():
    found = Findings()
    found.add(finding("loss", f"{number}") for number in range(10_005))
    assert (len(found.all), found.more) == (10_000, 5)


# -- elsewhere -------------------------------------------------------------------------------------------------------


def test_on_an_object_store_too(s3_root):
    world = World(open_storage(s3_root), replace(LIMITS, verify_threads=4), key="n")
    for number in range(9):
        append(world.log(), number)
    compact(world.log())
    done = verify(world.log(), deep=True)
    assert done.is_sound
    log = world.log()
    lost, cut = (log.entries(commit)[0].file for commit in list(log.commits_from(log.view(), EARLIEST))[2:4])
    for path in world.files():
        if lost.uid.hex() in path:
            world.storage.delete(path)
        if cut.uid.hex() in path:
            data = world.storage.read(path, 0, 1 << 20).to_pybytes()
            world.storage.delete(path)
            world.storage.write(path, data[:-30])
    assert [(found.kind, str(found.first)) for found in harm(verify(world.log()))] == [
        ("loss", "0:2:0"),
        ("damage", "0:3:0"),
    ]


def test_nodes_of_nonsense_in_a_real_zookeeper_are_found_and_end_nothing(namespace, storage_root):
    from kazoo.client import KazooClient

    from pyspark_ledger.client import LedgerClient

    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", pa.schema([("k", pa.string()), ("v", pa.int64())]), key="k")
        for number in range(3):
            with client.producer("orders", mint_tokens=True) as producer:
                producer.send({"k": "a", "v": number})
        client.create_cursor("orders", "s")
        token = next(iter(client.reader("orders", end="latest"))).token
        assert client.tokens("orders", "g").consume([token])
        assert client.verify("orders", deep=True).findings == ()
        uuid = client.topic("orders").uuid
    zk = KazooClient(namespace)
    zk.start()
    try:
        paths = [path for path in everything_below(zk, f"/logs/{uuid}") if LOOKED_AT.search(path)]
        assert len(paths) == 12
        for path in paths:
            data, _ = zk.get(path)
            zk.set(path, b"nonsense")
            with LedgerClient(namespace, storage_root) as client:
                assert [found.kind for found in harm(client.verify("orders"))][:1] == ["damage"], path
            zk.set(path, data)
    finally:
        zk.stop()
        zk.close()


LOOKED_AT = re.compile("head$|policies$|gc$|retention$|dedup$|schema-|commits/[0-9]+/|cursor-|tokens/g$|tip-")


def everything_below(zk: Any, path: str) -> Iterator[str]:
    yield path
    for child in zk.get_children(path):
        yield from everything_below(zk, f"{path}/{child}")
