"""For tests of what deletes files: which are named, and rivals that act in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from pyspark_ledger.base.position import EARLIEST
from pyspark_ledger.log import generations
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import DedupKey
from pyspark_ledger.metadata.records import FileRef
from pyspark_ledger.testing.memory import Crash
from tests.support.worlds import World


def named(world: World) -> set[str]:
    """Every file that the topic's records name, directly or through another file, as far as it can still be read."""
    log = world.log()
    head = log.view().head
    found: list[FileRef | None] = [*head.index, head.replaced, head.going, head.lost]
    dedup = log.metadata.read(DedupKey(head.uuid)).record
    found += [dedup.producers_file, dedup.evicted_file, *log.index(log.view(), planned=True).references(0)]
    for commit in log.commits_from(log.view(), EARLIEST, planned=True):
        found += [commit.entries_file, commit.highest_file, *(entry.file for entry in log.entries(commit))]
    for generation in generations.kept(log.files, head):
        found += [generation.manifest, *generations.files_of(log.files, generation.manifest)]
    return {f"{head.uuid}/{file.epoch:08x}/{file.uid.hex()}.arrow" for file in found if file is not None}


def act_before(log: Log, step: int, act) -> Callable[[], bool]:
    """Lets somebody act before one of a process's requests, counted from 1. Returns whether that was."""
    left = step

    def counted(real):
        def call(*arguments, **options):
            nonlocal left
            left -= 1
            if left == 0:
                act()
            return real(*arguments, **options)

        return call

    for name in ("read", "read_many", "children", "sync", "transact"):
        setattr(log.metadata, name, counted(getattr(log.metadata, name)))
    return lambda: left <= 0


@contextmanager
def acting_before_files(world: World, step: int, act: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    """Lets somebody act before one of the looks at a file, counted from 1, whoever looks. Gives whether that was."""
    left, storage = step, world.storage

    def counted(real):
        def call(*arguments):
            nonlocal left
            left -= 1
            if left == 0:
                act()
            return real(*arguments)

        return call

    with (
        mock.patch.object(storage, "read", counted(storage.read)),
        mock.patch.object(storage, "size", counted(storage.size)),
        mock.patch.object(storage, "map", counted(storage.map)),
    ):
        yield lambda: left <= 0


@contextmanager
def crash_after_deleting(world: World, files: int) -> Iterator[None]:
    real, left = world.storage.delete, files

    def delete(path: str) -> None:
        nonlocal left
        if not left:
            raise Crash("while deleting")
        left -= 1
        real(path)

    with mock.patch.object(world.storage, "delete", delete):
        yield
