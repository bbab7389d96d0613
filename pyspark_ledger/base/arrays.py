"""A small helper for Arrow arrays."""

from __future__ import annotations

import pyarrow as pa


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array, copied only if it is not one already."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
