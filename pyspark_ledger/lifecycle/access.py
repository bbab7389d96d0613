"""Who may do what in a namespace: roles are given, taken away, and passed on to another identity.

The namespace's record is changed first, and decides about every node that is made from then on. Then the access lists
of the nodes that are there follow. Whoever is interrupted in between repeats the command, or has the lists checked:
what remains to be done is seen from the record and the lists alone.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.limits import DEFAULT_LIMITS, Limits
from pyspark_ledger.base.paging import pages
from pyspark_ledger.errors import InvalidInput, NotAllowed, NotFound
from pyspark_ledger.metadata import roles
from pyspark_ledger.metadata.port import (
    AnyKey,
    Key,
    NamespaceKey,
    RootKey,
    TopicKey,
    TopicsKey,
    TransactionLost,
)
from pyspark_ledger.metadata.records import Grant, Holder, Namespace
from pyspark_ledger.metadata.transactions import PlainNode, Transactions, find
from pyspark_ledger.zk_metadata import paths
from pyspark_ledger.zk_metadata.access import Identity, digest_id
from pyspark_ledger.zk_metadata.access_tree import AccessTree, Mended, Progress
from pyspark_ledger.zk_metadata.refusals import spelled
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata

logger = logging.getLogger(__name__)

SCHEMES = ("digest", "sasl", "x509")
_HASHED = re.compile(r"[^:]+:[A-Za-z0-9+/]{27}=")  # a user, and the SHA-1 of user and password as ZooKeeper makes it


def parse_identity(text: str) -> Identity:
    """``digest:user``, ``sasl:user`` or ``x509:subject``; what is after ``digest:`` may have a hash already."""
    scheme, colon, id = text.partition(":")
    if scheme not in SCHEMES or not colon or not id.strip():
        raise InvalidInput(
            f"'{text}' is no identity: write digest:USER, sasl:USER, or x509:SUBJECT with the subject of a client's "
            "certificate, as x509:CN=etl,O=Example"
        )
    if scheme == "digest" and ":" in id and not _HASHED.fullmatch(id):
        raise InvalidInput(
            f"'{scheme}:{id.partition(':')[0]}:…' is no identity: never write a password on the command line; it is "
            "asked for"
        )
    return scheme, id


def needs_password(identity: Identity) -> bool:
    """Whether it is a user of whose password nothing is known yet."""
    return identity[0] == "digest" and ":" not in identity[1]


def with_password(identity: Identity, password: str) -> Identity:
    if not password:
        raise InvalidInput(f"{spelled(*identity)} needs a password: it is empty")
    return identity[0], digest_id(identity[1], password)


@dataclass(frozen=True, slots=True)
class Changed:
    """What the roles are now, and what became of the access lists."""

    grants: tuple[Grant, ...]
    mended: Mended


@dataclass(frozen=True, slots=True)
class Owner:
    """A living process that has made a node which goes with it."""

    node: str
    name: str  # of the process, as far as the node says it


class Access:
    """The roles of one namespace."""

    def __init__(
        self,
        metadata: ZooKeeperMetadata,
        *,
        progress: Progress = lambda *_: None,
        limits: Limits = DEFAULT_LIMITS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._metadata, self._progress, self._limits, self._clock = metadata, progress, limits, clock
        self._tree = AccessTree(metadata)
        self._node = PlainNode(metadata, NamespaceKey(), _no_namespace)

    def grants(self) -> tuple[Grant, ...]:
        self._metadata.sync()
        found = find(self._metadata, NamespaceKey())
        if found is None:
            raise _no_namespace()
        return found.record.roles

    def who(self) -> list[Identity]:
        """Who this process is for ZooKeeper."""
        return self._tree.who()

    # -- changes ---------------------------------------------------------------------------------------------------

    def grant(self, role: str, identity: Identity) -> Changed:
        """Gives a role. The first one makes whoever gives it an admin, and from then on who has no role is kept out."""
        who = self._checked_caller()
        self._tree.check_identity(identity)

        def granted(grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
            known = grants or (Grant("admin", *who[0], self._clock.now_ms()),)
            if any((grant.scheme, grant.id, grant.role) == (*identity, role) for grant in known):
                return tuple(replace(each, leaving=False) if _is(each, identity) else each for each in known)
            for each in known:
                if spelled(each.scheme, each.id) == spelled(*identity) and not _is(each, identity):
                    raise InvalidInput(
                        f"{spelled(*identity)} has the role {each.role} with another password: 'pyspark-ledger access "
                        f"rotate {spelled(*identity)}' gives it a new one"
                    )
            return (*known, Grant(role, *identity, self._clock.now_ms()))

        return self._change(granted, f"giving {spelled(*identity)} the role {role}")

    def revoke(self, role: str | None, identity: Identity) -> Changed:
        """Takes a role away, or all of them. Also goes on with one that was interrupted."""

        def revoked(grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
            return tuple(each for each in grants if not (_means(each, identity) and role in (None, each.role)))

        self._checked_caller()
        if not self.found(role, identity):
            has = " no role" if role is None else f" not the role {role}"
            return self._rest_or(f"{spelled(*identity)} has{has} in this namespace: see 'pyspark-ledger access list'")
        return self._change(revoked, f"taking roles from {spelled(*identity)}")

    def found(self, role: str | None, identity: Identity) -> list[Grant]:
        """What :meth:`revoke` would take away."""
        return [each for each in self.grants() if _means(each, identity) and role in (None, each.role)]

    def rotate(self, old: Identity, new: Identity) -> Changed:
        """Gives the roles of one identity to another one too, which is to take over from it."""
        self._checked_caller()
        self._tree.check_identity(new)

        def both(grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
            leaving = [each for each in grants if _means(each, old) and not _is(each, new)]
            if not leaving:
                raise NotFound(f"{spelled(*old)} has no role in this namespace: see 'pyspark-ledger access list'")
            kept = [replace(each, leaving=each in leaving or (each.leaving and not _is(each, new))) for each in grants]
            has = {each.role for each in grants if _is(each, new)}
            added = [role for role in dict.fromkeys(each.role for each in leaving) if role not in has]
            return (*kept, *(Grant(role, *new, self._clock.now_ms()) for role in added))

        return self._change(both, f"passing the roles of {spelled(*old)} on")

    def leaving(self, old: Identity) -> list[Grant]:
        """What :meth:`finish` would take away."""
        return [each for each in self.grants() if each.leaving and _means(each, old)]

    def finish(self, old: Identity) -> Changed:
        """Takes the roles from an identity that others have taken over from. Also goes on with one that was
        interrupted."""
        self._checked_caller()
        if not self.leaving(old):
            return self._rest_or(
                f"nobody is taking over from {spelled(*old)}: begin with 'pyspark-ledger access rotate {spelled(*old)}'"
            )

        def finished(grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
            return tuple(each for each in grants if not (each.leaving and _means(each, old)))

        return self._change(finished, f"taking the roles from {spelled(*old)}")

    def _rest_or(self, nothing_to_take: str) -> Changed:
        """Who was killed after the record was changed repeats the command. The roles are gone then, and yet the access
        lists of nodes may still let somebody in: to say that there is nothing to take would be the wrong answer."""
        grants = self.grants()
        mended = self.check() if grants else Mended()
        if not mended.changed:
            raise NotFound(nothing_to_take)
        return Changed(grants, mended)

    def owners(self, some: Sequence[Grant]) -> list[Owner]:
        """Living processes that are logged in as one of these, and as nobody who has a role besides. Only those that
        have an ephemeral node at the moment: consumers, queries with a subscription, readers of compacted ledgers,
        maintenance, writers that wait."""
        gone = {(each.scheme, each.id) for each in some}
        staying = {(each.scheme, each.id) for each in self.grants()} - gone
        made = [node.path for node, by in self._tree.makers() if by & gone and not by & staying]
        return [Owner(path, self._name_in(path)) for path in made]

    def _name_in(self, path: str) -> str:
        key = paths.key(path)
        found = None if key is None else self._metadata.read(cast("Key[Holder]", key))
        return getattr(found.record, "name", "") if found is not None else ""

    # -- access lists ----------------------------------------------------------------------------------------------

    def check(self, *, dry_run: bool = False) -> Mended:
        """Makes the access list of every node what it should be."""
        if not self.grants():
            raise InvalidInput("this namespace has no roles: 'pyspark-ledger access grant' gives the first one")
        self._checked_caller()  # to others ZooKeeper does not even show the lists as they are
        if not dry_run:
            self._make_parts()
        return self._tree.mend(self._progress, dry_run=dry_run)

    def _change(self, edit: Callable[[tuple[Grant, ...]], tuple[Grant, ...]], what: str) -> Changed:
        who = self._checked_caller()

        def edited(record: Namespace) -> Namespace | None:
            after = edit(record.roles)
            self._check_caller(record.roles, who)
            self._check_after(after, who)
            return None if after == record.roles else replace(record, roles=after)

        done = Transactions(self._metadata, self._limits, self._clock).change(self._node, edited, what)
        logger.info("access: %s", what)
        return Changed(done.roles, self.check())

    def _checked_caller(self) -> list[Identity]:
        """Who this process is, first by the name that it is to have as an admin. Raises if it may not do that."""
        if not self._metadata.root:
            raise InvalidInput(
                "this namespace is in ZooKeeper's root, which others use too: roles need a namespace with a path of "
                "its own, as host:2181/prod"
            )
        grants = self.grants()
        who = sorted((each for each in self._tree.who() if each[0] in SCHEMES), key=lambda each: SCHEMES.index(each[0]))
        if not who:
            raise InvalidInput(
                "who gives roles must be somebody: log in to ZooKeeper first, as with the options --user and "
                "--password (or LEDGER_ZOOKEEPER_USER and LEDGER_ZOOKEEPER_PASSWORD)"
            )
        self._check_caller(grants, who)
        return who

    def _check_caller(self, grants: tuple[Grant, ...], who: Sequence[Identity]) -> None:
        if grants and not any(each.role == "admin" and _is(each, identity) for each in grants for identity in who):
            raise NotAllowed(
                f"{' and '.join(spelled(*each) for each in who)} may not give or take roles: that needs the role admin"
            )

    def _check_after(self, after: tuple[Grant, ...], who: Sequence[Identity]) -> None:
        admins = [each for each in after if each.role == "admin"]
        if not admins:
            raise InvalidInput("a namespace with roles has at least one admin, and this is the last one")
        if not any(_is(each, identity) for each in admins for identity in who):
            raise InvalidInput(
                f"{' and '.join(spelled(*each) for each in who)} would be no admin any more: do it as another admin"
            )
        count = len({(each.scheme, each.id) for each in after})
        if count > self._limits.identities:
            raise InvalidInput(
                f"{count} identities would have roles, and at most {self._limits.identities} can: each is in the "
                "access list of every node. Give several processes one identity, or take others away first"
            )

    def _make_parts(self) -> None:
        """The parts of topics that were made before there were roles: readers may make none."""
        keys = [key for key in self._metadata.children(TopicsKey()) if isinstance(key, TopicKey)]
        for page in pages(keys, self._limits.topics_at_once):
            uuids = [found.record.uuid for found in self._metadata.read_many(page) if found is not None]
            below = self._metadata.children_many([RootKey(uuid) for uuid in uuids])
            for uuid, there in zip(uuids, below, strict=True):
                self._make_parts_of(uuid, there)

    def _make_parts_of(self, uuid: str, there: Sequence[AnyKey]) -> None:
        for op in roles.parts_of(uuid) if there else ():
            if op.key not in there:
                with contextlib.suppress(TransactionLost):  # made by somebody else, or the topic is gone
                    self._metadata.transact([op])


def _is(grant: Grant, identity: Identity) -> bool:
    return (grant.scheme, grant.id) == identity


def _means(grant: Grant, identity: Identity) -> bool:
    """Whether it is who was named: a user without a password is that user with any."""
    return _is(grant, identity) or (needs_password(identity) and spelled(grant.scheme, grant.id) == spelled(*identity))


def _no_namespace() -> NotFound:
    return NotFound("there is no namespace at this address: its first user makes it, by naming the storage")
