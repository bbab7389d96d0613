"""TLS, SASL and digest against real servers that want them: who gets in, and what the others are told."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from kazoo.client import KazooClient

from pyspark_ledger.base.login import Login, Tls
from pyspark_ledger.base.setting_names import is_secret, variable
from pyspark_ledger.base.settings import Settings
from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.errors import InvalidInput, LedgerError, Unavailable
from pyspark_ledger.local.certificates import make_certificates
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from pyspark_ledger.metadata.port import Create, NamespaceKey
from pyspark_ledger.metadata.records import Namespace
from pyspark_ledger.zk_metadata import logging_in
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata
from pyspark_ledger.zk_metadata.tls import refusal
from tests.support.proxy import Proxy
from tests.support.query import eventually

NEVER_S = 3600.0  # who is told at all is not told by a time-out
Options = dict[str, str]


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory) -> Iterator[LocalZooKeeper]:
    """Takes TLS only, with a certificate for 127.0.0.1 and no other name."""
    certificates = make_certificates(tmp_path_factory.mktemp("tls"), hosts=["127.0.0.1"])
    with LocalZooKeeper(fsync=False, tls=certificates) as server:
        yield server


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalZooKeeper]:
    """Takes TLS only, from who has a certificate, and serves only who logs in by SASL."""
    with LocalZooKeeper(fsync=False, tls=True, client_certificates=True, sasl=True) as server:
        yield server


@pytest.fixture
def other_authority(tmp_path):
    return make_certificates(tmp_path / "other")


def topics_seen_by(options: Options) -> list[str]:
    with LedgerClient(options=options, timeout_s=NEVER_S) as client:
        return client.topics()


def refused(options: Options) -> LedgerError:
    """What is said, as soon as it is known."""
    with pytest.raises(LedgerError) as caught:
        topics_seen_by(options)
    assert options.get("zookeeper.sasl.password", "no password") not in str(caught.value)
    return caught.value


def kazoo(store: ZooKeeperMetadata) -> KazooClient:
    return store._lease.connection(store._deadline()).client


def without(options: Options, *names: str) -> Options:
    return {name: value for name, value in options.items() if name not in names}


# -- TLS


def test_what_is_decrypted_already_does_not_wait_for_more_from_the_network(other_authority):
    """A server may put several answers into one record of TLS. kazoo reads them one by one, and asks before each."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(other_authority.server)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with context.wrap_socket(listening.accept()[0], server_side=True) as accepted:
                accepted.sendall(b"one,two")
                accepted.recv(1)

        server = threading.Thread(target=serve)
        server.start()
        handler = logging_in.LoginHandler(lambda: Login(tls=Tls(ca=str(other_authority.ca))))
        with handler.create_connection(listening.getsockname(), hostname="localhost", timeout=10) as connection:
            assert handler.select([connection], [], [], 10) == ([connection], [], [])
            assert connection.recv(4) == b"one,"
            assert handler.select([connection], [connection], [], 10) == ([connection], [connection], [])
            assert handler.select([connection], [], [], 10) == ([connection], [], [])
            assert connection.recv(4) == b"two"
            assert handler.select([connection], [], [], 0.01) == ([], [], [])
            connection.send(b".")
        server.join()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_that_wants_a_certificate_is_recognised_in_either_version_of_tls(version, other_authority):
    """In 1.2 it refuses the handshake, in 1.3 it says so only afterwards."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(other_authority.server)
    context.load_verify_locations(other_authority.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = version
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for _ in range(3):
                accepted, _ = listening.accept()
                with suppress(OSError), accepted, context.wrap_socket(accepted, server_side=True) as secure:
                    secure.recv(1)

        server = threading.Thread(target=serve)
        server.start()
        host, port = listening.getsockname()
        given = Tls(ca=str(other_authority.ca))
        assert "wants a certificate from us" in refusal(host, port, given).why
        assert "takes only encrypted connections" in refusal(host, port, None).why
        assert refusal(host, port, replace(given, cert=str(other_authority.client))) is None
        server.join()


def test_many_answers_of_all_sizes_arrive_over_tls(encrypted, tmp_path):
    with LedgerClient(options=encrypted.options, storage=str(tmp_path)) as client, closing(
        ZooKeeperMetadata(Settings.of(encrypted.options))
    ) as store:  # fmt: skip
        assert client.topics() == []
        zookeeper = kazoo(store)
        zookeeper.ensure_path("/large")
        sizes = [1, 20_000, 300, 500_000, 7]
        for number, size in enumerate(sizes):
            zookeeper.create(f"/large/{number}", b"x" * size)
        asked = [zookeeper.get_async(f"/large/{number % len(sizes)}") for number in range(300)]
        found = [len(answer.get(timeout=20)[0]) for answer in asked]
        assert found == [sizes[number % len(sizes)] for number in range(300)]


def test_a_server_that_takes_only_tls_says_so_to_who_has_none_I19(encrypted):
    error = refused({"zookeeper": encrypted.address})
    assert isinstance(error, Unavailable)
    assert error.code == "LEDGER_TLS_FAILED"
    assert "takes only encrypted connections: set 'zookeeper.tls.ca'" in error.message


def test_a_certificate_of_an_unknown_authority_is_refused_I19(encrypted, other_authority):
    options = {**encrypted.options, "zookeeper.tls.ca": str(other_authority.ca)}
    error = refused(options)
    assert error.code == "LEDGER_TLS_FAILED"
    assert f"is of a CA that is not in {other_authority.ca}" in error.message
    assert (
        "is of a CA that is not trusted here"
        in refused({"zookeeper": encrypted.address, "zookeeper.tls": "true"}).message
    )
    assert topics_seen_by({**options, "zookeeper.tls.verify": "none"}) == []


def test_a_certificate_of_another_host_is_refused_unless_names_are_not_compared_I19(encrypted):
    options = {**encrypted.options, "zookeeper": encrypted.address.replace("127.0.0.1", "localhost")}
    error = refused(options)
    assert error.code == "LEDGER_TLS_FAILED"
    assert "the certificate of localhost" in error.message
    assert "is of another host (127.0.0.1)" in error.message
    assert topics_seen_by({**options, "zookeeper.tls.verify": "ca"}) == []


def test_a_certificate_that_has_expired_is_refused_I19(tmp_path):
    with LocalZooKeeper(fsync=False, tls=make_certificates(tmp_path, days=-1)) as server:
        error = refused(server.options)
        assert error.code == "LEDGER_TLS_FAILED"
        assert "has expired" in error.message


def test_tls_with_a_server_that_has_none_is_told(zookeeper):
    error = refused({"zookeeper": zookeeper, "zookeeper.tls": "true"})
    assert error.code == "LEDGER_TLS_FAILED"
    assert "secureClientPort" in error.message


def test_what_was_right_is_told_too_when_it_is_no_longer(encrypted, other_authority, tmp_path):
    """A process that has been let in waits for a server that comes back, and is then told what is wrong."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(encrypted.certificates.ca.read_bytes())
    settings = Settings.of({**encrypted.options, "zookeeper.tls.ca": str(ca)})
    with closing(ZooKeeperMetadata(settings)) as store:

        def told() -> str:
            """Empty if it is let in. On a busy machine one try may be too short for all of it."""
            try:
                assert store.read(NamespaceKey()) is None
            except Unavailable as error:
                return error.message
            return ""

        def connects_anew(with_ca: bytes | None) -> None:
            store._timeout_s = 30
            assert told() == ""
            ca.unlink() if with_ca is None else ca.write_bytes(with_ca)
            kazoo(store)._connection._socket.shutdown(socket.SHUT_RDWR)
            store._timeout_s = 2

        right = ca.read_bytes()
        connects_anew(other_authority.ca.read_bytes())
        eventually(lambda: "is of a CA that is not in" in told(), 60)
        ca.write_bytes(right)
        connects_anew(None)
        eventually(lambda: re.search(r"'zookeeper.tls.ca' is '.*ca.pem'", told()), 60)
        ca.write_bytes(right)
        connects_anew(right)
        assert told() == ""


