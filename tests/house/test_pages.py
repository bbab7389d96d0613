"""The README's quickstart and the tutorial run as they stand, top to bottom, as a new user would run them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY
from tests.support.pages import blocks, matches


@pytest.fixture
def user(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody with a home of their own, whose 'pyspark-ledger up' takes a port that is free here:
    on this machine others may use the one of the page."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tools = tmp_path / "bin"
    tools.mkdir()
    up_there = f'test "$1" = up && set -- "$@" --port {port}\n'
    for name, line in {
        "pyspark-ledger": f'{up_there}exec {sys.executable} -m pyspark_ledger.cli "$@"',
        "python": f'exec {sys.executable} "$@"',
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {
        "PATH": path, "LEDGER_HOME": str(tmp_path / "home"), "LEDGER_ZOOKEEPER": f"127.0.0.1:{port}",
        "PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip


def follow(page: str, text: str, user: dict[str, str], tmp_path: Path, timeout_s: float = 200) -> str:
    """Runs the blocks of a page in a folder of its own. What it has started is stopped, also after a failure."""
    (tmp_path / "page.md").write_text(text)
    folder = tmp_path / "work"
    folder.mkdir()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.pages", str(tmp_path / "page.md")],
            cwd=folder, env=user, capture_output=True, text=True, timeout=timeout_s,
        )  # fmt: skip
    finally:
        subprocess.run(["pyspark-ledger", "down"], env=user, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, f"{page}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.spark
def test_the_quickstart_of_the_readme_runs_from_top_to_bottom(user, tmp_path):
    text = (REPOSITORY / "README.md").read_text().partition("## Quickstart")[2].partition("\n## ")[0]
    assert [language for language, _ in blocks(text)] == ["console", "sh", "python", "sh", "text"]
    assert "blocks run: 3" in follow("README.md", text, user, tmp_path)


@pytest.mark.spark
def test_every_block_of_the_tutorial_does_what_it_shows(user, tmp_path):
    text = (REPOSITORY / "docs" / "tutorial.md").read_text()
    printed = follow("docs/tutorial.md", text, user, tmp_path)
    assert f"blocks run: {sum(language in ('sh', 'python') for language, _ in blocks(text))}" in printed


PRELUDE = """
```sh
pyspark-ledger up
```
```python
from pyspark.sql import SparkSession

from pyspark_ledger import LedgerClient

spark = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR").getOrCreate()
client = LedgerClient()
columns = "order_id long, customer string, amount double"
orders = spark.createDataFrame([(n, "ann", 1.5 * n) for n in range(10)], columns)
orders.write.format("ledger").mode("append").option("keyColumn", "order_id").save("orders")
```
"""


@pytest.mark.soak  # all of them take a while: in make search
@pytest.mark.spark
def test_every_block_of_the_how_to_pages_does_what_it_shows(user, tmp_path):
    pages = sorted((REPOSITORY / "docs" / "howto").glob("*.md"))
    text = PRELUDE + "\n".join(page.read_text() for page in pages)
    printed = follow("docs/howto", text, user, tmp_path, timeout_s=600)
    assert f"blocks run: {sum(language in ('sh', 'python') for language, _ in blocks(text))}" in printed


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("3\n", "3\n\n", True),
        ("3\n", "4\n", False),
        ("at … (process …)", "at 127.0.0.1:2181 (process 17)", True),
        ("at … (process …)\nmore", "at 127.0.0.1:2181 (process 17)", False),
        ("a.c", "abc", False),
    ],
)
def test_what_a_page_shows_is_compared_line_by_line(shown, printed, same):
    assert matches(shown, printed) is same
