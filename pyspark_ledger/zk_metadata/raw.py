"""Nodes by their paths, as they are stored: for those that have no key in the present format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark_ledger.metadata.port import Key


@dataclass(frozen=True, slots=True)
class Raw:
    """What a node holds, as it is."""

    data: bytes


@dataclass(frozen=True, slots=True)
class NodeAt(Key[Any]):
    """The node at a path below the namespace's root; its record is a :class:`Raw`."""

    path: str
