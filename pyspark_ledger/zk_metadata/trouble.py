"""What is wrong when ZooKeeper does not answer, as far as it can be found out from here."""

from __future__ import annotations

import socket

from kazoo.hosts import collect_hosts

from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.base.login import Tls
from pyspark_ledger.errors import Unavailable
from pyspark_ledger.zk_metadata import tls as handshakes

LOOK_EVERY_S = 0.5
# What a look may take for each step with one server: more each time that nothing was found, because a machine that is
# very busy answers late. Servers that say nothing are looked at seldom.
_PATIENCE_S, _MOST_PATIENCE_S = 0.5, 2.0
_SELDOM = 4  # times as long as a look may take
# Where every server refuses connections for so long, or ends them instead of encrypting, the address is given up.
REFUSED_S = 3.0


class Trouble:
    """What one connection's servers were found to be like. Each look takes a connection to each of them."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._refused_since: float | None = None
        self._refusals: list[handshakes.Refusal] = []
        self._patience_s = _PATIENCE_S
        self._look_again_at = 0.0

    def look(self, tls: Tls | None, *, is_known: bool) -> None:
        """While an address is waited for that has never answered this login. ``is_known``: it has answered another one,
        so where nothing listens it is being restarted.

        :raises Unavailable: waiting is no use: nothing listens there, or every server refuses who we are.
        """
        if self._all_refuse():
            if not is_known and self._for_too_long():
                raise Unavailable(
                    f"nothing listens at {self._servers}: is ZooKeeper running there, and is the option zookeeper "
                    "right?"
                )
            return
        if not self._refusals and SYSTEM_CLOCK.monotonic() >= self._look_again_at:
            self._refusals = self._look_at_all(tls)
            self._look_again_at = SYSTEM_CLOCK.monotonic() + _SELDOM * self._patience_s
        if not self._refusals:
            self._refused_since = None
        elif all(refusal.sure for refusal in self._refusals) or self._for_too_long():
            raise self._refused(self._refusals)

    def at_last(self, tls: Tls | None, *, connected: bool) -> Unavailable:
        """When time is up. ``connected``: it has answered this connection before."""
        if self._all_refuse():
            return Unavailable(
                f"ZooKeeper at {self._servers} does not answer: is it running, and is the option zookeeper right?"
            )
        refusals = self._look_at_all(tls)
        if refusals and (tls is not None or not connected):
            return self._refused(refusals)
        if connected:
            return Unavailable(
                f"ZooKeeper at {self._servers} takes connections, and ends them without an answer: it is starting, its "
                "servers cannot agree, or it was rolled back to a state that is older than what this process has seen. "
                "Then it lets this process in only when it has caught up, or when the process is started anew"
            )
        return Unavailable(
            f"ZooKeeper at {self._servers} does not answer: is it running, and is the option zookeeper right?"
        )

    def _refused(self, refusals: list[handshakes.Refusal]) -> Unavailable:
        whys = "; ".join(dict.fromkeys(refusal.why for refusal in refusals))
        return Unavailable(f"no connection to ZooKeeper at {self._servers}: {whys}", "LEDGER_TLS_FAILED")

    def _look_at_all(self, tls: Tls | None) -> list[handshakes.Refusal]:
        """What every server that takes connections has against us; empty if one has nothing."""
        found = []
        for host, port in collect_hosts(self._servers)[0]:
            if not _refuses(host, port):
                refusal = handshakes.refusal(host, port, tls, self._patience_s)
                if refusal is None:
                    self._patience_s = min(2 * self._patience_s, _MOST_PATIENCE_S)
                    return []
                found.append(refusal)
        return found

    def _all_refuse(self) -> bool:
        return all(_refuses(host, port) for host, port in collect_hosts(self._servers)[0])

    def _for_too_long(self) -> bool:
        now = SYSTEM_CLOCK.monotonic()
        self._refused_since = self._refused_since or now
        return now - self._refused_since >= REFUSED_S


def _refuses(host: str, port: int) -> bool:
    """Whether nothing listens there, or it is no host at all. A host that only takes its time does not refuse."""
    try:
        socket.create_connection((host, port), LOOK_EVERY_S).close()
        return False
    except ConnectionRefusedError:
        return True
    except socket.gaierror as error:
        return error.errno == socket.EAI_NONAME
    except OSError:
        return False
