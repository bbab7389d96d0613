"""The last sequence ids of very many producers, in little memory, looked up and changed in batches. A name has a slot:
an index into plain arrays that Arrow reads in place."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from pyspark_ledger.base.arrays import one_array
from pyspark_ledger.errors import InvalidInput

_LOWEST_ID, _HIGHEST_ID = -(1 << 63), (1 << 63) - 1
_MANY = 1_000  # names or ids: for fewer a loop is as fast
_TIMES = 4  # as many producers as there are names in a batch: with more, the names are looked up one by one
_MOST_BYTES = 1 << 30  # of names in one array: Arrow counts them in 32 bits


def checked_id(sequence_id: int | None) -> int | None:
    """A sequence id that somebody has given: InvalidInput if it is no 64-bit integer."""
    if sequence_id is None or (type(sequence_id) is int and _LOWEST_ID <= sequence_id <= _HIGHEST_ID):
        return sequence_id
    try:
        number = operator.index(sequence_id)
    except TypeError:
        number = None
    if number is None or isinstance(sequence_id, bool) or not _LOWEST_ID <= number <= _HIGHEST_ID:
        raise InvalidInput(f"the sequence id {sequence_id!r} is not a 64-bit integer", "LEDGER_INVALID_VALUE")
    return number


def checked_ids(sequence_ids: pa.Array | pa.ChunkedArray, rows: int) -> pa.Array:
    """Those of the rows of a batch: InvalidInput if they are no integers that rise, one for each row."""
    try:
        given = one_array(sequence_ids)
        ids = given.cast(pa.int64()) if pat.is_integer(given.type) else None
    except (pa.ArrowException, AttributeError, TypeError):
        ids = None
    if (
        ids is None
        or len(ids) != rows
        or ids.null_count
        or not pc.all(pc.greater(ids[1:], ids[:-1]), min_count=0).as_py()
    ):
        raise InvalidInput(
            f"sequence_ids must be an Arrow array of {rows:,} integers without null, one for each row, each "
            "greater than the one before",
            "LEDGER_INVALID_VALUE",
        )
    return ids


@dataclass(frozen=True, slots=True)
class Encoded:
    """The names of a batch as numbers: of each its place in ``names``, which may have others too."""

    names: pa.Array  # each once
    codes: pa.Array
    slots: pa.Array  # of each of ``names``; null for one that is new


class Sequences:
    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._last = array("q")
        self._published = array("q")
        self._names: pa.Array | None = None  # the first of the names once more, as Arrow has them

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """(name, last id, publish time of that), in the order in which producers appeared."""
        return ((name, self._last[slot], self._published[slot]) for name, slot in self._slots.items())

    def get(self, name: str) -> tuple[int, int] | None:
        slot = self._slots.get(name)
        return None if slot is None else (self._last[slot], self._published[slot])

    def slots(self, names: list[str]) -> pa.Array:
        """Where each producer is; null for one that is not here."""
        return pa.array(list(map(self._slots.get, names)), pa.int64())

    def encode(self, names: pa.ChunkedArray) -> Encoded:
        """Which producers these are, and where each is. The names of a batch are compared with those that are here in
        one pass of Arrow, if there are not far more of these: to ask for them one by one takes twice as long."""
        if self._slots and len(names) >= _MANY and len(self) <= _TIMES * len(names):
            here = self._all_names()
            if here.nbytes + names.nbytes < _MOST_BYTES:
                return self._found(names, one_array(pc.index_in(names, value_set=here)))
        distinct, codes = _encoded(names)
        slots = self.slots(distinct.to_pylist()) if self._slots else pa.nulls(len(distinct), pa.int64())
        return Encoded(distinct, codes, slots)

    def _found(self, names: pa.ChunkedArray, codes: pa.Array) -> Encoded:
        """``codes``: where each name is in ``_all_names``; null for one that is not."""
        here, slots = self._all_names(), self._all_slots()
        if not codes.null_count:
            return Encoded(here, codes, slots)
        missing = codes.is_null()
        new, new_codes = _encoded(names.filter(missing))
        return Encoded(
            pa.concat_arrays([here, new]),
            pc.replace_with_mask(codes, missing, pc.add(new_codes, pa.scalar(len(here), pa.int32()))),
            pa.concat_arrays([slots, pa.nulls(len(new), pa.int64())]),
        )

    def _all_names(self) -> pa.Array:
        """In the order of ``_slots``, to whose end new ones come."""
        known = pa.nulls(0, pa.string()) if self._names is None else self._names
        if len(known) < len(self._slots):
            known = pa.concat_arrays([known, pa.array(list(islice(self._slots, len(known), None)), pa.string())])
        self._names = known
        return known

    def _all_slots(self) -> pa.Array:
        if len(self._slots) == len(self._last):
            return pa.arange(0, len(self._last))
        return pa.array(list(self._slots.values()), pa.int64())  # some were removed

    def last(self, slots: pa.Array) -> pa.Array:
        """The last ids in some slots; null for null."""
        return _view(self._last).take(slots)

    def put(self, names: list[str], last: list[int], published: list[int], slots: pa.Array | None = None) -> None:
        """``slots`` are those of the names, if they are known: looking up a million takes longer than the rest."""
        known = (self.slots(names) if slots is None else slots).to_pylist()
        ids, published_ms = self._last, self._published
        for slot, name, sequence, time in zip(known, names, last, published, strict=True):
            if slot is None:
                self._slots[name] = len(ids)
                ids.append(sequence)
                published_ms.append(time)
            else:
                ids[slot], published_ms[slot] = sequence, time

    def remove(self, name: str) -> None:
        self._names = None
        self._slots.pop(name, None)  # the slot is not used again: producers are rarely forgotten, and one by one

    def raise_to(self, names: pa.Array, last: pa.Array, published: int, slots: pa.Array) -> None:
        """As :meth:`put`, of producers that were just looked up, each once; those that are new have no slot."""
        if len(slots) < max(_MANY, len(self._last) // _TIMES):
            self.put(names.to_pylist(), last.to_pylist(), [published] * len(names), slots)
            return
        new = slots.is_null()
        known, ids = slots.drop_null(), last.filter(pc.invert(new))
        if len(known):
            self._last = _with(self._last, known, ids)
            self._published = _with(self._published, known, pa.repeat(pa.scalar(published, pa.int64()), len(known)))
        if slots.null_count:
            start = len(self._last)
            self._slots.update(zip(names.filter(new).to_pylist(), range(start, start + slots.null_count), strict=True))
            self._last.extend(last.filter(new).to_pylist())
            self._published.extend(array("q", [published]) * slots.null_count)

    def table(self) -> pa.Table:
        """(name, sequence, publish_ms) of all."""
        slots = pa.array(list(self._slots.values()), pa.int64())
        columns = [pa.array(list(self._slots), pa.string()), _view(self._last).take(slots)]
        return pa.table([*columns, _view(self._published).take(slots)], names=["name", "sequence", "publish_ms"])


def _encoded(names: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Each name once, and of each its place there. The chunks are not put together, which takes long with
    millions of names."""
    encoded = names.dictionary_encode()  # all chunks have one dictionary
    if not encoded.num_chunks:
        return pa.nulls(0, pa.string()), pa.nulls(0, pa.int32())
    return encoded.chunk(0).dictionary, pa.concat_arrays([chunk.indices for chunk in encoded.chunks])


def _with(values: array[int], slots: pa.Array, new: pa.Array) -> array[int]:
    """A copy with new values in some slots."""
    placed = pc.coalesce(pc.scatter(new, slots, max_index=len(values) - 1), _view(values))
    changed = array("q")
    changed.frombytes(placed.buffers()[1].slice(8 * placed.offset, 8 * len(placed)))
    return changed


def _view(values: array[int]) -> pa.Array:
    """Does not copy. The array cannot grow while the result exists, so nobody may keep it."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
