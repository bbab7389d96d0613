"""``make fuzz``: every parser with very many inputs, each kept if it reached code that none had reached before.

Needs atheris (the extra ``fuzz``). Each parser has a process of its own, one after the other, bounded in memory, in
time for one input, and in time altogether; it stops by itself. An input that raises anything but an error of this
package is kept in ``.fuzz/``, and printed with the command that tries it again.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.support import REPOSITORY
from tests.support.mutations import mutate

FOUND = REPOSITORY / ".fuzz"
MEMORY_MB = 6_144  # of address space: more is a MemoryError, which no parser may raise
RESIDENT_MB = 2_048
INPUT_S = 60  # for one input, on a machine that is busy with something else
PARSER_S = 1_800  # for all inputs of one parser
LONGEST_INPUT = 16_384


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--inputs", type=int, default=1_000_000, help="of all parsers together")
    options.add_argument("--target", default="", help="only the parsers whose names begin like this")
    options.add_argument("--seed", type=int, default=1, help="another one tries other inputs")
    options.add_argument("--inside", default="", help=argparse.SUPPRESS)  # this is the process of one parser
    options.add_argument("--corpus", default="", help=argparse.SUPPRESS)
    options.add_argument("--replay", nargs=2, metavar=("TARGET", "FILE"), help="try one input again")
    given = options.parse_args()
    if given.replay:
        return replay(*given.replay)
    if given.inside:
        return inside(given.inside, given.inputs, given.seed, Path(given.corpus))
    return fuzz_all(given.target, given.inputs, given.seed)


def fuzz_all(target: str, inputs: int, seed: int) -> int:
    from tests.support.parsers import PARSERS

    chosen = [name for name in PARSERS if name.startswith(target)]
    if not chosen:
        print(f"there is no parser '{target}': {', '.join(PARSERS)}")
        return 2
    FOUND.mkdir(exist_ok=True)
    print(f"{'parser':16} {'inputs':>9} {'reached':>8} {'kept':>6} {'seconds':>8}")
    share = -(-inputs // len(chosen))
    reports = [fuzz_one(name, share, seed, list(PARSERS[name].seeds())) for name in chosen]
    failed = [name for name, (_, ok) in zip(chosen, reports, strict=True) if not ok]
    print(
        f"{sum(done for done, _ in reports)} inputs, {len(failed)} of {len(chosen)} parsers failed {' '.join(failed)}"
    )
    return 1 if failed else 0


def fuzz_one(name: str, inputs: int, seed: int, examples: list[bytes]) -> tuple[int, bool]:
    """How many inputs were tried, and whether all went well."""
    with tempfile.TemporaryDirectory(prefix="ledger-fuzz-") as folder:
        for number, example in enumerate(examples):
            (Path(folder) / f"seed-{number}").write_bytes(example)
        command = [sys.executable, "-m", "tests.support.fuzz", "--inside", name, "--corpus", folder]
        command += ["--inputs", str(inputs), "--seed", str(seed)]
        ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, errors="replace")
    said = ended.stdout + ended.stderr
    last = re.findall(r"^#(\d+)\s+\w+\s+cov: (\d+).*?corp: (\d+)", said, re.M) or [("0", "0", "0")]
    took = re.findall(r"Done \d+ runs in (\d+) second", said) or ["?"]
    tried, reached, kept = last[-1]
    print(f"{name:16} {tried:>9} {reached:>8} {kept:>6} {took[-1]:>8}", flush=True)
    if ended.returncode == 0:
        return int(tried), True
    inputs_found = re.findall(r"Test unit written to (\S+)", said)
    print(said[-6_000:])
    for file in inputs_found:
        print(f"try it again: {sys.executable} -m tests.support.fuzz --replay {name} {file}")
    return int(tried), False


def inside(name: str, inputs: int, seed: int, corpus: Path) -> int:
    """The process of one parser. Never returns: libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["pyspark_ledger"], exclude=["pyspark_ledger.zk_metadata.records_pb2"]):
        from tests.support.parsers import PARSERS

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MB << 20, MEMORY_MB << 20))
    parser = PARSERS[name]

    def try_one(data: bytes) -> None:
        parser.check(data)

    def change(data: bytes, longest: int, seed: int) -> bytes:
        """As likely in our way, which knows numbers and pieces of text, as in libFuzzer's, which learns."""
        random = Random(seed)
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, longest))
        return mutate(data, random.choice(parser.seeds()), random)[:longest]

    limits = [f"-rss_limit_mb={RESIDENT_MB}", f"-timeout={INPUT_S}", f"-max_total_time={PARSER_S}"]
    limits += [f"-runs={inputs}", f"-max_len={LONGEST_INPUT}", f"-seed={seed}"]
    atheris.Setup(
        [sys.argv[0], *limits, f"-artifact_prefix={FOUND}/{name}-", str(corpus)], try_one, custom_mutator=change
    )
    atheris.Fuzz()
    return 0


def replay(name: str, file: str) -> int:
    from tests.support.parsers import PARSERS

    taken = PARSERS[name].check(Path(file).read_bytes())
    print("taken" if taken else "refused, by an error of this package")
    return 0


if __name__ == "__main__":
    sys.exit(main())
