"""A namespace with roles, and everything that can be done with one: commands and calls, with who may do each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from click.testing import CliRunner, Result

from pyspark_ledger.base import names
from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.base.settings import Settings
from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient, client_of, namespace_of, open_namespace
from pyspark_ledger.metadata.records import SetBack

ORDERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])

# Who there is. "pipeline" reads with a subscription and writes, so it has both roles.
LOGINS = {
    "admin": "boss:b",
    "writer": "alice:a",
    "reader": "bob:r",
    "pipeline": "etl:e",
    "wrong": "boss:guess",
    "nobody": None,
}
GRANTS = (("writer", "alice:a"), ("reader", "bob:r"), ("writer", "etl:e"), ("reader", "etl:e"), ("reader", "carol:c"))

# Who may do it: any login with one of these roles, or with all roles of a sum.
EVERYBODY = ("admin", "writer", "reader")
ADMIN = ("admin",)
WRITER = ("admin", "writer")
READER = ("admin", "reader")
BOTH = ("admin", "writer+reader")

# In this order, for each login on topics of its own. {t}: with a key, three ledgers, a subscription s, dead letters.
COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "topics list": (EVERYBODY, ""),
    "topics describe": (EVERYBODY, "{t}"),
    "topics read": (EVERYBODY, "{t}"),
    "topics peek": (EVERYBODY, "{t}"),
    "topics verify": (EVERYBODY, "{t}"),
    "topics config get": (EVERYBODY, "{t}"),
    "topics create": (WRITER, "{t}-new --schema 'id bigint'"),
    "topics write": (WRITER, "{t} {folder}/rows.jsonl"),
    "topics export": (EVERYBODY, "{t} {folder}/rows.parquet --overwrite"),
    "topics import": (WRITER, "{t} {folder}/rows.jsonl"),
    "topics copy": (WRITER, "{t} --as {t}-copy"),
    "topics config set": (ADMIN, "{t} --snapshot-commits 7"),
    "topics rewrite": (ADMIN, "{t} --everything"),
    "topics compact": (ADMIN, "{t}"),
    "topics gc": (ADMIN, "{t}"),
    "topics trim": (ADMIN, "{t}-old --before latest --yes"),
    "topics skip-damaged": (ADMIN, "{t}-damaged 0:1 --yes"),
    "topics repair": (ADMIN, "{t}-behind --accept-loss --yes"),
    "cursors list": (EVERYBODY, "{t}"),
    "cursors describe": (EVERYBODY, "{t} s"),
    "cursors create": (READER, "{t} made"),
    "cursors reset": (READER, "{t} s --to earliest --yes"),
    "cursors skip": (READER, "{t} s 1 --yes"),
    "cursors rewind": (READER, "{t} s"),
    "cursors redeliver": (READER, "{t} s"),
    "cursors clear-backlog": (READER, "{t} s --yes"),
    "cursors delete": (READER, "{t} s --yes"),
    "producers list": (EVERYBODY, "{t}"),
    "producers forget": (WRITER, "{t} known --yes"),
    "tokens stats": (EVERYBODY, "{t}"),
    "deadletters list": (EVERYBODY, "{t}-dead"),
    "deadletters replay": (BOTH, "{t}-dead --yes"),
    "topics terminate": (ADMIN, "{t}-over --yes"),
    "topics delete": (ADMIN, "{t}-over --yes"),
    "namespace backup": (EVERYBODY, "{folder}/backup"),
    "namespace gc": (ADMIN, ""),
    "namespace upgrade": (EVERYBODY, "--dry-run"),
    "namespace move-storage": (ADMIN, "--to {folder}/moved --yes"),
    "access list": (EVERYBODY, ""),
    "access check": (ADMIN, ""),
    "access grant": (ADMIN, "reader digest:dora"),
    "access rotate": (ADMIN, "digest:carol"),
    "access revoke": (ADMIN, "all digest:carol --yes"),
    "maintain": (ADMIN, "--once"),
}


@dataclass(frozen=True)
class World:
    """A namespace with roles, of which ``folder`` has the files and more."""

    namespace: str
    folder: Path

    def client(self, login: str) -> LedgerClient:
        return LedgerClient(self.namespace, password=LOGINS[login])

    def command(self, login: str, *arguments: str) -> Result:
        password = LOGINS[login]
        who = ["--password", password] if password else []
        new = {"LEDGER_NEW_PASSWORD": "new-" + "-".join(arguments[:2])}
        return CliRunner().invoke(main, ["--zookeeper", self.namespace, *who, *arguments], env=new)

    def names(self, login: str) -> dict[str, str]:
        return {"t": f"t-{login}", "folder": str(self.folder / login)}


def made(namespace: str, folder: Path) -> World:
    """With topics for each login. Only then it gets roles."""
    world = World(namespace, folder)
    limits = replace(DEFAULT_LIMITS, commits_per_ledger=2)
    settings = Settings.of({"zookeeper": namespace, "zookeeper.password": LOGINS["admin"]})
    with client_of(open_namespace(settings, str(folder / "storage"), limits=limits)) as client:
        for login in LOGINS:
            _make_topics(client, f"t-{login}", folder / login)
    for role, who in GRANTS:
        user, _, password = who.partition(":")
        env = {"LEDGER_NEW_PASSWORD": password}
        arguments = ["--zookeeper", namespace, "--password", LOGINS["admin"], "access", "grant", role, f"digest:{user}"]
        done = CliRunner().invoke(main, [*arguments, "--yes"], env=env)
        assert done.exit_code == 0, done.output
    return world


def _make_topics(client: LedgerClient, topic: str, folder: Path) -> None:
    folder.mkdir()
    (folder / "rows.jsonl").write_text('{"id": 7, "name": "written"}\n')
    for name in (
        topic,
        f"{topic}-over",
        f"{topic}-called-over",
        f"{topic}-damaged",
        f"{topic}-behind",
        f"{topic}-old",
        f"{topic}-called-old",
    ):
        client.create_topic(name, ORDERS, key="id")
        with client.producer(name, "known") as producer:
            for n in range(4):
                producer.send({"id": n, "name": name}).result()
    client.compact(f"{topic}-over")
    with client.consumer(topic, "b", max_redeliveries=0, dead_letter_topic=f"{topic}-dead") as consumer:
        while (message := consumer.receive(0.0)) is not None:
            consumer.negative_acknowledge(message)
    client.cursor(topic, "b").delete()
    for name in ("s", "c"):
        client.create_cursor(topic, name, "latest")
    client.create_cursor(topic, "m", "earliest")
    with client.producer(topic, mint_tokens=True) as producer:
        producer.send({"id": 4, "name": "with a token"})
    space = namespace_of(client)
    damaged = space.log(f"{topic}-damaged")
    for file in (commit.entries[0].file for commit in damaged.commits_from(damaged.view(), EARLIEST)):
        space.storage.delete(names.staged_file(damaged.topic.uuid, file.epoch, file.uid))
    noticed = SetBack(1, "somebody", "its head is older than it was before", 9)
    space.log(f"{topic}-behind").change_head(lambda head: replace(head, set_back=noticed), "a rollback")


# -- calls ------------------------------------------------------------------------------------------------------------

Call = Callable[[LedgerClient, str], object]


def _token(client: LedgerClient, t: str) -> int:
    """Of the first record that has one."""
    return next(number for record in client.reader(t, end="latest") if (number := record.token_number) is not None)


def _second(client: LedgerClient, t: str) -> Position:
    """The position of the second record."""
    return [record.position for record in client.reader(t, end="latest")][1]


CALLS: dict[str, tuple[tuple[str, ...], Call]] = {}


def call(name: str, *who: str) -> Callable[[Call], Call]:
    """A call of the client: its name on the page, and who may make it."""

    def noted(function: Call) -> Call:
        assert name not in CALLS
        CALLS[name] = who, function
        return function

    return noted


for name, read in {
    "topics": lambda client, t: client.topics(),
    "topic": lambda client, t: client.topic(t),
    "reader": lambda client, t: list(client.reader(t, end="latest")),
    "cursors": lambda client, t: client.cursors(t),
    "cursor.stats": lambda client, t: client.cursor(t, "c").stats(),
    "cursor.preview": lambda client, t: client.cursor(t, "c").preview("earliest"),
    "cursor.properties": lambda client, t: client.cursor(t, "c").properties(),
    "producers": lambda client, t: client.producers(t),
    "evicted_producers": lambda client, t: client.evicted_producers(t),
    "compaction": lambda client, t: client.compaction(t),
    "policies": lambda client, t: client.policies(t),
    "verify": lambda client, t: client.verify(t),
    "damage": lambda client, t: client.damage(t),
    "end": lambda client, t: client.end(t),
    "tokens.stats": lambda client, t: client.tokens(t).stats(),
    "tokens.present": lambda client, t: client.tokens(t).present([_token(client, t)]),
    "outbox.state": lambda client, t: client.outbox("ours").state("nobody"),
    "outbox.pending": lambda client, t: list(client.outbox("ours").pending()),
}.items():
    call(name, *EVERYBODY)(read)

for name, write in {
    "create_topic": lambda client, t: client.create_topic(f"{t}-called", ORDERS),
    "tokens.mint": lambda client, t: client.tokens(t).mint(),
}.items():
    call(name, *WRITER)(write)

for name, follow in {
    "create_cursor": lambda client, t: client.create_cursor(t, "called"),
    "cursor.reset": lambda client, t: client.cursor(t, "c").reset("earliest"),
    "cursor.skip": lambda client, t: client.cursor(t, "c").skip(1),
    "cursor.mark_delete": lambda client, t: client.cursor(t, "m").mark_delete(_second(client, t), {"offset": 7}),
    "cursor.rewind": lambda client, t: client.cursor(t, "c").rewind(),
    "cursor.redeliver": lambda client, t: client.cursor(t, "c").redeliver(),
    "cursor.clear_backlog": lambda client, t: client.cursor(t, "c").clear_backlog(),
    "cursor.delete": lambda client, t: client.cursor(t, "c").delete(),
}.items():
    call(name, *READER)(follow)

for name, manage in {
    "set_policies": lambda client, t: client.set_policies(t, snapshot_commits=8),
    "set_namespace_policies": lambda client, t: [
        client.set_namespace_policies(deduplication=on) for on in (False, True)
    ],
    "rewrite": lambda client, t: client.rewrite(t, everything=True),
    "compact": lambda client, t: client.compact(t),
    "gc": lambda client, t: client.gc(t),
    "trim": lambda client, t: client.trim(f"{t}-called-old", before="latest"),
    "skip_damaged": lambda client, t: client.skip_damaged(f"{t}-damaged", "0:0"),
    "accept_loss": lambda client, t: client.accept_loss(f"{t}-behind"),
    "terminate": lambda client, t: client.terminate(f"{t}-called-over"),
    "delete_topic": lambda client, t: client.delete_topic(f"{t}-called-over"),
}.items():
    call(name, *ADMIN)(manage)


@call("producer.send", *WRITER)
def _(client: LedgerClient, t: str) -> None:
    with client.producer(t) as producer:
        producer.send({"id": 9, "name": "sent"})


@call("forget_producer", *WRITER)
def _(client: LedgerClient, t: str) -> None:
    client.forget_producer(f"{t}-old", "known")


@call("tokens.consume", *WRITER)
def _(client: LedgerClient, t: str) -> None:
    client.tokens(t).consume([_token(client, t)])


@call("outbox.process", *WRITER)
def _(client: LedgerClient, t: str) -> None:
    [token] = client.tokens(t, "ours").mint()
    client.outbox("ours", dispatch=lambda payload, token: None).process("a message", token, lambda state: ({}, []))


@call("transaction", *WRITER)
def _(client: LedgerClient, t: str) -> None:
    with client.transaction() as transaction:
        transaction.append(t, {"id": 10, "name": "in a transaction"})


@call("transaction.consume", *WRITER)
def _(client: LedgerClient, t: str) -> None:
    tokens = client.tokens(t, "theirs")
    [token] = tokens.mint()
    with client.transaction() as transaction:
        transaction.append(t, {"id": 12, "name": "for a token"})
        transaction.consume(tokens, [token])


@call("transaction.acknowledge", *BOTH)
def _(client: LedgerClient, t: str) -> None:
    with client.consumer(t, "in-turn") as consumer, client.transaction() as transaction:
        message = consumer.receive(0.0)
        transaction.append(t, {"id": 11, "name": "answered"})
        transaction.acknowledge(consumer, message)


@call("consumer", *READER)
def _(client: LedgerClient, t: str) -> None:
    with client.consumer(t, "alone") as consumer:
        consumer.acknowledge(consumer.receive(0.0))


@call("consumer(shared)", *READER)
def _(client: LedgerClient, t: str) -> None:
    with client.consumer(t, "together", "shared") as consumer:
        consumer.acknowledge(consumer.receive(0.0))


@call("reader(compacted)", *EVERYBODY)
def _(client: LedgerClient, t: str) -> None:
    list(client.reader(f"{t}-over", end="latest", compacted=True))


@call("table_view", *EVERYBODY)
def _(client: LedgerClient, t: str) -> None:
    with client.table_view(f"{t}-over") as view:
        dict(view)
