"""When nobody writes any more: what was committed, and everything read once more."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

from pyspark_ledger.base import names
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.lifecycle.rewrite_plan import was_rewritten
from pyspark_ledger.log import trimmed
from pyspark_ledger.log.log import Log
from pyspark_ledger.testing.history import (
    CompactedRead,
    CursorSeen,
    FinalFiles,
    FinalLog,
    FinalTokens,
    Poll,
    Row,
    Send,
    load,
    to_line,
)
from tests.soak.disk import Disk
from tests.soak.sharing import dead_letters
from tests.soak.world import (
    ARCHIVE,
    BILLING,
    COPIES,
    DEAD,
    JOBS,
    LIMITS,
    ORDERS,
    PAID,
    POSTED,
    SUBSCRIPTIONS,
    TOPICS,
    World,
    fan_of,
    patiently,
    row_of,
)


def history_of(world: World) -> list[Path]:
    """Answers that come later stand in files that come later."""
    return sorted(world.path("histories").glob("history-*.jsonl")) + sorted(
        world.path("histories").glob("late-*.jsonl")
    )


def read_everything(world: World, client: LedgerClient) -> dict[str, list[Row]]:
    """Records the final reads, and returns the logs."""
    logs = {topic: [row_of(record) for record in client.reader(topic, end="latest")] for topic in TOPICS}
    logs[ORDERS] = [*_given_up(world, client), *logs[ORDERS]]
    _answer_queries(world, logs)
    recorder = world.recorder("end.1")
    for topic, rows in logs.items():
        recorder.saw(FinalLog(topic=topic, rows=tuple(rows)))
    for event in dead_letters(client):
        recorder.saw(event)
    for topic in (*TOPICS, DEAD):
        log = namespace_of(client).log(topic)
        files = set(namespace_of(client).storage.list(log.topic.uuid))
        recorder.saw(FinalFiles(topic=topic, named=tuple(sorted(_named(log))), present=tuple(sorted(files))))
    state = [row_of(record) for record in client.reader(ORDERS, end="latest", compacted=True)]
    pairs = tuple((str(row.key), row.value) for row in state)
    recorder.saw(CompactedRead(topic=ORDERS, end=client.end(ORDERS), state=pairs))
    tokens = [str(record.token) for record in client.reader(JOBS, end="latest")]
    there = client.tokens(JOBS, BILLING).present(tokens) if tokens else []
    present = tuple(token for token, is_there in zip(tokens, there, strict=True) if is_there)
    recorder.saw(FinalTokens(topic=JOBS, group=BILLING, present=present))
    for name in SUBSCRIPTIONS:
        stats = client.cursor(ORDERS, name).stats()
        recorder.saw(
            CursorSeen(topic=ORDERS, subscription=name, revision=stats.revision, mark_delete=stats.mark_delete)
        )
    recorder.close()
    return logs


def _given_up(world: World, client: LedgerClient) -> list[Row]:
    """The orders before where the topic begins now, as its archive has them."""
    begin = trimmed.begin(namespace_of(client).log(ORDERS).refresh(sync=True).head)
    polls = (event for event in load(history_of(world)) if isinstance(event, Poll) and event.subscription == ARCHIVE)
    noted = {row.position: row for poll in polls if poll.is_ok for row in poll.rows if row.position is not None}
    return [row for position, row in sorted(noted.items()) if position < begin]


def leaks(world: World) -> Iterator[str]:
    """When gc has had its time, and has looked at everything once, there is no file that nothing names. With nobody
    else about the grace need not be long."""
    with world.client(replace(LIMITS, gc_grace_ms=200)) as client:
        for is_last in (False, False, False, False, True):
            time.sleep(0.3)
            for topic in (*TOPICS, DEAD):
                patiently(partial(client.gc, topic, thorough=True if is_last else None))
        for topic in (*TOPICS, DEAD):
            log = namespace_of(client).log(topic)
            present = namespace_of(client).storage.list(log.topic.uuid)
            staged = {name for name in present if names.parse_staged_file(log.topic.uuid, name) is not None}
            if left := staged - _named(log):
                yield f"{len(left)} files of '{topic}' that nothing names are left, as {min(left)}"


def maintained(client: LedgerClient) -> dict[str, bool]:
    """What was done to the orders so far."""
    log = namespace_of(client).log(ORDERS)
    view = log.refresh(sync=True)
    rewritten = any(was_rewritten(leaf) for leaf in log.index(view).newest_first())
    return {
        "compacted": view.head.generation is not None,
        "given up": view.head.trim is not None,
        "rewritten": rewritten,
    }


def _named(log: Log) -> set[str]:
    references = gc.references(log, log.refresh(sync=True))
    return {names.staged_file(log.topic.uuid, file.epoch, file.uid) for file in references}


def _answer_queries(world: World, logs: dict[str, list[Row]]) -> None:
    """A sink's batch was answered if Spark has noted that it is finished. Of records with tokens those that are not in
    the log were left out: their positions say which are."""
    places = {topic: {row.value: row.position for row in rows} for topic, rows in logs.items()}
    with world.path("histories", "late-commits.jsonl").open("w") as file:
        for event in load(history_of(world)):
            if isinstance(event, Send) and _is_finished(world, event):
                rows = event.rows
                if event.group:
                    rows = tuple(replace(row, position=places[event.topic].get(row.value)) for row in rows)
                file.write(to_line(replace(event, told="ok", told_at=event.asked_at, rows=rows)) + "\n")


def _is_finished(world: World, send: Send) -> bool:
    return bool(send.producer) and (world.checkpoint(send.producer) / "commits" / str(send.sequence)).exists()


# -- beyond the checker -----------------------------------------------------------------------------------------------


def not_copied(client: LedgerClient) -> int:
    """How many orders are to be copied yet; 0 only if the last one is the last that was copied."""
    order, copied = (deque(client.reader(topic, end="latest"), 1) for topic in (ORDERS, COPIES))
    if [_copied(row_of(record)) for record in copied] == [row_of(record).value for record in order]:
        return 0
    written, done = (namespace_of(client).log(topic).refresh(sync=True).head.records for topic in (ORDERS, COPIES))
    return max(1, written - done)


def is_spread(client: LedgerClient) -> bool:
    """Whether the last order is the last in the topic into which it belongs."""
    value = row_of(deque(client.reader(ORDERS, end="latest"), 1)[0]).value
    return [_copied(row_of(record)) for record in deque(client.reader(fan_of(value), end="latest"), 1)] == [value]


def _copied(row: Row) -> str:
    """What a record is a copy of: before that there is the query with its checkpoint."""
    return row.value.partition("-")[2]


def differences(client: LedgerClient, logs: dict[str, list[Row]], present: tuple[str, ...]) -> Iterator[str]:
    """What a user would compare: nothing was given up that was not noted before (I15), the copy is the original, every
    order was paid and posted once, and every job was billed once."""
    written = namespace_of(client).log(ORDERS).refresh(sync=True).head.records
    if written != len(logs[ORDERS]):
        yield f"{written} records were written to '{ORDERS}', and {len(logs[ORDERS])} are there or were noted"
    yield from _gaps(logs[ORDERS], logs[COPIES])
    written_once = sorted(row.value for row in logs[ORDERS])
    for topic in (PAID, POSTED):
        if sorted(row.value for row in logs[topic]) != written_once:
            yield f"'{topic}' has {len(logs[topic])} records for {len(written_once)} orders, and not one for each"
    if present:
        yield f"{len(present)} tokens of jobs are left, though everybody had the time to spend them"


def _gaps(orders: list[Row], copies: list[Row]) -> Iterator[str]:
    """A query that begins anew has missed what was given up meanwhile. What each of its checkpoints has copied are
    neighbours; the first began with the first record, the last has come to the end, and nothing is there twice."""
    values, done = [row.value for row in orders], 0
    places = {value: number for number, value in enumerate(values)}
    for number, (life, rows) in enumerate(groupby(copies, lambda row: row.value.partition("-")[0])):
        copied = [_copied(row) for row in rows]
        first = places.get(copied[0], -1)
        if first < done or (number == 0 and first > 0):
            yield f"the copy of '{life}' begins with {copied[0]}, number {first} of '{ORDERS}', after {done} of them"
        if copied != values[first : first + len(copied)]:
            yield f"what '{life}' has copied, {len(copied)} records from number {first} on, is other than '{ORDERS}'"
        done = first + len(copied)
    if done != len(values):
        yield f"'{COPIES}' ends after {done} of {len(values)} records of '{ORDERS}'"


def examine(
    client: LedgerClient, disk: Disk, chance: random.Random, seconds: float, say: Callable[[str], None]
) -> Iterator[str]:
    """Damages files one after the other, with nobody else about: a reader says which file it is, or the damage lies
    where it reads nothing, and then what it reads is right."""
    deadline, tried, named = time.monotonic() + seconds, 0, 0
    log = namespace_of(client).log(ORDERS)
    right = patiently(lambda: _both(client))
    files = sorted(file for name in _named(log) if (file := disk.storage / name).exists())
    chance.shuffle(files)
    while files and time.monotonic() < deadline:
        file = files.pop()
        how = disk.damage(file, chance)
        tried += 1
        try:
            if patiently(lambda: _both(client)) != right:
                yield f"{file.name} ({how}) was read as other data"
        except CorruptData as error:
            named += 1
            if file.name not in str(error) and file.stem not in str(error):
                yield f"{file.name} ({how}) was not named: {error}"
        finally:
            disk.restore(file)
    say(f"{tried} files were damaged one by one: {named} were named, the others read as before")
    if patiently(lambda: _both(client)) != right:
        yield "after the damage was mended something else is read than before"


def _both(client: LedgerClient) -> tuple[list[Row], list[Row]]:
    whole = [row_of(record) for record in client.reader(ORDERS, end="latest")]
    return whole, [row_of(record) for record in client.reader(ORDERS, end="latest", compacted=True)]
