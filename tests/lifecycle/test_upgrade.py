"""``pyspark-ledger namespace upgrade``: what the code of format 1 left, real and complete, is the same afterwards, and
goes on. Old processes change nothing any more."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient
from kazoo.security import Permissions

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.position import Position
from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient, namespace_of, open_namespace
from pyspark_ledger.errors import Conflict, CorruptData, LedgerError, OutcomeUnknown, Unavailable
from pyspark_ledger.files.storage import normalise_uri, open_storage
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.lifecycle.upgrade import Upgrade
from pyspark_ledger.metadata.port import Create, HeadKey
from pyspark_ledger.tokens.tokens import Tokens
from pyspark_ledger.zk_metadata import records_pb2 as pb
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata
from tests.golden.make import LIMITS as GOLDEN_LIMITS
from tests.support import REPOSITORY
from tests.support.described import described
from tests.support.golden import meaning, put_old_nodes
from tests.support.old_code import OldProcess, call_old, make_old_namespace
from tests.support.zookeeper import as_user, dump, nodes_of, put_nodes

GOLDEN = REPOSITORY / "tests" / "golden" / "format1"


@contextmanager
def upgrading(namespace: str, **options: Any) -> Iterator[tuple[Upgrade, ZooKeeperMetadata]]:
    with closing(ZooKeeperMetadata(namespace)) as metadata:
        yield Upgrade(metadata, **options), metadata


def upgrade(namespace: str, **options: Any) -> None:
    with upgrading(namespace, **options) as (work, _):
        work.run()


def assert_covers(found: Any, before: Any, where: str) -> None:
    """All that was there is there. A record may have fields that it had not before."""
    if isinstance(before, dict):
        assert found.keys() >= before.keys(), where
        for name, value in before.items():
            assert_covers(found[name], value, f"{where}, {name}")
    elif isinstance(before, list):
        assert len(found) == len(before), where
        for number, value in enumerate(before):
            assert_covers(found[number], value, f"{where}[{number}]")
    else:
        assert found == before, where


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=bytes.hex))


# -- the same as before, and it goes on ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def left_by_old_code(zookeeper, tmp_path_factory) -> tuple[dict[str, Any], dict[str, bytes], Path]:
    """What the old code says of what it has left, its nodes, and its files."""
    folder = tmp_path_factory.mktemp("old")
    address = f"{zookeeper}/{folder.name}"
    said = make_old_namespace(address, str(folder / "storage"))
    return said, {path: data for path, (data, _, _) in sorted(dump(address).items()) if path}, folder / "storage"


@pytest.fixture
def old(left_by_old_code, namespace, storage_root) -> tuple[str, dict[str, Any]]:
    """A copy of it."""
    said, nodes, files = left_by_old_code
    return copied(nodes, files, namespace, storage_root), said


def copied(nodes: dict[str, bytes], files: Path, namespace: str, storage: str) -> str:
    shutil.copytree(files, storage)
    record = pb.Namespace.FromString(nodes["/namespace"])
    record.storage = normalise_uri(storage)
    put_nodes(namespace, nodes | {"/namespace": record.SerializeToString()})
    return namespace


UNLIKE = ("end", "index_files", "producers_in_a_file")  # the open ledger is sealed on the way


def assert_same_meaning(client: LedgerClient, said: dict[str, Any]) -> None:
    assert client.topics() == list(said["topics"])
    for name, before in said["topics"].items():
        outside = {group: list(tokens["outside"]) for group, tokens in before["tokens"].items()}
        found = as_json(described(client, name, outside))
        before = {what: value for what, value in before.items() if what not in UNLIKE}
        for cursor in found["cursors"].values():
            assert cursor.pop("id")
        assert_covers(found, before, name)
    outbox = client.outbox("billing", dispatch=lambda *_: None)
    for entity, before in said["outboxes"]["billing"].items():
        assert outbox.state(entity) == before["state"]
        assert outbox.pending(entity).keys() == before["pending"].keys()


def test_a_namespace_that_the_old_code_made_is_the_same_after_the_upgrade(namespace, storage_root):
    """Not a copy: with the versions of nodes that it has, too."""
    said = make_old_namespace(namespace, storage_root)
    upgrade(namespace)
    with LedgerClient(namespace) as client:
        assert_same_meaning(client, said)
        assert all(client.verify(topic, deep=True).is_sound for topic in client.topics())
    left = {
        path: data for path, (data, _, _) in dump(namespace).items() if path.startswith(("/ledgers/", "/outboxes/"))
    }
    roots = {"/outboxes/billing", *(f"/ledgers/{topic['uuid']}" for topic in said["topics"].values())}
    assert {path.rpartition("/")[2].partition("-")[0] for path in left.keys() - roots} == {"head", "tokens", "block"}
    assert max(len(data) for data in left.values()) < 200


def test_writers_go_on_and_what_they_repeat_is_still_a_duplicate(old):
    """I5"""
    namespace, said = old
    upgrade(namespace)
    with LedgerClient(namespace) as client:
        before = len(said["topics"]["events"]["records"])
        with client.producer("events", "app") as producer:
            again, new = producer.send({"id": 92, "name": "again"}, 14), producer.send({"id": 200, "name": "new"}, 15)
        assert (again.result().duplicate, new.result().duplicate) == (True, False)
        with client.producer("events", "retrier") as producer:
            again = producer.send({"id": 69}, 9)
        assert again.result().duplicate
        with pytest.raises(Conflict, match="LEDGER_PRODUCER_EVICTED"):
            client.producer("events", "silent").send({"id": 1})
        assert len(list(client.reader("events", end="latest"))) == before + 1
        for n in range(9):  # the policies are still those that seal after four commits
            with client.producer("events", "app") as producer:
                producer.send({"id": 300 + n})
        assert [record["id"] for record in client.reader("events", end="latest")][-9:] == list(range(300, 309))
        log = namespace_of(client).log("events")
        commits = list(log.commits_from(log.view(), Position(4, 0, 0)))
        assert [commit.ledger for commit in commits] == [4] * 4 + [5] * 4 + [6] * 2
        assert all(after.previous == before.id for before, after in pairwise(commits))


def test_subscriptions_tokens_and_entities_go_on(old):
    """I8, I11"""
    namespace, said = old
    upgrade(namespace)
    with LedgerClient(namespace) as client:
        with client.consumer("events", "gaps") as consumer:
            first = consumer.receive(30.0)
            assert str(first.position) == said["topics"]["events"]["cursors"]["gaps"]["mark_delete"]
            consumer.acknowledge(first)
        [stats] = [stats for stats in client.cursors("events") if stats.name == "gaps"]
        assert (stats.epoch, stats.backlog_records) == (2, 18)
        audit = said["topics"]["orders"]["tokens"]["audit"]
        group = client.tokens("orders", "audit")
        assert group.consume(audit["present"][:200]) == [True] * 200
        assert group.consume(audit["present"][:201]) == [False] * 200 + [True]
        outside = [token for token, present in audit["outside"].items() if present]
        assert group.consume(outside) == [True] * len(outside)
        assert group.consume(outside) == [False] * len(outside)
        assert all(group.consume(group.mint(3)))
        dispatched = []
        outbox = client.outbox(
            "billing", dispatch=lambda payload, _: dispatched.append(payload),
            dispatch_tokens=client.tokens("parcels", "shipping"),
        )  # fmt: skip
        minted = [record.token for record in client.reader("orders", end="latest")]
        outbox.process("order 3", minted[4], lambda state: (state, []), entity="bob")
        assert dispatched == ["undelivered"], "what was left pending, and not what the handler says now"
        outbox.process("order 9", minted[9], lambda state: ({**state, "new": True}, []), entity="bob")
        assert outbox.state("bob") == {"orders": list(range(100)), "new": True}


def test_the_file_of_a_bitmap_is_replaced_as_before(namespace, storage_root):
    """Its name has the version of the old node, and those of the new one begin at 0."""
    orders = make_old_namespace(namespace, storage_root)["topics"]["orders"]
    upgrade(namespace)
    [before] = (Path(storage_root) / orders["uuid"] / "tokens" / "audit" / "0000000002").iterdir()
    assert int(before.name.partition("-")[0]) > 1
    with closing(open_namespace(namespace, limits=Limits(node_bitmap_bytes=20))) as opened:
        third_chunk = orders["tokens"]["audit"]["present"][64:128]
        assert all(Tokens(opened.log("orders"), "audit").consume(third_chunk[:5]))
        [after] = before.parent.iterdir()
        assert after != before
        assert Tokens(opened.log("orders"), "audit").present(third_chunk) == [False] * 5 + [True] * 59


def test_compaction_and_gc_go_on_and_lose_nothing_that_is_named(old):
    """I9, I10, I12: many runs of gc, with no grace."""
    namespace, said = old
    limits = Limits(gc_grace_ms=0, inline_producers_bytes=100, token_chunk=128, inline_bitmaps=1, node_bitmap_bytes=20)
    upgrade(namespace, limits=limits)
    with LedgerClient(namespace) as client, closing(open_namespace(namespace, limits=limits)) as opened:
        for topic in said["topics"]:
            assert gc.collect(opened.log(topic)).epoch == said["topics"][topic]["gc_epoch"] + 1
        assert_same_meaning(client, said | {"topics": without_epochs(said["topics"])})
        for _ in range(4):
            for topic in said["topics"]:
                gc.collect(opened.log(topic))
        topics = without_epochs(said["topics"])
        for topic in topics.values():
            topic["generations"] = topic["generations"][-1:]  # those before it have been replaced for long enough
        assert_same_meaning(client, said | {"topics": topics})
        assert not (Path(open_storage(opened.storage.uri).uri.removeprefix("file://")) / said["unnamed"]).exists()
        before = balances(client)
        assert client.compact("accounts").generation == 5
        assert balances(client) == before
        for _ in range(4):
            gc.collect(opened.log("accounts"))
        assert balances(client) == before


def balances(client: LedgerClient) -> dict[str, int]:
    return {record["who"]: record["balance"] for record in client.reader("accounts", end="latest", compacted=True)}


def without_epochs(topics: dict[str, Any]) -> dict[str, Any]:
    return {name: {what: topic[what] for what in topic if what != "gc_epoch"} for name, topic in topics.items()}


def test_gc_keeps_a_generation_that_the_old_gc_has_seen_again_and_again(namespace, storage_root):
    """I12: the old gc kept it among the files that can be replaced."""
    asked = [("make", namespace, storage_root), ("open", namespace), ("compact",), *[("collect_compacted",)] * 3]
    with OldProcess() as process:
        assert {process.ask(*what) for what in asked} == {"done"}
    upgrade(namespace)
    with closing(open_namespace(namespace, limits=Limits(gc_grace_ms=0))) as opened, LedgerClient(namespace) as client:
        for _ in range(4):
            gc.collect(opened.log("keyed"))
            read = client.reader("keyed", end="latest", compacted=True)
            assert [dict(record.value) for record in read] == [{"k": "a", "v": 1}]


@pytest.mark.parametrize("name", ["following", "compacted"])
def test_a_checkpoint_of_the_old_code_goes_on(old, name):
    """I7: a batch that was logged and not committed reads the same; after it come the records that nobody has read."""
    from pyspark_ledger.datasource.options import ReadOptions
    from pyspark_ledger.datasource.read_schema import topic_schema
    from pyspark_ledger.datasource.stream_reader import LedgerStreamReader

    namespace, said = old
    upgrade(namespace)
    checkpoint = said["checkpoints"][name]
    options = ReadOptions.parse({**checkpoint["options"], "zookeeper": namespace})
    reader = LedgerStreamReader(options, topic_schema(options))

    def read(start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        parts = reader.partitions(start, end)
        return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]

    last = checkpoint["batches"][-1]
    assert read(last["start"], last["end"]) == last["rows"]
    reader.commit(last["end"])
    start, rows = last["end"], []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        rows += read(start, end)
        reader.commit(end)
        start = end
    reader.stop()
    topic = said["topics"][checkpoint["options"]["topic"]]
    whole = [record["value"] for record in topic["compacted" if name == "compacted" else "records"]]
    assert rows
    assert rows == whole[-len(rows) :]
    assert last["rows"] == whole[-len(rows) - len(last["rows"]) : -len(rows)]


# -- interrupted -----------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here: nothing catches this."""


