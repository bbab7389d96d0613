"""How to get into an object store: settings arrive at pyarrow, nothing secret is shown, and new keys are taken."""

from __future__ import annotations

import pickle
import re
import secrets
import ssl
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs
import pytest

from pyspark_ledger import LedgerClient
from pyspark_ledger.base.roots import tell
from pyspark_ledger.base.setting_names import NAMES, is_secret
from pyspark_ledger.base.settings import Settings
from pyspark_ledger.base.uris import check_no_keys, has_keys, shown
from pyspark_ledger.errors import InvalidInput, LedgerError, Unavailable
from pyspark_ledger.files import access
from pyspark_ledger.files import storage as storages
from pyspark_ledger.files.storage import LocalStorage, ObjectStorage, Root, open_storage
from pyspark_ledger.local.certificates import make_certificates

CANARY = "cAnArY9f3bSecret"
ROLE = "arn:aws:iam::123456789012:role/ledger"

# -- keys in a URI -------------------------------------------------------------------------------------------------

WITH_KEYS = (
    f"s3://AKIAKEY:{CANARY}@bucket/root",
    f"s3://{CANARY}@bucket/root?region=eu-west-1",
    f"s3://bucket/root?access_key=AKIA&secret_key={CANARY}",
    f"s3://bucket/root?region=eu-west-1&session_token={CANARY}",
    f"gs://{CANARY}@bucket/root",
    f"abfss://container:{CANARY}@account.dfs.core.windows.net/root",
    f"abfss://container@account.dfs.core.windows.net/root?sas_token={CANARY}",
    f"abfss://container@account.dfs.core.windows.net/root?sv=2024-01-01&sig={CANARY}",
    f"s3://bucket/root?access_key={CANARY}",
    f"s3://bucket/root?X-Amz-Credential=AKIA&X-Amz-Signature={CANARY}",
    f"s3://bucket/root?endpoint_override=me:{CANARY}@host:9000",
    f"gs://bucket/root?endpoint_override=http://me:{CANARY}@host:9000",
)
WITHOUT = (
    "s3://bucket/root", "s3://bucket/root?region=eu-west-1&endpoint_override=127.0.0.1:1&scheme=http",
    "s3://bucket/root?tls_ca_file_path=/etc/ca.pem&allow_bucket_creation=true&background_writes=false",
    "abfss://container@account.dfs.core.windows.net/root?blob_storage_authority=.blob.example.com&enable_tls=true",
    "gs://bucket/root", "abfss://container@account.dfs.core.windows.net/root", "/data/a@b", "file:///data/a@b",
)  # fmt: skip


@pytest.mark.parametrize("uri", WITH_KEYS)
def test_a_uri_with_keys_is_refused_with_the_better_way_and_without_the_keys_I19(uri, namespace):
    with pytest.raises(InvalidInput, match=r"\[LEDGER_KEYS_IN_URI\] .*as the options storage.accessKey") as caught:
        check_no_keys(uri)
    assert CANARY not in str(caught.value)
    with LedgerClient(zookeeper=namespace, storage=uri) as client:
        with pytest.raises(InvalidInput, match="LEDGER_KEYS_IN_URI") as caught:
            client.create_topic("t", pa.schema([("n", pa.int64())]))
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("uri", WITHOUT)
def test_a_uri_without_keys_is_shown_as_it_is(uri):
    assert not has_keys(uri)
    assert shown(uri) == uri


def test_a_namespace_that_was_made_with_keys_in_its_uri_can_be_read_and_does_not_show_them_I19():
    """As an earlier version took it."""
    uri = f"s3://AKIAKEY:{CANARY}@bucket/root?region=eu-west-1"
    storage = open_storage(uri)
    assert storage.where("a/b") == "s3://…@bucket/root/a/b"
    assert isinstance(storage, ObjectStorage)


# -- what arrives --------------------------------------------------------------------------------------------------

