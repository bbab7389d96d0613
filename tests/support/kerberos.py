"""A Kerberos realm of one's own: Debian's KDC on this machine, with a ZooKeeper and a user."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from pyspark_ledger.local.protection import Protection
from pyspark_ledger.local.zookeeper import LocalZooKeeper, _free_ports

REALM = "LEDGER.TEST"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local")
_CLIENT = """[libdefaults]
default_realm = {realm}
dns_lookup_kdc = false
dns_canonicalize_hostname = false
rdns = false
udp_preference_limit = 1
[realms]
{realm} = {{
  kdc = 127.0.0.1:{port}
}}
"""
_SERVER = """[kdcdefaults]
kdc_listen = 127.0.0.1:{port}
kdc_tcp_listen = 127.0.0.1:{port}
[realms]
{realm} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
}}
"""
_JAAS = (
    "Server {{ com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true useTicketCache=false "
    'keyTab="{folder}/server.keytab" principal="zookeeper/localhost@{realm}"; }};\n'
)


def found(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class Realm:
    """``environment`` is what a process of its user ``ledger`` needs, and ``keytab`` what lets it in."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (port,) = _free_ports(1)
        self.folder = folder
        for name, text in (("krb5.conf", _CLIENT), ("kdc.conf", _SERVER), ("jaas.conf", _JAAS)):
            (folder / name).write_text(text.format(realm=REALM, port=port, folder=folder))
        self.environment = {"KRB5_CONFIG": str(folder / "krb5.conf"), "KRB5CCNAME": f"FILE:{folder}/tickets"}
        self.keytab = {"KRB5_CLIENT_KTNAME": str(folder / "ledger.keytab")}
        self._environment = {**os.environ, **self.environment, "KRB5_KDC_PROFILE": str(folder / "kdc.conf")}
        self._run("kdb5_util", "create", "-s", "-P", "of no importance", "-r", REALM)
        for principal, keytab in (("zookeeper/localhost", "server"), ("ledger", "ledger")):
            self._run("kadmin.local", "-q", f"addprinc -randkey {principal}")
            self._run("kadmin.local", "-q", f"ktadd -k {folder}/{keytab}.keytab {principal}")
        with (folder / "kdc.log").open("wb") as log:
            self._kdc = subprocess.Popen(
                [found("krb5kdc") or "", "-n"], env=self._environment, stdout=log, stderr=log, cwd=folder
            )
        self._await(port)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([found(program) or program, *arguments], env=self._environment, check=True, capture_output=True)

    def _await(self, port: int) -> None:
        deadline = time.monotonic() + 30
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert self._kdc.poll() is None, (self.folder / "kdc.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def zookeeper(self) -> LocalZooKeeper:
        """One that serves only who comes with a ticket of the realm."""
        server = LocalZooKeeper(fsync=False, sasl=True)
        server._protection = _Kerberised(self.folder)
        return server

    def close(self) -> None:
        self._kdc.kill()
        self._kdc.wait()


class _Kerberised(Protection):
    def __init__(self, folder: Path) -> None:
        super().__init__(False, client_certificates=False, sasl=True)
        self._folder = folder

    @property
    def jvm_options(self) -> list[str]:
        return [
            f"-Djava.security.auth.login.config={self._folder}/jaas.conf",
            f"-Djava.security.krb5.conf={self._folder}/krb5.conf",
        ]
