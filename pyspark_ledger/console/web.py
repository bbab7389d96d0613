"""What is asked over HTTP, brought to functions that know nothing of it, and their answers and errors brought back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from pyspark_ledger.console.asking import FORGED, NOT_SIGNED_IN, READ_ONLY, Asked, Visitor
from pyspark_ledger.console.visitors import COOKIE, Visitors
from pyspark_ledger.errors import (
    Conflict,
    CursorUnderRevision,
    DataLoss,
    Fenced,
    InvalidInput,
    LedgerError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)

_MOST_BYTES = 1 << 20  # of a request's body
_KINDS: dict[type[LedgerError], int] = {
    InvalidInput: 400, NotFound: 404, Conflict: 409, CursorUnderRevision: 409, Fenced: 409, DataLoss: 410,
    OutcomeUnknown: 504, Unavailable: 503,
}  # fmt: skip
_CODES = {
    NOT_SIGNED_IN: 401,
    READ_ONLY: 403,
    FORGED: 403,
    "LEDGER_CONSOLE_NO_RECORDS": 403,
    "LEDGER_CONSOLE_MASKED": 403,
    "LEDGER_BODY_TOO_LARGE": 413,
    "LEDGER_CONTENT_TYPE": 415,
}
Function = Callable[[Asked], Any]
Endpoint = Callable[[Request], Any]


def status_of(error: LedgerError) -> int:
    return _CODES.get(error.code) or next((code for kind, code in _KINDS.items() if isinstance(error, kind)), 500)


def api_read(function: Function) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return await _answer(request, function, Visitor(), {})

    return endpoint


def api_change(function: Function, visitors: Visitors) -> Endpoint:
    """The token is looked at before anything else."""

    async def endpoint(request: Request) -> Response:
        visitor = visitors.of_program(request.headers)
        try:
            body = await _json_body(request)
        except LedgerError as error:
            return json_response(_told(error), status_of(error))
        return await _answer(request, function, visitor, body)

    return endpoint


async def _answer(request: Request, function: Function, visitor: Visitor, body: Mapping[str, Any]) -> Response:
    try:
        asked = replace(asked_of(request), visitor=visitor, body=body)
        return json_response(await run_in_threadpool(function, asked))
    except LedgerError as error:
        return json_response(_told(error), status_of(error))


def asked_of(request: Request) -> Asked:
    url = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return Asked(dict(request.path_params), dict(request.query_params), url=url)


def json_response(value: Any, status: int = 200) -> Response:
    text = json.dumps(value, ensure_ascii=False, default=_plain)
    # A question may hold half of a character, and an error repeat it.
    return Response(text.encode(errors="backslashreplace"), status, media_type="application/json")


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _told(error: LedgerError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": error.message}}


async def _json_body(request: Request) -> dict[str, Any]:
    _check_type(request, "application/json")
    try:
        value = json.loads(await _body(request))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the body is no JSON: {error}", "LEDGER_INVALID_BODY") from None
    if not isinstance(value, dict):
        raise InvalidInput("the body must be a JSON object", "LEDGER_INVALID_BODY")
    return value


async def form_body(request: Request) -> dict[str, str]:
    _check_type(request, "application/x-www-form-urlencoded")
    text = (await _body(request)).decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=100))
    except ValueError as error:
        raise InvalidInput(f"the form cannot be read: {error}", "LEDGER_INVALID_BODY") from None


def _check_type(request: Request, wanted: str) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != wanted:
        raise InvalidInput(f"the body is of type '{given}': it must be {wanted}", "LEDGER_CONTENT_TYPE")


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise InvalidInput(f"the body has more than {_MOST_BYTES:,} bytes", "LEDGER_BODY_TOO_LARGE")
    return body


def with_session(response: Response, request: Request, visitor: Visitor) -> Response:
    """Sets the session's cookie, if the browser does not have it."""
    if visitor.session and request.cookies.get(COOKIE) != visitor.session:
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, visitor.session, httponly=True, samesite="strict", secure=secure, path="/")
    return response
