"""What handlers return, and what callers of an outbox get."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_ledger.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Send:
    """A record that a handler writes to a topic of the namespace, in one transaction with the new state.

    Attributes:
        topic: the topic's name.
        record: the record, as column -> value.

    >>> Send("invoices", {"order_id": 1, "amount": 9.5})
    Send(topic='invoices', record={'order_id': 1, 'amount': 9.5})
    """

    topic: str
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A message that leaves the namespace. It is stored with the new state, and then handed to the outbox's
    ``dispatch`` function, again after a crash.

    Attributes:
        payload: the message, anything that JSON can hold.

    >>> Dispatch({"parcel": 17})
    Dispatch(payload={'parcel': 17})
    """

    payload: Any


Handler = Callable[[Any], tuple[Any, Iterable[Send | Dispatch]]]  # state -> new state, messages
Dispatcher = Callable[[Any, str | None], None]  # payload, the token that the receiver is to consume


@dataclass(frozen=True, slots=True)
class Processed:
    """The outcome of ``Outbox.process``.

    Attributes:
        duplicate: True if the message was processed before; then this call changed nothing.
        state: the entity's state now.
    """

    duplicate: bool
    state: Any


def check_returned(result: Any) -> tuple[Any, list[Send | Dispatch]]:
    """What a handler returned, as state and messages. InvalidInput if it is something else."""
    try:
        state, outgoing = result
        messages = list(outgoing)
    except (TypeError, ValueError):
        raise InvalidInput("a handler returns (state, messages)", "LEDGER_INVALID_HANDLER") from None
    for message in messages:
        if not isinstance(message, Send | Dispatch):
            raise InvalidInput(f"a handler's messages are Send or Dispatch, not {message!r}", "LEDGER_INVALID_HANDLER")
    _check_json("state", state)
    _check_json("payload", [message.payload for message in messages if isinstance(message, Dispatch)])
    return state, messages


def _check_json(what: str, value: Any) -> None:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"a handler's {what} must be JSON: {error}", "LEDGER_INVALID_HANDLER") from None
