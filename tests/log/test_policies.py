"""Policies are changed at their node's version, which commits check: what was asked for is true when the call returns,
and only then."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import InvalidInput, OutcomeUnknown
from pyspark_ledger.log import policies, root
from pyspark_ledger.log.policies import UNCHANGED
from pyspark_ledger.metadata.port import Metadata, NamespaceKey
from pyspark_ledger.metadata.records import Policies
from pyspark_ledger.metadata.transactions import Transactions
from pyspark_ledger.testing.memory import Faults
from tests.support.worlds import SMALL, World, append


@pytest.fixture
def world(tmp_path) -> World:
    world = World(tmp_path, limits=replace(SMALL, change_deadline_s=0.05))
    root.open_root(world.metadata(), str(tmp_path))
    return world


def faults(*planned) -> Faults:
    found = Faults()
    found.next_transact(*planned)
    return found


def kept(world: World) -> Policies:
    return world.log().policies().record


@pytest.mark.parametrize("fault", [None, "lost_before", "applied_then_lost", "delayed", "expired"])
def test_a_lost_answer_does_not_lose_a_change_I14(world, fault):
    log = world.log(faults(fault))
    wanted = Policies(False, 10, 60_000)
    assert policies.change(log, policies.Changes(False, 10, timedelta(minutes=1))) == wanted
    assert kept(world) == wanted


def test_what_is_not_named_stays_as_it_is(world):
    policies.change(world.log(), policies.Changes(False, 10, UNCHANGED))
    policies.change(world.log(), policies.Changes(UNCHANGED, UNCHANGED, timedelta(seconds=1)))
    assert kept(world) == Policies(False, 10, 1_000)
    policies.change(world.log(), policies.Changes(None, 0, None))
    assert kept(world) == Policies()


def test_a_commit_that_was_judged_by_old_policies_is_judged_again(world):
    """Not even one that was decided a moment before the change, by a process that reads nothing any more."""
    log, other = world.log(), world.log()
    append(log, 1, producer="p", batch_id=BatchId(1))
    policies.change(other, policies.Changes(False, UNCHANGED, UNCHANGED))
    with pytest.raises(InvalidInput, match="LEDGER_DEDUPLICATION_OFF"):
        append(log, 2, producer="p", batch_id=BatchId(2))
    append(log, 3)
    policies.change(other, policies.Changes(True, UNCHANGED, UNCHANGED))
    append(log, 4, producer="p", batch_id=BatchId(2))
    assert world.read() == [1, 3, 4]


def test_a_batch_is_not_called_a_replay_by_old_policies(world):
    """Who has turned deduplication off does not want rows to be left out without a word."""
    log, other = world.log(), world.log()
    append(log, 1, producer="p", batch_id=BatchId(1))
    policies.change(other, policies.Changes(False, UNCHANGED, UNCHANGED))
    with pytest.raises(InvalidInput, match="LEDGER_DEDUPLICATION_OFF"):
        append(log, 1, producer="p", batch_id=BatchId(1))


def test_an_append_in_between_is_not_undone_I1(world):
    log = world.log()
    log.refresh()
    append(world.log(), 1)
    policies.change(log, policies.Changes(False, UNCHANGED, UNCHANGED))
    assert world.read() == [1]
    assert kept(world).deduplication is False


@pytest.mark.parametrize("fault", [None, "lost_before", "applied_then_lost", "delayed"])
def test_a_namespaces_policy_survives_a_lost_answer_too_I14(world, fault):
    change_namespace(world.metadata(faults(fault)))
    assert world.metadata().read(NamespaceKey()).record.deduplication is False


def test_who_never_gets_through_is_told_so(world):
    never = Faults(lost_before=1.0)
    with pytest.raises(OutcomeUnknown, match="topic 't': a change of its policies: it was sent again and again"):
        policies.change(world.log(never), policies.Changes(False, UNCHANGED, UNCHANGED))
    with pytest.raises(OutcomeUnknown, match="the namespace's policies: it was sent again and again"):
        change_namespace(world.metadata(never))
    assert kept(world) == Policies()


def change_namespace(metadata: Metadata) -> None:
    policies.change_namespace(Transactions(metadata, Limits(change_deadline_s=0.05), SYSTEM_CLOCK), metadata, False)
