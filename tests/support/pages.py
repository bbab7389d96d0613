"""Runs a page of the documentation as a reader would, block by block in one folder, and compares what it shows.

- ``sh``: in a shell.
- ``python``: in one Python for the whole page; or, if its first line is ``# name.py``, saved under that name.
- ``console`` and ``py``: not at all: it installs something, fails on purpose, or needs what is not here.
- ``text``: what the block before must have printed; ``…`` stands for anything within a line.

Run: python -m tests.support.pages docs/tutorial.md
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r"# (\w+\.py)\n")


def blocks(markdown: str) -> Iterator[tuple[str, str]]:
    """The language and the text of each block of code, in order."""
    for found in BLOCK.finditer(markdown):
        yield found[1], found[2]


def run(markdown: str) -> int:
    """Runs all blocks in the current folder; returns how many. Fails at the first that does not do what it shows."""
    session: dict[str, Any] = {"__name__": "__main__"}
    printed, count = "", 0
    for language, text in blocks(markdown):
        if language in ("console", "py"):
            continue
        if language == "text":
            assert matches(text, printed), f"the page shows:\n{text}\nand this was printed:\n{printed}"
            continue
        print(f"--- {language}\n{text}", flush=True)
        printed = {"sh": _shell, "python": lambda code: _python(code, session)}[language](text)
        print(printed, flush=True)
        count += 1
    return count


def matches(shown: str, printed: str) -> bool:
    """Line by line. Spaces at a line's end do not count, nor do empty lines at the end."""
    want, have = ([line.rstrip() for line in text.rstrip().splitlines()] for text in (shown, printed))
    pattern = [re.escape(line).replace("…", ".*") for line in want]
    return len(want) == len(have) and all(map(re.fullmatch, pattern, have))


def _shell(text: str) -> str:
    done = subprocess.run(["bash", "-e", "-c", text], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, f"exit status {done.returncode} of:\n{text}\n{done.stdout}"
    return done.stdout


def _python(text: str, session: dict[str, Any]) -> str:
    if saved := SAVED.match(text):
        Path(saved[1]).write_text(text)
        return ""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, "<page>", "exec"), session)
    return out.getvalue()


if __name__ == "__main__":
    print("blocks run:", run(Path(sys.argv[1]).read_text()))