def killed_after(metadata: ZooKeeperMetadata, writes: int) -> None:
    """It ends after so many transactions, before the next one."""
    transact, left = metadata.transact, writes

    def counted(ops):
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        transact(ops)

    metadata.transact = counted


def golden(namespace: str, folder: Path, password: str | None = None) -> str:
    """The golden namespace of format 1, with a copy of its files."""
    storage = folder / namespace.rpartition("/")[2]
    shutil.copytree(GOLDEN / "storage", storage)
    put_old_nodes(GOLDEN, namespace, str(storage), password)
    return str(storage)


def assert_golden(namespace: str, storage: str, password: str | None = None) -> None:
    before = json.loads((GOLDEN / "meaning.json").read_text())
    with closing(ZooKeeperMetadata(as_user(namespace, password))) as metadata:
        found = as_json(meaning(metadata, open_storage(storage)))
    for topic in ("t", "keyed"):
        leaves, was = found[topic].pop("index")["leaves"], before[topic].pop("index")["leaves"]
        assert_covers(leaves[:-1], was, topic)
    assert_covers(found, before, "the golden namespace")


def test_an_upgrade_that_is_killed_after_any_write_is_completed_by_the_next(namespace, tmp_path):
    """I1, I16. In between, new code refuses the namespace by name, unless nothing has happened yet."""
    writes = 0
    while True:
        address = f"{namespace}-{writes}"
        storage = golden(address, tmp_path)
        try:
            with upgrading(address, limits=GOLDEN_LIMITS) as (work, metadata):
                killed_after(metadata, writes)
                work.run()
            break
        except Killed:
            pass
        assert refusal_of_new_code(address) == ("LEDGER_OLDER_FORMAT" if writes == 0 else "LEDGER_UPGRADING")
        upgrade(address, limits=GOLDEN_LIMITS)
        assert_golden(address, storage)
        writes += 1
    assert_golden(address, storage)
    assert writes > 15


def refusal_of_new_code(namespace: str) -> str:
    with LedgerClient(namespace) as client, pytest.raises(LedgerError) as refused:
        client.create_topic("new", pa.schema([("n", pa.int64())]))
    return refused.value.code


def test_an_upgrade_may_be_killed_after_each_write(old):
    """One write a run, over all of what the old code can leave."""
    namespace, said = old
    for _ in range(200):
        try:
            with upgrading(namespace) as (work, metadata):
                killed_after(metadata, 1)
                work.run()
            break
        except Killed:
            pass
    with upgrading(namespace) as (work, _):
        assert work.plan().is_done
    with LedgerClient(namespace) as client:
        assert_same_meaning(client, said)


@pytest.mark.parametrize("arrives", [True, False])
def test_an_upgrade_finds_out_what_came_of_each_lost_answer(namespace, tmp_path, arrives):
    """I14: every second transaction is not answered, whether it was carried out or not."""
    storage = golden(namespace, tmp_path)
    with upgrading(namespace, limits=GOLDEN_LIMITS) as (work, metadata):
        transact, count = metadata.transact, 0

        def lossy(ops):
            nonlocal count
            count += 1
            if arrives or count % 2:
                transact(ops)
            if not count % 2:
                raise OutcomeUnknown("the answer was lost")

        metadata.transact = lossy
        work.run()
    assert_golden(namespace, storage)


