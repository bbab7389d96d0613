"""A receipt is a future: for threads, for concurrent.futures, for event loops."""

from __future__ import annotations

import asyncio
import threading
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyspark_ledger.append.background import Background
from pyspark_ledger.append.producer import Producer
from pyspark_ledger.append.receipt import tell
from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.lifecycle import termination
from tests.support.producers import NEVER_BY_ITSELF, Process, numbers
from tests.support.worlds import World

SOON = Background(linger_ms=1)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


# -- concurrent.futures --------------------------------------------------------------------------------------------


def test_wait_and_as_completed_take_receipts_and_other_futures_together(world):
    one, two = (Producer(world.log(), name=name, background=SOON) for name in "ab")
    with ThreadPoolExecutor(1) as pool:
        sent = [producer.send({"n": number}) for number in range(20) for producer in (one, two)]
        asked = [*sent, pool.submit(pow, 2, 3)]
        assert set(futures.as_completed(asked, 10)) == set(asked)
        done, not_done = futures.wait(asked, 10)
        assert (done, not_done) == (set(asked), set())
        later = one.send({"n": 99})
        assert futures.wait([later, *asked], 10, futures.FIRST_COMPLETED).done >= set(asked)
    assert [receipt.result().sequence_id for receipt in sent[::2]] == list(range(20))


def test_a_receipt_that_fails_says_so_in_every_way(world):
    process = Process(world, None, NEVER_BY_ITSELF)
    first, second = process.producer.send({"n": 1}), process.producer.send({"n": 2})
    called: list[object] = []
    first.add_done_callback(called.append)
    assert futures.wait([first], 0).not_done == {first}
    with pytest.raises(TimeoutError):
        first.result(0)
    termination.terminate(world.log())
    process.background_acts()
    assert called == [first]
    assert futures.wait([first, second], 0, futures.FIRST_EXCEPTION).done == {first, second}
    for receipt in (first, second):
        assert isinstance(receipt.exception(0), InvalidInput)
        for _ in range(2):
            with pytest.raises(InvalidInput, match="LEDGER_TOPIC_TERMINATED") as raised:
                receipt.result()
            assert len(raised.traceback) < 10  # each time an error of its own
    first.add_done_callback(called.append)
    assert called == [first, first]
    assert (first.done(), first.running(), first.cancelled()) == (True, False, False)


def test_a_record_that_was_taken_is_not_cancelled(world):
    producer = Producer(world.log(), background=SOON)
    receipt = producer.send({"n": 1})
    assert receipt.cancel() is False
    assert receipt.result(10).position == Position(0, 0, 0)
    assert receipt.cancel() is False


def test_those_who_wait_are_told_once_and_all_at_the_same_time(world):
    """Who begins to wait between the outcome and its being told must not hear of it twice."""
    process = Process(world, None, NEVER_BY_ITSELF)
    receipt = process.producer.send({"n": 1})
    called: list[object] = []
    receipt.add_done_callback(called.append)
    part = process.producer._delivery.waiting.first
    told = part.finish(process.producer._sender.store(part))
    assert futures.wait([receipt], 0).not_done == {receipt}
    receipt.add_done_callback(called.append)
    tell(told)
    assert called == [receipt, receipt]
    assert [each.result().position for each in futures.as_completed([receipt], 0)] == [Position(0, 0, 0)]


def test_a_callback_may_send_flush_and_wait_also_when_there_is_no_room_I16(world):
    producer = Producer(world.log(), name="p", background=Background(1, max_waiting_records=2))
    ended = threading.Event()

    def send_more(receipt):
        number = receipt.result().sequence_id
        if number < 40:
            others = [producer.send({"n": number * 10 + index}) for index in range(5)]
            producer.flush()
            assert others[-1].result().position
            producer.send({"n": -1}).add_done_callback(send_more)
        else:
            ended.set()

    producer.send({"n": 0}).add_done_callback(send_more)
    assert ended.wait(30)
    producer.close()


def test_a_callback_that_raises_harms_nobody(world, caplog):
    producer = Producer(world.log(), background=SOON)
    first, second = producer.send({"n": 1}), producer.send({"n": 2})
    first.add_done_callback(lambda _: 1 / 0)
    assert second.result(10)
    producer.close()
    assert numbers(world) == [1, 2]


# -- asyncio -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [SOON, None], ids=["lingers", "does not"])
def test_records_are_awaited_by_several_event_loops_at_once(world, background):
    producer = Producer(world.log(), name="p", background=background)

    async def handle(number):
        sent = await producer.send({"n": number})
        assert sent.position is not None
        return sent.sequence_id

    async def serve(first):
        return await asyncio.gather(*[handle(first + number) for number in range(50)])

    with ThreadPoolExecutor(3) as loops:
        ids = list(loops.map(lambda first: asyncio.run(serve(first)), (0, 100, 200)))
    assert sorted(id for some in ids for id in some) == list(range(150))
    assert sorted(numbers(world)) == sorted([*range(50), *range(100, 150), *range(200, 250)])


def test_who_awaits_no_longer_does_not_take_the_record_back(world):
    process = Process(world, background=NEVER_BY_ITSELF)

    async def impatient():
        await asyncio.wait_for(receipt, 0.01)

    receipt = process.producer.send({"n": 1})
    with pytest.raises(TimeoutError):
        asyncio.run(impatient())
    process.background_acts()
    assert receipt.result(0).sequence_id == 0
    assert numbers(world) == [1]


def test_what_is_done_is_awaited_too_and_an_error_is_raised(world):
    process = Process(world, None, NEVER_BY_ITSELF)

    async def sent(receipt):
        return await receipt

    stored = process.producer.send({"n": 1})
    process.background_acts()
    assert asyncio.run(sent(stored)).position == Position(0, 0, 0)
    failed = process.producer.send({"n": 2})
    termination.terminate(world.log())
    process.background_acts()
    with pytest.raises(InvalidInput, match="LEDGER_TOPIC_TERMINATED"):
        asyncio.run(sent(failed))
