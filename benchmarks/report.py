"""The results as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from benchmarks.contestants import CEILING, PARQUET, WITHOUT
from benchmarks.record_ids import PLAIN, WITH_IDS
from benchmarks.tiny import percentiles
from benchmarks.tokens import WITHOUT as NO_TOKENS


def table(results: dict[str, Any]) -> str:
    """One section per part that was run, and the conditions under which it was."""
    environment = results["environment"]
    throughputs = [part for part in ("source", "sink") if part in results]
    sections = [_throughput(part, results[part], environment["rows"]) for part in throughputs]
    sections += [_SECTIONS[part](results[part]) for part in _SECTIONS if part in results]
    return "\n\n".join([*sections, _conditions(environment)])


def markdown(title: str, head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    head = list(head)
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return f"### {title}\n\n" + "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _throughput(part: str, runs: dict[str, list[dict[str, Any]]], rows: int) -> str:
    """Medians over the whole query and, beside them, over its batches without the query's start."""
    wall = _medians(runs, "wall_s")
    batch = _medians(runs, "batch_s")
    cpu = _medians(runs, "cpu_s")
    head = ["contestant", "wall s", "min to max", "CPU s", "M rows/s", "of ceiling", "of Parquet"]
    head += ["batch s", "M rows/s in batch", "of ceiling", "of Parquet"]
    lines = []
    for name, results in runs.items():
        times = [run["wall_s"] for run in results]
        whole = [f"{wall[name]:.2f}", f"{min(times):.2f} to {max(times):.2f}", f"{cpu[name]:.1f}"]
        whole += _rates(wall, name, rows)
        lines.append([name, *whole, f"{batch[name]:.2f}", *_rates(batch, name, rows)])
    return markdown(f"{part}, {rows:,} rows, medians", head, lines)


def _medians(runs: dict[str, list[dict[str, Any]]], key: str) -> dict[str, float]:
    return {name: median(run[key] for run in results) for name, results in runs.items()}


def _rates(seconds: dict[str, float], name: str, rows: int) -> list[str]:
    """Rows per second, and the speed as a share of the ceiling's and of Parquet's."""
    shares = [f"{seconds[other] / seconds[name]:.2f}" for other in (CEILING, PARQUET)]
    return [f"{rows / seconds[name] / 1e6:.2f}", *shares]


def _ids(races: dict[int, dict[str, list[dict[str, Any]]]]) -> str:
    """The sink's time in batches with and without ids, for each number of producers."""
    lines = []
    for producers, runs in races.items():
        batch, cpu = _medians(runs, "batch_s"), _medians(runs, "cpu_s")
        share = f"{batch[PLAIN] / batch[WITH_IDS]:.2f}"
        times = [f"{value:.2f}" for value in (batch[PLAIN], batch[WITH_IDS], cpu[PLAIN], cpu[WITH_IDS])]
        lines.append([f"{producers:,}", *times, share])
    head = ["producers", "plain, batch s", "with ids, batch s", "plain, CPU s", "with ids, CPU s", "of the plain sink"]
    return markdown("sequence ids per record", head, lines)


def _tokens(runs: dict[str, list[dict[str, Any]]]) -> str:
    batch, cpu = _medians(runs, "batch_s"), _medians(runs, "own_cpu_s")
    lines = []
    for name in runs:
        shares = [f"{_share(runs, field, name):.2f}" for field in ("batch_s", "own_cpu_s")]
        lines.append([name, f"{batch[name]:.2f}", f"{cpu[name]:.1f}", *shares])
    return markdown("tokens, topic to topic", ["", "batch s", "CPU s", "speed", "by CPU"], lines)


def _share(runs: dict[str, list[dict[str, Any]]], field: str, name: str) -> float:
    """Of what there is without tokens, the median over the rounds: in each, the machine was as busy for all."""
    rounds = zip(runs[NO_TOKENS], runs[name], strict=True)
    return median(without[field] / run[field] for without, run in rounds)


def _subscription(runs: dict[str, list[dict[str, Any]]]) -> str:
    batch, wall = _medians(runs, "batch_s"), _medians(runs, "wall_s")
    lines = [[name, f"{wall[name]:.2f}", f"{batch[name]:.2f}", f"{wall[WITHOUT] / wall[name]:.2f}"] for name in runs]
    return markdown("source with a subscription", ["", "wall s", "batch s", "of the source without"], lines)


def _tiny(runs: dict[str, list[dict[str, Any]]]) -> str:
    pooled = {name: [time for run in results for time in run["times_ms"]] for name, results in runs.items()}
    both = {name: percentiles(times) for name, times in pooled.items()}
    lines = [[name, p50, p90, f"{p50 / both[CEILING][0]:.2f}"] for name, (p50, p90) in both.items()]
    return markdown("tiny micro-batches", ["contestant", "p50 ms", "p90 ms", "p50 to ceiling's"], lines)


