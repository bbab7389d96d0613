"""Values that are too long for their node, in files that the node refers to.

A file is written for one version of its node, and its name contains that version. Only the change that creates this
version can refer to it. So once the node has that version or a later one, a file that it does not refer to is garbage
for good, and whoever writes the next file deletes it. No gc epochs are needed here.
"""

from __future__ import annotations

import logging

import xxhash

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import Clock
from pyspark_ledger.errors import CorruptData, Unavailable
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.metadata.records import FileRef

logger = logging.getLogger(__name__)


class Blobs:
    """The long values of one node."""

    def __init__(self, storage: Storage, folder: str, clock: Clock) -> None:
        self._storage, self._folder, self._clock = storage, folder, clock

    def stage(self, data: bytes, version: int) -> FileRef:
        """Durable when it returns. ``version`` is the one that the node will have if it names this file."""
        uid = self._clock.new_id()
        self._storage.write(names.versioned_file(self._folder, version, uid), data)
        return FileRef(version, uid, len(data), len(data), xxhash.xxh3_64_intdigest(data))

    def fetch(self, file: FileRef) -> bytes:
        path = names.versioned_file(self._folder, file.epoch, file.uid)
        data = bytes(self._storage.read_whole(path, file.length).to_pybytes())
        if len(data) != file.length or xxhash.xxh3_64_intdigest(data) != file.tail_hash:
            raise CorruptData(f"{self._storage.where(path)} is damaged: it fails its checksum; restore it from a copy")
        return data

    def sweep(self, version: int, named: FileRef | None, before: FileRef | None) -> None:
        """Deletes the files of this and earlier versions, except the one that the node refers to at this version; and
        the one that it referred to ``before``, whatever its version: an upgrade makes a new node, whose versions begin
        at 0, for the same file. The change of the node is done by now, so a disk that fails here is no reason to tell
        its caller otherwise (I14)."""
        try:
            for path in list(self._storage.list(self._folder)):
                parsed = names.parse_versioned_file(path)
                if parsed is None or (named is not None and parsed[1] == named.uid):
                    continue
                if parsed[0] <= version or (before is not None and parsed[1] == before.uid):
                    self._storage.delete(path)
        except Unavailable as error:
            logger.warning("old files in %s are left to the next change: %s", self._folder, error)
