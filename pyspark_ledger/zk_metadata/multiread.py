"""Many nodes in one request.

kazoo spends a quarter of a millisecond on a get even when gets are pipelined: a quarter of a second for the
commits of a full ledger. ZooKeeper takes many reads in one request since 3.6, which makes that a tenth;
kazoo does not know of it yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.exceptions import EXCEPTIONS, NoNodeError
from kazoo.protocol.serialization import (
    GetChildren,
    GetData,
    MultiHeader,
    int_struct,
    read_buffer,
    read_string,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat

Node = tuple[bytes, Any]
Answer = Node | list[str] | Exception | None  # None: not there

_ERROR = -1
_END: bytearray = MultiHeader(_ERROR, True, -1).serialize()


@dataclass(frozen=True, slots=True)
class MultiRead:
    """A request as kazoo's connection expects one; ``of`` is what is asked of each node."""

    paths: tuple[str, ...]
    of: type[GetData] | type[GetChildren] = GetData
    type: ClassVar[int] = 22

    def serialize(self) -> bytearray:
        data = bytearray()
        for path in self.paths:
            data += MultiHeader(self.of.type, False, -1).serialize() + self.of(path, None).serialize()
        return data + _END

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[Answer]:
        """In the order of the paths; kazoo's connection must not see an error raised here."""
        found: list[Answer] = []
        header, offset = MultiHeader.deserialize(data, offset)
        while not header.done:
            answer, offset = _READERS[header.type](data, offset)
            found.append(answer)
            header, offset = MultiHeader.deserialize(data, offset)
        return found


def _read_node(data: bytes, offset: int) -> tuple[Answer, int]:
    content, offset = read_buffer(data, offset)
    stat = ZnodeStat._make(stat_struct.unpack_from(data, offset))
    return (content, stat), offset + stat_struct.size


def _read_names(data: bytes, offset: int) -> tuple[Answer, int]:
    (count,) = int_struct.unpack_from(data, offset)
    offset += int_struct.size
    names = []
    for _ in range(count):
        name, offset = read_string(data, offset)
        names.append(name)
    return names, offset


def _read_error(data: bytes, offset: int) -> tuple[Answer, int]:
    (code,) = int_struct.unpack_from(data, offset)
    return None if code == NoNodeError.code else EXCEPTIONS[code](), offset + int_struct.size


_READERS: dict[int, Callable[[bytes, int], tuple[Answer, int]]] = {
    _ERROR: _read_error,
    GetData.type: _read_node,
    GetChildren.type: _read_names,
}


def get_many(client: Any, paths: tuple[str, ...], timeout_s: float) -> list[Node | None]:
    return _ask(client, MultiRead(paths), timeout_s)


def get_children_many(client: Any, paths: tuple[str, ...], timeout_s: float) -> list[list[str]]:
    """Empty for a node that is not there."""
    return [names or [] for names in _ask(client, MultiRead(paths, GetChildren), timeout_s)]


def _ask(client: Any, request: MultiRead, timeout_s: float) -> list[Any]:
    answer = client.handler.async_result()
    client._call(request, answer)  # the one way in for a request that kazoo does not know
    return [_good(each) for each in answer.get(timeout=timeout_s)]


def _good(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer
