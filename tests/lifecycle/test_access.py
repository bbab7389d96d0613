"""Roles are given, taken away and passed on: nobody's node is forgotten, whatever stops whom, and nobody who is to stay
is kept out for a moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient
from kazoo.protocol.serialization import SetACL, Transaction

from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.base.settings import Settings
from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.errors import InvalidInput, LedgerError, NotAllowed, NotFound
from pyspark_ledger.lifecycle.access import Access, Changed, parse_identity, with_password
from pyspark_ledger.local import protection
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from pyspark_ledger.metadata.port import Create, Put, SinkKey
from pyspark_ledger.metadata.records import Sink
from pyspark_ledger.metadata.roles import PARTS
from pyspark_ledger.zk_metadata import session
from pyspark_ledger.zk_metadata.access import AccessLists, Identity, KnownRoles
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata
from tests.support.query import eventually
from tests.support.zookeeper import as_user, dump, nodes_of

SCHEMA = pa.schema([("n", pa.int64())])
BOSS = "boss:b"


def who(login: str) -> Identity:
    user, _, password = login.partition(":")
    return with_password(parse_identity(f"digest:{user}"), password)


ALICE, BOB = who("alice:a"), who("bob:b")


@contextmanager
def access(namespace: str, login: str = BOSS, **named: object) -> Iterator[Access]:
    with closing(ZooKeeperMetadata(as_user(namespace, login))) as metadata:
        yield Access(metadata, **named)


@pytest.fixture
def made(namespace, storage_root) -> str:
    """A namespace of one user, with a topic that has a record and a subscription."""
    with LedgerClient(namespace, storage_root, password=BOSS) as client:
        client.create_topic("orders", SCHEMA)
        client.create_cursor("orders", "s")
        with client.producer("orders") as producer:
            producer.send({"n": 1})
    return namespace


def identities_of_nodes(namespace: str, login: str = BOSS) -> dict[str, frozenset[Identity]]:
    """Whom the access list of each node names; without the code under test."""
    paths = dump(namespace, login)
    with nodes_of(namespace, login) as (client, root):
        lists = {path: client.get_acls(root + path)[0] for path in paths}
    return {path: frozenset((acl.id.scheme, acl.id.id) for acl in acls) for path, acls in lists.items()}


def assert_all_lists_name(namespace: str, *logins: str) -> None:
    expected = frozenset(map(who, logins))
    found = identities_of_nodes(namespace)
    assert {path: names for path, names in found.items() if names != expected} == {}
    assert [path for path in found if path.endswith("/pins")]  # topics from before have all parts too


# -- whoever is interrupted repeats it --------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


def interrupted(after: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> bool:
    """Does the work in a process that is killed before its nth change; False if it was done before that."""
    left = [after]
    send = KazooClient._call

    def call(self: KazooClient, request: object, answer: object) -> object:
        if isinstance(request, SetACL | Transaction):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
        return send(self, request, answer)

    with monkeypatch.context() as patched:
        patched.setattr(KazooClient, "_call", call)
        try:
            work()
        except Killed:
            return True
    return False


def each_step(monkeypatch: pytest.MonkeyPatch, namespace: str, work: Callable[[Access], Changed]) -> Iterator[int]:
    """Kills the work at every step. Whoever takes a step of the loop sees the namespace after it was repeated."""
    for step in range(1_000):
        with access(namespace) as mine:
            was_killed = interrupted(step, monkeypatch, lambda mine=mine: work(mine))
        with access(namespace) as mine:
            assert work(mine).mended.is_right
        yield step
        if not was_killed:
            return
    raise AssertionError("it never ends")


def test_the_first_role_is_given_to_the_end_after_a_kill_at_any_step_I20(zookeeper, tmp_path, monkeypatch):
    for step in range(100):
        namespace, storage = f"{zookeeper}/first-{tmp_path.name}-{step}", str(tmp_path / str(step))
        with LedgerClient(namespace, storage) as client:  # open to everybody
            client.create_topic("t", SCHEMA)
        with access(namespace) as mine:
            was_killed = interrupted(step, monkeypatch, lambda mine=mine: mine.grant("reader", ALICE))
        with access(namespace) as mine:
            assert mine.grant("reader", ALICE).mended.is_right
        assert_all_lists_name(namespace, BOSS, "alice:a")
        with pytest.raises(NotAllowed), LedgerClient(namespace) as client:
            client.topics()
        if not was_killed:
            assert step > 20
            return
    raise AssertionError("it never ends")


def test_taking_away_and_giving_again_goes_on_after_a_kill_at_any_step_I20(made, monkeypatch):
    with access(made) as mine:
        mine.grant("reader", ALICE)
        mine.grant("writer", BOB)
    steps = 0
    for _ in each_step(monkeypatch, made, lambda mine: mine.rotate(BOB, who("bob:new"))):
        with access(made) as mine:
            assert mine.check(dry_run=True).changed == 0
            mine.revoke(None, who("bob:new"))
            steps += 1
            mine.grant("writer", BOB)
    assert_all_lists_name(made, BOSS, "alice:a", "bob:b")
    assert steps > 20


def repeated(work: Callable[[], object]) -> None:
    with suppress(NotFound):  # it had been done to the end
        work()


@pytest.mark.parametrize("step", ["revoke", "finish"])
def test_who_was_to_lose_a_role_is_in_no_list_when_a_killed_command_was_repeated_I20(made, monkeypatch, step):
    """The record may have no such role any more, and nodes still let him in."""

    def change(mine: Access) -> Changed:
        return mine.revoke(None, BOB) if step == "revoke" else mine.finish(BOB)

    with access(made) as mine:
        for after in (0, 1, 2, 3, 5, 9, 17, 33, 1_000):
            mine.grant("writer", BOB)
            if step == "finish":
                mine.rotate(BOB, ALICE)
            with access(made) as killed:
                interrupted(after, monkeypatch, lambda killed=killed: change(killed))
            repeated(lambda: change(mine))
            assert [path for path, names in identities_of_nodes(made).items() if BOB in names] == []
        with pytest.raises(NotFound):
            change(mine)


def test_a_list_that_somebody_has_changed_is_found_and_mended(made):
    with access(made) as mine:
        mine.grant("reader", ALICE)
        with nodes_of(made, BOSS) as (client, root):
            open_to_all = client.get_acls("/zookeeper")[0]
            for path in ("/topics", "/topics/orders"):
                client.set_acls(root + path, open_to_all)
        assert mine.check(dry_run=True).changed == 2
        done = mine.check()
        assert (done.changed, done.is_right) == (2, True)
        assert mine.check().changed == 0
    assert_all_lists_name(made, BOSS, "alice:a")


def test_nodes_of_somebody_else_are_named_and_the_others_are_mended(made):
    with nodes_of(made, "stranger:x") as (client, root), nodes_of(made, BOSS) as (boss, _):
        boss.set_acls(f"{root}/deleted", client.get_acls("/zookeeper")[0])
        client.create(f"{root}/deleted/theirs", b"\x08\x02")
    with access(made) as mine:
        assert mine.grant("reader", ALICE).mended.refused == ["/deleted/theirs"]
        assert mine.check().refused == ["/deleted/theirs"]


# -- processes that run meanwhile ----------------------------------------------------------------------------------


def test_a_process_that_runs_makes_nodes_as_the_roles_are_now_I20(made):
    with LedgerClient(made, password=BOSS) as client, client.producer("orders") as producer:
        producer.send({"n": 2}).result()
        with access(made) as mine:
            mine.grant("reader", ALICE)
        producer.send({"n": 3}).result()
        assert_all_lists_name(made, BOSS, "alice:a")
        client.create_topic("new", SCHEMA)
        assert_all_lists_name(made, BOSS, "alice:a")
        with access(made) as mine:
            mine.grant("reader", BOB)
        producer.send({"n": 4}).result()
        assert_all_lists_name(made, BOSS, "alice:a", "bob:b")
    with LedgerClient(made, password="alice:a") as client:
        assert [record["n"] for record in client.reader("orders", end="latest")] == [1, 2, 3, 4]


def test_where_there_are_roles_no_node_is_made_by_an_outdated_list_even_if_no_hint_comes_I20(made, monkeypatch):
    monkeypatch.setattr(KnownRoles, "hint", lambda self: None)
    with access(made) as mine:
        mine.grant("reader", ALICE)
    with LedgerClient(made, password=BOSS) as client, client.producer("orders") as producer:
        producer.send({"n": 2}).result()
        with access(made) as mine:
            mine.revoke(None, ALICE)
            mine.grant("reader", BOB)
        producer.send({"n": 3}).result()
        client.create_cursor("orders", "another")
    assert_all_lists_name(made, BOSS, "bob:b")


def test_the_format_rises_with_the_first_role_so_that_old_code_keeps_out_I20(made):
    def format_in(data: bytes) -> bytes:
        return data[:2]

    before = dump(made, BOSS)
    with access(made) as mine:
        mine.grant("reader", ALICE)
    after = dump(made, BOSS)
    assert format_in(before["/namespace"][0]) == b"\x08\x02"
    assert format_in(after["/namespace"][0]) == b"\x08\x03"
    others = {path: data for path, (data, _, _) in after.items() if path not in ("", "/namespace")}
    assert {format_in(data) for data in others.values()} == {b"\x08\x02"}


def test_two_who_change_roles_at_once_leave_the_lists_as_the_record_says_I20(made, monkeypatch):
    with access(made) as mine, access(made) as other:
        mine.grant("reader", ALICE)
        newest, changes = mine._metadata.newest_lists, [lambda: other.grant("reader", BOB)]

        def overtaken() -> AccessLists:
            found = newest()
            if changes:
                changes.pop()()
            return found

        monkeypatch.setattr(mine._metadata, "newest_lists", overtaken)
        mine.grant("writer", ALICE)
    assert_all_lists_name(made, BOSS, "alice:a", "bob:b")


# -- who may give and take ------------------------------------------------------------------------------------------


def refused(change: Callable[[], object]) -> str:
    with pytest.raises(LedgerError) as caught:
        change()
    return caught.value.message


def test_what_would_lock_everybody_out_is_refused_and_changes_nothing_I20(made):
    with access(made) as mine:
        mine.grant("reader", ALICE)
        mine.grant("admin", BOB)
        before = mine.grants()
        assert "would be no admin any more: do it as another admin" in refused(lambda: mine.revoke(None, who(BOSS)))
        assert "has not the role writer" in refused(lambda: mine.revoke("writer", ALICE))
        assert "with another password: 'pyspark-ledger access rotate" in refused(
            lambda: mine.grant("writer", who("alice:other"))
        )
        assert "does not take sasl:zoe" in refused(lambda: mine.grant("reader", ("sasl", "zoe")))
        assert "nobody is taking over from digest:alice" in refused(lambda: mine.finish(ALICE))
        assert "has no role" in refused(lambda: mine.rotate(who("carol:c"), who("carol:d")))
        assert mine.grants() == before
    with access(made, "bob:b") as other:
        other.revoke(None, who(BOSS))
        assert "this is the last one" in refused(lambda: other.revoke("admin", BOB))
    with access(made, "alice:a") as mine:
        assert "may not give or take roles" in refused(lambda: mine.grant("admin", ALICE))
        assert "may not give or take roles" in refused(mine.check)


def test_who_gives_the_first_role_must_be_somebody(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client, closing(ZooKeeperMetadata(namespace)) as metadata:
        assert "there is no namespace" in refused(lambda: Access(metadata).grant("reader", ALICE))
        client.create_topic("orders", SCHEMA)
        assert "must be somebody: log in" in refused(lambda: Access(metadata).grant("reader", ALICE))
        assert "has no roles" in refused(lambda: Access(metadata).check())


def test_a_namespace_in_zookeepers_own_root_gets_no_roles(zookeeper):
    with access(zookeeper) as mine:
        assert "is in ZooKeeper's root, which others use too" in refused(lambda: mine.grant("reader", ALICE))


def test_only_so_many_identities_have_roles(made):
    with access(made, limits=replace(DEFAULT_LIMITS, identities=2)) as mine:
        mine.grant("reader", ALICE)
        mine.grant("writer", ALICE)
        assert "3 identities would have roles, and at most 2 can" in refused(lambda: mine.grant("reader", BOB))


@pytest.mark.parametrize(
    "text", ["", "alice", "digest:", "digest", "world:anyone", "ip:10.0.0.1", "digest:alice:password", "DIGEST:alice"]
)
def test_what_is_no_identity_is_refused(text):
    with pytest.raises(InvalidInput) as caught:
        parse_identity(text)
    assert "password" not in caught.value.message.partition("never write a password")[0]


def test_a_hash_may_be_given_in_place_of_the_password(made):
    with access(made) as mine:
        mine.grant("reader", parse_identity(f"digest:{ALICE[1]}"))
    with LedgerClient(made, password="alice:a") as client:
        assert client.topics() == ["orders"]


# -- passing on -----------------------------------------------------------------------------------------------------


@pytest.fixture
def profile(tmp_path, monkeypatch) -> Callable[[str], None]:
    """Writes the file of profiles, of which one is called ``etl``."""
    file = tmp_path / "config.toml"
    monkeypatch.setenv("LEDGER_CONFIG", str(file))
    monkeypatch.setattr(session, "_LOGIN_SEEN_S", 0.05)

    def write(login: str) -> None:
        user, _, password = login.partition(":")
        text = f'[etl.zookeeper]\nuser = "{user}"\npassword = "{password}"\n'
        new = file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(text)
        new.replace(file)

    return write


def test_an_identity_is_passed_on_while_everything_runs_and_nobody_is_kept_out_I20(made, profile):
    profile("etl:old")
    old, new = who("etl:old"), who("etl:new")
    with access(made) as mine:
        mine.grant("writer", old)
        mine.grant("reader", old)
    failures: list[BaseException] = []
    sent, stop = [1], threading.Event()

    def run() -> None:
        try:
            with LedgerClient(made, profile="etl") as client, client.producer("orders") as producer:
                while not stop.is_set():
                    sent.append(sent[-1] + 1)
                    producer.send({"n": sent[-1]}).result()
        except BaseException as error:
            failures.append(error)

    writing = threading.Thread(target=run)
    with LedgerClient(made, profile="etl") as client, client.consumer("orders", "s") as consumer, access(made) as mine:
        writing.start()
        received = [consumer.receive(30)["n"] for _ in range(5)]
        mine.rotate(old, new)
        assert [owner.node.rpartition("/")[2] for owner in mine.owners(mine.leaving(old))] == ["owner-s"]
        profile("etl:new")
        eventually(lambda: (consumer.receive(0.1), not mine.owners(mine.leaving(old)))[1])
        at_finish = len(sent)
        mine.finish(old)
        eventually(lambda: len(sent) > at_finish + 5 or failures)
        stop.set()
        writing.join()
        assert failures == []
        assert received == [1, 2, 3, 4, 5]
        assert {(each.role, each.id) for each in mine.grants() if each.role != "admin"} == {
            ("writer", new[1]),
            ("reader", new[1]),
        }
    with pytest.raises(NotAllowed) as caught, LedgerClient(made, password="etl:old") as client:
        client.topics()
    assert caught.value.code == "LEDGER_ACCESS_DENIED"
    with LedgerClient(made, profile="etl") as client:
        assert [record["n"] for record in client.reader("orders", end="latest")] == sent
    assert_all_lists_name(made, BOSS, "etl:new")


def test_who_took_no_look_for_long_takes_the_new_login_up_when_the_former_one_is_refused_I20(
    made, profile, monkeypatch
):
    monkeypatch.setattr(session, "_LOGIN_SEEN_S", 1e9)
    profile("etl:old")
    with access(made) as mine:
        mine.grant("writer", who("etl:old"))
        with LedgerClient(made, profile="etl") as client, client.producer("orders") as producer:
            producer.send({"n": 2}).result()
            mine.rotate(parse_identity("digest:etl"), who("etl:new"))
            mine.finish(parse_identity("digest:etl"))
            with pytest.raises(NotAllowed):
                client.topics()
            profile("etl:new")
            assert client.topics() == ["orders"]
            producer.send({"n": 3}).result()


def test_a_writer_that_took_no_look_for_long_takes_the_new_login_up_when_it_is_refused_I20(made, profile, monkeypatch):
    monkeypatch.setattr(session, "_LOGIN_SEEN_S", 1e9)
    profile("etl:old")
    with access(made) as mine:
        mine.grant("writer", who("etl:old"))
        with closing(ZooKeeperMetadata(Settings.of({"zookeeper": made, "profile": "etl"}))) as metadata:
            metadata.transact([Create(SinkKey("a query"), Sink())])
            mine.rotate(parse_identity("digest:etl"), who("etl:new"))
            mine.finish(parse_identity("digest:etl"))
            profile("etl:new")
            with monkeypatch.context() as patched:  # what it reads does not come before what it writes
                patched.setattr(metadata, "read", lambda key: pytest.fail("it has read"))
                metadata.transact([Put(SinkKey("a query"), Sink(), 0)])


def test_an_admin_passes_its_own_role_on_and_finishes_as_the_new_one(made):
    with access(made) as mine:
        mine.grant("reader", ALICE)
        mine.rotate(parse_identity("digest:boss"), who("boss:new"))
        assert "would be no admin any more" in refused(lambda: mine.finish(who(BOSS)))
    with access(made, "boss:new") as mine:
        mine.finish(who(BOSS))
        with pytest.raises(NotFound):
            mine.finish(who(BOSS))
    assert {"digest"} == {scheme for names in identities_of_nodes(made, "boss:new").values() for scheme, _ in names}


# -- other schemes, and copies ----------------------------------------------------------------------------------------


def test_sasl_users_and_certificates_get_roles_where_the_server_knows_them(tmp_path):
    with LocalZooKeeper(fsync=False, tls=True, client_certificates=True, sasl=True) as server:
        options = {**server.options, "zookeeper": f"{server.address}/x"}
        with LedgerClient(storage=str(tmp_path / "s"), options=options) as client:
            client.create_topic("orders", SCHEMA)
            with closing(ZooKeeperMetadata(Settings.of(options))) as metadata:
                mine = Access(metadata)
                mine.grant("reader", ("sasl", "etl"))
                mine.grant("writer", ("x509", "CN=etl,O=Example"))
                mine.grant("reader", ALICE)
                found = {(each.role, each.scheme, each.id) for each in mine.grants()}
                assert {role: scheme for role, scheme, _ in found if role != "reader"} == {
                    "admin": "sasl",
                    "writer": "x509",
                }
                assert mine.check(dry_run=True).changed == 0
            assert client.topics() == ["orders"]


def test_with_sasl_a_running_process_connects_anew_as_the_one_who_takes_over_in_the_same_session(tmp_path, monkeypatch):
    monkeypatch.setattr(protection, "_JAAS", protection._JAAS.replace("; }}", ' user_next="n" user_boss="b"; }}'))
    monkeypatch.setattr(session, "_LOGIN_SEEN_S", 0.05)
    file = tmp_path / "config.toml"
    file.touch(mode=0o600)
    with LocalZooKeeper(fsync=False, sasl=True) as server:
        place = {
            "zookeeper": f"{server.address}/x",
            "storage": str(tmp_path / "s"),
            "zookeeper.sasl.mechanism": "DIGEST-MD5",
        }

        def login(user: str, password: str) -> dict[str, str]:
            return {**place, "zookeeper.sasl.user": user, "zookeeper.sasl.password": password}

        def write(values: dict[str, str]) -> None:
            file.write_text("\n".join(["[etl]", *(f'"{name}" = "{value}"' for name, value in values.items())]))

        monkeypatch.setenv("LEDGER_CONFIG", str(file))
        write(server.options | place)
        with (
            closing(ZooKeeperMetadata(Settings.of(login("boss", "b")))) as metadata,
            LedgerClient(options=login("boss", "b")) as boss,
        ):
            boss.create_topic("orders", SCHEMA)
            mine = Access(metadata)
            mine.grant("reader", ("sasl", "ledger"))
            with LedgerClient(profile="etl") as client, client.consumer("orders", "s") as consumer:
                mine.rotate(("sasl", "ledger"), ("sasl", "next"))
                former = mine.leaving(("sasl", "ledger"))
                assert len(mine.owners(former)) == 1
                before = namespace_of(client).metadata._lease._share().client.client_id
                write(login("next", "n"))
                eventually(lambda: (consumer.receive(0.0), not mine.owners(former))[1])
                mine.finish(("sasl", "ledger"))
                with boss.producer("orders") as producer:
                    producer.send({"n": 1})
                consumer.acknowledge(consumer.receive(30))
                assert namespace_of(client).metadata._lease._share().client.client_id == before
            assert boss.cursor("orders", "s").stats().backlog_records == 0


def test_what_is_saved_in_storage_has_no_roles_and_no_hash_of_a_password(made, storage_root):

    with access(made) as mine:
        mine.grant("reader", ALICE)
    done = CliRunner().invoke(main, ["--zookeeper", made, "--password", BOSS, "maintain", "--once"])
    assert done.exit_code == 0, done.output
    saved = [file for file in Path(storage_root).rglob("*") if file.is_file()]
    assert [file for file in saved if file.name.startswith("namespace-")]
    for login in (ALICE, who(BOSS)):
        secret = login[1].partition(":")[2].encode()
        assert [file for file in saved if secret in file.read_bytes()] == []


def test_a_topic_that_is_made_where_there_are_roles_has_all_its_parts(made):
    with access(made) as mine:
        mine.grant("writer", ALICE)
    with LedgerClient(made, password="alice:a") as client:
        uuid = client.create_topic("new", SCHEMA).uuid
    nodes = dump(made, BOSS)
    assert {f"/logs/{uuid}/{part}" for part in PARTS} <= nodes.keys()
