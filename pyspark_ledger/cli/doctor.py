"""``pyspark-ledger doctor``: is everything here that is needed, and does it work?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from pyspark_ledger.cli.base import Command, Session
from pyspark_ledger.cli.checks import FAIL, OK, Check, all_checks


@click.command(cls=Command)
@click.pass_obj
def doctor(session: Session) -> None:
    """Look at Python, Java, Spark's packages, ZooKeeper, the clocks and the storage, and say what to do.

    Changes nothing that stays. Works also if half of it is missing. Exit status 1 if something fails."""
    checks = list(all_checks(session))
    rows = [asdict(check) for check in checks]
    if session.for_people:
        session.output.done("\n".join(line for check in checks for line in _lines(check, checks)), {})
    else:
        session.output.rows(rows, "")
    if any(check.status == FAIL for check in checks):
        raise click.exceptions.Exit(1)


def _lines(check: Check, checks: Sequence[Check]) -> list[str]:
    width = max(len(each.what) for each in checks)
    line = f"{check.status:<4}  {check.what:<{width}}  {check.found}"
    return [line] if check.status == OK or not check.advice else [line, f"      {'':<{width}}  -> {check.advice}"]
