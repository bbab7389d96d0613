"""Files that others have replaced, and that are kept for a while: a list, in a file that the head names.

A process with an older head still reads them, and so would a ZooKeeper that is restored from a backup. So gc deletes
them only at the end of the gc epoch after the one in which they were replaced, which lasts for the grace.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from pyspark_ledger.files.topicfiles import RowCodec, TopicFiles
from pyspark_ledger.metadata.records import FileRef, Going, Head


@cache
def _rows() -> RowCodec[Going]:
    return RowCodec(Going)


def fetch(files: TopicFiles, head: Head) -> list[Going]:
    return files.fetch_records(head.going, _rows()) if head.going is not None else []


def is_done(each: Going, head: Head) -> bool:
    """Whether gc has deleted it by now."""
    return each.epoch < head.gc_epoch - 1


def stage(files: TopicFiles, going: Iterable[Going], epoch: int) -> FileRef | None:
    rows = [_rows().dump(each) for each in going]
    return files.stage(rows, _rows().schema, epoch) if rows else None


def is_due(each: Going, head: Head) -> bool:
    """Whether nobody needs it any more when the present epoch ends."""
    return each.epoch < head.gc_epoch