S3 = {
    "storage.accessKey": "AKIAKEY", "storage.secretKey": CANARY, "storage.sessionToken": f"{CANARY}-token",
    "storage.region": "eu-west-1", "storage.endpoint": "127.0.0.1:9", "storage.scheme": "http",
    "storage.proxy": "http://127.0.0.1:3128", "storage.proxy.user": "me", "storage.proxy.password": CANARY,
    "storage.backgroundWrites": "false", "storage.virtualAddressing": "true", "storage.connectTimeout": "2.5",
    "storage.requestTimeout": "7",
}  # fmt: skip


def made(monkeypatch, kind: str) -> list[dict]:
    """With what pyarrow's file system is made; it is made all the same."""
    found, real = [], getattr(pyarrow.fs, kind)

    def make(**given):
        found.append(given)
        return real(**given)

    monkeypatch.setattr(pyarrow.fs, kind, make)
    return found


def test_every_setting_of_s3_arrives(monkeypatch):
    found = made(monkeypatch, "S3FileSystem")
    _, root = access.file_system("s3://bucket/root?region=us-east-1&allow_bucket_creation=true", S3)
    assert root == "bucket/root"
    assert found == [
        {
            "access_key": "AKIAKEY", "secret_key": CANARY, "session_token": f"{CANARY}-token", "region": "eu-west-1",
            "endpoint_override": "127.0.0.1:9", "scheme": "http", "background_writes": False,
            "force_virtual_addressing": True, "connect_timeout": 2.5, "request_timeout": 7.0,
            "allow_bucket_creation": True, "allow_delayed_open": True,
            "proxy_options": {
                "scheme": "http", "host": "127.0.0.1", "port": 3128, "username": "me", "password": CANARY
            },
        }
    ]  # fmt: skip


def test_every_setting_of_a_role_arrives(monkeypatch):
    found = made(monkeypatch, "S3FileSystem")
    given = {"storage.roleArn": ROLE, "storage.roleSession": "me", "storage.externalId": "x", "storage.region": "eu"}
    access.file_system("s3://bucket/root", given)
    given = {"role_arn": ROLE, "session_name": "me", "external_id": "x", "region": "eu"}
    assert found == [{**given, "allow_delayed_open": True}]


def test_every_setting_of_google_arrives(monkeypatch):
    found = made(monkeypatch, "GcsFileSystem")
    given = {
        "storage.accessToken": CANARY, "storage.accessTokenExpires": "2099-01-01T00:00:00+00:00",
        "storage.endpoint": "127.0.0.1:9", "storage.scheme": "http", "storage.project": "p",
    }  # fmt: skip
    client, root = access.file_system("gs://bucket/root", given)
    assert (root, type(client).__name__) == ("bucket/root", "GcsFileSystem")
    assert found[0].keys() == {
        "access_token", "credential_token_expiration", "endpoint_override", "scheme", "project_id",
    }  # fmt: skip
    access.file_system("gcs://bucket/root", {"storage.anonymous": "true"})
    assert found[1] == {"anonymous": True}


def test_every_setting_of_azure_arrives(monkeypatch):
    found = made(monkeypatch, "AzureFileSystem")
    given = {"storage.secretKey": "YWFh", "storage.endpoint": "127.0.0.1:10000", "storage.scheme": "http"}
    client, root = access.file_system("abfss://container@account.dfs.core.windows.net/root", given)
    assert (root, type(client).__name__) == ("container/root", "AzureFileSystem")
    assert found == [
        {
            "account_name": "account", "account_key": "YWFh", "blob_storage_authority": "127.0.0.1:10000",
            "dfs_storage_authority": "127.0.0.1:10000", "blob_storage_scheme": "http", "dfs_storage_scheme": "http",
        }
    ]  # fmt: skip
    _, root = access.file_system("abfs://container/root", {"storage.account": "mine", "storage.sasToken": "?sv=x"})
    assert root == "container/root"
    assert found[1] == {"account_name": "mine", "sas_token": "?sv=x"}
    service = {"storage.tenantId": "t", "storage.clientId": "c", "storage.clientSecret": CANARY}
    access.file_system("abfss://container@account.dfs.core.windows.net/root", service)
    assert found[2] == {"account_name": "account", "tenant_id": "t", "client_id": "c", "client_secret": CANARY}


