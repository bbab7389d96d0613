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
@settings(tried, max_examples=examples(150))
@given(number=st.integers(0, 10_000), random=st.randoms(use_true_random=False))
def test_what_was_damaged_is_taken_or_refused_by_name(parser: Parser, number: int, random: Random):
    seeds = parser.seeds()
    parser.check(mutate(seeds[number % len(seeds)], random.choice(seeds), random))


# -- what was found once ---------------------------------------------------------------------------------------------

DEEP = 20_000
TOKEN = "0a1b2c3d-0000-4000-8000-000000000001:3:17"
FOUND = {
    "an integer with a billion digits took minutes": ("json-lines", '{"n": 1e999999999}'),
    "an exponent that no decimal can have": ("json-lines", '{"n": 1e9223372036854775808}'),
    "an int that no double can hold": ("json-lines", '{"d": 1%s}' % ("0" * 400)),
    "a duration that no timedelta can hold": ("json-lines", '{"took": "PT99999999999999999999S"}'),
    "JSON that is nested very deeply": ("json-lines", '{"tags": ' + "[" * DEEP),
    "a cell that is nested very deeply": ("csv", "tags\n" + "[" * DEEP + "\n"),
    "a type that differs from one of ours in case only, by Unicode": ("ddl", "a ſtring"),
    "types in types in types": ("ddl", "a " + "array<" * DEEP + "int" + ">" * DEEP),
    "a scale that Python does not take for a number": ("ddl", "a decimal(10," + "9" * 5000 + ")"),
    "a name of a column that is no UTF-8": ("ddl", b"`\xff` int"),
    "an index in digits that are not ASCII": ("tokens", f"{TOKEN}:٣"),
    "a prefix whose bytes are more than its characters": ("tokens", "éé:1"),
    "an offset that is nested very deeply": ("place", '{"a":' * DEEP),
    "a topic's path that is no list": ("write-options", "topic=t\npaths=["),
    "a topic's path that is no text": ("write-options", "topic=t\npaths=5"),
    "a sequence id that no record can hold was taken": (
        "write-options",
        "topic=t\nproducerName=p\nsequenceId=9223372036854775808",
    ),
    "a size that Python does not take for a number": ("read-options", "topic=t\nmaxBytesPerTrigger=" + "9" * 5000),
    "a time that Python does not take for a number": ("read-options", "topic=t\nstartingTimestamp=" + "9" * 5000),
    "a number of records that is text was taken": (
        "offset",
        '{"v":2,"topics":{"t":{"id":"0a1b2c3d-0000-4000-8000-000000000001","pos":"0:0:0","rev":0,"epoch":0,"records":"1"}}}',
    ),
    "half an address": ("storage-root", "file://[x"),
    "the home of nobody": ("storage-root", "~nobody-has-this-name/x"),
    "a relative path in a URI": ("storage-root", "file:x"),
    "a run without its end": ("runs", b"\x03"),
    "a number without its end": ("runs", b"\x03\x80"),
    "a number of half a megabyte was taken": ("runs", b"\xff" * 500_000),
    "a bitmap of more numbers than there is memory": ("bitmap", b"\xff" * 7 + b"\x7f"),
    "a bitmap that is no zstd": ("bitmap", b"\x08" + b"\0" * 7 + b"not zstd"),
    "a mask of more rows than there is memory": ("mask", b"\xff" * 7 + b"\x7fx"),
    "a mask that is no zstd": ("mask", b"\x08" + b"\0" * 7 + b"not zstd"),
    "a schema that is none": ("schema", b"\xff\xff\xff\xff\0\0\0\0"),
    "an entity that is no JSON": ("entity", b"\xc7"),
    "an entity without its state": ("entity", '{"pending":{}}'),
    "an index file that is empty": ("index", b""),
    "an entry file that is empty": ("entry-mapped", b"\0\0\0\0"),
    "a batch that is not as Arrow's format says": ("batch-message", b"\xff\xff\xff\xff\xc8\0\0\0"),
    "a progress without its batch": ("progress", '{"id": "q", "sources": []}'),
    "a progress whose sources are a text": ("progress", '{"id": "q", "batchId": 1, "sources": "s"}'),
    "a checkpoint that is nested very deeply": ("checkpoint", "[" * DEEP),
    "an address that is not ASCII": ("console-address", b"/?range=\xff"),
    "half a character in a field's name": ("console-change", b'/records\0{"record": {"n\xed\xa0\x80": 1}}'),
    "an event at a time that is none": ("history", '{"kind":"send","asked_at":"now"}'),
    "an event of a process that is an object": ("history", '{"kind":"send","process":{}}'),
    "an event that is nested very deeply": ("history", "[" * DEEP),
}


@pytest.mark.parametrize(("name", "given"), FOUND.values(), ids=FOUND)
def test_what_was_found_once_is_refused_by_name(name: str, given: str | bytes):
    assert not PARSERS[name].check(given if isinstance(given, bytes) else given.encode())


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("node-path", "/logs/u/commits/tip-abc"),
        ("node-path", "/logs/u/commits/" + "9" * 5000),
        ("file-name", "x/" + "9" * 5000),
    ],
)
def test_a_path_that_is_none_of_ours_is_nobodys(name: str, path: str):
    """It raised an error where a folder is listed: of half a byte, of a number that Python does not take for one."""
    assert not any(PARSERS[name].parse(path.encode()))
