"""The parsers of what people and other programs write: options, offsets, commands, records as text."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_ledger.base import names, profiles, uris
from pyspark_ledger.base.login import login_of
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.cli import importing
from pyspark_ledger.cli.writing import _csv, _json, _Source
from pyspark_ledger.cli.writing import _numbered as _numbered_records
from pyspark_ledger.console.checkpoints import queries_in
from pyspark_ledger.datasource import offsets
from pyspark_ledger.datasource.checkpoint import Checkpoint
from pyspark_ledger.datasource.lag import lag
from pyspark_ledger.datasource.options import ReadOptions, WriteOptions
from pyspark_ledger.describe import ddl, policies
from pyspark_ledger.describe.jsonlines import Decoder
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.jsonrows import encoder
from pyspark_ledger.files.storage import Root, normalise_uri
from pyspark_ledger.log import places, root
from pyspark_ledger.metadata.records import Namespace, Topic
from pyspark_ledger.testing import history
from pyspark_ledger.tokens.ids import TokenRuns
from pyspark_ledger.zk_metadata.session import split_connect_string
from tests.support.commands import run_command
from tests.support.held import HeldStorage
from tests.support.parser_table import COLUMNS, UID, UUID, parser, parser_of, text_of
from tests.support.query import document

TOPIC = Topic("orders", UUID, "", "", 0)


def any_json(data: bytes) -> Any:
    """What somebody else has parsed already; what is no JSON is nothing that our parser is given."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


@parser("position", "3:17:0", " 0:0:0 ", "999999999999999999:1:2")
def _position(data: bytes) -> object:
    position = Position.parse(text_of(data))
    assert Position.parse(str(position)) == position
    return position


OFFSET = offsets.Offset(
    UUID, Position(3, 17, 5), Position(3, 0, 0), 2, 4, 1, EARLIEST, b"\1\2", name="orders", records=99
)
OFFSET = replace(OFFSET, commit=places.SeenCommit(17, b"\x0a\x1b\x2c\x3d"), reset=b"\4\5\6\7")
OLD_OFFSET = {"v": 1, "topic": UUID, "pos": "1:2:3", "rev": 0, "epoch": 0}
OFFSETS = (json.dumps(document(OFFSET)), json.dumps(OLD_OFFSET))


PROFILES = (
    '[prod]\nzookeeper = "zk1:2281/prod"\n"zookeeper.password" = "me:x"\n"zookeeper.tls.verify" = "ca"\n[test]',
    '[a]\n"zookeeper.tls" = true\n[b.zookeeper.sasl]\nuser = "u"\npassword = "p"\nmechanism = "DIGEST-MD5"\n',
)


@parser("profiles", *PROFILES)
def _profiles(data: bytes) -> object:
    found = profiles.parse("config.toml", data)
    return [login_of(profiles.settings_in("config.toml", name, values)) for name, values in found.items()]


@parser("place", "earliest", "LATEST", "3:17:0", *OFFSETS, "2026-11-01T00:00:00Z", "2026-11-01", "2026-11-01T01:02+02")
def _place(data: bytes) -> object:
    return places.parse(text_of(data))


@parser("offset", *OFFSETS, json.dumps(offsets.INITIAL))
def _offset(data: bytes) -> object:
    given = any_json(data)
    if offsets.is_initial(given):
        return None
    return [offsets.parse(name, fields, TOPIC) for name, fields in offsets.parts(given).items()]


def _progress(end: str, latest: str) -> str:
    source = {"startOffset": end, "endOffset": end, "latestOffset": latest, "description": "ledger"}
    other = {"startOffset": "{}", "endOffset": '{"logOffset": 1}', "latestOffset": None}
    return json.dumps({"id": "q", "name": None, "batchId": 3, "sources": [source, other]})


@parser("progress", _progress(OFFSETS[0], OFFSETS[0]), _progress(OFFSETS[1], OFFSETS[1]), _progress(OFFSETS[1], "{}"))
def _lag(data: bytes) -> object:
    """What Spark says of a query, of which other sources than ours are a part."""
    given = any_json(data)
    found = lag(given) if isinstance(given, dict) else None
    return None if found is None else (found.records, found.bytes, found.seconds)


_LOGGED = '{"id":"0a1b2c3d"}', "v1", '{"batchWatermarkMs":0,"conf":{}}'


