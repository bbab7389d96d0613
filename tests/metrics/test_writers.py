"""What a service's writers tell of the turns that they took."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from pyspark_ledger.append import tally
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.metrics.families import WRITERS
from pyspark_ledger.metrics.writers import export_writers
from tests.support.crowds import Crowd, Writer


def ten_records(writer: Writer) -> None:
    me = writer.crowd.writers.index(writer)
    for number in range(10):
        writer.write(100 * me + number)


@pytest.fixture
def told(monkeypatch):
    """What is told of topic ``t``, since the test began."""
    monkeypatch.setattr(tally, "_tallies", {})
    registry = CollectorRegistry()
    export_writers(registry)
    return lambda: {name: registry.get_sample_value(name, {"topic": "t"}) for name in WRITERS}


def test_who_waited_for_others_and_took_them_along_is_counted(told, tmp_path):
    with Crowd(tmp_path) as crowd:
        for _ in range(8):
            crowd.start(crowd.writer(), ten_records)
        crowd.run()
        commits = crowd.world.log().view().head.next_commit
    turns, combined, waits, waited_s = told().values()
    assert commits == 80
    assert 0 < turns <= turns + combined <= commits
    assert combined <= waits <= 80  # each commit that somebody else made was waited for
    assert waited_s > 0


def test_one_writer_alone_waits_for_nobody(told, tmp_path):
    with Crowd(tmp_path) as crowd:
        crowd.start(crowd.writer(), ten_records)
        crowd.run()
    assert set(told().values()) == {None}


def test_the_counters_are_in_a_registry_once():
    registry = CollectorRegistry()
    export_writers(registry)
    with pytest.raises(InvalidInput, match="once is enough"):
        export_writers(registry)
