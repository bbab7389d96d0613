"""A file of nodes has what was put into it, or is known to be damaged."""

from __future__ import annotations

import pytest

from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.files import nodefile
from pyspark_ledger.files.nodefile import NodeFile

FILE = NodeFile({"what": "a test"}, {"/logs/a/head": b"head", "/logs/a/dedup": b""}, {"a/tokens/blob": b"\x00\x01"})


def test_it_has_what_was_put_into_it():
    assert NodeFile.from_bytes(FILE.to_bytes(), "here") == FILE
    assert NodeFile.from_bytes(NodeFile().to_bytes(), "here") == NodeFile()


def test_every_flipped_bit_and_every_length_is_noticed():
    whole = FILE.to_bytes()
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(CorruptData, match="here is damaged"):
            NodeFile.from_bytes(bytes(flipped), "here")
        with pytest.raises(CorruptData, match="here is damaged"):
            NodeFile.from_bytes(whole[:at], "here")


def test_a_newer_format_is_refused_by_name(monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr(nodefile, "FORMAT", 2)
        written = FILE.to_bytes()
    with pytest.raises(InvalidInput, match=r"LEDGER_NEWER_FORMAT.*here has format 2, this version knows 1"):
        NodeFile.from_bytes(written, "here")
