"""When nobody writes any more: what was committed, and everything read once more."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from pyspark_ledger.base import names
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log.log import Log
from pyspark_ledger.testing.history import (
    CompactedRead,
    CursorSeen,
    FinalFiles,
    FinalLog,
    FinalTokens,
    Row,
    Send,
    load,
    to_line,
)
from tests.soak.disk import Disk
from tests.soak.world import BILLING, COPIES, FOLLOW, JOBS, ORDERS, TOPICS, WORK, World, patiently, row_of


def history_of(world: World) -> list[Path]:
    """Answers that come later stand in files that come later."""
    return sorted(world.path("histories").glob("history-*.jsonl")) + sorted(
        world.path("histories").glob("late-*.jsonl")
    )


def read_everything(world: World, client: LedgerClient) -> dict[str, list[Row]]:
    """Records the final reads, and returns the logs."""
    logs = {topic: [row_of(record) for record in client.reader(topic, end="latest")] for topic in TOPICS}
    _answer_queries(world, logs)
    recorder = world.recorder("end.1")
    for topic, rows in logs.items():
        recorder.saw(FinalLog(topic=topic, rows=tuple(rows)))
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
    for name in (FOLLOW, WORK):
        stats = client.cursor(ORDERS, name).stats()
        recorder.saw(
            CursorSeen(topic=ORDERS, subscription=name, revision=stats.revision, mark_delete=stats.mark_delete)
        )
    recorder.close()
    return logs


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


def differences(logs: dict[str, list[Row]], present: tuple[str, ...]) -> Iterator[str]:
    """What a user would compare: the copy is the original, and every job was billed once."""
    orders, copies = ([row.value for row in logs[topic]] for topic in (ORDERS, COPIES))
    if orders != copies:
        first = next((n for n, pair in enumerate(zip(orders, copies, strict=False)) if pair[0] != pair[1]), -1)
        how = f"{len(copies)} records of {len(orders)}, the first other one is number {first}"
        yield f"'{COPIES}' is no copy of '{ORDERS}': {how}"
    if present:
        yield f"{len(present)} tokens of jobs are left, though everybody had the time to spend them"


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
