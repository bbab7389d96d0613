"""What ``pyspark-ledger doctor`` looks at. Each check says what it found and, unless all is well, what to do; none
raises, and none changes anything that stays."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.base.names import marker_file
from pyspark_ledger.cli.output import duration, size
from pyspark_ledger.errors import LedgerError, NotFound
from pyspark_ledger.metadata.port import NamespaceKey
from pyspark_ledger.metadata.records import Namespace

if TYPE_CHECKING:
    from pyspark_ledger.cli.base import Session
    from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata

OK, WARN, FAIL = "ok", "warn", "fail"
_PACKAGE = "pyspark-ledger"
_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[.*?\])?((?:[<>=!~]=?[^;,]+,?)*)(?:;.*extra == ['\"](\w+)['\"])?")
_OLDEST_JAVA = 17
_READS = 5
_SLOW_READ_S, _SLOW_WRITE_S, _SLOW_SYNC_S = 0.05, 0.2, 0.2
_SKEW_S = 1.0  # more is worth a word; what is more than the slack is not believed by writers
_SCARCE = 1 << 30  # bytes on a disk


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the answer."""

    status: str
    what: str
    found: str
    advice: str = ""


def all_checks(session: Session) -> Iterator[Check]:
    yield python()
    yield from packages()
    yield java()
    yield from zookeeper_and_storage(session)


# -- this machine -----------------------------------------------------------------------------------------------


def python() -> Check:
    found = f"{platform.python_version()}, {sys.executable}"
    wanted = importlib.metadata.metadata(_PACKAGE)["Requires-Python"] or ""
    if not _fits(platform.python_version(), wanted):
        return Check(FAIL, "Python", found, f"install Python {wanted}, and {_PACKAGE} there")
    return Check(OK, "Python", found)


def packages() -> Iterator[Check]:
    """Those that everything needs, and those of Spark: is each there, and of a version that was tried?"""
    wanted = {name: (spec, extra) for name, spec, extra in _requirements() if extra in ("", "spark")}
    for name, (spec, extra) in wanted.items():
        install = f"pip install '{_PACKAGE}{f'[{extra}]' if extra else ''}'"
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if extra:
                yield Check(WARN, name, "not installed", f"only Spark needs it; to use Spark here: {install}")
            else:
                yield Check(FAIL, name, "not installed", install)
            continue
        if _fits(version, spec):
            yield Check(OK, name, version)
        else:
            yield Check(WARN, name, f"{version}; tried with {spec}", f"{install} --upgrade")


def _requirements() -> Iterator[tuple[str, str, str]]:
    """Name, versions and extra of what this package needs, as it says itself."""
    for line in importlib.metadata.requires(_PACKAGE) or []:
        match = _REQUIREMENT.match(line.replace(" ", "") if ";" not in line else _tight(line))
        if match is not None:
            yield match[1], match[2] or "", match[3] or ""


def _tight(line: str) -> str:
    requirement, _, condition = line.partition(";")
    return f"{requirement.replace(' ', '')};{condition}"


def _fits(version: str, spec: str) -> bool:
    for part in filter(None, spec.split(",")):
        match = re.fullmatch(r"(>=|<|<=|>|==)(.+)", part)
        if match is not None and not _COMPARE[match[1]](_numbers(version), _numbers(match[2])):
            return False
    return True


_COMPARE: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    "==": lambda a, b: a == b,
}


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"[0-9.]*", version)
    return tuple(int(part) for part in (release[0] if release else "").split(".") if part)


def java() -> Check:
    from pyspark_ledger.local.zookeeper import find_java

    needed = shutil.which("spark-submit") is not None or _has("pyspark")
    status = FAIL if needed else WARN
    advice = (
        "Spark and 'pyspark-ledger up' need Java 17 or newer: apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
    )
    try:
        path = find_java()
        said = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30).stderr
    except NotFound:
        return Check(status, "Java", "not found", advice)
    except (OSError, subprocess.SubprocessError) as error:
        return Check(status, "Java", f"{path} does not start: {error}", advice)
    match = re.search(r'version "(\d+)[^"]*"', said)
    if match is None or int(match[1]) < _OLDEST_JAVA:
        return Check(status, "Java", f"{match[0] if match else 'no version'}, {path}", advice)
    return Check(OK, "Java", f"{match[0]}, {path}")


