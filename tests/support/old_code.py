"""Runs the code that wrote format 1, as it was: golden files show what it stored, this shows what it does.

Its wheel is part of the golden files. Python imports from it as it is, so nothing has to be installed, and the code
under test stays out of the way: it is another process that runs the old one.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import REPOSITORY

[WHEEL] = (REPOSITORY / "tests" / "golden" / "format1").glob("pyspark_ledger-*.whl")

# The check comes first: a script that ran with today's code would prove nothing, and nobody would notice.
_CHECK = """
import sys
import pyspark_ledger
wheel, name, *sys.argv[1:] = sys.argv[1:]
if not pyspark_ledger.__file__.startswith(wheel):
    sys.exit(f"not the old code: {pyspark_ledger.__file__}")
"""
_START = _CHECK + 'exec(compile(sys.stdin.read(), name, "exec"))'
_START_FILE = _CHECK + 'exec(compile(open(name).read(), name, "exec"))'
_ENVIRONMENT = {"PYTHONPATH": str(WHEEL)}


def run_old(script: str | Path, *arguments: str, timeout_s: float = 120.0) -> Any:
    """What a script prints as JSON when it is run with the old code; it finds the arguments in ``sys.argv[1:]``. A
    script is its text, or the path of a file."""
    text, name = (
        (script.read_text(), str(script)) if isinstance(script, Path) else (script, "<script for the old code>")
    )
    # -P: else the working directory, with today's code, would be searched before the wheel.
    done = subprocess.run(
        [sys.executable, "-P", "-c", _START, str(WHEEL), name, *arguments],
        input=text, capture_output=True, text=True, timeout=timeout_s, env=os.environ | _ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, f"the old code failed with {done.returncode}:\n{done.stderr}"
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise AssertionError(f"the old code printed no JSON:\n{done.stdout}\n{done.stderr}") from None


def call_old(function: Callable[..., Any], *arguments: str, timeout_s: float = 120.0) -> Any:
    """What a function returns there. Only its source goes to the other process, so it imports what it needs itself;
    what it returns is JSON."""
    source = textwrap.dedent(inspect.getsource(function))
    ending = f"import json, sys\nprint(json.dumps({function.__name__}(*sys.argv[1:])))\n"
    return run_old(f"{source}\n{ending}", *arguments, timeout_s=timeout_s)


class OldProcess:
    """A process of the old code that goes on living: see ``old_straggler.py`` for what it can be asked to do."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("old_straggler.py")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START_FILE, str(WHEEL), str(script)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=os.environ | _ENVIRONMENT,
        )  # fmt: skip

    def ask(self, what: str, *arguments: str) -> Any:
        """What it answers: the result, or the code of an error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, *arguments]) + "\n")
        answer = self._process.stdout.readline()
        assert answer, f"the old process has ended, asked to {what}"
        return json.loads(answer)

    def __enter__(self) -> OldProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def make_old_namespace(zookeeper: str, storage: str) -> dict[str, Any]:
    """A namespace of format 1 with some of everything, left by the old code; what a reader gets of it. See
    ``old_namespace.py``."""
    return run_old(Path(__file__).with_name("old_namespace.py"), zookeeper, storage)
