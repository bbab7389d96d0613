"""Parsers take anything: whatever they are given, they return or raise an error of this package."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import examples
from tests.support.mutations import mutate
from tests.support.parsers import PARSERS, Parser

every_parser = pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
tried = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@every_parser
def test_what_is_valid_is_taken(parser: Parser):
    assert [seed for seed in parser.seeds() if not parser.check(seed)] == []


@every_parser
@settings(tried, max_examples=examples(40))
@given(data=st.binary(max_size=300))
def test_any_bytes_are_taken_or_refused_by_name(parser: Parser, data: bytes):
    parser.check(data)


@every_parser
@settings(tried, max_examples=examples(400))
@given(number=st.integers(0, 10_000), random=st.randoms(use_true_random=False))
def test_what_was_damaged_is_taken_or_refused_by_name(parser: Parser, number: int, random: Random):
    seeds = parser.seeds()
    parser.check(mutate(seeds[number % len(seeds)], random.choice(seeds), random))
