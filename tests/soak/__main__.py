"""``python -m tests.soak --seconds 600 --seed 7``: exits with 1 if anything was not as it must be."""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.soak.disk import with_own_mounts
from tests.soak.run import Run


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=sys.modules["tests.soak"].__doc__)
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="of faults; before and after it takes a few minutes"
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="which faults; without one a random seed is drawn and printed"
    )
    parser.add_argument("--short", action="store_true", help="fewer processes, and one Spark driver with all queries")
    parser.add_argument("--producers", type=int, default=0, help="so many more of them, all for one topic")
    parser.add_argument("--keep", action="store_true", help="keep the folder also if all is well")
    asked = parser.parse_args(arguments)
    if asked.seconds <= 0:
        parser.error(f"--seconds is {asked.seconds}: for how long faults last, more than 0")
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    with_own_mounts([*arguments, "--seed", str(seed)])
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    run = Run(Path(tempfile.mkdtemp(prefix="ledger-soak-")), seed, asked.seconds, asked.short, asked.producers)
    faulthandler.dump_traceback_later(run.bound_s, exit=True)
    is_right = False
    try:
        is_right = run.carry_out()
    finally:
        faulthandler.cancel_dump_traceback_later()
        for failure in run.failures:
            print(f"FAILED: {failure}")
        if is_right and not asked.keep:
            shutil.rmtree(run.folder, ignore_errors=True)
        else:
            print(f"histories and logs are in {run.folder}; the same faults: make soak SEED={seed}")
    print("The run was as it must be." if is_right else "The run has FAILED.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
