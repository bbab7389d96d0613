"""Tokens: presence is the right to be processed; a token goes once, and with its effect (I11)."""

from __future__ import annotations

import threading
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.append import append as protocol
from pyspark_ledger.base.bitmap import Bitmap
from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.base.token_prefix import TokenPrefix
from pyspark_ledger.errors import CorruptData, DataLoss, InvalidInput, OutcomeUnknown
from pyspark_ledger.files.blobs import Blobs
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log import topics
from pyspark_ledger.metadata.port import Op, RootKey, TokenBlockKey, TokenChunkKey, TokenGroupKey, TransactionLost
from pyspark_ledger.testing import memory
from pyspark_ledger.testing.memory import Crash, Faults
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.spending import Spending
from pyspark_ledger.tokens.tokens import Tokens, minter_of
from tests.support.flaky import Behind
from tests.support.pipeline import TINY, Pipeline, batch_with_tokens, token_runs
from tests.support.rollback import restore, snapshot


@pytest.fixture
def pipeline(tmp_path) -> Pipeline:
    return Pipeline(tmp_path)


# -- the sink ----------------------------------------------------------------------------------------------------


def test_what_is_invoiced_again_is_masked_I11(pipeline):
    tokens = pipeline.order(1, 2, 3)
    assert pipeline.invoice([list(zip([1, 2], tokens, strict=False))]).dropped == 0
    again = pipeline.invoice([list(zip([1, 2, 3], tokens, strict=True))])
    assert (again.records, again.dropped) == (1, 2)
    assert pipeline.invoiced() == [1, 2, 3]
    nothing = pipeline.invoice([list(zip([1, 2, 3], tokens, strict=True))])
    assert (nothing.duplicate, nothing.dropped) == (True, 3)


def test_each_group_processes_every_record_once_I11(pipeline):
    tokens = pipeline.order(1, 2)
    for group in ("invoices", "shipments"):
        for _ in range(2):
            pipeline.invoice([list(zip([1, 2], tokens, strict=True))], group=group)
    assert pipeline.invoiced() == [1, 2, 1, 2]


def test_in_a_batch_the_first_record_of_a_token_wins_over_all_tasks(pipeline):
    one, two = pipeline.order(1, 2)
    pipeline.invoice([[(10, one), (11, one)], [(12, two), (13, one), (14, two)]])
    assert pipeline.invoiced() == [10, 12]


def test_with_fan_out_one_token_serves_all_records_of_its_batch_and_none_of_the_next(pipeline):
    one, two = pipeline.order(1, 2)
    pipeline.invoice([[(10, one), (11, one)], [(12, two), (13, one)]], fan_out=True)
    assert pipeline.invoiced() == [10, 11, 12, 13]
    pipeline.invoice([[(14, one), (15, two)]], fan_out=True)
    assert pipeline.invoiced() == [10, 11, 12, 13]


def test_a_token_that_never_existed_is_a_duplicate(pipeline):
    [real] = pipeline.order(1)
    [never_minted] = pipeline.order(2, mints=False)
    place, _, _ = real.rpartition(":")
    uuid = pipeline.orders.uuid
    foreign = "00000000-0000-4000-8000-000000000000"
    absent = [
        f"{place}:1",
        f"{uuid}:0:7:0",
        f"{uuid}:99:0:0",
        f"{foreign}:0:0:0",
        f"{uuid}:m{'0' * 32}:0",
        never_minted,
    ]
    done = pipeline.invoice([[(n, token) for n, token in enumerate([*absent, real])]])
    assert (done.dropped, pipeline.invoiced()) == (len(absent), [6])


