"""The only module that knows file names, and which names topics, subscriptions and the like may have."""

from __future__ import annotations

import os
import re
import socket

from pyspark_ledger.errors import InvalidInput

OUTBOXES_FOLDER = "outboxes"
_OF_SPARK = "spark-"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
# Numbers as they are written here, and no other spelling: padded with zeros only up to their width.
_VERSIONED = re.compile(r".*/([0-9]{12}|[1-9][0-9]{12,18})-([0-9a-f]{32})", re.DOTALL)
_EPOCH = re.compile(r"[0-9a-f]{8}|[1-9a-f][0-9a-f]{8,15}")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RANDOM = 10  # bytes of an id of a rewritten file that are random; the rest is the ledger
_MARKER = "ledger-namespace-"
_RECOVERY = "ledger-recovery-"
_LOG_SNAPSHOT = re.compile(r".*/log-([0-9]{15})-([0-9]{15})-((?:[0-9a-f]{2})*)-[0-9a-f]{32}\.nodes", re.DOTALL)
_READERS_SNAPSHOT = re.compile(r".*/readers-([0-9]{15})-([0-9a-f]{32})\.nodes", re.DOTALL)
_NAMESPACE_SNAPSHOT = re.compile(r"[^/]*/namespace-([0-9]{15})-([0-9a-f]{32})\.nodes")
_UNFINISHED = re.compile(r".*/unfinished-([0-9]{15})-[0-9a-f]{32}", re.DOTALL)
_REBUILT = re.compile(r".*/rebuilt-as-((?:[0-9a-f]{2})+)", re.DOTALL)
_MADE_FROM = re.compile(r".*/made-from-((?:[0-9a-f]{2})+)", re.DOTALL)
_STAGED = re.compile(r"([0-9a-f]{8}|[1-9a-f][0-9a-f]{8,15})/([0-9a-f]{32})\.arrow")


STAGING_TOPIC = "_staging"  # has no records: what tasks have for topics that they do not know waits in its folder


def check_topic_name(name: str) -> str:
    return _checked(name, "topic", "LEDGER_INVALID_TOPIC_NAME")


def check_subscription_name(name: str) -> str:
    return _checked(name, "subscription", "LEDGER_INVALID_SUBSCRIPTION_NAME")


def check_group_name(name: str) -> str:
    return _checked(name, "token group", "LEDGER_INVALID_GROUP_NAME")


def check_outbox_name(name: str) -> str:
    return _checked(name, "outbox", "LEDGER_INVALID_OUTBOX_NAME")


def _checked(name: str, thing: str, code: str) -> str:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidInput(
            f"'{name}' cannot be a {thing}'s name: use 1 to 200 letters, digits, '_', '-' and '.', starting with a "
            f"letter, a digit or '_' (a {thing} has a name, not a path)",
            code,
        )
    return name


def forget_command(topic: str, producer: str) -> str:
    """What lets a producer's name go, for messages to people."""
    import shlex  # rarely needed, and tasks import this module

    return f"pyspark-ledger producers forget {topic} {shlex.quote(producer)} --yes"


def spark_producer(query: str) -> str:
    """The producer's name of a Spark query that was given none."""
    return f"{_OF_SPARK}{query}"


def query_of(producer: str) -> str:
    """The query whose producer's name this is; empty if it is no such name."""
    return producer.removeprefix(_OF_SPARK) if producer.startswith(_OF_SPARK) else ""


def zookeeper_place(address: str) -> str:
    """A connect string without anything secret in it: hosts with their ports, and the chroot."""
    hosts, chroot = _parts_of(address)
    return ",".join(hosts) + (f"/{chroot}" if chroot else "")


def is_same_zookeeper(one: str, other: str) -> bool:
    """Whether two connect strings have a server in common, and the same chroot. Hosts are compared as they are
    written."""
    (hosts, chroot), (other_hosts, other_chroot) = _parts_of(one), _parts_of(other)
    return chroot == other_chroot and not {*hosts}.isdisjoint(other_hosts)


def _parts_of(address: str) -> tuple[list[str], str]:
    hosts, _, chroot = address.rpartition("@")[2].partition("/")
    found = [host.strip() for host in hosts.split(",") if host.strip()]
    return [host if re.search(r":[0-9]+$", host) else f"{host}:2181" for host in found], chroot.strip("/")


def this_process() -> str:
    """This process, for messages to people."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def token_folder(uuid: str, group: str, chunk: int) -> str:
    return f"{uuid}/tokens/{group}/{chunk:010d}"


def entity_folder(outbox: str, digest: str) -> str:
    return f"{OUTBOXES_FOLDER}/{outbox}/{digest}"


def versioned_file(folder: str, version: int, uid: bytes) -> str:
    """A file that only one version of its node can refer to."""
    return f"{folder}/{version:012d}-{uid.hex()}"


def parse_versioned_file(path: str) -> tuple[int, bytes] | None:
    match = _VERSIONED.fullmatch(path)
    return (int(match[1]), bytes.fromhex(match[2])) if match else None


def topic_folder(uuid: str) -> str:
    return uuid


def parse_topic_folder(name: str) -> str | None:
    """The UUID of the topic whose files are in a folder with this name, right below the root; None if it is another
    folder. Whose topic that is, the name does not say: namespaces may share a root."""
    return name if _UUID.fullmatch(name) else None


def marker_file(namespace: bytes) -> str:
    """In the root for ever: says which namespace's files are there."""
    return f"{_MARKER}{namespace.hex()}"


def is_marker_file(name: str) -> bool:
    """Whether this is the marker file of a namespace, of this one or another."""
    return name.startswith(_MARKER)


