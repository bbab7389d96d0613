"""What all commands share: the options that say where and how, the session they make, and how errors end."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from pyspark_ledger.base.roots import tell
from pyspark_ledger.base.setting_names import is_secret, known_name, variable
from pyspark_ledger.base.settings import Settings
from pyspark_ledger.cli.output import FORMATS, Output, printable
from pyspark_ledger.describe.rows import Row
from pyspark_ledger.errors import InvalidInput, LedgerError, Unavailable

if TYPE_CHECKING:
    from pyspark_ledger.client import LedgerClient
    from pyspark_ledger.log.namespace import OpenNamespace
    from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata


@dataclass
class Session:
    """The common options that the user gave, and the connections that commands open with them."""

    zookeeper: str | None = None
    profile: str | None = None
    user: str | None = None
    password: str | None = None
    set: tuple[str, ...] = ()  # NAME=VALUE
    format: str = ""  # of what is said: one of FORMATS
    verbose: bool = False

    @cached_property
    def output(self) -> Output:
        return FORMATS[self.format or "table"]()

    @property
    def for_people(self) -> bool:
        """Whether what is said is read by people, and not by a program."""
        return self.format in ("", "table")

    @cached_property
    def settings(self) -> Settings:
        """Where the namespace is and who we are: as the options say, and where they do not as the environment and the
        profile do."""
        given = {
            "zookeeper": self.zookeeper,
            "profile": self.profile,
            "zookeeper.user": self.user,
            "zookeeper.password": self.password,
        }
        for text in self.set:
            name, value = _setting(text)
            if given.get(name) is not None:
                raise InvalidInput(f"'{name}' is given twice", "LEDGER_INVALID_OPTION")
            given[name] = value
        return Settings.of(given).here()

    def metadata(self, timeout_s: float = 30.0) -> ZooKeeperMetadata:
        """ZooKeeper alone, for commands that need no files: pyarrow takes longer to import than they to answer."""
        from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata

        return ZooKeeperMetadata(self._listening(), timeout_s=timeout_s)

    def client(self, storage: str | None = None) -> LedgerClient:
        from pyspark_ledger.client import client_of, open_namespace

        return client_of(open_namespace(self._listening(), storage))

    def open_namespace(self) -> OpenNamespace:
        """For a command that works on all topics, and needs no client."""
        from pyspark_ledger.client import open_namespace

        return open_namespace(self._listening())

    def namespace(self, client: LedgerClient) -> OpenNamespace:
        """What is behind a client, for what it does not show to users."""
        from pyspark_ledger.client import namespace_of

        return namespace_of(client)

    @property
    def address(self) -> str:
        """ZooKeeper's connect string."""
        return self.settings.zookeeper

    def open_other(
        self, profile: str | None, zookeeper: str | None, storage: str | None, password: str | None
    ) -> OpenNamespace:
        """Another namespace, beside the one that the common options name: as a profile says, or like this one but for
        what is given."""
        from pyspark_ledger.client import open_namespace

        given = {} if profile else {name: text for name, text in self.settings.given if name != "storage"}
        if password:
            given.pop("zookeeper.user", None)
        more = {"profile": profile, "zookeeper": zookeeper, "zookeeper.password": password}
        given |= {name: text for name, text in more.items() if text}
        return open_namespace(self._listening(Settings.of(given)), storage)

    def _listening(self, other: Settings | None = None) -> Settings:
        """A client waits half a minute for a server that is not there: fine for a query, too long for a person."""
        from pyspark_ledger.zk_metadata.session import is_listening

        asked = other or self.settings
        address = asked.zookeeper
        if not is_listening(address):
            raise Unavailable(
                f"nothing listens at {address}: 'pyspark-ledger up' starts a ZooKeeper for development at "
                "127.0.0.1:2181; another one is named by --zookeeper or LEDGER_ZOOKEEPER"
            )
        if other is None:
            tell(asked)
        return asked

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
    session, name = context.ensure_object(Session), option.name or ""
    if value:
        setattr(session, name, (*getattr(session, name), *value) if isinstance(value, tuple) else value)


def _setting(text: str) -> tuple[str, str]:
    """NAME=VALUE, where the value is no secret."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput(
            f"'--set {text}' has no '=': write NAME=VALUE, as zookeeper.tls.ca=ca.pem", "LEDGER_INVALID_OPTION"
        )
    name = known_name(name.strip(), "option '--set'")
    if is_secret(name):
        raise InvalidInput(
            f"everybody on this machine sees the arguments of a process: give '{name}' as {variable(name)} or in a "
            "profile",
            "LEDGER_INVALID_OPTION",
        )
    return name, value


def _remember_format(context: click.Context, option: click.Parameter, value: Any) -> None:
    session, asked = context.ensure_object(Session), "json" if value is True else value
    if not asked:
        return
    if session.format not in ("", asked):
        raise click.UsageError(f"--output {session.format} and --output {asked} (--json) are both given: give one")
    session.format = asked


# Of the root and of every command, so that they may stand before and after the command's name.
COMMON_OPTIONS: list[click.Parameter] = [
    click.Option(["--zookeeper"], metavar="HOSTS", expose_value=False, callback=_remember,
                 help="Connect string [LEDGER_ZOOKEEPER, else 127.0.0.1:2181]."),
    click.Option(["--profile"], metavar="NAME", expose_value=False, callback=_remember,
                 help="Of the file with profiles, for all that is not given otherwise [LEDGER_PROFILE; the file is "
                      "LEDGER_CONFIG]."),
    click.Option(["--user"], metavar="USER", expose_value=False, callback=_remember,
                 help="For ZooKeeper's digest scheme [LEDGER_ZOOKEEPER_USER]."),
    click.Option(["--password"], metavar="PASSWORD", expose_value=False, callback=_remember,
                 help="For ZooKeeper's digest scheme [LEDGER_ZOOKEEPER_PASSWORD, which nobody can see in a process "
                      "list]."),
    click.Option(["--set"], metavar="NAME=VALUE", multiple=True, expose_value=False, callback=_remember,
                 help="Any other setting of ZooKeeper or storage, as zookeeper.tls.ca=ca.pem [LEDGER_ZOOKEEPER_TLS_CA "
                      "and so on]."),
    click.Option(["--output", "-o", "output_format"], type=click.Choice([*FORMATS]), expose_value=False,
                 callback=_remember_format, help="How to answer; table is the default."),
    click.Option(["--json"], is_flag=True, expose_value=False, callback=_remember_format,
                 help="The same as --output json."),
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
    text = printable("; ".join(line.strip() for line in str(error).splitlines() if line.strip()))
    if isinstance(error, LedgerError):
        return text
    return f"[LEDGER_UNEXPECTED_ERROR] {type(error).__name__}: {text} (--verbose shows where)"


def log_to_stderr() -> None:
    """As a service does: there is nobody else to read it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    package = logging.getLogger("pyspark_ledger")
    package.addHandler(handler)
    package.setLevel(logging.INFO)
