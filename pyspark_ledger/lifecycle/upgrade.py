"""Brings a namespace of format 1 over to format 2. Nobody may use it meanwhile; processes that do so all the same are
refused.

Each step can be repeated, and is one transaction or a few that can be sent again: so whatever stops an upgrade, the
next run completes it. The order matters:

1. The namespace is marked as format 2, *upgrading*. Old code that opens it refuses it by name, and so does new code.
2. For each topic: its old head is frozen, by marking it as format 2 at its version. A writer of the old code that had
   the topic open is refused from then on, so what is read now is final. One transaction then makes the topic's new
   nodes, and gives its name the new format.
3. Schemas, subscriptions, token groups and entities move, each by a transaction that deletes the old node at the
   version that was read and creates the new one: whoever changes the old one in between makes it fail, and it is read
   again. Nothing new can be made below an old parent: ZooKeeper's access lists forbid it before its children are
   listed.
4. What is left of the old topics is deleted, but for marks at their heads, token groups and tokens from outside: by
   these an old process that still runs, or runs again, is refused by name. Where it found nothing, it would take a
   message for a duplicate, or try again for ever.
5. The namespace is no longer upgrading.

Files stay where they are. A few new ones are added, and none is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.limits import DEFAULT_LIMITS, Limits
from pyspark_ledger.errors import Conflict, CorruptData, NotFound
from pyspark_ledger.files.storage import Storage, open_storage
from pyspark_ledger.lifecycle.old_topic import OldTopic
from pyspark_ledger.log import topics
from pyspark_ledger.log.root import finish_namespace
from pyspark_ledger.metadata.port import (
    AnyKey,
    CompactorKey,
    Create,
    CursorKey,
    Delete,
    EntityKey,
    HeadKey,
    LedgerKey,
    NamespaceKey,
    Op,
    OutboxKey,
    OwnerKey,
    Part,
    PartKey,
    Put,
    ReviserKey,
    RootKey,
    SchemaKey,
    TokenBlockKey,
    TokenChunkKey,
    TokenGroupKey,
    TopicKey,
    TransactionLost,
)
from pyspark_ledger.metadata.records import Head, Marker, Namespace, NodeRecord, Topic
from pyspark_ledger.metadata.transactions import Transactions
from pyspark_ledger.zk_metadata.format1 import EPHEMERAL, FORMAT, Format1, OldHead, OldNode, OldPath
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata

_READ_TOGETHER = 50  # an entity may have 100 kB
_MOVED_BYTES = 400_000  # by one transaction; one alone may have more
_KEPT = (HeadKey, SchemaKey, CursorKey, TokenGroupKey)
_MOVED_ONCE = (SchemaKey, CursorKey, TokenChunkKey, TokenBlockKey, EntityKey)

_PARENTS: dict[type[Any], Part] = {CursorKey: "subscriptions", TokenGroupKey: "tokens"}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic that is to be brought over."""

    name: str
    uuid: str
    records: int
    open_commits: int  # they are sealed
    subscriptions: tuple[str, ...]
    token_groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What an upgrade would do, or has left to do."""

    storage: str
    format: int
    is_begun: bool  # by an earlier run that did not finish
    topics: tuple[TopicPlan, ...]
    leftovers: tuple[str, ...]  # topics, by UUID, of which an earlier run, or their deletion, has left something
    entities: dict[str, int] = field(default_factory=dict)  # of each outbox
    in_use_by: tuple[str, ...] = ()  # who must stop first

    @property
    def is_done(self) -> bool:
        return self.format > FORMAT and not (self.is_begun or self.topics or self.leftovers or self.entities)


class Upgrade:
    """The upgrade of one namespace. ``say`` is told what is done, for people; ``address`` is ZooKeeper's connect
    string."""

    def __init__(
        self,
        metadata: ZooKeeperMetadata,
        *,
        limits: Limits = DEFAULT_LIMITS,
        clock: Clock = SYSTEM_CLOCK,
        say: Say = lambda _: None,
        address: str = "",
    ) -> None:
        self._metadata, self._limits, self._clock, self._say = metadata, limits, clock, say
        self._address = address
        self._old = Format1(metadata)
        self._transactions = Transactions(metadata, limits, clock, self._refused)

    # -- looking -----------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Looks at everything, and changes nothing.

        :raises NotFound: there is no namespace.
        :raises CorruptData: something that is needed is missing or damaged; then an upgrade would not even begin.
        """
        self._metadata.sync()
        found = self._namespace()
        storage = open_storage(found.record.storage)
        named = self._old.topics()
        roots = self._old.roots()
        self._check_known([*roots, *self._old.outboxes()])
        plans = tuple(self._topic_plan(topic, storage) for topic in named)
        uuids = {plan.uuid for plan in plans}
        left = [root.key.uuid for root in roots if isinstance(root.key, RootKey) and self._is_left(root)]
        leftovers = [uuid for uuid in left if uuid not in uuids]
        self._check_have_names(leftovers)
        return Plan(
            found.record.storage,
            found.format,
            found.record.upgrading,
            plans,
            tuple(leftovers),
            self._entities(),
            tuple(user for root in roots for user in self._users(root)),
        )

    def _is_left(self, root: OldPath) -> bool:
        """Whether there is anything below an old topic's root but marks."""
        below = self._old.below(root)
        groups = [node for node in below if isinstance(node.key, TokenGroupKey)]
        marked = [node for node in below if isinstance(node.key, HeadKey | TokenGroupKey)]
        of_groups = [node for group in groups for node in self._old.below(group)]
        self._check_known([*below, *of_groups])
        if len(marked) < len(below):
            return True
        return not all(node.is_frozen for node in self._old.read_many([*marked, *of_groups]))

    def _namespace(self) -> OldNode[Namespace]:
        found = self._old.namespace()
        if found is None:
            raise NotFound(
                "there is no namespace at this address: is the option --zookeeper right, and does it end with the "
                "namespace's chroot?",
                "LEDGER_NAMESPACE_NOT_FOUND",
            )
        return found

    def _topic_plan(self, topic: OldNode[Topic], storage: Storage) -> TopicPlan:
        """Reads also whatever the topic's new head will be made from: better now than in the middle."""
        uuid, name = topic.record.uuid, topic.record.name
        head = self._old.head(uuid)
        if head is None:
            raise CorruptData(
                f"topic '{name}' ({uuid}) has no head in ZooKeeper: restore it from a copy, or delete the topic"
            )
        folder = names.topic_folder(uuid)
        if _has_files(head.record) and not storage.has_folder(folder):
            raise storage.not_there(folder)
        read = self._read_topic(head.record, storage)
        below = self._old.below(self._old.root(uuid))
        groups = [node for node in below if isinstance(node.key, TokenGroupKey)]
        self._check_known([*below, *(node for group in groups for node in self._old.below(group))])
        return TopicPlan(
            name,
            uuid,
            head.record.records,
            len(read.commits),
            tuple(node.key.name for node in below if isinstance(node.key, CursorKey)),
            tuple(node.key.group for node in below if isinstance(node.key, TokenGroupKey)),
        )

    def _read_topic(self, head: OldHead, storage: Storage) -> OldTopic:
        commits, dedup = self._old.open_commits(head), self._old.dedup(head.uuid)
        if commits is None or dedup is None:
            raise CorruptData(
                f"topic '{head.name}' ({head.uuid}): commits that its head names, or its dedup snapshot, are not in "
                "ZooKeeper. If somebody writes to it, stop that; else restore ZooKeeper from a copy"
            )
        return OldTopic.read(head, commits, dedup.record, storage, self._limits, self._clock)

    def _check_known(self, nodes: Sequence[OldPath]) -> None:
        for node in nodes:
            if node.key is None:
                raise CorruptData(
                    f"node {node.path} is not one that pyspark-ledger has made: move it elsewhere, then begin again. "
                    "Nothing was changed"
                )

    def _check_have_names(self, uuids: Sequence[str]) -> None:
        """A topic's name and its old head are made together, and go together."""
        for uuid in uuids:
            if (head := self._old.head(uuid)) is not None and not head.is_frozen:
                raise CorruptData(
                    f"node {head.path} is the head of topic '{head.record.name}', but that name stands for no topic or "
                    "another one: restore ZooKeeper from a copy, or delete the node's parent and all below it with "
                    "ZooKeeper's own tools. Nothing was changed"
                )

    def _entities(self) -> dict[str, int]:
        outboxes = [node for node in self._old.outboxes() if isinstance(node.key, OutboxKey)]
        counts = {node.key.outbox: len(self._old.below(node)) for node in outboxes if isinstance(node.key, OutboxKey)}
        return {outbox: count for outbox, count in counts.items() if count}

    def _users(self, root: OldPath) -> Iterator[str]:
        for node in self._old.below(root):
            if isinstance(node.key, EPHEMERAL) and (found := self._old.read(node)) is not None:
                head = self._old.head(node.key.uuid)
                yield _user(node.key, found.record, head.record.name if head is not None else node.key.uuid)

    # -- doing -------------------------------------------------------------------------------------------------------

    def run(self) -> Plan:
        """Does what is left to do; returns what that was.

        :raises Conflict: somebody uses the namespace. Nothing was changed.
        """
        plan = self.plan()
        if plan.is_done:
            return plan
        if plan.in_use_by:
            raise Conflict(
                f"the namespace is in use by {'; '.join(plan.in_use_by)}. Stop everything that uses it, then begin "
                "again (a process that was killed counts as running for 10 s more); nothing was changed",
                "LEDGER_NAMESPACE_IN_USE",
            )
        self._begin()
        storage = open_storage(plan.storage)
        for topic in self._old.topics():
            self._bring_topic(topic.record, storage)
        for root in self._old.roots():
            self._bring_rest(root)
        for outbox in self._old.outboxes():
            self._bring_outbox(outbox)
        self._finish(storage)
        return plan

    def _begin(self) -> None:
        def begun(found: Namespace) -> Namespace | None:
            return replace(found, id=found.id or self._clock.new_id(), upgrading=True)

        self._change_namespace(begun)
        self._old.close_containers()
        self._say("the namespace is of format 2 from now on, and cannot be used before the upgrade is finished")

    def _finish(self, storage: Storage) -> None:
        finish_namespace(self._metadata, storage, self._clock, address=self._address)
        self._change_namespace(lambda found: replace(found, upgrading=False))

    def _change_namespace(self, edit: Callable[[Namespace], Namespace | None]) -> None:
        def attempt() -> bool:
            found = self._namespace()
            edited = edit(found.record)
            if found.is_frozen and edited in (None, found.record):
                return True
            assert edited is not None
            return self._carry_out([Put(NamespaceKey(), edited, found.version)], found, "the namespace's record")

        self._until_done(attempt, "the namespace's record")

    # -- a topic -----------------------------------------------------------------------------------------------------

    def _bring_topic(self, topic: Topic, storage: Storage) -> None:
        what = f"topic '{topic.name}'"
        self._old.close(self._old.root(topic.uuid))

        def attempt() -> bool:
            found, head = self._old.topic(topic.name), self._frozen_head(topic)
            if found is None or found.record.uuid != topic.uuid or head is None:
                return True  # brought over by another run, or deleted by a process that was not stopped
            if not _has_files(head.record):
                self._make_folder(topic.uuid, storage)
            nodes = self._read_topic(head.record, storage).new_nodes(self._limits, self._clock)
            name = Put(TopicKey(topic.name), found.record, found.version)
            return self._carry_out([head.leave_mark(), name, *nodes], head, what)

        self._until_done(attempt, what)
        self._say(f"{what}: its log is of format 2")

    def _frozen_head(self, topic: Topic) -> OldNode[OldHead] | None:
        return self._frozen(lambda: self._old.head(topic.uuid), f"topic '{topic.name}'")

    def _frozen(self, read: Callable[[], OldNode[Any] | None], what: str) -> OldNode[Any] | None:
        """The node, marked as format 2; None if it is gone."""
        found: OldNode[Any] | None = None

        def attempt() -> bool:
            nonlocal found
            found = read()
            if found is not None and not found.is_frozen:
                self._carry_out([found.freeze()], found, what)
                return False  # read it as it is now
            return True

        self._until_done(attempt, what)
        return found

    def _make_folder(self, uuid: str, storage: Storage) -> None:
        """Of a topic that has no file yet: format 1 made the folder with the first one."""
        storage.make_folder("")
        storage.make_folder(names.topic_folder(uuid))

    def _bring_rest(self, root: OldPath) -> None:
        """What is below the root of an old topic. If the topic has no new head it was deleted, and this is what is left
        of it."""
        assert isinstance(root.key, RootKey)
        self._old.close(root)
        new = self._new_head(root.key.uuid)

        def attempt() -> bool:
            below = self._old.below(root)
            if new is not None:
                self._make_parents(new.uuid, below)
                self._move([node for node in below if isinstance(node.key, SchemaKey | CursorKey)])
                for node in below:
                    if isinstance(node.key, TokenGroupKey):
                        self._bring_group(node)
                below = [node for node in below if not isinstance(node.key, _KEPT)]
            return self._delete_all_below(below) and not self._is_left(root)

        self._until_done(attempt, f"deleting what is below {root.path}")
        if new is not None:
            self._say(f"topic '{new.name}': its subscriptions and token groups are brought over")
        else:
            self._delete([root])

    def _make_parents(self, uuid: str, below: Sequence[OldPath]) -> None:
        """Of what is about to move there."""
        for kind, part in _PARENTS.items():
            if any(isinstance(node.key, kind) for node in below):
                self._transactions.make(PartKey(uuid, part), Marker(), f"the {part} of topic {uuid}")

    def _new_head(self, uuid: str) -> Head | None:
        """None if the topic was deleted. An old process that was not stopped may have done so after its log was brought
        over: then the new nodes go too."""
        found = self._metadata.read(HeadKey(uuid))
        if found is None:
            return None
        topic = self._metadata.read(TopicKey(found.record.name))
        if topic is not None and topic.record.uuid == uuid:
            return found.record
        topics.purge(self._metadata, uuid, self._limits)
        return None

    def _bring_group(self, node: OldPath) -> None:
        """The old group's node is frozen first: each consumption changes it, so there are no more of them."""
        key, what = node.key, f"node {node.path}"
        assert isinstance(key, TokenGroupKey)
        self._old.close(node)

        def attempt() -> bool:
            frozen = self._frozen(lambda: self._old.read(node), what)
            if frozen is None or self._metadata.read(key) is not None:
                return True
            return self._carry_out([frozen.check(), Create(key, frozen.record)], frozen, what)

        self._until_done(attempt, what)
        self._move([each for each in self._old.below(node) if isinstance(each.key, TokenChunkKey | TokenBlockKey)])

    def _bring_outbox(self, outbox: OldPath) -> None:
        assert isinstance(outbox.key, OutboxKey)
        self._old.close(outbox)
        self._transactions.make(outbox.key, Marker(), f"outbox '{outbox.key.outbox}'")
        self._move([node for node in self._old.below(outbox) if isinstance(node.key, EntityKey)])
        self._say(f"outbox '{outbox.key.outbox}': brought over")

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _move(self, nodes: Sequence[OldPath]) -> None:
        keys = {node.path: _key(node) for node in nodes}
        for start in range(0, len(nodes), _READ_TOGETHER):
            some = nodes[start : start + _READ_TOGETHER]

            def attempt(some: Sequence[OldPath] = some) -> bool:
                found = [node for node in self._old.read_many(some) if not node.is_frozen]
                for part in _parts(found):
                    ops = [op for node in part for op in self._moving(node, keys[node.path])]
                    self._carry_out(ops, part[0], f"moving {part[0].path} and others")
                return not found

            self._until_done(attempt, f"moving {some[0].path} and others")

    def _moving(self, node: OldNode[Any], key: AnyKey) -> list[Op]:
        """The old node first: if it is refused, that is because it has changed."""
        record: NodeRecord = node.record
        if isinstance(key, CursorKey):
            record = replace(node.record, id=self._clock.new_id())
        return [node.leave_mark() if isinstance(key, TokenBlockKey) else node.delete(), Create(key, record)]

    def _delete_all_below(self, nodes: Sequence[OldPath]) -> bool:
        for node in nodes:
            if isinstance(node.key, LedgerKey | TokenGroupKey) and not self._delete(self._old.below(node)):
                return False
        return self._delete(nodes)

    def _delete(self, nodes: Sequence[OldPath]) -> bool:
        """Whether all of them are gone: not so if there is something below one of them again."""
        size = self._limits.nodes_per_delete
        for start in range(0, len(nodes), size):
            found = self._old.read_many(nodes[start : start + size])
            ops = [Delete(node.delete().key) for node in found]  # whatever their versions
            if found and not self._carry_out(ops, found[0], f"deleting {found[0].path} and others"):
                return False
        return True

    # -- transactions ------------------------------------------------------------------------------------------------

    def _carry_out(self, ops: Sequence[Op], guard: OldNode[Any], what: str) -> bool:
        """False if it was refused. ``guard`` is an old node that the transaction changes or deletes: it shows what
        happened if the answer was lost."""

        def look() -> bool | None:
            self._metadata.sync()
            now = self._old.read(OldPath(guard.path, guard.key))
            if now is None:
                return True  # by this run or another one
            return None if now.version == guard.version else False

        return self._transactions.carry_out(ops, look, f"the upgrade of {what}")

    def _refused(self, refusal: TransactionLost) -> None:
        """The old node comes first in a transaction. So if the new one cannot be made, the old one is as it was read,
        and there are two of them."""
        if isinstance(refusal.op, Create) and isinstance(refusal.op.key, _MOVED_ONCE):
            raise Conflict(
                f"{refusal.message}, and there is an old one too: a process of the old version has made it again after "
                "it was brought over. Stop that process, delete the node of the same name below /ledgers or /outboxes "
                "with ZooKeeper's own tools, then run the upgrade again",
                "LEDGER_UPGRADE_CONFLICT",
            )

    def _until_done(self, attempt: Callable[[], bool], what: str) -> None:
        for _ in range(self._limits.change_attempts):
            if attempt():
                return
            self._clock.sleep(self._clock.jitter(0.01))
        raise Conflict(f"{what}: others change it all the time. Stop them, then run the upgrade again")


def _has_files(head: OldHead) -> bool:
    return bool(head.bytes or head.index or head.generations)


def _key(node: OldPath) -> AnyKey:
    assert node.key is not None
    return node.key


def _parts(nodes: Sequence[OldNode[Any]]) -> Iterator[list[OldNode[Any]]]:
    """As many as one transaction may move."""
    part: list[OldNode[Any]] = []
    for node in nodes:
        if part and sum(len(each.data) for each in part) + len(node.data) > _MOVED_BYTES:
            yield part
            part = []
        part.append(node)
    if part:
        yield part


def _user(key: AnyKey, record: Any, topic: str) -> str:
    match key:
        case OwnerKey(_, name):
            return f"{record.name} (attached to subscription '{name}' of topic '{topic}')"
        case ReviserKey(_, name):
            return f"{record.name} (resetting subscription '{name}' of topic '{topic}')"
        case CompactorKey():
            return f"{record.name} (compacting topic '{topic}')"
    return f"a reader of the compacted topic '{topic}'"
