"""The JSON API: the same as the pages show, and the same changes, for programs. Described in docs/console.md."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from pyspark_ledger.console.changing import Changing
from pyspark_ledger.console.looking import Looking
from pyspark_ledger.console.reader import NamespaceReader
from pyspark_ledger.console.visitors import Visitors
from pyspark_ledger.console.web import Endpoint, Function, api_change, api_read, json_response
from pyspark_ledger.describe.rows import moment

ROOT = "/api/v1"
_TOPIC = "/topics/{topic}"
_SUBSCRIPTION = f"{_TOPIC}/subscriptions/{{subscription}}"
_HEARTBEAT_S = 15.0  # proxies end connections on which nothing comes


def reads(looking: Looking, changing: Changing) -> dict[str, Function]:
    return {
        "/overview": looking.overview,
        "/topics": looking.topics,
        "/queries": looking.queries,
        "/outboxes": looking.outboxes,
        _TOPIC: looking.topic,
        f"{_TOPIC}/rates": looking.rates,
        f"{_TOPIC}/records": looking.records,
        f"{_TOPIC}/records/{{position}}": looking.record,
        f"{_TOPIC}/key": looking.key,
        f"{_TOPIC}/commits": looking.commits,
        f"{_TOPIC}/schemas": looking.schemas,
        f"{_TOPIC}/producers": looking.producers,
        f"{_TOPIC}/tokens": looking.tokens,
        f"{_TOPIC}/compaction": looking.compaction,
        f"{_TOPIC}/subscriptions": looking.subscriptions,
        _SUBSCRIPTION: looking.subscription,
        f"{_SUBSCRIPTION}/preview": changing.preview,
    }


def changes(changing: Changing) -> dict[str, Function]:
    return {
        f"{_TOPIC}/records": changing.produce,
        f"{_TOPIC}/policies": changing.policies,
        f"{_SUBSCRIPTION}/{{action}}": changing.move,
    }


def routes(looking: Looking, changing: Changing, reader: NamespaceReader, visitors: Visitors) -> list[BaseRoute]:
    changed = [
        Route(ROOT + path, api_change(function, visitors), methods=["POST"])
        for path, function in changes(changing).items()
    ]
    read = [Route(ROOT + path, api_read(function)) for path, function in reads(looking, changing).items()]
    rest = [Route(f"{ROOT}/events", events(reader)), Route(f"{ROOT}/{{rest:path}}", _nothing, methods=["GET", "POST"])]
    return [*read, *changed, *rest]


async def _nothing(request: Request) -> Response:
    said = f"there is nothing at {request.method} {request.url.path}: docs/console.md lists what there is"
    return json_response({"error": {"code": "LEDGER_NOT_FOUND", "message": said}}, 404)


def events(reader: NamespaceReader) -> Endpoint:
    """Tells that there is something new, each time the one reader has looked. What it is, the page asks for."""

    async def told(request: Request) -> AsyncIterator[str]:
        yield "retry: 3000\n\n"
        number = 0
        while not reader.is_closed:
            found = await reader.next_after(number, _HEARTBEAT_S)
            if found is None:
                yield ": nothing new\n\n"
                continue
            number = found.number
            said = {"number": number, "as_of": moment(found.taken_ms), "topics": len(found.topics)}
            said["alarms"] = len(found.alarms)
            yield f"event: look\nid: {number}\ndata: {json.dumps(said, default=str)}\n\n"

    async def endpoint(request: Request) -> Response:
        return StreamingResponse(told(request), media_type="text/event-stream")

    return endpoint
