"""The whole tree of commands."""

from __future__ import annotations

import click

from pyspark_ledger.cli.access import access
from pyspark_ledger.cli.base import COMMON_OPTIONS, Commands
from pyspark_ledger.cli.completion import completion
from pyspark_ledger.cli.console import console
from pyspark_ledger.cli.cursors import cursors
from pyspark_ledger.cli.deadletters import deadletters
from pyspark_ledger.cli.doctor import doctor
from pyspark_ledger.cli.exporter import exporter
from pyspark_ledger.cli.local import down, status, up
from pyspark_ledger.cli.maintain import maintain
from pyspark_ledger.cli.namespace import namespace
from pyspark_ledger.cli.options import options
from pyspark_ledger.cli.producers import producers
from pyspark_ledger.cli.rebuild import rebuild, restore
from pyspark_ledger.cli.repair import repair_namespace, repair_topic
from pyspark_ledger.cli.tokens import tokens
from pyspark_ledger.cli.topics import topics


@click.group(cls=Commands, params=COMMON_OPTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pyspark-ledger")
def main() -> None:
    """Ledgers for Spark: a durable, totally ordered, exactly-once log with no brokers."""


topics.add_command(repair_topic, "repair")
for name, recovery in (("rebuild", rebuild), ("restore", restore), ("repair", repair_namespace)):
    namespace.add_command(recovery, name)
_COMMANDS = (
    up, down, status, doctor, topics, cursors, producers, tokens, deadletters, namespace, access, maintain, exporter,
    console, options, completion,
)  # fmt: skip
for command in _COMMANDS:
    main.add_command(command)
