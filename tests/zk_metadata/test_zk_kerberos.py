"""SASL by Kerberos (GSSAPI) against a real KDC: ``make kerberos`` installs what it needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import closing

import pytest

from pyspark_ledger.base.settings import Settings
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.metadata.port import Create, NamespaceKey
from pyspark_ledger.metadata.records import Namespace
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata
from tests.support.kerberos import PROGRAMS, REALM, Realm, found

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("kerberos") is None or not all(map(found, PROGRAMS)),
    reason="the package kerberos or Debian's krb5-kdc and krb5-admin-server are not installed",
)


@pytest.fixture(scope="module")
def realm(tmp_path_factory) -> Iterator[Realm]:
    with closing(Realm(tmp_path_factory.mktemp("kerberos") / "realm")) as realm:
        yield realm


@pytest.fixture(scope="module")
def options(realm) -> Iterator[dict[str, str]]:
    with realm.zookeeper() as server:
        address = server.address.replace("127.0.0.1", "localhost")
        yield {"zookeeper": address, "zookeeper.sasl.mechanism": "gssapi"}


@pytest.fixture(autouse=True)
def in_the_realm(realm, monkeypatch) -> None:
    for name, value in realm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KRB5_CLIENT_KTNAME", raising=False)


def test_who_has_a_keytab_is_let_in_and_owns_what_it_makes_I19(realm, options, monkeypatch):
    for name, value in realm.keytab.items():
        monkeypatch.setenv(name, value)
    with closing(ZooKeeperMetadata(Settings.of(options))) as store:
        store.transact([Create(NamespaceKey(), Namespace("/s", 1))])
        (owner,) = store._lease.connection(store._deadline()).client.get_acls("/namespace")[0]
        assert (owner.id.scheme, owner.id.id) == ("sasl", f"ledger@{REALM}")
    with LedgerClient(options={**options, "zookeeper.sasl.user": f"ledger@{REALM}"}) as client:
        assert client.topics() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "no ticket for zookeeper@localhost: .*KRB5_CLIENT_KTNAME"),
        ({"zookeeper.sasl.service": "kafka"}, "no ticket for kafka@localhost: "),
    ],
    ids=["no ticket", "another service"],
)
def test_who_has_no_ticket_is_told_why_I19(realm, options, change, said, monkeypatch, tmp_path):
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
    if change:
        for name, value in realm.keytab.items():
            monkeypatch.setenv(name, value)
    with (
        pytest.raises(InvalidInput, match=said) as caught,
        LedgerClient(options={**options, **change}, timeout_s=3600) as client,
    ):
        client.topics()
    assert caught.value.code == "LEDGER_ACCESS_DENIED"