def test_two_upgrades_at_once_do_it_once(namespace, tmp_path):
    """Before each write of the one, the other does its next: that which the one was about to do, as far as it knew."""
    storage = golden(namespace, tmp_path)
    with upgrading(namespace, limits=GOLDEN_LIMITS) as (work, metadata):
        transact = metadata.transact

        def after_the_other(ops):
            overtake(namespace)
            transact(ops)

        metadata.transact = after_the_other
        work.run()
    assert_golden(namespace, storage)


def overtake(namespace: str) -> None:
    try:
        with upgrading(namespace, limits=GOLDEN_LIMITS) as (work, metadata):
            killed_after(metadata, 1)
            work.run()
    except Killed:
        pass


# -- what is not even begun ------------------------------------------------------------------------------------------


def command(namespace: str, *options: str) -> Any:
    return CliRunner().invoke(main, ["--zookeeper", namespace, "namespace", "upgrade", *options])


def files_in(storage: str) -> set[str]:
    return {str(path) for path in Path(storage).rglob("*")}


@pytest.mark.parametrize("options", [["--dry-run"], []])
def test_a_dry_run_shows_what_would_be_done_and_changes_nothing(old, storage_root, options):
    namespace, _ = old
    nodes, files = dump(namespace), files_in(storage_root)
    shown = command(namespace, *options, "--json")
    assert shown.exit_code == (0 if options else 1)
    if options:
        said = json.loads(shown.stdout)
        assert [topic["topic"] for topic in said["topics"]] == [
            "accounts", "events", "invoices", "orders", "parcels", "sensors",
        ]  # fmt: skip
        assert said["topics"][1] == {
            "topic": "events", "records": 27, "commits_to_seal": 2,
            "subscriptions": ["gaps", "moved", "query", "untouched"], "token_groups": [],
        }  # fmt: skip
        assert said["outboxes"] == [{"outbox": "billing", "entities": 2}]
        assert said["must_stop_first"] == []
    else:
        assert "LEDGER_NOT_CONFIRMED" in shown.stderr
    assert dump(namespace) == nodes
    assert files_in(storage_root) == files


