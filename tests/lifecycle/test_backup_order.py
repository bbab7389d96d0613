"""Whatever happens during a round of backup, and wherever it ends: what storage has of the logs is never older than
what it has of subscriptions, tokens and entities (I1, I11)."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from pyspark_ledger.base.bitmap import Bitmap
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.lifecycle.backup import Backup
from pyspark_ledger.metadata.port import CursorKey, EntityKey, HeadKey, TokenChunkKey, TokenGroupKey
from pyspark_ledger.outbox.entities import Content
from pyspark_ledger.testing.memory import Crash
from pyspark_ledger.tokens.tokens import Tokens
from tests.support.backups import ENTITY, OUTBOX, Shop, before_each_call, in_storage, pace


def count(shop: Shop) -> tuple[int, int, int, int, int, int]:
    """What storage has: records of the invoices; tokens that the sink and the outbox have consumed; how many the
    entity has counted; and how many orders and invoices are acknowledged."""
    found = in_storage(shop.storage)
    orders, invoices = shop.uuid("orders"), shop.uuid("invoices")
    groups = [found.get(TokenGroupKey(orders, name)) for name in ("invoices", OUTBOX)]
    entity = found.get(EntityKey(OUTBOX, ENTITY))
    state = Content.from_bytes(entity.content).state if entity is not None else {"count": 0}
    cursors = [found.get(CursorKey(uuid, "sub")) for uuid in (orders, invoices)]
    head = found[HeadKey(invoices)]
    return (
        head.records,
        *(group.consumed if group is not None else 0 for group in groups),
        state["count"],
        *(cursor.ordinal if cursor is not None else 0 for cursor in cursors),
    )


def check(shop: Shop, where: object) -> None:
    records, by_sink, by_outbox, counted, orders, invoices = found = count(shop)
    assert by_sink + counted <= records, (where, found)  # a token is gone, or a state changed, and the record is there
    assert by_outbox <= counted, (where, found)  # a token is gone, and the state has it
    assert max(orders, invoices) <= records, (where, found)  # nobody is past the end, nor past what was done


def interrupted(act_at: int, act: Callable[[Shop], None], die_at: int | None) -> tuple[Shop, int, int]:
    """A round in which somebody acts before one of its requests, and which dies before one of its calls to the disk.
    Returns how many of both there were."""
    shop = Shop(orders=12)
    shop.everybody()
    shop.round()
    shop.everybody()
    process = shop.open()
    requests = calls = 0

    def before(number: int) -> None:
        nonlocal requests
        requests += 1
        if number == act_at:
            act(shop)

    def on_disk(_: str) -> None:
        nonlocal calls
        if calls == die_at:
            raise Crash("here")
        calls += 1

    before_each_call(process.metadata, before)
    process.storage.on_call = on_disk
    with suppress(Crash):
        Backup(process).run(pace(shop.clock))
    return shop, requests, calls


EVERYBODY = {"each after the other": Shop.everybody, "a sink": Shop.invoice, "a handler": Shop.bill}


@pytest.mark.parametrize("who", EVERYBODY)
def test_whoever_acts_between_two_requests_of_a_round_I1_I11(who):
    _, requests, _ = interrupted(-1, EVERYBODY[who], None)
    assert requests > 20
    for act_at in range(requests):
        shop, _, _ = interrupted(act_at, EVERYBODY[who], None)
        check(shop, act_at)
        shop.round()
        assert count(shop) == (shop.done, shop.done - shop.bills, shop.bills, shop.bills, *count(shop)[4:])


def test_a_round_that_dies_anywhere_while_everybody_acts_I1_I11():
    _, requests, calls = interrupted(-1, Shop.everybody, None)
    draw = random.Random(3)
    for die_at in range(calls):
        for act_at in draw.sample(range(requests), 3):
            shop, _, _ = interrupted(act_at, Shop.everybody, die_at)
            check(shop, (die_at, act_at))
            shop.disk.power_loss(draw)
            shop.namespace = shop.open()
            check(shop, (die_at, act_at, "after a power cut"))
            shop.round()
            check(shop, (die_at, act_at, "after the next round"))
            assert count(shop)[0] == shop.done


def consumed(shop: Shop, group: str) -> tuple[int, int]:
    """What storage has of a group: how many tokens it says that it has consumed, and how many bits are set."""
    found, uuid = in_storage(shop.storage), shop.uuid("orders")
    record = found[TokenGroupKey(uuid, group)]
    size, bitmaps = record.chunk_tokens, [bitmap for _, bitmap in record.partials]
    spilled = [chunk for start, stop in Runs.unpack(record.spilled, 0) for chunk in range(start, stop)]
    bitmaps += [found[TokenChunkKey(uuid, group, chunk)].bitmap for chunk in spilled]
    whole = sum(stop - start for start, stop in Runs.unpack(record.whole, 0))
    return record.consumed, whole * size + sum(Bitmap(size, bitmap).count for bitmap in bitmaps)


def test_a_token_group_is_saved_with_the_chunks_that_belong_to_it_I11():
    """Its chunks are nodes of their own, and some are in files which the next consumption deletes."""
    step, acted = 0, True
    while acted:
        shop, acted = Shop(orders=200), False
        group = Tokens(shop.namespace.log("orders"), "scattered")
        assert group.consume(shop.tokens[::3])
        process = shop.open()

        def act(number: int, group=group, shop=shop, step=step) -> None:
            nonlocal acted
            if number == step:
                acted = True
                assert group.consume(shop.tokens[1:120:3])
                assert group.consume(shop.tokens[2:120:3])  # some chunks are whole now, and have no node any more

        before_each_call(process.metadata, act)
        assert Backup(process).run(pace(shop.clock)).failed == {}
        says, has = consumed(shop, "scattered")
        assert says == has, (step, says, has)
        step += 1
    assert step > 30