def _has(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


# -- ZooKeeper --------------------------------------------------------------------------------------------------


def zookeeper_and_storage(session: Session) -> Iterator[Check]:
    """One after the other: without a server nothing is known of a namespace, and without that nothing of storage."""
    try:
        if not (yield from _servers(session.address)):
            return
        with closing(session.metadata(timeout_s=10.0)) as metadata:
            namespace = yield from _namespace(session.address, metadata)
            if namespace is not None:
                yield from _clocks_and_latency(metadata)
                yield from _storage(namespace)
    except LedgerError as error:
        yield Check(FAIL, "ZooKeeper", f"nothing more can be looked at: {error.code}", error.message)


def _servers(address: str) -> Generator[Check, None, bool]:
    """Returns whether any listens."""
    from pyspark_ledger.zk_metadata.server_words import servers

    found = servers(address)
    for server in found:
        what = f"ZooKeeper {server.address}"
        if not server.listens:
            alone = len(found) == 1 or not any(each.listens for each in found)
            start = "start it, or name another one with --zookeeper or LEDGER_ZOOKEEPER"
            local = "; 'pyspark-ledger up' starts one for development" if alone else ""
            yield Check(FAIL if alone else WARN, what, "nothing listens there", start + local)
        elif not server.version:
            why = "it says nothing of itself (4lw.commands.whitelist has no srvr, or the port is TLS)"
            yield Check(OK, what, f"listens; {why}")
        else:
            latency = f", latency {server.latency} ms (least/average/most)" if server.latency else ""
            yield Check(OK, what, f"{server.version}, {server.mode}{latency}")
    if len(found) > 1 and len(found) % 2 == 0:
        yield Check(WARN, "ensemble", f"{len(found)} servers", "with one less as many may be lost")
    yield from _limits([server.address for server in found if server.listens])
    return any(server.listens for server in found)


def _limits(servers: Sequence[str]) -> Iterator[Check]:
    """Whether each server gives the session, and reads the requests, that this package counts on."""
    from pyspark_ledger.zk_metadata.server_words import taken
    from pyspark_ledger.zk_metadata.store import MAX_TRANSACTION_BYTES, SESSION_S

    tried = {server: taken(server, SESSION_S, MAX_TRANSACTION_BYTES) for server in servers}
    largest, are_well = size(MAX_TRANSACTION_BYTES), True
    for server, takes in tried.items():
        if takes is not None and takes.session_s != SESSION_S:
            are_well = False
            found = f"{server} makes a session of {duration(SESSION_S)} one of {duration(takes.session_s)}"
            advice = "let minSessionTimeout and maxSessionTimeout have it between them: owners are waited for so long"
            yield Check(WARN, "limits", found, advice)
        if takes is not None and not takes.large_request:
            are_well = False
            advice = "set jute.maxbuffer to its default of 1 MB, or more, on all servers: large commits fail there"
            yield Check(FAIL, "limits", f"{server} takes no request of {largest}", advice)
    if are_well and any(tried.values()):
        yield Check(OK, "limits", f"sessions of {duration(SESSION_S)}, and requests of {largest}")


def _namespace(address: str, metadata: ZooKeeperMetadata) -> Generator[Check, None, Namespace | None]:
    """Returns the namespace's record, if there is one of this format."""
    metadata.sync()
    found = metadata.read(NamespaceKey())
    if found is None:
        advice = "'pyspark-ledger topics create --storage …' makes it with its first topic; or is the chroot wrong?"
        yield Check(WARN, "namespace", f"none at {address} yet", advice)
        return None
    namespace = found.record
    if namespace.moving is not None:
        advice = f"'pyspark-ledger namespace move-storage --to {namespace.moving.to} --yes' finishes it"
        yield Check(WARN, "namespace", "its storage is being moved", advice)
    else:
        yield Check(OK, "namespace", address)
    return namespace


def _clocks_and_latency(metadata: ZooKeeperMetadata) -> Iterator[Check]:
    clock = SYSTEM_CLOCK
    reads = [_timed(lambda: metadata.read(NamespaceKey())) for _ in range(_READS)]
    writes = [_timed(lambda: metadata.now_ms(exact=True)) for _ in range(_READS)]
    read_s, write_s = median(reads), median(writes)
    slow = read_s > _SLOW_READ_S or write_s > _SLOW_WRITE_S
    advice = "is it far away, or its disk slow? A commit waits for one write; its dataLogDir wants a disk of its own"
    found = f"a read takes {duration(read_s)}, a write {duration(write_s)}, the middle ones of {_READS}"
    yield Check(WARN if slow else OK, "latency", found, advice if slow else "")
    before = clock.now_ms()
    theirs = metadata.now_ms(exact=True)
    ours = (before + clock.now_ms()) / 2
    skew_s = (ours - theirs) / 1000
    found = f"{duration(abs(skew_s))} {'ahead of' if skew_s > 0 else 'behind'} ZooKeeper's"
    slack_s = DEFAULT_LIMITS.clock_slack_ms / 1000
    if abs(skew_s) <= _SKEW_S:
        yield Check(OK, "clock", found)
    else:
        advice = f"run chrony or ntpd: publish times come from here, and {duration(slack_s)} off are not believed"
        yield Check(FAIL if abs(skew_s) > slack_s else WARN, "clock", found, advice)


def _timed(call: Callable[[], object]) -> float:
    before = SYSTEM_CLOCK.monotonic()
    call()
    return SYSTEM_CLOCK.monotonic() - before


# -- storage ----------------------------------------------------------------------------------------------------


def _storage(namespace: Namespace) -> Iterator[Check]:
    from pyspark_ledger.files.storage import open_storage

    where = namespace.storage.partition("?")[0]  # without the settings of an object store
    try:
        storage = open_storage(
            namespace.storage, marker_file(namespace.id) if namespace.marked else "", namespace.moves
        )
        storage.check_marked()
        name = f"doctor-{SYSTEM_CLOCK.new_id().hex()}"
        seconds = _timed(lambda: storage.prove_usable(name))
    except LedgerError as error:
        yield Check(FAIL, "storage", where, str(error))
        return
    slow = seconds > _SLOW_SYNC_S
    found = f"{where}: marked, and a file was written, synced, read and deleted in {duration(seconds)}"
    advice = "each commit waits for such a write: is the disk busy, or far away?"
    yield Check(WARN if slow else OK, "storage", found, advice if slow else "")
    folder = Path(where.removeprefix("file://"))
    if "://" not in where.removeprefix("file://") and folder.is_dir():
        yield _room(folder)


def _room(folder: Path) -> Check:
    usage = shutil.disk_usage(folder)
    inodes = os.statvfs(folder)
    share = usage.free / usage.total if usage.total else 1.0
    found = f"{size(usage.free)} of {size(usage.total)} free"
    scarce = usage.free < _SCARCE or (inodes.f_files and inodes.f_favail * 100 < inodes.f_files)
    advice = "make room, or let retention give up old records ('pyspark-ledger topics config set --retention-age')"
    return Check(WARN if scarce or share < 0.01 else OK, "disk", found, advice if scarce or share < 0.01 else "")
