"""Roles as ZooKeeper's access lists, and who this process is for ZooKeeper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from kazoo.protocol.serialization import int_struct, read_string
from kazoo.security import ACL, Id, Permissions, make_digest_acl_credential

from pyspark_ledger.metadata import roles
from pyspark_ledger.metadata.port import Key, Versioned
from pyspark_ledger.metadata.records import Grant, Namespace
from pyspark_ledger.metadata.roles import Kind, Right
from pyspark_ledger.zk_metadata import paths
from pyspark_ledger.zk_metadata.raw import NodeAt

_PERMISSIONS: dict[Right, int] = {
    "read": Permissions.READ,
    "write": Permissions.WRITE,
    "create": Permissions.CREATE,
    "delete": Permissions.DELETE,
}
_KEYLESS: dict[str, Kind] = {"": "root", paths.CLOCK: "clock", paths.LOGS: "logs"}

# Whoever makes a node with this is named in its list once more, so that it can be seen whose an ephemeral node is.
_MADE_BY = ACL(Permissions.READ, Id("auth", ""))

Identity = tuple[str, str]  # scheme and id, as access lists have them
Entries = frozenset[tuple[str, str, int]]  # scheme, id, permissions: lists in any order are the same


def kind_at(path: str) -> Kind:
    """What kind of node is at a path below the namespace's root."""
    if path in _KEYLESS:
        return _KEYLESS[path]
    key = paths.key(path)
    return "unknown" if key is None else roles.kind_of(key)


class AccessLists:
    """The access list of every kind of node. ``version`` is that of the namespace's record that they follow from;
    without roles in it, every node gets the ``default`` list."""

    def __init__(self, grants: Sequence[Grant], version: int | None, default: list[ACL]) -> None:
        self.grants, self.version = tuple(grants), version
        self._default = default
        self._by_kind: dict[Kind, list[ACL]] = {}

    @property
    def has_roles(self) -> bool:
        return bool(self.grants)

    def of(self, key: Key[Any], *, ephemeral: bool = False) -> list[ACL]:
        if not self.grants:
            return self._default
        kind = kind_at(key.path) if isinstance(key, NodeAt) else roles.kind_of(key)
        return [*self.of_kind(kind), _MADE_BY] if ephemeral else self.of_kind(kind)

    def of_kind(self, kind: Kind) -> list[ACL]:
        if not self.grants:
            return self._default
        found = self._by_kind.get(kind)
        if found is None:
            found = self._by_kind[kind] = _list_of(self.grants, kind)
        return found

    @cached_property
    def bytes(self) -> int:
        """Of one list in a request; 0 without roles."""
        return sum(12 + len(scheme) + len(id.encode()) for scheme, id in self.identities)

    @cached_property
    def identities(self) -> frozenset[Identity]:
        return frozenset((grant.scheme, grant.id) for grant in self.grants)

    def as_it_should_be(self, kind: Kind, now: Iterable[ACL], *, ephemeral: bool) -> list[ACL] | None:
        """What to set; None if the list is right. An ephemeral node keeps the note of who has made it."""
        wanted = self.of_kind(kind)
        if ephemeral:
            wanted = [*wanted, *(acl for acl in now if acl not in wanted and self._is_note(acl))]
        return None if entries(wanted) == entries(now) else wanted

    def _is_note(self, acl: ACL) -> bool:
        return acl.perms == Permissions.READ and (acl.id.scheme, acl.id.id) in self.identities


class KnownRoles:
    """What a process knows of the namespace's roles. It learns of changes by a watch on the namespace's record; and so
    that none is missed, a transaction that makes nodes also checks the version of that record, where there are
    roles."""

    def __init__(self, default: list[ACL]) -> None:
        self._default = default
        self._client: Any = None  # that has the watch: a forked child, or a new session, has to look for itself
        self._hints = self._seen_hints = 0
        self.lists = AccessLists((), None, default)

    def hint(self) -> None:
        """The record has changed, or the connection did."""
        self._hints += 1

    def is_known_to(self, client: Any) -> bool:
        return self._client is client and self._hints == self._seen_hints

    def begin(self) -> int:
        """The record is about to be read, with a watch. What this returns goes to :meth:`saw`: while it is read, nobody
        takes what was known before for the truth."""
        return self._hints

    def saw(self, client: Any, found: Versioned[Namespace] | None, begun: int) -> None:
        if found is None:
            self.lists = AccessLists((), None, self._default)
        elif found.version != self.lists.version or found.record.roles != self.lists.grants:
            self.lists = AccessLists(found.record.roles, found.version, self._default)
        self._client, self._seen_hints = client, begun


def _list_of(grants: Sequence[Grant], kind: Kind) -> list[ACL]:
    """One entry for each identity, whatever its roles."""
    may: dict[Id, int] = defaultdict(int)
    for grant in grants:
        may[Id(grant.scheme, grant.id)] |= _permissions(grant.role, kind)
    return [ACL(permissions, id) for id, permissions in may.items()]


def _permissions(role: str, kind: Kind) -> int:
    if role == "admin":
        return int(Permissions.ALL)
    return sum(_PERMISSIONS[right] for right in roles.rights(role, kind))


def entries(acls: Iterable[ACL]) -> Entries:
    return frozenset((acl.id.scheme, acl.id.id, acl.perms) for acl in acls)


def makers(acls: Sequence[ACL]) -> set[Identity]:
    """Who has made an ephemeral node: they are named twice. More than one if the connection had several logins."""
    named = [(acl.id.scheme, acl.id.id) for acl in acls]
    return {identity for identity in named if named.count(identity) > 1}


# -- who we are -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _WhoAmI:
    """A request that kazoo does not know. ZooKeeper has it since 3.7."""

    type: ClassVar[int] = 107

    def serialize(self) -> bytearray:
        return bytearray()

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[tuple[str, str]]:
        (count,) = int_struct.unpack_from(data, offset)
        offset += int_struct.size
        found = []
        for _ in range(count):
            scheme, offset = read_string(data, offset)
            user, offset = read_string(data, offset)
            found.append((scheme, user))
        return found


def digest_id(user: str, password: str) -> str:
    """As an access list names a user with a password."""
    return str(make_digest_acl_credential(user, password))


def who_we_are(client: Any, timeout_s: float) -> list[Identity]:
    """All identities of the connection, by scheme and id, as access lists name them."""
    answer = client.handler.async_result()
    client._call(_WhoAmI(), answer)
    others = [(scheme, id) for scheme, id in answer.get(timeout=timeout_s) if scheme not in ("ip", "digest")]
    digests = [credential.partition(":") for scheme, credential in client.auth_data if scheme == "digest"]
    return [*others, *(("digest", digest_id(user, password)) for user, _, password in digests)]
