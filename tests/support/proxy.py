"""Between a client and its ZooKeeper: answers, requests and connections are lost."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

MULTI = 14


class Proxy:
    """Stands between one client and the server, and loses what it is told to."""

    def __init__(self, server: str) -> None:
        host, port = server.split(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self.drop_reply_of_next_multi = False
        self.drop_next_multi = False
        self.close_when_dropped = False
        self._doomed_reply: bytes | None = None
        self.flowing = threading.Event()
        self.flowing.set()
        self._spawn(self._accept)

    def cut(self) -> None:
        """Break every connection; new ones are welcome."""
        while self._open:
            _close(self._open.pop())

    def close(self) -> None:
        """Break every connection and take no new one."""
        _close(self._listener)
        self.flowing.set()
        self.cut()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(self._server)
            self._open += [client, server]
            self._spawn(self._pump, client, server, self._on_request)
            self._spawn(self._pump, server, client, self._on_reply)

    def _pump(self, source: socket.socket, target: socket.socket, passes: Callable[[bytes], bool]) -> None:
        try:
            while True:
                header = _receive(source, 4)
                frame = _receive(source, *struct.unpack(">i", header))
                if not passes(frame):
                    self.close() if self.close_when_dropped else self.cut()
                target.sendall(header + frame)
        finally:
            _close(source)
            _close(target)

    def _on_request(self, frame: bytes) -> bool:
        self.flowing.wait()
        if len(frame) > 8 and struct.unpack(">i", frame[4:8]) == (MULTI,):
            if self.drop_next_multi:
                self.drop_next_multi = False
                return False
            if self.drop_reply_of_next_multi:
                self.drop_reply_of_next_multi = False
                self._doomed_reply = frame[:4]
        return True

    def _on_reply(self, frame: bytes) -> bool:
        if self._doomed_reply != frame[:4]:
            return True
        self._doomed_reply = None
        return False

    @staticmethod
    def _spawn(target: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            with contextlib.suppress(OSError):  # one of the ends has gone
                target(*arguments)

        threading.Thread(target=run, daemon=True).start()


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)  # also wakes the threads that wait for it
    end.close()


def _receive(source: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        chunk = source.recv(length - len(data))
        if not chunk:
            raise ConnectionResetError
        data += chunk
    return data