def test_a_server_that_says_nothing_at_first_is_asked_again_what_is_wrong_I19(other_authority, tmp_path):
    """On a machine that is very busy a handshake may take longer than one look at it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(other_authority.server)
    asked: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while len(asked) < 6:  # connections and looks at them
                asked.append(listening.accept()[0])
            with suppress(OSError):
                while True:
                    accepted, _ = listening.accept()
                    with suppress(OSError), accepted, context.wrap_socket(accepted, server_side=True):
                        pass

        threading.Thread(target=serve, daemon=True).start()
        ca = make_certificates(tmp_path / "ours").ca
        host, port = listening.getsockname()
        error = refused({"zookeeper": f"{host}:{port}", "zookeeper.tls.ca": str(ca)})
        listening.shutdown(socket.SHUT_RDWR)
    assert error.code == "LEDGER_TLS_FAILED"
    assert f"is of a CA that is not in {ca}" in error.message


@pytest.mark.parametrize(
    ("wrong", "content", "said"),
    [
        ({"zookeeper.tls.ca": "none.pem"}, None, "'zookeeper.tls.ca' is '.*none.pem': .*No such file"),
        ({"zookeeper.tls.ca": "a\0b"}, None, "'zookeeper.tls.ca' is .*null"),
        ({"zookeeper.tls.cert": "a\0b"}, None, "'zookeeper.tls.cert' is .*null"),
        ({"zookeeper.tls.ca": "bad.pem"}, "nonsense", "'zookeeper.tls.ca' is '.*bad.pem': .*certificates of CAs"),
        ({"zookeeper.tls.cert": "none.pem"}, None, "'zookeeper.tls.cert' is '.*none.pem'.*No such file"),
        ({"zookeeper.tls.cert": "bad.pem"}, "nonsense", "'zookeeper.tls.cert' is '.*bad.pem'.*in PEM"),
        ({"zookeeper.tls.cert": "ca", "zookeeper.tls.key": "none.pem"}, None, "'zookeeper.tls.key' is '.*none.pem'"),
    ],
)
def test_a_file_that_is_no_certificate_is_told_at_once(wrong, content, said, other_authority, tmp_path):
    if content:
        (tmp_path / "bad.pem").write_text(content)
    files = {name: str(other_authority.ca if file == "ca" else tmp_path / file) for name, file in wrong.items()}
    with pytest.raises(InvalidInput, match=said):
        topics_seen_by({"zookeeper": "127.0.0.1:1", **files})


# -- certificates of clients, and SASL


def test_who_shows_a_certificate_and_logs_in_works_as_ever_and_owns_what_it_makes(guarded, tmp_path):
    with LedgerClient(options=guarded.options, storage=str(tmp_path / "s")) as client:
        client.create_topic("t", pa.schema([("n", pa.int64())]))
        with client.producer("t") as producer:
            for number in range(100):
                producer.send({"n": number})
        assert [record["n"] for record in client.reader("t", end="latest")] == [*range(100)]
    with closing(ZooKeeperMetadata(Settings.of(guarded.options))) as store:
        owners = [(each.id.scheme, each.id.id) for each in kazoo(store).get_acls("/namespace")[0]]
        assert ("sasl", "ledger") in owners
        assert "world" not in [scheme for scheme, _ in owners]


def test_the_command_line_logs_in_by_a_profile_by_the_environment_and_by_options(guarded, tmp_path):
    def listed(*arguments: str, **environment: str) -> list[str]:
        done = CliRunner().invoke(main, [*arguments, "topics", "list", "--json"], env=environment)
        assert done.exit_code == 0, done.output
        return [row["topic"] for row in json.loads(done.stdout)]

    with LedgerClient(options=guarded.options, storage=str(tmp_path / "s")) as client:
        topics = client.topics()
    config = tmp_path / "config.toml"
    config.touch(mode=0o600)
    config.write_text("\n".join(["[prod]", *(f'"{name}" = "{value}"' for name, value in guarded.options.items())]))
    assert listed("--profile", "prod", LEDGER_CONFIG=str(config)) == topics
    assert listed(LEDGER_PROFILE="prod", LEDGER_CONFIG=str(config)) == topics
    assert listed(**{variable(name): value for name, value in guarded.options.items()}) == topics
    shown = [f"--set={name}={value}" for name, value in guarded.options.items() if not is_secret(name)]
    password = guarded.options["zookeeper.sasl.password"]
    assert listed(*shown, LEDGER_ZOOKEEPER_SASL_PASSWORD=password) == topics


def test_who_shows_no_certificate_is_told_to_I19(guarded):
    error = refused(without(guarded.options, "zookeeper.tls.cert"))
    assert error.code == "LEDGER_TLS_FAILED"
    assert "wants a certificate from us: set 'zookeeper.tls.cert'" in error.message


def test_who_shows_a_certificate_of_another_authority_is_told(guarded, other_authority):
    error = refused({**guarded.options, "zookeeper.tls.cert": str(other_authority.client)})
    assert error.code == "LEDGER_TLS_FAILED"
    assert f"does not accept the certificate in {other_authority.client}" in error.message


def test_a_key_of_its_own_with_a_password_is_taken_and_a_wrong_password_is_told(guarded, tmp_path):
    key = load_pem_private_key(guarded.certificates.client.read_bytes(), None)
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"right"))
    )
    options = {**guarded.options, "zookeeper.tls.key": str(tmp_path / "key.pem")}
    assert isinstance(topics_seen_by({**options, "zookeeper.tls.password": "right"}), list)
    for wrong in ({}, {"zookeeper.tls.password": "wrong"}):
        assert "needs the right 'zookeeper.tls.password'" in refused({**options, **wrong}).message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"zookeeper.sasl.password": "wrong"}, "does not accept SASL user 'ledger': check the options zookeeper.sasl"),
        ({"zookeeper.sasl.user": "nobody"}, "does not accept SASL user 'nobody'"),
        ({"zookeeper.password": "me:x"}, "serves only who logs in in a way that it wants, and not user 'me'"),
        ({}, "set zookeeper.sasl.user and zookeeper.sasl.password"),
    ],
    ids=["wrong password", "wrong user", "only digest", "no login"],
)
def test_who_logs_in_wrongly_or_not_at_all_is_told_at_once_I19(guarded, change, said):
    given = guarded.options
    if not any("sasl" in name for name in change):
        given = without(given, "zookeeper.sasl.user", "zookeeper.sasl.password")
    error = refused({**given, **change})
    assert isinstance(error, InvalidInput)
    assert error.code == "LEDGER_ACCESS_DENIED"
    assert said in error.message


def test_without_the_package_for_sasl_its_extra_is_named(monkeypatch):
    monkeypatch.setattr(logging_in.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InvalidInput, match=r"pip install 'pyspark-ledger\[sasl\]'"):
        topics_seen_by({"zookeeper": "127.0.0.1:1", "zookeeper.sasl.user": "a", "zookeeper.sasl.password": "b"})


# -- digest


def test_a_user_and_a_password_are_the_same_together_and_apart(namespace, storage_root):
    together = Settings.of({"zookeeper": namespace, "zookeeper.password": "me:se:cret"})
    with closing(ZooKeeperMetadata(together)) as store:
        store.transact([Create(NamespaceKey(), Namespace("/s", 1))])
    other = {"zookeeper": namespace, "zookeeper.user": "me", "zookeeper.password": "secret"}
    with LedgerClient(options=other) as client, pytest.raises(InvalidInput, match="denies user 'me' access") as caught:
        client.create_topic("t", None)
    assert caught.value.code == "LEDGER_ACCESS_DENIED"
    assert "zookeeper.password" in caught.value.message
    with LedgerClient(namespace, user="you", password="secret") as client, pytest.raises(InvalidInput, match="'you'"):
        client.create_topic("t", None)


# -- profiles


def test_who_was_refused_gets_in_again_when_the_profile_is_right_again(guarded, tmp_path, monkeypatch):
    def write(password: str) -> None:
        given = {**guarded.options, "zookeeper.sasl.password": password}
        config.write_text("\n".join(["[prod]", *(f'"{name}" = "{value}"' for name, value in given.items())]))

    config = tmp_path / "config.toml"
    config.touch(mode=0o600)
    monkeypatch.setenv("LEDGER_CONFIG", str(config))
    write(guarded.options["zookeeper.sasl.password"])
    with closing(ZooKeeperMetadata(Settings.of({"profile": "prod"}).here(), timeout_s=NEVER_S)) as store:
        store.read(NamespaceKey())
        write("wrong")
        kazoo(store)._connection._socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(InvalidInput, match="does not accept SASL user 'ledger'"):
            store.read(NamespaceKey())
        write(guarded.options["zookeeper.sasl.password"])
        eventually(lambda: store.read(NamespaceKey()) or True)


def test_a_password_that_changes_in_a_profile_is_used_from_the_next_connection_on_I19(
    zookeeper, namespace, tmp_path, monkeypatch, caplog
):
    def write(text: str) -> None:
        config = Path(tmp_path / "config.toml")
        config.touch(mode=0o600)
        config.write_text(text)

    proxy = Proxy(zookeeper)
    address = namespace.replace(zookeeper, proxy.address)
    monkeypatch.setenv("LEDGER_CONFIG", str(tmp_path / "config.toml"))
    with closing(ZooKeeperMetadata(Settings.of({"zookeeper": namespace, "zookeeper.password": "me:new"}))) as owner:
        owner.transact([Create(NamespaceKey(), Namespace("/s", 1))])
    write(f'[prod]\nzookeeper = "{address}"\n"zookeeper.password" = "me:old"\n')
    settings = Settings.of({"profile": "prod"}).here()
    with closing(proxy), closing(ZooKeeperMetadata(settings)) as store:
        with pytest.raises(InvalidInput, match="LEDGER_ACCESS_DENIED"):
            store.read(NamespaceKey())
        write("[prod")  # somebody saves it half
        proxy.cut()
        with pytest.raises(InvalidInput, match="LEDGER_ACCESS_DENIED"):
            store.read(NamespaceKey())
        assert "the login for ZooKeeper" in caplog.text
        write(f'[prod]\nzookeeper = "{address}"\n"zookeeper.password" = "me:new"\n')
        proxy.cut()
        eventually(lambda: store.read(NamespaceKey()) is not None)
    assert "me:" not in caplog.text