@parser(
    "checkpoint", *("\0".join((_LOGGED[0], "\n".join((*_LOGGED[1:], *lines)))) for lines in (OFFSETS, ("named:{}",)))
)
def _checkpoint(data: bytes) -> object:
    """What Spark keeps of a query, as the console and a sink look into it: the metadata, and a log of offsets."""
    metadata, _, logged = data.partition(b"\0")
    folder = _checkpoint_folder()
    (folder / "metadata").write_bytes(metadata)
    (folder / "offsets" / "7").write_bytes(logged)
    (shown,) = queries_in([folder])
    found = Checkpoint(str(folder), Root(str(folder)))
    seen = json.dumps(shown, default=str), found.query_id(), found.digest(7)
    if "error" in shown:
        raise InvalidInput(shown["error"], "LEDGER_SHOWN_AS_AN_ERROR")
    return seen


@cache
def _checkpoint_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ledger-checkpoint-"))
    (folder / "offsets").mkdir()
    (folder / "commits").mkdir()
    return folder


POLICIES = {
    "deduplication": "true", "snapshot_commits": "1000", "evict_producers_after": "7d", "retention_age": "30s",
    "retention_bytes": "100GB", "backlog_quota": "1GB,7d", "backlog_action": "evict", "compact_after": "never",
    "expire_subscriptions_after": "1.5h", "rewrite_below": "64MiB",
}  # fmt: skip


@parser("policies", *(f"{name}={value}" for name, value in POLICIES.items()), "backlog_quota=never")
def _policies(data: bytes) -> object:
    return policies.parse(_given(data))


@parser("name", "orders", "a.b-c_9")
def _name(data: bytes) -> object:
    return [check(text_of(data)) for check in (names.check_topic_name, names.check_outbox_name)]


STAGED, VERSIONED = names.staged_file(UUID, 7, UID), names.versioned_file("folder", 3, UID)


@parser("file-name", STAGED, VERSIONED)
def _file_name(data: bytes) -> object:
    text = text_of(data)
    staged, versioned = names.parse_staged_file(UUID, text), names.parse_versioned_file(text)
    assert staged is None or names.staged_file(UUID, *staged) == text
    assert versioned is None or text.endswith(names.versioned_file("", *versioned))
    return staged, versioned


SNAPSHOTS = (
    names.log_snapshot_file("folder", 7, 8, UID, UID),
    names.log_snapshot_file("folder", 0, 8, b"", UID),
    names.readers_snapshot_file("folder", 9, UID),
    names.namespace_snapshot_file("folder", 9, UID),
    names.unfinished_snapshot_file("folder", 9, UID),
)


@parser("snapshot-name", *SNAPSHOTS)
def _snapshot_name(data: bytes) -> object:
    """What is taken is one of ours, to the letter."""
    text = text_of(data)
    folder = text.rpartition("/")[0]
    if (log := names.parse_log_snapshot_file(text)) is not None:
        assert names.log_snapshot_file(folder, *log, names.snapshot_mark(text)) == text
    if (readers := names.parse_readers_snapshot_file(text)) is not None:
        assert names.readers_snapshot_file(folder, *readers) == text
    if (namespace := names.parse_namespace_snapshot_file(text)) is not None:
        assert names.namespace_snapshot_file(folder, *namespace) == text
    return log, readers, namespace, names.parse_unfinished_snapshot_file(text)


@parser("marker", root.marker_content(Namespace("file:///data", 0, id=UID), "a:1,b:2/some/root"))
def _marker(data: bytes) -> object:
    return root._address_in(HeldStorage(data, mapped=False), "marker")


@parser("zookeeper-place", "127.0.0.1:2181", "a,b:2/some/root/", "u:p@[::1]:2181")
def _zookeeper_place(data: bytes) -> object:
    place = names.zookeeper_place(text_of(data))
    assert names.zookeeper_place(place) == place
    return place


@parser("storage-root", "/data/ledger", "file:///data", "s3a://bucket/a/?region=eu-west-1", "~/x", "relative")
def _storage(data: bytes) -> object:
    return normalise_uri(text_of(data))


@parser("storage-keys", "s3://bucket/a?region=eu-west-1", "abfss://box@account.dfs.core.windows.net/a", "/a@b?c")
def _keys(data: bytes) -> object:
    """Whoever shows a URI does not fail, and what is shown has no keys."""
    text = text_of(data)
    if not uris.has_keys(text):
        assert uris.shown(text) == text or "(" in uris.shown(text)
    return uris.check_no_keys(text), uris.shown(text)


@parser("connect-string", "127.0.0.1:2181", "a:1,b:2/some/root", "[::1]:2181")
def _connect_string(data: bytes) -> object:
    return split_connect_string(text_of(data))


