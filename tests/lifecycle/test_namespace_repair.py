"""All topics of a namespace are repaired in one go after ZooKeeper was rolled back."""

from __future__ import annotations

import pytest

from pyspark_ledger.lifecycle import namespace_repair
from pyspark_ledger.log import snapshots
from tests.support.recovery import Shop
from tests.support.rollback import restore, snapshot
from tests.support.worlds import SCHEMA, append, read


@pytest.fixture
def shop(tmp_path) -> Shop:
    """Of four topics one has lost nothing, one a commit, one a commit and has another since; and one is lost itself."""
    shop = Shop(tmp_path / "root")
    namespace = shop.namespace()
    for name in ("same", "lost", "other"):
        namespace.create_topic(name, SCHEMA)
        append(namespace.log(name), 1)
    shop.save()
    backup = snapshot(shop.server)
    for name in ("lost", "other"):
        append(namespace.log(name), 2)
        snapshots.leave(namespace.log(name))
    namespace.create_topic("young", SCHEMA)
    snapshots.leave(namespace.log("young"))
    restore(shop.server, backup)
    append(shop.log("other"), 3)
    return shop


def numbers(shop: Shop, topic: str) -> list[int]:
    return [number for number, _ in read(shop.log(topic))]


def outcomes(done: list[namespace_repair.TopicRepair]) -> dict[str, str]:
    return {each.topic: each.outcome or "error" for each in done}


def test_only_topics_that_need_it_are_found_and_a_lost_topic_is_named_I18(shop):
    found = namespace_repair.inspect(shop.namespace())
    assert {each.topic: each.damage is not None for each in found} == {"lost": True, "other": True, "young": False}
    assert "before the topic was made" in found[-1].error


def test_what_can_be_brought_back_is_and_the_rest_waits_I1_I18(shop):
    namespace = shop.namespace()
    done = namespace_repair.run(namespace, namespace_repair.inspect(namespace), bring_back=True, accept_loss=False)
    assert outcomes(done) == {"lost": "brought back", "other": "error", "young": "error"}
    assert (numbers(shop, "lost"), numbers(shop, "other")) == ([1, 2], [1, 3])


def test_the_loss_of_the_others_can_be_accepted_at_once(shop):
    namespace = shop.namespace()
    done = namespace_repair.run(namespace, namespace_repair.inspect(namespace), bring_back=True, accept_loss=True)
    assert outcomes(done) == {"lost": "brought back", "other": "loss accepted", "young": "error"}
    for name in ("lost", "other"):
        append(shop.log(name), 4)
    assert (numbers(shop, "lost"), numbers(shop, "other")) == ([1, 2, 4], [1, 3, 4])
    assert [each.topic for each in namespace_repair.inspect(shop.namespace())] == ["young"]
