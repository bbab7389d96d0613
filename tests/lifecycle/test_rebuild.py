"""A namespace is made again from what storage has: everything is there, no number is used twice, and whoever comes from
the old ZooKeeper is refused."""

from __future__ import annotations

import pytest

from tests.support.recovery import Shop


@pytest.fixture
def shop(tmp_path) -> Shop:
    shop = Shop(tmp_path / "root")
    shop.fill()
    return shop


def test_everything_is_there_again_I1(shop):
    shop.save()
    before = shop.facts()
    shop.lose()
    plan = shop.rebuild()
    assert [topic.topic for topic in plan.topics] == ["idle", "t"]
    assert shop.facts() == before