def test_rows_that_were_masked_have_no_tokens_and_are_not_counted(pipeline):
    tokens = pipeline.order(*range(4))
    log = pipeline.log(pipeline.invoices)
    for numbers in ((0, 1), (0, 2, 1, 3)):  # of the second batch rows 0 and 2 are masked
        groups = Groups.in_namespace_of(log, "g")
        rows = [(n, tokens[n]) for n in numbers]
        protocol.append(log, batch_with_tokens(log, [rows], groups, mints=True))
    shipments = Tokens(log, "shipments")
    seconds = [TokenPrefix(pipeline.invoices.uuid, 0, 1).token(index) for index in range(4)]
    assert shipments.present(seconds) == [False, True, False, True]
    assert shipments.consume(seconds) == [False, True, False, True]
    assert [stats.in_flight for stats in shipments.stats()] == [2]  # the two of the first commit


def test_malformed_tokens_are_errors_that_name_the_row_and_change_nothing(pipeline):
    [good] = pipeline.order(1)
    for bad in ("no token", good + "x", good.replace(":", ";"), "", good.rpartition(":")[0], good[1:], good + ":-1"):
        with pytest.raises(InvalidInput, match=r"row 1 .*not a token"):
            token_runs([good, bad])
    with pytest.raises(InvalidInput, match=r"LEDGER_NO_TOKEN.*row 1"):
        token_runs([good, None])


def test_the_tokens_of_a_deleted_topic_are_gone(pipeline):
    tokens = pipeline.order(1)
    topics.delete_topic(pipeline.world.metadata(), "t")
    assert pipeline.invoice([[(1, tokens[0])]]).dropped == 1
    assert pipeline.invoiced() == []


def test_a_deleted_topic_takes_its_token_nodes_along(pipeline):
    pipeline.invoice([list(enumerate(pipeline.order(*range(30))))[::2]])
    pipeline.tokens().mint(3)
    assert len(pipeline.nodes()) > 1
    topics.delete_topic(pipeline.world.metadata(), "t")
    assert pipeline.nodes() == []
    assert pipeline.world.metadata().children(RootKey(pipeline.orders.uuid)) == []


# -- what it costs ---------------------------------------------------------------------------------------------------


def test_a_topic_consumed_in_order_costs_one_short_node_I13(pipeline):
    for first in range(0, 200, 5):
        tokens = pipeline.order(*range(first, first + 5))
        pipeline.invoice([list(zip(range(first, first + 5), tokens, strict=True))])
    [stats] = pipeline.tokens().stats()
    assert (stats.in_flight, stats.consumed, stats.nodes) == (0, 200, 1)
    assert stats.bytes < 50


@pytest.mark.parametrize("step", [1, 7_919])  # in order, and in an order of its own
def test_a_commit_that_consumes_a_hundred_thousand_tokens_touches_a_handful_of_nodes(tmp_path, step):
    pipeline = Pipeline(tmp_path, DEFAULT_LIMITS)
    tokens = pipeline.order(*range(100_000))
    log = pipeline.log(pipeline.invoices)
    sizes = []
    transact = log.metadata.transact
    log.metadata.transact = lambda ops: (sizes.append(sum(map(is_of_tokens, ops))), transact(ops))
    order = [number * step % 100_000 for number in range(100_000)]
    done = pipeline.invoice([[(number, tokens[number]) for number in order[:70_000:2]]], log)
    assert (done.records, done.dropped) == (35_000, 0)
    done = pipeline.invoice([[(number, tokens[number]) for number in order]], log)
    assert (done.records, done.dropped) == (65_000, 35_000)
    assert max(sizes) <= 2  # the group, and a chunk with gaps
    assert pipeline.tokens().stats()[0].in_flight == 0


def is_of_tokens(op: Op) -> bool:
    return isinstance(op.key, TokenGroupKey | TokenChunkKey | TokenBlockKey)


def test_gaps_take_nodes_and_files_and_give_them_back_when_they_close_I13(pipeline):
    numbers = list(range(64))
    tokens = pipeline.order(*numbers)
    pairs = list(zip(numbers, tokens, strict=True))
    before = pipeline.world.files()
    pipeline.invoice([[pair] for pair in pairs[::2]])
    [stats] = pipeline.tokens().stats()
    assert (stats.in_flight, stats.consumed) == (32, 32)
    assert stats.nodes > 1
    chunk_files = pipeline.world.files() - before
    assert chunk_files, "bitmaps over the limit are in files"
    pipeline.invoice([pairs[1::2]])
    [stats] = pipeline.tokens().stats()
    assert (stats.in_flight, stats.consumed, stats.nodes) == (0, 64, 1)
    assert pipeline.world.files() == before, "and the files are gone with their chunks"
    assert sorted(pipeline.invoiced()) == numbers


