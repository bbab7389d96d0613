"""A wall between a Python process and ZooKeeper. Python imports a module of this name when it starts, so every process
that has this folder in its PYTHONPATH is refused at the addresses in NO_ZOOKEEPER, and each try is noted in KNOCKS."""

import os
import sys

_ADDRESSES = os.environ["NO_ZOOKEEPER"].split(",")
_KNOCKS = os.environ["KNOCKS"]


def _wall(event: str, arguments: tuple) -> None:
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        address = "{}:{}".format(*arguments[1][:2])
        if address in _ADDRESSES:
            with open(_KNOCKS, "a") as knocks:
                knocks.write(f"{os.getpid()} {address}\n")
            raise ConnectionRefusedError(f"there is a wall before {address}")


sys.addaudithook(_wall)