def test_every_setting_is_of_some_store():
    of_stores = {name for known in (access._S3, access._GCS, access._AZURE) for name, _ in known.values()}
    known = {f"storage.{name}" for name in of_stores | set(access._PROXY)}
    assert {name for name in NAMES if name.startswith("storage.")} == known


REFUSED = {
    "half a pair": ("s3://b/r", {"storage.accessKey": "a"}, "belong together"),
    "a token alone": ("s3://b/r", {"storage.sessionToken": CANARY}, "belongs to storage.accessKey"),
    "a role and keys": (
        "s3://b/r",
        {"storage.roleArn": ROLE, "storage.accessKey": "a", "storage.secretKey": CANARY},
        "leave storage.accessKey",
    ),
    "of another store": ("s3://b/r", {"storage.sasToken": CANARY}, "does not take storage.sasToken; it takes"),
    "of another store too": ("gs://b/r", {"storage.secretKey": CANARY}, "does not take storage.secretKey; it takes"),
    "no time": (
        "gs://b/r",
        {"storage.accessToken": CANARY, "storage.accessTokenExpires": "soon"},
        "storage.accessTokenExpires is '.*', which is not understood",
    ),
    "a token without its time": ("gs://b/r", {"storage.accessToken": CANARY}, "belong together"),
    "no number": ("s3://b/r", {"storage.connectTimeout": "fast"}, "storage.connectTimeout is 'fast'"),
    "a proxy with a password": (
        "s3://b/r",
        {"storage.proxy": f"http://me:{CANARY}@proxy:3128"},
        "give storage.proxy.user and storage.proxy.password",
    ),
    "no proxy": ("s3://b/r", {"storage.proxy": "proxy"}, "as in http://proxy:3128"),
    "a store without settings": ("hdfs://b/r", {"storage.region": "eu"}, "takes none of the options storage.region"),
}


