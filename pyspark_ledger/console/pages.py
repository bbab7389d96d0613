"""The pages: what the functions of the API answer, in templates. Scripts only make them live."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from pyspark_ledger.base.clock import Clock
from pyspark_ledger.console import charts, history, words
from pyspark_ledger.console.asking import Asked, Visitor
from pyspark_ledger.console.changing import POLICIES, Changing
from pyspark_ledger.console.looking import Looking
from pyspark_ledger.console.records import OPERATORS
from pyspark_ledger.console.settings import Settings
from pyspark_ledger.console.visitors import COOKIE, Visitors
from pyspark_ledger.console.web import Endpoint, asked_of, form_body, status_of, with_session
from pyspark_ledger.errors import LedgerError

Values = dict[str, Any]
Show = Callable[[Asked], Values]
Do = Callable[[Asked], tuple[str, Visitor]]  # where it goes on, and as whom
_NUMERIC = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_TOPIC = "/topics/{topic}"
_SUBSCRIPTION = f"{_TOPIC}/subscriptions/{{subscription}}"


class Pages:
    def __init__(
        self, looking: Looking, changing: Changing, settings: Settings, visitors: Visitors, clock: Clock
    ) -> None:
        self._looking, self._changing, self._settings, self._visitors = looking, changing, settings, visitors
        self._clock = clock
        loader = PackageLoader("pyspark_ledger.console")
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                                      lstrip_blocks=True)  # fmt: skip
        self._templates.filters |= {
            **words.WAYS,
            "unit": words.unit,
            "absolute": words.absolute,
            "counted": words.counted,
            "pretty": _pretty,
        }
        self._templates.globals |= {
            "charts": charts,
            "settings": settings,
            "link": _link,
            "OPERATORS": OPERATORS,
            "RANGES": history.RANGES,
            "POLICIES": POLICIES,
        }

    def routes(self) -> list[BaseRoute]:
        shown: dict[str, tuple[str, Show]] = {
            "/": ("overview.html", self._overview),
            "/queries": ("queries.html", lambda asked: {"queries": self._looking.queries(asked)}),
            "/outboxes": ("outboxes.html", lambda asked: {"outboxes": self._looking.outboxes(asked)}),
            _TOPIC: ("topic.html", self._topic),
            f"{_TOPIC}/records": ("records.html", self._records),
            f"{_TOPIC}/records/{{position}}": ("record.html", lambda asked: {"record": self._looking.record(asked)}),
            f"{_TOPIC}/key": ("key.html", lambda asked: {"found": self._looking.key(asked)}),
            f"{_TOPIC}/commits": ("commits.html", lambda asked: {"found": self._looking.commits(asked)}),
            f"{_TOPIC}/schema": ("schema.html", lambda asked: {"schemas": self._looking.schemas(asked)}),
            f"{_TOPIC}/producers": ("producers.html", lambda asked: {"found": self._looking.producers(asked)}),
            f"{_TOPIC}/tokens": ("tokens.html", lambda asked: {"found": self._looking.tokens(asked)}),
            f"{_TOPIC}/compaction": ("compaction.html", lambda asked: {"found": self._looking.compaction(asked)}),
            f"{_TOPIC}/policies": ("policies.html", self._policies),
            _SUBSCRIPTION: ("subscription.html", lambda asked: {"sub": self._looking.subscription(asked)}),
            f"{_SUBSCRIPTION}/preview": ("preview.html", self._preview),
            "/sign-in": ("sign_in.html", lambda asked: {"to": _local(asked.text("to"))}),
        }
        done: dict[str, Do] = {
            "/sign-in": self._sign_in,
            "/sign-out": self._sign_out,
            f"{_SUBSCRIPTION}/move": self._move,
            f"{_TOPIC}/policies": self._set_policies,
            f"{_TOPIC}/records": self._produce,
        }
        return [
            *(Route(path, self._page(template, show)) for path, (template, show) in shown.items()),
            *(Route(path, self._form(do), methods=["POST"]) for path, do in done.items()),
            Route("/{rest:path}", self._nothing),
        ]

    # -- what each page needs ------------------------------------------------------------------------------

    def _overview(self, asked: Asked) -> Values:
        listing = {"limit": "50", **{name: value for name, value in asked.query.items() if value}}
        return {
            "overview": self._looking.overview(replace(asked, query={})),
            "listing": self._looking.topics(replace(asked, query=listing)),
            "query": defaultdict(str, asked.query),
        }

    def _topic(self, asked: Asked) -> Values:
        return {
            "topic": self._looking.topic(asked),
            "rates": self._looking.rates(replace(asked, query={"range": asked.text("range", "1h")})),
            "subscriptions": self._looking.subscriptions(replace(asked, query={})),
        }

    def _records(self, asked: Asked) -> Values:
        view = asked.choice("view", ("table", "json"), "table")
        query = {name: value for name, value in asked.query.items() if name != "view"}
        topic = self._looking.topic(replace(asked, query={}))
        columns = [each["column"] for each in topic["schema"]]
        empty = {"records": [], "previous": None, "next": None, "looked": 0, "complete": True, "columns": columns}
        error, found = None, empty
        if self._settings.show_records:
            try:
                found = self._looking.records(replace(asked, query=query))
            except LedgerError as refused:  # the form stays, with what was wrong in it
                error = refused
        sample = dict.fromkeys(columns)
        given = defaultdict(str, asked.query)
        numeric = [each["column"] for each in topic["schema"] if each["type"].startswith(_NUMERIC)]
        return {"found": found, "topic": topic, "view": view, "query": given, "refused": error, "sample": sample,
                "numeric": numeric}  # fmt: skip

    def _policies(self, asked: Asked) -> Values:
        given = {name: value for name, value in asked.query.items() if name in POLICIES}
        topic = self._looking.topic(replace(asked, query={}))
        changed, error = [], None
        if given:
            try:
                changed = self._changing.changed_policies(asked)
            except LedgerError as refused:
                error = refused
        return {"topic": topic, "given": given, "changed": changed, "refused": error}

    def _preview(self, asked: Asked) -> Values:
        query = {name: value for name, value in asked.query.items() if value}
        return {
            "preview": self._changing.preview(replace(asked, query=query)),
            "query": query,
            "operation_id": self._clock.new_id().hex(),
        }

    # -- forms ---------------------------------------------------------------------------------------------

    def _sign_in(self, asked: Asked) -> tuple[str, Visitor]:
        visitor = self._visitors.sign_in(asked.visitor, asked.text("token"), asked.text("name"))
        return _local(asked.text("to")), visitor

    def _sign_out(self, asked: Asked) -> tuple[str, Visitor]:
        self._visitors.sign_out(asked.visitor)
        return "/", asked.visitor

    def _move(self, asked: Asked) -> tuple[str, Visitor]:
        self._changing.move(asked)
        return _link("topics", asked.topic, "subscriptions", asked.subscription), asked.visitor

    def _set_policies(self, asked: Asked) -> tuple[str, Visitor]:
        self._changing.policies(asked)
        return _link("topics", asked.topic, "policies"), asked.visitor

    def _produce(self, asked: Asked) -> tuple[str, Visitor]:
        made = self._changing.produce(asked)
        return _link("topics", asked.topic, "records", made["position"]), asked.visitor

    # -- HTTP ----------------------------------------------------------------------------------------------

    def _page(self, template: str, show: Show) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            visitor = self._visitor(request)
            asked = replace(asked_of(request), visitor=visitor)
            response = await run_in_threadpool(self._shown, template, show, asked)
            return with_session(response, request, visitor)

        return endpoint

    def _form(self, do: Do) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            visitor = self._visitor(request)
            asked = replace(asked_of(request), visitor=visitor)
            try:
                form = await form_body(request)
                self._visitors.check_form(visitor, request.headers, form.get("csrf"))
                to, visitor = await run_in_threadpool(do, replace(asked, body=form, query={}))
                return with_session(RedirectResponse(to, 303), request, visitor)
            except LedgerError as error:
                return await run_in_threadpool(self._told, asked, error)

        return endpoint

    def _visitor(self, request: Request) -> Visitor:
        return self._visitors.of_browser(request.headers, request.cookies.get(COOKIE, ""))

    def _shown(self, template: str, show: Show, asked: Asked) -> Response:
        try:
            return HTMLResponse(self._rendered(template, asked, show(asked)))
        except LedgerError as error:
            return self._told(asked, error)

    def _told(self, asked: Asked, error: LedgerError) -> Response:
        status = status_of(error)
        return HTMLResponse(self._rendered("error.html", asked, {"error": error, "status": status}), status)

    def _rendered(self, template: str, asked: Asked, values: Mapping[str, Any]) -> str:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        return self._templates.get_template(template).render(
            values, asked=asked, path=asked.path, visitor=asked.visitor, now=now, ago=lambda then: words.ago(then, now)
        )

    async def _nothing(self, request: Request) -> Response:
        asked = replace(asked_of(request), visitor=self._visitor(request))
        error = LedgerError(f"there is no page {request.url.path}", "LEDGER_NOT_FOUND")
        return HTMLResponse(self._rendered("error.html", asked, {"error": error, "status": 404}), 404)


def _link(*parts: object, **query: object) -> str:
    path = "/" + "/".join(quote(str(part), safe="") for part in parts)
    given = {name.rstrip("_"): value for name, value in query.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(given)}" if given else path


def _local(to: str) -> str:
    """A page of this console, whatever was asked for."""
    return to if to.startswith("/") and not to.startswith(("//", "/\\")) and to.isprintable() else "/"


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)
