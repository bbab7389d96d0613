"""What the console is told when it is started. What makes no sense together is refused before it listens."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pyspark_ledger.errors import InvalidInput, disk_errors

_SHORTEST_TOKEN = 16
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Settings:
    host: str = "127.0.0.1"
    port: int = 9467
    host_names: tuple[str, ...] = ()  # by which it is reached, beside those of this machine
    allow_changes: bool = False
    allow_test_records: bool = False
    token: str = field(default="", repr=False)  # whoever knows it may change something
    user_header: str = ""  # in which a reverse proxy says who somebody is
    audit_log: Path | None = None
    masked: frozenset[str] = frozenset()  # columns whose values nobody sees
    show_records: bool = True
    checkpoints: tuple[Path, ...] = ()  # of queries, or folders of such
    look_every_s: float = 2.0

    @property
    def is_local(self) -> bool:
        return self.host in LOOPBACK

    def check(self) -> None:
        """:raises InvalidInput: options that do not go together."""
        if self.allow_changes and not (self.token or self.user_header):
            raise _wrong(
                "--allow-changes needs --token-file (or LEDGER_CONSOLE_TOKEN), or --user-header NAME behind a reverse "
                "proxy: somebody has to be answerable for a change"
            )
        if self.allow_test_records and not self.allow_changes:
            raise _wrong("--allow-test-records needs --allow-changes")
        if self.allow_test_records and not self.show_records:
            raise _wrong("--allow-test-records and --no-records contradict each other")
        if self.token and len(self.token) < _SHORTEST_TOKEN:
            raise _wrong(
                f"the token has {len(self.token)} characters: give it {_SHORTEST_TOKEN} or more, as "
                "'openssl rand -hex 24' makes them"
            )
        if self.token and not (self.token.isascii() and self.token.isprintable()):
            raise _wrong("the token has characters that no HTTP header can have: use letters and digits")
        for folder in self.checkpoints:
            if not folder.is_dir():
                raise _wrong(f"--checkpoints {folder}: there is no such folder")


def read_token(path: Path) -> str:
    """The first line of a file."""
    with disk_errors("read", path, otherwise="name a file with the token in --token-file"):
        text = path.read_text(encoding="utf-8", errors="replace")
    token = text.partition("\n")[0].strip()
    if not token:
        raise _wrong(f"--token-file {path}: its first line is empty, and has to be the token")
    return token


def _wrong(message: str) -> InvalidInput:
    return InvalidInput(message, "LEDGER_CONSOLE_OPTIONS")
