"""The access lists of all nodes of a namespace: looked at, and made as they should be.

Lists that are right are left alone, so that whoever was interrupted goes on where it stopped. A list is set at the
version that was read, and at the end the namespace's record is looked at again: if others have changed it meanwhile, or
made nodes, there is another round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from kazoo.exceptions import BadVersionError, InvalidACLError, KazooException, NoAuthError, NoNodeError
from kazoo.protocol import serialization as protocol
from kazoo.security import ACL, Id, Permissions

from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.errors import InvalidInput, NotAllowed
from pyspark_ledger.metadata.port import AnyKey
from pyspark_ledger.metadata.roles import Kind
from pyspark_ledger.zk_metadata import codec, paths
from pyspark_ledger.zk_metadata.access import AccessLists, Identity, kind_at, makers, who_we_are
from pyspark_ledger.zk_metadata.raw import NodeAt
from pyspark_ledger.zk_metadata.refusals import spelled
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata

Progress = Callable[[str, int, int | None], None]

_TOGETHER = 200  # nodes
_ROUNDS = 10
# Below the root, and what is below them: whatever else is there is another namespace, or none of ours.
_OURS = (paths.NAMESPACE, paths.MAINTAINER, paths.MOVER, *paths.CONTAINERS)


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """The access list of a node; its path is below the namespace's root."""

    path: str
    acls: list[ACL]
    version: int  # of the list
    is_ephemeral: bool

    @property
    def kind(self) -> Kind:
        return kind_at(self.path)


@dataclass
class Mended:
    """What was found, and done."""

    nodes: int = 0  # looked at
    changed: int = 0  # had another list than they should
    refused: list[str] = field(default_factory=list)  # nodes whose list this process may not change

    @property
    def is_right(self) -> bool:
        """Whether all lists are as they should be now."""
        return not self.refused


