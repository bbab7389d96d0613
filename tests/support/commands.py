"""The command ``pyspark-ledger`` in this process, with nothing behind it: no server, no home folder that matters."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from unittest.mock import patch

from click.testing import CliRunner, Result

from pyspark_ledger.cli import main
from pyspark_ledger.cli.base import Session
from pyspark_ledger.errors import LedgerError, Unavailable
from pyspark_ledger.local.home import LocalHome


def run_command(arguments: list[str]) -> Result:
    """What the command line says to these arguments. It comes as far as looking for a server, and finds none."""
    with (
        patch.object(Session, "_listening", _nobody),
        patch.object(LocalHome, "start", _nobody),
        patch.dict(os.environ, {"LEDGER_HOME": _empty_home()}),
    ):
        result = CliRunner().invoke(main, arguments, prog_name="pyspark-ledger")
    if "--verbose" in arguments and isinstance(result.exception, LedgerError):  # shows where it came from, as asked
        return result
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 1, 2), result.exit_code
    assert "LEDGER_UNEXPECTED_ERROR" not in result.output, result.output
    assert "Traceback" not in result.output, result.output
    return result


def _nobody(*_: object) -> str:
    raise Unavailable("nothing listens there")


@cache
def _empty_home() -> str:
    return tempfile.mkdtemp(prefix="ledger-home-")