READ = {
    "topic": "orders", "startingOffsets": "3:17:0", "endingTimestamp": "1700000000000", "maxRowsPerTrigger": "100",
    "maxBytesPerTrigger": "64m", "minRowsPerTrigger": "10", "maxTriggerDelay": "15m", "columns": "a,b",
    "minPartitions": "4", "includeMetadata": "true", "failOnDataLoss": "false", "subscription": "s",
    "subscriptionType": "failover", "readCompacted": "true", "onSchemaChange": "ignore", "zookeeper": "127.0.0.1:2181",
}  # fmt: skip
WRITE = {
    "path": "orders", "paths": '["orders"]', "keyColumn": "k", "versionColumn": "v", "producerName": "p",
    "sequenceId": "7", "mergeSchema": "true", "compression": "zstd", "mintTokens": "true", "createTopic": "false",
}  # fmt: skip
MANY = {
    "topics": "orders,payments", "startingTimestamp": "2026-11-01", "endingOffsets": "latest", "storage": "s3://b/x",
    "profile": "prod", "logLevel": "info", "logFormat": "json", "zookeeper.user": "u", "zookeeper.password": "p",
    "zookeeper.tls": "true", "zookeeper.tls.ca": "ca.pem", "zookeeper.tls.verify": "ca",
    "storage.region": "eu-west-1", "storage.connectTimeout": "1.5", "storage.anonymous": "true",
}  # fmt: skip
ROUTED = {"topicColumn": "to", "deadLetterTopic": "dead", "zookeeper.sasl.mechanism": "GSSAPI", "logLevel": "debug"}
IDS = {"topic": "orders", "sequenceColumn": "n", "producerColumn": "p", "deduplication": "sequence"}
SPENDING = {"topic": "orders", "deduplication": "token", "tokenColumn": "t", "tokenGroup": "g", "tokenFanOut": "true",
            "tokenTopic": "orders"}  # fmt: skip


def _lines(options: dict[str, str]) -> str:
    return "\n".join(f"{name}={value}" for name, value in options.items())


def _given(data: bytes) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in text_of(data).split("\n"))


@parser("read-options", _lines(READ), _lines(MANY), *(f"topic=t\nstartingOffsets={offset}" for offset in OFFSETS))
def _read_options(data: bytes) -> object:
    return ReadOptions.parse(_given(data))


@parser("write-options", *map(_lines, (WRITE, IDS, SPENDING, ROUTED)))
def _write_options(data: bytes) -> object:
    return WriteOptions.parse(_given(data))


TOKENS = (f"{UUID}:3:17:0", f"{UUID}:3:17:1", f"{UUID}:3:18:0", f"{UUID}:m{'0a' * 16}:5")


@parser("tokens", *TOKENS, "\n".join(TOKENS), "\n".join(TOKENS[:2]))
def _tokens(data: bytes) -> object:
    runs = TokenRuns()
    runs.add(pa.array(data.decode(errors="replace").split("\n")))
    return runs.table()


@parser("ddl", COLUMNS, "`an odd ``name``` string NOT NULL", "a array<map<string, struct<`b`: decimal(38,0), c: int>>>")
def _ddl(data: bytes) -> object:
    schema = schemas.canonical(ddl.parse(text_of(data)))
    assert ddl.parse(ddl.ddl(schema)).equals(schema), "what is shown is read back"
    return schema


RECORD = {
    "flag": True, "tiny": -7, "n": 1 << 60, "f": 0.5, "d": "NaN", "price": "12.50", "wide": "1e3", "t": "text",
    "b": "aGk=", "day": "2026-01-31", "at": "2026-01-31T12:00:00Z", "local": "2026-01-31T12:00:00",
    "clock": "12:30:00", "took": "PT1.5S", "nothing": None, "tags": ["a", None], "names": {"a": 1},
    "ids": [[1, 2], [3, None]], "point": {"x": 1.0, "y": -2},
}  # fmt: skip


@cache
def _schema_of_records() -> pa.Schema:
    return schemas.canonical(ddl.parse(COLUMNS))


def _written(kind: Callable[..., Any], data: bytes) -> list[dict[str, Any]]:
    """The records that ``topics write`` takes from a file. What it takes fits the topic, and is shown again."""
    source, schema = _Source(BytesIO(data)), _schema_of_records()
    records = [record for _, record in _numbered_records(source, kind(source, Decoder(schema)))]
    rows = schemas.from_records(records, schema, "t").to_pylist()
    return [json.loads(json.dumps(encoder(schema)(row))) for row in rows]


@parser("json-lines", json.dumps(RECORD), '{"n": 1e3}\n\n{"n": 2}\n', *(json.dumps({k: v}) for k, v in RECORD.items()))
def _json_lines(data: bytes) -> object:
    return _written(_json, data)


