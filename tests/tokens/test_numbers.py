"""Tokens as numbers: the same tokens, in 8 bytes (I11)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_ledger.append import append as protocol
from pyspark_ledger.base.token_prefix import first_number
from pyspark_ledger.errors import DataLoss, InvalidInput
from pyspark_ledger.lifecycle import gc, retention, rewriting
from pyspark_ledger.lifecycle.repair import accept_loss
from pyspark_ledger.log import index, topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.ids import NumberRuns, check_column
from tests.support.pipeline import TINY, Pipeline, batch_with_tokens
from tests.support.rollback import restore, snapshot
from tests.support.worlds import SCHEMA


@pytest.fixture
def pipeline(tmp_path) -> Pipeline:
    return Pipeline(tmp_path)


def test_a_token_is_spent_however_it_is_spelled_I11(pipeline):
    text = pipeline.order(*range(6))
    numbers = pipeline.numbers()
    pipeline.invoice([list(enumerate(numbers[:3]))])
    again = pipeline.invoice([list(enumerate(text))])
    assert (again.records, again.dropped) == (3, 3)
    once_more = pipeline.invoice([list(enumerate(numbers))])
    assert (once_more.duplicate, once_more.dropped) == (True, 6)
    assert pipeline.invoiced() == list(range(6))
    assert pipeline.tokens().present(numbers) == pipeline.tokens().present(text) == [False] * 6
    assert pipeline.tokens("others").consume(numbers[1:3]) == [True, True]
    assert pipeline.tokens("others").present(text) == [True, False, False, True, True, True]


def test_of_a_number_the_first_record_in_a_batch_wins_unless_it_may_fan_out(pipeline):
    pipeline.order(1, 2)
    one, two = pipeline.numbers()
    pipeline.invoice([[(10, one), (11, one)], [(12, two), (13, one)]])
    assert pipeline.invoiced() == [10, 12]
    pipeline.invoice([[(10, one), (11, one)], [(12, two), (13, one)]], group="all", fan_out=True)
    assert pipeline.invoiced() == [10, 12, 10, 11, 12, 13]


def test_numbers_follow_one_another_over_commits_ledgers_and_what_was_written_without_tokens(pipeline):
    for count in range(1, 12):
        pipeline.order(*range(count), mints=count % 3 > 0)
    first = first_number(pipeline.orders.uuid)
    numbers = [number for number in pipeline.numbers() if number is not None]
    assert numbers == list(range(first, first + len(numbers)))
    assert pipeline.log().view().head.ledger > 0, "there are sealed ones"
    assert [record.ordinal for record in Reader(pipeline.log(), "earliest", "latest")] == list(range(66))
    assert pipeline.invoice([list(enumerate(numbers))]).dropped == 0
    assert pipeline.tokens().stats()[0].in_flight == 0


@pytest.mark.parametrize("strange", [-1, 2, 1 << 40], ids=["before the first", "past the last", "far away"])
def test_a_number_that_no_record_has_is_an_error_by_name_and_changes_nothing(pipeline, strange):
    pipeline.order(1, 2)
    pipeline.order(3, mints=False)
    one, two, none = pipeline.numbers()
    assert none is None
    wrong = first_number(pipeline.orders.uuid) + strange
    with pytest.raises(InvalidInput, match=f"LEDGER_INVALID_TOKEN.*number {wrong} is no token of topic 't'"):
        pipeline.invoice([[(1, one), (2, wrong), (3, two)]])
    with pytest.raises(InvalidInput, match="LEDGER_INVALID_TOKEN"):
        pipeline.tokens().present([wrong])
    assert (pipeline.invoiced(), pipeline.tokens().present([one, two])) == ([], [True, True])


def test_what_is_no_number_of_the_topic_is_found_by_the_task_and_names_the_row():
    uuid = "00000000-0000-4000-8000-00000000000a"
    for bad, words in (
        (None, r"LEDGER_NO_TOKEN.*row 3 .*mintTokens"),
        (9, r"LEDGER_INVALID_TOKEN.*row 3 .*number 9 is no token of topic 'orders'"),
        (-(1 << 63), r"LEDGER_INVALID_TOKEN.*row 3"),
        ((1 << 63) - 1, r"LEDGER_INVALID_TOKEN.*row 3"),
    ):
        runs = NumberRuns(uuid, "orders")
        runs.add(pa.array([10, 11]))
        with pytest.raises(InvalidInput, match=words):
            runs.add(pa.array([12, bad], pa.int64()))
        with pytest.raises(InvalidInput):
            runs.add(pa.array([bad, 12], pa.int64()))


@pytest.mark.parametrize(
    ("kind", "topic", "problem"),
    [
        (pa.string(), "orders", "leave option 'tokenTopic' out"),
        (pa.int64(), "", "name the topic whose tokens they are in option 'tokenTopic'"),
        (pa.int32(), "orders", "is of type int32: it must be a string, or a long with option 'tokenTopic'"),
        (pa.float64(), "", "is of type double"),
        (pa.string(), "", ""),
        (pa.int64(), "orders", ""),
    ],
)
def test_a_column_has_text_or_numbers_of_a_topic_that_is_named(kind, topic, problem):
    schema = pa.schema([("n", pa.int64()), ("t", kind)])
    with pytest.raises(InvalidInput, match=f"tokenColumn 't' .*{problem}") if problem else nullcontext():
        check_column(schema, "t", topic)


@pytest.mark.parametrize("wrong", [["a"], [True], [1, "a"], [1.0], [None], [-1], [1 << 63]])
def test_a_list_of_other_things_is_an_error(pipeline, wrong):
    with pytest.raises(InvalidInput, match="LEDGER_INVALID_TOKEN"):
        pipeline.tokens().consume(wrong)


def test_the_numbers_of_a_topic_that_was_made_again_or_of_another_one_are_none_of_its_own(pipeline):
    pipeline.order(1, 2, 3)
    before = pipeline.numbers()
    metadata = pipeline.world.metadata()
    topics.delete_topic(metadata, "t")
    pipeline.orders = topics.create_topic(metadata, "t", SCHEMA, storage=pipeline.world.storage)
    pipeline.order(1, 2, 3)
    assert not set(before) & set(pipeline.numbers())
    with pytest.raises(InvalidInput, match="LEDGER_INVALID_TOKEN"):
        pipeline.invoice([list(enumerate(before))])
    pipeline.invoice([list(enumerate(pipeline.numbers()))])
    pipeline.orders = pipeline.invoices  # as if option tokenTopic named the wrong one
    with pytest.raises(InvalidInput, match="LEDGER_INVALID_TOKEN"):
        pipeline.invoice([list(enumerate(before))])


def test_a_batch_whose_tokens_are_of_a_topic_that_is_deleted_meanwhile_is_refused_by_name(pipeline):
    pipeline.order(1)
    log = pipeline.log(pipeline.invoices)
    rows = [(1, pipeline.numbers()[0])]
    batch = batch_with_tokens(log, [rows], Groups.in_namespace_of(log, "g"), minted_by=pipeline.orders)
    topics.delete_topic(pipeline.world.metadata(), "t")
    with pytest.raises(InvalidInput, match=r"LEDGER_INVALID_TOKEN.*was deleted"):
        protocol.append(log, batch)


def test_who_knows_an_older_end_looks_again(pipeline):
    log = pipeline.log(pipeline.invoices)
    groups = Groups.in_namespace_of(log, "g")
    for number in range(3):
        pipeline.order(number)
        rows = [(number, pipeline.numbers()[-1])]
        protocol.append(log, batch_with_tokens(log, [rows], groups, minted_by=pipeline.orders))
    assert pipeline.invoiced() == [0, 1, 2]


# -- over all that happens to a topic ----------------------------------------------------------------------------


def spelled(log: Log) -> list[tuple[int, int | None, int | None]]:
    return [(record["n"], record.ordinal, record.token_number) for record in Reader(log, "earliest", "latest")]


def test_ordinals_and_numbers_stay_over_sealing_rewriting_trimming_and_gc(pipeline):
    tokens = [pipeline.order(*range(10 * n, 10 * n + 3), mints=n != 2) for n in range(9)]
    log = pipeline.log(pipeline.invoices)
    rows = [(n, token) for n, token in enumerate(tokens[0] + tokens[1])]
    for some in (rows[:1] + rows[2:3], rows):  # of the second batch two rows are masked
        groups = Groups.in_namespace_of(log, "g")
        protocol.append(log, batch_with_tokens(log, [some], groups, mints=True))
    first = first_number(pipeline.invoices.uuid)
    assert spelled(pipeline.log(pipeline.invoices)) == [(n, i, first + i) for i, n in enumerate([0, 2, 1, 3, 4, 5])]

    before = spelled(pipeline.log())
    assert [ordinal for _, ordinal, _ in before] == list(range(27))
    rewriting.rewrite(pipeline.log(), below_bytes=1 << 30)
    assert spelled(pipeline.log()) == before
    retention.trim(pipeline.log(), before="2:0:0")
    left = before[-len(spelled(pipeline.log())) :]
    assert 0 < len(left) < len(before)
    assert spelled(pipeline.log()) == left
    for _ in range(3):
        gc.collect(pipeline.log())
    assert spelled(pipeline.log()) == left


def test_of_records_that_are_gone_a_number_that_was_consumed_is_a_duplicate_and_another_one_is_data_loss(tmp_path):
    pipeline = Pipeline(tmp_path, replace(TINY, gc_grace_ms=0))
    for n in range(9):
        pipeline.order(3 * n, 3 * n + 1, 3 * n + 2)
    numbers = pipeline.numbers()
    pipeline.invoice([list(enumerate(numbers))[:2]])
    retention.trim(pipeline.log(), before="2:0:0")
    assert pipeline.invoice([list(enumerate(numbers))[:3]]).dropped == 2, "batches that were planned before may go on"
    for _ in range(3):
        gc.collect(pipeline.log())
    assert pipeline.invoice([list(enumerate(numbers))[:3]]).dropped == 3
    for lost in (numbers[2:4], [numbers[3]], [numbers[-1], numbers[3]]):
        with pytest.raises(DataLoss, match=r"LEDGER_TRIMMED.*group 'invoices'"):
            pipeline.invoice([list(enumerate(lost))])
    with pytest.raises(DataLoss, match="LEDGER_TRIMMED"):
        pipeline.invoice([list(enumerate(numbers))[:1]], group="later")
    assert pipeline.invoice([[(1, numbers[0]), (26, numbers[-1])]]).records == 1


@pytest.mark.parametrize("as_numbers", [True, False])
def test_what_a_rival_has_consumed_before_it_was_given_up_is_no_data_loss_I11(tmp_path, as_numbers):
    pipeline = Pipeline(tmp_path, replace(TINY, gc_grace_ms=0))
    tokens = [token for n in range(9) for token in pipeline.order(3 * n, 3 * n + 1, 3 * n + 2)]
    rows = list(enumerate(pipeline.numbers() if as_numbers else tokens))
    log = pipeline.log(pipeline.invoices)
    groups = Groups.in_namespace_of(log, "invoices")
    protocol.append(log, batch_with_tokens(log, [rows[:1]], groups, minted_by=pipeline.orders))
    pipeline.invoice([rows[1:]])
    retention.trim(pipeline.log(), before="2:0:0")
    for _ in range(3):
        gc.collect(pipeline.log())
    groups.group(pipeline.orders.uuid).log.refresh(sync=True)  # it knows what is gone, and not who was there before
    again = protocol.append(log, batch_with_tokens(log, [rows[:5]], groups, minted_by=pipeline.orders))
    assert again.dropped == 5


def test_the_numbers_of_records_that_were_lost_are_never_used_again(pipeline):
    """A repaired topic goes on with others: between them is a gap, and what is in it was never minted."""
    pipeline.order(1, 2)
    state = snapshot(pipeline.world.server)
    log = pipeline.log()
    pipeline.order(99)
    lost = pipeline.numbers()[-1]
    log.refresh()
    restore(pipeline.world.server, state)
    with pytest.raises(DataLoss):
        log.refresh()
    accept_loss(pipeline.log())
    pipeline.order(3, 4)
    numbers = pipeline.numbers()
    assert numbers[2] - numbers[1] > 1 << 40
    for bad in ([lost], [*numbers, lost], [numbers[0], lost + 7, numbers[3]]):
        with pytest.raises(InvalidInput, match="LEDGER_INVALID_TOKEN"):
            pipeline.invoice([list(enumerate(bad))])
    assert pipeline.invoice([list(enumerate(numbers))]).dropped == 0


def test_an_index_from_before_numbers_were_noted_is_read_too(pipeline, monkeypatch):
    with monkeypatch.context() as patch:
        stage = index.stage_leaf
        patch.setattr("pyspark_ledger.log.seal.stage_leaf", lambda *args: replace(stage(*args), tokens_before=-1))
        for n in range(30):
            pipeline.order(n, mints=n % 4 > 0)
    numbers = [number for number in pipeline.numbers() if number is not None]
    assert pipeline.invoice([[(n, number)] for n, number in enumerate(numbers)]).dropped == 0
    assert pipeline.invoice([list(enumerate(numbers[::-1]))]).duplicate


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(1, 6)), min_size=1, max_size=8), st.booleans())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_numbers_are_decided_as_text_is(tmp_path_factory, runs, fan_out):
    pipeline = Pipeline(tmp_path_factory.mktemp("numbers"))
    text = [token for n in range(5) for token in pipeline.order(*range(5 * n, 5 * n + 5))]
    numbers = pipeline.numbers()
    for half in (runs[: len(runs) // 2], runs):
        rows = [n for first, length in half for n in range(first, first + length)]
        if rows:
            done = [
                pipeline.invoice([[(n, tokens[n]) for n in rows]], group=group, fan_out=fan_out)
                for group, tokens in (("a", text), ("b", numbers))
            ]
            assert done[0].dropped == done[1].dropped
    assert pipeline.tokens("a").present(text) == pipeline.tokens("b").present(numbers)


@given(st.lists(st.lists(st.integers(0, 20), max_size=9), max_size=5))
def test_runs_go_on_from_one_batch_to_the_next(batches):
    uuid = "00000000-0000-4000-8000-000000000000"
    runs = NumberRuns(uuid, "orders")
    for batch in batches:
        runs.add(pa.array(batch, pa.int64()))
    found = runs.table().to_pydict()
    pairs = zip(found["index"], found["length"], strict=True)
    rows = [n for index, length in pairs for n in range(index, index + length)]
    flat = [n for batch in batches for n in batch]
    assert rows == flat
    assert len(found["index"]) == sum(a + 1 != b for a, b in zip([-9, *flat], flat, strict=False))
