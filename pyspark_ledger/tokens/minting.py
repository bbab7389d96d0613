"""Minting tokens for messages that come from outside, in the steps that the outbox needs one by one.

Tokens that are minted together are a *block*: one node, whose id is part of every token in it (its *prefix*).
"""

from __future__ import annotations

from pyspark_ledger.base.token_prefix import TokenPrefix
from pyspark_ledger.errors import Conflict, InvalidInput, LedgerError
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import Check, Create, Delete, Metadata, Op, TokenBlockKey, TokenGroupKey
from pyspark_ledger.metadata.records import TokenBlock, TokenGroup
from pyspark_ledger.metadata.transactions import PlainNode, find
from pyspark_ledger.tokens.groups import new_group


class Minter:
    """Mints tokens of one topic for one group. The group must exist (:meth:`ensure_group`)."""

    def __init__(self, log: Log, group: str) -> None:
        self._log, self._group = log, group
        self._key = TokenGroupKey(log.topic.uuid, group)

    @property
    def metadata(self) -> Metadata:
        return self._log.metadata

    def ensure_group(self) -> None:
        """Creates the group's node if it is missing."""
        if self._is_there():
            return
        self._log.ensure_part("tokens")
        for _ in range(self._log.limits.change_attempts):
            record, guard = new_group(self._log)
            made = self._log.transactions.carry_out([*guard, Create(self._key, record)], self._is_there, str(self))
            if made or self._is_there():
                return
        raise Conflict(f"{self}: it can neither be found nor made; try again")

    def _is_there(self) -> bool | None:
        return None if find(self.metadata, self._key) is None else True

    def new_prefix(self) -> TokenPrefix:
        """A prefix that nobody has minted with."""
        return TokenPrefix(self._log.topic.uuid, block=self._log.clock.new_id().hex())

    def mint_op(self, prefix: TokenPrefix, n: int) -> Create:
        """The operation that mints ``n`` tokens, for a transaction of the caller's."""
        return Create(self._block_key(prefix), TokenBlock(n, b"", self._log.clock.now_ms()))

    def mint_at(self, prefix: TokenPrefix, n: int) -> None:
        """Mints ``n`` tokens with a new prefix, in a transaction of its own.

        The transaction checks the group's version, which every consumption changes. So a request that arrives late,
        after its tokens were minted and used up, is refused instead of minting them a second time."""
        key, deadline = self._block_key(prefix), self._log.transactions.deadline()

        def look() -> bool | None:
            self.metadata.sync()
            return None if self.metadata.read(key) is None else True

        while True:
            ops: list[Op] = [Check(self._key, self._node.known().version), self.mint_op(prefix, n)]
            if self._log.transactions.carry_out(ops, look, f"minting for {self}", deadline):
                return
            self.metadata.sync()  # somebody consumed meanwhile

    def discard(self, prefix: TokenPrefix) -> None:
        """Removes tokens that were minted and never handed out. It changes the group's version even if there are none,
        so that a request to mint them that arrives later is refused."""
        key = self._block_key(prefix)

        def remove(_: TokenGroup) -> list[Op]:
            self.metadata.sync()
            block = self.metadata.read(key)
            return [] if block is None else [Delete(key, block.version)]

        what, operation = f"taking back tokens of {self}", self._log.clock.new_id()
        self._log.transactions.change(self._node, lambda group: group, what, operation=operation, also=remove)

    def _block_key(self, prefix: TokenPrefix) -> TokenBlockKey:
        return TokenBlockKey(prefix.uuid, self._group, prefix.block)

    @property
    def _node(self) -> PlainNode[TokenGroup]:
        return PlainNode(self.metadata, self._key, self._missing)

    def _missing(self) -> LedgerError:
        self._log.refresh(sync=True)  # raises if the whole topic is gone, which is the better answer
        return InvalidInput(f"{self} does not exist", "LEDGER_GROUP_NOT_FOUND")

    def __str__(self) -> str:
        return f"group '{self._group}' of topic '{self._log.topic.name}'"
