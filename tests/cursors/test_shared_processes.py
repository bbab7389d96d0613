"""Real processes share a subscription over a real ZooKeeper: one is killed, one is paused for longer than a session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from pyspark_ledger import LedgerClient
from tests.support import REPOSITORY
from tests.support.sharing import KEYED

RECORDS, KEYS, PROCESSES = 1_500, 50, 4
PAUSED = 1


def worker(namespace, file):
    command = [sys.executable, "-m", "tests.support.sharing_worker", namespace, "t", str(file)]
    return subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})


def told(files):
    """What the processes did, in the order of time: (when, who, what, record)."""
    lines = [(who, line.split()) for who, file in enumerate(files) for line in file.read_text().splitlines()]
    return sorted((float(when), who, what, int(n)) for who, (when, what, n) in lines)


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def send(client, numbers):
    with client.producer("t") as producer:
        for n in numbers:
            producer.send({"k": f"key {n % KEYS}", "n": n})


def test_one_is_killed_and_one_is_paused_and_the_others_handle_everything_I1_I16(namespace, storage_root, tmp_path):
    files = [tmp_path / str(number) for number in range(PROCESSES)]
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("t", KEYED, key="k")
        cursor = client.create_cursor("t", "s")
        workers = [worker(namespace, file) for file in files]
        try:
            wait_for(lambda: all(file.exists() and "joined" in file.read_text() for file in files))
            send(client, range(RECORDS))
            wait_for(lambda: all("got" in file.read_text() for file in files))
            workers[0].send_signal(signal.SIGKILL)
            workers[1].send_signal(signal.SIGSTOP)
            wait_for(lambda: not cursor.stats().backlog_records)  # so their sessions have ended
            workers[1].send_signal(signal.SIGCONT)
            wait_for(lambda: len(cursor.stats().followers) == PROCESSES - 1)  # it has joined again
            send(client, range(RECORDS, RECORDS + 200))
            wait_for(lambda: not cursor.stats().backlog_records)
        finally:
            for process in workers:
                process.kill()
                process.wait()
    events = told(files)
    assert {n for _, _, what, n in events if what == "got"} == set(range(RECORDS + 200))
    others = [event for event in events if event[1] != PAUSED]  # that one may have had something in hand all the time
    check_flushed(others)
    check_order(events)


def check_flushed(events):
    """What was acknowledged, and flushed, is never delivered again."""
    flushed = set()
    for _, _, what, n in events:
        assert what != "got" or n not in flushed
        if what == "flushed":
            flushed.add(n)


def check_order(events):
    """The records of a key come in order, and again only from where one has died."""
    last = {n % KEYS: n - KEYS for n in range(KEYS)}
    for _, who, what, n in events:
        if what == "got" and who != PAUSED:
            assert n <= last[n % KEYS] + KEYS, "a record was left out, or overtaken"
        if what == "got":
            last[n % KEYS] = max(last[n % KEYS], n)