def recovery_folder(marker: str) -> str:
    """Right below the root: what is needed to make a namespace again if ZooKeeper has lost it. ``marker`` is the name
    of the namespace's marker file: so namespaces that share a root have a folder each."""
    return f"{_RECOVERY}{marker.removeprefix(_MARKER)}"


def recovery_folder_of_topic(marker: str, uuid: str) -> str:
    return f"{recovery_folder(marker)}/{uuid}"


def log_snapshot_file(folder: str, next_commit: int, written_ms: int, last_commit: bytes, mark: bytes) -> str:
    """The order of names is the order of snapshots. The last commit is in the name, so that a rollback of ZooKeeper
    shows without reading the file; and so is a hash that stands for the state of the topic."""
    return f"{folder}/log-{next_commit:015d}-{written_ms:015d}-{last_commit.hex()}-{mark.hex()}.nodes"


def parse_log_snapshot_file(path: str) -> tuple[int, int, bytes] | None:
    """The next commit, when it was written, and the id of the last commit; None if it is another file. (Its mark:
    :func:`snapshot_mark`.)"""
    match = _LOG_SNAPSHOT.fullmatch(path)
    return (int(match[1]), int(match[2]), bytes.fromhex(match[3])) if match else None


def parse_recovery_folder(name: str) -> bytes | None:
    """The id of the namespace whose recovery folder has this name, right below the root; None if it is another."""
    try:
        return bytes.fromhex(name.removeprefix(_RECOVERY)) if name.startswith(_RECOVERY) else None
    except ValueError:
        return None


def readers_snapshot_file(folder: str, written_ms: int, mark: bytes) -> str:
    """``mark``: a hash of what is in it, so that a process that has just started knows without reading it whether it is
    still true."""
    return f"{folder}/readers-{written_ms:015d}-{mark.hex()}.nodes"


def parse_readers_snapshot_file(path: str) -> tuple[int, bytes] | None:
    """When it was written, and the hash; None if it is another file."""
    match = _READERS_SNAPSHOT.fullmatch(path)
    return (int(match[1]), bytes.fromhex(match[2])) if match else None


def namespace_snapshot_file(folder: str, written_ms: int, mark: bytes) -> str:
    return f"{folder}/namespace-{written_ms:015d}-{mark.hex()}.nodes"


def parse_namespace_snapshot_file(path: str) -> tuple[int, bytes] | None:
    """When it was written, and the hash of what is in it; None if it is another file."""
    match = _NAMESPACE_SNAPSHOT.fullmatch(path)
    return (int(match[1]), bytes.fromhex(match[2])) if match else None


def unfinished_snapshot_file(folder: str, written_ms: int, uid: bytes) -> str:
    """A snapshot while it is written: it gets its name when all of it is there."""
    return f"{folder}/unfinished-{written_ms:015d}-{uid.hex()}"


def parse_unfinished_snapshot_file(path: str) -> int | None:
    """When it was begun; None if it is another file."""
    match = _UNFINISHED.fullmatch(path)
    return int(match[1]) if match else None


def snapshot_mark(path: str) -> bytes:
    """The hash in the name of a snapshot of any kind."""
    return bytes.fromhex(path.removesuffix(".nodes")[-32:])


def rebuilt_file(marker: str, namespace: bytes) -> str:
    """In a recovery folder: says which namespace was made from it, and goes on instead of it."""
    return f"{recovery_folder(marker)}/rebuilt-as-{namespace.hex()}"


def parse_rebuilt_file(path: str) -> bytes | None:
    match = _REBUILT.fullmatch(path)
    return bytes.fromhex(match[1]) if match else None


def made_from_file(marker: str, namespace: bytes) -> str:
    """In a recovery folder: says from which namespace this one is being made, or was."""
    return f"{recovery_folder(marker)}/made-from-{namespace.hex()}"


def parse_made_from_file(path: str) -> bytes | None:
    match = _MADE_FROM.fullmatch(path)
    return bytes.fromhex(match[1]) if match else None


def probe_file(uid: bytes) -> str:
    """In the root for a moment, to see whether files can be kept there."""
    return f"probe-{uid.hex()}"


def staged_file(uuid: str, epoch: int, uid: bytes) -> str:
    """One folder per gc epoch, so that gc lists only what is new since it last looked."""
    return f"{uuid}/{epoch:08x}/{uid.hex()}.arrow"


def epoch_folder(uuid: str, epoch: int) -> str:
    """Where the files of one gc epoch are."""
    return f"{uuid}/{epoch:08x}"


def parse_epoch_folder(name: str) -> int | None:
    """The gc epoch whose files are in a folder with this name, right below a topic's; None if it is another folder."""
    return int(name, 16) if _EPOCH.fullmatch(name) else None


def id_with_ledger(id: bytes, ledger: int) -> bytes:
    """The id of a file that a rewritten ledger consists of: who finds the file can ask that ledger whether it needs
    it."""
    return id[:_RANDOM] + ledger.to_bytes(len(id) - _RANDOM)


def ledger_in_id(id: bytes) -> int:
    """The ledger in such an id. Of another file it is any number, hardly ever one that a ledger has."""
    return int.from_bytes(id[_RANDOM:])


def parse_staged_file(uuid: str, path: str) -> tuple[int, bytes] | None:
    """The epoch and id in a path made by :func:`staged_file`, or None for a file that is not ours."""
    prefix = f"{uuid}/"
    match = _STAGED.fullmatch(path[len(prefix) :]) if path.startswith(prefix) else None
    return (int(match[1], 16), bytes.fromhex(match[2])) if match else None
