"""The outbox: state, output and token go together, over crashes at any line (I11)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from pyspark_ledger.append.several import Together
from pyspark_ledger.errors import DataLoss, InvalidInput, NotFound
from pyspark_ledger.files.blobs import Blobs
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log import policies
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.outbox.outbox import Dispatch, Outbox, Send
from pyspark_ledger.testing.memory import Crash, Faults
from pyspark_ledger.tokens.minting import Minter
from pyspark_ledger.tokens.tokens import Tokens
from tests.support.flaky import Behind
from tests.support.rollback import restore, snapshot
from tests.support.shop import LIMITS, Shop, bill


@pytest.fixture
def shop(tmp_path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture(params=["tokens here", "tokens elsewhere"])
def dispatching(request, tmp_path) -> Shop:
    return Shop(tmp_path, foreign=request.param == "tokens elsewhere")


# -- one transaction -------------------------------------------------------------------------------------------------


def test_a_message_changes_state_and_writes_records_once_I11(shop):
    token = shop.order()
    first = shop.billing().process("m1", token, bill("m1"), entity="ann")
    again = shop.billing().process("m1", token, bill("m1"), entity="ann")
    assert (first.duplicate, again.duplicate) == (False, True)
    assert first.state == again.state == shop.billing().state("ann") == {"orders": ["m1"]}
    assert shop.invoiced() == ["m1"]
    assert shop.tokens_in_flight() == 0


def test_records_go_to_several_topics_or_none_of_them(shop):
    token = shop.order()

    def handler(state):
        return 1, [Send("invoices", {"order": "m1"}), Send("audit", {"order": "m1"}), Send("audit", {"order": "m1b"})]

    shop.billing().process("m1", token, handler)
    assert (shop.invoiced(), shop.invoiced("audit")) == (["m1"], ["m1", "m1b"])
    token = shop.order()
    with pytest.raises(NotFound, match="no topic 'nowhere'"):
        shop.billing().process("m2", token, lambda s: (2, [Send("audit", {"order": "m2"}), Send("nowhere", {})]))
    assert (shop.billing().state(), shop.invoiced("audit"), shop.tokens_in_flight()) == (1, ["m1", "m1b"], 1)


def test_policies_that_somebody_changes_do_not_stop_an_outbox_for_ever_I16(shop):
    billing = shop.billing()
    billing.process("m1", shop.order(), bill("m1"))
    policies.change(shop.log("invoices"), policies.Changes(snapshot_commits=7))
    billing.process("m2", shop.order(), bill("m2"))
    assert shop.invoiced() == ["m1", "m2"]


def test_an_outbox_whose_nodes_were_rolled_back_makes_them_again_I16(shop):
    token, backup = shop.order(), snapshot(shop.world.server)
    billing = shop.billing()
    billing.process("m1", token, lambda state: (1, []))
    restore(shop.world.server, backup)
    billing._resources.metadata.reconnect()
    assert not billing.process("m1", token, lambda state: (2, [])).duplicate
    assert billing.state() == 2


def test_an_outbox_says_that_a_topic_was_rolled_back_I18(shop):
    billing = shop.billing()
    billing.process("m1", shop.order(), bill("m1"))
    token, backup = shop.order(), snapshot(shop.world.server)
    billing.process("m2", token, bill("m2"))
    restore(shop.world.server, backup)
    billing._resources.metadata.reconnect()
    shop.billing().process("m3", shop.order(), bill("m3"))
    with pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*'invoices'"):
        billing.process("m2", token, bill("m2"))
    assert shop.invoiced() == ["m1", "m3"]


def test_what_it_sends_has_tokens_for_the_next_in_line(shop):
    shop.billing().process("m1", shop.order(), bill("m1"))
    [record] = Reader(shop.log("invoices"), "earliest", "latest")
    assert Tokens(shop.log("invoices"), "shipping").consume([record.token]) == [True]


def test_a_handler_that_only_keeps_state_needs_no_topic(shop):
    token = shop.order()
    for _ in range(2):
        shop.billing().process("m1", token, lambda state: ((state or 0) + 1, []))
    assert shop.billing().state() == 1


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_crash_at_any_step_leaves_all_or_nothing_and_a_retry_does_the_rest_I11(shop, step, applied):
    token = shop.order()
    faults = Faults()
    faults.crash_at(step, applied=applied)
    try:
        shop.billing(faults).process("m1", token, bill("m1"))
    except Crash:
        assert shop.invoiced() == ((shop.billing().state() or {}).get("orders") or [])
    shop.billing().process("m1", token, bill("m1"))
    assert (shop.billing().state(), shop.invoiced()) == ({"orders": ["m1"]}, ["m1"])


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "delayed", "expired"])
def test_an_unknown_outcome_is_found_out_I14(shop, fault):
    faults = Faults()
    outbox = shop.billing(faults)
    outbox.process("m0", shop.order(), bill("m0"))
    faults.next_transact(fault)
    assert not outbox.process("m1", shop.order(), bill("m1")).duplicate
    shop.world.server.deliver_delayed()
    assert shop.invoiced() == ["m0", "m1"] == shop.billing().state()["orders"]


def test_two_copies_at_once_the_posts_first_story_I11(shop):
    """Both find the token; the entity's version lets one through, the other finds a duplicate."""
    token = shop.order()
    ran = []

    def slow(state):
        ran.append("slow")
        if len(ran) == 1:
            assert not shop.billing().process("m1", token, bill("m1")).duplicate
        return bill("m1")(state)

    assert shop.billing().process("m1", token, slow).duplicate
    assert (shop.invoiced(), shop.billing().state()) == (["m1"], {"orders": ["m1"]})


