"""Plays histories from seeds: ``python -m tests.simulation --seed 7 --seeds 1000``."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.simulation.play import SCENES, Play


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many histories")
    parser.add_argument("--scene", choices=list(SCENES), help="only histories of this kind")
    parser.add_argument("--quick", action="store_true", help="stop at the first failure")
    asked = parser.parse_args()
    began, failed, told = time.monotonic(), [], Counter[str]()
    for seed in range(asked.seed, asked.seed + asked.seeds):
        play = Play(seed)
        if asked.scene and play.scene != asked.scene:
            continue
        told["histories"] += 1
        try:
            report = play.run()
            wrong = str(report) if report.anomalies else ""
            told.update(f"{type(event).__name__} {event.told}" for event in play.events.values())
        except Exception:
            wrong = traceback.format_exc()
        if told["histories"] % 250 == 0:
            print(f"{told['histories']} histories, {len(failed)} failed, {time.monotonic() - began:.0f} s", flush=True)
        if wrong:
            failed.append(seed)
            print(f"\nseed {seed} ({play.scene}, trouble {play.trouble}):\n{wrong}", flush=True)
            if asked.quick:
                break
    print(f"{told.pop('histories', 0)} histories in {time.monotonic() - began:.0f} s; failed: {failed or 'none'}")
    print(", ".join(f"{count} {name}" for name, count in sorted(told.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
