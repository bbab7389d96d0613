"""Every public name says what it does, and the examples in docstrings are true."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from types import FunctionType

import pyarrow as pa
import pytest

from pyspark_ledger import client as client_module
from pyspark_ledger import errors
from pyspark_ledger.append.prepared import AppendResult
from pyspark_ledger.append.producer import Producer, Receipt, Sent
from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.compaction.run import CompactionStats
from pyspark_ledger.compaction.table_view import TableView
from pyspark_ledger.cursors.consumer import Consumer, Message
from pyspark_ledger.cursors.handle import CursorHandle, CursorStats, MemberStats, ResetPreview, ResetResult
from pyspark_ledger.cursors.shared_consumer import SharedConsumer
from pyspark_ledger.lifecycle.gc import Collected
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from pyspark_ledger.log.reader import Reader, Record
from pyspark_ledger.metadata.records import Policies, ProducerState, Topic
from pyspark_ledger.outbox.entities import Pending
from pyspark_ledger.outbox.outbox import Dispatch, Outbox, Processed, Send
from pyspark_ledger.tokens.tokens import Tokens, TokenStats

ERRORS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.LedgerError)]
KINDS = [
    AppendResult, Collected, CompactionStats, Consumer, CursorHandle, CursorStats, Dispatch, LedgerClient,
    LocalZooKeeper, MemberStats, Message, Outbox, Pending, Policies, Position, Processed, Producer, ProducerState,
    Reader, Receipt, Record, ResetPreview, ResetResult, Send, Sent, SharedConsumer, TableView, TokenStats, Tokens,
    Topic, *ERRORS,
]  # fmt: skip
SHORTEST = 15  # a docstring of fewer characters says nothing that the name does not


def public_names(kind: type) -> Iterator[str]:
    """What dir() shows, without what Python itself brings."""
    for name in dir(kind):
        owner = next(base for base in kind.__mro__ if name in vars(base))
        if not name.startswith("_") and owner.__module__.startswith("pyspark_ledger"):
            yield name


def is_documented(kind: type, name: str) -> bool:
    member = inspect.getattr_static(kind, name)
    if isinstance(member, property | classmethod | FunctionType):
        return len(inspect.getdoc(getattr(kind, name)) or inspect.getdoc(member) or "") >= SHORTEST
    listed = (re.search(rf"^ +{name}: \S", base.__doc__ or "", re.M) for base in kind.__mro__)
    return any(listed)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_public_name_has_a_docstring(kind):
    assert len(kind.__doc__ or "") >= SHORTEST
    if is_dataclass(kind):
        assert not kind.__doc__.startswith(f"{kind.__name__}("), "made by dataclass"
    assert [name for name in public_names(kind) if not is_documented(kind, name)] == []


# -- examples ------------------------------------------------------------------------------------------------------


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder()
    found = [test for kind in (*KINDS, LedgerClient) for test in finder.find(kind, kind.__qualname__)]
    found += doctest.DocTestFinder(recurse=False).find(client_module)
    return [test for test in found if test.examples]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_the_examples_are_true(example, namespace, storage_root):
    """Each begins with a new namespace that has one topic, ``orders``, with three records."""
    printed: list[str] = []
    with LedgerClient(namespace, storage_root) as client:
        schema = pa.schema([("order_id", pa.int64()), ("amount", pa.float64())])
        client.create_topic("orders", schema, key="order_id")
        with client.producer("orders", name="shop") as producer:
            for number, amount in ((1, 9.5), (2, 20.0), (3, 5.25)):
                producer.send({"order_id": number, "amount": amount})
        example.globs |= {
            "LedgerClient": LedgerClient, "UTC": UTC, "client": client, "datetime": datetime, "namespace": namespace,
            "pa": pa, "storage_root": storage_root, "timedelta": timedelta,
        }  # fmt: skip
        results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=printed.append)
    assert results.failed == 0, "".join(printed)
