"""Files that nothing names, files that ZooKeeper cannot know of yet, and those that are left for a recovery."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyspark_ledger.base import names
from pyspark_ledger.errors import CorruptData, DataLoss
from pyspark_ledger.lifecycle.findings import Finding, finding
from pyspark_ledger.lifecycle.verify_files import is_in
from pyspark_ledger.log import snapshots
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.records import Head


@dataclass(slots=True)
class Orphans:
    """Of files that were staged in the present gc epoch, or the one before, some may still be named."""

    files: int = 0
    bytes: int = 0
    young: int = 0
    example: str = ""

    def findings(self) -> Iterator[Finding]:
        if self.files:
            may_be = f", {self.young} of them since the last gc epoch began" if self.young else ""
            what = (
                f"{self.files} files with {self.bytes} bytes are named by nothing{may_be}: others have replaced them, "
                "writers that failed left them behind, or a commit to come will name them"
            )
            yield finding("orphan", what, file=self.example)


def later_files(log: Log, head: Head) -> Iterator[Finding]:
    """Files of a later gc epoch than the head's: of a history that a rollback of ZooKeeper has ended."""
    folder = names.topic_folder(log.topic.uuid)
    for epoch in sorted(filter(None, map(names.parse_epoch_folder, log.storage.folders(folder)))):
        if epoch > head.gc_epoch:
            for path in log.storage.list(names.epoch_folder(log.topic.uuid, epoch)):
                where = log.storage.where(path)
                what = f"{where} is of gc epoch {epoch}, and that is {head.gc_epoch} now: ZooKeeper was rolled back"
                yield finding("rollback", what, file=where)
                break


def of_snapshots(log: Log, look: Callable[[], View]) -> Iterator[Finding]:
    """Snapshots of the log, from which a topic can be made again: whether one can be read, and the newest names nothing
    that the topic does not have. They are listed before the view is read: what comes later is no sign of a rollback."""
    there = snapshots.listed(log.storage, log.topic.uuid)
    view = look()
    try:
        snapshots.check_not_behind(log, view, there, note=False)
    except DataLoss as error:
        yield finding("rollback", error.message, file=log.storage.where(there[-1].path))
    except CorruptData:
        pass  # told where the log is looked at
    if there and not any(_can_be_read(log, each) for each in reversed(there)):
        where, what = log.storage.where(there[-1].path), f"none of {len(there)} snapshots for a recovery can be read"
        yield finding(
            "damage", what, file=where, advice="nothing is lost: whoever seals the next ledger leaves another"
        )


def _can_be_read(log: Log, listed: snapshots.Listed) -> bool:
    """One that was being written when a process died cannot, and is not needed as long as there is another."""
    try:
        snapshots.read(log.storage, listed)
    except CorruptData:
        return False
    return True


def orphans(log: Log, head: Head, named: array[int]) -> Orphans:
    """``head`` is the one that was there before anything was looked at: what was staged since is not counted."""
    found = Orphans()
    for path in log.storage.list(names.topic_folder(log.topic.uuid)):
        staged = names.parse_staged_file(log.topic.uuid, path)
        if staged is None or staged[0] > head.gc_epoch or is_in(named, staged[1]):
            continue
        try:
            size = log.storage.size(path)
        except CorruptData:
            continue  # gc was faster
        found.files += 1
        found.bytes += size
        found.young += staged[0] >= head.gc_epoch - 1
        found.example = found.example or log.storage.where(path)
    return found
