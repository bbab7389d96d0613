"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.base.sizes import MOST_BYTES, parse_size, spelled_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("67108864", 64 << 20), ("64m", 64 << 20), ("64MB", 64 << 20), ("64 MiB", 64 << 20), ("1k", 1024),
     ("500GB", 500 << 30), ("2T", 2 << 40), (f"{MOST_BYTES}", MOST_BYTES)],
)  # fmt: skip
def test_a_size_is_a_number_with_a_unit_of_1024(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "0", "0GB", "-1", "1.5GB", "GB", "1PB", "7d", "1 000", "never", "8388608t", "9" * 30]
)
def test_what_is_no_size_or_over_63_bits_is_none(text):
    assert parse_size(text) is None


@given(st.integers(1, MOST_BYTES))
def test_a_size_that_is_spelled_is_the_same_size(size):
    assert parse_size(spelled_size(size)) == size
