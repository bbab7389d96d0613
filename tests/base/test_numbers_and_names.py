"""Sets of numbers, and the names of files: what is stored is read, and nothing else is taken for it."""

from __future__ import annotations

import tracemalloc

import pytest

from pyspark_ledger.base import names
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.errors import CorruptData

UID = b"u" * 16


def test_a_set_of_very_many_numbers_takes_no_more_memory_than_its_runs():
    """A list makes room for as many items as its source has, and this source has numbers where it gives runs."""
    acknowledged = Runs([(5, 10**15)])
    tracemalloc.start()
    assert list(iter(acknowledged.since(7) | Runs([(1, 2)]))) == [(1, 2), (7, 10**15)]
    assert repr(acknowledged) == "Runs([(5, 1000000000000000)])"
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_set_that_was_cut_off_is_refused_and_not_a_smaller_one(cut):
    packed = Runs([(300, 70_000)]).pack(0)
    assert len(packed) == 5
    if cut < 5:
        with pytest.raises(CorruptData, match="a set of numbers in a node is damaged"):
            Runs.unpack(packed[:cut], 0)
    else:
        assert Runs.unpack(packed, 0) == Runs([(300, 70_000)])


@pytest.mark.parametrize("damage", ["{}\n", "0{}", "{}x", "{}"])
def test_a_file_has_one_name(damage):
    """Whoever sweeps a folder deletes the files whose names it has understood: so it must not understand others."""
    folder, _, name = names.versioned_file("folder", 3, UID).partition("/")
    mine = damage == "{}"
    assert names.parse_versioned_file(f"{folder}/{damage.format(name)}") == ((3, UID) if mine else None)
    name = names.staged_file("u", 7, UID).removeprefix("u/")
    assert names.parse_staged_file("u", f"u/{damage.format(name)}") == ((7, UID) if mine else None)
