"""What each option of ``format("ledger")`` is, in words: for the page docs/options.md, and ``pyspark-ledger options``.

The words are Markdown, with links as they work on that page, which is made from them (make reference). What an option
does is in options.py; nothing that a query runs imports this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LINK = re.compile(r"\[([^]]*)\]\(([^)]*)\)")
HEADER = "| option | type | default | |\n|---|---|---|---|\n"


@dataclass(frozen=True, slots=True)
class Option:
    """One option, or several that go together and share a row."""

    name: str  # of several: with commas
    kind: str  # which values it takes
    default: str
    meaning: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.name.split(", "))

    @property
    def row(self) -> str:
        """As it stands in its table."""
        cells = (", ".join(f"`{name}`" for name in self.names), self.kind, self.default, self.meaning)
        return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|\n"

    def plain(self) -> dict[str, str]:
        """Without the signs of Markdown."""
        told = {"type": self.kind, "default": self.default, "meaning": self.meaning}
        return {"option": self.name} | {key: LINK.sub(r"\1", text).replace("`", "") for key, text in told.items()}


BOTH = (
    Option(
        "zookeeper",
        "connect string",
        "`LEDGER_ZOOKEEPER`, else `127.0.0.1:2181`",
        "`host:port,host:port/chroot`. The chroot is the namespace. No answer for 30 s, or nothing that listens "
        "there: `LEDGER_UNAVAILABLE`",
    ),
    Option(
        "profile",
        "name",
        "`LEDGER_PROFILE`",
        "takes what is not given from a file that holds addresses and secrets under a name, so that no secret is an "
        "option at all ([security.md](security.md#profiles)). No such file or profile, or one that others can read: "
        "`LEDGER_INVALID_PROFILE`",
    ),
    Option(
        "zookeeper.user, zookeeper.password",
        "text",
        "none",
        "for ZooKeeper's digest scheme; what is made then belongs to that user alone. `zookeeper.password` alone may "
        "be `user:password`. Wrong: `LEDGER_ACCESS_DENIED`",
    ),
    Option(
        "zookeeper.tls",
        "`true`, `false`",
        "`true` if another `zookeeper.tls.…` is given",
        "an encrypted connection ([security.md](security.md#tls)). It fails, and the error says why: "
        "`LEDGER_TLS_FAILED`",
    ),
    Option(
        "zookeeper.tls.ca",
        "file",
        "the CAs that the machine trusts",
        "whose certificates a server may have (PEM)",
    ),
    Option(
        "zookeeper.tls.cert, zookeeper.tls.key, zookeeper.tls.password",
        "files, text",
        "none",
        "the certificate to show to servers that ask for one, its key (if that is in another file), and the key's "
        "password",
    ),
    Option(
        "zookeeper.tls.verify",
        "`full`, `ca`, `none`",
        "`full`",
        "what a server's certificate must be: of a trusted CA and for this host; of a trusted CA; anything",
    ),
    Option(
        "zookeeper.sasl.mechanism",
        "`DIGEST-MD5`, `GSSAPI`",
        "`DIGEST-MD5` if another `zookeeper.sasl.…` is given",
        "logs in by SASL ([security.md](security.md#sasl)). Refused by the server: `LEDGER_ACCESS_DENIED`; the extra "
        "is missing: `LEDGER_NOT_INSTALLED`",
    ),
    Option(
        "zookeeper.sasl.user, zookeeper.sasl.password",
        "text",
        "none",
        "who, for SASL; GSSAPI takes a ticket or keytab instead",
    ),
    Option(
        "zookeeper.sasl.service",
        "text",
        "`zookeeper`",
        "the name that the servers have for SASL",
    ),
    Option(
        "storage",
        "folder or URI",
        "`LEDGER_STORAGE`",
        "needed once, by the first who writes to a namespace, and recorded there "
        "([operations.md](operations.md#storage)). Missing then: `LEDGER_STORAGE_NOT_SET`; another than the recorded "
        "one: `LEDGER_STORAGE_CONFLICT`; not writable: `LEDGER_STORAGE_UNAVAILABLE`; not mounted, or without the "
        "namespace's marker file: `LEDGER_STORAGE_MISSING`; ZooKeeper has lost its data, and the root has those of "
        "the namespace that it had: `LEDGER_NAMESPACE_LOST`; unknown to pyarrow: `LEDGER_INVALID_STORAGE`; keys in a "
        "URI: `LEDGER_KEYS_IN_URI`",
    ),
    Option(
        "storage.accessKey, storage.secretKey, storage.sessionToken",
        "text",
        "what the machine has",
        "S3: keys, and for those of a limited time their token. Azure: `storage.secretKey` is the account's key. "
        "These and all below: [security.md](security.md#storage); a setting that the store does not take: "
        "`LEDGER_INVALID_OPTION`",
    ),
    Option(
        "storage.roleArn, storage.roleSession, storage.externalId",
        "text",
        "none",
        "S3: a role that each process assumes, with what its machine or environment has; excludes `storage.accessKey`",
    ),
    Option(
        "storage.anonymous",
        "`true`, `false`",
        "`false`",
        "S3 and Google: without a login",
    ),
    Option(
        "storage.region, storage.endpoint, storage.scheme",
        "text, `host:port`, `http` or `https`",
        "as the URI says",
        "S3, Google and Azure (no region): go before the URI's parameters, which are recorded for all",
    ),
    Option(
        "storage.tls.ca",
        "file",
        "the CAs that the machine trusts",
        "S3: whose certificates the store may have (PEM). The file must be at the same place on executors",
    ),
    Option(
        "storage.proxy, storage.proxy.user, storage.proxy.password",
        "`http://host:port`, text",
        "none",
        "S3 through a proxy",
    ),
    Option(
        "storage.backgroundWrites, storage.virtualAddressing",
        "`true`, `false`",
        "`true`, `false`",
        "S3: whether uploads go on while more is written; the bucket in the host's name also with `storage.endpoint`",
    ),
    Option(
        "storage.connectTimeout, storage.requestTimeout",
        "seconds",
        "as pyarrow",
        "S3",
    ),
    Option(
        "storage.accessToken, storage.accessTokenExpires",
        "text, ISO 8601",
        "what the machine has",
        "Google: a token, and until when it is valid",
    ),
    Option(
        "storage.serviceAccount, storage.project",
        "text",
        "none",
        "Google: whom to impersonate; the project of new buckets",
    ),
    Option(
        "storage.account",
        "text",
        "as the URI says",
        "Azure: the account",
    ),
    Option(
        "storage.sasToken",
        "text",
        "what the machine has",
        "Azure: instead of the account's key",
    ),
    Option(
        "storage.tenantId, storage.clientId, storage.clientSecret",
        "text",
        "none",
        "Azure: a service principal",
    ),
    Option(
        "topic",
        "name",
        "",
        'or `.load("orders")`, `.start("orders")`, `.save("orders")`. One topic (a read may have several: `topics`); '
        "1 to 200 letters, digits, `_`, `-`, `.`. None, as in SQL on a table of a catalog without `WITH`: "
        "`LEDGER_NO_TOPIC` ([sql.md](sql.md)); not a name: `LEDGER_INVALID_TOPIC_NAME`",
    ),
    Option(
        "logLevel",
        "`debug`, `info`, `warning` (or `warn`), `error`, `off`",
        "`LEDGER_LOG_LEVEL`, else `warning`",
        "which log lines of the package Spark's Python processes write to their stderr, on the driver and on "
        "executors ([monitoring.md](monitoring.md#log-lines))",
    ),
    Option(
        "logFormat",
        "`text`, `json`",
        "`LEDGER_LOG_FORMAT`, else `text`",
        "in which form",
    ),
)

READING = (
    Option(
        "topics",
        "names with commas, 100 at most",
        "",
        "several topics in one read, see below. Excludes `topic` and a path. Columns that do not go together: "
        "`LEDGER_SCHEMA_MISMATCH`",
    ),
    Option(
        "startingOffsets",
        "`earliest`, `latest`, `L:E:I`, offset JSON",
        "`earliest`",
        "where the read begins, in streams too. A stream uses it once: after that its checkpoint counts, or its "
        "subscription. `earliest` is the first record that retention has left; with `readCompacted`, the first one "
        "that is compacted. A position that retention has given up: `LEDGER_TRIMMED`, unless `failOnDataLoss` is "
        "`false`. Past the end: `LEDGER_POSITION_PAST_END`; an offset of a topic that was deleted: "
        "`LEDGER_TOPIC_RECREATED`; one that knows a commit which is not in the log: `LEDGER_SET_BACK`",
    ),
    Option(
        "endingOffsets",
        "as `startingOffsets`",
        "the end, for a batch; none, for a stream",
        "the first position that is not read. A stream delivers nothing past it, and `availableNow` ends there; "
        "under another trigger the query goes on idly, because a source cannot end it",
    ),
    Option(
        "startingTimestamp",
        "ISO 8601 (UTC unless it says otherwise) or milliseconds since 1970",
        "",
        "by publish time: the first record published at or after it; the end if there is none. Excludes "
        "`startingOffsets`",
    ),
    Option(
        "endingTimestamp",
        "as `startingTimestamp`",
        "",
        "nothing that was published at or after it. A stream may be given one that has not come yet. Excludes "
        "`endingOffsets`",
    ),
    Option(
        "maxRowsPerTrigger",
        "whole number, at least 1",
        "none",
        "at most so many rows in a micro-batch; large entries are split. `availableNow` keeps to it",
    ),
    Option(
        "maxBytesPerTrigger",
        "size: `67108864`, `64m`",
        "none",
        "at most so many stored bytes, but at least one row. Both limits may be given",
    ),
    Option(
        "minRowsPerTrigger",
        "whole number, at least 1",
        "none",
        "a batch waits until there are so many rows, except with `availableNow` and at the end of a bounded stream",
    ),
    Option(
        "maxTriggerDelay",
        "duration: `500ms`, `30s`, `15m`, `1h`",
        "`15m`",
        "with `minRowsPerTrigger`: a batch waits no longer than this since the last one",
    ),
    Option(
        "columns",
        "names with commas",
        "all",
        "only these are read from the files, and verified; `.schema(…)` does the same ([more](#fewer-columns)). "
        "`LEDGER_COLUMN_NOT_FOUND`, `LEDGER_SCHEMA_MISMATCH`",
    ),
    Option(
        "minPartitions",
        "whole number, at least 1",
        "1",
        "at least so many tasks for a batch that has the rows. Without it, tasks have about 128 MB of stored bytes "
        "at most, and the cores of the driver's machine are kept busy with shares of 4 MB or more",
    ),
    Option(
        "includeMetadata",
        "`true`, `false`, or names of its fields with commas",
        "`false`",
        "adds the column `_metadata`, see below. Spark does not tell a Python source which fields a query uses, so "
        "naming them saves time: `tokenNumber` alone takes 8 bytes a row, all of it about 100",
    ),
    Option(
        "subscription",
        "name",
        "none",
        "streams only: a durable cursor, made on first use, which everybody can see and move "
        "([cursors.md](cursors.md)). `LEDGER_SUBSCRIPTION_BUSY`, `LEDGER_SUBSCRIPTION_FENCED`, "
        "`LEDGER_CURSOR_RECREATED`",
    ),
    Option(
        "subscriptionType",
        "`exclusive`, `failover`",
        "`exclusive`",
        "with `subscription`, if another owner lives: `exclusive` fails after 15 s, `failover` waits until the owner "
        "is gone",
    ),
    Option(
        "readCompacted",
        "`true`, `false`",
        "`false`",
        "the state of every key instead of its history ([compaction.md](compaction.md)); its records have no tokens. "
        "Without a key: `LEDGER_NOT_COMPACTABLE`; down for too long: `LEDGER_DELETIONS_DROPPED`, "
        "`LEDGER_GENERATION_GONE`",
    ),
    Option(
        "failOnDataLoss",
        "`true`, `false`",
        "`true`",
        "what to do when records are gone that would have been read, see below",
    ),
    Option(
        "onSchemaChange",
        "`fail`, `ignore`",
        "`fail`",
        "streams: what to do when the topic gets a column (`mergeSchema`) while the query runs, see below",
    ),
)

WRITING = (
    Option(
        "keyColumn",
        "column",
        "none",
        "the topic's key, for compaction. Fixed when the topic is made, which the first write does; another one "
        "later is an error",
    ),
    Option(
        "versionColumn",
        "column",
        "none",
        "the highest version of a key counts, not the last record. Fixed like the key",
    ),
    Option(
        "deduplication",
        "`sequence`, `token`, `none`",
        "`sequence`",
        "how a record that is in the log already is recognised: by ids, by tokens, not at all. Off for the topic by "
        "its policies: `LEDGER_DEDUPLICATION_OFF`",
    ),
    Option(
        "producerName",
        "text",
        "`spark-<query id>` in streams",
        "who writes. The name belongs to one query until it is forgotten (`producers forget`), and a new checkpoint, "
        "as after a full refresh of a pipeline ([sql.md](sql.md#declarative-pipelines)), is another query: "
        "`LEDGER_PRODUCER_OWNED`, `LEDGER_PRODUCER_FENCED`, `LEDGER_PRODUCER_EVICTED`",
    ),
    Option(
        "sequenceId",
        "whole number",
        "",
        "batch writes, with `producerName`: the same name and id are written once. The id decides: the last one "
        "again with as many rows adds nothing, whatever the rows are, and a warning says so; with another number of "
        "rows: `LEDGER_SEQUENCE_REUSED`; lower than the last: `LEDGER_SEQUENCE_BEHIND`. A stream's ids are its batch "
        "ids",
    ),
    Option(
        "sequenceColumn",
        "integer column",
        "",
        "every record has an id of its own, and batch ids play no part ([deduplication.md](deduplication.md)). A "
        "null there: `LEDGER_NO_SEQUENCE_ID`",
    ),
    Option(
        "producerColumn",
        "string or integer column",
        "",
        "with `sequenceColumn`: whose id it is; or one `producerName` for all",
    ),
    Option(
        "createTopic",
        "`true`, `false`",
        "see below",
        "whether the write makes the topic if there is none. `false`: never (`LEDGER_TOPIC_NOT_FOUND`); `true`: also "
        "under the name of a topic that was deleted",
    ),
    Option(
        "mergeSchema",
        "`true`, `false`",
        "`false`",
        "adds the columns that the topic does not have, as nullable ones. Otherwise they are "
        "`LEDGER_SCHEMA_MISMATCH`, which shows every difference. Streams that read the topic: `onSchemaChange`",
    ),
    Option(
        "topicColumn",
        "string column",
        "",
        "each row goes to the topic that it names, all topics of a batch in one transaction; not stored "
        "([many-topics.md](many-topics.md)). Instead of `topic`. `LEDGER_NO_TOPIC`, `LEDGER_TOO_MANY_TOPICS`, "
        "`LEDGER_TOO_LARGE`",
    ),
    Option(
        "deadLetterTopic",
        "topic",
        "none",
        "where rows go that cannot be stored, with the reason, in the same transaction "
        "([many-topics.md](many-topics.md#dead-letters)); otherwise they are refused",
    ),
    Option(
        "compression",
        "`lz4`, `zstd`, `none`",
        "`lz4`",
        "of the entry files; `zstd` is smaller, for object stores, and costs more CPU",
    ),
    Option(
        "mintTokens",
        "`true`, `false`",
        "`false`",
        "gives each record a token, for whoever processes it ([tokens.md](tokens.md))",
    ),
    Option(
        "tokenColumn",
        "string column, or a long column with `tokenTopic`",
        "",
        "with `deduplication=token`: the tokens; not stored. `LEDGER_NO_TOKEN`, `LEDGER_INVALID_TOKEN`",
    ),
    Option(
        "tokenTopic",
        "topic",
        "",
        "with `tokenColumn`: its tokens are numbers (`_metadata.tokenNumber`) of this topic. Needed for a long "
        "column, and an error for a string, which says its topic itself",
    ),
    Option(
        "tokenGroup",
        "name",
        "the sink's topic; none with `topicColumn`",
        "with `deduplication=token`: who consumes",
    ),
    Option(
        "tokenFanOut",
        "`true`, `false`",
        "`false`",
        "with `deduplication=token`: one token may serve several records of one batch",
    ),
)

# The headings of the page, below which the tables stand.
TABLES = {"Both ways": BOTH, "Reading": READING, "Writing": WRITING}


def with_tables(page: str) -> str:
    """The page docs/options.md, with its tables made anew."""
    for title, options in TABLES.items():
        before, heading, below = page.partition(f"\n## {title}\n")
        words, header, rows = below.partition(HEADER)
        rest = rows[len(re.match(r"(?:\|.*\n)*", rows)[0]) :]  # type: ignore[index]  # it matches anything
        page = before + heading + words + header + "".join(option.row for option in options) + rest
    return page
