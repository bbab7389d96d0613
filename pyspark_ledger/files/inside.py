"""Paths that stay inside the storage root.

Names of files are put together from records: the id of a topic, the name of a group. Whoever can write to ZooKeeper or
to the folder could otherwise have a process of ours, which may be allowed more, write or delete somewhere else.
"""

from __future__ import annotations

import os
import stat

from pyspark_ledger.errors import CorruptData, disk_errors

_CODE = "LEDGER_OUTSIDE_STORAGE"


def check_name(path: str, root: str) -> None:
    """CorruptData if a relative path would lead out of the root, in whatever storage that is."""
    if path.startswith("/") or "\0" in path or (".." in path and ".." in path.split("/")):
        raise CorruptData(
            f"a record names {path!r}, which is outside of the storage root {root}: it is damaged, or somebody has "
            "changed it. Restore what names it from a copy",
            _CODE,
        )


class Fence:
    """Around a root on a disk: no folder below it may be a link. Each folder is looked at once in a process, before
    anything in it is read, written or deleted. The root itself may be a link, and what is above it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._seen = {""}

    def check_file(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if folder not in self._seen:
            self.check_folder(folder)
        check_name(path, self._root)

    def check_folder(self, folder: str) -> None:
        if folder in self._seen:
            return
        check_name(folder, self._root)
        above = folder.rpartition("/")[0]
        self.check_folder(above)
        if self._is_there(f"{self._root}/{folder}"):
            self._seen.add(folder)

    def forget(self) -> None:
        """Folders were removed: who makes them again is not known."""
        self._seen = {""}

    def _is_there(self, path: str) -> bool:
        with disk_errors("look for", path):
            try:
                mode = os.lstat(path).st_mode
            except (FileNotFoundError, NotADirectoryError):
                return False
        if stat.S_ISLNK(mode):
            raise CorruptData(
                f"{path} is a link, which may lead out of the storage root {self._root}: nothing is read, written or "
                "deleted through it. Put a folder in its place, with what it should have, and see who made the link",
                _CODE,
            )
        return True
