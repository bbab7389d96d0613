"""``pyspark-ledger up``, ``down`` and ``status``: a ZooKeeper and storage on this machine, for development."""

from __future__ import annotations

import contextlib
import os
from contextlib import closing
from typing import Any

import click

from pyspark_ledger.base.settings import DEFAULT_ZOOKEEPER, Settings
from pyspark_ledger.cli.base import Command, Session
from pyspark_ledger.describe.rows import Row
from pyspark_ledger.errors import InvalidInput, LedgerError, Unavailable
from pyspark_ledger.local.home import LocalHome
from pyspark_ledger.metadata.port import NamespaceKey, TopicsKey

_UPGRADE_FIRST = ("LEDGER_OLDER_FORMAT", "LEDGER_UPGRADING")
_DEFAULT_PORT = int(DEFAULT_ZOOKEEPER.rpartition(":")[2])


@click.command(cls=Command)
@click.option("--port", type=click.IntRange(1, 65_535), help=f"Of 127.0.0.1.  [default: {_DEFAULT_PORT}]")
@click.option("--storage", help="Where files go.  [default: a folder in LEDGER_HOME]")
@click.option("--no-maintain", is_flag=True, help="Without 'pyspark-ledger maintain' beside it.")
@click.pass_obj
def up(session: Session, port: int | None, storage: str | None, no_maintain: bool) -> None:
    """Start a ZooKeeper on this machine, in the background, and maintenance beside it, and say where files go.

    After that format("ledger") and LedgerClient() need no options but the topic. Everything is kept in LEDGER_HOME,
    else ~/.pyspark-ledger. If it is running already, nothing changes."""
    home = LocalHome()
    there = home.pid is not None
    if not there:
        home.stop_maintainer()  # of a server that was killed: the next one may listen elsewhere
        home.start(port or _DEFAULT_PORT)
    elif port not in (None, home.port):
        raise InvalidInput(
            f"it is running at {home.address}: 'pyspark-ledger down' stops it, then it can listen elsewhere",
            "LEDGER_ZOOKEEPER_RUNNING",
        )
    try:
        root = _storage(home, storage)
        if not no_maintain and home.maintainer_pid is None:
            home.start_maintainer()
    except BaseException as error:
        if isinstance(error, LedgerError) and error.code in _UPGRADE_FIRST:  # which needs a ZooKeeper that runs
            raise type(error)(f"ZooKeeper runs at {home.address}, but {error.message}", error.code) from None
        if not there:
            home.stop()
        raise
    facts = {"zookeeper": home.address, "storage": root, "pid": home.pid, "started": not there}
    facts["maintainer_pid"] = home.maintainer_pid
    session.output.done(
        f"ZooKeeper {'was running already' if there else 'runs'} at {home.address} (process {home.pid}), "
        f"files are in {root}",
        facts,
    )
    found = os.environ.get("LEDGER_ZOOKEEPER") or DEFAULT_ZOOKEEPER
    if found != home.address:
        session.output.note(f"to use it: export LEDGER_ZOOKEEPER={home.address} (without, {found} is used)")


def _storage(home: LocalHome, asked: str | None) -> str:
    """Recorded in the namespace by whoever comes first."""
    from pyspark_ledger.client import open_namespace

    here = Settings.of({"zookeeper": home.address})  # it asks for no login, whatever the environment has for others
    with closing(open_namespace(here)) as namespace:
        if namespace.metadata.read(NamespaceKey()) is None:
            asked = asked or os.environ.get("LEDGER_STORAGE") or str(home.storage)
    with closing(open_namespace(here, asked)) as namespace:
        home.note_marker(namespace.storage.uri, namespace.storage.marker)
        return namespace.storage.uri


@click.command(cls=Command)
@click.option("--purge", is_flag=True, help="Delete its data too: every topic and every file.")
@click.option("--yes", is_flag=True, help="Do it.")
@click.pass_obj
def down(session: Session, purge: bool, yes: bool) -> None:
    """Stop the ZooKeeper of this machine. Its data stay."""
    home = LocalHome()
    contents = home.contents()
    if purge:
        rows = [{"path": path, "bytes": count} for path, count in contents.items()]
        session.require_yes(yes, f"delete everything in {home.folder}", rows)
    stopped = home.stop()
    if purge:
        _remove_marker(session, home)
        home.purge()
    did = "stopped" if stopped else "was not running"
    kept = f"deleted {', '.join(contents) or 'nothing'}" if purge else f"data stay in {home.folder}"
    session.output.done(f"ZooKeeper {did}; {kept}", {"stopped": stopped, "deleted": list(contents) if purge else []})


def _remove_marker(session: Session, home: LocalHome) -> None:
    """A storage root outside of the home stays. Without the marker the next 'up' may use it again."""
    if home.marker is not None:
        from pyspark_ledger.files.storage import open_storage

        root, name = home.marker
        try:
            open_storage(root).delete(name)
        except LedgerError as error:
            session.output.note(f"the marker {name} stays in {root}: {error}")


@click.command(cls=Command)
@click.pass_obj
def status(session: Session) -> None:
    """Tell whether the ZooKeeper of this machine runs. Exit status 1 if not."""
    home = LocalHome()
    facts: dict[str, Any] = {"running": False, "pid": home.pid, "folder": str(home.folder)}
    facts["maintainer_pid"] = home.maintainer_pid
    if home.answers:
        with contextlib.suppress(Unavailable):  # it ended while we looked
            facts |= {"running": True, **_namespace(home.address)}
    session.output.facts(facts)
    if not facts["running"]:
        raise click.exceptions.Exit(1)


def _namespace(address: str) -> Row:
    from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata

    with contextlib.closing(ZooKeeperMetadata(address, timeout_s=3.0)) as metadata:
        try:
            namespace = metadata.read(NamespaceKey())
        except InvalidInput as error:  # of another version; the server runs all the same
            return {"zookeeper": address, "error": str(error)}
        storage = namespace.record.storage if namespace else None
        return {"zookeeper": address, "storage": storage, "topics": len(metadata.children(TopicsKey()))}
