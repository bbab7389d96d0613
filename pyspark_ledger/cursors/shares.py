"""Who shares a subscription, and what each of them has: pure functions on the cursor's record.

Everything is in the cursor's one node, so one version guards it: the position, the acknowledgements, the members, and
the records that each of them *claims*. A record is claimed before it is delivered, and acknowledged by whoever claims
it. So no two members have it at a time, and what is acknowledged goes to nobody any more.

With ``key_shared`` a key falls into one of many slots, and each slot belongs to one member. A slot that is *dealt* to
another one stays where it is until its owner has nothing of it in hand, or is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Literal

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.log.keys import SLOTS
from pyspark_ledger.metadata.records import Cursor, Member

Sharing = Literal["shared", "key_shared"]
KEY_SHARED = "key_shared"

_FEWER = 5  # each delivery in vain divides how many records are claimed together by two to the power of this


def member(cursor: Cursor, id: bytes) -> Member | None:
    return next((each for each in cursor.members if each.id == id), None)


def acks(cursor: Cursor) -> Runs:
    return Runs.unpack(cursor.acks, cursor.ordinal)


def claims(each: Member) -> Runs:
    return Runs.unpack(each.claims, 0)


def slots(each: Member) -> Runs:
    """Of the keys whose records it gets."""
    return Runs.unpack(each.slots, 0)


def dealt(each: Member) -> Runs:
    """Of the keys whose records it is to get."""
    return Runs.unpack(each.dealt, 0)


def held(cursor: Cursor, each: Member) -> Runs:
    """What a member claims and has not acknowledged."""
    return claims(each).since(cursor.ordinal) - acks(cursor)


# -- coming and going ----------------------------------------------------------------------------------------------


def joined(cursor: Cursor, sharing: Sharing, newcomer: Member) -> Cursor:
    """The cursor with one more member, who owns nothing yet. The first one begins a new epoch, as an owner does. A
    cursor that is shared in another way must have no members."""
    first = not cursor.members
    joined = replace(
        cursor,
        sharing=sharing,
        members=(*cursor.members, newcomer),
        owner=b"",
        owner_name="",
        epoch=cursor.epoch + 1 if first else cursor.epoch,
        abandoned=False,
        compacted=False,
    )
    return _dealt_anew(joined)


def removed(cursor: Cursor, ids: Collection[bytes], limits: Limits, *, died: bool) -> Cursor:
    """The cursor without some members: what they claimed is nobody's, and their slots go to others at once. One that
    has died may have delivered what it claimed, and that may be why it has died: it counts as delivered in vain."""
    gone = [each for each in cursor.members if each.id in ids]
    if not gone:
        return cursor
    if died:
        cursor = counted(cursor, Runs(run for each in gone for run in held(cursor, each)), limits)
    stay = tuple(each for each in cursor.members if each.id not in ids)
    return _dealt_anew(replace(cursor, members=stay))


def disbanded(cursor: Cursor) -> Cursor:
    """For an owner that has it alone: nobody shares it any more."""
    return replace(cursor, sharing="", members=(), deliveries=())


# -- beginning again -----------------------------------------------------------------------------------------------


def begun_anew(cursor: Cursor) -> Cursor:
    """Within a revision: what was delivered before does not count any more, so nobody has anything in hand, nothing is
    to be delivered again, and nobody waits for a slot (what PIP-269 calls the attributes of the dispatcher)."""
    return replace(_nobody_waits(cursor), deliveries=())


def redelivered(cursor: Cursor, limits: Limits) -> Cursor:
    """Under a new epoch: everything that is not acknowledged is delivered again, to anybody."""
    in_vain = Runs(run for each in cursor.members for run in held(cursor, each))
    return replace(_nobody_waits(counted(cursor, in_vain, limits)), epoch=cursor.epoch + 1)


def _nobody_waits(cursor: Cursor) -> Cursor:
    return replace(cursor, members=tuple(replace(each, claims=b"", slots=each.dealt) for each in cursor.members))


# -- records -------------------------------------------------------------------------------------------------------


def claimed(cursor: Cursor, id: bytes, ordinals: Runs) -> Cursor:
    """The member claims these records, and no others. What another claims is not its own: after a rollback of ZooKeeper
    it may think so."""
    free = ordinals - (run for each in cursor.members if each.id != id for run in claims(each))
    return _each(cursor, lambda each: replace(each, claims=free.pack(0)) if each.id == id else each)


def unclaimed(cursor: Cursor, end: int, id: bytes, keeps: Runs) -> Runs:
    """Records before an ordinal that are nobody's. What ``id`` claims and does not keep is free too: it does not know
    of that, because the answer to its claim was lost."""
    others = (run for each in cursor.members if each.id != id for run in claims(each))
    return Runs([(cursor.ordinal, end)]) - Runs((*acks(cursor), *others, *keeps))


def reachable(cursor: Cursor, end: int, limits: Limits) -> int:
    """How far ahead anybody may go. If there are many gaps, nobody goes on until those who are behind catch up: the
    record must stay small (I13)."""
    if len(cursor.acks) <= limits.shared_acks_bytes:
        return end
    return min(end, max(stop for _, stop in acks(cursor)))


def portion(cursor: Cursor, free: Runs, most: int, runs: int) -> Runs:
    """The first of some records, to be claimed together. Those that were delivered in vain are claimed by fewer and
    fewer, and in the end one by one: so a record that kills its consumers is soon known from its neighbours."""
    if not free:
        return free
    known = deliveries(cursor)
    first = next(iter(free))[0]
    count = next((count for count, ordinals in known.items() if first in ordinals), 0)
    alike = free & known[count] if count else free - (run for ordinals in known.values() for run in ordinals)
    until = next((start for start, _ in free - alike), None)
    together = alike if until is None else alike - alike.since(until)
    return together.first(max(1, most >> min(60, _FEWER * count)), runs)


# -- how often records were delivered in vain ----------------------------------------------------------------------


def deliveries(cursor: Cursor) -> dict[int, Runs]:
    """How often -> which."""
    return {count: Runs.unpack(packed, 0) for count, packed in cursor.deliveries}


def delivery_counts(cursor: Cursor, ordinals: Runs) -> dict[int, int]:
    """Of some records: those that were delivered before, and how often."""
    found = ((count, known & ordinals) for count, known in deliveries(cursor).items())
    return {ordinal: count for count, some in found for ordinal in some.numbers()}


def counted(cursor: Cursor, ordinals: Runs, limits: Limits) -> Cursor:
    """Some records were, or may have been, delivered once more in vain."""
    known = deliveries(cursor)
    new = ordinals - (run for before in known.values() for run in before)
    raised: dict[int, Runs] = {1: new}
    for count, before in known.items():
        raised[count] = raised.get(count, Runs()) | (before - ordinals)
        raised[count + 1] = raised.get(count + 1, Runs()) | (before & ordinals)
    return _remembering(cursor, raised, limits)


def noted(cursor: Cursor, counts: Mapping[int, int], limits: Limits) -> Cursor:
    """A member says how often records were delivered in vain so far. To say it twice changes nothing."""
    known = deliveries(cursor)
    before = {ordinal: count for count, some in known.items() for ordinal in (some & Runs.of(counts)).numbers()}
    more = {ordinal: count for ordinal, count in counts.items() if count > before.get(ordinal, 0)}
    if not more:
        return cursor
    raised = {count: some - Runs.of(more) for count, some in known.items()}
    for count in set(more.values()):
        raised[count] = raised.get(count, Runs()) | Runs.of(ordinal for ordinal in more if more[ordinal] == count)
    return _remembering(cursor, raised, limits)


def forgotten(cursor: Cursor, limits: Limits) -> Cursor:
    """Without what is remembered of records that are acknowledged by now."""
    return _remembering(cursor, deliveries(cursor), limits) if cursor.deliveries else cursor


def _remembering(cursor: Cursor, counts: Mapping[int, Runs], limits: Limits) -> Cursor:
    done = acks(cursor)
    left = ((count, ordinals.since(cursor.ordinal) - done) for count, ordinals in sorted(counts.items(), reverse=True))
    kept, size = [], 0
    for count, packed in ((count, ordinals.pack(0)) for count, ordinals in left):
        size += len(packed)
        if packed and size <= limits.deliveries_bytes:  # the highest counts are worth most
            kept.append((count, packed))
    return replace(cursor, deliveries=tuple(sorted(kept)))


# -- slots of keys -------------------------------------------------------------------------------------------------


def handed_over(cursor: Cursor, id: bytes, ready: Runs) -> Cursor:
    """A member has nothing in hand any more of some slots. Those that are dealt to others are theirs from now on."""
    owner = member(cursor, id)
    assert owner is not None
    given = (slots(owner) & ready) - dealt(owner)
    if not given:
        return cursor

    def after(each: Member) -> Member:
        now = slots(each) - given if each.id == id else slots(each) | (dealt(each) & given)
        return replace(each, slots=now.pack(0))

    return _each(cursor, after)


def _dealt_anew(cursor: Cursor) -> Cursor:
    """Deals the slots evenly, and moves as few as possible. One that nobody owns moves at once."""
    if cursor.sharing != KEY_SHARED or not cursor.members:
        return cursor
    hands = _deal(cursor.members)
    owned = Runs(run for each in cursor.members for run in slots(each))

    def after(each: Member) -> Member:
        now = Runs.of(hands[each.id])
        return replace(each, dealt=now.pack(0), slots=(slots(each) | (now - owned)).pack(0))

    return _each(cursor, after)


def _deal(members: Iterable[Member]) -> dict[bytes, list[int]]:
    hands = {each.id: sorted(dealt(each).numbers()) for each in members}
    taken = Runs(run for each in members for run in dealt(each))
    left = list((Runs([(0, SLOTS)]) - taken).numbers())
    for each in members:  # whose move to one that is gone is called off
        owned = slots(each)
        hands[each.id] += [slot for slot in left if slot in owned]
        left = [slot for slot in left if slot not in owned]
    largest = sorted(hands, key=lambda id: -len(hands[id]))
    share, more = divmod(SLOTS, len(hands))
    sizes = {id: share + (number < more) for number, id in enumerate(largest)}
    for id in largest:
        left += hands[id][sizes[id] :]
        hands[id] = hands[id][: sizes[id]]
    for id in hands:
        wanted = sizes[id] - len(hands[id])
        hands[id], left = hands[id] + left[:wanted], left[wanted:]
    return hands


def _each(cursor: Cursor, change: Callable[[Member], Member]) -> Cursor:
    return replace(cursor, members=tuple(map(change, cursor.members)))


def served(cursor: Cursor, id: bytes) -> Runs:
    """The slots of which a member delivers records: it owns them, and is to keep them."""
    each = member(cursor, id)
    return Runs() if each is None else slots(each) & dealt(each)


def leaving(cursor: Cursor, id: bytes) -> Runs:
    """The slots that a member owns, and is to hand over."""
    each = member(cursor, id)
    return Runs() if each is None else slots(each) - dealt(each)