def test_another_message_of_the_entity_meanwhile_runs_the_handler_again_on_the_new_state(shop):
    first, second = shop.order(), shop.order()
    states = []

    def slow(state):
        states.append(state)
        if len(states) == 1:
            shop.billing().process("m2", second, bill("m2"))
        return bill("m1")(state)

    shop.billing().process("m1", first, slow)
    assert shop.billing().state() == {"orders": ["m2", "m1"]}
    assert sorted(shop.invoiced()) == ["m1", "m2"]


def test_two_messages_that_share_nothing_but_their_entity_both_count_I11(shop):
    """Their tokens are of different topics, and nothing is sent: only the entity's version tells."""
    other = Tokens(shop.log("invoices"), "billing").mint()[0]

    def counted(state):
        return (state or 0) + 1, []

    def overtaken(state):
        shop.billing().process("m2", other, counted)
        return counted(state)

    shop.billing().process("m0", shop.order(), counted)
    shop.billing().process("m1", shop.order(), overtaken)
    assert shop.billing().state() == 3


def test_a_duplicate_is_told_the_state_that_has_the_effect_of_the_first_one_I14(shop):
    first, second = shop.order(), shop.order()
    faults = Behind(3)
    late = shop.billing(faults)
    late.process("m1", first, bill("m1"))
    shop.billing().process("m2", second, bill("m2"))
    late._resources.groups.group(shop.world.topic.uuid).load()
    faults.next_read("stale")
    again = late.process("m2", second, bill("m2"))
    assert (again.duplicate, again.state) == (True, {"orders": ["m1", "m2"]})


def test_the_tokens_that_were_dispatched_are_the_receivers_to_consume_I11(tmp_path):
    shop, sent = Shop(tmp_path, foreign=True), []
    shop.billing(dispatch=lambda _, token: sent.append(token)).process("m1", shop.order(), bill("m1", parcel=True))
    assert shop.parcel_tokens().consume(sent) == [True]