def _memory(peaks: dict[str, dict[str, Any]]) -> str:
    lines = [[name, peak["peak_mb"], peak["above_idle_mb"]] for name, peak in peaks.items()]
    return markdown("memory of a Python worker", ["worker", "peak RssAnon MB", "above idle MB"], lines)


def _commits(result: dict[str, Any]) -> str:
    sizes, window = result["sizes"], result["window"]
    lines = [
        [f"first {window:,} commits, ms each, mean (median)", _cost(result["first_ms"])],
        [f"last {window:,} commits, ms each, mean (median)", _cost(result["last_ms"])],
        [f"nodes in ZooKeeper, largest of {len(sizes)} samples", max(size["nodes"] for size in sizes)],
        ["nodes in ZooKeeper, at the end", sizes[-1]["nodes"]],
        [f"bytes in ZooKeeper, largest of {len(sizes)} samples", f"{max(size['bytes'] for size in sizes):,}"],
        ["bytes in ZooKeeper, at the end", f"{sizes[-1]['bytes']:,}"],
        ["ZooKeeper requests of a new client up to the first record read", _requests(result["open_requests"])],
    ]
    return markdown(f"{result['commits']:,} commits", ["", "value"], lines)


def _writers(results: dict[str, dict[str, float]]) -> str:
    """And in brackets how many times the commits of the first row."""
    alone = next(iter(results.values()))["commits_per_s"]
    lines = [
        [
            count,
            f"{found['commits_per_s']:.0f} ({found['commits_per_s'] / alone:.1f})",
            *(f"{found[key]:.0f}" for key in ("p50_ms", "p99_ms", "max_ms")),
            f"{found['slowest_of_mean']:.2f}",
            f"{found['cpu_ms']:.1f}",
        ]
        for count, found in results.items()
    ]
    columns = ["processes", "commits/s", "p50 ms", "p99 ms", "longest ms", "slowest writer of the mean", "CPU ms each"]
    return markdown("many writers of one topic, one record per flush", columns, lines)


def _producer(result: dict[str, Any]) -> str:
    lines = [["records/s by send alone", f"{result['records_per_s']:,}"], ["ms for a lone record", result["alone_ms"]]]
    return markdown("one producer with linger", ["", "value"], lines)


def _compaction(result: dict[str, Any]) -> str:
    scan, full, more = result["scan_s"], result["compact_s"], result["incremental_s"]
    lines = [
        ["plain scan of the topic, s", f"{scan:.2f}"],
        ["compaction, s (times the scan)", f"{full:.2f} ({full / scan:.1f})"],
        ["records per second", f"{result['records'] / full / 1e6:.1f} M"],
        ["again with 1 % new, s (of the first)", f"{more:.2f} ({more / full:.2f})"],
        ["full read to the map, s", f"{result['full_state_s']:.2f}"],
        ["compacted read to the same map, s (times faster)",
         f"{result['compacted_state_s']:.3f} ({result['full_state_s'] / result['compacted_state_s']:.0f})"],
    ]  # fmt: skip
    return markdown(f"compaction of {result['records']:,} records, {result['keys']:,} keys", ["", "value"], lines)


def _small(result: dict[str, Any]) -> str:
    """Times, and in brackets how many times the rows that were written at once."""
    words = {"plan_s": "planning, s", "read_s": "Python reader, s", "spark_s": "Spark batch read, s"}
    lines = []
    for key in result["at_once"]:
        least = result["at_once"][key]
        both = [f"{result[when][key]:.3f} ({result[when][key] / least:.1f})" for when in ("before", "after")]
        lines.append([words[key], *both, f"{least:.3f}"])
    files = [f"{result['files_before']:,}", f"{result['files_after']:,}", 1]
    title = f"{result['commits']:,} commits of {result['rows']} rows, rewritten in {result['rewrite_s']:.1f} s"
    return markdown(title, ["", "before", "after", "at once"], [*lines, ["files", *files]])


def _cost(cost: dict[str, float]) -> str:
    return f"{cost['mean']:.2f} ({cost['median']:.2f})"


def _requests(requests: dict[str, int]) -> str:
    kinds = ", ".join(f"{kind} {number}" for kind, number in requests.items())
    return f"{sum(requests.values())} ({kinds})"


_SECTIONS = {
    "ids": _ids,
    "tokens": _tokens,
    "subscription": _subscription,
    "tiny": _tiny,
    "memory": _memory,
    "commits": _commits,
    "writers": _writers,
    "producer": _producer,
    "compaction": _compaction,
    "small": _small,
}


def _conditions(environment: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {environment[name]}" for name in ("pyspark", "pyarrow", "python", "cores"))
    conf = ", ".join(f"`{key}={value}`" for key, value in environment["conf"].items())
    return (
        f"{versions}; rounds {environment['rounds']}, each in another order, after a warm-up. CPU is the "
        f"whole machine's. Session: {conf}."
    )
