"""Spark jobs in processes and Python environments of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.support import REPOSITORY
from tests.support.cluster import _spark_home

PACKAGE = REPOSITORY / "pyspark_ledger"
# Not what a test wants to find out about: where this very process was told to look.
NOT_INHERITED = ("PYTHONPATH", "LEDGER_ZOOKEEPER", "LEDGER_STORAGE", "SPARK_HOME", "SPARK_REMOTE")

# What a job is made of. The last line of what a script prints is its result.
ROUND_TRIP = """
import json, os, sys, time
from pathlib import Path
from pyspark.sql import SparkSession

def session(builder):
    for option in ("spark.ui.enabled=false", "spark.log.level=ERROR", "spark.sql.shuffle.partitions=2"):
        builder = builder.config(*option.split("="))
    return builder.getOrCreate()

def write(frame, topic, **options):
    frame.write.format("ledger").mode("append").options(**options).save(topic)

def copy(stream, topic, checkpoint, **options):
    sink = stream.writeStream.format("ledger").options(**options).option("checkpointLocation", checkpoint)
    sink.trigger(availableNow=True).start(topic).awaitTermination()

def read(spark, topic, **options):
    return [row.id for row in spark.read.format("ledger").options(**options).load(topic).collect()]

def round_trip(spark, zookeeper, folder):
    write(spark.range(100).coalesce(1), "numbers", zookeeper=zookeeper, storage=f"{folder}/storage")
    stream = spark.readStream.format("ledger").options(zookeeper=zookeeper, maxRowsPerTrigger=40).load("numbers")
    copy(stream, "copies", f"{folder}/checkpoint", zookeeper=zookeeper)
    return read(spark, "copies", zookeeper=zookeeper)
"""


def new_venv(folder: Path, only: Iterable[str] | None = None) -> Path:
    """A new virtual environment with everything that the package needs, but not the package; or with nothing but some
    of the installed modules. Its Python."""
    venv.create(folder, symlinks=True)
    installed = Path(sysconfig.get_path("purelib"))
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    if only is None:
        # Folders named in a .pth file are searched last, and .pth files in them, as of editable installs, are not read.
        (site_packages / "dependencies.pth").write_text(f"{installed}\n")
    for name in only or ():
        for found in [*installed.glob(name), *installed.glob(f"{name}.*"), *installed.glob(f"{name}-*.dist-info")]:
            (site_packages / found.name).symlink_to(found)
    return folder / "bin" / "python"


def package_as_zip(archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w") as package:
        for file in PACKAGE.rglob("*.py"):
            package.write(file, file.relative_to(REPOSITORY))
    return archive


def environment(python: Path | str = sys.executable) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    return inherited | {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_HOME": str(_spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run(command: list[str], cwd: Path, python: Path | str = sys.executable) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment(python), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[:6000] + done.stderr[-6000:]
    return done.stdout


def result(command: list[str], cwd: Path, python: Path | str = sys.executable) -> Any:
    return json.loads(run(command, cwd, python).splitlines()[-1])


def wait_for(condition: Callable[[], Any], job: subprocess.Popen[str], seconds: float = 120.0) -> Any:
    """What the condition says once it holds; a job that ends before it does cannot bring it about any more."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert job.poll() is None, f"the job ended with status {job.returncode} before its time"
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain"
        time.sleep(0.02)
    return found
