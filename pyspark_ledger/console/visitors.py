"""Who may change something: by a token, or by what a reverse proxy says; and that a form came from a page of ours.

A browser that may change something has a session cookie, which no other site's page can make it send (SameSite), and
each form brings a text that belongs to the session. Programs bring the token itself, and no cookie counts for them.
"""

from __future__ import annotations

import hmac
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_ledger.base.clock import Clock
from pyspark_ledger.console.asking import FORGED, NOT_SIGNED_IN, Visitor
from pyspark_ledger.console.settings import Settings
from pyspark_ledger.errors import InvalidInput

COOKIE = "ledger_console"
_SESSION_S = 12 * 3600.0
_MOST_SESSIONS = 10_000
_LONGEST_NAME = 100


@dataclass(slots=True)
class _Session:
    csrf: str
    until: float
    name: str = ""


class Visitors:
    """May be used by several threads. Sessions are in memory: after a restart people sign in again."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._lock = threading.Lock()

    def of_browser(self, headers: Mapping[str, str], cookie: str) -> Visitor:
        """Who has this cookie; a new session where somebody may sign in and has none. Who follows a link from another
        site has not sent the cookie, and keeps the session that may be there."""
        is_from_elsewhere = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if not self._settings.allow_changes or (is_from_elsewhere and not cookie):
            return Visitor()
        with self._lock:
            session = self._sessions.get(cookie)
            known = session is not None and session.until > self._clock.monotonic()
        if session is None or not known:
            return replace(made := self._new_session(), name=self._by_header(headers) or made.name)
        return Visitor(self._by_header(headers) or session.name, session.csrf, cookie)

    def _new_session(self, name: str = "") -> Visitor:
        cookie = self._clock.new_id().hex() + self._clock.new_id().hex()
        session = _Session(self._clock.new_id().hex(), self._clock.monotonic() + _SESSION_S, name)
        with self._lock:
            self._sessions[cookie] = session
            while len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)
        return Visitor(name, session.csrf, cookie)

    def of_program(self, headers: Mapping[str, str]) -> Visitor:
        """Who brings the token, for the API. Nobody else may change something there."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        if not self._settings.token or kind.lower() != "bearer" or not self._is_token(token.strip()):
            return Visitor()
        return Visitor(self._by_header(headers) or "bearer of the token")

    def sign_in(self, visitor: Visitor, token: str, name: str) -> Visitor:
        """A new session, so that one that somebody else has put into this browser is worth nothing.

        :raises InvalidInput: the token is another one.
        """
        name = " ".join(name.split())
        if not self._settings.token or not self._is_token(token.strip()):
            raise InvalidInput("this is not the token: it is in the file of --token-file", NOT_SIGNED_IN)
        if not name or len(name) > _LONGEST_NAME or not name.isprintable():
            raise InvalidInput("say who you are, in 100 characters at most: it stands in the audit log", NOT_SIGNED_IN)
        self.sign_out(visitor)
        return self._new_session(name)

    def sign_out(self, visitor: Visitor) -> None:
        with self._lock:
            self._sessions.pop(visitor.session, None)

    def check_form(self, visitor: Visitor, headers: Mapping[str, str], csrf: object) -> None:
        """:raises InvalidInput: a page that is not ours may have sent this form."""
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise InvalidInput("this form was sent by a page of another site: nothing was changed", FORGED)
        if not visitor.csrf or not isinstance(csrf, str) or not _equal(csrf, visitor.csrf):
            raise InvalidInput(
                "this form is too old, or did not come from a page of this console: load the page again. Nothing was "
                "changed",
                FORGED,
            )

    def _by_header(self, headers: Mapping[str, str]) -> str:
        if not self._settings.user_header:
            return ""
        return " ".join(headers.get(self._settings.user_header.lower(), "").split())[:_LONGEST_NAME]

    def _is_token(self, token: str) -> bool:
        return _equal(token, self._settings.token)


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