class AccessTree:
    """Only who may change access lists can use it for more than looking."""

    def __init__(self, metadata: ZooKeeperMetadata) -> None:
        self._metadata = metadata

    def who(self) -> list[Identity]:
        """Who this process is for ZooKeeper."""
        return self._metadata.ask(paths.NAMESPACE, lambda client, deadline: who_we_are(client, deadline.remaining))

    def check_identity(self, identity: Identity) -> None:
        """Raises InvalidInput if the server cannot tell who that is. Leaves nothing behind."""
        path = f"{paths.CLOCK}/probe"

        def probe(client: Any, deadline: Deadline) -> list[Any]:
            at = self._metadata.root + path
            acls = [ACL(Permissions.ALL, Id(*identity))]
            answer = client.handler.async_result()
            ops = [protocol.Create(at, codec.MARKER, acls, 0), protocol.Delete(at, -1)]
            client._call(protocol.Transaction(ops), answer)
            return cast("list[Any]", answer.get(timeout=deadline.remaining))

        if any(isinstance(each, InvalidACLError) for each in self._metadata.ask(path, probe)):
            raise InvalidInput(
                f"ZooKeeper does not take {spelled(*identity)} as somebody who can have a role: is it spelled right, "
                f"and does the server know the scheme '{identity[0]}'?"
            )

    # -- mending ---------------------------------------------------------------------------------------------------

    def mend(self, progress: Progress = lambda *_: None, *, dry_run: bool = False) -> Mended:
        """Makes the list of every node what it should be. Can be interrupted, and repeated."""
        total = Mended()
        for _ in range(_ROUNDS):
            lists = self._metadata.newest_lists()
            done = self._round(lists, progress, dry_run)
            total = Mended(done.nodes, total.changed + done.changed, sorted({*done.refused}))
            if dry_run or (not done.changed and self._metadata.newest_lists().version == lists.version):
                break
        return total

    def _round(self, lists: AccessLists, progress: Progress, dry_run: bool) -> Mended:
        done = Mended()
        for page in self.pages(progress, done.refused):
            wrong = [(node, wanted) for node in page if (wanted := _wanted(lists, node)) is not None]
            done.nodes += len(page)
            done.changed += len(wrong) if dry_run else self._set(wrong, done.refused)
        return done

    def _set(self, wrong: Sequence[tuple[NodeAccess, list[ACL]]], refused: list[str]) -> int:
        """How many were changed, by this or by somebody else."""
        if not wrong:
            return 0

        def attempt(client: Any, deadline: Deadline) -> list[Exception | None]:
            root = self._metadata.root
            sent = [client.set_acls_async(root + node.path or "/", acls, node.version) for node, acls in wrong]
            return [_failure(request, deadline) for request in sent]

        answers = self._metadata.ask(wrong[0][0].path, attempt)
        refused += [
            node.path for (node, _), answer in zip(wrong, answers, strict=True) if isinstance(answer, NoAuthError)
        ]
        return sum(not isinstance(answer, NoAuthError | NoNodeError) for answer in answers)

    # -- looking ---------------------------------------------------------------------------------------------------

    def makers(self) -> list[tuple[NodeAccess, set[Identity]]]:
        """The ephemeral nodes that are there, and who has made each."""
        found = []
        for page in self.pages(lambda *_: None, []):
            found += [(node, makers(node.acls)) for node in page if node.is_ephemeral]
        return found

    def pages(self, progress: Progress, refused: list[str]) -> Iterator[list[NodeAccess]]:
        """All nodes, parents before their children; those whose list cannot even be read are noted in ``refused``."""
        waiting, logs, passed = ["", *reversed(_OURS)], 0, 0
        while waiting:
            some = [waiting.pop() for _ in range(min(_TOGETHER, len(waiting)))]
            yield self._accesses(some, refused)
            below = dict(zip(some, self._children(some, refused), strict=True))
            logs += len(below.get(paths.LOGS, ()))
            passed += sum(kind_at(path) is _TOPIC for path in some)
            progress("access lists", passed, logs)
            for path, children in below.items():
                waiting += children if path else ()

    def _accesses(self, some: Sequence[str], refused: list[str]) -> list[NodeAccess]:
        def attempt(client: Any, deadline: Deadline) -> list[Any]:
            sent = [client.get_acls_async(self._metadata.root + path or "/") for path in some]
            return [_answer(request, deadline) for request in sent]

        found = []
        for path, answer in zip(some, self._metadata.ask(some[0], attempt), strict=True):
            if isinstance(answer, NoAuthError):
                refused.append(path)
            elif not isinstance(answer, NoNodeError):
                acls, stat = answer
                found.append(NodeAccess(path, acls, stat.aversion, stat.ephemeralOwner != 0))
        return found

    def _children(self, some: Sequence[str], refused: list[str]) -> list[list[str]]:
        try:
            found = self._metadata.children_many([cast(AnyKey, NodeAt(path)) for path in some])
        except NotAllowed:  # one of them: which, is seen one by one
            if len(some) == 1:
                refused.append(some[0])
                return [[]]
            half = len(some) // 2
            return [*self._children(some[:half], refused), *self._children(some[half:], refused)]
        return [[cast(NodeAt, child).path for child in children] for children in found]


_TOPIC = kind_at(f"{paths.LOGS}/-")


def _wanted(lists: AccessLists, node: NodeAccess) -> list[ACL] | None:
    return lists.as_it_should_be(node.kind, node.acls, ephemeral=node.is_ephemeral)


def _answer(request: Any, deadline: Deadline) -> Any:
    """The answer; an error that says something of the node is one, too."""
    try:
        return request.get(timeout=deadline.remaining)
    except (NoNodeError, NoAuthError, BadVersionError) as error:
        return error


def _failure(request: Any, deadline: Deadline) -> KazooException | None:
    answer = _answer(request, deadline)
    return answer if isinstance(answer, KazooException) else None
