"""What all commands share: the options that say where and how, the session they make, and how errors end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pyspark_ledger.base.names import zookeeper_address
from pyspark_ledger.cli.output import ConsoleOutput, JsonOutput, Output, Row
from pyspark_ledger.errors import InvalidInput, LedgerError, Unavailable

if TYPE_CHECKING:
    from pyspark_ledger.client import LedgerClient
    from pyspark_ledger.log.namespace import OpenNamespace
    from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata


@dataclass
class Session:
    """The common options that the user gave, and the connections that commands open with them."""

    zookeeper: str | None = None
    password: str | None = None
    json: bool = False
    verbose: bool = False

    @property
    def output(self) -> Output:
        return JsonOutput() if self.json else ConsoleOutput()

    @property
    def digest(self) -> str | None:
        """The user and password for ZooKeeper."""
        return self.password or os.environ.get("LEDGER_ZOOKEEPER_PASSWORD")

    def metadata(self, timeout_s: float = 30.0) -> ZooKeeperMetadata:
        """ZooKeeper alone, for commands that need no files: pyarrow takes longer to import than they to answer."""
        from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata

        return ZooKeeperMetadata(self._listening(), timeout_s=timeout_s, password=self.digest)

    def client(self, storage: str | None = None) -> LedgerClient:
        from pyspark_ledger.client import LedgerClient

        return LedgerClient(self._listening(), storage, password=self.digest)

    def open_namespace(self) -> OpenNamespace:
        """For a command that works on all topics, and needs no client."""
        from pyspark_ledger.client import open_namespace

        return open_namespace(self._listening(), password=self.digest)

    def namespace(self, client: LedgerClient) -> OpenNamespace:
        """What is behind a client, for what it does not show to users."""
        from pyspark_ledger.client import namespace_of

        return namespace_of(client)

    @property
    def address(self) -> str:
        """ZooKeeper's connect string."""
        return zookeeper_address(self.zookeeper)

    def _listening(self) -> str:
        """A client waits half a minute for a server that is not there: fine for a query, too long for a person."""
        from pyspark_ledger.zk_metadata.session import is_listening

        address = self.address
        if not is_listening(address):
            raise Unavailable(
                f"nothing listens at {address}: 'pyspark-ledger up' starts a ZooKeeper for development at "
                "127.0.0.1:2181; another one is named by --zookeeper or LEDGER_ZOOKEEPER"
            )
        return address

    def listing(self, rows: Sequence[Row], empty: str) -> None:
        """Shows rows; one that has an error makes the exit status 1."""
        self.output.rows(rows, empty)
        if any("error" in row for row in rows):
            raise click.exceptions.Exit(1)

    def require_yes(self, yes: bool, what: str, affected: Sequence[Row]) -> None:
        """Without --yes, shows what would be lost and ends the command."""
        if not yes:
            self.output.rows(affected, "nothing")
            raise InvalidInput(f"this would {what}; nothing was changed: add --yes to do it", "LEDGER_NOT_CONFIRMED")


def _remember(context: click.Context, option: click.Parameter, value: Any) -> None:
    session = context.ensure_object(Session)
    if value:
        setattr(session, option.name or "", value)


# Of the root and of every command, so that they may stand before and after the command's name.
COMMON_OPTIONS: list[click.Parameter] = [
    click.Option(["--zookeeper"], metavar="HOSTS", expose_value=False, callback=_remember,
                 help="Connect string [LEDGER_ZOOKEEPER, else 127.0.0.1:2181]."),
    click.Option(["--password"], metavar="USER:PASSWORD", expose_value=False, callback=_remember,
                 help="For ZooKeeper's digest scheme [LEDGER_ZOOKEEPER_PASSWORD, which nobody can see in a process "
                      "list]."),
    click.Option(["--json"], is_flag=True, expose_value=False, callback=_remember, help="Answer in JSON."),
    click.Option(["--verbose"], is_flag=True, expose_value=False, callback=_remember, help="Show tracebacks."),
]  # fmt: skip


class Command(click.Command):
    """A command that takes the common options too."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.params = [*self.params, *COMMON_OPTIONS]


class Commands(click.Group):
    """Errors are one line and exit status 1; ``--verbose`` shows where they came from."""

    command_class = Command
    group_class = type

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if context.ensure_object(Session).verbose:
                raise
            raise click.ClickException(one_line(error)) from None


def one_line(error: Exception) -> str:
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    if isinstance(error, LedgerError):
        return text
    return f"[LEDGER_UNEXPECTED_ERROR] {type(error).__name__}: {text} (--verbose shows where)"
