"""What ZooKeeper servers say of themselves to anybody who sends a word of four letters, and what they take of anybody.
``srvr`` is allowed unless somebody has forbidden it, and needs no session. Their limits they tell to no word that is
allowed everywhere, so those are tried.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from dataclasses import dataclass

from kazoo.hosts import collect_hosts
from kazoo.protocol.serialization import Close, Connect, SetData

from pyspark_ledger.zk_metadata.session import split_connect_string

_MOST_BYTES = 64_000
_FACT = re.compile(r"^(Zookeeper version|Mode|Latency min/avg/max): *(\S+)", re.MULTILINE)


_FRAME, _HEADER = struct.Struct("!i"), struct.Struct("!ii")
_NO_PASSWORD = b"\x00" * 16
_NO_NODE, _NO_VERSION = "/pyspark-ledger-doctor/no-such-node", (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Server:
    """One server of a connect string.

    Attributes:
        address: host and port.
        listens: whether it takes connections at all.
        version: empty if it does not say.
        mode: ``standalone``, ``leader``, ``follower`` or ``observer``; empty if it does not say.
        latency: least, average and greatest, in milliseconds, as it says.
    """

    address: str
    listens: bool
    version: str = ""
    mode: str = ""
    latency: str = ""


def servers(connect_string: str, timeout_s: float = 3.0) -> list[Server]:
    hosts, _ = split_connect_string(connect_string)
    return [_look(host, port, timeout_s) for host, port in collect_hosts(hosts)[0]]


def _look(host: str, port: int, timeout_s: float) -> Server:
    address = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            said = _ask(connection, timeout_s)
    except OSError:
        return Server(address, False)
    facts = dict(_FACT.findall(said))
    version = facts.get("Zookeeper version", "").partition("-")[0]
    return Server(address, True, version, facts.get("Mode", ""), facts.get("Latency min/avg/max", ""))


def _ask(connection: socket.socket, timeout_s: float) -> str:
    """Empty if it does not answer: a TLS port, or a proxy."""
    said = b""
    with contextlib.suppress(OSError):
        connection.settimeout(timeout_s)
        connection.sendall(b"srvr")
        while len(said) < _MOST_BYTES and (part := connection.recv(4096)):
            said += part
    return said.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Taken:
    """What a server takes of a client: seconds that it gives a session of the length that was asked for, and whether it
    reads a request of so many bytes."""

    session_s: float
    large_request: bool


def taken(server: str, session_s: float, request_bytes: int, timeout_s: float = 3.0) -> Taken | None:
    """Tries both in a session of its own, which is closed again. What is requested is a change of a node that is not
    there, at a version that no node has: nothing is changed. None if the server answers nobody without TLS or a login.

    :param server: host and port, as in :class:`Server`.
    """
    host, _, port = server.rpartition(":")
    with contextlib.suppress(OSError, struct.error):
        with socket.create_connection((host, int(port)), timeout_s) as connection:
            connection.settimeout(timeout_s)
            asked = Connect(0, 0, round(session_s * 1000), 0, _NO_PASSWORD, False).serialize()
            connection.sendall(_FRAME.pack(len(asked)) + asked)
            given, _ = Connect.deserialize(_answer(connection), 0)
            try:
                return Taken(given.time_out / 1000, _takes(connection, request_bytes))
            finally:
                with contextlib.suppress(OSError):
                    _send(connection, 2, Close.type, b"")
    return None


def _takes(connection: socket.socket, request_bytes: int) -> bool:
    """A server that is sent more than it takes closes the connection."""
    room = request_bytes - _HEADER.size - len(SetData(_NO_NODE, b"", _NO_VERSION).serialize())
    try:
        _send(connection, 1, SetData.type, SetData(_NO_NODE, b"\x00" * room, _NO_VERSION).serialize())
        return bool(_answer(connection))
    except TimeoutError:
        raise
    except OSError:
        return False


def _send(connection: socket.socket, number: int, kind: int, body: bytes) -> None:
    connection.sendall(_FRAME.pack(_HEADER.size + len(body)) + _HEADER.pack(number, kind) + body)


def _answer(connection: socket.socket) -> bytes:
    """:raises ConnectionError: the server closed the connection instead."""
    length = _FRAME.unpack(_read(connection, _FRAME.size))[0]
    return _read(connection, min(length, _MOST_BYTES))


def _read(connection: socket.socket, count: int) -> bytes:
    said = b""
    while len(said) < count:
        part = connection.recv(count - len(said))
        if not part:
            raise ConnectionResetError("the server closed the connection")
        said += part
    return said
