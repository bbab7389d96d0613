"""``pyspark-ledger options``: what ``format("ledger")`` takes."""

from __future__ import annotations

import click

from pyspark_ledger.cli.base import Command, Session
from pyspark_ledger.errors import InvalidInput


@click.command(cls=Command)
@click.argument("name", required=False)
@click.pass_obj
def options(session: Session, name: str | None) -> None:
    """The options of format("ledger") in Spark, with their defaults; with NAME, what that one does."""
    try:
        from pyspark_ledger.datasource.option_table import TABLES
        from pyspark_ledger.datasource.options import check_names
    except ModuleNotFoundError:
        raise InvalidInput(
            "this needs the extra 'spark': pip install 'pyspark-ledger[spark]'", "LEDGER_NOT_INSTALLED"
        ) from None
    rows = [{**option.plain(), "for": title.lower()} for title, table in TABLES.items() for option in table]
    if name is None:
        session.listing([{key: row[key] for key in ("option", "for", "type", "default")} for row in rows], "")
        return
    check_names({name: ""})  # names the nearest one, if there is none of this name
    found = [row for row in rows if name.lower() in row["option"].lower().split(", ")]
    if not found:
        raise InvalidInput(f"'{name}' is an option of Spark itself: its documentation has it", "LEDGER_UNKNOWN_OPTION")
    session.output.facts(found[0])