@pytest.mark.parametrize(("uri", "given", "said"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_name_and_without_secrets_I19(uri, given, said):
    with pytest.raises(InvalidInput, match=said) as caught:
        access.file_system(uri, given)
    assert CANARY not in str(caught.value)


def test_secrets_have_names_that_spark_hides_and_are_in_no_text_of_a_value_I19():
    hides = re.compile("(?i)secret|password|token|access[.]?key")
    for name in ("accessKey", "secretKey", "sessionToken", "proxy.password", "accessToken", "sasToken", "clientSecret"):
        assert hides.search(f"storage.{name}")
        assert is_secret(f"storage.{name}")
    root = Root("s3://bucket/root", Settings.of(S3))
    assert CANARY not in repr(root)
    assert CANARY not in str(root.settings)


# -- to tasks ------------------------------------------------------------------------------------------------------


def test_tasks_are_given_what_gets_into_the_storage_and_nothing_else_I19():
    given = Settings.of({"zookeeper": "z:1", "zookeeper.user": "u", "zookeeper.password": "zk-secret", **S3})
    storage = ObjectStorage("s3://bucket/root", settings=given.how_to_store())
    packed = pickle.dumps(storage.root)
    assert b"zk-secret" not in packed
    assert pickle.loads(packed).settings.storage_settings == S3


def test_a_process_does_not_keep_a_client_for_each_key_that_it_ever_had_I19():
    before = len(storages._opened)
    for number in range(20):
        Root("s3://bucket/rotated", Settings.of({**S3, "storage.sessionToken": str(number)})).open()
    assert len(storages._opened) <= before + 4
    newest = Root("s3://bucket/rotated", Settings.of({**S3, "storage.sessionToken": "19"}))
    assert newest.open() is newest.open()


def test_a_folder_needs_no_settings_and_tasks_get_none_I19(tmp_path):
    tell(Settings.of(S3), tmp_path.as_uri())
    storage = open_storage(str(tmp_path))
    assert isinstance(storage, LocalStorage)
    assert storage.root == Root(tmp_path.as_uri(), None)


# -- real stores ---------------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(moto_server, monkeypatch) -> tuple[str, dict[str, str]]:
    """A root without parameters, and the settings that lead there: nothing in the environment does."""
    host, port = moto_server
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    settings = {
        "storage.endpoint": f"{host}:{port}", "storage.scheme": "http", "storage.region": "us-east-1",
        "storage.accessKey": "test", "storage.secretKey": CANARY,
    }  # fmt: skip
    root = f"s3://secured/{secrets.token_hex(8)}"
    client, _ = access.file_system(f"{root}?allow_bucket_creation=true", settings)
    client.create_dir("secured")
    return root, settings


def test_a_namespace_is_made_and_read_with_settings_that_are_recorded_nowhere_I19(bucket, namespace):
    root, settings = bucket
    with LedgerClient(zookeeper=namespace, storage=root, options=settings) as client:
        client.create_topic("t", pa.schema([("n", pa.int64())]))
        with client.producer("t") as producer:
            producer.send({"n": 7})
    with LedgerClient(zookeeper=namespace, options=settings) as client:
        assert [record["n"] for record in client.reader("t", start="earliest", end="latest")] == [7]


def test_a_role_is_assumed_I19(bucket, moto_server, monkeypatch):
    root, settings = bucket
    host, port = moto_server
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://{host}:{port}")
    kept = {name: text for name, text in settings.items() if not is_secret(name)}
    given = {**kept, "storage.roleArn": ROLE, "storage.roleSession": "me", "storage.externalId": "shared"}
    storage = Root(root, Settings.of(given)).open()
    storage.write("a/b", b"x")
    assert storage.read("a/b", 0, 9).to_pybytes() == b"x"


def profile(file: Path, name: str, values: dict[str, str]) -> None:
    lines = "".join(f'"{key}" = "{value}"\n' for key, value in values.items())
    file.with_suffix(".new").write_text(f"[{name}]\n{lines}")
    file.with_suffix(".new").chmod(0o600)
    file.with_suffix(".new").replace(file)


def test_keys_that_change_in_a_profile_are_taken_by_who_runs_and_by_the_next_tasks_I19(bucket, tmp_path, monkeypatch):
    root, settings = bucket
    file = tmp_path / "config.toml"
    monkeypatch.setenv("LEDGER_CONFIG", str(file))
    profile(file, "prod", settings)
    used = made(monkeypatch, "S3FileSystem")
    storage = open_storage(root, settings=Settings.of({"profile": "prod"}))
    storage.write("a/1", b"x")
    before = storage.root
    profile(file, "prod", {**settings, "storage.secretKey": f"{CANARY}-new"})
    storage.write("a/2", b"x")
    assert [given["secret_key"] for given in used] == [CANARY, f"{CANARY}-new"]
    assert before.settings.storage_settings["storage.secretKey"] == CANARY  # of a batch that was planned before
    assert storage.root.settings.storage_settings["storage.secretKey"] == f"{CANARY}-new"
    file.write_text("[prod\n")  # just being edited
    storage.write("a/3", b"x")
    assert len(used) == 2


@pytest.fixture(scope="module")
def over_tls(tmp_path_factory):
    """A store that speaks TLS with a certificate of our own CA: the CA's file, and the address."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    files = make_certificates(tmp_path_factory.mktemp("tls"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server)
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, threaded=True, ssl_context=context)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield files.ca, f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


def test_a_certificate_of_an_own_ca_is_trusted_only_if_it_is_named_I19(over_tls, bucket):
    ca, address = over_tls
    root, settings = bucket
    given = {**settings, "storage.endpoint": address, "storage.scheme": "https", "storage.tls.ca": str(ca)}
    storage = open_storage(root, settings=Settings.of(given))
    storage.write("a/b", b"x")
    assert storage.read("a/b", 0, 9).to_pybytes() == b"x"
    del given["storage.tls.ca"]
    stranger = open_storage(root, settings=Settings.of(given))
    with pytest.raises(Unavailable, match=r"cannot read s3://.*/a/b"):
        stranger.read("a/b", 0, 9)


def test_what_a_store_says_of_wrong_settings_has_no_secret_I19(bucket, namespace):
    root, settings = bucket
    gone = {**settings, "storage.endpoint": "127.0.0.1:9", "storage.connectTimeout": "1"}
    with pytest.raises(LedgerError) as caught:
        open_storage(root, settings=Settings.of(gone)).write("a/b", b"x")
    assert CANARY not in str(caught.value)
    assert urlsplit(root).netloc in str(caught.value)
