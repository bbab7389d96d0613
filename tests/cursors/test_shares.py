"""What is written of those who share a subscription: pure functions on the cursor's record."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.base.position import EARLIEST
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors import shares
from pyspark_ledger.log.keys import SLOTS
from pyspark_ledger.metadata.records import Cursor, Member
from tests.support import examples

LIMITS = DEFAULT_LIMITS
CURSOR = Cursor("s", EARLIEST, 0, 0)
ALL = Runs([(0, SLOTS)])
ordinals = st.sets(st.integers(0, 40)).map(Runs.of)
changes = st.lists(st.tuples(st.sampled_from(["join", "die", "leave", "hand over"]), st.integers(0, 9)), max_size=30)


def newcomer(number):
    return Member(number.to_bytes(16), f"member {number}", 0)


def union(cursor, part):
    return Runs(run for each in cursor.members for run in part(each))


def test_runs_are_subtracted_and_intersected_as_sets_are():
    @settings(max_examples=examples(200))
    @given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(0, 10), st.integers(0, 5))
    def check(one, other, count, runs):
        a, b = Runs.of(one), Runs.of(other)
        assert set((a - b).numbers()) == one - other
        assert set((a & b).numbers()) == one & other
        first = a.first(count, runs)
        assert len(first) <= count
        assert sum(1 for _ in first) <= runs
        assert list(first.numbers()) == sorted(one)[: len(first)]

    check()


@settings(max_examples=examples(100), deadline=None)
@given(changes)
def test_every_slot_has_one_owner_and_all_get_as_many(steps):
    cursor, number = CURSOR, 0
    for what, which in steps:
        before = cursor
        if what == "join":
            cursor, number = shares.joined(cursor, "key_shared", newcomer(number)), number + 1
        elif cursor.members:
            id = cursor.members[which % len(cursor.members)].id
            if what == "hand over":
                cursor = shares.handed_over(cursor, id, ALL)
            else:
                cursor = shares.removed(cursor, [id], LIMITS, died=what == "die")
        if not cursor.members:
            continue
        sizes = [len(shares.dealt(each)) for each in cursor.members]
        assert max(sizes) - min(sizes) <= 1
        for part in (shares.slots, shares.dealt):
            assert union(cursor, part) == ALL
            assert sum(len(part(each)) for each in cursor.members) == SLOTS
        check_moves(before, cursor, what)


def check_moves(before, after, what):
    """A slot leaves a living owner only when that hands it over."""
    if what != "hand over":
        for each in after.members:
            owned = shares.member(before, each.id)
            if owned is not None:
                assert not shares.slots(owned) - shares.slots(each)


@settings(max_examples=examples(100))
@given(st.integers(1, 20))
def test_a_newcomer_moves_no_more_slots_than_it_gets(members):
    cursor = CURSOR
    for number in range(members):
        cursor = shares.joined(cursor, "key_shared", newcomer(number))
        cursor = shares.begun_anew(cursor)
    after = shares.joined(cursor, "key_shared", newcomer(members))
    asked = shares.dealt(after.members[-1])
    assert len(asked) == SLOTS // (members + 1)
    assert sum(len(shares.leaving(after, each.id)) for each in after.members) == len(asked)


@settings(max_examples=examples(150))
@given(ordinals, ordinals, st.integers(0, 20), ordinals, st.integers(1, 20))
def test_nobody_is_given_what_is_acknowledged_or_anothers(mine, others, mark, acks, most):
    others -= mine
    acks = acks.since(mark)
    cursor = replace(CURSOR, ordinal=mark, acks=acks.pack(mark), members=(newcomer(0), newcomer(1)), sharing="shared")
    cursor = shares.claimed(shares.claimed(cursor, newcomer(0).id, mine), newcomer(1).id, others)
    free = shares.unclaimed(cursor, 30, newcomer(0).id, mine)
    assert set(free.numbers()) == set(range(mark, 30)) - {*acks.numbers(), *mine.numbers(), *others.numbers()}
    some = shares.portion(cursor, free, most, 100)
    assert list(some.numbers()) == list(free.numbers())[:most]
    lost = shares.unclaimed(cursor, 30, newcomer(0).id, Runs())  # it does not know of its claim
    assert set(lost.numbers()) == set(free.numbers()) | (set((mine - acks).since(mark).numbers()) & set(range(30)))


@settings(max_examples=examples(150))
@given(st.lists(ordinals, max_size=6), ordinals, st.integers(0, 20))
def test_deliveries_in_vain_are_counted_until_a_record_is_done(deaths, acks, mark):
    cursor, counts = replace(CURSOR, members=(newcomer(0),), sharing="shared"), dict.fromkeys(range(41), 0)
    for held in deaths:
        cursor = shares.counted(cursor, held, LIMITS)
        for ordinal in held.numbers():
            counts[ordinal] += 1
    everything = Runs([(0, 41)])
    assert shares.delivery_counts(cursor, everything) == {n: count for n, count in counts.items() if count}
    done = replace(cursor, ordinal=mark, acks=acks.since(mark).pack(mark))
    left = {n: c for n, c in counts.items() if c and n >= mark and n not in acks}
    assert shares.delivery_counts(shares.forgotten(done, LIMITS), everything) == left


@settings(max_examples=examples(100))
@given(ordinals, st.dictionaries(st.integers(0, 40), st.integers(1, 5)))
def test_to_say_twice_how_often_a_record_came_changes_nothing(held, counts):
    cursor = shares.counted(CURSOR, held, LIMITS)
    once = shares.noted(cursor, counts, LIMITS)
    assert shares.noted(once, counts, LIMITS) == once
    assert all(
        shares.delivery_counts(once, Runs.of([n])).get(n, 0) == max(counts[n], int(n in held)) for n in counts
    )  # fmt: skip


def test_what_is_remembered_of_deliveries_is_bounded_and_keeps_the_highest_counts_I13():
    limits = replace(LIMITS, deliveries_bytes=50)
    cursor = shares.counted(CURSOR, Runs.of([7]), limits)
    for _ in range(3):
        cursor = shares.counted(cursor, Runs.of([7]), limits)
    cursor = shares.counted(cursor, Runs.of(range(0, 1_000, 2)), limits)
    assert sum(len(packed) for _, packed in cursor.deliveries) <= 50
    assert shares.delivery_counts(cursor, Runs([(0, 1_000)])) == {7: 4}


def test_records_that_were_delivered_in_vain_are_claimed_by_fewer_and_fewer():
    cursor, free, sizes = CURSOR, Runs([(0, 1_000)]), []
    for _ in range(4):
        some = shares.portion(cursor, free, 1_000, 1_000)
        sizes.append(len(some))
        cursor = shares.counted(cursor, some, LIMITS)
    assert sizes == [1_000, 31, 1, 1]


def test_a_new_revision_leaves_nobody_with_anything_in_hand_or_waiting():
    cursor = shares.joined(shares.joined(CURSOR, "key_shared", newcomer(0)), "key_shared", newcomer(1))
    cursor = shares.counted(shares.claimed(cursor, newcomer(0).id, Runs([(0, 9)])), Runs.of([3]), LIMITS)
    assert shares.leaving(cursor, newcomer(0).id)
    after = shares.begun_anew(cursor)
    assert after.deliveries == ()
    assert [shares.claims(each) for each in after.members] == [Runs(), Runs()]
    assert [len(shares.served(after, each.id)) for each in after.members] == [SLOTS // 2] * 2
    assert shares.redelivered(cursor, LIMITS).epoch == cursor.epoch + 1
