"""Whether a topic's small nodes are there, can be read, and agree with its head: all but commits."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_ledger.base.runs import Runs
from pyspark_ledger.dedup.producers import Producers
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.lifecycle import going
from pyspark_ledger.lifecycle.findings import Finding, finding, from_error
from pyspark_ledger.lifecycle.verify_files import Files
from pyspark_ledger.lifecycle.verify_view import records_before
from pyspark_ledger.log import lost, trimmed
from pyspark_ledger.log.index import Index
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import (
    CursorKey,
    DedupKey,
    GcKey,
    Key,
    LedgerKey,
    PartKey,
    PoliciesKey,
    R,
    RetentionKey,
    SchemaKey,
    TipKey,
    TopicKey,
)
from pyspark_ledger.metadata.records import Cursor, FileRef, Head


class Nodes:
    """Each check may be right at another moment only: what it finds counts if it is found again from a later view."""

    def __init__(self, log: Log, files: Files) -> None:
        self._log, self._files = log, files
        self.cursors = 0

    def _read(self, key: Key[R], what: str) -> R | Finding:
        try:
            found = self._log.metadata.read(key)
        except CorruptData as error:
            return from_error(error, of=what)
        return finding("loss", f"{what} is not in ZooKeeper") if found is None else found.record

    # -- the head and what belongs to it ---------------------------------------------------------------------------

    def of_head(self, view: View) -> Iterator[Finding]:
        head = view.head
        topic = self._read(TopicKey(head.name), f"the node of the name '{head.name}'")
        if isinstance(topic, Finding):
            yield topic
        elif topic.uuid != head.uuid:
            yield finding("inconsistent", f"the name '{head.name}' stands for {topic.uuid}, and not for {head.uuid}")
        tip = self._read(TipKey(head.uuid, head.last_change), "the tip, which is named by the head's last change,")
        if isinstance(tip, Finding):
            yield tip
        policies = self._read(PoliciesKey(head.uuid), "the node of its policies")
        guard = self._read(RetentionKey(head.uuid), "the node that guards its retention")
        yield from (found for found in (policies, guard) if isinstance(found, Finding))
        yield from self._gc_epoch(head)
        yield from self._schemas(head)
        yield from self._rollbacks(head)
        for what in _wrong_inside(head):
            yield finding("inconsistent", f"the head: {what}")

    def _gc_epoch(self, head: Head) -> Iterator[Finding]:
        node = self._read(GcKey(head.uuid), "the node of its gc epoch")
        if isinstance(node, Finding):
            yield node
            return
        if node.epoch != head.gc_epoch:
            yield finding("inconsistent", f"the gc epoch is {head.gc_epoch} in the head, and {node.epoch} in its node")
        births = [birth.epoch for birth in node.births]
        if node.floor > node.epoch or births != sorted(births) or any(birth > node.epoch for birth in births):
            yield finding("inconsistent", f"the node of the gc epoch is not in order: {node}")

    def _schemas(self, head: Head) -> Iterator[Finding]:
        keys = self._log.metadata.children(PartKey(head.uuid, "commits"))
        there = [key.id for key in keys if isinstance(key, SchemaKey)]
        for number in sorted({*there, head.schema_id}):
            found = self._read(SchemaKey(head.uuid, number), f"schema {number}")
            if isinstance(found, Finding):
                yield found
                continue
            try:
                schemas.from_bytes(found.arrow)
            except CorruptData as error:
                yield from_error(error, of=f"schema {number}")

    def _rollbacks(self, head: Head) -> Iterator[Finding]:
        if head.set_back is not None:
            yield finding("rollback", f"{head.set_back.why}: {head.set_back.found_by} has noticed it")
        for key in self._log.metadata.children(PartKey(head.uuid, "commits")):
            if isinstance(key, LedgerKey) and key.ledger > head.ledger:
                what = f"there are commits of ledger {key.ledger}, and the open one is {head.ledger}"
                yield finding("rollback", what)

    # -- lists of what was replaced --------------------------------------------------------------------------------

    def of_replaced(self, view: View) -> Iterator[Finding]:
        """Files that are kept for a while for who has an older head: those that gc must not have deleted yet."""
        head, files = view.head, self._log.files
        for file in (*head.gc_kept, *head.gc_gone):
            self._files.named.add(file)
        if head.lost is not None:
            found = self._files.table(head.lost, "the list of lost entries", lambda _: lost.fetch(files, head))
            if isinstance(found, Finding):
                yield found
        if head.going is None:
            return
        listed = self._files.table(head.going, "the list of replaced files", lambda _: going.fetch(files, head))
        if isinstance(listed, Finding):
            yield listed
            return
        for each in listed:
            self._files.named.add(each.file)
            if not going.is_due(each, head):
                yield from self._files.check_there(each.file, "kept for who has an older head")
            if each.leaf_of is not None:
                self._name_all_of(each.file)

    def _name_all_of(self, leaf: FileRef) -> None:
        """What an old leaf names is not left behind, even if the leaf can no longer be read."""
        try:
            for commit in Index(self._log.files, ()).commits_in(leaf):
                for entry in self._log.entries(commit):
                    self._files.named.add(entry.file)
                for file in (commit.entries_file, commit.highest_file):
                    if file is not None:
                        self._files.named.add(file)
        except CorruptData:
            return

    # -- deduplication ---------------------------------------------------------------------------------------------

    def of_dedup(self, view: View) -> Iterator[Finding]:
        head, what = view.head, "the dedup snapshot"
        snapshot = self._read(DedupKey(head.uuid), "the node of the dedup snapshot")
        if isinstance(snapshot, Finding):
            yield snapshot
            return
        if snapshot.next_commit != head.ledger_first_commit:
            yield finding(
                "inconsistent",
                f"{what} is of commit {snapshot.next_commit}, and the open ledger begins with "
                f"{head.ledger_first_commit}",
            )
        if snapshot.mark_delete > head.end:
            yield finding("rollback", f"{what} is of {snapshot.mark_delete}, which is past the end {head.end}")
        for file in (snapshot.producers_file, snapshot.evicted_file):
            if file is not None:
                found = self._files.table(file, what, self._log.files.fetch_table)
                if isinstance(found, Finding):
                    yield found
        try:
            states = Producers.load(snapshot, self._log.files, self._log.limits)
        except CorruptData:
            return  # told above
        if states.evicted != snapshot.evicted:
            yield finding("inconsistent", f"{what} says {snapshot.evicted} evicted producers, and has {states.evicted}")
        yield from self._last_ledger_in(states, view)

    def _last_ledger_in(self, states: Producers, view: View) -> Iterator[Finding]:
        """The snapshot was made when the last ledger was sealed: it knows every producer of that one."""
        try:
            leaf = next(self._log.index(view).newest_first(), None)
            commits = self._log.index(view).commits(leaf) if leaf is not None else []
            recent = Producers(commits[0].number if commits else 0, (), self._log.limits)
            for commit in commits:
                recent.apply(commit, self._log.files)
        except (CorruptData, AssertionError):
            return  # told elsewhere
        for state in recent.all():
            known = states.get(state.name)
            if known is None and not states.is_evicted(state.name):
                yield finding("inconsistent", f"the dedup snapshot does not know producer '{state.name}'")
            elif known is not None and known.sequence != state.sequence:
                what = f"is {known.sequence} in the dedup snapshot, and {state.sequence} in the log"
                yield finding("inconsistent", f"the last id of producer '{state.name}' {what}")

    # -- subscriptions ---------------------------------------------------------------------------------------------

    def of_cursors(self, view: View) -> Iterator[Finding]:
        keys = self._log.metadata.children(PartKey(self._log.topic.uuid, "subscriptions"))
        cursors = [key for key in keys if isinstance(key, CursorKey)]
        self.cursors = len(cursors)
        found = [(key, self._read(key, f"subscription '{key.name}'")) for key in cursors]
        for key, cursor in found:
            if isinstance(cursor, Cursor):
                for what in self._wrong_with_cursor(view, cursor):
                    yield finding("inconsistent", f"subscription '{key.name}': {what}")
                if cursor.mark_delete > view.head.end or cursor.ordinal > view.head.records:
                    what = f"{cursor.mark_delete} is past the end {view.head.end}"
                    yield finding("rollback", f"subscription '{key.name}': {what}")
            elif cursor.kind != "loss":  # deleted since they were listed
                yield cursor

    def _wrong_with_cursor(self, view: View, cursor: Cursor) -> Iterator[str]:
        try:
            last = max((stop for _, stop in Runs.unpack(cursor.acks, cursor.ordinal)), default=cursor.ordinal)
        except CorruptData as error:
            yield error.message
        else:
            if last > view.head.records >= cursor.ordinal:
                yield f"it has acknowledged record {last - 1}, and there are {view.head.records}"
        before = records_before(self._log, view, cursor.mark_delete)
        if before not in (None, cursor.ordinal):
            yield f"{before} records are before {cursor.mark_delete}, and it says {cursor.ordinal}"


def _wrong_inside(head: Head) -> Iterator[str]:
    begin = trimmed.begin(head)
    if begin > head.end:
        yield f"the log begins at {begin}, after its end {head.end}"
    if head.ledger_first_commit > head.next_commit:
        yield f"its open ledger begins with commit {head.ledger_first_commit}, and the next one is {head.next_commit}"
    for pending in head.pending:
        if not pending.first < pending.end <= head.ledger:
            yield f"ledgers {pending.first} to {pending.end} were given up, and the open one is {head.ledger}"
    if head.generation is not None and head.generation.horizon > head.end:
        yield f"it was compacted up to {head.generation.horizon}, after its end {head.end}"
    files = (*head.index, *(file for file in (head.replaced, head.going) if file is not None))
    for file in files:
        if file.epoch > head.gc_epoch:
            yield f"a file that it names is of gc epoch {file.epoch}, and that is {head.gc_epoch}"