def test_gc_leaves_the_files_of_bitmaps_alone_I12(pipeline):
    tokens = pipeline.order(*range(32))
    pipeline.invoice([list(enumerate(tokens))[::2]])
    for _ in range(4):
        gc.collect(pipeline.log())
    assert pipeline.tokens().present(tokens) == [False, True] * 16


def test_a_consumption_that_is_too_large_is_refused_before_anything_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "MAX_TRANSACTION_BYTES", 40_000)
    pipeline = Pipeline(tmp_path, replace(TINY, token_block=1))
    tokens = pipeline.tokens().mint(400)  # each in a node of its own
    with pytest.raises(InvalidInput, match=r"LEDGER_TOO_LARGE.*maxRowsPerTrigger"):
        pipeline.invoice([list(enumerate(tokens))])
    assert pipeline.invoiced() == []
    assert all(pipeline.tokens().present(tokens[:10]))
    pipeline.invoice([list(enumerate(tokens))[:100]])
    assert len(pipeline.invoiced()) == 100


# -- from Python -----------------------------------------------------------------------------------------------------


def test_minted_tokens_are_there_until_one_consumes_them_and_their_block_goes_with_the_last_I11(pipeline):
    tokens = pipeline.tokens()
    ids = tokens.mint(10)
    assert len(set(ids)) == 10
    assert tokens.present(ids) == [True] * 10
    assert tokens.consume([ids[0], ids[0], ids[5]]) == [True, False, True]
    assert tokens.present(ids) == [False, True, True, True, True, False, True, True, True, True]
    assert pipeline.tokens().consume(ids) == [n not in (0, 5) for n in range(10)]
    assert [key for key in pipeline.nodes() if isinstance(key, TokenBlockKey)] == []
    [stats] = tokens.stats()
    assert (stats.in_flight, stats.blocks, stats.nodes) == (0, 0, 1)


def test_a_minted_token_counts_for_its_group_alone(pipeline):
    ids = pipeline.tokens("invoices").mint(2)
    assert pipeline.tokens("shipments").present(ids) == [False, False]
    pipeline.invoice([[(1, ids[0]), (2, ids[1])]], group="invoices")
    assert pipeline.invoiced() == [1, 2]


@pytest.mark.parametrize("wrong", [0, -1, True, "3", 1.5])
def test_mint_wants_a_number(pipeline, wrong):
    with pytest.raises(InvalidInput, match="how many tokens"):
        pipeline.tokens().mint(wrong)


def test_tokens_of_another_topic_and_texts_are_errors(pipeline):
    [token] = pipeline.order(1)
    other = Tokens(pipeline.log(pipeline.invoices), "g")
    for call in (other.present, other.consume):
        with pytest.raises(InvalidInput, match="does not belong to topic 'invoices'"):
            call([token])
        with pytest.raises(InvalidInput, match="list of tokens"):
            call(token)
        assert call([]) == []
    with pytest.raises(InvalidInput, match="token group's name"):
        Tokens(pipeline.log(), "a/b")


# -- races and faults ------------------------------------------------------------------------------------------------

FAULTS = ("lost_before", "applied_then_lost", "delayed", "expired")


@pytest.mark.parametrize("first", FAULTS)
@pytest.mark.parametrize("second", [None, *FAULTS])
def test_an_unknown_outcome_consumes_a_token_with_its_effect_or_not_at_all_I11_I14(pipeline, first, second):
    tokens = pipeline.order(1, 2)
    faults = Faults()
    log = pipeline.log(pipeline.invoices, faults)
    faults.next_transact(first, second)
    pipeline.invoice([list(zip([1, 2], tokens, strict=True))], log)
    pipeline.world.server.deliver_delayed()
    pipeline.invoice([list(zip([1, 2], tokens, strict=True))])
    assert pipeline.invoiced() == [1, 2]
    assert pipeline.tokens().present(tokens) == [False, False]


