"""Many writers of one topic: everybody gets its turn, and is told the truth (I14, I17)."""

from __future__ import annotations

from collections import Counter

import pytest

from pyspark_ledger.errors import LedgerError
from tests.support.crowds import Crowd, Writer


@pytest.fixture
def crowd(tmp_path):
    with Crowd(tmp_path) as crowd:
        yield crowd


def for_three_seconds(writer: Writer) -> None:
    crowd = writer.crowd
    while crowd.schedule.now < 3.0:
        writer.write(1000 * crowd.writers.index(writer) + len(writer.told))


def test_sixteen_writers_get_as_much_as_each_other_I1_I17(crowd):
    for _ in range(16):
        crowd.start(crowd.writer(), for_three_seconds)
    crowd.run()
    counts = [len(writer.done) for writer in crowd.writers]
    assert min(counts) >= 0.5 * sum(counts) / 16
    crowd.check()


def test_those_who_wait_are_committed_in_one_transaction_I17(crowd):
    for _ in range(16):
        crowd.start(crowd.writer(), for_three_seconds)
    crowd.run()
    view = crowd.world.log().view()
    assert view.head.next_commit > 4 * view.version  # seals count as well
