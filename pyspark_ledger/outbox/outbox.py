"""The outbox: handlers with business state, whose effects happen once over crashes at any line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import Clock
from pyspark_ledger.base.given import check_flag
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import Metadata, TransactionLost
from pyspark_ledger.outbox.entities import Entities, Pending
from pyspark_ledger.outbox.messages import Dispatch, Dispatcher, Handler, Processed, Send
from pyspark_ledger.outbox.processing import Processing, Resources
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.ids import TokenRuns
from pyspark_ledger.tokens.tokens import Tokens, minter_of

__all__ = ["Dispatch", "Dispatcher", "Handler", "Outbox", "Processed", "Send"]


class Outbox:
    """Runs handlers with business state, and makes what they return happen once for each message. Made by
    ``client.outbox(name)``.

    A handler gets the state of an *entity* (a customer, an order) and returns the new state and the messages to send.
    A message is processed while its token is there. The outbox consumes the tokens of the group that has its own name.

    Any number of processes may use the same outbox; one object is for one thread at a time.

    >>> from pyspark_ledger.outbox.outbox import Send
    >>> [token] = client.tokens("orders", "billing").mint()
    >>> def bill(total):
    ...     return (total or 0) + 10, [Send("orders", {"order_id": 7, "amount": 10.0})]
    >>> outbox = client.outbox("billing")
    >>> outbox.process("message 1", token, bill, entity="ann")
    Processed(duplicate=False, state=10)
    >>> outbox.process("message 1", token, bill, entity="ann")        # delivered a second time
    Processed(duplicate=True, state=10)
    """

    def __init__(
        self,
        name: str,
        metadata: Metadata,
        storage: Storage,
        open_topic: Callable[[str], Log],
        limits: Limits,
        clock: Clock,
        *,
        dispatch: Dispatcher | None = None,
        dispatch_tokens: Tokens | None = None,
        mint_tokens: bool = True,
    ) -> None:
        check_flag("mint_tokens", mint_tokens)
        self._resources = Resources(
            name=names.check_outbox_name(name),
            metadata=metadata,
            limits=limits,
            clock=clock,
            entities=Entities(name, metadata, storage, limits, clock, self._refused),
            groups=Groups(metadata, name, lambda uuid: Log.by_uuid(metadata, storage, uuid, limits, clock)),
            open_topic=open_topic,
            dispatch=dispatch,
            minter=None if dispatch_tokens is None else minter_of(dispatch_tokens),
            mint_tokens=mint_tokens,
        )
        self._ready_over = 0  # which connection its nodes were seen, or made

    @property
    def name(self) -> str:
        """The outbox's name, which is also the group whose tokens it consumes."""
        return self._resources.name

    def process(self, message_id: str, token: str, handler: Handler, *, entity: str = "") -> Processed:
        """Runs ``handler(state)`` and makes what it returns happen, once for each token.

        ``message_id`` tells the messages of an entity apart. ``token`` is the message's token. ``handler`` gets the
        entity's state (JSON; None at first) and returns the new state and a list of :class:`Send` and
        :class:`Dispatch`. It may run more than once if somebody else changes the entity meanwhile, so it must have no
        other effects. ``entity`` names the state; a message must always go to the same entity.

        Returns the state, and whether the message is a duplicate.

        Raises InvalidInput if an argument, the token or what the handler returned is not valid; whatever the handler
        or the ``dispatch`` function raises; OutcomeUnknown or Unavailable if ZooKeeper does not answer. After any error
        it is safe, and right, to process the same message again."""
        for what, value in (("message_id", message_id), ("token", token), ("entity", entity)):
            if not isinstance(value, str):
                raise InvalidInput(f"{what} is {value!r}: it must be a string")
        runs = TokenRuns("token")
        runs.add(pa.array([token], pa.string()))
        processing = Processing(self._resources, message_id, runs.table(), handler, entity)
        self._make_ready()
        while (processed := processing.step()) is None:
            self._make_ready()
        return processed

    def state(self, entity: str = "") -> Any:
        """The state of an entity; None if it has none.

        >>> client.outbox("billing").state("nobody") is None
        True
        """
        self._resources.metadata.sync()
        return self._resources.entities.load(entity).content.state

    def pending(self, entity: str = "") -> dict[str, Pending]:
        """What an entity's messages have yet to dispatch, by message id. Empty, unless somebody is dispatching right
        now or crashed before the end: then processing the message again dispatches it."""
        self._resources.metadata.sync()
        return dict(self._resources.entities.load(entity).content.pending)

    def _make_ready(self) -> None:
        """Its nodes may be gone after a reconnect, because ZooKeeper was rolled back."""
        connection = self._resources.metadata.connections
        if self._ready_over != connection:
            self._resources.entities.ensure()
            if self._resources.minter is not None:
                self._resources.minter.ensure_group()
            self._ready_over = connection

    def _refused(self, refusal: TransactionLost) -> None:
        """Why a transaction over several topics was refused is for each of them to judge."""
        self._resources.refused(refusal)
