"""A process of the old code that was not stopped before an upgrade. It does one thing after another, as it is asked on
standard input, and prints what came of it: "done", something else that it found, or the code of an error.

A script for the *old* code (see ``old_code.py``). ``make`` makes a small namespace; ``open`` opens all of it, and reads
what a running process has in memory; the others use that.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow as pa
from pyspark_ledger.entryfile import stage_entry

from pyspark_ledger.append import Batch, append
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.dedup import Claim
from pyspark_ledger.errors import LedgerError

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
KEYED = pa.schema([("k", pa.string()), ("v", pa.int64())])


def make(zookeeper: str, storage: str) -> str:
    with LedgerClient(zookeeper, storage) as client:
        client.create_topic("t", SCHEMA)
        client.create_topic("keyed", KEYED, key="k")
        with client.producer("t", "app", mint_tokens=True) as producer:
            for n in range(6):
                producer.send({"id": n, "name": "before"})
        with client.producer("keyed") as producer:
            producer.send({"k": "a", "v": 1})
        client.create_cursor("t", "sub", "earliest")
        tokens = client.tokens("t", "group")
        tokens.consume([first_tokens(client)[0]])
        tokens.mint(2)
        client.outbox("box").process("first", first_tokens(client)[1], lambda _: (["first"], []), entity="ann")
    return "done"


def first_tokens(client: LedgerClient) -> list[str]:
    return [record.token for record in client.reader("t", end="latest")]


class Open:
    """Everything, as a process has it that runs for long."""

    def __init__(self, zookeeper: str) -> None:
        self.client = LedgerClient(zookeeper)
        self.log = self.client.log("t")
        self.log.producers()
        self.tokens = first_tokens(self.client)
        self.group = self.client.tokens("t", "group")
        self.outside = self.group.mint(1)
        self.group.present(self.tokens)
        self.cursor = self.client.cursor("t", "sub")
        self.cursor.stats()
        self.outbox = self.client.outbox("box")
        self.outbox.state("ann")
        self.keyed = self.client.log("keyed")
        self.keyed.view()

    def append(self) -> None:
        rows = pa.RecordBatch.from_pylist([{"id": 100, "name": "straggler"}], SCHEMA)
        log = self.log
        entry = stage_entry(log.storage, log.topic.uuid, log.view().head.gc_epoch, [rows], "lz4", log.clock)
        append(log, Batch(log.clock.new_id(), (entry,), SCHEMA, claim=Claim("straggler", 0, "q", "r", b"")))

    def acknowledge(self) -> None:
        self.cursor.mark_delete("0:0:3")

    def reset(self) -> None:
        self.cursor.reset("latest")

    def subscribe(self) -> None:
        self.client.create_cursor("t", "late")

    def consume(self) -> list[bool]:
        return self.group.consume([self.tokens[2]])

    def consume_from_outside(self) -> list[bool]:
        return self.group.consume(self.outside)

    def is_present(self) -> list[bool]:
        return self.group.present([*self.tokens, *self.outside])

    def mint(self) -> list[str]:
        return self.group.mint(1)

    def process(self) -> None:
        self.outbox.process("second", self.tokens[3], lambda state: ([*(state or []), "second"], []), entity="ann")

    def new_entity(self) -> None:
        self.outbox.process("third", self.tokens[4], lambda _: (["third"], []), entity="bob")

    def collect(self) -> None:
        self.client.gc("t")

    def compact(self) -> None:
        self.client.compact("keyed")

    def collect_compacted(self) -> None:
        self.client.gc("keyed")

    def create_topic(self) -> None:
        self.client.create_topic("late", SCHEMA)

    def delete_topic(self) -> None:
        self.client.delete_topic("keyed")

    def set_policies(self) -> None:
        self.client.set_policies("t", snapshot_commits=7)

    def read(self) -> list[int]:
        return [record["id"] for record in self.client.reader("t", end="latest")]


def answers() -> None:
    opened: Open | None = None
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        try:
            if what == "make":
                answer: Any = make(*arguments)
            elif what == "open":
                if opened is not None:
                    opened.client.close()
                opened, answer = Open(*arguments), "done"
            else:
                answer = getattr(opened, what)() or "done"
        except LedgerError as error:
            answer = error.code
        print(json.dumps(answer), flush=True)


answers()