def before(metadata, method: str, action, of=None) -> None:
    """Does something once, right before the next call of a method (about one kind of key)."""
    original = getattr(metadata, method)

    def first(*arguments):
        if of is None or isinstance(arguments[0], of):
            setattr(metadata, method, original)
            action()
        return original(*arguments)

    setattr(metadata, method, first)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_rival_in_the_group_settles_an_unknown_outcome_for_good_I11_I14(pipeline, fault):
    """The head that the lost transaction checks is untouched: only the group has moved."""
    pipeline.log().ensure_part("tokens")
    tokens = pipeline.order(1, 2)
    faults = Faults(max_delay=1_000)
    log = pipeline.log(pipeline.invoices, faults)
    groups = Groups.in_namespace_of(log, "invoices")
    groups.group(pipeline.orders.uuid)
    batch = batch_with_tokens(log, [list(zip([1, 2], tokens, strict=True))], groups)
    rival_took: list[bool] = []
    before(log.metadata, "sync", lambda: rival_took.extend(pipeline.tokens().consume([tokens[0]])))
    faults.next_transact(fault)
    protocol.append(log, batch)
    pipeline.world.server.deliver_delayed()
    assert pipeline.invoiced() == ([2] if rival_took == [True] else [1, 2])
    assert rival_took == [fault != "applied_then_lost"]


def test_an_outcome_that_too_much_has_followed_is_not_guessed_I14(pipeline):
    pipeline.log().ensure_part("tokens")
    tokens = pipeline.order(*range(30))
    faults = Faults()
    mine = pipeline.tokens(faults=faults)
    mine.present(tokens)
    before(minter_of(mine).metadata, "sync", lambda: [pipeline.tokens().consume([token]) for token in tokens[1:]])
    faults.next_transact("applied_then_lost")
    with pytest.raises(OutcomeUnknown, match="too much has happened"):
        mine.consume(tokens[:1])


def test_nodes_that_a_lagging_server_does_not_know_yet_are_not_gone_I11(pipeline):
    tokens = pipeline.order(*range(40))
    pipeline.tokens().consume(tokens[::2])
    minted = pipeline.tokens().mint(2)
    [stats] = pipeline.tokens().stats()
    assert stats.nodes > 2
    for kind, ids, there in ((TokenChunkKey, tokens, [False, True] * 20), (TokenBlockKey, minted, [True, True])):
        lagging = pipeline.tokens()
        metadata = minter_of(lagging).metadata
        read = metadata.read
        answers = iter([None])
        metadata.read = lambda key, *more, kind=kind, read=read, answers=answers: (
            next(answers, read(key, *more)) if isinstance(key, kind) else read(key, *more)
        )
        assert lagging.present(ids) == there


def test_a_bitmap_whose_file_is_swept_meanwhile_is_read_again_I11(pipeline, monkeypatch):
    tokens = pipeline.order(*range(40))
    pipeline.tokens().consume(tokens[::2])
    mine = pipeline.tokens()
    fetch = Blobs.fetch

    def swept(self, file):
        monkeypatch.setattr(Blobs, "fetch", fetch)
        assert pipeline.tokens().consume([tokens[1]]) == [True]
        return fetch(self, file)

    monkeypatch.setattr(Blobs, "fetch", swept)
    assert mine.consume(tokens) == [number % 2 == 1 and number != 1 for number in range(40)]