def test_another_writer_of_the_topic_meanwhile_does_not_run_the_handler_again(shop):
    outbox = shop.billing()
    outbox.process("m0", shop.order(), bill("m0"))
    ran = []

    def handler(state):
        ran.append(1)
        shop.billing().process("other", shop.order(), bill("other"), entity="bob")
        return bill("m1")(state)

    outbox.process("m1", shop.order(), handler)
    assert (len(ran), sorted(shop.invoiced())) == (1, ["m0", "m1", "other"])


# -- messages that leave the namespace -----------------------------------------------------------------------------


def test_a_parcel_is_dispatched_with_a_token_and_nothing_is_left_I11(dispatching):
    shop = dispatching
    shop.billing().process("m1", shop.order(), bill("m1", parcel=True))
    assert [payload for payload, _ in shop.dispatched] == ["parcel for m1"] == shop.shipped
    assert (shop.tokens_in_flight(), shop.parcel_blocks(), shop.billing().pending()) == (0, [], {})
    assert (shop.invoiced(), shop.billing().state()) == (["m1"], {"orders": ["m1"]})


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("step", range(1, 9))
def test_a_crash_at_any_step_of_the_long_way_ships_one_parcel_I11(dispatching, step, applied):
    shop = dispatching
    token = shop.order()
    faults = Faults()
    faults.crash_at(step, applied=applied)
    with suppress(Crash):
        shop.billing(faults).process("m1", token, bill("m1", parcel=True))
    shop.billing().process("m1", token, bill("m1", parcel=True))
    assert (shop.shipped, shop.invoiced()) == (["parcel for m1"], ["m1"])
    assert (shop.tokens_in_flight(), shop.parcel_blocks(), shop.billing().pending()) == (0, [], {})


class Dies:
    """A process that dies while it dispatches."""

    def __init__(self, shop: Shop, *, delivered: bool):
        self._shop, self._delivered = shop, delivered

    def __call__(self, payload, token):
        if self._delivered:
            self._shop.dispatch(payload, token)
        raise Crash


@pytest.mark.parametrize("delivered", [False, True])
def test_upstream_dies_after_dispatch_and_retries_the_posts_second_story_I11(dispatching, delivered):
    shop = dispatching
    token = shop.order()
    with pytest.raises(Crash):
        shop.billing(dispatch=Dies(shop, delivered=delivered)).process("m1", token, bill("m1", parcel=True))
    assert list(shop.billing().pending()) == ["m1"]
    shop.billing().process("m1", token, bill("m1", parcel=True))
    assert shop.shipped == ["parcel for m1"]
    assert len({token for _, token in shop.dispatched}) == 1, "a retry dispatches the same token"
    assert (shop.tokens_in_flight(), shop.parcel_blocks()) == (0, [])


def naive(shop: Shop, entity: dict, message_id: str, token: str, handler, dispatch) -> None:
    """The post's first draft: tokens are made anew whenever a message is retried."""
    own = Tokens(shop.world.log(), "billing")
    if own.present([token]) == [False]:
        return
    if message_id not in entity["outbox"]:
        entity["state"], outgoing = handler(entity["state"])
        entity["outbox"][message_id] = [message.payload for message in outgoing if isinstance(message, Dispatch)]
    for payload in entity["outbox"][message_id]:
        [fresh] = shop.parcel_tokens().mint(1)
        dispatch(payload, fresh)
    own.consume([token])
    del entity["outbox"][message_id]


def test_the_first_draft_ships_twice(shop):
    """Why the order of the steps is what it is: the test above, without it."""
    token, entity = shop.order(), {"state": None, "outbox": {}}
    with pytest.raises(Crash):
        naive(shop, entity, "m1", token, bill("m1", parcel=True), Dies(shop, delivered=True))
    naive(shop, entity, "m1", token, bill("m1", parcel=True), shop.dispatch)
    assert shop.shipped == ["parcel for m1"] * 2


