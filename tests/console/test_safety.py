"""Nobody sees or changes what was not allowed, from wherever a page or a request comes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pyarrow as pa
import pytest

from pyspark_ledger.cli.console import console as command
from pyspark_ledger.client import LedgerClient, client_of, namespace_of
from pyspark_ledger.console.records import MASKED
from pyspark_ledger.console.server import ConsoleServer
from pyspark_ledger.console.settings import Settings, read_token
from pyspark_ledger.errors import InvalidInput, Unavailable
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from tests.support.console import TOKEN, Console, running

PAGES = [
    "/", "/queries", "/outboxes", "/sign-in", "/topics/orders", "/topics/orders/records", "/topics/orders/commits",
    "/topics/orders/schema", "/topics/orders/producers", "/topics/orders/tokens", "/topics/orders/compaction",
    "/topics/orders/policies", "/topics/orders/subscriptions/billing", "/topics/orders/records/0:0:0",
    "/topics/orders/key?key=1", "/topics/orders/subscriptions/billing/preview?action=clear-backlog",
]  # fmt: skip
MOVE = "/topics/orders/subscriptions/billing/move"


@pytest.fixture
def client(tmp_path) -> Iterator[LedgerClient]:
    with client_of(OpenNamespace(MemoryMetadata(MemoryServer()), str(tmp_path / "root"))) as client:
        client.create_topic("orders", pa.schema([("k", pa.int64()), ("card", pa.string())]), key="k")
        with client.producer("orders") as producer:
            for n in range(3):
                producer.send({"k": n, "card": f"<b>4711-{n}</b>"})
        client.create_cursor("orders", "billing")
        yield client


@pytest.fixture
def console(client) -> Iterator[Console]:
    with running(namespace_of(client)) as console:
        yield console


@pytest.fixture
def changing(client, tmp_path) -> Iterator[Console]:
    with running(namespace_of(client), allow_changes=True, token=TOKEN, audit_log=tmp_path / "audit") as console:
        yield console


def csrf_of(page: str) -> str:
    return re.search(r'name="csrf" value="(\w+)"', page)[1]


def signed_in(console: Console, name: str = "ann") -> str:
    """A browser that has signed in: the text that its forms bring."""
    page = console.ask("/sign-in")
    console.headers["Cookie"] = page.headers["Set-Cookie"].partition(";")[0]
    answer = console.form("/sign-in", csrf=csrf_of(page.text), name=name, token=TOKEN, to="/queries")
    assert (answer.status, answer.headers["Location"]) == (303, "/queries")
    before, console.headers["Cookie"] = console.headers["Cookie"], answer.headers["Set-Cookie"].partition(";")[0]
    assert console.headers["Cookie"] != before
    return csrf_of(console.ask("/").text)


def behind(client) -> int:
    return client.cursor("orders", "billing").stats().backlog_records


# -- looking --------------------------------------------------------------------------------------------------------


def test_every_page_answers_and_has_no_script_or_style_of_its_own(console):
    for path in PAGES:
        page = console.ask(path)
        assert page.status == 200, path
        assert not re.search(r"<style|<script(?! src=)| style=| on[a-z]+=", page.text), path
        assert re.findall(r'(?:src|href|action)="(?:https?:)?//[^"]*', page.text) == []
        policy = page.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert page.headers["X-Frame-Options"] == "DENY"
        assert page.headers["Cache-Control"] == "no-store"


def test_what_is_in_a_record_is_text_and_never_markup(console):
    page = console.ask("/topics/orders/records").text
    assert "&lt;b&gt;4711-0&lt;/b&gt;" in page
    assert "<b>4711" not in page


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9467", "127.0.0.1.evil.example", "", "[::2]:80"])
def test_a_name_that_is_not_this_machines_is_not_answered(console, host):
    assert console.ask("/", Host=host).status == 421
    assert console.ask("/api/v1/topics/orders/records", Host=host).status == 421


def test_a_name_that_was_given_is_answered(client):
    with running(namespace_of(client), host_names=("ledger.example",)) as console:
        assert console.ask("/", Host="ledger.example").status == 200
        assert console.ask("/", Host="localhost:1234").status == 200
        assert console.ask("/", Host="other.example").status == 421


def test_masked_values_are_shown_to_nobody_and_cannot_be_searched(client):
    with running(namespace_of(client), masked=frozenset({"card"})) as console:
        for path in ("/topics/orders/records", "/topics/orders/records/0:0:0", "/topics/orders/key?key=1"):
            for answer in (console.ask(path), console.ask(f"/api/v1{path}")):
                assert MASKED in answer.text
                assert "4711" not in answer.text
        refused = console.api("/topics/orders/records", column="card", operator="starts with", value="4")
        assert (refused.status, refused.code) == (403, "LEDGER_CONSOLE_MASKED")
    with running(namespace_of(client), masked=frozenset({"k"})) as console:
        assert console.api("/topics/orders/key", key="1").code == "LEDGER_CONSOLE_MASKED"


def test_without_records_none_is_shown(client):
    with running(namespace_of(client), show_records=False) as console:
        for path in ("/topics/orders/records", "/topics/orders/records/0:0:0", "/topics/orders/key?key=1"):
            assert "4711" not in console.ask(path).text
            refused = console.ask(f"/api/v1{path}")
            assert (refused.status, refused.code) == (403, "LEDGER_CONSOLE_NO_RECORDS")
        assert console.api("/topics/orders").json["records"] == 3


# -- changing -------------------------------------------------------------------------------------------------------


def test_it_changes_nothing_unless_it_was_allowed_to(console, client):
    refused = console.post("/topics/orders/subscriptions/billing/clear-backlog", {"confirm": "billing"})
    assert (refused.status, refused.code) == (403, "LEDGER_CONSOLE_READ_ONLY")
    assert console.form(MOVE, action="clear-backlog", confirm="billing").status == 403
    assert "Set-Cookie" not in console.ask("/").headers
    assert behind(client) == 3


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "ü"])
def test_without_the_token_nothing_is_changed(changing, client, token):
    path, body = "/topics/orders/subscriptions/billing/clear-backlog", {"confirm": "billing"}
    refused = changing.post(path, body, token=token.encode().decode("latin-1"))
    assert (refused.status, refused.code) == (401, "LEDGER_CONSOLE_NOT_SIGNED_IN")
    assert behind(client) == 3
    assert changing.post(path, body).status == 200
    assert behind(client) == 0


def test_a_browser_signs_in_and_moves_a_subscription(changing, client, tmp_path):
    csrf = signed_in(changing)
    page = changing.ask("/topics/orders/subscriptions/billing/preview?action=skip&records=2").text
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
    assert fields["csrf"] == csrf
    done = changing.form(MOVE, **fields, confirm="billing")
    assert (done.status, done.headers["Location"]) == (303, "/topics/orders/subscriptions/billing")
    assert behind(client) == 1
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert {line["who"] for line in lines} == {"ann"}
    assert changing.form("/sign-out", csrf=csrf).status == 303
    assert changing.form(MOVE, **fields, confirm="billing").status in (401, 403)
    assert behind(client) == 1


def test_the_cookie_is_not_for_scripts_nor_for_other_sites(changing):
    cookie = changing.ask("/").headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


@pytest.mark.parametrize("csrf", [None, "", "0" * 32])
def test_a_form_that_is_not_of_our_page_changes_nothing(changing, client, csrf):
    signed_in(changing)
    given = {} if csrf is None else {"csrf": csrf}
    refused = changing.form(MOVE, action="clear-backlog", confirm="billing", **given)
    assert refused.status == 403
    assert "LEDGER_CONSOLE_FORGED" in refused.text
    assert behind(client) == 3


def test_a_form_from_another_site_changes_nothing(changing, client):
    csrf = signed_in(changing)
    changing.headers["Sec-Fetch-Site"] = "cross-site"
    assert changing.form(MOVE, action="clear-backlog", confirm="billing", csrf=csrf).status == 403
    assert behind(client) == 3


def test_who_comes_from_another_site_keeps_the_session(changing):
    assert "Set-Cookie" not in changing.ask("/", Sec_Fetch_Site="cross-site").headers


def test_the_cookie_alone_changes_nothing_over_the_api(changing, client):
    signed_in(changing)
    path = "/topics/orders/subscriptions/billing/clear-backlog"
    assert changing.post(path, {"confirm": "billing"}, token="").status == 401
    typed = changing.ask(f"/api/v1{path}", b'{"confirm": "billing"}', Content_Type="text/plain",
                         Authorization=f"Bearer {TOKEN}")  # fmt: skip
    assert (typed.status, typed.code) == (415, "LEDGER_CONTENT_TYPE")
    assert behind(client) == 3


@pytest.mark.parametrize("fields", [{"token": "wrong", "name": "ann"}, {"token": TOKEN, "name": " "}, {"token": TOKEN}])
def test_who_has_no_token_or_no_name_does_not_sign_in(changing, fields):
    page = changing.ask("/sign-in")
    changing.headers["Cookie"] = page.headers["Set-Cookie"].partition(";")[0]
    refused = changing.form("/sign-in", csrf=csrf_of(page.text), **fields)
    assert refused.status == 401
    assert TOKEN not in refused.text
    assert "sign out" not in changing.ask("/").text


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_signing_in_leads_to_no_other_site(changing, to):
    page = changing.ask("/sign-in")
    changing.headers["Cookie"] = page.headers["Set-Cookie"].partition(";")[0]
    answer = changing.form("/sign-in", csrf=csrf_of(page.text), name="ann", token=TOKEN, to=to)
    assert answer.headers["Location"] == "/"


def test_a_proxy_says_who_it_was(client, tmp_path):
    audit = tmp_path / "audit"
    with running(namespace_of(client), allow_changes=True, user_header="X-Forwarded-User", audit_log=audit) as console:
        page = console.ask("/topics/orders/policies?retention_age=7d", X_Forwarded_User="bob")
        console.headers["Cookie"] = page.headers["Set-Cookie"].partition(";")[0]
        path, fields = (
            "/topics/orders/policies",
            {"csrf": csrf_of(page.text), "retention_age": "7d", "confirm": "orders"},
        )
        assert console.form(path, **fields).status == 401  # nobody said who
        console.headers["X-Forwarded-User"] = "bob"
        assert console.form(path, **fields).status == 303
        assert console.post(path, {"retention_age": "1d", "confirm": "orders"}, token="").status == 401
    assert client.policies("orders").retention_ms == 7 * 86_400_000
    assert {json.loads(line)["who"] for line in audit.read_text().splitlines()} == {"bob"}


def test_what_cannot_be_noted_is_not_done(changing, client, tmp_path):
    audit = tmp_path / "audit"
    audit.unlink()
    audit.mkdir()
    refused = changing.post("/topics/orders/subscriptions/billing/clear-backlog", {"confirm": "billing"})
    assert (refused.status, refused.code) == (503, "LEDGER_STORAGE_UNAVAILABLE")
    assert behind(client) == 3


# -- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"allow_changes": True}, "--token-file"),
        ({"allow_changes": True, "token": "short"}, "16 or more"),
        ({"allow_changes": True, "token": "with\nline breaks in it"}, "HTTP header"),
        ({"allow_test_records": True}, "--allow-changes"),
        ({"allow_changes": True, "token": TOKEN, "allow_test_records": True, "show_records": False}, "--no-records"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_it_listens(settings, said):
    with pytest.raises(InvalidInput, match=re.escape(said)) as refused:
        ConsoleServer(OpenNamespace(MemoryMetadata(MemoryServer())), Settings(port=0, **settings))
    assert refused.value.code == "LEDGER_CONSOLE_OPTIONS"
    assert TOKEN not in str(refused.value)


def test_a_folder_of_checkpoints_a_port_and_a_token_that_are_none_are_told(client, console, tmp_path):
    namespace = namespace_of(client)
    with pytest.raises(InvalidInput, match="no such folder"):
        ConsoleServer(namespace, Settings(port=0, checkpoints=(tmp_path / "none",)))
    with pytest.raises(InvalidInput, match="LEDGER_PORT_IN_USE"):
        ConsoleServer(namespace, Settings(port=int(console.url.rpartition(":")[2])))
    with pytest.raises(Unavailable, match="none"):
        read_token(tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(InvalidInput, match="first line is empty"):
        read_token(tmp_path / "empty")
    (tmp_path / "token").write_text(f"{TOKEN}\nand more\n")
    assert read_token(tmp_path / "token") == TOKEN
    assert TOKEN not in repr(Settings(token=TOKEN))


def test_it_listens_on_this_machine_only_unless_told_otherwise():
    defaults = {option.name: option.default for option in command.params}
    assert defaults["host"] == Settings().host == "127.0.0.1"
    assert defaults["port"] == Settings().port
    assert not Settings().allow_changes
    assert not Settings().allow_test_records
