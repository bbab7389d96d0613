"""Keys as they are compared, and the slots that they fall into.

Consumers that share a subscription by key must agree on the slot of a key, whatever version of Arrow each of them has:
so a slot is computed from a key's bytes, and never from how somebody writes it as text.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
import xxhash

SLOTS = 1_024  # as many as there can sensibly be consumers, with several for each


def identities(key: pa.Array) -> pa.Array:
    """Keys as they are compared. Fractions are compared by their bits, after -0.0 became 0.0 and all NaNs one: by value
    a NaN equals nothing, and has no place among sorted keys."""
    if not pat.is_floating(key.type):
        return key
    one_zero = pc.add(key, pa.scalar(0.0, key.type))
    one_nan = pc.if_else(pc.is_nan(one_zero), pa.scalar(float("nan"), key.type), one_zero)
    return one_nan.view(pa.int64() if key.type.bit_width == 64 else pa.int32())


def slots(key: pa.Array, ordinals: pa.Array) -> pa.Array:
    """The slot of each record, by its key. One without a key belongs to no other: it falls where its number says."""
    spread = pc.bit_wise_and(ordinals, SLOTS - 1)
    if key.null_count == len(key):
        return spread
    encoded = identities(key).dictionary_encode()
    of_key = pa.array([xxhash.xxh3_64_intdigest(each) % SLOTS for each in _bytes(encoded.dictionary)], pa.int64())
    return pc.coalesce(of_key.take(encoded.indices), spread)


def _bytes(values: pa.Array) -> list[bytes]:
    if pat.is_string(values.type) or pat.is_binary(values.type):
        return values.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]
    if pat.is_boolean(values.type):
        values = values.cast(pa.int8())
    return values.view(pa.binary(values.type.bit_width // 8)).to_pylist()  # type: ignore[no-any-return]
