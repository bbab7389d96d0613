"""A backup by hand: one file that has everything but the data files."""

from __future__ import annotations

import pytest

from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.files.nodefile import NodeFile
from pyspark_ledger.lifecycle import backup_file
from pyspark_ledger.metadata.port import CursorKey, EntityKey, HeadKey, TokenGroupKey, TopicKey
from pyspark_ledger.outbox.entities import Content
from pyspark_ledger.zk_metadata import exporting
from tests.support.backups import ENTITY, OUTBOX, Shop, before_each_call, in_storage, with_value


@pytest.fixture
def shop() -> Shop:
    shop = Shop(orders=12)
    shop.everybody()
    return shop


def read(file) -> dict:
    found = NodeFile.from_bytes(file.read_bytes(), str(file))
    records = exporting.load(found.nodes, str(file))
    return {key: with_value(key, record, found.files) for key, record in records.items()}


def test_it_has_what_the_continuous_backup_has_and_says_what_that_is(shop, tmp_path):
    shop.round()
    done = backup_file.write(shop.open(), tmp_path / "all.ledger-backup")
    assert read(done.file) == in_storage(shop.storage)
    assert [file.name for file in tmp_path.iterdir()] == ["all.ledger-backup"]
    assert [
        (topic.name, topic.last_commit, topic.records, topic.subscriptions, topic.groups) for topic in done.topics
    ] == [
        ("invoices", 1, 2, 1, 0),
        ("orders", 0, 12, 1, 2),
    ]
    assert (done.entities, done.failed, done.bytes) == (1, {}, done.file.stat().st_size)
    assert NodeFile.from_bytes(done.file.read_bytes(), "").facts["storage"] == "memory://disk"


def test_a_file_that_is_there_is_not_overwritten_unless_asked(shop, tmp_path):
    file = tmp_path / "all"
    file.write_text("precious")
    with pytest.raises(InvalidInput, match="LEDGER_FILE_EXISTS"):
        backup_file.write(shop.open(), file)
    assert file.read_text() == "precious"
    backup_file.write(shop.open(), file, overwrite=True)
    assert HeadKey(shop.uuid("orders")) in read(file)


@pytest.mark.parametrize(("name", "code"), [("missing/all", "LEDGER_NO_SUCH_FOLDER"), (".", "LEDGER_FILE_EXISTS")])
def test_a_place_where_it_cannot_be_is_refused_before_anything_is_read(shop, tmp_path, name, code):
    with pytest.raises(InvalidInput, match=code):
        backup_file.write(shop.open(), tmp_path / name, overwrite=True)


def test_what_is_damaged_is_left_out_and_said(shop, tmp_path, monkeypatch):
    namespace = shop.open()
    real, uuid = namespace.metadata.read, shop.uuid("orders")

    def damaged(key, *watch):
        if key == HeadKey(uuid):
            raise CorruptData("it is damaged")
        return real(key, *watch)

    monkeypatch.setattr(namespace.metadata, "read", damaged)
    done = backup_file.write(namespace, tmp_path / "all")
    assert (list(done.failed), [topic.name for topic in done.topics]) == (["orders"], ["invoices"])
    assert TopicKey("orders") in read(done.file)


def test_whoever_acts_meanwhile_no_log_is_older_than_the_rest_I1_I11(tmp_path):
    step, acted = 0, True
    while acted:
        shop, acted = Shop(orders=12), False
        shop.everybody()
        namespace = shop.open()

        def act(number: int, shop=shop, step=step) -> None:
            nonlocal acted
            if number == step:
                acted = True
                shop.everybody()

        before_each_call(namespace.metadata, act)
        found = read(backup_file.write(namespace, tmp_path / "all", overwrite=True).file)
        orders, invoices = shop.uuid("orders"), shop.uuid("invoices")
        records = found[HeadKey(invoices)].records
        counted = Content.from_bytes(found[EntityKey(OUTBOX, ENTITY)].content).state["count"]
        assert found[TokenGroupKey(orders, "invoices")].consumed + counted <= records, step
        assert found[TokenGroupKey(orders, OUTBOX)].consumed <= counted, step
        assert found[CursorKey(invoices, "sub")].ordinal <= records, step
        step += 1
    assert step > 20