@parser(
    "csv",
    'flag,n,f,t,b,day\r\ntrue,7,0.5,"a ""b""\nc",aGk=,2026-01-31\r\n,,,,,\r\n',
    'tags,names,point,price,at,took\n"[""a""]","{""a"": 1}","{""x"": 1.0}",12.50,2026-01-31T12:00:00Z,PT1.5S\n',
)
def _csv_table(data: bytes) -> object:
    return _written(_csv, data)


def _parquet() -> list[bytes]:
    held = []
    schema = _schema_of_records()
    for compression, rows in (("none", 3), ("zstd", 0)):
        records = [
            {"n": n, "t": "x" * n, "flag": True, "tags": ["a"], "at": "2026-01-31T12:00:00Z"} for n in range(rows)
        ]
        decoded = [Decoder(schema).line(json.dumps(record)) for record in records]
        table = pa.Table.from_batches([schemas.from_records(decoded, schema, "t")], schema)
        out = BytesIO()
        pq.write_table(table.select(["n", "t", "tags", "at"]), out, compression=compression)
        held.append(out.getvalue())
    return held


@parser_of("parquet", _parquet)
def _parquet_file(data: bytes) -> object:
    """A file that somebody imports."""
    schema = _schema_of_records()
    parquet = importing._opened(BytesIO(data), "file")
    fitting = importing._Fitting(parquet.schema_arrow, schema)
    return [batch.num_rows for _, batch in importing._batches(parquet, fitting, 1)]


COMMANDS = (
    "topics list", "topics describe orders", "topics create orders --schema n|bigint --key n", "topics read t -n 3",
    "topics read orders --from 3:17:0 --columns a,b --compacted", "topics write orders - --format csv --producer p",
    "topics config set orders --deduplication on", "cursors reset orders s --to 2026-11-01T00:00:00Z", "tokens --help",
    "cursors list orders --json", "producers list orders", "namespace upgrade --yes", "exporter --port 0", "--version",
    "up --port 2181", "down --purge --yes", "status --json", "topics compact orders --zookeeper 127.0.0.1:2181/x",
    "topics delete orders --verbose", "topics config set orders --evict-producers-after 7d",
    "topics config set orders --retention-age 7d --retention-bytes 100GB --backlog-quota 1GB,7d --rewrite-below 64MB",
    "topics export orders /no/folder/orders.parquet --start 0:0:0 --end latest --columns a --metadata --overwrite",
    "topics import orders /dev/null --format parquet --producer p", "topics copy orders --to-profile p --as o --follow",
    "topics skip-damaged orders 3:17 --reason disk --yes", "topics verify --all --sample 100 --deep",
    "topics trim orders --before 3:17:0 --dry-run", "topics rewrite orders --below 64MB --read-rate 10MB",
    "deadletters list dead --limit 10 --reason unknown --output csv", "deadletters replay dead --to orders --yes",
    "access grant writer user:name --yes", "access rotate user:name --to user:other --finish", "options topic --json",
    "console --port 0 --host-name ledger --mask card,name --checkpoints /no/folder --allow-changes", "completion bash",
    "maintain --once --actions gc,compact --read-rate 50MB", "namespace move-storage --to /no/folder --dry-run",
    "namespace repair --bring-back --yes", "cursors skip orders s 100 --yes --set zookeeper.tls.ca|=ca.pem",
)  # fmt: skip


@parser("command-line", *(command.replace(" ", "\0").replace("|", " ") for command in COMMANDS))
def _command_line(data: bytes) -> object:
    """Arguments as the system keeps them: with a zero between, the only byte that none of them can have."""
    return run_command(text_of(data).split("\0"))


ROW = history.Row("order-17", Position(3, 17, 0), "k", True, TOKENS[0])
EVENTS = (
    history.Send(process="p", number=3, told="ok", topic="t", rows=(ROW,), producer="web", sequence=17, told_at=1.5),
    history.Poll(process="p", rows=(ROW, history.Row("x")), subscription="s", batch=3, start=EARLIEST, end=EARLIEST),
    history.Acknowledge(process="p", upto=EARLIEST, positions=(EARLIEST,), moved=True),
    history.CompactedRead(process="p", end=Position(1, 2, 3), state=(("k", "v"),)),
    history.FinalTokens(process="p", group="g", present=TOKENS),
    history.Reset(process="p", to=Position(1, 2, 3), revision=4),
)


@parser("history", *map(history.to_line, EVENTS))
def _event(data: bytes) -> object:
    event = history.from_line(data.decode(errors="replace"))
    assert history.from_line(history.to_line(event)) == event
    return history.merge([event, EVENTS[0]])
