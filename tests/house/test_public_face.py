"""What users see of the package: what they need, and nothing else."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys

import pyspark_ledger
from pyspark_ledger import LedgerClient, errors


def test_dir_and_help_show_the_public_names_and_no_others():
    assert dir(pyspark_ledger) == sorted([*pyspark_ledger.__all__, "__version__"])
    assert all(getattr(pyspark_ledger, name).__doc__ for name in pyspark_ledger.__all__)
    shown = pydoc.plain(pydoc.render_doc(pyspark_ledger))
    assert "LedgerClient" in shown
    assert "_HOMES" not in shown


def test_every_kind_of_error_is_exported():
    kinds = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert kinds <= set(pyspark_ledger.__all__)


def test_the_clients_constructor_takes_what_users_need():
    parameters = ["zookeeper", "storage", "profile", "user", "password", "options", "timeout_s"]
    assert list(inspect.signature(LedgerClient).parameters) == parameters


def test_importing_the_package_loads_nothing_but_itself():
    """Spark imports it in every session, only to look for data sources."""
    code = "import sys; before = set(sys.modules); import pyspark_ledger; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names] == ["pyspark_ledger"]