def test_the_first_draft_processes_two_copies_at_once(shop):
    """And why an entity has a version: the first story again, without it."""
    token, entity = shop.order(), {"state": None, "outbox": {}}
    ran = []

    def slow(state):
        ran.append(1)
        if len(ran) == 1:
            naive(shop, entity, "m1", token, bill("m1"), shop.dispatch)
        return bill("m1")(entity["state"])

    naive(shop, entity, "m1", token, slow, shop.dispatch)
    assert entity["state"] == {"orders": ["m1", "m1"]}


def test_two_copies_at_once_dispatch_the_same_tokens_I11(dispatching):
    shop = dispatching
    token = shop.order()

    def meanwhile(payload, dispatch_token):
        shop.billing().process("m1", token, bill("m1", parcel=True))
        shop.dispatch(payload, dispatch_token)

    assert shop.billing(dispatch=meanwhile).process("m1", token, bill("m1", parcel=True)).duplicate
    assert (shop.shipped, shop.invoiced()) == (["parcel for m1"], ["m1"])
    assert (shop.tokens_in_flight(), shop.parcel_blocks()) == (0, [])


@pytest.mark.parametrize("group", ["new", "known"])
def test_a_copy_that_looked_before_the_token_went_does_not_begin_again_I11(dispatching, group):
    """Its picture of the tokens is old, its picture of the entity new: only the group's version tells."""
    shop = dispatching
    if group == "known":
        Tokens(shop.world.log(), "billing").consume([shop.order()])
    token = shop.order()
    late = shop.billing()
    late._resources.groups.group(shop.world.topic.uuid)
    shop.billing().process("m1", token, bill("m1", parcel=True))
    assert late.process("m1", token, bill("m1", parcel=True)).duplicate
    assert (shop.shipped, shop.invoiced()) == (["parcel for m1"], ["m1"])


def test_a_minted_token_that_went_meanwhile_stores_nothing_to_dispatch_I11(shop):
    """The entity is as it was: only the block's version tells."""
    tokens = Tokens(shop.world.log(), "billing")
    token, _ = tokens.mint(2)
    handler = bill("m1", parcel=True)

    def overtaken(state):
        Tokens(shop.world.log(), "billing").consume([token])
        return handler(state)

    assert shop.billing().process("m1", token, overtaken).duplicate
    assert (shop.shipped, shop.invoiced(), shop.billing().pending()) == ([], [], {})


@pytest.mark.parametrize("rival_dies", [False, True])
def test_attempts_that_lost_leave_no_tokens_behind(tmp_path, monkeypatch, rival_dies):
    """Somebody else chooses between our registering and our minting, and dispatches, or dies before that."""
    shop = Shop(tmp_path, foreign=True)
    token = shop.order()
    outbox = shop.billing()
    mint_at = Minter.mint_at

    def rival_first(self, prefix, n):
        monkeypatch.setattr(Minter, "mint_at", mint_at)
        rival = shop.billing(dispatch=Dies(shop, delivered=False) if rival_dies else None)
        with suppress(Crash):
            rival.process("m1", token, bill("m1", parcel=True))
        mint_at(self, prefix, n)

    monkeypatch.setattr(Minter, "mint_at", rival_first)
    assert outbox.process("m1", token, bill("m1", parcel=True)).duplicate is not rival_dies
    assert (shop.shipped, shop.parcel_blocks()) == (["parcel for m1"], [])


def test_without_tokens_for_the_receiver_a_parcel_is_dispatched_at_least_once(shop):
    token = shop.order()
    with pytest.raises(Crash):
        shop.billing(dispatch=Dies(shop, delivered=True), tokens=False).process("m1", token, bill("m1", parcel=True))
    shop.billing(tokens=False).process("m1", token, bill("m1", parcel=True))
    assert shop.shipped == ["parcel for m1"] * 2
    assert shop.invoiced() == ["m1"]


# -- what is kept ----------------------------------------------------------------------------------------------------


def entity_files(shop: Shop) -> list[str]:
    return list(shop.world.storage.list("outboxes"))


