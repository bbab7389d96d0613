"""What to tell whoever ZooKeeper does not let in, or not do what they want."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_ledger.base.login import Login
from pyspark_ledger.errors import NotAllowed
from pyspark_ledger.metadata import roles
from pyspark_ledger.metadata.records import Grant
from pyspark_ledger.metadata.roles import Kind, Right
from pyspark_ledger.zk_metadata.access import Identity, kind_at

_DOING = {
    "read": "read node {}",
    "write": "change node {}",
    "create": "make nodes below {}",
    "delete": "delete nodes below {}",
}


def spelled(scheme: str, id: str) -> str:
    """An identity as people and the command line write it: without the hash of its password."""
    return f"{scheme}:{id.partition(':')[0] if scheme == 'digest' else id}"


def not_allowed(
    root: str, path: str, right: Right, who: Sequence[Identity], grants: Sequence[Grant] | None, login: Login
) -> NotAllowed:
    """``path`` is that of the node whose access list has refused. ``grants`` is None if not even they may be read."""
    doing = _DOING[right].format(path)
    names = " and ".join(spelled(*identity) for identity in who)
    if not grants:
        return NotAllowed(
            f"ZooKeeper denies {login.who} access to node {path}: {login.advice}, and that it has a role in this "
            "namespace",
            "LEDGER_ACCESS_DENIED",
        )
    kind = kind_at(path.removeprefix(root))
    mine = {role for identity in who for role in roles.of_identity(grants, *identity)}
    has = f"has the role {' and '.join(sorted(mine))}" if mine else "has no role"
    if any(right in roles.rights(role, kind) for role in mine):
        return NotAllowed(
            f"{names} {has} in this namespace, and is not let {doing} all the same: its access list is not as it "
            "should be. An admin mends that with 'pyspark-ledger access check --yes'"
        )
    nobody = "whoever does not log in"
    return NotAllowed(f"{names or nobody} {has} in this namespace, and may not {doing}{_need(right, kind)}")


def _need(right: Right, kind: Kind) -> str:
    needed = roles.roles_with(right, kind)[0]
    return (
        f": that needs the role {needed}, which an admin gives with 'pyspark-ledger access grant {needed} IDENTITY' "
        "(docs/security.md)"
    )
