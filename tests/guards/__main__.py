"""Takes out one guard after the other, in a copy of the package, and runs the tests that should notice.

    python -m tests.guards            all of them
    python -m tests.guards seal/ tip  those whose names contain one of these

Prints what noticed each guard's absence. The exit status is 1 if something was not noticed, or could not be tried.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.guards import GUARDS
from tests.guards.guard import Guard
from tests.support import REPOSITORY

LIMIT_S = 120.0  # for the tests of one guard
HANGS_AFTER_S = 30.0  # where that is what is expected: they take a second or two otherwise
OPTIONS = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not spark and not soak"]
NO_TIMEOUT = ["--timeout", "0"]  # who hangs is ended here, and not taken for a test that fails
# What takes long to import and is the same for all. The package and its tests are imported by each run anew.
OTHERS = ("hypothesis.stateful", "kazoo.client", "pyarrow.compute", "pyarrow.fs", "pyarrow.ipc", "pyspark.sql.types")


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: str  # "noticed", or why not
    by: str  # the first test that failed
    seconds: float

    @property
    def is_noticed(self) -> bool:
        return self.verdict == "noticed"


class Copy:
    """The package and its tests in a folder of their own, where the code can be changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        shutil.copy(REPOSITORY / "pyproject.toml", folder)
        for name in ("pyspark_ledger", "tests"):
            shutil.copytree(REPOSITORY / name, folder / name)

    def without(self, guard: Guard) -> Outcome:
        file = self._folder / "pyspark_ledger" / guard.file
        code = file.read_text()
        if code.count(guard.snippet) != 1:
            return Outcome("NOT FOUND", f"the snippet is not exactly once in {guard.file}", 0.0)
        self._write(file, guard.taken_out(code))
        try:
            return self._judged(guard)
        finally:
            self._write(file, code)

    def passes(self, tests: Iterable[str]) -> str:
        """What the tests print if they fail as the code is; empty if they pass."""
        status, output = self._run([*dict.fromkeys(tests)], None)
        return "" if status == 0 else output

    def _judged(self, guard: Guard) -> Outcome:
        began = time.monotonic()
        status, output = self._run(guard.selected, HANGS_AFTER_S if guard.hangs else LIMIT_S)
        seconds = time.monotonic() - began
        failed = re.search(r"^(?:FAILED|ERROR) tests/([^\s\[]+)", output, re.M)
        if status is None:
            return Outcome("noticed" if guard.hangs else "HANGS", f"{guard.tests[0]} does not end", seconds)
        if status == 1 and failed is not None:
            return Outcome("noticed", failed[1], seconds)
        return Outcome("NOT noticed" if status == 0 else "NOT TRIED", f"pytest ended with {status}", seconds)

    def _run(self, tests: Iterable[str], limit_s: float | None) -> tuple[int | None, str]:
        """The exit status, None if it did not end in time; and what was printed."""
        printed = self._folder / "printed.txt"
        child = os.fork()
        if child == 0:
            self._test([*OPTIONS, *NO_TIMEOUT, *tests], printed)
        deadline = None if limit_s is None else time.monotonic() + limit_s
        try:
            while True:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    return os.waitstatus_to_exitcode(status), printed.read_text()
                if deadline is not None and time.monotonic() > deadline:
                    return None, printed.read_text()
                time.sleep(0.02)
        finally:
            _end(child)

    def _test(self, arguments: list[str], printed: Path) -> None:
        """In a process of its own, which has imported nothing of the package yet."""
        os.setsid()
        with open(printed, "w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.chdir(self._folder)
        os.environ["PYTHONPATH"] = str(self._folder)
        here = {"", str(REPOSITORY)}
        sys.path[:] = [str(self._folder), *(path for path in sys.path if path not in here)]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "pyspark_ledger")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        status = 3
        try:
            status = int(pytest.main(arguments))
        finally:
            sys.stdout.flush()
            os._exit(status)

    def _write(self, file: Path, code: str) -> None:
        """Compiled code is kept by the time and the length of its source, and two changes in a second may have the same
        length: so it is deleted."""
        file.write_text(code)
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def _end(group: int) -> None:
    """What the tests have started, such as a ZooKeeper, goes with them."""
    try:
        os.killpg(group, signal.SIGKILL)
        os.waitpid(group, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def chosen(words: list[str]) -> list[Guard]:
    return [guard for guard in GUARDS if not words or any(word in guard.name for word in words)]


def main(words: list[str]) -> int:
    guards = chosen(words)
    if not guards:
        print(f"There is no guard whose name contains {' or '.join(words)}.")
        return 1
    for name in OTHERS:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="guards-") as folder:
        copy = Copy(Path(folder))
        broken = copy.passes(test for guard in guards for test in guard.selected)
        if broken:
            print(broken, "These tests fail as the code is: they can notice nothing.")
            return 1
        outcomes = []
        for guard in guards:
            outcome = copy.without(guard)
            outcomes.append(outcome)
            told = f"{outcome.verdict:12} {outcome.seconds:5.1f} s  {guard.name} ({guard.file})"
            print(f"{told}  {outcome.by}".rstrip(), flush=True)
    noticed = sum(outcome.is_noticed for outcome in outcomes)
    print(f"{len(outcomes)} guards, {noticed} noticed, {len(outcomes) - noticed} not.")
    return 0 if noticed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
