"""Every kind of file, damaged in every way: whoever reads it gets exactly what was written or CorruptData with the
file's name, never anything else; and nothing is changed by an operation that met damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from pyspark_ledger.base import names
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.files.blobs import Blobs
from pyspark_ledger.files.entryfile import EntryReader
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.records import FileRef
from pyspark_ledger.testing.disk import MemoryStorage
from tests.support.everything import OPERATIONS, Everything

KINDS = (
    "entry", "entry list", "highest ids", "index leaf", "index node", "snapshot", "evicted", "manifest", "compacted",
    "replaced generations", "token bitmap", "entity",
)  # fmt: skip


@pytest.fixture(scope="module")
def world() -> Everything:
    return Everything()


@pytest.fixture(autouse=True)
def as_it_was(world) -> None:
    world.restore()


@pytest.fixture(scope="module")
def answers(world) -> dict[str, object]:
    """Of every operation, where nothing is damaged."""
    found = {}
    for operation in OPERATIONS:
        world.restore()
        found[operation] = world.run(operation)
    return found


def outcome(call: Callable[[], object]) -> tuple[object, str]:
    """What it returned, or what was told."""
    try:
        return call(), ""
    except CorruptData as error:
        return None, str(error)


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def test_the_world_has_every_kind_of_file(world):
    kinds = world.kinds()
    assert tuple(kinds) == KINDS
    assert all(kinds.values())
    log = world.world.log()
    assert len(log.refresh().head.index) == 2
    assert len(kinds["index node"]) > 2  # of the lower level, one is full


# -- each file by itself: every byte, every length -----------------------------------------------------------------


def references(world: Everything) -> dict[str, FileRef]:
    """The file that each path is named by: whatever record holds the reference."""
    found: dict[str, FileRef] = {}

    def search(value: object) -> None:
        if isinstance(value, FileRef):
            found[value.uid.hex()] = value
        elif isinstance(value, (list, tuple)):
            for each in value:
                search(each)
        elif isinstance(value, dict):
            if value.keys() >= {"uid", "tail_hash"}:
                search(FileRef(**value))
            for each in value.values():
                search(each)
        elif hasattr(value, "__dataclass_fields__"):
            for name in value.__dataclass_fields__:
                search(getattr(value, name))

    log = world.world.log()
    for record in world.nodes().values():
        search(record)
    while True:  # files name others
        known = dict(found)
        for ref in known.values():
            path = names.staged_file(log.topic.uuid, ref.epoch, ref.uid)
            if path in world.disk.files() and ref.tail_length == ref.length:
                search(log.files.fetch(ref))
        if known.keys() == found.keys():
            return {path: ref for path in world.disk.files() for uid, ref in found.items() if uid in path}


def content(log: Log, path: str, ref: FileRef) -> object:
    """What a reader of this file gets, all of it."""
    if path.endswith(".arrow") and ref.tail_length < ref.length:
        reader = EntryReader(log.storage, log.topic.uuid, ref)
        return [(first, batch.to_pylist()) for first, batch in reader.batches(0, 1 << 30)]
    if path.endswith(".arrow"):
        return log.files.fetch_table(ref)
    return Blobs(log.storage, path.rpartition("/")[0], log.clock).fetch(ref)


def damages(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        yield flipped(data, at, at % 8)
        yield data[:at]
    yield data + b"\0"
    yield data + data
    yield bytes(len(data))


class Objects(MemoryStorage):
    """Read by ranges, as an object store is."""

    def map(self, path: str) -> None:
        return None


@pytest.mark.parametrize("storage", [MemoryStorage, Objects])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_or_another_length_is_found_or_does_no_harm_I1(world, kind, storage):
    path = world.kinds()[kind][0]
    ref, log, data = references(world)[path], world.world.log(), world.disk.content(path)
    log.storage = log.files.storage = storage(world.disk)
    right, harmless = content(log, path, ref), 0
    for damaged in damages(data):
        world.disk.put(path, damaged)
        found, told = outcome(lambda: content(log, path, ref))
        assert path in told if told else found == right
        harmless += not told
    # Only an entry file has bytes that nobody reads: the magic, its first schema, padding between columns.
    assert harmless < len(data) / 2 if kind in ("entry", "compacted") else harmless == 0


# -- every operation -----------------------------------------------------------------------------------------------


def damage(world: Everything, kind: str) -> Iterator[tuple[str, str]]:
    """Does one thing to one file of the kind at a time, and says what, and to which."""
    paths, random = world.kinds()[kind], Random(kind)
    for path in dict.fromkeys((paths[0], paths[-1])):
        data = world.disk.content(path)
        others = [world.disk.content(other) for other in paths if world.disk.content(other) != data]
        done = {
            "flipped at the end": flipped(data, len(data) - 20 if len(data) > 20 else len(data) - 1, 3),
            "flipped somewhere": flipped(data, random.randrange(len(data)), random.randrange(8)),
            "cut short": data[: random.randrange(1, len(data))],
            "empty": b"",
            "removed": None,
            **({"swapped with another": random.choice(others)} if others else {}),
        }
        for what, damaged in done.items():
            world.restore()
            world.disk.put(path, damaged)
            yield what, path


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_told_or_does_no_harm_and_nothing_is_changed_by_who_met_it_I1_I12(world, answers, kind, operation):
    for what, path in damage(world, kind):
        nodes, (_, files) = world.nodes(), world.state()
        found, told = outcome(lambda: world.run(operation))
        assert path in told if told else found == answers[operation], (what, path)
        if told:
            assert world.nodes() == nodes, (what, path)
            assert files.items() <= world.state()[1].items(), (what, path)


def test_every_kind_of_damage_is_met_by_some_operation(world, answers):
    """Or the tests above would prove nothing."""
    for kind, paths in world.kinds().items():
        world.restore()
        world.disk.put(paths[-1], None)
        assert any(outcome(lambda operation=operation: world.run(operation))[1] for operation in OPERATIONS), kind
