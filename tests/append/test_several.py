"""Several topics in one transaction: in all of them or in none, and everybody is told the truth."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_ledger.append.admission import ByBatchId
from pyspark_ledger.append.pooled_tokens import FromPool, TokenPool
from pyspark_ledger.append.several import Part
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import Conflict, Fenced, InvalidInput, LedgerError, NotFound, OutcomeUnknown, Unavailable
from pyspark_ledger.lifecycle import gc, retention
from pyspark_ledger.log import seal
from pyspark_ledger.metadata.port import Delete, Put, SinkKey
from pyspark_ledger.metadata.records import Sink
from pyspark_ledger.testing.memory import Faults, MemoryMetadata
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.ids import TokenRuns
from pyspark_ledger.tokens.tokens import Tokens
from tests.support.many import Process, Topics
from tests.support.rollback import restore, snapshot
from tests.support.worlds import EAGER, SMALL, append


@pytest.fixture
def place(tmp_path) -> Topics:
    return Topics(tmp_path)


def write(process: Process, number: int, names: str, run: str = "run", query: str = "q"):
    parts = [process.part(name, number) for name in names]
    return process.together(parts, process.claim(number, run, query=query)).append()


def found(place: Topics) -> dict[str, list[int]]:
    return {name: place.numbers(name) for name in "abc"}


def test_all_topics_get_their_part_in_one_transaction_I3(place):
    process = place.process()
    before = place.server.time
    parts = [process.part("a", 1, 2), process.part("b", 3)]
    results = process.together(parts, process.claim(7)).append()
    assert place.server.time == before + 1
    assert [(str(result.start), result.records, result.duplicate) for result in results] == [
        ("0:0:0", 2, False), ("0:0:0", 1, False),
    ]  # fmt: skip
    assert found(place) == {"a": [1, 2], "b": [3], "c": []}


# -- the claim (models/h_claims) ------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["ab", "a", "bc", "c"])
def test_a_replay_adds_nothing_whatever_topics_it_names_I5(place, again):
    write(place.process(), 7, "ab")
    assert write(place.process(), 7, again, "another run") is None
    assert found(place) == {"a": [7], "b": [7], "c": []}


def test_a_replay_is_recognised_though_a_topic_was_made_again_I5(place):
    write(place.process(), 7, "ab")
    place.delete("a")
    place.make("a")
    assert write(place.process(), 7, "ab") is None
    assert found(place) == {"a": [], "b": [7], "c": []}


def test_an_older_checkpoint_is_recognised_by_any_topic_I5(place):
    write(place.process(), 5, "c")
    write(place.process(), 7, "ab")
    with pytest.raises(Conflict, match=r"LEDGER_SEQUENCE_BEHIND.*'spark-q' has written sequence id 7 to its topics"):
        write(place.process(), 6, "c")
    assert found(place)["c"] == [5]


def test_other_data_under_the_same_number_is_refused_I5(place):
    process = place.process()
    write(process, 7, "ab")
    claim = process.claim(7)
    claim._id = replace(claim._id, digest=b"other offsets")
    with pytest.raises(Conflict, match="LEDGER_SEQUENCE_REUSED"):
        process.together([process.part("c", 7)], claim).append()


def test_a_run_that_was_replaced_is_fenced_I6(place):
    old = place.process()
    write(old, 1, "a", "run 1")
    late = old.together([old.part("b", 2)], old.claim(2, "run 1"))
    write(place.process(), 2, "c", "run 2")
    with pytest.raises(Fenced, match=r"LEDGER_PRODUCER_FENCED.*run 1.*replaced by run run 2"):
        late.append()
    assert found(place) == {"a": [1], "b": [], "c": [2]}


def test_sixteen_past_runs_are_remembered(place):
    for number in range(20):
        write(place.process(), number, "a", f"run {number}")
    claim = MemoryMetadata(place.server).read(SinkKey("q")).record
    assert claim.past_runs == tuple(f"run {number}" for number in range(3, 19))
    assert (claim.sequence, claim.query, claim.run, claim.records) == (19, "q", "run 19", 1)


def test_two_that_bring_the_same_batch_at_once_add_it_once_I5(place):
    first, second = place.process(), place.process()
    slow = first.together([first.part("a", 7)], first.claim(7))
    assert write(second, 7, "b") is not None
    assert slow.append() is None
    assert found(place) == {"a": [], "b": [7], "c": []}


# -- races ----------------------------------------------------------------------------------------------------------


def test_who_lost_a_race_in_one_topic_tries_again_with_all_I3(place):
    process = place.process()
    together = process.together([process.part(name, 1) for name in "abc"])
    append(place.process().log("b"), 2)
    together.append()
    assert found(place) == {"a": [1], "b": [2, 1], "c": [1]}


def test_who_always_loses_gives_up_and_has_changed_nothing_I16(place, monkeypatch):
    process = place.process()
    together = process.together([process.part(name, 1) for name in "ab"])
    transact = process.metadata.transact

    def beaten(ops):
        append(place.process().log("b"), 2)
        transact(ops)

    monkeypatch.setattr(process.metadata, "transact", beaten)
    began = place.clock.monotonic()
    with pytest.raises(Conflict, match=r"LEDGER_CONFLICT.*others write to its topics.*nothing was changed"):
        together.append()
    assert place.clock.monotonic() - began < 2 * SMALL.append_deadline_s
    assert place.numbers("a") == []


def test_a_ledger_that_is_full_is_sealed_first_I4(place):
    process = place.process()
    for number in range(10):
        write(process, number, "ab")
    assert process.log("a").view().head.ledger == 2
    assert found(place)["a"] == found(place)["b"] == list(range(10))


def test_a_part_that_leads_decides_for_all_I5(place):
    process = place.process()

    def write_led(names: str):
        first, *others = [process.part(name, 1) for name in names]
        admission = ByBatchId(BatchId(1, "q", "run", b"offsets"))
        led = Part(first.log, replace(first.batch, producer="p", admission=admission), leads=True)
        return process.together([led, *others]).append()

    assert write_led("ab") is not None
    assert write_led("ac") is None
    assert found(place) == {"a": [1], "b": [1], "c": []}


def test_a_part_of_which_nothing_is_new_is_left_out_and_the_others_are_not(place):
    process = place.process()

    def numbered(name: str) -> Part:
        part = process.part(name, 1)
        return Part(part.log, replace(part.batch, producer="p", admission=ByBatchId(BatchId(1, digest=b"d"))))

    process.together([numbered("a")]).append()
    first, second = process.together([numbered("a"), numbered("b")]).append()
    assert (first.duplicate, first.records, second.duplicate) == (True, 0, False)
    assert found(place) == {"a": [1], "b": [1], "c": []}


# -- lost answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claims", [True, False])
@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "expired"])
def test_a_lost_answer_is_found_out_I14(place, fault, claims):
    faults = Faults()
    process = place.process(faults)
    parts = [process.part(name, 1) for name in "ab"]
    beside = [process.claim(1)] if claims else []
    faults.next_transact(fault)
    assert process.together(parts, *beside).append() is not None
    assert found(place) == {"a": [1], "b": [1], "c": []}


@pytest.mark.parametrize("meanwhile", ["sealed", "trimmed", "deleted"])
@pytest.mark.parametrize("applied", [True, False])
def test_any_topic_can_tell_whether_all_was_applied_I14(place, meanwhile, applied, monkeypatch):
    """The first topic cannot any more, or has it elsewhere."""
    process, other = place.process(), place.process()
    together = process.together([process.part(name, 1) for name in "ab"])
    transact = process.metadata.transact

    def lost(ops):
        monkeypatch.setattr(process.metadata, "transact", transact)
        if applied:
            transact(ops)
        log = other.log("a")
        if meanwhile == "deleted":
            place.delete("a")
        else:
            append(log, 5)
            seal.seal(log)
            if meanwhile == "trimmed":
                retention.trim(log, before="latest")
        raise OutcomeUnknown("lost")

    monkeypatch.setattr(process.metadata, "transact", lost)
    if meanwhile == "deleted" and not applied:
        with pytest.raises(NotFound, match="LEDGER_TOPIC_DELETED"):
            together.append()
    else:
        assert together.append() is not None
    assert place.numbers("b") == ([1] if applied or meanwhile != "deleted" else [])
    if meanwhile == "sealed":
        assert place.numbers("a") == ([1, 5] if applied else [5, 1])


def test_when_nobody_can_tell_that_is_what_is_said_I14(place, monkeypatch):
    process = place.process()
    together = process.together([process.part(name, 1) for name in "ab"])

    def lost(ops):
        for name in "ab":
            place.delete(name)
        raise OutcomeUnknown("lost")

    monkeypatch.setattr(process.metadata, "transact", lost)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match="none of its topics can tell any more"):
            together.append()
        assert together.in_doubt


@pytest.mark.parametrize("applied", [True, False])
def test_who_could_not_find_out_asks_again_and_adds_nothing_twice_I14(place, applied):
    faults = Faults()
    process = place.process(faults)
    together = process.together([process.part(name, 1) for name in "ab"])
    together._prepare()  # so that nothing is left to be read before it is sent
    faults.next_transact("applied_then_lost" if applied else "lost_before")
    faults.next_read(*["unavailable"] * 2_000)
    with pytest.raises(OutcomeUnknown):
        together.append()
    with pytest.raises(OutcomeUnknown, match="cannot be found out yet"):
        together.append()
    faults.stop()
    assert together.append() is not None
    assert found(place) == {"a": [1], "b": [1], "c": []}


def test_what_was_never_sent_is_not_in_doubt_I14(place):
    faults = Faults()
    process = place.process(faults)
    together = process.together([process.part(name, 1) for name in "ab"])
    faults.next_transact("unavailable")
    with pytest.raises(Unavailable):
        together.append()
    assert not together.in_doubt
    together.append()
    assert found(place) == {"a": [1], "b": [1], "c": []}


def test_a_claim_that_is_gone_leaves_the_answer_to_the_topics_I14(place, monkeypatch):
    write(place.process(), 1, "a")
    process = place.process()
    together = process.together([process.part("a", 2), process.part("b", 2)], process.claim(2))
    transact = process.metadata.transact

    def lost(ops):
        monkeypatch.setattr(process.metadata, "transact", transact)
        transact(ops)
        transact([Delete(SinkKey("q"))])
        raise OutcomeUnknown("lost")

    monkeypatch.setattr(process.metadata, "transact", lost)
    assert together.append() is not None
    assert found(place) == {"a": [1, 2], "b": [2], "c": []}


@pytest.mark.parametrize("applied", [True, False])
def test_a_claim_that_was_removed_says_nothing_I14(place, monkeypatch, applied):
    """And if no topic can tell either, that is what is said."""
    write(place.process(), 1, "a")
    process = place.process()
    together = process.together([process.part("b", 2)], process.claim(2))
    transact = process.metadata.transact

    def lost(ops):
        monkeypatch.setattr(process.metadata, "transact", transact)
        if applied:
            transact(ops)
        transact([Delete(SinkKey("q"))])
        place.delete("b")
        raise OutcomeUnknown("lost")

    monkeypatch.setattr(process.metadata, "transact", lost)
    with pytest.raises(OutcomeUnknown, match="none of its topics can tell"):
        together.append()


def test_a_no_that_comes_from_an_old_state_is_not_believed_I14(place):
    """A claim of a producer that was forgotten since, as a server that is behind still has it."""
    write(place.process(), 7, "a")
    process = place.process()
    claim = process.claim(6)  # behind, as far as it knows
    found = MemoryMetadata(place.server).read(SinkKey("q"))
    MemoryMetadata(place.server).transact([Put(SinkKey("q"), Sink(), found.version)])
    assert process.together([process.part("b", 6)], claim).append() is not None
    assert place.numbers("b") == [6]


# -- refusals change nothing -----------------------------------------------------------------------------------------


def test_a_topic_that_is_gone_refuses_all_I3(place):
    process = place.process()
    together = process.together([process.part(name, 1) for name in "ab"], process.claim(1))
    place.delete("b")
    with pytest.raises(NotFound, match=r"LEDGER_TOPIC_DELETED.*'b'"):
        together.append()
    assert place.numbers("a") == []
    assert MemoryMetadata(place.server).read(SinkKey("q")) is None


def test_files_that_gc_may_have_deleted_refuse_all_I12(tmp_path):
    place = Topics(tmp_path, limits=EAGER)
    process = place.process()
    together = process.together([process.part(name, 1) for name in "ab"])
    for _ in range(3):
        gc.collect(place.process().log("b"))
    with pytest.raises(Conflict, match="LEDGER_STAGED_TOO_LONG_AGO"):
        together.append()
    assert place.numbers("a") == []


def test_too_many_topics_are_refused_by_name(tmp_path):
    place = Topics(tmp_path, limits=replace(SMALL, topics_together=2))
    process = place.process()
    process.together([process.part(name, 1) for name in "ab"]).append()
    with pytest.raises(InvalidInput, match=r"LEDGER_TOO_MANY_TOPICS\] 3 topics at once.*2 at most: write to fewer"):
        process.together([process.part(name, 1) for name in "abc"])


def test_what_does_not_fit_into_a_transaction_is_refused_before_it_is_sent(place):
    process = place.process()
    long = replace(process.part("a", 1).batch, producer="x" * 1_000_000)
    together = process.together([Part(process.log("a"), long), process.part("b", 1)])
    with pytest.raises(InvalidInput, match=r"LEDGER_TOO_LARGE.*bytes.*fewer topics"):
        together.append()
    assert not together.in_doubt
    assert place.numbers("b") == []


def test_a_rollback_of_one_topic_refuses_all_I18(place):
    process = place.process()
    write(process, 0, "ab")
    moment = snapshot(place.server)
    write(process, 1, "ab")
    logs = [process.part(name, 2) for name in "ab"]
    restore(place.server, moment)
    with pytest.raises(LedgerError, match="LEDGER_SET_BACK"):
        process.together(logs).append()
    assert place.numbers("a") == [0]


# -- tokens ----------------------------------------------------------------------------------------------------------


def spent(process: Process, route: dict[str, list[str]], *, fan_out: bool = False):
    """One record for each token, to the topics that have them."""
    pool = TokenPool(Groups.in_namespace_of(process.log("a"), "g"))
    parts = []
    for name, tokens in route.items():
        runs = TokenRuns("tokens")
        runs.add(pa.array(tokens, pa.string()))
        part = process.part(name, *range(len(tokens)))
        parts.append(Part(part.log, replace(part.batch, admission=FromPool(pool, [runs.table()], fan_out))))
    return process.together(parts, pool).append()


def test_tokens_are_consumed_once_over_all_topics_I11(place):
    process = place.process()
    one, two, three = Tokens(process.log("a"), "g").mint(3)
    spent(process, {"a": [one], "b": [two, one]})
    assert found(place) == {"a": [0], "b": [0], "c": []}  # the second copy of the first token is masked
    spent(process, {"c": [one, two, three], "a": [two]})
    assert found(place) == {"a": [0], "b": [0], "c": [2]}
    assert Tokens(process.log("a"), "g").present([one, two, three]) == [False] * 3


def test_one_token_may_pay_for_records_of_several_topics_I11(place):
    process = place.process()
    [token] = Tokens(process.log("a"), "g").mint()
    spent(process, {"a": [token], "b": [token]}, fan_out=True)
    spent(process, {"a": [token], "b": [token]}, fan_out=True)
    assert found(place) == {"a": [0], "b": [0], "c": []}


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost"])
def test_tokens_and_records_go_together_over_a_lost_answer_I11_I14(place, fault):
    faults = Faults()
    process = place.process(faults)
    tokens = Tokens(place.process().log("a"), "g").mint(2)
    faults.next_transact(fault)
    spent(process, {"a": tokens[:1], "b": tokens[1:]})
    assert found(place) == {"a": [0], "b": [0], "c": []}
