"""Valid inputs, damaged: what a torn write, a bad disk, a wrong hand or an attacker makes of them."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from random import Random

# Where arithmetic, casts and allocations go wrong.
NUMBERS = (0, 1, -1, 127, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63)
# As text also those that are longer than any type, and the last one than what Python takes for a number.
SPELLINGS = (
    *map(str, NUMBERS), str(-(1 << 63)), "1" + "0" * 30, "-1" + "0" * 400, "1" + "0" * 5000, "1e999999999",
    "1e-999999999", "NaN", "Infinity", "-0", "0x10", "٣", "null", "true", "[]", "{}", '""',
)  # fmt: skip
PIECES = (
    b"\0", b"\n", b",", b":", b"=", b"'", b'"', b"`", b"<", b">", b"[" * 2000, b'{"a":' * 2000, b"array<" * 2000,
    b"\xff" * 100, "ſıé٣𝟘".encode(), b"\xed\xa0\x80", b"\\ud800", b"\x80" * 30, b"(" * 50, b"../", b"%00", b"--",
)  # fmt: skip


def mutate(data: bytes, other: bytes, random: Random) -> bytes:
    """The input with one to four changes; ``other`` is another valid one, to take pieces from."""
    for _ in range(random.choice((1, 1, 2, 4))):
        data = random.choice(CHANGES)(data, other, random)
    return data


def _span(data: bytes, random: Random) -> tuple[int, int]:
    start = random.randint(0, len(data))
    return start, min(len(data), start + random.choice((1, 1, 4, 8, 64, len(data))))


def _flip(data: bytes, _: bytes, random: Random) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def _replace(data: bytes, _: bytes, random: Random) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]


def _cut(data: bytes, _: bytes, random: Random) -> bytes:
    start, stop = _span(data, random)
    return data[:start] + data[stop:]


def _shorten(data: bytes, _: bytes, random: Random) -> bytes:
    return data[: random.randint(0, len(data))]


def _insert(data: bytes, _: bytes, random: Random) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + random.choice(PIECES) + data[at:]


def _double(data: bytes, _: bytes, random: Random) -> bytes:
    start, stop = _span(data, random)
    return data[:stop] + data[start:stop] * random.choice((1, 2, 50)) + data[stop:]


def _splice(data: bytes, other: bytes, random: Random) -> bytes:
    return data[: random.randint(0, len(data))] + other[random.randint(0, len(other)) :]


def _overwrite(data: bytes, other: bytes, random: Random) -> bytes:
    start, stop = _span(other, random)
    at = random.randint(0, len(data))
    return data[:at] + other[start:stop] + data[at + stop - start :]


def _binary_number(data: bytes, _: bytes, random: Random) -> bytes:
    form = random.choice(("<B", "<H", "<I", "<Q", ">I", ">Q"))
    size = struct.calcsize(form)
    at = random.randint(0, max(0, len(data) - size))
    at -= at % size if random.random() < 0.5 else 0
    number = random.choice(NUMBERS) & ((1 << 8 * size) - 1)
    return data[:at] + struct.pack(form, number) + data[at + size :]


def _spelled_number(data: bytes, _: bytes, random: Random) -> bytes:
    found = list(re.finditer(rb"-?\d+(?:\.\d+)?", data))
    if not found:
        return data
    number = random.choice(found)
    return data[: number.start()] + random.choice(SPELLINGS).encode() + data[number.end() :]


CHANGES: tuple[Callable[[bytes, bytes, Random], bytes], ...] = (
    _flip, _replace, _cut, _shorten, _insert, _double, _splice, _overwrite, _binary_number, _binary_number,
    _spelled_number, _spelled_number,
)  # fmt: skip