def test_a_picture_of_the_topic_that_gc_has_overtaken_is_taken_again(pipeline):
    tokens = [token for _ in range(6) for token in pipeline.order(1)]  # more than a ledger
    mine = pipeline.tokens()
    assert mine.present(tokens) == [True] * 6
    for _ in range(9):  # the index that it knows is superseded,
        pipeline.order(1)
    collecting = pipeline.log()
    collecting.limits = replace(collecting.limits, gc_grace_ms=0)
    for _ in range(4):  # and gone
        gc.collect(collecting)
    mine._log.files._remembered.clear()
    assert mine.consume(tokens) == [True] * 6


def test_a_file_that_may_still_be_named_is_not_swept_I12(pipeline):
    pipeline.world.storage.make_folder("somewhere")
    blobs = Blobs(pipeline.world.storage, "somewhere", pipeline.world.clock)
    old, named, coming = blobs.stage(b"1", 1), blobs.stage(b"22", 2), blobs.stage(b"333", 3)
    blobs.sweep(2, named, None)
    assert (blobs.fetch(named), blobs.fetch(coming)) == (b"22", b"333")
    with pytest.raises(CorruptData, match="missing"):
        blobs.fetch(old)


@pytest.mark.parametrize("fault", FAULTS)
def test_consume_tells_the_truth_when_its_answer_is_lost_I11_I14(pipeline, fault):
    pipeline.log().ensure_part("tokens")  # else the fault would come to this
    tokens = pipeline.order(1, 2, 3)
    faults = Faults()
    mine, rival = pipeline.tokens(faults=faults), pipeline.tokens()
    faults.next_transact(fault)
    took = mine.consume(tokens[:2])
    assert took == [True, True]
    pipeline.world.server.deliver_delayed()
    assert rival.consume(tokens) == [False, False, True]


@pytest.mark.parametrize("by_sink", [False, True])
def test_a_mint_that_is_applied_late_brings_no_token_back_I11(pipeline, by_sink):
    """Its answer was lost, it was sent again, and the tokens were used up before the first sending arrived."""
    faults = Faults(max_delay=10_000)
    mine = pipeline.tokens(faults=faults)
    minter_of(mine).ensure_group()
    faults.next_transact("delayed")
    tokens = mine.mint(2)
    if by_sink:
        pipeline.invoice([list(enumerate(tokens))])
    else:
        assert pipeline.tokens().consume(tokens) == [True, True]
    pipeline.world.server.deliver_delayed()
    assert pipeline.tokens().present(tokens) == [False, False]


def test_a_mint_that_is_applied_late_is_not_there_after_it_was_taken_back_I11(pipeline):
    faults = Faults(max_delay=10_000)
    minter = minter_of(pipeline.tokens(faults=faults))
    minter.ensure_group()
    prefix = minter.new_prefix()
    faults.next_transact("delayed")
    minter.mint_at(prefix, 2)
    minter.discard(prefix)
    pipeline.world.server.deliver_delayed()
    assert pipeline.tokens().stats()[0].blocks == 0


def test_of_two_that_consume_at_once_one_is_told_so_I11(pipeline):
    tokens = pipeline.order(*range(50))
    took: list[list[bool]] = []
    threads = [
        threading.Thread(target=lambda: took.append([pipeline.tokens().consume([t])[0] for t in tokens]))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sum(told) for told in zip(*took, strict=True)] == [1] * 50


@pytest.mark.parametrize("applied", [False, True])
def test_a_writer_that_dies_leaves_the_token_and_no_effect_or_the_effect_and_no_token_I11(pipeline, applied):
    tokens = pipeline.order(*range(12))
    faults = Faults()
    log = pipeline.log(pipeline.invoices, faults)
    log.view()
    faults.crash_at(1, applied=applied)
    with pytest.raises(Crash):
        pipeline.invoice([list(enumerate(tokens))[::2]], log)
    left = pipeline.tokens().present(tokens)
    assert pipeline.invoiced() == [n for n in range(12) if not left[n]]
    pipeline.invoice([list(enumerate(tokens))])
    assert sorted(pipeline.invoiced()) == list(range(12))


