"""The disk with the storage: it can be full, and a file on it can be damaged.

As root on Linux it is a small tmpfs, so that a full disk is a real one. Elsewhere the folders of the storage are made
read-only for a while, which fails every write in the same places.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

MOUNTED = "LEDGER_SOAK_MOUNTS"  # set in a process that has mounts of its own, which end with it


def with_own_mounts(arguments: list[str]) -> None:
    """Starts this command again in a mount namespace of its own, if that can be; then a mount cannot be left behind."""
    if MOUNTED in os.environ or not sys.platform.startswith("linux") or os.geteuid() != 0:
        return
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "--mount", "true"], capture_output=True).returncode != 0:
        return
    os.environ[MOUNTED] = "1"
    os.execv(unshare, [unshare, "--mount", "--propagation", "private", sys.executable, "-m", "tests.soak", *arguments])


@dataclass
class Disk:
    folder: Path
    megabytes: int
    is_mounted: bool = False
    damaged: list[str] = field(default_factory=list)  # names of all files that ever were
    _whole: dict[Path, bytes] = field(default_factory=dict)

    def mount(self) -> None:
        self.folder.mkdir(parents=True)
        if MOUNTED in os.environ:
            command = ["mount", "-t", "tmpfs", "-o", f"size={self.megabytes}m", "tmpfs", str(self.folder)]
            self.is_mounted = subprocess.run(command, capture_output=True).returncode == 0

    def unmount(self) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True)

    @property
    def storage(self) -> Path:
        return self.folder / "ledger"

    # -- a full disk -------------------------------------------------------------------------------------------------

    def fill(self, leave: int) -> None:
        """All but so many bytes."""
        if not self.is_mounted:
            for folder in self._folders():
                folder.chmod(0o555)
            return
        state = os.statvfs(self.folder)
        size = state.f_bavail * state.f_frsize - leave
        with (self.folder / "filler").open("wb") as file, suppress(OSError):  # others write meanwhile
            os.posix_fallocate(file.fileno(), 0, max(1, size))

    def free(self) -> None:
        if not self.is_mounted:
            for folder in self._folders():
                folder.chmod(0o755)
        (self.folder / "filler").unlink(missing_ok=True)

    def _folders(self) -> list[Path]:
        return [self.storage, *(path for path in self.storage.rglob("*") if path.is_dir())]

    # -- a damaged file ----------------------------------------------------------------------------------------------

    def damage(self, file: Path, chance: random.Random) -> str:
        """Cuts it off somewhere, or flips one bit. Who has it open still reads the old one."""
        whole = file.read_bytes()
        self._whole[file] = whole
        self.damaged.append(file.name)
        place = chance.randrange(len(whole))
        cut = chance.random() < 0.4
        bad = bytearray(whole[:place] if cut else whole)
        if not cut:
            bad[place] ^= 1 << chance.randrange(8)
        _put(file, bytes(bad))
        return f"cut off at byte {place} of {len(whole)}" if cut else f"a bit flipped in byte {place} of {len(whole)}"

    def restore(self, file: Path) -> None:
        whole = self._whole.pop(file)
        if file.exists():  # else gc has deleted it
            _put(file, whole)

    def restore_all(self) -> None:
        for file in list(self._whole):
            self.restore(file)


def _put(file: Path, content: bytes) -> None:
    draft = file.parent.parent.parent / "draft"  # beside the topics' folders: nobody looks at it
    draft.write_bytes(content)
    draft.replace(file)