def test_long_state_is_in_a_file_and_old_files_go(shop):
    for number in range(40):
        shop.billing().process(f"m{number}", shop.order(), bill(f"order number {number}"))
        assert len(entity_files(shop)) <= 1
    assert len(entity_files(shop)) == 1
    assert len(shop.billing().state()["orders"]) == 40
    shop.billing().process("reset", shop.order(), lambda state: (None, []))
    assert (shop.billing().state(), entity_files(shop)) == (None, [])


def test_state_whose_file_is_swept_meanwhile_is_read_again(shop, monkeypatch):
    big = {"text": "x" * 500}
    shop.billing().process("m1", shop.order(), lambda state: (big, []))
    fetch = Blobs.fetch

    def swept(self, file):
        monkeypatch.setattr(Blobs, "fetch", fetch)
        shop.billing().process("m2", shop.order(), lambda state: ({**state, "more": 1}, []))
        return fetch(self, file)

    monkeypatch.setattr(Blobs, "fetch", swept)
    assert shop.billing().state() == {**big, "more": 1}


def test_files_that_a_crash_left_go_with_the_next_change(shop):
    big = {"text": "x" * 500}
    shop.billing().process("m1", shop.order(), lambda state: (big, []))
    faults = Faults()
    outbox = shop.billing(faults)
    faults.crash_at(1)
    token = shop.order()
    with pytest.raises(Crash):
        outbox.process("m2", token, lambda state: (big, []))
    assert len(entity_files(shop)) == 2
    assert shop.billing().state() == big
    shop.billing().process("m2", token, lambda state: (big, []))
    assert len(entity_files(shop)) == 1


def test_gc_between_staging_and_commit_stages_again_I12(shop, monkeypatch):
    prepare = Together.prepare

    def overtaken(appends):
        monkeypatch.setattr(Together, "prepare", prepare)
        collecting = shop.log("invoices")
        collecting.limits = replace(collecting.limits, gc_grace_ms=0)
        for _ in range(3):
            gc.collect(collecting)
        for part in appends._parts:
            assert part.log.refresh(sync=True).head.gc_epoch == 3
        return prepare(appends)

    monkeypatch.setattr(Together, "prepare", overtaken)
    shop.billing().process("m1", shop.order(), bill("m1"))
    assert shop.invoiced() == ["m1"]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, r"returns \(state, messages\)"),
        (({}, [{"order": 1}]), "Send or Dispatch"),
        (({1, 2}, []), "state must be JSON"),
        (({}, [Dispatch(object())]), "payload must be JSON"),
        (({}, [Send("invoices", {"colour": "red"})]), "no column 'colour'"),
        (({}, [Send("invoices", {"total": "many"})]), "does not fit topic 'invoices'"),
    ],
)
def test_a_handler_that_returns_something_else_is_told_and_nothing_changes(shop, result, words):
    token = shop.order()
    with pytest.raises(InvalidInput, match=words):
        shop.billing().process("m1", token, lambda state: result)
    assert (shop.billing().state(), shop.invoiced()) == (None, [])
    assert Tokens(shop.world.log(), "billing").present([token]) == [True]


def undispatched(shop: Shop) -> Outbox:
    """An outbox that has no function to dispatch with."""
    metadata = shop.world.metadata()
    return Outbox("billing", metadata, shop.world.storage, shop.log, LIMITS, shop.world.clock)


def test_bad_arguments_are_errors_by_name(shop):
    outbox = shop.billing()
    for arguments, words in (
        ((1, "t"), "message_id is 1"),
        (("m", "nonsense"), "not a token"),
        (("m", None), "token is"),
    ):
        with pytest.raises(InvalidInput, match=words):
            outbox.process(*arguments, bill("m"))
    with pytest.raises(InvalidInput, match="LEDGER_NO_DISPATCH"):
        undispatched(shop).process("m", shop.order(), bill("m", parcel=True))
    with pytest.raises(InvalidInput, match="outbox's name"):
        Outbox("a/b", shop.world.metadata(), shop.world.storage, lambda t: shop.log(t), LIMITS, shop.world.clock)