def test_the_command_does_it_once(old):
    namespace, said = old
    done = command(namespace, "--yes")
    assert done.exit_code == 0, done.output
    assert "6 topics, 5 subscriptions, 3 token groups, 2 entities brought over" in done.stdout
    nodes = dump(namespace)
    again = command(namespace)
    assert (again.exit_code, again.stdout) == (0, "the namespace is of format 2 already: nothing to do\n")
    assert dump(namespace) == nodes
    with LedgerClient(namespace) as client:
        assert_same_meaning(client, said)


def test_a_new_namespace_needs_no_upgrade(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("t", pa.schema([("n", pa.int64())]))
    assert "format 2 already" in command(namespace, "--yes").stdout


def test_where_there_is_no_namespace_the_command_says_so_and_makes_nothing(namespace):
    done = command(namespace, "--yes")
    assert done.exit_code == 1
    assert "LEDGER_NAMESPACE_NOT_FOUND" in done.stderr
    with nodes_of(namespace) as (client, root):
        assert client.exists(root) is None


def test_who_uses_the_namespace_is_named_and_nothing_is_changed(old):
    namespace, said = old
    uuid = said["topics"]["events"]["uuid"]
    with nodes_of(namespace) as (client, root):
        holder = pb.Holder(format=1, id=b"x", name="process 7 on host a").SerializeToString()
        for node in ("owner-gaps", "reviser-moved", "compactor"):
            client.create(f"{root}/ledgers/{uuid}/{node}", holder, ephemeral=True)
        client.create(f"{root}/ledgers/{uuid}/pin-1", pb.Pin(format=1).SerializeToString(), ephemeral=True)
        nodes = dump(namespace)
        refused = command(namespace, "--yes")
        assert refused.exit_code == 1
        for words in (
            "LEDGER_NAMESPACE_IN_USE",
            "process 7 on host a (attached to subscription 'gaps' of topic 'events')",
            "(resetting subscription 'moved'",
            "(compacting topic 'events')",
            "a reader of the compacted topic 'events'",
        ):
            assert words in refused.stderr
        assert len(json.loads(command(namespace, "--dry-run", "--json").stdout)["must_stop_first"]) == 4
        assert dump(namespace) == nodes
    assert command(namespace, "--yes").exit_code == 0


def test_without_its_files_the_upgrade_does_not_begin(old, storage_root):
    """I12: a storage that is not mounted, or has a damaged file, is noticed before anything is changed."""
    namespace, said = old
    nodes = dump(namespace)
    Path(storage_root).rename(f"{storage_root}-elsewhere")
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_MISSING"):
        upgrade(namespace)
    Path(f"{storage_root}-elsewhere").rename(storage_root)
    folder = Path(storage_root) / said["topics"]["events"]["uuid"]
    for file in folder.rglob("*.arrow"):
        file.rename(f"{file}-lost")
    with pytest.raises(CorruptData):
        upgrade(namespace)
    assert dump(namespace) == nodes
    assert not Path(f"{storage_root}-elsewhere").exists()


def test_a_foreign_node_is_named_before_anything_is_changed(namespace, tmp_path):
    golden(namespace, tmp_path)
    put_nodes(namespace, {"/ledgers/3cd910b4-a24a-2ad9-bb30-b2fb253c649d/mine": b""})
    nodes = dump(namespace)
    with pytest.raises(CorruptData, match="3cd910b4-a24a-2ad9-bb30-b2fb253c649d/mine is not one"):
        upgrade(namespace, limits=GOLDEN_LIMITS)
    assert dump(namespace) == nodes


def test_a_topic_without_a_record_gets_its_folder_and_a_half_deleted_one_goes(namespace, storage_root):
    with OldProcess() as process:
        assert process.ask("make", namespace, storage_root) == "done"
    call_old(make_empty_topics, namespace)
    put_nodes(
        namespace,
        {
            "/ledgers/gone": pb.Marker(format=1).SerializeToString(),
            "/ledgers/gone/cursor-c": pb.Cursor(format=1, name="c").SerializeToString(),
            "/ledgers/gone/ledger-0000000000": pb.Marker(format=1).SerializeToString(),
            "/ledgers/gone/ledger-0000000000/000000000000": pb.Commit(format=1).SerializeToString(),
            "/ledgers/gone/tokens-g": pb.TokenGroup(format=1).SerializeToString(),
            "/ledgers/gone/tokens-g/block-a": pb.TokenBlock(format=1).SerializeToString(),
        },
    )
    upgrade(namespace)
    with LedgerClient(namespace) as client:
        assert [state.name for state in client.producers("empty")] == ["job"]
        for topic in ("empty", "unused"):
            assert (Path(storage_root) / client.topic(topic).uuid).is_dir()
            with client.producer(topic) as producer:
                producer.send({"n": 1})
            assert len(list(client.reader(topic, end="latest"))) == 1
    assert not [path for path in dump(namespace) if "gone" in path]


def make_empty_topics(zookeeper: str) -> str:
    """Of which one has a commit all the same: that of a query's empty batch."""
    import pyarrow

    from pyspark_ledger.append import Batch, append
    from pyspark_ledger.client import LedgerClient
    from pyspark_ledger.dedup import Claim

    schema = pyarrow.schema([("n", pyarrow.int64())])
    with LedgerClient(zookeeper) as client:
        client.create_topic("empty", schema)
        client.create_topic("unused", schema)
        claim = Claim("job", 0, "11111111-2222-3333-4444-555555555555", "run", b"")
        append(client.log("empty"), Batch(b"0123456789abcdef", (), schema, claim=claim))
    return "made"


# -- old code --------------------------------------------------------------------------------------------------------


def tried_by_old_code(zookeeper: str) -> dict[str, str]:
    import pyarrow
    from click.testing import CliRunner

    from pyspark_ledger.cli import main
    from pyspark_ledger.client import LedgerClient
    from pyspark_ledger.errors import LedgerError

    schema = pyarrow.schema([("n", pyarrow.int64())])
    client = LedgerClient(zookeeper)
    tries = {
        "open": lambda: client.storage,
        "read": lambda: list(client.reader("events", end="latest")),
        "write": lambda: client.producer("events").send({"id": 1}),
        "create": lambda: client.create_topic("new", schema),
        "delete": lambda: client.delete_topic("events"),
        "cursors": lambda: client.cursors("events"),
        "consume": lambda: client.consumer("events", "gaps"),
        "gc": lambda: client.gc("events"),
        "compact": lambda: client.compact("accounts"),
        "tokens": lambda: client.tokens("orders", "audit").stats(),
        "entity": lambda: client.outbox("billing").state("ann"),
    }
    said = {}
    for what, attempt in tries.items():
        try:
            attempt()
            said[what] = "no error"
        except LedgerError as error:
            said[what] = str(error)
    said["list"] = CliRunner().invoke(main, ["--zookeeper", zookeeper, "topics", "list"]).stdout
    client.close()
    return said


def test_old_code_refuses_the_upgraded_namespace_by_name_and_changes_nothing(old):
    """I6"""
    namespace, _ = old
    upgrade(namespace)
    nodes = dump(namespace)
    said = call_old(tried_by_old_code, namespace)
    for what, text in said.items():
        assert "LEDGER_NEWER_FORMAT" in text, what
        assert "upgrade pyspark-ledger" in text, what
    assert dump(namespace) == nodes


REFUSED = (
    "append", "acknowledge", "reset", "subscribe", "consume", "consume_from_outside", "is_present", "mint", "process",
    "new_entity", "collect", "compact", "delete_topic", "set_policies", "read",
)  # fmt: skip


def test_an_old_process_that_was_not_stopped_is_refused_by_name_and_changes_nothing(namespace, storage_root):
    """I6, I14: it had everything open before. It is not told that a topic is deleted or a message is a duplicate."""
    with OldProcess() as process:
        assert process.ask("make", namespace, storage_root) == "done"
        assert process.ask("open", namespace) == "done"
        upgrade(namespace)
        nodes, files = dump(namespace), files_in(storage_root)
        assert {action: process.ask(action) for action in REFUSED} == dict.fromkeys(REFUSED, "LEDGER_NEWER_FORMAT")
        assert process.ask("create_topic") == "LEDGER_ACCESS_DENIED"
        assert dump(namespace) == nodes
        assert files_in(storage_root) >= files
    with LedgerClient(namespace) as client:
        assert [record["id"] for record in client.reader("t", end="latest")] == list(range(6))


def test_a_topic_that_an_old_process_deletes_in_the_middle_is_gone(namespace, storage_root):
    """Its deletion was on the way when the topic's log was brought over."""
    with OldProcess() as process:
        assert process.ask("make", namespace, storage_root) == "done"
    with upgrading(namespace) as (work, metadata), pytest.raises(Killed):
        killed_after_switch_of_topics(metadata)
        work.run()
    with nodes_of(namespace) as (client, root):
        [uuid] = [uuid for uuid in client.get_children(f"{root}/logs") if is_named(client, root, uuid, "keyed")]
        with client.transaction() as deletion:
            deletion.delete(f"{root}/topics/keyed")
            deletion.delete(f"{root}/ledgers/{uuid}/head")
    upgrade(namespace)
    assert not [path for path in dump(namespace) if uuid in path]
    with LedgerClient(namespace) as client:
        assert client.topics() == ["t"]


def is_named(client: KazooClient, root: str, uuid: str, name: str) -> bool:
    return pb.Head.FromString(client.get(f"{root}/logs/{uuid}/head")[0]).name == name


def killed_after_switch_of_topics(metadata: ZooKeeperMetadata) -> None:
    """It ends as soon as both topics' logs are brought over."""
    transact, made = metadata.transact, 0

    def counted(ops):
        nonlocal made
        if made == 2:
            raise Killed
        transact(ops)
        made += any(isinstance(op, Create) and isinstance(op.key, HeadKey) for op in ops)

    metadata.transact = counted


def token(client: LedgerClient, number: int) -> str:
    return [record.token for record in client.reader("t", end="latest")][number]


# What each action of the straggler leaves, if it was done.
EFFECTS: dict[str, Callable[[LedgerClient], bool]] = {
    "append": lambda client: [r["name"] for r in client.reader("t", end="latest")].count("straggler") == 1,
    "acknowledge": lambda client: str(client.cursor("t", "sub").stats().mark_delete) == "0:0:3",
    "subscribe": lambda client: "late" in [stats.name for stats in client.cursors("t")],
    "consume": lambda client: not client.tokens("t", "group").present([token(client, 2)])[0],
    "process": lambda client: client.outbox("box").state("ann") == ["first", "second"],
    "new_entity": lambda client: client.outbox("box").state("bob") == ["third"],
    "set_policies": lambda client: client.policies("t").snapshot_commits == 7,
    "create_topic": lambda client: "late" in client.topics(),
    "delete_topic": lambda client: "keyed" not in client.topics(),
}


def test_whatever_an_old_process_does_during_the_upgrade_is_kept_or_refused(namespace, tmp_path):
    """I1, I11, I14: after each write of the upgrade, an old process that has everything open does all it can. What it
    is told is done is there in the end; what it is refused is not."""
    said: dict[str, list[bool]] = {}
    with OldProcess() as process:
        assert process.ask("make", namespace, str(tmp_path / "storage")) == "done"
        nodes = {path: data for path, (data, _, _) in sorted(dump(namespace).items()) if path}
        for writes in range(1000):
            address = copied(nodes, tmp_path / "storage", f"{namespace}-{writes}", str(tmp_path / str(writes)))
            assert process.ask("open", address) == "done"
            try:
                with upgrading(address) as (work, metadata):
                    killed_after(metadata, writes)
                    work.run()
                break
            except Killed:
                answers = {action: process.ask(action) for action in EFFECTS}
            upgrade(address)
            with LedgerClient(address) as client:
                for action, effect in EFFECTS.items():
                    is_done = answers[action] in ("done", [True])
                    assert is_done or answers[action].startswith("LEDGER_"), (action, answers[action])
                    assert effect(client) == is_done, f"{action} after {writes} writes: {answers[action]}"
                    said.setdefault(action, []).append(is_done)
    for action, done in said.items():
        assert done[0], f"{action} is possible before the upgrade begins"
        assert not done[-1], f"{action} is not possible at the end"


# -- access lists ----------------------------------------------------------------------------------------------------


def test_a_namespace_with_a_password_keeps_it(namespace, tmp_path):
    storage = golden(namespace, tmp_path, password="me:secret")
    with closing(ZooKeeperMetadata(as_user(namespace, "me:secret"))) as metadata:
        Upgrade(metadata, limits=GOLDEN_LIMITS).run()
    with nodes_of(namespace, "me:secret") as (client, root):
        for path in (path for path in dump(namespace, "me:secret") if path):
            [acl] = client.get_acls(root + path)[0]
            assert acl.id.scheme == "digest", path
            assert bool(acl.perms & Permissions.CREATE) != is_closed(path), path
    assert_golden(namespace, storage, "me:secret")


def is_closed(path: str) -> bool:
    """Where old code would make nodes."""
    return re.fullmatch("/(ledgers|outboxes)(/[^/]+)?|/ledgers/[^/]+/tokens-[^/]+", path) is not None
