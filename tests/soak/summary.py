"""What became of a run, in a few lines."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from pyspark_ledger.testing.history import Acknowledge, DeadLetters, Event, Poll, Reset, Row, Send
from tests.soak.disk import Disk
from tests.soak.processes import Process
from tests.soak.world import CODE, World


def lines(
    world: World, cast: list[Process], faults: Counter[str], logs: dict[str, list[Row]], history: list[Event]
) -> Iterator[str]:
    yield from table(cast, history)
    yield f"faults: {_counted(faults)}"
    yield f"told: {_counted(told(world))}"
    yield f"maintained: {_counted(maintained(world))}"
    yield f"records: {_counted(Counter({topic: len(rows) for topic, rows in logs.items()}))}"
    died = {event.subscription: len(event.rows) for event in history if isinstance(event, DeadLetters)}
    yield f"dead letters: {_counted(Counter(died))}"


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in sorted(counts.items())) or "none"


def table(cast: list[Process], history: list[Event]) -> Iterator[str]:
    """A line for each process and each query."""
    done: dict[str, Counter[str]] = defaultdict(Counter)
    for event in history:
        name = event.process.partition(".")[0]
        done[name][f"{type(event).__name__} {event.told}"] += 1
        if isinstance(event, Poll) and event.batch is not None:
            done[name]["batches"] += 1
    yield f"{'process':12} {'starts':>6} {'killed':>6} {'paused':>6} {'replaced':>8}  what it did"
    for process in cast:
        kills, pauses, replaced = (process.happened[what] for what in ("kill", "pause", "replace"))
        did = "with " + ", ".join(process.queries) if process.is_driver else _did(done.pop(process.name, Counter()))
        yield f"{process.name:12} {process.starts:6} {kills:6} {pauses:6} {replaced:8}  {did}"
    for name, counted in sorted(done.items()):
        if counted["batches"]:
            yield f"{name:12} {'':29}  {_did(counted)}"


def _did(counted: Counter[str]) -> str:
    parts = []
    for kind in (Send, Poll, Acknowledge, Reset):
        told = {way: counted[f"{kind.__name__} {way}"] for way in ("ok", "refused", "fenced", "unknown")}
        if any(told.values()):
            parts.append(f"{kind.__name__} " + ", ".join(f"{number} {way}" for way, number in told.items() if number))
    others = Counter({name: number for name, number in counted.items() if name.endswith(" ok")})
    for name in ("CursorSeen ok", "CompactionSeen ok", "CompactedRead ok", "Refuse ok"):
        if others[name]:
            parts.append(f"{others[name]} {name.removesuffix(' ok')}")
    return "; ".join(parts) or "-"


def told(world: World) -> Counter[str]:
    """Which errors the processes were told, by code."""
    return Counter(code for line in _told_lines(world) for code in CODE.findall(line)[:1])


def maintained(world: World) -> Counter[str]:
    """What the maintainers did, as their logs say."""
    done: Counter[str] = Counter()
    for line in _lines(world):
        if found := re.search(r" maintained topic=\S* action=(\w+) (.*) seconds=", line):
            for what, number in re.findall(r"(\w+)=(-?\d+)", found[2]):
                done[f"{what} by {found[1]}"] += int(number)
    return done


def wrong_names(world: World, disk: Disk) -> Iterator[str]:
    """Who says that a file is damaged names one that was."""
    stems = [name.partition(".")[0] for name in disk.damaged]
    for line in _told_lines(world):
        if "LEDGER_CORRUPT_DATA" in line and not any(stem in line for stem in stems):
            yield f"a process was told of a damaged file, and names none that was damaged: {line}"


def _told_lines(world: World) -> Iterator[str]:
    return (line for line in _lines(world) if re.match(r"[\d.]+ (\S+ )?told ", line))


def _lines(world: World) -> Iterator[str]:
    """Of all processes."""
    for file in sorted(world.path("logs", "-").parent.glob("*.log")):
        yield from file.read_text(errors="replace").splitlines()
