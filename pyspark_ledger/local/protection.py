"""What makes a local ZooKeeper take only encrypted connections, or only users whom it knows."""

from __future__ import annotations

import ssl
from pathlib import Path

from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.local.certificates import Certificates, make_certificates

_USER = "ledger"
_JAAS = 'Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required user_{user}="{password}"; }};\n'


class Protection:
    """Of the servers of one :class:`LocalZooKeeper`, which tells where its files may be."""

    def __init__(self, tls: bool | Certificates, *, client_certificates: bool, sasl: bool) -> None:
        if client_certificates and not tls:
            raise InvalidInput("client_certificates needs tls")
        self._make = tls is True
        self.certificates = tls if isinstance(tls, Certificates) else None
        self._client_certificates = client_certificates
        self._password = SYSTEM_CLOCK.new_id().hex() if sasl else ""
        self._jaas: Path | None = None

    def prepare(self, folder: Path) -> None:
        """Writes the files."""
        if self._make:
            self.certificates = make_certificates(folder / "certificates")
        if self._password:
            folder.mkdir(parents=True, exist_ok=True)
            self._jaas = folder / "jaas.conf"
            self._jaas.touch(mode=0o600)
            self._jaas.write_text(_JAAS.format(user=_USER, password=self._password))

    @property
    def jvm_options(self) -> list[str]:
        return [f"-Djava.security.auth.login.config={self._jaas}"] if self._jaas is not None else []

    def settings(self, host: str, port: int) -> dict[str, object]:
        """In the servers' file: where clients connect, and how."""
        found: dict[str, object] = {"clientPort": port, "clientPortAddress": host}
        if self.certificates is not None:
            found = {
                "secureClientPort": port,
                "secureClientPortAddress": host,
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.keyStore.location": self.certificates.server,
                "ssl.keyStore.type": "PEM",
                "ssl.trustStore.location": self.certificates.ca,
                "ssl.trustStore.type": "PEM",
                "ssl.clientAuth": "need" if self._client_certificates else "none",
            }
        if self._password:
            found |= {
                "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
                "enforce.auth.enabled": "true",
                "enforce.auth.schemes": "sasl",
            }
        return found

    @property
    def options(self) -> dict[str, str]:
        """Of a client that is to be let in."""
        found = {}
        if self.certificates is not None:
            found["zookeeper.tls.ca"] = str(self.certificates.ca)
        if self.certificates is not None and self._client_certificates:
            found["zookeeper.tls.cert"] = str(self.certificates.client)
        if self._password:
            found |= {"zookeeper.sasl.user": _USER, "zookeeper.sasl.password": self._password}
        return found

    @property
    def context(self) -> ssl.SSLContext | None:
        """To ask a server of this machine how it is, whatever its certificate says."""
        if self.certificates is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(self.certificates.client)
        return context
