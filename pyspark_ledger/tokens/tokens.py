"""Tokens from Python. A token is the right to process one message once: the message may be processed while its token
is there, and the token is consumed together with the effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pyspark_ledger.base import names
from pyspark_ledger.base.bitmap import Bitmap
from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import PartKey, TokenBlockKey, TokenChunkKey, TokenGroupKey, Versioned
from pyspark_ledger.metadata.records import TokenGroup
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.ids import NumberRuns, TokenRuns, not_a_token
from pyspark_ledger.tokens.minting import Minter
from pyspark_ledger.tokens.spending import Spending


@dataclass(frozen=True, slots=True)
class TokenStats:
    """What one group has consumed of a topic's tokens, and what is left.

    Attributes:
        group: the group's name.
        in_flight: tokens that were minted and not consumed yet.
        consumed: tokens of the topic's records that the group has consumed.
        blocks: blocks of tokens minted for messages from outside that are not used up.
        nodes: ZooKeeper nodes that hold this.
        bytes: size of the bitmaps in those nodes and in files.
    """

    group: str
    in_flight: int
    consumed: int
    blocks: int
    nodes: int
    bytes: int


class Tokens:
    """The tokens of one topic, for one group of consumers. Made by ``client.tokens(topic, group)``.

    There are two kinds: tokens of the topic's records, which a writer mints with ``mint_tokens=True`` and which every
    group consumes for itself; and tokens that :meth:`mint` makes for messages from outside, which belong to this group
    alone.

    >>> tokens = client.tokens("orders", "billing")
    >>> [token] = tokens.mint()        # a client takes one, and sends its order with it
    >>> tokens.present([token])
    [True]
    >>> tokens.consume([token])        # whoever gets True processes the order
    [True]
    >>> tokens.consume([token])        # a second delivery of the same order
    [False]
    """

    def __init__(self, log: Log, group: str) -> None:
        self._log, self._group = log, names.check_group_name(group)
        self._minter = Minter(log, group)
        self._groups = Groups.in_namespace_of(log, group)

    @property
    def group(self) -> str:
        """The group that consumes."""
        return self._group

    # -- minting -------------------------------------------------------------------------------------------

    def mint(self, n: int = 1) -> list[str]:
        """Makes ``n`` new tokens and returns them. Whoever sends one with a message has it processed once.

        Mint many at once where you can: up to 65,536 tokens take one ZooKeeper node.

        Raises InvalidInput if ``n`` is not a whole number of at least 1; OutcomeUnknown if ZooKeeper did not answer, in
        which case tokens may have been minted that nobody has."""
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise InvalidInput(f"n is {n!r}: how many tokens to mint, at least 1")
        self._minter.ensure_group()
        tokens: list[str] = []
        while len(tokens) < n:
            count = min(n - len(tokens), self._log.limits.token_block)
            prefix = self._minter.new_prefix()
            self._minter.mint_at(prefix, count)
            tokens += [prefix.token(index) for index in range(count)]
        return tokens

    # -- looking and consuming -----------------------------------------------------------------------------

    def present(self, ids: Sequence[str] | Sequence[int]) -> list[bool]:
        """Says for each token whether it is there: minted, and not consumed by this group. Changes nothing. Tokens of
        the topic's records may be given as numbers (``record.token_number``).

        Raises InvalidInput if something is not a token, or is a token of another topic."""
        claims = self._claims(ids)
        self._log.metadata.sync()  # nothing checks this answer later
        self._groups.reload()
        return Spending.decide(self._groups, lambda spending: _as_list(spending.take(claims, fan_out=True), ids))

    def consume(self, ids: Sequence[str] | Sequence[int]) -> list[bool]:
        """Consumes tokens, all of them in one step. True for each token that this call consumed, False for those that
        were gone before. If several callers consume a token at once, exactly one of them gets True. If a token is given
        twice, the first one counts.

        >>> tokens = client.tokens("orders", "shipping")
        >>> first, second = tokens.mint(2)
        >>> tokens.consume([first, second, first])
        [True, True, False]

        Raises InvalidInput as :meth:`present` does, or if the tokens are in too many places for one transaction;
        OutcomeUnknown if ZooKeeper did not answer, in which case they may have been consumed."""
        claims, operation, deadline = self._claims(ids), self._log.clock.new_id(), self._log.transactions.deadline()

        def attempt(spending: Spending) -> tuple[list[bool], Spending]:
            return _as_list(spending.take(claims), ids), spending

        while True:
            took, spending = Spending.decide(self._groups, attempt)
            if not any(took) or self._spend(spending, operation, deadline):
                return took
            self._log.clock.sleep(self._log.clock.jitter(0.002))
            self._groups.reload()

    def _spend(self, spending: Spending, operation: bytes, deadline: Deadline) -> bool:
        group = self._groups.group(self._log.topic.uuid)
        assert group is not None
        before = None if group.version is None else Versioned(group.record, group.version)
        ops, what = spending.ops(operation, group), f"consuming for {self}"
        look = self._log.transactions.by_id(group.key, before, operation, what)
        if not self._log.transactions.carry_out(ops, look, what, deadline):
            return False
        spending.committed()
        return True

    def _claims(self, ids: Sequence[str] | Sequence[int]) -> pa.Table:
        topic, kinds = self._log.topic, {type(id) for id in ids}
        if isinstance(ids, str) or not (kinds <= {str} or kinds == {int}):
            raise InvalidInput("give a list of tokens, all strings or all numbers", "LEDGER_INVALID_TOKEN")
        if kinds == {int}:
            return self._numbers([id for id in ids if isinstance(id, int)])
        claims = TokenRuns("tokens")
        claims.add(pa.array(ids, pa.string()))
        for id in ids:
            if not str(id).startswith(f"{topic.uuid}:"):
                raise InvalidInput(
                    f"token {id} does not belong to topic '{topic.name}' ({topic.uuid})", "LEDGER_INVALID_TOKEN"
                )
        return claims.table()

    def _numbers(self, ids: list[int]) -> pa.Table:
        for id in ids:
            if not 0 <= id < 1 << 63:
                raise not_a_token(id, self._log.topic.name)
        claims = NumberRuns(self._log.topic.uuid, self._log.topic.name, "tokens")
        claims.add(pa.array(ids, pa.int64()))
        return claims.table()

    # -- statistics ----------------------------------------------------------------------------------------

    def stats(self) -> list[TokenStats]:
        """The numbers of every group that has consumed tokens of this topic or minted some: a list of
        :class:`TokenStats`."""
        view = self._log.refresh(sync=True)
        keys = self._log.metadata.children(PartKey(self._log.topic.uuid, "tokens"))
        return [self._stats(view, key.group) for key in keys if isinstance(key, TokenGroupKey)]

    def _stats(self, view: View, group: str) -> TokenStats:
        metadata, key = self._log.metadata, TokenGroupKey(self._log.topic.uuid, group)
        found = metadata.read(key)
        record = found.record if found is not None else TokenGroup(self._log.limits.token_chunk)
        below = metadata.children(key)
        chunks = [c.record for c in metadata.read_many([k for k in below if isinstance(k, TokenChunkKey)]) if c]
        blocks = [b.record for b in metadata.read_many([k for k in below if isinstance(k, TokenBlockKey)]) if b]
        left = sum(block.tokens - Bitmap(block.tokens, block.bitmap).count for block in blocks)
        size = len(record.whole) + len(record.spilled) + sum(len(bitmap) for _, bitmap in record.partials)
        size += sum(chunk.file.length if chunk.file else len(chunk.bitmap) for chunk in chunks)
        size += sum(len(block.bitmap) for block in blocks)
        in_flight = view.head.tokens - record.consumed + left
        return TokenStats(group, in_flight, record.consumed, len(blocks), 1 + len(below), size)

    def __str__(self) -> str:
        return str(self._minter)


def minter_of(tokens: Tokens) -> Minter:
    """What mints these tokens, step by step: for the outbox."""
    return tokens._minter


def spender_of(tokens: Tokens) -> tuple[Log, Groups]:
    """What these tokens are consumed with: for transactions that consume them with other things."""
    return tokens._log, tokens._groups


def claims_of(tokens: Tokens, ids: Sequence[str] | Sequence[int]) -> pa.Table:
    """Tokens as runs. InvalidInput if something is not a token, or is one of another topic."""
    return tokens._claims(ids)


def _as_list(present: pa.BooleanArray | None, ids: Sequence[object]) -> list[bool]:
    """None stands for "all of them"."""
    return [True] * len(ids) if present is None else present.to_pylist()
