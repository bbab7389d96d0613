"""Many threads, one producer, and a ZooKeeper that fails in every way: each record's future tells the truth (I1, I5,
I14)."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace

import pytest

from pyspark_ledger.append.background import Background
from pyspark_ledger.append.receipt import Receipt
from pyspark_ledger.errors import InvalidInput, OutcomeUnknown, Unavailable
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.testing.memory import Faults
from tests.support import histories
from tests.support.producers import Process
from tests.support.worlds import SMALL, World, append

THREADS, EACH = 8, 60
RIVAL = -1


def faults(seed: int) -> Faults:
    return Faults(
        seed, lost_before=0.1, applied_then_lost=0.1, delayed=0.1, stale_read=0.1, expired=0.03, unavailable=0.03,
        outage_s=0.1, max_delay=5,
    )  # fmt: skip


class Sender:
    """A thread that sends its numbers, flushes now and then, and takes notice when the producer has stopped."""

    def __init__(self, process: Process, thread: int, seed: int) -> None:
        self.producer, self.chance = process.producer, random.Random(seed * 100 + thread)
        self.numbers = range(thread * 1_000, thread * 1_000 + EACH)
        self.sent: list[tuple[int, Receipt]] = []

    def run(self) -> None:
        for number in self.numbers:
            self.try_until(lambda number=number: self.sent.append((number, self.producer.send({"n": number}))))
            if self.chance.random() < 0.1:
                self.try_until(self.producer.flush)

    def try_until(self, do) -> None:
        """A send that raised has not taken its record, so it is repeated."""
        while True:
            try:
                do()
                return
            except (Unavailable, OutcomeUnknown) as error:
                if error.code == "LEDGER_PRODUCER_STOPPED" and self.chance.random() < 0.5:
                    self.discard()
            except InvalidInput as error:
                if error.code != "LEDGER_DISCARDED":  # by another thread, while this one flushed
                    raise

    def discard(self) -> None:
        with suppress(Unavailable):
            self.producer.discard()


@pytest.mark.parametrize("seed", histories(4))
@pytest.mark.parametrize("name", ["p", None], ids=["with a name", "without"])
@pytest.mark.parametrize("patience_s", [30.0, 0.02], ids=["patient", "impatient"])
def test_every_future_tells_the_truth_and_nothing_is_there_twice_I1_I2_I5_I14(tmp_path, seed, name, patience_s):
    world = World(tmp_path, limits=replace(SMALL, commits_per_ledger=20, append_deadline_s=0.01))
    process = Process(world, name, Background(1, patience_s, max_waiting_records=50), faults(seed))
    senders = [Sender(process, thread, seed) for thread in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        running = [pool.submit(sender.run) for sender in senders]
        for _ in range(5):
            append(world.log(), RIVAL)  # so that heads are lost too
        for thread in running:
            thread.result(60)
    sent = [each for sender in senders for each in sender.sent]
    assert not wait([receipt for _, receipt in sent], 60).not_done

    found = [record for record in Reader(world.log(), "earliest", "latest") if record["n"] != RIVAL]
    where, times = {record.position: record["n"] for record in found}, Counter(record["n"] for record in found)
    for number, receipt in sent:
        error = receipt.exception()
        if error is None:
            at = receipt.result()
            assert (where.get(at.position), times[number]) == (number, 1)
        elif isinstance(error, OutcomeUnknown) or (isinstance(error, InvalidInput) and "may be there" in error.message):
            assert times[number] <= 1
        else:
            assert times[number] == 0, error
    if patience_s > 1:
        assert len(found) == THREADS * EACH  # all of them, if there is time
    if name:
        assert [record.sequence_id for record in found] == sorted({record.sequence_id for record in found})
    for sender in senders:
        mine = [record["n"] for record in found if record["n"] in sender.numbers]
        assert mine == sorted(mine)