def test_a_chunk_that_was_folded_meanwhile_cannot_be_made_again_I11(pipeline):
    """The nodes that a stale picture would create or change are gone again: only the group's version tells."""
    tokens = pipeline.order(*range(8))  # one chunk
    stale = Groups.in_namespace_of(pipeline.log(pipeline.invoices), "invoices")
    stale.group(pipeline.orders.uuid)
    for token in tokens:
        assert pipeline.tokens().consume([token]) == [True]
    assert len(pipeline.nodes()) == 1
    log = pipeline.log(pipeline.invoices)
    protocol.append(log, batch_with_tokens(log, [list(enumerate(tokens))], stale))
    assert pipeline.invoiced() == []


def test_who_decided_from_an_older_picture_consumes_nothing_twice_I11(pipeline):
    one, two = pipeline.order(1, 2)
    pipeline.tokens().consume([one])
    mine = pipeline.tokens()
    assert mine.present([two]) == [True]
    assert pipeline.tokens().consume([two]) == [True]
    assert mine.consume([two]) == [False]


def test_a_token_of_an_entry_that_its_sealed_ledger_never_had_is_not_there_I11(pipeline):
    for _ in range(6):  # more than a ledger
        pipeline.order(1)
    assert pipeline.tokens().present([TokenPrefix(pipeline.orders.uuid, 0, 7).token(0)]) == [False]


def test_present_asks_what_is_stored_now_I11(pipeline):
    tokens = pipeline.order(1)
    mine = pipeline.tokens()
    assert mine.present(tokens) == [True]
    pipeline.tokens().consume(tokens)
    assert mine.present(tokens) == [False]


@pytest.mark.parametrize("wanted", [1, 2], ids=["of a block", "the whole block"])
def test_a_minted_token_that_was_consumed_since_the_block_was_read_is_not_consumed_again_I11(pipeline, wanted):
    """The group is read later, and is new enough: only the block's version tells."""
    tokens = pipeline.tokens().mint(2)
    log = pipeline.log()
    spending = Spending(Groups.in_namespace_of(log, "invoices"))
    assert spending.take(token_runs(tokens[:wanted])) is None
    assert pipeline.tokens().consume(tokens[:1]) == [True]
    with pytest.raises(TransactionLost):
        log.metadata.transact(spending.ops())


def test_a_token_that_was_minted_a_moment_ago_is_there_I11(pipeline):
    tokens = pipeline.tokens().mint(2)
    groups = Groups.in_namespace_of(pipeline.log(faults=Behind(6)), "invoices")
    assert Spending(groups).take(token_runs(tokens)) is None


def test_what_was_read_before_a_rollback_is_read_again_after_a_reconnect_I11_I18(pipeline):
    """Two histories, in each of which a token was consumed: the group's version is the same."""
    one, two = pipeline.order(1, 2)
    mine = pipeline.tokens()
    minter_of(mine).ensure_group()
    backup = snapshot(pipeline.world.server)
    assert mine.consume([one]) == [True]
    restore(pipeline.world.server, backup)
    assert pipeline.tokens().consume([two]) == [True]
    minter_of(mine).metadata.reconnect()
    assert mine.consume([two]) == [False]


def test_a_chunk_that_was_used_up_meanwhile_is_read_again_and_not_looked_for_I11(pipeline):
    tokens = pipeline.order(*range(40))
    pipeline.tokens().consume(tokens[::2])
    mine = pipeline.tokens()
    mine._groups.group(pipeline.orders.uuid)
    pipeline.tokens().consume(tokens[1:8:2])
    assert mine.consume([tokens[1]]) == [False]


def test_a_bitmap_whose_file_is_lost_is_damage_by_name_I16(pipeline):
    tokens = pipeline.order(*range(40))
    pipeline.tokens().consume(tokens[::2])
    for path in [path for path in pipeline.world.files() if "token" in path]:
        pipeline.world.storage.delete(path)
    with pytest.raises(CorruptData, match="LEDGER_FILE_MISSING"):
        pipeline.tokens().present(tokens)


