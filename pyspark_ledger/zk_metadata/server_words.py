"""What ZooKeeper servers say of themselves to anybody who sends a word of four letters. ``srvr`` is allowed unless
somebody has forbidden it, and needs no session."""

from __future__ import annotations

import contextlib
import re
import socket
from dataclasses import dataclass

from kazoo.hosts import collect_hosts

from pyspark_ledger.zk_metadata.session import split_connect_string

_MOST_BYTES = 64_000
_FACT = re.compile(r"^(Zookeeper version|Mode|Latency min/avg/max): *(\S+)", re.MULTILINE)


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
