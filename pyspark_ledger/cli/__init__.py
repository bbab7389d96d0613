"""The command ``pyspark-ledger``. Needs the extra ``cli``."""

from __future__ import annotations

try:
    import click as _click  # noqa: F401
except ImportError:
    raise SystemExit("pyspark-ledger needs the extra 'cli': pip install 'pyspark-ledger[cli]'") from None

from pyspark_ledger.cli.app import main

__all__ = ["main"]