def test_what_was_read_meanwhile_is_not_replaced_by_an_older_state_I11(pipeline):
    one, two, three = pipeline.order(1, 2, 3)
    pipeline.tokens().consume([one])
    log = pipeline.log()
    groups = Groups.in_namespace_of(log, "invoices")
    spending = Spending(groups)
    spending.take(token_runs([two]))
    log.metadata.transact(spending.ops())
    pipeline.tokens().consume([three])
    groups.reload()  # another thread, before this one notes what it has done
    spending.committed()
    assert Spending(groups).take(token_runs([three])).to_pylist() == [False]


def test_a_sink_whose_source_was_rolled_back_is_told_and_drops_nothing_as_a_duplicate_I18(pipeline):
    """To a second look the token never existed, and its record would be left out."""
    log = pipeline.log(pipeline.invoices)
    groups = Groups.in_namespace_of(log, "invoices")
    backup = snapshot(pipeline.world.server)
    pipeline.order(1)
    groups.group(pipeline.orders.uuid).log.refresh(sync=True)
    tokens = pipeline.order(2)
    restore(pipeline.world.server, backup)
    pipeline.order(3)
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        protocol.append(log, batch_with_tokens(log, [[(2, tokens[0])]], groups))


# -- the small parts ---------------------------------------------------------------------------------------------


@given(size=st.integers(1, 3_000), data=st.data())
def test_a_bitmap_is_a_set(size, data):
    bitmap, model = Bitmap(size), set()
    number = st.integers(0, size - 1)
    for start, width, numbers in data.draw(
        st.lists(st.tuples(number, st.integers(0, 2_000), st.lists(number, max_size=5)), max_size=6)
    ):
        stop = min(size, start + width)
        assert bitmap.has_none(start, stop) == model.isdisjoint(range(start, stop))
        bitmap.fill(start, stop)
        bitmap.add(pa.array(numbers, pa.int64()))
        bitmap.add(pa.array(list(range(start, stop)) * 2, pa.int64()))  # at times more than a few
        model |= {*range(start, stop), *numbers}
    everything = pa.arange(0, size)
    assert {n for n, there in enumerate(bitmap.has(everything).to_pylist()) if there} == model
    assert Bitmap(size, bitmap.pack()) == bitmap == bitmap.copy()
    assert (bitmap.count, bitmap.is_full) == (len(model), len(model) == size)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=40), st.booleans())
def test_tokens_in_rows_and_in_runs_are_decided_alike(rows, fan_out):
    """The short way and the long way: the same records."""
    import tempfile
    from pathlib import Path

    from pyspark_ledger.tokens import spending

    invoiced = []
    few = spending.FEW_RUNS
    for limit in (few, -1):
        spending.FEW_RUNS = limit
        try:
            with tempfile.TemporaryDirectory() as folder:
                pipeline = Pipeline(Path(folder))
                tokens = [pipeline.order(*range(5)) for _ in range(3)]
                pipeline.tokens().consume([tokens[1][2]])
                # Index 5 and 6 are past the entry's end: those never existed.
                wanted = [f"{tokens[entry][0].rpartition(':')[0]}:{index}" for entry, index in rows]
                half = len(rows) // 2
                tasks = [list(enumerate(wanted))[:half], list(enumerate(wanted))[half:]]
                pipeline.invoice([task for task in tasks if task], fan_out=fan_out) if rows else None
                invoiced.append(pipeline.invoiced())
        finally:
            spending.FEW_RUNS = few
    seen: set[tuple[int, int]] = {(1, 2)}
    expected = []
    for number, row in enumerate(rows):
        if row[1] < 5 and (row not in seen or (fan_out and row != (1, 2))):
            expected.append(number)
            seen.add(row)
    assert invoiced == [expected, expected]


def test_who_asks_whether_a_token_is_there_is_not_answered_from_a_server_that_is_behind_I14(pipeline):
    (token,) = pipeline.order(1)
    assert pipeline.tokens().consume([token]) == [True]
    assert pipeline.tokens(faults=Behind(1)).present([token]) == [False]
