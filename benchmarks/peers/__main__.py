"""`python -m benchmarks.peers`: the workloads, or some of them. The results go to a JSON file after each, with what
they were taken on: `benchmarks.peers.report` replaces just these in docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow
import pyspark

import pyspark_ledger
from benchmarks.contestants import Bench, Results
from benchmarks.peers.broker import Broker
from benchmarks.peers.driver import TERMINATED, leave_on_sigterm
from benchmarks.peers.jars import BROKER, SPARK, SPARK_S3, jars
from benchmarks.peers.pace import Pace
from benchmarks.peers.s3_server import CREDENTIALS
from benchmarks.peers.stage import Sizes, Stage, settings
from benchmarks.peers.systems import KAFKA, LEDGER, NAMES
from benchmarks.peers.work.base import Workload
from benchmarks.peers.work.table import WORKLOADS
from benchmarks.run import work_folder
from benchmarks.session import CONF, CORES, REPOSITORY, session
from pyspark_ledger.local.zookeeper import LocalZooKeeper, find_java

KEPT = REPOSITORY / ".peers"  # jars and results; ignored by git
SHOWN_ENVIRONMENT = ("taken", "commit", "cores", "pyspark", "pyarrow", "python", "java", "confluent_kafka", "jars")


def arguments() -> argparse.Namespace:
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--rows", type=int, help="of the narrow records; the rest follows [10 million]")
    parser.add_argument("--rounds", type=int, default=3, help="that count, after a warm-up [%(default)s]")
    parser.add_argument("--only", default=",".join(names), help="workloads, with commas [%(default)s]")
    parser.add_argument("--systems", default=",".join(NAMES), help="with commas [%(default)s]")
    parser.add_argument("--long", action="store_true", help="let the ledger grow to a million commits")
    parser.add_argument("--small", action="store_true", help="next to nothing of each, to see that it runs")
    parser.add_argument("--jars", type=Path, default=KEPT, help="where they were brought [%(default)s]")
    parser.add_argument("--out", type=Path, default=KEPT / "results.json", help="[%(default)s]")
    parser.add_argument("--work", type=Path, help="folder for a temporary folder [the system's]")
    asked = parser.parse_args()
    asked.only, asked.systems = asked.only.split(","), tuple(asked.systems.split(","))
    for given, known in ((asked.only, names), (asked.systems, NAMES)):
        if unknown := set(given) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return asked


def environment(asked: argparse.Namespace, sizes: Sizes) -> dict[str, Any]:
    java = subprocess.run([find_java(), "-version"], capture_output=True, text=True).stderr.splitlines()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
    return {
        "taken": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip(),
        "small": asked.small,
        "rounds": asked.rounds,
        "sizes": vars(sizes),
        "cores": CORES,
        "cores_of_the_machine": os.cpu_count(),
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__,
        "pyspark_ledger": pyspark_ledger.__version__,
        "confluent_kafka": confluent_kafka.__version__,
        "python": platform.python_version(),
        "java": next((line for line in java if "version" in line), ""),
        "jars": [*SPARK, *SPARK_S3, *BROKER],
        "conf": CONF,
    }


def run(asked: argparse.Namespace) -> None:
    leave_on_sigterm()
    os.environ.update(CREDENTIALS)  # Spark's processes have the environment of its start
    sizes = Sizes.of(asked.rows, asked.long, asked.small)
    taken_on, results, failed = environment(asked, sizes), {}, []
    for key in SHOWN_ENVIRONMENT:
        print(f"{key}: {taken_on[key]}", flush=True)
    loaded = jars(asked.jars, "spark")
    with work_folder(asked.work) as work, ExitStack() as stack:
        zookeeper = stack.enter_context(LocalZooKeeper())
        broker = Broker(jars(asked.jars, "broker"), work / "kafka") if KAFKA in asked.systems else None
        if broker is not None:
            stack.enter_context(broker)
        spark = stack.enter_context(session(work, **settings(loaded)))
        spark.dataSource.register(Pace)
        bench = Bench(spark, work, sizes.rows, asked.rounds, zookeeper.address)
        pids = tuple(pid for pid in zookeeper.pids if pid is not None)
        stage = Stage(bench, broker, sizes, loaded, asked.systems, pids if LEDGER in asked.systems else ())
        for kind in WORKLOADS:
            if kind.name in asked.only:
                runs = _measured(kind(), stage)
                if runs is None:
                    failed.append(kind.name)
                    continue
                results[kind.name] = {"environment": taken_on, "runs": runs}
                asked.out.parent.mkdir(parents=True, exist_ok=True)
                asked.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nThe results are in {asked.out}; python -m benchmarks.peers.report writes them into docs/benchmarks.md.")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _measured(workload: Workload, stage: Stage) -> Results | None:
    """None if it failed: it does not take the others' figures with it."""
    print(f"\n{workload.name}: {workload.title}", flush=True)
    try:
        runs = workload.measure(stage)
    except (Exception, SystemExit) as error:
        if stage.bench.spark.sparkContext._jsc.sc().isStopped() or getattr(error, "code", None) == TERMINATED:
            raise
        traceback.print_exc()
        return None
    print("\n" + workload.table(runs), flush=True)
    return runs


if __name__ == "__main__":
    run(arguments())
